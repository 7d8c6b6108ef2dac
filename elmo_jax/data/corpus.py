"""Opens a prepared corpus, a folder that `prepare` made; WORKSPACE.md lists its files.

The checksums of lexicon and vocabulary are compared when a corpus is opened, since lines in another order would change
every number without an error.
"""

import hashlib
import os
from collections.abc import Iterator, Sequence
from typing import Any, Self

import numpy as np
from etils import epath

from elmo_jax.characters import MAX_CHARACTERS, encode_chars
from elmo_jax.data.blocks import SPLITS, Blocks
from elmo_jax.data.lexicon import LEXICON, VOCABULARY
from elmo_jax.errors import UserError
from elmo_jax.files import AnyPath, anywhere, read_checksummed_json

REPORT, BLOCKS = "corpus.json", "blocks"
_REMEDY = "restore it, or delete the folder and prepare the text again"


class Corpus:
    """A prepared corpus, opened by `Corpus.open`: its folder, `path`, and the content of `corpus.json`, `report`."""

    def __init__(self, path: AnyPath, report: dict[str, Any]) -> None:
        self.path, self.report = path, report

    @classmethod
    def open(cls, path: str | os.PathLike[str], to_train: bool = True) -> Self:
        """Opens a folder, which may be in a bucket unless its blocks are to be read (`to_train`).

        Raises `UserError` if it is not a prepared corpus, is damaged, or was prepared by another version.
        """
        if to_train:
            _check_here(path)
        path = anywhere(path)
        if path.is_file():
            raise UserError(f"{path}: a file, not a prepared corpus; prepare it: elmo-jax prepare {path} --out DIR")
        try:
            report = read_checksummed_json(path / REPORT, _REMEDY)
        except (FileNotFoundError, NotADirectoryError):
            what = f"has no {REPORT}" if path.is_dir() else "no such folder"
            raise UserError(f"{path}: not a prepared corpus ({what}); make one with: elmo-jax prepare") from None
        for name in (LEXICON, VOCABULARY, BLOCKS):
            if not (path / name).exists():
                raise UserError(f"{path / name}: missing; {_REMEDY}")
        for name, digest in checksums(path).items():
            if report["checksums"][name] != digest:
                raise UserError(f"{path / name}: not what was written (checksum); {_REMEDY}")
        return cls(path, report)

    @classmethod
    def find(cls, sources: Sequence[str]) -> Self | None:
        """Opens the only source if it is a prepared corpus; returns None if it is not, or if there are others."""
        if len(sources) != 1 or not sources[0].strip() or not (anywhere(sources[0]) / REPORT).exists():
            return None
        return cls.open(sources[0])

    @property
    def vocabulary_size(self) -> int:
        """The number V of words of the softmax, whose ids are 0 to V - 1."""
        return self.report["lexicon"]["vocabulary_size"]

    @property
    def language(self) -> str:
        """The ISO 639-1 code of the language by whose rules running text was tokenized."""
        return self.report["settings"]["language"]

    @property
    def fingerprint(self) -> str:
        """The sha256 (hexadecimal) of lexicon and blocks, which is equal for equal text and settings on any machine."""
        return self.report["fingerprint"]

    def _lexicon(self) -> Iterator[list[str]]:
        for line in (self.path / LEXICON).read_bytes().decode().removesuffix("\n").split("\n"):
            yield line.split("\t")

    def words(self) -> list[str]:
        return [word for word, _ in self._lexicon()]

    def counts(self) -> np.ndarray:
        """Returns the count of every word in the training text, by id: int64 `[types]`."""
        return np.array([int(count) for _, count in self._lexicon()], np.int64)

    def vocabulary(self) -> list[str]:
        return (self.path / VOCABULARY).read_bytes().decode().removesuffix("\n").split("\n")

    def char_ids(self, max_characters: int = MAX_CHARACTERS) -> np.ndarray:
        """Returns the characters of every word, by id: int16 `[types, max_characters]`, raw ids 0 to 260."""
        return encode_chars(self.words(), max_characters)

    def tokens(self, split: str) -> int:
        """Returns the number of targets of a split in one direction: its words, and one mark per sentence."""
        return self.report["splits"][split]["tokens"]

    def sources(self, split: str) -> list[dict[str, Any]]:
        """Returns the reports of the named sources that have text in a split, in the order of their blocks."""
        return [source for source in self.report["splits"][split].get("sources", ()) if source["blocks"]]

    def source_of_blocks(self, split: str) -> list[str]:
        """Returns the name of the source of each block of a split; empty if the text was prepared without names."""
        return [source["name"] for source in self.sources(split) for _ in range(source["blocks"])]

    def blocks(self, split: str) -> Blocks:
        _check_here(self.path)
        if split not in SPLITS:  # TFDS would take it for one without text
            raise ValueError(f"no split {split!r}; expected {' or '.join(SPLITS)}")
        return Blocks(epath.Path(self.path) / BLOCKS, split)


def checksums(folder: AnyPath) -> dict[str, str]:
    """Returns the SHA-256 of the text files of a corpus; the report has its own, and so has each block."""
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in (LEXICON, VOCABULARY)}


def _check_here(path: str | os.PathLike[str]) -> None:
    if str(path).startswith("gs://"):
        raise UserError(f"{path}: training reads a corpus from the disk; copy it there first (launch/: --copy GS=DIR)")
