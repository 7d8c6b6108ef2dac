"""Names of files with a slice, such as `dev.json[:38]`, for data sets that come as one file and are to be divided."""

from __future__ import annotations

import re
from pathlib import Path

SLICE = re.compile(r"(-?\d*):(-?\d*)")
_SLICED = re.compile(rf"(.+)\[{SLICE.pattern}\]")


def split_slice(source: str) -> tuple[Path, slice]:
    """Divides `PATH[first:end]` into the path and the slice, which means what it does in Python.

    Args:
      source: the path with or without a slice. A file whose own name ends with brackets is found as well.

    Returns:
      The path, and the slice; that of everything where there is none.
    """
    match = _SLICED.fullmatch(source)
    if not match or Path(source).exists():
        return Path(source), slice(None)
    first, end = (int(bound) if bound.strip("-") else None for bound in match.groups()[1:])
    return Path(match[1]), slice(first, end)
