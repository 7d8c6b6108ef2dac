"""Reads documents with coreference in the JSON lines of e2e-coref."""

import re
from pathlib import Path
from typing import Any

from elmo_jax.tasks.coref.reader import Document, Singletons, clustered, genre_of
from elmo_jax.tasks.formats.lines import read_json
from elmo_jax.text_files import Line, error_at, read_lines
from elmo_jax.words import is_blank

NO_SPEAKER = "-"
_KEY = re.compile(r"(.+)_([0-9]+)")  # of e2e-coref: the name of the document and the number of its part


def read_json_lines(path: Path, singletons: Singletons = "keep") -> list[Document]:
    """Reads one document per line: an object with `doc_key`, `sentences`, `clusters` and, if known, `speakers`.

    Raises:
      UserError: a line is not such an object, or a mention is not in the document.
    """
    return [_from_json(path, line, singletons) for line in read_lines(path) if not is_blank(line.text)]


def _from_json(path: Path, line: Line, singletons: Singletons) -> Document:
    value = read_json(path, line.text, line.number)
    sentences = value.get("sentences") if isinstance(value, dict) else None
    if not _nested(sentences, 2, str) or not sentences or not all(sentences):
        raise error_at(path, line.number, "expected an object with 'sentences', lists of words, as e2e-coref has it")
    speakers = value.get("speakers") or [[NO_SPEAKER] * len(words) for words in sentences]
    if not _nested(speakers, 2, str) or list(map(len, speakers)) != list(map(len, sentences)):
        raise error_at(path, line.number, "'speakers': expected one for every word of 'sentences'")
    clusters, words = value.get("clusters", []), sum(map(len, sentences))
    if not _nested(clusters, 3, int) or not all(len(m) == 2 and 0 <= m[0] <= m[1] < words for c in clusters for m in c):
        expected = f"expected lists of [first, last] word, from 0 to {words - 1}"
        raise error_at(path, line.number, f"'clusters': {expected}")
    match = _KEY.fullmatch(str(value.get("doc_key", "")))
    name, part = match.groups() if match else (str(value.get("doc_key", "")), "0")
    mentions = [[(first, last) for first, last in cluster] for cluster in clusters]
    return Document(name, part, genre_of(name), sentences, speakers, clustered(mentions, singletons))


def _nested(value: Any, depth: int, kind: type) -> bool:
    """Returns whether a value is lists in lists, `depth` of them, of items of one type."""
    if depth == 0:
        return type(value) is kind
    return isinstance(value, list) and all(_nested(item, depth - 1, kind) for item in value)
