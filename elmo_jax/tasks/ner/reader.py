"""Reads files of named entities with one word per line: CoNLL-2003, WNUT-17, and others in the notations of `tags`."""

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from elmo_jax.errors import UserError
from elmo_jax.tasks.core.tagging import TaggedSentence
from elmo_jax.tasks.core.task import report
from elmo_jax.tasks.formats.lines import blocks, cells
from elmo_jax.tasks.formats.tags import AnyScheme, Scheme, TagError, scheme_of, to_bio
from elmo_jax.text_files import Line, error_at
from elmo_jax.words import is_blank

EmptyWords = Literal["error", "skip"]  # what happens to a line without a word, such as those of Broad Twitter

# The types of chunks, whose tags precede those of entities in CoNLL-2003: English, and German (NC, PC, VC)
_CHUNKS = frozenset("ADJP ADVP CONJP INTJ LST NP PP PRT SBAR UCP VP NC PC VC".split())
_DOCUMENT = "-DOCSTART-"  # the first column of the line before each document of CoNLL-2003


def read(
    path: Path,
    scheme: AnyScheme,
    empty_words: EmptyWords = "error",
    word: int = 1,
    tag: int = 0,
    annotated: bool = True,
) -> list[TaggedSentence]:
    """Reads a file of columns, by default the first of which is the word and the last its tag; see `NERDataConfig`.

    A blank line, or one with `-DOCSTART-` in its first column, ends a sentence. A file with words alone is read if it
    need not be `annotated`.
    """
    examples: list[TaggedSentence] = []
    skipped = 0
    cells_of_blocks = [(block, [cells(line.text) for line in block]) for block in blocks(path, _separates)]
    columns = len(cells_of_blocks[0][1][0]) if cells_of_blocks else 0
    if not annotated and columns == 1 and all(len(row) == 1 for _, rows in cells_of_blocks for row in rows):
        return [TaggedSentence([row[0] for row in rows], []) for _, rows in cells_of_blocks]
    for block, rows in cells_of_blocks:
        for line, row in zip(block, rows, strict=True):
            if len(row) != columns or columns < max(2, word, tag):
                expected = f"{columns} columns, as in the lines before" if columns > 1 else "a word and its tag"
                if columns == len(row) > 1:
                    expected = f"{max(word, tag)} columns (config.data.word_column, tag_column)"
                first = block[0] if block is cells_of_blocks[0][0] and block[0].text.startswith("#") else line
                raise _refused(path, first, f"expected {expected}, found {line.text!r}")
    _check_columns(path, [rows for _, rows in cells_of_blocks], word, tag)
    notation = read_scheme(path, scheme, [[row[tag - 1].strip() for row in rows] for _, rows in cells_of_blocks])
    for block, rows in cells_of_blocks:
        try:
            tags = to_bio([row[tag - 1].strip() for row in rows], notation)
        except TagError as error:
            line = block[error.position]
            if re.fullmatch("O|[A-Z]-.+", rows[error.position][tag - 1].strip()):  # a word such as #NBA
                raise error_at(path, line.number, error.reason) from None
            raise _refused(path, line, error.reason) from None
        kept: list[tuple[str, str]] = []
        opens = False  # whether the first word of a span was left out, which then begins at its next one
        for line, row, bio in zip(block, rows, tags, strict=True):
            opens = bio[0] == "B" or (opens and bio[0] == "I")
            if not is_blank(row[word - 1]):
                kept.append((row[word - 1], f"B{bio[1:]}" if opens else bio))
                opens = False
            elif empty_words == "error":
                advice = "remove the line, or leave such lines out with config.data.empty_words=skip"
                raise error_at(path, line.number, f"the word is empty; {advice}")
        skipped += len(rows) - len(kept)
        if kept:
            examples.append(TaggedSentence(*map(list, zip(*kept, strict=True))))
    report(path, {"lines left out, since their word is empty": skipped})
    return examples


def _check_columns(path: Path, sentences: Sequence[Sequence[list[str]]], word: int, tag: int) -> None:
    firsts = [[row[0] for row in rows] for rows in sentences]
    names = bool(firsts) and len(sentences[0][0]) > 2 and all(len(set(column)) == 1 for column in firsts)
    numbers = all(c[0].isdecimal() and c == [str(int(c[0]) + i) for i in range(len(c))] for c in firsts)
    if word == 1 and (names or numbers) and any(len(column) > 1 for column in firsts):
        remedy = "config.data.word_column=2, and config.data.tag_column to the column of the tags if it is not the last"
        problem = "the first column has the numbers of the words, or the names of the sentences"
        raise UserError(f"{path}: {problem}; set {remedy}")
    before = {row[-2].strip() for rows in sentences for row in rows} - {"O"}
    types = {tag.partition("-")[2] for tag in before} - _CHUNKS
    if tag == 0 and types and all(re.match("[BIESLUM]-.", tag) for tag in before):
        remedy = "set config.data.tag_column to one of them, the first column being 1"
        raise UserError(f"{path}: the last two columns have tags, the first of them {min(before)}; {remedy}")


def read_scheme(source: object, scheme: AnyScheme, sentences: Sequence[Sequence[str]]) -> Scheme:
    """Returns the notation of the tags of a source; with "auto", the tags decide, and a line on stderr reports it."""
    if scheme != "auto":
        return scheme
    try:
        notation = scheme_of(sentences)
    except ValueError as error:
        raise UserError(f"{source}: {error}; set config.data.scheme") from None
    print(f"elmo-jax: {source}: tags read as {notation} (config.data.scheme to change)", file=sys.stderr)
    return notation


def _refused(path: Path, line: Line, reason: str) -> UserError:
    comment = line.text.startswith("#")
    return error_at(path, line.number, f"a comment, {line.text[:80]!r}; remove such lines" if comment else reason)


def _separates(text: str) -> bool:
    return is_blank(text) or cells(text)[0] == _DOCUMENT
