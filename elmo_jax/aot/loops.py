"""Finds how often the loops of a compiled program run, from the start, the step and the end in its text."""

from __future__ import annotations

import math
import re

from elmo_jax.aot.hlo import Computation, Instruction, Program, tuple_index


def trips(program: Program, loop: Instruction, where: Computation) -> int | None:
    """Returns how often the body of a `while` runs, or None if that is known only when it runs."""
    if known := re.search(r'"known_trip_count":\{"n":"(\d+)"\}', loop.attributes):
        return int(known[1])
    condition, body = (program.computations.get(loop.called(key) or "") for key in ("condition", "body"))
    if condition is None or body is None:
        return None
    compare, sides = _comparison(program, condition)
    direction = re.search(r"direction=(\w+)", compare.attributes)
    if direction is None or len(sides) != 2 or sides[0][0] != "element":
        return None
    counter = sides[0][1]
    start, step = _start(loop, where, counter), _step(program, body, counter)
    bound = sides[1][1] if sides[1][0] == "constant" else _unchanged(loop, where, body, sides[1][1])
    if start is None or not step or bound is None:
        return None
    span = {"LT": bound - start, "LE": bound - start + 1, "GT": bound - start, "GE": bound - start - 1}
    return max(0, math.ceil(span[direction[1]] / step)) if direction[1] in span else None


def _comparison(program: Program, condition: Computation) -> tuple[Instruction, list[tuple[str, int]]]:
    """Returns the comparison that ends a loop and its two sides, each an element of the loop's state or a constant."""
    compare, values = condition.root, {}
    if compare.opcode == "fusion":
        inner = program.computations[compare.called("calls") or ""]
        outer = condition.inputs(compare)
        values = {inner.parameters[n].name: _plain(condition, value) for n, value in enumerate(outer)}
        condition, compare = inner, inner.root
    sides = []
    for side in condition.inputs(compare) if compare.opcode == "compare" else []:
        source = condition.source(side)
        found = values.get(source.name) or _plain(condition, source)
        if found is None:
            break
        sides.append(found)
    return compare, sides


def _start(loop: Instruction, where: Computation, element: int) -> int | None:
    """Returns the value of an element of the loop's state before the loop if it is a constant, and else None."""
    state = where.instructions[loop.operands[0]]
    if state.opcode != "tuple":
        return None
    return _constant(where.source(where.instructions[state.operands[element]]))


def _step(program: Program, body: Computation, element: int) -> int | None:
    """Returns the constant that an iteration of the loop adds to an element of its state, or None."""
    if body.root.opcode != "tuple":
        return None
    new = body.source(body.instructions[body.root.operands[element]])
    inner = body
    values = {}
    if new.opcode == "fusion":  # the CPU's compiler fuses the addition
        inner = program.computations[new.called("calls") or ""]
        values = {inner.parameters[n].name: _plain(body, value) for n, value in enumerate(body.inputs(new))}
        new = inner.root
    if new.opcode != "add":
        return None
    sources = [inner.source(side) for side in inner.inputs(new)]
    found = dict(values.get(source.name) or _plain(inner, source) or ("unknown", 0) for source in sources)
    return found.get("constant") if found.get("element") == element else None


def _unchanged(loop: Instruction, where: Computation, body: Computation, element: int) -> int | None:
    """Returns the value of an element of the state that the loop does not change if it is a constant, and else None."""
    if body.root.opcode != "tuple":
        return None
    handed = body.source(body.instructions[body.root.operands[element]])
    return _start(loop, where, element) if _plain(body, handed) == ("element", element) else None


def _plain(computation: Computation, instruction: Instruction) -> tuple[str, int] | None:
    """Returns ("element", n) of the computation's only parameter, ("constant", value), or None for other values."""
    instruction = computation.source(instruction)
    if (value := _constant(instruction)) is not None:
        return "constant", value
    if instruction.opcode == "get-tuple-element":
        if computation.inputs(instruction)[0].opcode == "parameter":
            return "element", tuple_index(instruction)
    return None


def _constant(instruction: Instruction) -> int | None:
    if instruction.opcode == "constant" and re.fullmatch(r"-?\d+", instruction.arguments):
        return int(instruction.arguments)
    return None
