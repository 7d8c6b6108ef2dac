"""Implements textual entailment with ESIM (Chen et al. 2017; paper, section 4, and its supplement), and reads SNLI.

Shapes: B pairs, N words of the longest premise, M words of the longest hypothesis, T either of these, D numbers of
input per word, H encoder units of both directions, E numbers of the ELMo mix at the output, A = H + E.
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from elmo_jax.config import WIDEST
from elmo_jax.data.prepare.text import raw_sentences
from elmo_jax.errors import UserError
from elmo_jax.model.dropout import Dropout
from elmo_jax.settings import fraction, setting
from elmo_jax.tasks.core.classification import ClassificationTask, ClassifiedTexts
from elmo_jax.tasks.core.config import TaskDataConfig
from elmo_jax.tasks.core.task import Embedded, Splitter, TaskOutput, TfdsExamples, Use, report
from elmo_jax.tasks.formats.lines import JSON_LINES, Quoting, read_records, suffix_of, unescape
from elmo_jax.tasks.layers import dense
from elmo_jax.tasks.layers.recurrent import BiLSTM
from elmo_jax.text_files import error_at, read_lines
from elmo_jax.words import split_words


@dataclasses.dataclass(frozen=True)
class SNLIModel:
    """The sizes and the dropout of ESIM; the defaults are the paper's with ELMo (its supplement)."""

    encoder: int = setting(300, "The number of units per direction of the encoder.", least=1, most=WIDEST)
    projection: int = setting(300, "The number of units of the dense layer after the attention.", least=1, most=WIDEST)
    composition: int = setting(300, "The number of units per direction of the composition layer.", least=1, most=WIDEST)
    output: int = setting(300, "The number of units of the dense layer after the pooling.", least=1, most=WIDEST)
    dropout: float = fraction(0.5, "The fraction of units dropped at the LSTMs' inputs and around the output.")
    attention_dropout: float = fraction(0.5, "The fraction of units dropped after the attention.")
    matrix_penalty: float = setting(1e-4, "The factor of the squares of all matrices in the loss.", least=0, most=1)


class ESIM(nn.Module):
    """A classifier of an encoder, attention between premise and hypothesis, composition, pooling and output layers.

    The encoder, the projection and the composition are shared by both texts. A second mix of ELMo is joined to the
    encoder's output, before the attention.
    """

    config: SNLIModel
    classes: int = 3  # the number of classes

    def setup(self) -> None:
        config = self.config
        self.variational = Dropout(config.dropout, "variational")
        self.plain = Dropout(config.dropout)
        self.attended = Dropout(config.attention_dropout)
        self.encoder = BiLSTM(config.encoder, "xavier")
        self.projection = dense.Dense(config.projection, "xavier")
        self.composition = BiLSTM(config.composition, "xavier")
        self.output = dense.Dense(config.output, "xavier")
        self.logit = dense.Dense(self.classes, "xavier")

    def __call__(
        self, premise: Embedded, hypothesis: Embedded, arrays: Mapping[str, jax.Array], *, deterministic: bool = True
    ) -> TaskOutput:
        """Computes the loss and `probabilities` [B, classes]; `arrays` has `label` int [B].

        Unless deterministic, the loss includes the penalty of the matrices.
        """
        a = self._encode(premise, deterministic)  # [B, N, A]
        b = self._encode(hypothesis, deterministic)  # [B, M, A]
        scores = dense.dot_product_scores(a, b)  # [B, N, M]
        to_b = dense.product(jax.nn.softmax(scores, where=hypothesis.mask[:, None, :]), b)  # [B, N, A]
        to_a = dense.product(jax.nn.softmax(scores.swapaxes(1, 2), where=premise.mask[:, None, :]), a)  # [B, M, A]
        of_premise = self._compose(a, to_b, premise.mask, deterministic)
        of_hypothesis = self._compose(b, to_a, hypothesis.mask, deterministic)
        vectors = jnp.concatenate([*of_premise, *of_hypothesis], axis=-1)
        self.sow("intermediates", "pooled", vectors)
        vectors = jax.nn.relu(self.output(self.plain(vectors, deterministic=deterministic)))
        logits = self.logit(self.plain(vectors, deterministic=deterministic))  # [B, classes]
        self.sow("intermediates", "logits", logits)
        real = premise.mask.any(1) | hypothesis.mask.any(1)
        loss = dense.mean_cross_entropy(logits, arrays["label"], real)
        if not deterministic and self.config.matrix_penalty:
            matrices = [leaf for leaf in jax.tree.leaves(self.variables["params"]) if leaf.ndim == 2]
            loss += self.config.matrix_penalty * sum(jnp.sum(matrix**2) for matrix in matrices)
        return TaskOutput(loss, {"probabilities": jax.nn.softmax(logits)})

    def _encode(self, text: Embedded, deterministic: bool) -> jax.Array:
        """Returns the words in their context, [B, T, A]."""
        inputs = self.variational(text.vectors, deterministic=deterministic)  # [B, T, D]
        encoded = self.encoder(inputs, text.mask)  # [B, T, H]
        self.sow("intermediates", "encoded", encoded)
        return encoded if text.output is None else jnp.concatenate([encoded, text.output], axis=-1)

    def _compose(
        self, encoded: jax.Array, attended: jax.Array, mask: jax.Array, deterministic: bool
    ) -> tuple[jax.Array, jax.Array]:
        joined = jnp.concatenate([encoded, attended, encoded - attended, encoded * attended], axis=-1)  # [B, T, 4A]
        joined = self.attended(joined, deterministic=deterministic)
        projected = jax.nn.relu(self.projection(joined))
        self.sow("intermediates", "projected", projected)
        projected = self.variational(projected, deterministic=deterministic)
        composed = self.composition(projected, mask)  # [B, T, 2 * composition]
        self.sow("intermediates", "composed", composed)
        return dense.masked_mean(composed, mask), dense.masked_max(composed, mask)


