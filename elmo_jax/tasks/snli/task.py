"""Implements textual entailment as a task of the trainer."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

from elmo_jax.errors import UserError
from elmo_jax.settings import setting
from elmo_jax.tasks.core.classification import ClassificationTask, ClassifiedTexts
from elmo_jax.tasks.core.config import TaskDataConfig
from elmo_jax.tasks.core.task import Splitter, TfdsExamples, Use, report
from elmo_jax.tasks.formats.lines import Quoting
from elmo_jax.tasks.snli.model import ESIM, SNLIModel
from elmo_jax.tasks.snli.reader import LABELS, WITHOUT_LABEL, read, tokenize


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
        """Reads `labels.PART` next to `s1.PART` and `s2.PART`, JSON lines (`.jsonl`), or tables (`.csv`, or tabs)."""
        return read(Path(source), config.data.quoting, config.data.language, annotated=use != "prediction")

    def splitter(self, config: Any) -> Splitter:
        """Returns the tokenizer of sentences without parses."""
        return functools.partial(tokenize, language=config.data.language)

    def from_tfds(self, source: str, features: Any, records: TfdsExamples, config: Any) -> list[ClassifiedTexts]:
        """Reads datasets in the form of `snli`, whose sentences are not tokenized."""
        names = features["label"].names
        if set(names) != set(LABELS):
            raise UserError(f"{source}: expected the labels {', '.join(LABELS)}, found {', '.join(names)}")
        examples = [
            ClassifiedTexts(
                tuple(tokenize(r[name].decode(), config.data.language) for name in self.text_names), names[r["label"]]
            )
            for r in records
            if r["label"] >= 0
        ]
        report(source, {WITHOUT_LABEL: len(records) - len(examples)})
        return examples


TASK = SNLI()
