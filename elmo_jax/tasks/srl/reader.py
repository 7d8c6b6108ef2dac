"""Reads predicates with their arguments: the columns of CoNLL-2012 and of PropBank, and lines of BIO tags."""

import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from elmo_jax.tasks.core.tagging import TaggedSentence
from elmo_jax.tasks.core.task import report
from elmo_jax.tasks.formats.lines import blocks, cells
from elmo_jax.tasks.formats.tags import TagError, brackets_to_bio, to_bio
from elmo_jax.text_files import Line, error_at, read_lines
from elmo_jax.words import is_blank, split_words

Layout = Literal["conll2012", "propbank"]

# The first column of the arguments, and the number of columns after the last one.
_ARGUMENTS = {"conll2012": (11, 1), "propbank": (8, 0)}
_DIVIDER = "|||"


@dataclasses.dataclass(frozen=True)
class Example(TaggedSentence):
    """A predicate in its sentence.

    The tags are in BIO: B-V for the predicate, such as B-ARG0 for arguments, and B-C-x for a continuation of the
    argument x.
    """

    sentence: int  # the number of the sentence in the file, from 0, which its predicates share
    predicate: int  # the position of the predicate, from 0; for a predicate of several words, that of the first
    # the positions of all predicates of the sentence, which may have more than there are examples of it; empty
    # for text without annotation
    predicates: tuple[int, ...] = dataclasses.field(default=(), repr=False, compare=False)


def read_columns(path: Path, layout: Layout) -> list[Example]:
    """Reads a file with one word per line and one column of brackets per predicate.

    A predicate is a word with `(V` in a column of arguments. The column of lemmas is ignored.

    Args:
      path: the file.
      layout: "conll2012" has eleven columns before those of the arguments and one, coreference, after them; "propbank"
        (the files that PropBank releases as `gold_conll`) has eight before them and none after them.
    """
    before, after = _ARGUMENTS[layout]
    examples: list[Example] = []
    sentences = without = columns_without = 0
    for block in blocks(path, _separates):
        rows = _rows(path, block, before + after)
        tokens = [row[3] for row in rows]
        of_sentence: list[Example] = []
        for column in range(before, len(rows[0]) - after):
            try:
                tags = brackets_to_bio([row[column] for row in rows])
            except TagError as error:
                message = f"column {column + 1}: {error.reason}"
                raise error_at(path, block[error.position].number, message) from None
            if "B-V" in tags:
                of_sentence.append(Example(tokens, tags, sentences, tags.index("B-V")))
            else:
                columns_without += 1
        examples += _of_one_sentence(of_sentence)
        sentences += 1
        without += not of_sentence
    report(
        path,
        {
            "sentences left out, since they have no predicate": without,  # as in deep_srl
            "columns of arguments left out, since they mark no predicate": columns_without,
        },
    )
    return examples


def read_bio(path: Path) -> list[Example]:
    """Reads a file with one predicate per line: its position, the words, `|||` and their tags, separated by spaces.

    Positions are counted from 0. A line belongs to the sentence of the line before if it has the same words and a later
    predicate.
    """
    examples: list[Example] = []
    for example in (_bio_example(path, line) for line in read_lines(path) if not is_blank(line.text)):
        if examples:
            last = examples[-1]
            same = example.tokens == last.tokens and example.predicate > last.predicate
            example = dataclasses.replace(example, sentence=last.sentence + (not same))
        examples.append(example)
    groups = itertools.groupby(examples, lambda example: example.sentence)
    return [example for _, group in groups for example in _of_one_sentence(list(group))]


def _of_one_sentence(examples: Sequence[Example]) -> list[Example]:
    predicates = tuple(sorted({example.predicate for example in examples}))
    return [dataclasses.replace(example, predicates=predicates) for example in examples]


def _bio_example(path: Path, line: Line) -> Example:
    pieces = split_words(line.text)
    position, divider = pieces[0], pieces.index(_DIVIDER) if _DIVIDER in pieces else 0
    if not (position.isascii() and position.isdigit() and len(position) < 10) or divider < 2:
        raise error_at(path, line.number, f"expected a position, words, ||| and tags, found {line.text[:40]!r}")
    tokens, tags = pieces[1:divider], pieces[divider + 1 :]
    if len(tokens) != len(tags):
        raise error_at(path, line.number, f"{len(tokens)} words have {len(tags)} tags")
    predicate = int(position)
    if predicate >= len(tokens) or tags[predicate] != "B-V":
        actual = repr(tags[predicate]) if predicate < len(tokens) else f"only {len(tokens)} words"
        raise error_at(path, line.number, f"expected the tag 'B-V' at position {predicate}, found {actual}")
    try:
        return Example(tokens, to_bio(tags, "bio"), 0, predicate)
    except TagError as error:
        raise error_at(path, line.number, f"tag {error.position}: {error.reason}") from None


def _rows(path: Path, block: Sequence[Line], fewest: int) -> list[list[str]]:
    rows = [cells(line.text) for line in block]
    for line, row in zip(block, rows, strict=True):
        if len(row) < fewest:
            raise error_at(path, line.number, f"expected at least {fewest} columns, found {len(row)}")
        if len(row) != len(rows[0]):
            message = f"expected {len(rows[0])} columns, as in the first line of the sentence, found {len(row)}"
            raise error_at(path, line.number, message)
    return rows


def _separates(text: str) -> bool:
    return is_blank(text) or text.startswith(("#begin document", "#end document"))