LABELS = ("entailment", "neutral", "contradiction")
_FIELDS = ("gold_label", "sentence1", "sentence2")
_OTHER_NAMES = {"label": "gold_label", "premise": "sentence1", "hypothesis": "sentence2"}
_HEADLESS = (*LABELS, "-", "")  # the labels in the first row of a table without a header
_WITHOUT_LABEL = "pairs left out, since their annotators did not agree on a label"
_PARALLEL = "labels."  # labels.dev next to s1.dev and s2.dev, the layout of e-SNLI and InferSent

Row = tuple[int, str, str, tuple[list[str], ...]]  # the number of a line, id, label, and words of both sentences


def read(path: Path, quoting: Quoting = "none", language: str = "en", annotated: bool = True) -> list[ClassifiedTexts]:
    """Reads pairs from JSON lines, as SNLI was published, a table (`lines.read_records`), or three parallel files.

    The fields are `gold_label`, either the two binary parses or `sentence1` and `sentence2`, and, if known, `pairID`;
    the names `label`, `premise` and `hypothesis` are read too. A table without a header has these three columns. The
    words are the leaves of `sentence1_binary_parse` and `sentence2_binary_parse` (original: the ESIM program), with
    bracket names and quotes as `lines.unescape` maps them. Sentences without parses are split into words like running
    text for pretraining.

    The lines of `labels.PART`, `s1.PART` and `s2.PART` belong together, the layout of SNLI in e-SNLI and InferSent.
    Each has a label or a tokenized sentence, to which `lines.unescape` is applied. Labels of records that need not be
    `annotated` are not read.
    """
    is_parallel, examples, without_label = path.name.startswith(_PARALLEL), [], 0
    annotated = annotated or is_parallel
    for number, name, label, texts in _parallel(path) if is_parallel else _records(path, quoting, language, annotated):
        if label == "-" and annotated:
            without_label += 1
            continue
        if label not in LABELS and annotated:
            raise error_at(path, number, f"expected a label of {', '.join(LABELS)} or '-', found {label!r}")
        if not all(texts):
            raise error_at(path, number, f"the {'hypothesis' if texts[0] else 'premise'} has no words")
        examples.append(ClassifiedTexts(texts, label if annotated else "", id=name))
    report(path, {_WITHOUT_LABEL: without_label})
    return examples


