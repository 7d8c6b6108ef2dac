"""Implements named entity recognition as a task of the trainer."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from elmo_jax.errors import UserError
from elmo_jax.settings import setting
from elmo_jax.tasks.core.config import TaskDataConfig
from elmo_jax.tasks.core.tagging import TaggedSentence, TaggingTask, Tags
from elmo_jax.tasks.core.task import Arrays, Labels, Shape, TfdsExamples, Use
from elmo_jax.tasks.formats.scores import score_spans, tag_accuracy
from elmo_jax.tasks.formats.tags import AnyScheme, TagError, bioul_to_bio, spans, to_bio, to_bioul
from elmo_jax.tasks.ner.model import NERModel, Tagger
from elmo_jax.tasks.ner.reader import EmptyWords, known_scheme, read, report_scheme


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
        """Reads files with one word and its tag per line."""
        data = config.data
        return read(Path(source), data.scheme, data.empty_words, data.word_column, data.tag_column)

    def from_tfds(self, source: str, features: Any, records: TfdsExamples, config: Any) -> list[TaggedSentence]:
        """Reads datasets in the form of `conll2003`."""
        names = features["ner"].feature.names
        examples, records = [], list(records)
        sentences = [[names[tag] for tag in record["ner"]] for record in records]
        scheme = known_scheme(source, config.data.scheme, sentences)
        for number, (record, sentence) in enumerate(zip(records, sentences, strict=True)):
            try:
                tags = to_bio(sentence, scheme)
            except TagError as error:
                raise UserError(
                    f"{source}, example {number}, word {error.position}: {error.reason}; set config.data.scheme, which"
                    f" is {scheme}, to the notation of the dataset"
                ) from None
            examples.append(TaggedSentence([token.decode() for token in record["tokens"]], tags))
        report_scheme(source, config.data.scheme, scheme)
        return examples

    def labels(self, train: Sequence[TaggedSentence], config: Any) -> Labels:
        """Returns all tags, in the model's encoding, of the entity types in the training examples.

        Raises:
          UserError: there is no entity.
        """
        types = sorted({span.label for example in train for span in spans(example.tags)})
        if not types:
            raise UserError("config.data.train: no word is in an entity; is the last column the tag (data.tag_column)?")
        marks = "BIUL" if config.model.encoding == "BIOUL" else "BI"
        tags = ["O", *(f"{mark}-{label}" for label in types for mark in marks)]
        return {"tags": tags, "encoding": config.model.encoding}

    def arrays(self, examples: Sequence[TaggedSentence], number: int, shape: Shape, labels: Labels) -> Arrays:
        """Returns `tags` int32 [B, T], in the model's encoding."""
        if labels["encoding"] == "BIOUL":
            examples = [TaggedSentence(e.tokens, to_bioul(e.tags)) for e in examples]
        return super().arrays(examples, number, shape, labels)

    def decode(
        self, predictions: Arrays, examples: Sequence[TaggedSentence], labels: Labels, config: Any
    ) -> list[Tags]:
        """Returns the best tags, in BIO."""
        decoded = super().decode(predictions, examples, labels, config)
        return [bioul_to_bio(tags) for tags in decoded] if labels["encoding"] == "BIOUL" else decoded

    def score(self, examples: Sequence[TaggedSentence], predictions: Sequence[Tags]) -> dict[str, float]:
        """Returns `f1`, `precision` and `recall` of all types, `accuracy`, and `f1_x` of each type x, in percent."""
        gold = [example.tags for example in examples]
        return score_spans(gold, predictions).metrics(accuracy=tag_accuracy(gold, predictions))


TASK = NER()
