"""What a compiled program does in a step: matrix products, traffic of the main memory, and what devices exchange.

Loop bodies count as often as they run. Matrix products (`dot` and `convolution`, wherever they stand) are counted
exactly; the arithmetic of other instructions is not counted, since it runs beside the matrix units, but their traffic
is.
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
    payload: int  # bytes: of an all-reduce the sum's, of an all-gather the whole's, else what a chip puts in
    group: int  # devices that take part
    times: float  # a step
    loops: tuple[str, ...]  # that it is in
    op_name: str

    @property
    def sent(self) -> float:
        """Bytes that a chip sends each time, at the least: by a ring, or straight to their chip."""
        share = (self.group - 1) / self.group
        if self.kind == "all-reduce":
            return 2 * share * self.payload
        return self.payload if self.kind == "collective-permute" else share * self.payload


@dataclasses.dataclass
class Cost:
    """Sums over a step of one chip."""

    flops: dict[str, float] = dataclasses.field(default_factory=dict)  # of matrix products, by type of the operands
    bf16_flops: float = 0.0  # the same, as bf16 products
    bytes: float = 0.0  # read from and written to the main memory
    collectives: list[Collective] = dataclasses.field(default_factory=list)
    loops: list[tuple[str, float, str]] = dataclasses.field(default_factory=list)  # name, turns in all, how known
    traffic: dict[str, float] = dataclasses.field(default_factory=dict)  # bytes, by instruction


@dataclasses.dataclass(frozen=True)
class Assumption:
    """How often something runs whose count the program alone does not tell."""

    count: float
    why: str


Assume = Callable[[Instruction, tuple[str, ...]], Assumption]


def once(instruction: Instruction, loops: tuple[str, ...]) -> Assumption:
    """Assumes that a loop of unknown length runs once, and that the costly branch is taken."""
    return Assumption(1.0, "whose turns are not known before the run, counted once")


def cost_of(program: Program, assume: Assume = once) -> Cost:
    """Sums of a step.

    Args:
      program: as compiled.
      assume: for a `while` whose turns the program does not tell their number, and for a `conditional` how often its
        costly branch is taken each time (0 to 1); given the instruction and the loops it is in.
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
    """The branch that moves most bytes as often as assumed, the others share the rest."""
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
    """The instruction, and those that are fused in it."""
    found = [(where, instruction)]
    if instruction.opcode == "fusion":
        inner = program.computations[instruction.called("calls") or ""]
        for fused in inner.instructions.values():
            found += _inside(program, inner, fused)
    return found


def _continues(program: Program, where: Computation, collective: Instruction) -> bool:
    """Whether it is a later part of an exchange that began elsewhere.

    On a TPU an exchange can be spread over other work: the same instruction stands again in each fusion that sends a
    part of it, and only the first feeds an `AsyncCollectiveStart`.
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
        shape = shape[1]  # the operands stand first
    payload = sum(array.bytes for array in leaves(shape)) if kind == "all-gather" else operands
    group = program.devices
    if listed := re.search(r"replica_groups=\{\{([\d,]*)\}", instruction.attributes):
        group = len(listed[1].split(","))
    elif tiled := re.search(r"replica_groups=\[\d+,(\d+)\]", instruction.attributes):
        group = int(tiled[1])
    return Collective(kind, payload, group, times, loops, instruction.op_name)
