"""Implements textual entailment as a task of the trainer."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import flax.linen as nn
import numpy as np

from elmo_jax.errors import UserError
from elmo_jax.settings import setting
from elmo_jax.tasks.core.classification import ClassPrediction, class_predictions
from elmo_jax.tasks.core.config import TaskConfig, TaskDataConfig
from elmo_jax.tasks.core.task import Labels, Shape, Text, report
from elmo_jax.tasks.snli.metric import metric
from elmo_jax.tasks.snli.model import ESIM, SNLIModel
from elmo_jax.tasks.snli.reader import LABELS, Example, Pairs, Quoting, read_jsonl, read_parallel, read_tab, tokenize

_WITHOUT_LABEL = "pairs left out, since their annotators did not agree on a label"
_PARALLEL = "labels."  # labels.dev next to s1.dev and s2.dev, the layout of e-SNLI and InferSent


@dataclasses.dataclass(frozen=True)
class SNLIDataConfig(TaskDataConfig):
    """The sources of the annotated pairs and their format."""

    quoting: Quoting = setting("none", "Whether cells of tab-separated files may be in double quotes (csv).")


@dataclasses.dataclass(frozen=True)
class SNLIConfig(TaskConfig):
    """An experiment on textual entailment."""

    task: str = setting("snli", "The name of the task.")
    data: SNLIDataConfig = SNLIDataConfig()
    model: SNLIModel = SNLIModel()


class SNLI:
    """Textual entailment between a premise and a hypothesis; implements `Task`."""

    name = "snli"
    metric = "accuracy"
    config_class: type[TaskConfig] = SNLIConfig
    averages = True
    texts_per_example = 2
    rows_are_examples = True
    tfds_features = ("premise", "hypothesis", "label")

    def read(self, source: str, config: SNLIConfig, training: bool) -> list[Example]:
        """Reads JSON lines (`.jsonl`), `labels.PART` next to `s1.PART` and `s2.PART`, or otherwise lines with tabs."""
        del training
        found = _pairs(Path(source), config.data.quoting)
        report(source, {_WITHOUT_LABEL: found.without_label})
        return found.examples

    def from_tfds(
        self, source: str, features: Mapping[str, Any], records: Sequence[Mapping[str, Any]], config: SNLIConfig
    ) -> list[Example]:
        """Reads datasets in the form of `snli`, whose sentences are not tokenized."""
        del config
        names = features["label"].names
        if set(names) != set(LABELS):
            raise UserError(f"{source}: expected the labels {', '.join(LABELS)}, found {', '.join(names)}")
        found = [
            Example(tokenize(r["premise"].decode()), tokenize(r["hypothesis"].decode()), names[r["label"]])
            for r in records
            if r["label"] >= 0
        ]
        report(source, {_WITHOUT_LABEL: len(records) - len(found)})
        return found

    def texts(self, example: Example) -> tuple[Text, ...]:
        """Returns the words of the premise and those of the hypothesis."""
        return ([example.premise], [example.hypothesis])

    def labels(self, train: Sequence[Example], config: SNLIConfig) -> Labels:
        """Returns the names of the classes."""
        del train, config
        return {"classes": list(LABELS)}

    def arrays(self, examples: Sequence[Example], number: int, shape: Shape, labels: Labels) -> dict[str, np.ndarray]:
        """Returns `label` int32 [B]."""
        del shape
        found = np.zeros(number, np.int32)
        found[: len(examples)] = [labels["classes"].index(e.label) if e.label else 0 for e in examples]
        return {"label": found}

    def module(self, config: SNLIConfig, labels: Labels) -> nn.Module:
        """Returns ESIM."""
        return ESIM(config.model, len(labels["classes"]))

    def decode(
        self, predictions: dict[str, np.ndarray], examples: Sequence[Example], labels: Labels, config: SNLIConfig
    ) -> list[ClassPrediction]:
        """Returns the most probable class and the probabilities of all."""
        del config
        return class_predictions(predictions["probabilities"], len(examples), labels["classes"])

    def score(self, examples: Sequence[Example], predictions: Sequence[ClassPrediction]) -> dict[str, float]:
        """Returns the accuracy."""
        return metric([example.label for example in examples], [prediction.label for prediction in predictions])

    def write(self, examples: Sequence[Example], predictions: Sequence[ClassPrediction]) -> str:
        """Returns lines of gold label (if there is one), predicted label, premise and hypothesis, with tabs between."""
        return "".join(
            "\t".join([*([e.label] if e.label else []), p.label, " ".join(e.premise), " ".join(e.hypothesis)]) + "\n"
            for e, p in zip(examples, predictions, strict=True)
        )

    def from_words(self, texts: Sequence[list[str]], labels: Labels) -> list[Example]:
        """Returns the pair without a label."""
        del labels
        if not texts[0] or not texts[1]:
            raise UserError("expected a premise and a hypothesis with words, got an empty one")
        return [Example(texts[0], texts[1], "")]

    def as_json(self, example: Example, prediction: ClassPrediction) -> dict[str, Any]:
        """Returns `premise`, `hypothesis`, `label` and `probabilities`."""
        return {"premise": example.premise, "hypothesis": example.hypothesis, **prediction.as_json()}

    def show(self, example: Example, prediction: ClassPrediction) -> str:
        """Returns the class, its probability and both sentences."""
        return f"{prediction}  {' '.join(example.premise)} | {' '.join(example.hypothesis)}"


def _pairs(path: Path, quoting: Quoting) -> Pairs:
    if ".jsonl" in map(str.lower, path.suffixes):
        return read_jsonl(path)
    if path.name.startswith(_PARALLEL):
        part = path.name.removeprefix(_PARALLEL)
        return read_parallel(path, path.with_name(f"s1.{part}"), path.with_name(f"s2.{part}"))
    return read_tab(path, quoting)


TASK = SNLI()
