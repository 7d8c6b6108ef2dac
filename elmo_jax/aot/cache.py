"""Keeps the results of compilations on disk, since the compilation of a large model takes minutes.

JAX's own cache of compiled programs cannot be read for devices that are not present: a program is loaded onto a device.
What is kept here is only what a report reads, that is the text of the program and the memory that it needs, or the
compiler's refusal of a step that does not fit.
"""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import importlib.metadata
import json
import os
import re
import sys
import zlib
from pathlib import Path
from typing import Any

import jax

from elmo_jax.errors import UserError
from elmo_jax.files import make_folder_of, write_bytes

KEPT = 64  # the results that the folder holds; the oldest are deleted
# Other values of these variables, or other versions of these packages, may make another program.
_VARIABLES = ("XLA_FLAGS", "LIBTPU_INIT_ARGS", "JAX_DEFAULT_MATMUL_PRECISION")
_PACKAGES = ("elmo_jax", "jax", "jaxlib", "libtpu")


@dataclasses.dataclass(frozen=True)
class Result:
    """The result of a compilation.

    Attributes:
      text: the text of the compiled program; empty if the compiler refused.
      memory: the bytes of the compiler's analysis by name; empty if the compiler refused.
      seconds: the time that the compilation took.
      refusal: the compiler's message if the step does not fit; otherwise empty.
    """

    text: str
    memory: dict[str, int]
    seconds: float
    refusal: str = ""


def default_folder() -> Path:
    """Returns the folder of kept results: `elmo_jax/compiled` in the user's folder for caches."""
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(caches) / "elmo_jax" / "compiled"


def key_of(lowered: jax.stages.Lowered, topology: str) -> str:
    """Returns a name for all that a compilation depends on.

    The names of operations are part of it, since a report tells the loops of the program apart by them; the lines of
    the source are not.
    """
    names = re.findall(r'loc\("([^"]*)"\(', lowered.as_text(debug_info=True))
    program = "\n".join([lowered.as_text(), *names])
    versions = [_version(package) for package in _PACKAGES]
    rest = json.dumps([topology, versions, [os.environ.get(name, "") for name in _VARIABLES]])
    return hashlib.sha256(f"{rest}\n{program}".encode()).hexdigest()


def read(folder: Path, key: str) -> Result | None:
    """Returns a kept result, or None if there is none or if its file is damaged, so that it has to be made again."""
    try:
        content: dict[str, Any] = json.loads(gzip.decompress((folder / f"{key}.json.gz").read_bytes()))
        return Result(**content)
    except FileNotFoundError:
        return None
    except (OSError, EOFError, ValueError, TypeError, zlib.error) as error:
        print(f"{folder / key}.json.gz cannot be read ({error}); compiling again", file=sys.stderr)
        return None


def write(folder: Path, key: str, result: Result) -> None:
    """Keeps a result; if that is not possible, prints a warning, since the result itself can still be used."""
    path = folder / f"{key}.json.gz"
    try:
        make_folder_of(path)
        write_bytes(path, gzip.compress(json.dumps(dataclasses.asdict(result)).encode(), 6))
        for old in sorted(folder.glob("*.json.gz"), key=lambda file: file.stat().st_mtime)[:-KEPT]:
            old.unlink(missing_ok=True)
    except (OSError, UserError) as error:
        print(f"the compiled program cannot be kept for the next time: {error}", file=sys.stderr)


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
