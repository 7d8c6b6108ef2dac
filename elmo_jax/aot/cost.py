"""Counts the exchanges and the main memory traffic of a compiled program; loop bodies count as often as they run."""

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from elmo_jax.aot.hlo import Array, Computation, HloModule, Instruction

COLLECTIVES = (
    *("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "ragged-all-to-all"),
    *("collective-permute", "collective-broadcast"),
)
# Instructions that only rename bytes which stay in place, or whose traffic is counted inside of them.
_FREE = {
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id", "replica-id"),
    *("opt-barrier", "optimization-barrier", "domain", "while", "conditional", "call", "async-start", "async-update"),
    *("async-done", "copy-start", "slice-start", "get-dimension-size", "iota-free"),
}
_FREE_CALLS = {"AllocateBuffer", "ConcatBitcast", "AssumeGatherIndicesInBound", "AsyncCollectiveStart"}
_SLICES = {"dynamic-slice", "slice", "gather"}


class Collective(NamedTuple):
    """One exchange between devices."""

    kind: str
    payload_bytes: int  # those of an all-reduce's sum, of an all-gather's result, or else of a chip's input
    devices: int  # those that take part
    times: float  # how often it runs per step
    loops: tuple[str, ...]  # the loops that it is in
    op_name: str

    @property
    def sent(self) -> float:
        """The least number of bytes that a chip sends each time, in a ring or directly to the receiving chip."""
        share = (self.devices - 1) / self.devices
        if self.kind == "all-reduce":
            return 2 * share * self.payload_bytes
        return self.payload_bytes if self.kind == "collective-permute" else share * self.payload_bytes


class Cost(NamedTuple):
    """The sums over one step of one chip."""

    bytes: float  # read from and written to the main memory
    collectives: list[Collective]


Assume = Callable[[Instruction], float]


def once(instruction: Instruction) -> float:
    """Assumes that a loop of unknown length runs once, and that the costly branch is taken."""
    return 1.0


def cost_of(program: HloModule, assume: Assume = once) -> Cost:
    """Returns the sums over one step of a compiled program.

    Of a `while` whose number of iterations the program does not determine, `assume` returns that number; of a
    `conditional`, the fraction of times (0 to 1) that the costly branch is taken.
    """
    total, collectives = 0.0, []
    for where, instruction, times, loops in runs(program, program.entry, assume):
        for inner, fused in with_fused(program, where, instruction):
            if fused.opcode.removesuffix("-start") in COLLECTIVES and not _continues(inner, fused):
                collectives.append(_collective(program, inner, fused, times, loops))
        total += times * traffic(program, where, instruction)
    return Cost(total, collectives)


Run = tuple[Computation, Instruction, float, tuple[str, ...]]


def runs(
    program: HloModule, where: Computation, assume: Assume, times: float = 1.0, loops: tuple[str, ...] = ()
) -> Iterator[Run]:
    """Yields each instruction with its computation, how often it runs, and its loops; of a loop, all its iterations."""
    for instruction in where.instructions.values():
        if instruction.opcode == "while":
            turns = times * _turns(program, instruction, assume)
            yield where, instruction, turns, loops
            body = program.computations[instruction.called("body")]
            yield from runs(program, body, assume, turns, (*loops, instruction.op_name or instruction.name))
        elif instruction.opcode == "conditional":
            # The branch with the most traffic, or else the most instructions, is taken as often as assumed, and the
            # others in equal shares of the rest.
            branches = [program.computations[name] for name in instruction.branches]
            costly = max(branches, key=lambda branch: (_bytes(program, branch), len(branch.instructions)))
            share = assume(instruction)
            for branch in branches:
                taken = share if branch is costly else (1 - share) / (len(branches) - 1)
                yield from runs(program, branch, assume, times * taken, loops)
        elif instruction.opcode in ("call", "async-start"):
            called = instruction.called("to_apply") or instruction.called("calls")
            yield from runs(program, program.computations[called], assume, times, loops)
        else:
            yield where, instruction, times, loops


def _turns(program: HloModule, loop: Instruction, assume: Assume) -> float:
    """Returns how often the body of a `while` runs each time.

    XLA writes it into programs for CPUs. In those for TPUs, the condition compares the counter with a constant: the
    loops of JAX whose length is known count from 0 in steps of 1.
    """
    if known := re.search(r'"known_trip_count":\{"n":"(\d+)"\}', loop.attributes):
        return int(known[1])
    condition = program.computations[loop.called("condition")]
    compare, sides = condition.root, condition.inputs(condition.root)
    if compare.opcode == "compare" and "direction=LT" in compare.attributes and sides[1].opcode == "constant":
        if sides[0].opcode == "get-tuple-element" and sides[1].arguments.isdigit():
            return int(sides[1].arguments)
    return assume(loop)


def _bytes(program: HloModule, where: Computation) -> float:
    return sum(times * traffic(program, inner, run) for inner, run, times, _ in runs(program, where, once))


def with_fused(
    program: HloModule, where: Computation, instruction: Instruction
) -> Iterator[tuple[Computation, Instruction]]:
    """Yields the instruction and those that are fused in it, each with its computation."""
    yield where, instruction
    if instruction.opcode == "fusion":
        inner = program.computations[instruction.called("calls")]
        for fused in inner.instructions.values():
            yield from with_fused(program, inner, fused)


def _continues(where: Computation, collective: Instruction) -> bool:
    """Returns whether an instruction is a later part of an exchange that began elsewhere.

    On a TPU an exchange can be interleaved with other work. The same instruction then occurs in every fusion that sends
    a part of it, and only the first occurrence is the operand of an `AsyncCollectiveStart`.
    """
    if "chain_id=" not in collective.attributes:
        return False
    return not any("AsyncCollectiveStart" in user.attributes for user in where.users[collective.name])


def _collective(
    program: HloModule, where: Computation, instruction: Instruction, times: float, loops: tuple[str, ...]
) -> Collective:
    kind = instruction.opcode.removesuffix("-start")
    payload = [array for operand in where.inputs(instruction) for array in operand.arrays]
    if kind == "all-gather":  # its start has the operands and the results
        payload = list(instruction.arrays)[len(payload) if instruction.opcode.endswith("-start") else 0 :]
    group = program.devices
    if listed := re.search(r"replica_groups=\{\{([\d,]*)\}", instruction.attributes):
        group = len(listed[1].split(","))
    elif tiled := re.search(r"replica_groups=\[\d+,(\d+)\]", instruction.attributes):
        group = int(tiled[1])
    return Collective(kind, sum(array.bytes for array in payload), group, times, loops, instruction.op_name)


def traffic(program: HloModule, where: Computation, instruction: Instruction) -> int:
    """Returns the bytes that an instruction reads from and writes to the main memory."""
    if instruction.opcode in _FREE or any(f'"{name}"' in instruction.attributes for name in _FREE_CALLS):
        return 0
    if instruction.opcode in ("copy-done", "slice-done"):
        start = where.inputs(instruction)[0]
        source = where.inputs(start)[0].arrays[0]
        result = instruction.arrays[0]
        return result.bytes * ((source.space == 0) + (result.space == 0))
    if instruction.opcode.endswith("-done"):
        return 0
    if instruction.opcode == "fusion":
        inner = program.computations[instruction.called("calls")]
        read = sum(_read(program, inner, parameter) for parameter in inner.parameters.values())
        return read + sum(_written(program, inner, leaf) for leaf in _results(inner))
    operands = enumerate(where.inputs(instruction))
    read = sum(_read_by(program, where, instruction, index, operand) for index, operand in operands)
    return read + _written(program, where, instruction)


def _main(arrays: tuple[Array, ...]) -> int:
    return sum(array.bytes for array in arrays if array.space == 0)


def _read(program: HloModule, where: Computation, value: Instruction) -> int:
    """Returns the bytes of a fusion's parameter that the fusion reads: all bytes, once, or those of its slices."""
    whole = _main(value.arrays)
    if not whole:
        return 0
    parts = 0
    for user in where.users[value.name]:
        for index, operand in enumerate(user.operands):
            if operand == value.name:
                parts += _read_by(program, where, user, index, value)
    return min(whole, parts)


def _read_by(program: HloModule, where: Computation, user: Instruction, index: int, value: Instruction) -> int:
    whole = _main(value.arrays)
    if user.opcode in _SLICES and index == 0:
        return min(whole, sum(array.bytes for array in user.arrays))
    if user.opcode == "dynamic-update-slice" and index == 0:
        return 0
    if user.opcode == "scatter" and index < (len(user.operands) - 1) // 2:
        return min(whole, where.inputs(user)[-1].arrays[0].bytes)  # the rows that are updated
    if user.opcode in ("bitcast", "tuple"):
        return _read(program, where, user) if user is not where.root else 0
    if user.opcode == "fusion":
        inner = program.computations[user.called("calls")]
        return min(whole, _read(program, inner, inner.parameters[index]))
    return whole


def _results(where: Computation) -> list[Instruction]:
    return where.inputs(where.root) if where.root.opcode == "tuple" else [where.root]


def _written(program: HloModule, where: Computation, result: Instruction) -> int:
    whole = _main(result.arrays)
    source = result
    while source.opcode == "bitcast":
        source = where.inputs(source)[0]
    if source.opcode == "parameter":  # passed through without a write
        return 0
    update = {"dynamic-update-slice": 1, "scatter": -1}.get(source.opcode)
    if update is not None:
        return min(whole, where.inputs(source)[update].arrays[0].bytes)
    if source.opcode == "fusion":
        inner = program.computations[source.called("calls")]
        return min(whole, sum(_written(program, inner, leaf) for leaf in _results(inner)))
    return whole
