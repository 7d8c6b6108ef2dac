"""Reads the English Web Treebank of Universal Dependencies."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

from elmo_jax import UserError
from elmo_jax.data.prepare.tfds_text import prepared_builder, quiet_tfds, read_split

TAGS = tuple("ADJ ADP ADV AUX CCONJ DET INTJ NOUN NUM PART PRON PROPN PUNCT SCONJ SYM VERB X".split())  # UPOS
PARTS = ("train", "dev", "test")


@dataclasses.dataclass(frozen=True)
class Sentence:
    """The words of a sentence, and the numbers of their tags in `TAGS`."""

    words: list[str]
    tags: list[int]


def read_treebank(source: str) -> dict[str, list[Sentence]]:
    """Returns train, dev and test from `tfds:NAME` or a folder of CoNLL-U files."""
    parts = {}
    for part in PARTS:
        if source.startswith("tfds:"):
            parts[part] = list(read_tfds(source, part))
        else:
            parts[part] = list(read_conllu(Path(source) / f"en_ewt-ud-{part}.conllu"))
        if not parts[part]:
            raise UserError(f"{source}: {part} has no sentences")
    return parts


def read_conllu(path: Path) -> Iterator[Sentence]:
    """Yields the sentences of a file in syntactic words. Raises `UserError` for a line that is not CoNLL-U."""
    if not path.is_file():
        raise UserError(f"{path}: no such file; expected en_ewt-ud-{{train,dev,test}}.conllu of UD English EWT")
    words: list[str] = []
    tags: list[int] = []
    for number, raw in enumerate(path.read_bytes().split(b"\n"), 1):
        try:
            line = raw.decode().rstrip("\r")
        except UnicodeDecodeError:
            raise UserError(f"{path}, line {number}: not UTF-8") from None
        if not line.strip():
            if words:
                yield Sentence(words, tags)
            words, tags = [], []
        elif not line.startswith("#"):
            columns = line.split("\t")
            if len(columns) != 10:
                raise UserError(f"{path}, line {number}: expected 10 columns separated by tabs, found {len(columns)}")
            if re.fullmatch(r"\d+-\d+|\d+\.\d+", columns[0]):
                continue  # a multiword token, such as "don't", whose words follow; or a word that is not in the text
            if columns[0] != str(len(words) + 1):
                raise UserError(f"{path}, line {number}: expected word {len(words) + 1}, found {columns[0]!r}")
            if not columns[1] or columns[3] not in TAGS:
                found = f"{columns[1]!r} and {columns[3]!r}"
                raise UserError(f"{path}, line {number}: expected a word and its UPOS tag, found {found}")
            words.append(columns[1])
            tags.append(TAGS.index(columns[3]))
    if words:
        yield Sentence(words, tags)


def read_tfds(name: str, part: str) -> Iterator[Sentence]:
    """Yields the sentences of a TFDS dataset, which also keeps tokens that are not words; these have no head."""
    with quiet_tfds():
        builder = prepared_builder(name, name.removeprefix("tfds:"))
        if not {"tokens", "upos", "head"} <= set(builder.info.features):
            raise UserError(f"{name}: expected a treebank, with the features tokens, upos and head")
        names = builder.info.features["upos"].feature.names
        for example in read_split(name, builder, part):
            rows = zip(example["tokens"], example["upos"], example["head"], strict=True)
            found = [(word.decode(), names[tag]) for word, tag, head in rows if head != b"None"]
            if found:
                yield Sentence([word for word, _ in found], [TAGS.index(tag) for _, tag in found])
