"""Files that are there whole or not at all, in folders of this machine, shared ones, and buckets (`gs://…`)."""

from __future__ import annotations

import os
from pathlib import Path

from etils import epath

from elmo_jax.errors import UserError


def place(path: str | os.PathLike[str]) -> epath.Path:
    """A path as the user gave it, ready to be read and written.

    Raises:
      UserError: it is in a bucket, and what reads buckets is not installed.
    """
    if in_bucket(path):
        import fsspec

        try:
            fsspec.get_filesystem_class(os.fspath(path).split("://")[0])
        except (ImportError, ValueError) as error:
            hint = " (for gs://: pip install 'elmo_jax[gcs]')"
            raise UserError(f"{os.fspath(path)}: cannot be reached: {error}{hint}") from None
        # Orbax writes through TensorStore, which fsspec does not see: a listing it remembers would lack those files
        for protocol in ("gs", "gcs"):
            fsspec.config.conf.setdefault(protocol, {})["use_listings_cache"] = False
    return epath.Path(path)


def absolute(path: str | os.PathLike[str]) -> epath.Path:
    """The absolute path of a place; in a bucket every path is."""
    return place(path if in_bucket(path) else os.path.abspath(path))


def in_bucket(path: str | os.PathLike[str]) -> bool:
    """Whether a path names objects of a store, which appear whole and can be neither renamed nor appended to."""
    return "://" in os.fspath(path)


def write_text(path: epath.Path | Path, text: str) -> None:
    """Writes a text file (UTF-8), as `write_bytes` does."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: epath.Path | Path, content: bytes) -> None:
    """Writes a file beside its place and moves it there; an object needs no such care."""
    if in_bucket(path):
        path.write_bytes(content)
        return
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
