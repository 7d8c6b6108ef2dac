"""Parses the text of a compiled program (XLA's HLO) into computations and instructions.

XLA's own `cost_analysis` counts the body of a loop once. Therefore everything that is needed per step is counted from
the text of `compiled.as_text()`. Instructions of unknown kinds are kept unchanged.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Iterator

BITS = {"pred": 8, "token": 0, "opaque": 0, "bf16": 16, "tf32": 32, "c64": 64, "c128": 128}


@dataclasses.dataclass(frozen=True)
class Array:
    """The shape of one array."""

    dtype: str  # XLA's name of the type: f32, bf16, s32
    dims: tuple[int, ...]
    space: int = 0  # the memory space: 0 is the main memory; on a TPU the others are on the chip itself

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.dims)

    @property
    def bytes(self) -> int:
        """The bytes of the elements, without padding."""
        return -(-self.size * _bits(self.dtype) // 8)


Shape = Array | tuple["Shape", ...]


def _bits(dtype: str) -> int:
    if dtype in BITS:
        return BITS[dtype]
    found = re.match(r"[a-z]+(\d+)", dtype)  # f32, s8, u4, f8e4m3fn
    return int(found[1]) if found else 0


def leaves(shape: Shape) -> list[Array]:
    """Returns the arrays of a shape, which may be a nested tuple."""
    return [shape] if isinstance(shape, Array) else [leaf for part in shape for leaf in leaves(part)]


@dataclasses.dataclass(frozen=True)
class Instruction:
    """An instruction, which is one line of a computation."""

    name: str
    opcode: str
    shape: Shape
    operands: tuple[str, ...]
    arguments: str  # the text between the parentheses, such as a parameter's number or a constant's value
    attributes: str  # the text after the parentheses

    @property
    def arrays(self) -> list[Array]:
        """The arrays of its result."""
        return leaves(self.shape)

    @property
    def op_name(self) -> str:
        """The name of the operation in the Python program that it comes from."""
        found = re.search(r'op_name="((?:[^"\\]|\\.)*)"', self.attributes)
        return found[1] if found else ""

    def called(self, key: str) -> str | None:
        """Returns the name of the computation in the attribute `calls`, `body`, `condition`, `to_apply`, …, or None."""
        found = re.search(rf"\b{key}=%?([\w.\-]+)", self.attributes)
        return found[1] if found else None

    @property
    def branches(self) -> list[str]:
        """The names of the computations of a conditional."""
        if group := re.search(r"branch_computations=\{([^}]*)\}", self.attributes):
            return re.findall(r"[\w.\-]+", group[1])
        names = [self.called("true_computation"), self.called("false_computation")]
        return [name for name in names if name]


@dataclasses.dataclass(frozen=True)
class Computation:
    """A computation, which is a function of the program."""

    name: str
    instructions: dict[str, Instruction]  # by name, in the order of the text
    root: Instruction

    @functools.cached_property
    def users(self) -> dict[str, list[Instruction]]:
        """The instructions that read the value of each instruction."""
        found: dict[str, list[Instruction]] = {name: [] for name in self.instructions}
        for instruction in self.instructions.values():
            for operand in dict.fromkeys(instruction.operands):
                found[operand].append(instruction)
        return found

    @functools.cached_property
    def parameters(self) -> dict[int, Instruction]:
        """The parameters by their numbers."""
        return {int(i.arguments): i for i in self.instructions.values() if i.opcode == "parameter"}

    def inputs(self, instruction: Instruction) -> list[Instruction]:
        """Returns the instructions whose values an instruction reads."""
        return [self.instructions[name] for name in instruction.operands]

    def source(self, instruction: Instruction) -> Instruction:
        """Returns the instruction that a value comes from, ignoring copies, bitcasts and conversions."""
        while instruction.opcode in ("copy", "bitcast", "copy-done", "copy-start", "convert") and instruction.operands:
            instruction = self.instructions[instruction.operands[0]]
        return instruction


@dataclasses.dataclass(frozen=True)
class Program:
    """A compiled program."""

    computations: dict[str, Computation]
    entry: Computation
    devices: int


def tuple_index(instruction: Instruction) -> int:
    """Returns the index of a `get-tuple-element`."""
    found = re.search(r"\bindex=(\d+)", instruction.attributes)
    if found is None:
        raise ValueError(f"{instruction.name}: a get-tuple-element without an index")
    return int(found[1])


_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_START = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = ")
_ARRAY = re.compile(r"([a-z]\w*)\[([^\]]*)\](?:\{([^}]*)\})?")


def parse(text: str) -> Program:
    """Parses the text of a program.

    Raises:
      ValueError: the text is not an HLO program.
    """
    computations: dict[str, Computation] = {}
    entry: Computation | None = None
    lines: list[Instruction] = []
    name, is_entry, root = "", False, ""
    partitions = re.search(r"\bnum_partitions=(\d+)", text[: text.find("\n")])
    replicas = re.search(r"\breplica_count=(\d+)", text[: text.find("\n")])
    for line in text.splitlines():
        if header := _HEADER.match(line):
            name, is_entry, lines, root = header[2], bool(header[1]), [], ""
        elif line.startswith("}") and name:
            instructions = {instruction.name: instruction for instruction in lines}
            computations[name] = Computation(name, instructions, instructions[root or lines[-1].name])
            entry = computations[name] if is_entry else entry
            name = ""
        elif name and (start := _START.match(line)):
            lines.append(_instruction(start[2], re.sub(r"/\*.*?\*/", "", line[start.end() :])))
            root = lines[-1].name if start[1] else root
    if entry is None:
        raise ValueError("the compiled program has no entry: this is not the text of an HLO program")
    devices = (int(partitions[1]) if partitions else 1) * (int(replicas[1]) if replicas else 1)
    return Program(computations, entry, devices)


def _instruction(name: str, text: str) -> Instruction:
    end = _closing(text, 0) if text.startswith("(") else text.find(" ")
    shape = parse_shape(text[:end])
    rest = text[end:].lstrip()
    opening = rest.find("(")
    closing = _closing(rest, opening)
    arguments = rest[opening + 1 : closing - 1]
    operands = tuple(re.findall(r"%([\w.\-]+)", arguments))
    return Instruction(name, rest[:opening], shape, operands, arguments, rest[closing:])


def _closing(text: str, opening: int) -> int:
    """Returns the place after the parenthesis that closes the one at `opening`."""
    depth = 0
    for bracket in re.finditer(r"[()]", text[opening:]):
        depth += 1 if bracket[0] == "(" else -1
        if depth == 0:
            return opening + bracket.end()
    return len(text)


def parse_shape(text: str) -> Shape:
    """Parses a shape such as `f32[2,3]{1,0:T(8,128)S(1)}`, or a tuple of shapes."""
    shape, end = _shape_at(text.replace(" ", ""), 0)
    return shape


def _shape_at(text: str, at: int) -> tuple[Shape, int]:
    if text[at : at + 1] == "(":
        parts: list[Shape] = []
        at += 1
        while text[at : at + 1] not in (")", ""):
            part, at = _shape_at(text, at)
            parts.append(part)
            at += text[at : at + 1] == ","
        return tuple(parts), at + 1
    found = _ARRAY.match(text, at)
    if found is None:
        raise ValueError(f"not a shape of an HLO program: {text[at : at + 60]!r}")
    dims = tuple(int(re.sub(r"\D", "", size)) for size in found[2].split(",") if size)
    space = re.search(r"S\((\d+)\)", found[3] or "")
    return Array(found[1], dims, int(space[1]) if space else 0), found.end()


def walk(program: Program) -> Iterator[tuple[Computation, Instruction]]:
    """Yields every instruction of every computation, with its computation."""
    for computation in program.computations.values():
        for instruction in computation.instructions.values():
            yield computation, instruction
