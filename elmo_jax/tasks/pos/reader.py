"""Reads sentences with one part-of-speech tag per word: CoNLL-U, and the `.pos` files of the Penn Treebank."""

import re
from pathlib import Path
from typing import Literal

from elmo_jax.tasks.core.tagging import TaggedSentence
from elmo_jax.tasks.formats.lines import blocks, without_backslashes
from elmo_jax.text_files import Line, error_at, read_lines
from elmo_jax.words import is_blank, split_words

Column = Literal["upos", "xpos"]  # the tags of Universal Dependencies, or the treebank's own tags

_UPOS, _XPOS, _COLUMNS = 3, 4, 10
_WORD_NUMBER = re.compile(r"[1-9][0-9]*")
_RANGE = re.compile(r"[1-9][0-9]*-[1-9][0-9]*")  # a token of several words: 3-4 for "don't", before "do" and "n't"
_EMPTY_NODE = re.compile(r"[0-9]+\.[1-9][0-9]*")  # a word that is implied but not in the text, such as 8.1
_NAME = re.compile(r"#\s*sent_id\s*=\s*(.*\S)\s*")
_STORY = re.compile(r"={10,}\s*")
_CLOSERS = frozenset(["''/''", ")/)"])


def read_conllu(path: Path, column: Column) -> list[TaggedSentence]:
    """Reads a CoNLL-U file (Universal Dependencies, version 2), with the tags of one of its columns.

    Words are syntactic words: the words of a multiword token are read instead of the token, and empty nodes are left
    out.

    Raises:
      UserError: a line does not have ten columns, words are not numbered 1, 2, …, or a word has no tag.
    """
    examples = []
    for block in blocks(path):
        tokens: list[str] = []
        tags: list[str] = []
        name = ""
        for line in block:
            if not tokens and line.text.startswith("#"):  # comments come before the words
                match = _NAME.fullmatch(line.text)
                name = match[1] if match else name
                continue
            row = line.text.split("\t")
            if len(row) != _COLUMNS:
                raise error_at(path, line.number, f"expected {_COLUMNS} columns separated by tabs, found {len(row)}")
            if _RANGE.fullmatch(row[0]) or _EMPTY_NODE.fullmatch(row[0]):
                continue
            if not _WORD_NUMBER.fullmatch(row[0]) or int(row[0]) != len(tokens) + 1:
                raise error_at(path, line.number, f"expected word {len(tokens) + 1} of the sentence, found {row[0]!r}")
            tag = row[_UPOS if column == "upos" else _XPOS].strip()
            if tag in ("_", ""):
                raise error_at(path, line.number, f"the word {row[1]!r} has no tag in the column of {column.upper()}")
            if not row[1]:
                raise error_at(path, line.number, "the column of the word is empty")
            tokens.append(row[1])
            tags.append(tag)
        if tokens:
            examples.append(TaggedSentence(tokens, tags, id=name))
    return examples


def read_penn(path: Path) -> list[TaggedSentence]:
    r"""Reads a `.pos` file of the Penn Treebank.

    Words are written `word/TAG`, with `\/` and `\*` for literal `/` and `*`. The marks `[` and `]` around noun
    phrases are ignored. Of alternative tags (`NN|JJ`), the first one is taken. Sentences are separated by blank lines
    and stories by lines of `=`, but a blank line does not end a sentence after a line that ends with `]`, nor before a
    closing quote or bracket.

    Raises:
      UserError: a word has no tag.
    """
    sentences: list[list[tuple[str, str]]] = [[]]  # the last one is being read
    may_end = False  # whether an empty line before this one may end the sentence
    last = ""  # the end of the last line that is not empty
    for line in read_lines(path):
        if _STORY.fullmatch(line.text):
            sentences.append([])
            last = ""
        elif is_blank(line.text):
            may_end = last != "]"
        else:
            items = split_words(line.text)
            if may_end and items[0] not in _CLOSERS:
                sentences.append([])
            may_end = False
            last = items[-1]
            sentences[-1] += [_penn_word(path, line, item) for item in items if item not in ("[", "]")]
    return [TaggedSentence(*map(list, zip(*sentence, strict=True))) for sentence in sentences if sentence]


def _penn_word(path: Path, line: Line, item: str) -> tuple[str, str]:
    """Splits `word/TAG` at its last slash, since tags have none."""
    word, _, tags = item.rpartition("/")
    tag = tags.split("|")[0]
    if not word or word.endswith("\\") or not tag:
        raise error_at(path, line.number, f"expected word/TAG, found {item!r}")
    return without_backslashes(word), tag
