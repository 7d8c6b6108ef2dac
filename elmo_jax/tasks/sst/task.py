"""Implements sentiment classification as a task of the trainer."""

import dataclasses
from pathlib import Path

import flax.linen as nn

from elmo_jax.settings import setting
from elmo_jax.tasks.core.classification import ClassificationTask, ClassifiedTexts
from elmo_jax.tasks.core.config import TaskConfig, TaskDataConfig
from elmo_jax.tasks.core.task import Labels, report
from elmo_jax.tasks.formats.penn import Escapes
from elmo_jax.tasks.sst.model import BCN, SSTModel
from elmo_jax.tasks.sst.reader import LABELS, Phrases, read


@dataclasses.dataclass(frozen=True)
class SSTDataConfig(TaskDataConfig):
    """The files of trees and the examples that are taken from them."""

    phrases: Phrases = setting("all", "The training examples: all phrases of the trees, or only whole sentences.")
    shortest: int = setting(
        4,
        "The minimum number of words of a training phrase, if data.phrases is all: 4 in the paper's supplement, 1 in"
        " AllenNLP.",
        least=1,
    )
    escapes: Escapes = setting("map", "Whether escapes such as -LRB- are replaced by their characters (map) or kept.")


@dataclasses.dataclass(frozen=True)
class SSTConfig(TaskConfig):
    """An experiment on sentiment."""

    data: SSTDataConfig = SSTDataConfig()
    model: SSTModel = SSTModel()


class SST(ClassificationTask):
    """Sentiment classification of sentences in five classes."""

    name = "sst"
    config_class = SSTConfig
    classes = LABELS

    def read(self, source: str, config: SSTConfig, training: bool) -> list[ClassifiedTexts]:
        """Reads a file of trees: phrases for training, whole sentences otherwise."""
        data = config.data
        if not training or data.phrases == "sentences":
            return read(Path(source), "sentences", data.escapes)
        phrases = read(Path(source), "all", data.escapes)
        found = [phrase for phrase in phrases if len(phrase.texts[0]) >= data.shortest]
        report(source, {f"phrases of fewer than {data.shortest} words left out": len(phrases) - len(found)})
        return found

    def module(self, config: SSTConfig, labels: Labels) -> nn.Module:
        """Returns the biattentive classification network."""
        return BCN(config.model, len(labels["classes"]))

    def written(self, label: str) -> str:
        """Returns the number of a sentiment, as the files have it."""
        return str(LABELS.index(label))


TASK = SST()
