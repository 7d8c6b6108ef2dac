"""Implements part-of-speech tagging as a task of the trainer."""

import dataclasses
from pathlib import Path
from typing import Any, Literal

from elmo_jax.settings import setting
from elmo_jax.tasks.core.config import TaskDataConfig
from elmo_jax.tasks.core.tagging import TaggedSentence, TaggingTask
from elmo_jax.tasks.core.task import TfdsExamples, Use
from elmo_jax.tasks.pos.model import POSModel, SoftmaxTagger
from elmo_jax.tasks.pos.reader import Column, read_conllu, read_penn


@dataclasses.dataclass(frozen=True)
class POSDataConfig(TaskDataConfig):
    """The sources of the annotated sentences and their format."""

    format: Literal["conllu", "penn"] = setting(
        "conllu", "The format of the files: CoNLL-U, or the .pos files of the Penn Treebank."
    )
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
        """Reads CoNLL-U files or `.pos` files of the Penn Treebank."""
        if config.data.format == "penn":
            return read_penn(Path(source))
        return read_conllu(Path(source), config.data.column)

    def from_tfds(self, source: str, features: Any, records: TfdsExamples, config: Any) -> list[TaggedSentence]:
        """Reads the treebanks of `universal_dependencies`."""
        column = config.data.column
        names = features["upos"].feature.names if column == "upos" else None
        examples = []
        for record in records:
            # TFDS keeps multiword tokens and empty nodes, which are not words and have no head.
            kept = [i for i, head in enumerate(record["head"]) if head not in (b"None", b"_")]
            tags = [names[record[column][i]] if names else record[column][i].decode() for i in kept]
            examples.append(TaggedSentence([record["tokens"][i].decode() for i in kept], tags))
        return examples


TASK = POS()
