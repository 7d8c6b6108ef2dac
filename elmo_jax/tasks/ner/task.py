"""Implements named entity recognition: the biLSTM-CRF tagger (paper, section 4 and its supplement; Lample et al. 2016).

Shapes: B rows, T words of the longest row, D input features per word, H units of both directions of the top layer,
E numbers of the ELMo mix at the output, N tags.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from elmo_jax.errors import UserError
from elmo_jax.model.dropout import Dropout
from elmo_jax.settings import fraction, setting
from elmo_jax.tasks.core.config import TaskDataConfig
from elmo_jax.tasks.core.tagging import TaggedSentence, TaggingTask, Tags
from elmo_jax.tasks.core.task import Arrays, Embedded, Labels, Shape, TaskOutput, TfdsExamples, Use
from elmo_jax.tasks.formats.scores import score_spans, tag_accuracy
from elmo_jax.tasks.formats.tags import AnyScheme, TagError, bioul_to_bio, spans, to_bio, to_bioul
from elmo_jax.tasks.layers.crf import CRF, Encoding, allowed_transitions, constrained, log_likelihood, viterbi_decode
from elmo_jax.tasks.layers.dense import Dense
from elmo_jax.tasks.layers.recurrent import BiLSTMStack
from elmo_jax.tasks.ner.reader import EmptyWords, read, read_scheme

Sentences = Sequence[TaggedSentence]


@dataclasses.dataclass(frozen=True)
class NERModel:
    """The sizes and the dropout of the tagger; the defaults are the paper's (its supplement)."""

    layers: tuple[int, ...] = setting((200, 100), "The LSTMs' units per direction, lowest first.", least=1, most=2**20)
    dropout: float = fraction(0.5, "The fraction of the units dropped at the input of every LSTM layer.")
    encoding: Encoding = setting("BIOUL", "The notation of spans as tags.")

    def check(self, where: str = "config") -> None:
        if not self.layers:
            raise UserError(f"{where}.layers: expected one or more sizes of at least 1, got {self.layers}")


class Tagger(nn.Module):
    """A tagger of biLSTM layers, a dense layer and a CRF.

    ELMo may also be joined to the top layer's output, or to that of the first layer as in TagLM (Peters et al. 2017).
    """

    config: NERModel
    labels: Sequence[str]  # the N tags in the order of their numbers

    @nn.compact
    def __call__(self, text: Embedded, arrays: Mapping[str, jax.Array], *, deterministic: bool = True) -> TaskOutput:
        """Computes minus the log-likelihood of the gold `tags` int [B, T], summed over the batch.

        Predicted are `tags` int32 [B, T], the best that the encoding allows, -1 past a row's end.
        """
        config = self.config
        inputs = Dropout(config.dropout, "variational")(text.vectors, deterministic=deterministic)  # [B, T, D]
        stack = BiLSTMStack(config.layers, config.dropout, "variational", name="encoder")
        encoded = stack(inputs, text.mask, text.after_first, deterministic=deterministic)  # [B, T, H]
        self.sow("intermediates", "encoded", encoded)
        if text.output is not None:
            encoded = jnp.concatenate([encoded, text.output], axis=-1)  # [B, T, H + E]
        logits = Dense(len(self.labels), name="tag")(encoded)  # [B, T, N]
        self.sow("intermediates", "logits", logits)
        transitions = CRF(len(self.labels), name="crf")()
        loss = -log_likelihood(logits, arrays["tags"], text.mask, transitions).sum()
        allowed = allowed_transitions(self.labels, config.encoding)
        return TaskOutput(loss, {"tags": viterbi_decode(logits, text.mask, constrained(transitions, allowed))})


@dataclasses.dataclass(frozen=True)
class NERDataConfig(TaskDataConfig):
    """The sources of the annotated sentences and their notation."""

    scheme: AnyScheme = setting(
        "auto",
        "The notation of the tags in files: iob1 for CoNLL-2003 as published, bio (also called IOB2) for WNUT-17, bioul"
        " (also called BILOU), bioes, or auto if the tags decide.",
    )
    empty_words: EmptyWords = setting("error", "Whether a line whose word is empty is an error or skipped.")
    word_column: int = setting(1, "The column of the word in files, the first one being 1.", least=1)
    tag_column: int = setting(0, "The column of its tag in files; 0 for the last one.", least=0)


class NER(TaggingTask[TaggedSentence]):
    """Named entity recognition; its examples and predictions have BIO tags."""

    name = "ner"
    metric = "f1"
    spans_and_label = ("entities", "type")
    data = NERDataConfig()
    model = NERModel()
    network = Tagger
    closed_labels = True
    has_after_first = True
    sample = {"Text": "Ada Lovelace met Charles Babbage in London."}
    tfds_features = ("tokens", "ner")

    def read(self, source: str, config: Any, use: Use) -> list[TaggedSentence]:
        data = config.data
        annotated = use != "prediction"
        return read(Path(source), data.scheme, data.empty_words, data.word_column, data.tag_column, annotated)

    def from_tfds(self, source: str, features: Any, records: TfdsExamples, config: Any) -> list[TaggedSentence]:
        names = features["ner"].feature.names
        sentences = [[names[tag] for tag in record["ner"]] for record in records]
        scheme = read_scheme(source, config.data.scheme, sentences)
        examples = []
        for number, (record, sentence) in enumerate(zip(records, sentences, strict=True)):
            try:
                tags = to_bio(sentence, scheme)
            except TagError as error:
                remedy = f"set config.data.scheme, which is {scheme}, to the notation of the dataset"
                where = f"{source}, example {number}, word {error.position}"
                raise UserError(f"{where}: {error.reason}; {remedy}") from None
            examples.append(TaggedSentence([token.decode() for token in record["tokens"]], tags))
        return examples

    def labels(self, train: Sentences, config: Any) -> Labels:
        """Returns all tags, in the model's encoding, of the entity types in the training examples."""
        types = sorted({span.label for example in train for span in spans(example.tags)})
        if not types:
            raise UserError("config.data.train: no word is in an entity; is the last column the tag (data.tag_column)?")
        marks = "BIUL" if config.model.encoding == "BIOUL" else "BI"
        tags = ["O", *(f"{mark}-{label}" for label in types for mark in marks)]
        return {"tags": tags, "encoding": config.model.encoding}

    def arrays(self, examples: Sentences, number: int, shape: Shape, labels: Labels) -> Arrays:
        """Returns `tags` int32 [B, T], in the model's encoding."""
        if labels["encoding"] == "BIOUL":
            examples = [TaggedSentence(e.tokens, to_bioul(e.tags)) for e in examples]
        return super().arrays(examples, number, shape, labels)

    def decode(self, predictions: Arrays, examples: Sentences, labels: Labels, config: Any) -> list[Tags]:
        decoded = super().decode(predictions, examples, labels, config)
        return [bioul_to_bio(tags) for tags in decoded] if labels["encoding"] == "BIOUL" else decoded

    def score(self, examples: Sentences, predictions: Sequence[Tags]) -> dict[str, float]:
        """Returns `f1`, `precision` and `recall` of all types, `accuracy`, and `f1_x` of each type x, in percent."""
        gold = [example.tags for example in examples]
        return score_spans(gold, predictions).metrics(accuracy=tag_accuracy(gold, predictions))


TASK = NER()
