"""Implements part-of-speech tagging: its files, CoNLL-U and `.pos` of the Penn Treebank, and its model.

Shapes: B rows, T words of the longest row, D input features per word, W input features without ELMo, H units of
both directions of the top layer, E numbers of the ELMo mix at the output, N tags.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from elmo_jax.errors import UserError
from elmo_jax.model.dropout import Dropout
from elmo_jax.settings import fraction, setting
from elmo_jax.tasks.core.config import TaskDataConfig
from elmo_jax.tasks.core.tagging import TaggedSentence, TaggingTask
from elmo_jax.tasks.core.task import Embedded, TaskOutput, TfdsExamples, Use
from elmo_jax.tasks.formats.lines import blocks, without_backslashes
from elmo_jax.tasks.layers.dense import Dense, mean_cross_entropy
from elmo_jax.tasks.layers.recurrent import BiLSTMStack
from elmo_jax.text_files import Line, error_at, read_lines
from elmo_jax.words import is_blank, split_words

Column = Literal["upos", "xpos"]  # the tags of Universal Dependencies, or the treebank's own tags
_COLUMNS = {"upos": 3, "xpos": 4}
_WORD_NUMBER = re.compile(r"[1-9][0-9]*")
# A token of several words, such as 3-4 for "don't", before "do" and "n't"; or a word that is implied, such as 8.1.
_NO_WORD = re.compile(r"[1-9][0-9]*-[1-9][0-9]*|[0-9]+\.[1-9][0-9]*")
_NAME = re.compile(r"#\s*sent_id\s*=\s*(.*\S)\s*")
_STORY = re.compile(r"={10,}\s*")
_CLOSERS = frozenset(["''/''", ")/)"])


def read_conllu(path: Path, column: Column, annotated: bool = True) -> list[TaggedSentence]:
    """Reads the syntactic words of a CoNLL-U file (Universal Dependencies, version 2), with the tags of one column.

    The words of a multiword token are read instead of the token, and empty nodes are left out. Tags need not be there
    unless the text is `annotated`; a sentence that lacks one has none.
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
            if len(row) != 10:
                raise error_at(path, line.number, f"expected 10 columns separated by tabs, found {len(row)}")
            if _NO_WORD.fullmatch(row[0]):
                continue
            if not _WORD_NUMBER.fullmatch(row[0]) or int(row[0]) != len(tokens) + 1:
                raise error_at(path, line.number, f"expected word {len(tokens) + 1} of the sentence, found {row[0]!r}")
            tag = row[_COLUMNS[column]].strip()
            if tag in ("_", "") and annotated:
                raise error_at(path, line.number, f"the word {row[1]!r} has no tag in the column of {column.upper()}")
            if not row[1]:
                raise error_at(path, line.number, "the column of the word is empty")
            tokens.append(row[1])
            tags.append(tag)
        if tokens:
            examples.append(TaggedSentence(tokens, [] if {"_", ""} & set(tags) else tags, id=name))
    return examples


def read_penn(path: Path) -> list[TaggedSentence]:
    r"""Reads a `.pos` file of the Penn Treebank.

    Words are written `word/TAG`, with `\/` and `\*` for literal `/` and `*`. The marks `[` and `]` around noun
    phrases are ignored. Of alternative tags (`NN|JJ`), the first one is taken. Sentences are separated by blank lines
    and stories by lines of `=`, but a blank line does not end a sentence after a line that ends with `]`, nor before a
    closing quote or bracket.
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
    word, _, tags = item.rpartition("/")  # tags have no slash
    tag = tags.split("|")[0]
    if not word or word.endswith("\\") or not tag:
        raise error_at(path, line.number, f"expected word/TAG, found {item!r}")
    return without_backslashes(word), tag


@dataclasses.dataclass(frozen=True)
class POSModel:
    """The sizes and the dropout of the tagger."""

    layers: tuple[int, ...] = setting((100,), "The LSTMs' units per direction, lowest first.", least=1, most=2**20)
    dropout: float = fraction(0.5, "The fraction of units dropped in word vectors and at each LSTM layer's output.")

    def check(self, where: str = "config") -> None:
        if not self.layers:
            raise UserError(f"{where}.layers: expected one or more sizes of at least 1, got {self.layers}")


class SoftmaxTagger(nn.Module):
    """A tagger of biLSTM layers and a softmax; a second mix of ELMo is joined to the output of the top layer."""

    config: POSModel
    labels: Sequence[str]  # the N tags in the order of their numbers

    @nn.compact
    def __call__(self, text: Embedded, arrays: Mapping[str, jax.Array], *, deterministic: bool = True) -> TaskOutput:
        """Computes the mean cross-entropy of the gold `tags` int [B, T], and `probabilities` [B, T, N]."""
        drop = Dropout(self.config.dropout)
        inputs = text.vectors  # [B, T, D]
        if text.words is not None:  # ELMo's units have been dropped by the mix already
            own = drop(text.words, deterministic=deterministic)  # [B, T, W]
            inputs = jnp.concatenate([own, inputs[..., own.shape[-1] :]], axis=-1)
        stack = BiLSTMStack(self.config.layers, self.config.dropout, name="encoder")
        hidden = drop(stack(inputs, text.mask, deterministic=deterministic), deterministic=deterministic)  # [B, T, H]
        if text.output is not None:
            hidden = jnp.concatenate([hidden, text.output], axis=-1)  # [B, T, H + E]
        logits = Dense(len(self.labels), name="tag")(hidden)  # [B, T, N]
        loss = mean_cross_entropy(logits, arrays["tags"], text.mask)
        return TaskOutput(loss, {"probabilities": jax.nn.softmax(logits)})


@dataclasses.dataclass(frozen=True)
class POSDataConfig(TaskDataConfig):
    """The sources of the annotated sentences and their format."""

    format: Literal["conllu", "penn"] = setting("conllu", "The format: CoNLL-U, or .pos of the Penn Treebank.")
    column: Column = setting("upos", "The tags of CoNLL-U files that are used: universal or treebank-specific.")


class POS(TaggingTask[TaggedSentence]):
    """Part-of-speech tagging."""

    name = "pos"
    data = POSDataConfig()
    model = POSModel()
    network = SoftmaxTagger
    supports_ensembling = True
    sample = {"Text": "My fellow citizens, peace has come."}
    tfds_features = ("tokens", "upos", "xpos", "head")

    def read(self, source: str, config: Any, use: Use) -> list[TaggedSentence]:
        if config.data.format == "penn":
            return read_penn(Path(source))
        return read_conllu(Path(source), config.data.column, use != "prediction")

    def from_tfds(self, source: str, features: Any, records: TfdsExamples, config: Any) -> list[TaggedSentence]:
        column = config.data.column
        names = features["upos"].feature.names if column == "upos" else []
        examples = []
        for record in records:
            # TFDS keeps multiword tokens and empty nodes, which are not words and have no head.
            kept = [i for i, head in enumerate(record["head"]) if head not in (b"None", b"_")]
            tags = [names[record[column][i]] if names else record[column][i].decode() for i in kept]
            examples.append(TaggedSentence([record["tokens"][i].decode() for i in kept], tags))
        return examples


TASK = POS()
