"""Writes and verifies the manifest of a checkpoint, a list of its files with sizes and checksums.

Orbax and TensorStore detect damage to their index files, but silently return wrong numbers if a bit of the data is
flipped (measured with Orbax 0.12.8 and TensorStore 0.1.86). The manifest is written before the checkpoint gets its
final name, so a folder of that name without a matching manifest is not a checkpoint.
"""

import dataclasses
import json
import zlib
from collections.abc import Iterable

from etils import epath

from elmo_jax.errors import UserError
from elmo_jax.files import in_bucket, read_checksummed_json, write_checksummed_json

NAME = "manifest.json"
_BLOCK = 1 << 22  # the number of bytes read at a time
# Orbax rewrites this file, and adds commit_success.txt, after the manifest; a restore reads neither.
_STEP_METADATA = "_CHECKPOINT_METADATA"


@dataclasses.dataclass(frozen=True)
class Manifest:
    """The contents that a checkpoint folder must have."""

    step: int
    score: float | None  # lower for a better state, such as the held-out perplexity of a biLM; None if not measured
    files: dict[str, tuple[int, int]]  # path in the folder -> (bytes, CRC-32)


def describe(folder: epath.Path, step: int, score: float | None) -> Manifest:
    """Makes the manifest of the files that are in `folder` now, reading each of them once."""
    paths = {path.relative_to(folder).as_posix(): path for path in _files(folder)}
    files = {name: _checksum(path) for name, path in paths.items() if name not in (NAME, _STEP_METADATA)}
    return Manifest(step, score, files)


def write(folder: epath.Path, manifest: Manifest) -> None:
    """Writes the manifest, completely or not at all."""
    write_checksummed_json(folder / NAME, dataclasses.asdict(manifest))


def read(folder: epath.Path) -> Manifest | str:
    """Reads the manifest; returns it, or a description of what is wrong with it."""
    try:
        values = read_checksummed_json(folder / NAME, "restore it")
    except FileNotFoundError:
        return f"{NAME} is missing, so it was not completely written"
    except UserError:
        return f"{NAME} is damaged, or written by another version of elmo_jax"
    files = {name: (size, crc) for name, (size, crc) in values["files"].items()}
    return Manifest(values["step"], values["score"], files)


def names_in(directory: epath.Path) -> list[str]:
    """Returns the names in a folder of checkpoints, which need not exist."""
    return [path.name for path in directory.iterdir()] if directory.exists() else []


def steps_in(directory: epath.Path) -> list[int]:
    """Returns the steps that have a folder, in ascending order and without verification.

    In a bucket, where Orbax writes a step under its final name, a step without a manifest is being written, or its
    process was killed; Orbax deletes such a step before the next save.
    """
    steps = sorted(int(name) for name in names_in(directory) if name.isdecimal())
    return [step for step in steps if (directory / str(step) / NAME).exists()] if in_bucket(directory) else steps


def trained_since(run: epath.Path, step: int) -> int | None:
    """Returns the newest step of a run that has a checkpoint, or None if it is not later than `step`."""
    steps = steps_in(run / "checkpoints")
    return steps[-1] if steps and steps[-1] > step else None


def scores(directory: epath.Path, steps: Iterable[int]) -> dict[int, float]:
    """Returns the scores of those checkpoints of a folder that have one, by step."""
    values = {step: getattr(read(directory / str(step)), "score", None) for step in steps}
    return {step: score for step, score in values.items() if score is not None}


def damage(folder: epath.Path, step: int) -> str | None:
    """Reads all files of a checkpoint; returns a description of what is wrong with it, or None if it is intact."""
    manifest = read(folder)
    if isinstance(manifest, str):
        return manifest
    if manifest.step != step:
        return f"{NAME} is of step {manifest.step}"
    for name, expected in manifest.files.items():
        path = folder / name
        if not path.exists():
            return f"{name} is missing"
        size = path.stat().length
        if size != expected[0]:  # reported separately: a wrong size suggests a full disk, a wrong checksum a broken one
            return f"{name} has {size} bytes of {expected[0]}"
        if _checksum(path) != expected:
            return f"{name} does not have the content it was written with"
    try:
        json.loads((folder / _STEP_METADATA).read_text())
    except FileNotFoundError:
        return f"{_STEP_METADATA} is missing"
    except ValueError:
        return f"{_STEP_METADATA} is damaged"
    return None


def _files(folder: epath.Path) -> list[epath.Path]:
    files: list[epath.Path] = []
    for path in sorted(folder.iterdir()):
        files += _files(path) if path.is_dir() else [path]
    return files


def _checksum(path: epath.Path) -> tuple[int, int]:
    """Returns the bytes and the CRC-32 of a file; zlib releases Python's global lock, so training continues."""
    size, crc = 0, 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            size, crc = size + len(block), zlib.crc32(block, crc)
    return size, crc
