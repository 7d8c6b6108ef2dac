"""The published data of the chips that a training step can be compiled for.

The bf16 rate, the size and the rate of the main memory, and the slices of up to 256 chips are from Google Cloud's pages
cloud.google.com/tpu/docs/v4, v5e, v5p and v6e. `link_rate` is the rate at which a chip can send with all its links, in
one direction. For v4, v5e and v6e it is the page's "all-reduce bandwidth per Pod", divided by the chips of a Pod (for
v5e and v6e this is half of their "bidirectional inter-chip interconnect bandwidth"); for v5p it is the page's 4,800
Gbit/s. `usable` is the memory that the compiler leaves to a program, read from its out-of-memory errors (libtpu
0.0.42).
"""

import dataclasses
import difflib
import math
import re

from elmo_jax.errors import UserError

_FLAT = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_CUBES = ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8")


@dataclasses.dataclass(frozen=True)
class Chip:
    """The published data of one kind of chip."""

    name: str
    flops: float  # the operations per second of bf16 matrix products
    memory: float  # the bytes of the main memory
    usable: float  # the bytes of the main memory that a program can use
    memory_rate: float  # the bytes per second of the main memory
    link_rate: float  # the bytes per second that a chip can send to other chips
    slices: tuple[str, ...]  # the shapes of the slices
    one_device: str | None = None  # libtpu's name of the setting that makes the two cores of a chip one device, if any


CHIPS = {
    chip.name: chip
    for chip in (
        Chip("v4", 275e12, 32 * 2**30, 30.75 * 2**30, 1200e9, 1.1e15 / 4096, _CUBES, "megacore"),
        Chip("v5e", 197e12, 16 * 2**30, 15.75 * 2**30, 819e9, 200e9, _FLAT),
        Chip("v5p", 459e12, 95.74 * 2**30, 95.74 * 2**30, 2765e9, 600e9, _CUBES),
        Chip("v6e", 918e12, 32 * 2**30, 31.25 * 2**30, 1638e9, 400e9, _FLAT),
    )
}


def find_slice(topology: str) -> tuple[Chip, tuple[int, ...]]:
    """Returns the chip and the shape of a slice such as `v5e:16x16`.

    Raises:
      UserError: the slice does not exist; the message names similar ones.
    """
    name, _, shape = topology.partition(":")
    chip = CHIPS.get(name)
    if chip and shape in chip.slices:
        return chip, _sizes(shape)
    known = [f"{chip.name}:{slice}" for chip in ([chip] if chip else CHIPS.values()) for slice in chip.slices]
    if chip and _sizes(shape):
        wanted = math.log(max(1, math.prod(_sizes(shape))))
        near = sorted(known, key=lambda slice: abs(math.log(math.prod(_sizes(slice.split(":")[1]))) - wanted))[:3]
    else:
        near = known if chip else difflib.get_close_matches(topology, known, 3, 0.0)
    raise UserError(
        f"--topology {topology}: no such slice; similar ones are {', '.join(near)}"
        f" (chips: {', '.join(CHIPS)}, up to 256 of them; or cpu:8 for a mesh of 8 CPU devices)"
    )


def _sizes(shape: str) -> tuple[int, ...]:
    return tuple(int(size) for size in re.findall(r"\d+", shape))
