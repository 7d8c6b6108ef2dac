"""Implements the classification of sentences, such as by their sentiment, as a task of the trainer."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from elmo_jax.errors import UserError
from elmo_jax.files import listed
from elmo_jax.settings import setting
from elmo_jax.tasks.core.classification import ClassificationTask, ClassifiedTexts
from elmo_jax.tasks.core.config import TaskDataConfig
from elmo_jax.tasks.core.task import Labels, Splitter, Use, report
from elmo_jax.tasks.formats.lines import SUFFIXES, Quoting, suffix_of
from elmo_jax.tasks.sst.model import BCN, SSTModel
from elmo_jax.tasks.sst.reader import LABELS, Phrases, Words, read, read_texts, splitter


@dataclasses.dataclass(frozen=True)
class SSTDataConfig(TaskDataConfig):
    """The files of trees and the examples that are taken from them, or files with labels of your own."""

    phrases: Phrases = setting("all", "The training examples: all phrases of the trees, or only whole sentences.")
    shortest: int = setting(
        4,
        "The minimum number of words of a training phrase, if data.phrases is all: 4 in the paper's supplement, 1 in"
        " AllenNLP.",
        least=1,
    )
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
        """Reads a file of trees: phrases for training, whole sentences otherwise; or a file of records."""
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
        """Returns the treebank's classes, or those of the training records in alphabetical order.

        Raises:
          UserError: all training examples have one label.
        """
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
