"""Counts the bytes that an instruction of a compiled program reads from and writes to the main memory.

A slice counts as the slice alone, an update in place as the update alone, and a fusion as its inputs and outputs.
Arrays in a chip's own memory do not count.
"""

from elmo_jax.aot.hlo import Array, Computation, Instruction, Program

# Instructions that only rename bytes which stay in place, or whose traffic is counted inside of them.
_FREE = {
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id", "replica-id"),
    *("opt-barrier", "optimization-barrier", "domain", "while", "conditional", "call", "async-start", "async-update"),
    *("async-done", "copy-start", "slice-start", "get-dimension-size", "iota-free"),
}
_FREE_CALLS = {"AllocateBuffer", "ConcatBitcast", "AssumeGatherIndicesInBound", "AsyncCollectiveStart"}
_SLICES = {"dynamic-slice", "slice", "gather"}


def traffic(program: Program, where: Computation, instruction: Instruction) -> int:
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
    read = 0
    for place, operand in enumerate(where.inputs(instruction)):
        read += _read_by(program, where, instruction, place, operand)
    return read + _written(program, where, instruction)


def _main(arrays: tuple[Array, ...]) -> int:
    return sum(array.bytes for array in arrays if array.space == 0)


def _read(program: Program, where: Computation, value: Instruction) -> int:
    """Returns the bytes of a fusion's parameter that the fusion reads: all bytes, once, or those of its slices."""
    whole = _main(value.arrays)
    if not whole:
        return 0
    parts = 0
    for user in where.users[value.name]:
        for place, operand in enumerate(user.operands):
            if operand == value.name:
                parts += _read_by(program, where, user, place, value)
    return min(whole, parts)


def _read_by(program: Program, where: Computation, user: Instruction, place: int, value: Instruction) -> int:
    whole = _main(value.arrays)
    if user.opcode in _SLICES and place == 0:
        return min(whole, sum(array.bytes for array in user.arrays))
    if user.opcode == "dynamic-update-slice" and place == 0:
        return 0
    if user.opcode == "scatter" and place < (len(user.operands) - 1) // 2:
        return min(whole, where.inputs(user)[-1].arrays[0].bytes)  # the rows that are updated
    if user.opcode in ("bitcast", "tuple"):
        return _read(program, where, user) if user is not where.root else 0
    if user.opcode == "fusion":
        inner = program.computations[user.called("calls")]
        return min(whole, _read(program, inner, inner.parameters[place]))
    return whole


def _results(where: Computation) -> list[Instruction]:
    return where.inputs(where.root) if where.root.opcode == "tuple" else [where.root]


def _written(program: Program, where: Computation, result: Instruction) -> int:
    whole = _main(result.arrays)
    source = result
    while source.opcode == "bitcast":
        source = where.inputs(source)[0]
    if source.opcode == "parameter":  # passed through without a write
        return 0
    if source.opcode == "dynamic-update-slice":
        return min(whole, where.inputs(source)[1].arrays[0].bytes)
    if source.opcode == "scatter":
        return min(whole, where.inputs(source)[-1].arrays[0].bytes)
    if source.opcode == "fusion":
        inner = program.computations[source.called("calls")]
        return min(whole, sum(_written(program, inner, leaf) for leaf in _results(inner)))
    return whole
