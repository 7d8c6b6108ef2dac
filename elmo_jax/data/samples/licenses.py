"""The source `licenses`: English texts of software licences from the package `licensedcode-data`.

The package has 2,300 texts of 2.2 M words. Many licences are versions of one another. A document, which is held out or
trained on as a whole, is therefore a cluster of near-duplicates, so that no licence is held out while a version of it
is trained on.
"""

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
_LANGUAGE = re.compile(r"^language: *(?P<language>\S+)", re.MULTILINE)  # absent from the headers of English texts


@dataclasses.dataclass(frozen=True)
class Licenses:
    """The texts of the licences; implements `Source` of the module `sources`."""

    paths: tuple[Path, ...]
    format: Format
    name: str = "licenses"
    reason: str = ""
    has_documents = True  # each cluster is one

    @functools.cached_property
    def _documents(self) -> list[list[tuple[Path, int, str]]]:
        """The clusters of near-duplicates: for each text its file, the line it begins on, and the text itself."""
        found = [(path, *license_text(path)) for path in self.paths]
        texts = [(path, line, text) for path, line, text in found if len(text.split()) >= RUN]
        clusters: dict[int, list[tuple[Path, int, str]]] = {}
        for cluster, text in zip(near_duplicates([text for _, _, text in texts]), texts, strict=True):
            clusters.setdefault(int(cluster), []).append(text)
        return list(clusters.values())

    def identity(self) -> dict[str, Any]:
        """Returns what identifies the text: the package and its version."""
        return {"package": _PACKAGE, "version": importlib.metadata.version(_PACKAGE), "files": len(self.paths)}

    def pieces(self) -> Iterator[Piece]:
        """Yields one text after the other; the texts of a cluster form one document."""
        for document in self._documents:
            for number, (path, line, text) in enumerate(document):
                # A blank line keeps the last paragraph of a text apart from the first of the next.
                yield Piece(f"{text}\n\n".encode(), str(path), line, starts_document=number == 0)


def open_licenses(format: Format | None) -> Licenses:
    """Finds the texts of the licences.

    Raises:
      UserError: the package is not installed, or this version of it is laid out differently.
    """
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
    """Returns the line on which a licence's text begins, and the text without its header, empty unless English.

    Raises:
      UserError: the file has no header.
    """
    content = path.read_text(encoding="utf-8")
    header = _HEADER.match(content)
    if header is None:
        raise UserError(f"{path}, line 1: expected a header between lines of ---")
    language = _LANGUAGE.search(header["header"])
    if language is not None and language["language"] != "en":
        return 1, ""
    return content.count("\n", 0, header.end()) + 1, content[header.end() :]
