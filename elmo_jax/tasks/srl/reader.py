"""Reads predicates with their arguments: the columns of CoNLL-2012 and of PropBank, and lines of BIO tags."""

import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from elmo_jax.tasks.core.tagging import TaggedSentence
from elmo_jax.tasks.core.task import report
from elmo_jax.tasks.formats.lines import blocks, rows_of
from elmo_jax.tasks.formats.tags import TagError, brackets_to_bio, to_bio
from elmo_jax.text_files import Line, error_at, read_lines
from elmo_jax.words import is_blank, split_words

Layout = Literal["conll2012", "propbank"]

# The first column of the arguments, and the number of columns after the last one.
_ARGUMENTS = {"conll2012": (11, 1), "propbank": (8, 0)}


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

    A predicate is a word with `(V` in a column of arguments. "conll2012" has eleven columns before those of the
    arguments and one, coreference, after them; "propbank" (its `gold_conll`) has eight before them and none after them.
    """
    before, after = _ARGUMENTS[layout]
    examples: list[Example] = []
    sentences = without = columns_without = 0
    for block in blocks(path, _separates):
        rows = rows_of(path, block, before + after)
        tokens = [row[3] for row in rows]
        of_sentence: list[Example] = []
        for column in range(before, len(rows[0]) - after):
            try:
                tags = brackets_to_bio([row[column] for row in rows])
            except TagError as error:
                line = block[error.position]
                raise error_at(path, line.number, f"column {column + 1}: {error.reason}") from None
            if "B-V" in tags:
                of_sentence.append(Example(tokens, tags, sentences, tags.index("B-V")))
            else:
                columns_without += 1
        examples += of_sentence
        sentences += 1
        without += not of_sentence
    left_out = {"sentences left out, since they have no predicate": without}  # as in deep_srl
    report(path, left_out | {"columns of arguments left out, since they mark no predicate": columns_without})
    return _with_predicates(examples)


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
    return _with_predicates(examples)


def _with_predicates(examples: Sequence[Example]) -> list[Example]:
    of_sentence: defaultdict[int, set[int]] = defaultdict(set)
    for example in examples:
        of_sentence[example.sentence].add(example.predicate)
    return [dataclasses.replace(e, predicates=tuple(sorted(of_sentence[e.sentence]))) for e in examples]


def _bio_example(path: Path, line: Line) -> Example:
    pieces = split_words(line.text)
    position, divider = pieces[0], pieces.index("|||") if "|||" in pieces else 0
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


def _separates(text: str) -> bool:
    return is_blank(text) or text.startswith(("#begin document", "#end document"))