def _records(path: Path, quoting: Quoting, language: str, annotated: bool) -> Iterator[Row]:
    # Most premises of SNLI occur three times.
    tokens = functools.cache(functools.partial(tokenize, language=language))
    leaves = functools.cache(lambda parse: [unescape(piece) for piece in split_words(parse) if piece not in ("(", ")")])
    for number, fields in read_records(path, quoting, _FIELDS, header=(*_FIELDS, "premise", "hypothesis")):
        record = {_OTHER_NAMES.get(name, name): value for name, value in fields.items()} | fields
        if not annotated:
            if number == 1 and suffix_of(path) not in JSON_LINES and fields["gold_label"].strip() not in _HEADLESS:
                expected = f"columns with the names {', '.join(_FIELDS)}, or a label first"
                raise error_at(path, 1, f"expected {expected}, found {fields['gold_label']!r}")
            record = {**record, "gold_label": ""}
        suffix, split = "", tokens
        if "sentence1_binary_parse" in record and "sentence2_binary_parse" in record:
            suffix, split = "_binary_parse", leaves
        names = ("gold_label", f"sentence1{suffix}", f"sentence2{suffix}")
        for name in names:
            if not isinstance(record.get(name), str):
                raise error_at(path, number, f"expected a string {name!r}, found {record.get(name)!r}")
        label, *texts = (record[name] for name in names)
        pair = record.get("pairID")
        yield number, "" if pair is None else str(pair), label.strip(), tuple(map(split, texts))


def _parallel(labels: Path) -> Iterator[Row]:
    part = labels.name.removeprefix(_PARALLEL)
    paths = [labels, labels.with_name(f"s1.{part}"), labels.with_name(f"s2.{part}")]
    files = [list(read_lines(path)) for path in paths]
    fewest, short = min((len(lines), i) for i, lines in enumerate(files))
    for path, lines in zip(paths, files, strict=True):
        if len(lines) > fewest:
            raise error_at(path, fewest + 1, f"{paths[short]} has no such line; the files must match line by line")
    for label, *texts in zip(*files, strict=True):
        words = tuple([unescape(word) for word in split_words(line.text)] for line in texts)
        yield label.number, "", label.text.strip(), words


def tokenize(sentence: str, language: str = "en") -> list[str]:
    """Splits a sentence into words as running text is split for pretraining, by the Moses tokenizer."""
    return [w for words in raw_sentences([sentence], paragraph_lines=True, language=language) for w in words]


@dataclasses.dataclass(frozen=True)
class SNLIDataConfig(TaskDataConfig):
    """The sources of the annotated pairs and their format."""

    quoting: Quoting = setting("none", "Whether cells of tab-separated files may be in double quotes (csv).")


class SNLI(ClassificationTask):
    """Textual entailment between a premise and a hypothesis."""

    name = "snli"
    data = SNLIDataConfig()
    model = SNLIModel()
    network = ESIM
    classes = LABELS
    texts_per_example = 2
    sample = {"Premise": "A man is playing a guitar in the street.", "Hypothesis": "A person is making music."}
    text_names = ("premise", "hypothesis")
    tfds_features = ("premise", "hypothesis", "label")

    def read(self, source: str, config: Any, use: Use) -> list[ClassifiedTexts]:
        return read(Path(source), config.data.quoting, config.data.language, annotated=use != "prediction")

    def splitter(self, config: Any) -> Splitter:
        return functools.partial(tokenize, language=config.data.language)

    def from_tfds(self, source: str, features: Any, records: TfdsExamples, config: Any) -> list[ClassifiedTexts]:
        names = features["label"].names
        if set(names) != set(LABELS):
            raise UserError(f"{source}: expected the labels {', '.join(LABELS)}, found {', '.join(names)}")
        split, examples = self.splitter(config), []
        for record in records:
            if record["label"] >= 0:
                texts = tuple(split(record[name].decode()) for name in self.text_names)
                examples.append(ClassifiedTexts(texts, names[record["label"]]))
        report(source, {_WITHOUT_LABEL: len(records) - len(examples)})
        return examples


TASK = SNLI()
