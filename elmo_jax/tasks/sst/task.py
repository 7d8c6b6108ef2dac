"""Implements the classification of sentences: the Stanford Sentiment Treebank, or labels of your own.

The model is the biattentive classification network (BCN) with one input (McCann et al. 2017; paper, section 4).

Shapes: B rows, T words of the longest row, D input features per word, X encoder units of both directions, Z
integrator units of both directions, E numbers of the ELMo mix at the output, P = Z + E pooled numbers per word.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from elmo_jax.config import WIDEST
from elmo_jax.data.prepare.text import raw_sentences
from elmo_jax.errors import UserError
from elmo_jax.files import listed
from elmo_jax.model.dropout import Dropout
from elmo_jax.settings import fraction, setting
from elmo_jax.tasks.core.classification import ClassificationTask, ClassifiedTexts
from elmo_jax.tasks.core.config import TaskDataConfig
from elmo_jax.tasks.core.task import Embedded, Labels, Splitter, TaskOutput, Use, report
from elmo_jax.tasks.formats.lines import SUFFIXES, Quoting, read_records, suffix_of, unescape
from elmo_jax.tasks.layers import dense
from elmo_jax.tasks.layers.recurrent import BiLSTM
from elmo_jax.text_files import Line, error_at, read_lines
from elmo_jax.words import is_blank, split_words


@dataclasses.dataclass(frozen=True)
class SSTModel:
    """The sizes and the dropout of the BCN; the output layers are the paper's, all other defaults AllenNLP's."""

    input_dropout: float = fraction(0.5, "The fraction of the input's units dropped; AllenNLP has 0.25 without ELMo.")
    pre_encoder: int = setting(300, "The number of units of the lowest dense layer.", least=1, most=WIDEST)
    pre_encoder_dropout: float = fraction(0.25, "The fraction of the lowest dense layer's units dropped.")
    encoder: int = setting(300, "The number of units per direction of the encoder.", least=1, most=WIDEST)
    integrator: int = setting(300, "The number of units per direction of the integrator.", least=1, most=WIDEST)
    pooled_dropout: float = fraction(0.1, "The fraction of the pooled units dropped.")
    output: Literal["feedforward", "maxout"] = setting(
        "feedforward", "The layers after the pooling: dense layers with ReLU as in the paper, or maxout as in AllenNLP."
    )
    output_layers: tuple[int, ...] = setting((1200, 600), "The units of each output layer.", least=1, most=WIDEST)
    output_dropout: tuple[float, ...] = fraction((0.2, 0.3), "The fraction of units dropped in each output layer.")
    maxout_pool: int = setting(4, "The number of linear functions per unit of a maxout layer.", least=1, most=1000)

    def check(self, where: str = "config") -> None:
        if len(self.output_dropout) != len(self.output_layers):
            expected = f"one rate for each of the {len(self.output_layers)} layers of output_layers"
            raise UserError(f"{where}.output_dropout: expected {expected}, got {len(self.output_dropout)}")


class Maxout(nn.Module):
    """Maps [..., D] to [..., F] by layers of maxima of K linear functions (Goodfellow et al. 2013), each with dropout.

    The parameters are `dense_i` with `kernel` [D, F * K], in which the K functions of a unit are adjacent.
    """

    sizes: Sequence[int]  # F of each layer
    dropouts: Sequence[float]  # the fraction of the outputs that is dropped, for each layer
    pool: int = 4  # K

    @nn.compact
    def __call__(self, inputs: jax.Array, *, deterministic: bool = True) -> jax.Array:
        for i, (size, dropout) in enumerate(zip(self.sizes, self.dropouts, strict=True)):
            pieces = dense.Dense(size * self.pool, name=f"dense_{i}")(inputs)
            inputs = pieces.reshape(*pieces.shape[:-1], size, self.pool).max(-1)  # [..., F]
            inputs = Dropout(dropout)(inputs, deterministic=deterministic)
        return inputs


class BCN(nn.Module):
    """A classifier of an encoder, attention of the sentence on itself, an integrator, four poolings and output layers.

    A second mix of ELMo is joined to the integrator's output, before the pooling.
    """

    config: SSTModel
    classes: int = 5  # the number of classes

    @nn.compact
    def __call__(self, text: Embedded, arrays: Mapping[str, jax.Array], *, deterministic: bool = True) -> TaskOutput:
        """Computes the mean cross-entropy of `label` int [B] over rows with words, and `probabilities` [B, classes]."""
        config, mask = self.config, text.mask
        inputs = Dropout(config.input_dropout)(text.vectors, deterministic=deterministic)  # [B, T, D]
        inputs = jax.nn.relu(dense.Dense(config.pre_encoder, name="pre_encoder")(inputs))
        inputs = Dropout(config.pre_encoder_dropout)(inputs, deterministic=deterministic)
        encoded = BiLSTM(config.encoder, name="encoder")(inputs, mask)  # [B, T, X]
        # Each word attends to all words of its sentence, including itself.
        weights = jax.nn.softmax(dense.dot_product_scores(encoded, encoded), where=mask[:, None, :])  # [B, T, T]
        context = dense.product(weights, encoded)
        joined = jnp.concatenate([encoded, encoded - context, encoded * context], axis=-1)  # [B, T, 3X]
        integrated = BiLSTM(config.integrator, name="integrator")(joined, mask)  # [B, T, Z]
        for name, value in (("encoded", encoded), ("integrated", integrated)):
            self.sow("intermediates", name, value)
        if text.output is not None:
            integrated = jnp.concatenate([integrated, text.output], axis=-1)  # [B, T, P]
        attentive = dense.SelfAttentivePooling(name="self_attentive_pooling")(integrated, mask)
        pooled = [pool(integrated, mask) for pool in (dense.masked_max, dense.masked_min, dense.masked_mean)]
        vectors = jnp.concatenate([*pooled, attentive], axis=-1)  # [B, 4P]
        self.sow("intermediates", "pooled", vectors)
        vectors = Dropout(config.pooled_dropout)(vectors, deterministic=deterministic)
        logits = self._output(vectors, deterministic)  # [B, classes]
        self.sow("intermediates", "logits", logits)
        loss = dense.mean_cross_entropy(logits, arrays["label"], mask.any(1))
        return TaskOutput(loss, {"probabilities": jax.nn.softmax(logits)})

    def _output(self, vectors: jax.Array, deterministic: bool) -> jax.Array:
        config = self.config
        if config.output == "maxout":
            sizes, dropouts = (*config.output_layers, self.classes), (*config.output_dropout, 0.0)
            return Maxout(sizes, dropouts, config.maxout_pool, name="output")(vectors, deterministic=deterministic)
        for i, (size, rate) in enumerate(zip(config.output_layers, config.output_dropout, strict=True)):
            vectors = jax.nn.relu(dense.Dense(size, name=f"output_{i}")(vectors))
            vectors = Dropout(rate)(vectors, deterministic=deterministic)
        return dense.Dense(self.classes, name=f"output_{len(config.output_layers)}")(vectors)


LABELS = ("very negative", "negative", "neutral", "positive", "very positive")  # the names of the labels 0 to 4

Phrases = Literal["all", "sentences"]  # whether every subtree is an example, or only whole trees
Words = Literal["moses", "spaces"]  # how a text of a record is split into words

# A leaf such as `(2 It)`, the beginning of a larger tree such as `(3`, the end of one, or what is in no tree.
_PIECE = re.compile(r"\([ \t]*([0-4])(?:[ \t]+([^ \t()]+)[ \t]*\)|(?=[ \t]*\())|\)|[^ \t]")
_MALFORMED = "not a tree such as (3 (2 It) …)"


def read(path: Path, phrases: Phrases) -> list[ClassifiedTexts]:
    """Reads a file of trees, one per line, such as `(3 (2 It) (4 (2 is) (4 good)))`.

    Returns:
      The sentence of each tree or, for `phrases` "all", all of its phrases, also equal ones, from the whole tree to its
      leaves and from left to right. Words are those of `lines.unescape`.
    """
    trees = (_subtrees(path, line) for line in read_lines(path) if not is_blank(line.text))
    return [example for tree in trees for example in (tree[:1] if phrases == "sentences" else tree)]


def _subtrees(path: Path, line: Line) -> list[ClassifiedTexts]:
    leaves: list[str] = []
    nodes: list[list[int]] = []  # the label of each tree, the number of its first leaf, and that after its last one
    inside: list[list[int]] = []  # the trees that are not closed yet
    for match in _PIECE.finditer(line.text):
        label, word = match.groups()
        begins, ends = label and (inside or not nodes), inside and match[0] == ")"
        if not (begins or ends):
            raise error_at(path, line.number, _MALFORMED)
        if label:
            inside.append([int(label), len(leaves), 0])
            nodes.append(inside[-1])
        if word:
            leaves.append(unescape(word))
        if word or not label:
            inside.pop()[2] = len(leaves)
    if inside:
        raise error_at(path, line.number, _MALFORMED)
    return [ClassifiedTexts((leaves[start:end],), LABELS[label]) for label, start, end in nodes]


def read_texts(
    path: Path,
    text: str,
    label: str,
    split: Callable[[str], list[str]],
    quoting: Quoting = "none",
    annotated: bool = True,
) -> list[ClassifiedTexts]:
    """Reads one example per record of `lines.read_records`, whose field `id`, if there is one, names it.

    The field `text` is split into words by `split`, or in JSON may be a list of words. The field `label`, which must be
    there if the records are `annotated`, may be a whole number; spaces around it do not count.
    """
    examples = []
    for number, record in read_records(path, quoting):
        given, name = (value if type(value) in (str, int) else "" for value in (record.get(label), record.get("id")))
        tokens = split(record[text]) if isinstance(record.get(text), str) else record.get(text)
        is_text = isinstance(tokens, list) and all(type(t) is str and not is_blank(t) and "\n" not in t for t in tokens)
        if not is_text or (annotated and type(record.get(label)) not in (str, int)):
            expected = f"a text {text!r} and a label {label!r} (config.data.text and config.data.label name them)"
            raise error_at(path, number, f"expected {expected}, found {str(record)[:80]}")
        if not tokens or (annotated and not str(given).strip()):
            raise error_at(path, number, f"the {'label' if tokens else 'text'} is empty; remove the record")
        examples.append(ClassifiedTexts((tokens,), str(given).strip(), id=str(name)))
    return examples


def splitter(words: Words, language: str = "en") -> Callable[[str], list[str]]:
    """Returns what splits a text into words: Moses ("moses"), or the spaces in it ("spaces")."""
    if words == "spaces":
        return lambda text: split_words(text.replace("\r", " ").replace("\n", " "))
    return lambda text: [word for sentence in raw_sentences(text.splitlines(), language=language) for word in sentence]


@dataclasses.dataclass(frozen=True)
class SSTDataConfig(TaskDataConfig):
    """The files of trees and the examples that are taken from them, or files with labels of your own."""

    phrases: Phrases = setting("all", "The training examples: all phrases of the trees, or only whole sentences.")
    shortest: int = setting(4, "The minimum words of a training phrase; AllenNLP has 1.", least=1)
    text: str = setting("text", "The field of the text in .jsonl, .csv and .tsv files.")
    label: str = setting("label", "The field of the label in these files, whose labels are the classes.")
    words: Words = setting("moses", "How a text in these files is split into words: by Moses, or at its spaces.")
    quoting: Quoting = setting("none", "Whether cells of .tsv files may be in double quotes (csv); those of .csv may.")


class SST(ClassificationTask):
    """Classification of sentences: the five classes of the treebank, or those of the training examples."""

    name = "sst"
    data = SSTDataConfig()
    model = SSTModel()
    network = BCN
    classes = LABELS
    sample = {"Text": "A warm and funny film that never finds an ending."}

    def read(self, source: str, config: Any, use: Use) -> list[ClassifiedTexts]:
        data, path = config.data, Path(source)
        if suffix_of(source) in SUFFIXES:
            split = splitter(data.words, data.language)
            return read_texts(path, data.text, data.label, split, data.quoting, annotated=use != "prediction")
        if use != "training" or data.phrases == "sentences":
            return read(path, "sentences")
        phrases = read(path, "all")
        kept = [phrase for phrase in phrases if len(phrase.texts[0]) >= data.shortest]
        report(source, {f"phrases of fewer than {data.shortest} words left out": len(phrases) - len(kept)})
        return kept

    def splitter(self, config: Any) -> Splitter | None:
        """Returns the tokenizer of records, which are whole texts; None for a treebank, which has sentences."""
        return None if _has_trees(config) else splitter(config.data.words, config.data.language)

    def labels(self, train: Sequence[ClassifiedTexts], config: Any) -> Labels:
        """Returns the treebank's classes, or those of the training records in alphabetical order."""
        labels = {example.label for example in train}
        if _has_trees(config) and labels <= set(LABELS):
            return {"classes": list(LABELS)}
        if len(labels) == 1:
            raise UserError(f"config.data.train: all examples have the label {labels.pop()!r}; expected two or more")
        return {"classes": sorted(labels)}

    def written(self, label: str, classes: Sequence[str]) -> str:
        """Returns the number of a sentiment, as the files of trees have it, and labels of records as they are."""
        return str(LABELS.index(label)) if tuple(classes) == LABELS and label in LABELS else label


def _has_trees(config: Any) -> bool:
    return any(suffix_of(source) not in SUFFIXES for source in listed(config.data.train))


TASK = SST()
