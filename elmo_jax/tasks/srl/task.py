"""Implements semantic role labelling as a task of the trainer, with one example per predicate."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import flax.linen as nn
import numpy as np

from elmo_jax.settings import setting
from elmo_jax.tasks.core.config import TaskConfig, TaskDataConfig
from elmo_jax.tasks.core.tagging import tag_ids, tag_rows, tag_set
from elmo_jax.tasks.core.task import Labels, NoTfds, Shape, Text, report
from elmo_jax.tasks.formats.tags import spans
from elmo_jax.tasks.srl.metric import metric, proposition_lines
from elmo_jax.tasks.srl.model import SRL as Tagger
from elmo_jax.tasks.srl.model import SRLModel
from elmo_jax.tasks.srl.reader import Example, read_bio, read_columns

Prediction = list[str]  # a BIO tag per word


@dataclasses.dataclass(frozen=True)
class SRLDataConfig(TaskDataConfig):
    """The sources of the annotated predicates and their format."""

    format: Literal["conll2012", "propbank", "bio"] = setting(
        "conll2012",
        "The format of the files: the columns of CoNLL-2012 or of PropBank's gold_conll, or lines of BIO tags.",
    )


@dataclasses.dataclass(frozen=True)
class SRLConfig(TaskConfig):
    """An experiment on semantic roles."""

    task: str = setting("srl", "The name of the task.")
    data: SRLDataConfig = SRLDataConfig()
    model: SRLModel = SRLModel()


class SRL(NoTfds):
    """Semantic role labelling of given predicates; implements `Task`."""

    name = "srl"
    metric = "f1"
    config_class: type[TaskConfig] = SRLConfig
    averages = False  # decoding finds whole sequences
    texts_per_example = 1
    rows_are_examples = True

    def read(self, source: str, config: SRLConfig, training: bool) -> list[Example]:
        """Reads the predicates of a file; sentences without a predicate give no example."""
        del training
        path, layout = Path(source), config.data.format
        found = read_bio(path) if layout == "bio" else read_columns(path, layout)
        columns = "columns of arguments left out, since they mark no predicate"
        left_out = {"sentences left out, since they have no predicate": found.without_predicate}
        report(source, left_out | {columns: found.columns_without_predicate})
        return found.examples

    def texts(self, example: Example) -> tuple[Text, ...]:
        """Returns the words of the sentence."""
        return ([example.tokens],)

    def labels(self, train: Sequence[Example], config: SRLConfig) -> Labels:
        """Returns the tags of the training examples, and the words that are predicates in a text without annotation.

        Those are the words, in lower case, that are predicates in at least half of their occurrences in the training
        sentences, since most words that can be predicates are common nouns and auxiliaries at other times.
        """
        del config
        words: Counter[str] = Counter()
        predicates: Counter[str] = Counter()
        # The examples may be a share of the file's, which does not have all predicates of a sentence.
        for _, examples in itertools.groupby(train, lambda example: (example.sentence, example.tokens)):
            sentence = next(examples)
            words.update(word.lower() for word in sentence.tokens)
            predicates.update(sentence.tokens[place].lower() for place in sentence.predicates)
        known = sorted(word for word, number in predicates.items() if 2 * number >= words[word])
        return {"tags": sorted({"O", *tag_set(example.tags for example in train)}), "predicates": known}

    def arrays(self, examples: Sequence[Example], number: int, shape: Shape, labels: Labels) -> dict[str, np.ndarray]:
        """Returns `flags` int32 [B, T], 1 on the predicate, and `tags` int32 [B, T]."""
        length = shape[0][1]
        flags = np.zeros((number, length), np.int32)
        flags[np.arange(len(examples)), [example.predicate for example in examples]] = 1
        return {"flags": flags, "tags": tag_ids([e.tags for e in examples], number, length, labels["tags"])}

    def module(self, config: SRLConfig, labels: Labels) -> nn.Module:
        """Returns the tagger."""
        return Tagger(config.model, tuple(labels["tags"]))

    def decode(
        self, predictions: dict[str, np.ndarray], examples: Sequence[Example], labels: Labels, config: SRLConfig
    ) -> list[Prediction]:
        """Returns the best sequence of BIO tags of every predicate."""
        del config
        return tag_rows(predictions["tags"], [e.tokens for e in examples], labels["tags"])

    def score(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> dict[str, float]:
        """Returns the scores of srl-eval: F1 over all labels other than V first."""
        return metric([example.tags for example in examples], predictions)

    def write(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> str:
        """Returns the predicted frames in the columns of brackets that srl-eval reads, without gold annotation.

        The first column has the predicates as words, and sentences without a predicate are left out. srl-eval compares
        it with a file of gold frames of the same form: the result of this function for the gold tags.
        """
        lines: list[str] = []
        rest = iter(predictions)
        for sentence in _sentences(examples):
            tags = [next(rest) for _ in sentence]
            lines += proposition_lines(sentence[0].tokens, [e.predicate for e in sentence], tags)
        return "".join(f"{line}\n" for line in lines)

    def from_words(self, texts: Sequence[list[str]], labels: Labels) -> list[Example]:
        """Returns one example per predicate of a sentence, in order.

        The predicates are the words that `labels` lists as such. A sentence without any gives no example.
        """
        known = set(labels["predicates"])
        return [Example(0, texts[0], place, []) for place, word in enumerate(texts[0]) if word.lower() in known]

    def as_json(self, example: Example, prediction: Prediction) -> dict[str, Any]:
        """Returns `tokens`, `predicate` (its position), `tags` and `arguments` (words `start` to before `end`).

        The predicate itself is among the arguments, with the role V.
        """
        arguments = [
            {"role": label, "text": " ".join(example.tokens[start : end + 1]), "start": start, "end": end + 1}
            for label, start, end in spans(prediction)
        ]
        return {"tokens": example.tokens, "predicate": example.predicate, "tags": prediction, "arguments": arguments}

    def show(self, example: Example, prediction: Prediction) -> str:
        """Returns the predicate and its frame in brackets, as in `chased: [ARG0 The cat] [V chased] [ARG1 mice] .`."""
        words = list(example.tokens)
        for label, start, end in spans(prediction):
            words[start] = f"[{label} {words[start]}"
            words[end] += "]"
        return f"{example.tokens[example.predicate]}: {' '.join(words)}"


def _sentences(examples: Sequence[Example]) -> Iterator[list[Example]]:
    """Yields the consecutive examples of the same sentence whose predicates are at rising positions.

    Files may give one position two frames, for which the format of srl-eval has no room; the second one begins a
    sentence of its own.
    """
    group: list[Example] = []
    for example in examples:
        last = group[-1] if group else None
        if last and (
            (example.sentence, example.tokens) != (last.sentence, last.tokens) or example.predicate <= last.predicate
        ):
            yield group
            group = []
        group.append(example)
    if group:
        yield group


TASK = SRL()
