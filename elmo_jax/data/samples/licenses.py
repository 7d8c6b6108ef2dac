"""`licenses`: English texts of software licences, from the package `licensedcode-data` (2,300 texts, 2.2 M words).

Licences are versions of one another. A document, which is held out or trained on as a whole, is here a cluster of
near-duplicates, so no licence is held out of which a version is trained on.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from elmo_jax.data.prepare.text import Format, Piece
from elmo_jax.data.samples.near_duplicates import RUN, near_duplicates
from elmo_jax.errors import UserError

_PACKAGE = "licensedcode-data"
_HEADER = re.compile(r"---\n(?P<header>.*?)^---(?:\n|\Z)", re.DOTALL | re.MULTILINE)  # YAML
_LANGUAGE = re.compile(r"^language: *(?P<language>\S+)", re.MULTILINE)  # stands there where it is not English


@dataclasses.dataclass(frozen=True)
class Licenses:
    """The licences; a `Source` (see `sources`)."""

    paths: tuple[Path, ...]
    format: Format
    name: str = "licenses"
    reason: str = ""

    @functools.cached_property
    def _documents(self) -> list[list[tuple[Path, int, str]]]:
        """Clusters of near-duplicates: of each text its file, the line it begins on, and itself."""
        found = [(path, *license_text(path)) for path in self.paths]
        texts = [(path, line, text) for path, line, text in found if len(text.split()) >= RUN]
        clusters: dict[int, list[tuple[Path, int, str]]] = {}
        for cluster, text in zip(near_duplicates([text for _, _, text in texts]), texts, strict=True):
            clusters.setdefault(int(cluster), []).append(text)
        return list(clusters.values())

    @property
    def has_documents(self) -> bool:
        """Each cluster is a document."""
        return True

    def identity(self) -> dict[str, Any]:
        """The package's version does not change."""
        return {"package": _PACKAGE, "version": importlib.metadata.version(_PACKAGE), "files": len(self.paths)}

    def pieces(self) -> Iterator[Piece]:
        """One text after the other; those of a cluster are one document."""
        for document in self._documents:
            for number, (path, line, text) in enumerate(document):
                # a blank line, so that no paragraph goes on from one text into the next
                yield Piece(f"{text}\n\n".encode(), str(path), line, starts_document=number == 0)


def open_licenses(format: Format | None) -> Licenses:
    """Finds the texts. Raises `UserError` where the package is not installed, or is another one than was known."""
    try:
        package = importlib.metadata.distribution(_PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        raise UserError(
            f"licenses: the package of licences is not installed; run: pip install --no-deps {_PACKAGE}"
        ) from None
    paths = sorted(Path(str(package.locate_file("licensedcode/data/licenses"))).glob("*.LICENSE"))
    if not paths:
        raise UserError(f"licenses: this version of {_PACKAGE} has no data/licenses/*.LICENSE; install version 32")
    return Licenses(tuple(paths), format or Format.RAW)


def license_text(path: Path) -> tuple[int, str]:
    """The line on which a licence's text begins, and the text without its header; none where it is not English."""
    content = path.read_text(encoding="utf-8")
    header = _HEADER.match(content)
    if header is None:
        raise UserError(f"{path}, line 1: expected a header between lines of ---")
    language = _LANGUAGE.search(header["header"])
    if language is not None and language["language"] != "en":
        return 1, ""
    return content.count("\n", 0, header.end()) + 1, content[header.end() :]
