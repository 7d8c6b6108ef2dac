"""Parses the text of a compiled program (XLA's HLO) into computations and instructions.

XLA's own `cost_analysis` counts the body of a loop once. Therefore everything that is needed per step is counted from
the text of `compiled.as_text()`. Instructions of unknown kinds are kept unchanged.
"""

import dataclasses
import functools
import math
import re
from typing import NamedTuple


class Array(NamedTuple):
    """The shape of one array."""

    dtype: str  # XLA's name of the type: f32, bf16, s32
    dims: tuple[int, ...]
    space: int = 0  # the memory space: 0 is the main memory; on a TPU the others are on the chip itself

    @property
    def bytes(self) -> int:
        """The bytes of the elements, without padding."""
        bits = re.match(r"[a-z]+(\d+)", self.dtype.replace("pred", "s8"))  # f32, u4, f8e4m3fn; a token has none
        return -(-math.prod(self.dims) * int(bits[1]) // 8) if bits else 0


class Instruction(NamedTuple):
    """An instruction, which is one line of a computation."""

    name: str
    opcode: str
    arrays: tuple[Array, ...]  # its result; a nested tuple is flattened
    operands: tuple[str, ...]
    arguments: str  # the text between the parentheses, such as a parameter's number or a constant's value
    attributes: str  # the text after the parentheses

    @property
    def op_name(self) -> str:
        """The name of the operation in the Python program that it comes from."""
        match = re.search(r'op_name="((?:[^"\\]|\\.)*)"', self.attributes)
        return match[1] if match else ""

    def called(self, key: str) -> str:
        """Returns the name of the computation in the attribute `calls`, `body`, `condition`, …; "" if there is none."""
        match = re.search(rf"\b{key}=%?([\w.\-]+)", self.attributes)
        return match[1] if match else ""

    @property
    def branches(self) -> list[str]:
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
        users: dict[str, list[Instruction]] = {name: [] for name in self.instructions}
        for instruction in self.instructions.values():
            for operand in dict.fromkeys(instruction.operands):
                users[operand].append(instruction)
        return users

    @functools.cached_property
    def parameters(self) -> dict[int, Instruction]:
        return {int(i.arguments): i for i in self.instructions.values() if i.opcode == "parameter"}

    def inputs(self, instruction: Instruction) -> list[Instruction]:
        return [self.instructions[name] for name in instruction.operands]


class HloModule(NamedTuple):
    """A compiled program."""

    computations: dict[str, Computation]
    entry: Computation
    devices: int


_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_START = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = ")
_ARRAY = re.compile(r"([a-z]\w*)\[([^\]]*)\](?:\{([^}]*)\})?")


def parse(text: str) -> HloModule:
    """Parses the text of a program. Raises `ValueError` if it is not an HLO program."""
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
    return HloModule(computations, entry, devices)


def _instruction(name: str, text: str) -> Instruction:
    end = _closing(text, 0) if text.startswith("(") else text.find(" ")
    rest = text[end:].lstrip()
    opening = rest.find("(")
    closing = _closing(rest, opening)
    arguments = rest[opening + 1 : closing - 1]
    operands = tuple(re.findall(r"%([\w.\-]+)", arguments))
    return Instruction(name, rest[:opening], parse_arrays(text[:end]), operands, arguments, rest[closing:])


def _closing(text: str, opening: int) -> int:
    """Returns the place after the parenthesis that closes the one at `opening`."""
    depth = 0
    for bracket in re.finditer(r"[()]", text[opening:]):
        depth += 1 if bracket[0] == "(" else -1
        if depth == 0:
            return opening + bracket.end()
    return len(text)


def parse_arrays(text: str) -> tuple[Array, ...]:
    """Parses a shape such as `f32[2,3]{1,0:T(8,128)S(1)}`, or a tuple of shapes, into its arrays in order."""
    arrays = []
    for dtype, sizes, layout in _ARRAY.findall(text.replace(" ", "")):
        dims = tuple(int(re.sub(r"\D", "", size)) for size in sizes.split(",") if size)
        space = re.search(r"S\((\d+)\)", layout)
        arrays.append(Array(dtype, dims, int(space[1]) if space else 0))
    return tuple(arrays)
