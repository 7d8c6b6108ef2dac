"""Replaces the folder of an export: only what an export has written may be deleted, and a kill loses no export."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator

from etils import epath

from elmo_jax import files
from elmo_jax.errors import UserError

DESCRIPTION, PARAMETERS, VOCABULARY = "bilm.json", "parameters", "vocabulary.txt"
_OLD = "old"  # the ending of the hidden folder that an export is moved to while a new one takes its place


@contextlib.contextmanager
def replacing(path: epath.Path) -> Iterator[epath.Path]:
    """Yields a temporary folder beside `path`, which replaces `path` at the end and is deleted after an exception.

    In a bucket, where nothing can be renamed, the folder is `path` itself, emptied. Without the description, which is
    written last, it is not an export.
    """
    check_replaceable(path)
    if files.in_bucket(path):
        path.rmtree(missing_ok=True)
        yield path
        return
    path = epath.Path(os.path.realpath(path))  # a link stays, and the export that it names is replaced
    temporary, old = (path.with_name(f".{path.name}.{kind}") for kind in ("tmp", _OLD))
    if old.exists() and not path.exists():  # a process was killed before its new export was in place
        old.rename(path)
    for leftover in (temporary, old):  # of an export whose process was killed
        if leftover.exists():
            leftover.rmtree()
    temporary.mkdir(parents=True)
    try:
        yield temporary
        if path.exists():
            path.rename(old)
        temporary.rename(path)
    finally:
        for leftover in (temporary, old):
            with contextlib.suppress(OSError):
                leftover.rmtree(missing_ok=True)


def check_replaceable(path: epath.Path) -> None:
    """Raises `UserError` unless an export may be written to `path`, in place of whatever is there.

    A folder may hold the files that an export has written, which `bilm.json` lists, and nothing else. In a bucket it
    may also hold the parts of an export that was interrupted before its description was written.
    """
    if not path.exists():
        return
    if not path.is_dir():
        raise UserError(f"{path}: holds something else than an export: it is a file; choose another folder")
    present = all_files(path)
    described = (path / DESCRIPTION).is_file()
    if not described and present and not files.in_bucket(path):
        raise UserError(f"{path}: holds something else than an export; choose another folder or empty this one")
    written = _written(path) if described else None
    for name in present:
        in_parts = name in (DESCRIPTION, VOCABULARY) or name.startswith(f"{PARAMETERS}/")
        if name not in written if written is not None else not in_parts:
            raise UserError(
                f"{path}: holds {name}, which is not a part of the export, and would be deleted; move it elsewhere, or"
                " choose another folder"
            )


def _written(path: epath.Path) -> set[str] | None:
    """Returns the files that an export consists of, or None if its description does not list them."""
    try:
        listed = json.loads((path / DESCRIPTION).read_text(encoding="utf-8"))["files"]
        return {str(name) for name in listed}
    except (OSError, ValueError, KeyError, TypeError):  # damaged, or written by an older version
        return None


def all_files(folder: epath.Path, prefix: str = "") -> list[str]:
    """Returns the paths of all files below a folder, relative to it."""
    found: list[str] = []
    for entry in folder.iterdir():
        name = f"{prefix}{entry.name}"
        link = not files.in_bucket(entry) and os.path.islink(entry)
        found += [name] if link or not entry.is_dir() else all_files(entry, f"{name}/")
    return found
