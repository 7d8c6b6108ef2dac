"""Counts what a compiled program does per step: matrix products, traffic of the main memory, and exchanges.

Loop bodies count as often as they run. Matrix products (`dot` and `convolution`, including fused ones) are counted
exactly. The arithmetic of other instructions is not counted, since it runs in parallel to the matrix units, but their
traffic is.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable

from elmo_jax.aot.hlo import Array, Computation, Instruction, Program, leaves
from elmo_jax.aot.loops import trips
from elmo_jax.aot.products import bf16_passes, product_flops
from elmo_jax.aot.traffic import traffic

COLLECTIVES = (
    *("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "ragged-all-to-all"),
    *("collective-permute", "collective-broadcast"),
)


@dataclasses.dataclass(frozen=True)
class Collective:
    """One exchange between devices."""

    kind: str
    payload: int  # the bytes of an all-reduce's sum, of an all-gather's result, or else of a chip's input
    group: int  # the number of devices that take part
    times: float  # how often it runs per step
    loops: tuple[str, ...]  # the loops that it is in
    op_name: str

    @property
    def sent(self) -> float:
        """The least number of bytes that a chip sends each time, in a ring or directly to the receiving chip."""
        share = (self.group - 1) / self.group
        if self.kind == "all-reduce":
            return 2 * share * self.payload
        return self.payload if self.kind == "collective-permute" else share * self.payload


@dataclasses.dataclass
class Cost:
    """The sums over one step of one chip.

    Attributes:
      flops: the operations of matrix products by the types of the operands.
      bf16_flops: the operations of the bf16 products that they take.
      bytes: the bytes read from and written to the main memory.
      collectives: the exchanges.
      loops: for each loop its name, the number of iterations in all, and how this number is known.
      traffic: the bytes read from and written to the main memory by instruction.
    """

    flops: dict[str, float] = dataclasses.field(default_factory=dict)
    bf16_flops: float = 0.0
    bytes: float = 0.0
    collectives: list[Collective] = dataclasses.field(default_factory=list)
    loops: list[tuple[str, float, str]] = dataclasses.field(default_factory=list)
    traffic: dict[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Assumption:
    """An assumption about how often something runs, where the program does not determine it."""

    count: float
    why: str


Assume = Callable[[Instruction, tuple[str, ...]], Assumption]


def once(instruction: Instruction, loops: tuple[str, ...]) -> Assumption:
    """Assumes that a loop of unknown length runs once, and that the costly branch is taken."""
    return Assumption(1.0, "whose number of iterations is not known before the run, counted once")


def cost_of(program: Program, assume: Assume = once) -> Cost:
    """Returns the sums over one step.

    Args:
      program: the compiled program.
      assume: a function of an instruction and the loops it is in. For a `while` whose number of iterations the program
        does not determine, it returns that number; for a `conditional`, the fraction of times (0 to 1) that the costly
        branch is taken.
    """
    cost = Cost()
    _add(program, program.entry, cost, assume, 1.0, ())
    return cost


def _add(
    program: Program, where: Computation, cost: Cost, assume: Assume, times: float, loops: tuple[str, ...]
) -> None:
    for instruction in where.instructions.values():
        if instruction.opcode == "while":
            turns: float | None = trips(program, instruction, where)
            why = "as compiled"
            if turns is None:
                assumed = assume(instruction, loops)
                turns, why = assumed.count, assumed.why
            name = instruction.op_name or instruction.name
            cost.loops.append((name, times * turns, why))
            body = program.computations[instruction.called("body") or ""]
            _add(program, body, cost, assume, times * turns, (*loops, name))
        elif instruction.opcode == "conditional":
            _add_branches(program, instruction, cost, assume, times, loops)
        elif instruction.opcode in ("call", "async-start"):
            called = instruction.called("to_apply") or instruction.called("calls") or ""
            _add(program, program.computations[called], cost, assume, times, loops)
        else:
            _add_one(program, where, instruction, cost, times, loops)


def _add_branches(
    program: Program, conditional: Instruction, cost: Cost, assume: Assume, times: float, loops: tuple[str, ...]
) -> None:
    """Adds the branch with the most traffic as often as assumed, and the others in equal shares of the rest."""
    branches = [program.computations[name] for name in conditional.branches]

    def alone(branch: Computation) -> float:
        found = Cost()
        _add(program, branch, found, once, 1.0, loops)
        return found.bytes

    costly = max(branches, key=alone)
    share = assume(conditional, loops).count
    for branch in branches:
        taken = share if branch is costly else (1 - share) / (len(branches) - 1)
        _add(program, branch, cost, assume, times * taken, loops)


def _add_one(
    program: Program,
    where: Computation,
    instruction: Instruction,
    cost: Cost,
    times: float,
    loops: tuple[str, ...],
) -> None:
    for inner, product in _inside(program, where, instruction):
        if product.opcode in ("dot", "convolution"):
            flops = times * product_flops(inner, product)
            types = "×".join(operand.arrays[0].dtype for operand in inner.inputs(product))
            cost.flops[types] = cost.flops.get(types, 0.0) + flops
            cost.bf16_flops += flops * bf16_passes(inner, product)
        elif (kind := product.opcode.removesuffix("-start")) in COLLECTIVES and not _continues(program, inner, product):
            cost.collectives.append(_collective(program, inner, product, kind, times, loops))
    moved = times * traffic(program, where, instruction)
    cost.bytes += moved
    cost.traffic[instruction.name] = cost.traffic.get(instruction.name, 0.0) + moved


def _inside(program: Program, where: Computation, instruction: Instruction) -> list[tuple[Computation, Instruction]]:
    """Returns the instruction and those that are fused in it, each with its computation."""
    found = [(where, instruction)]
    if instruction.opcode == "fusion":
        inner = program.computations[instruction.called("calls") or ""]
        for fused in inner.instructions.values():
            found += _inside(program, inner, fused)
    return found


def _continues(program: Program, where: Computation, collective: Instruction) -> bool:
    """Returns whether an instruction is a later part of an exchange that began elsewhere.

    On a TPU an exchange can be interleaved with other work. The same instruction then occurs in every fusion that sends
    a part of it, and only the first occurrence is the operand of an `AsyncCollectiveStart`.
    """
    if "chain_id=" not in collective.attributes:
        return False
    return not any("AsyncCollectiveStart" in user.attributes for user in where.users[collective.name])


def _collective(
    program: Program, where: Computation, instruction: Instruction, kind: str, times: float, loops: tuple[str, ...]
) -> Collective:
    operands = sum(array.bytes for operand in where.inputs(instruction) for array in operand.arrays)
    shape = instruction.shape
    if instruction.opcode.endswith("-start") and kind == "all-gather" and not isinstance(shape, Array):
        shape = shape[1]  # the shape of the start is a pair of operands and results
    payload = sum(array.bytes for array in leaves(shape)) if kind == "all-gather" else operands
    group = program.devices
    if listed := re.search(r"replica_groups=\{\{([\d,]*)\}", instruction.attributes):
        group = len(listed[1].split(","))
    elif tiled := re.search(r"replica_groups=\[\d+,(\d+)\]", instruction.attributes):
        group = int(tiled[1])
    return Collective(kind, payload, group, times, loops, instruction.op_name)
