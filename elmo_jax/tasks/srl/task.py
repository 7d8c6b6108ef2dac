"""Implements semantic role labelling as a task of the trainer, with one example per predicate."""

import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np

from elmo_jax.settings import setting
from elmo_jax.tasks.core.config import TaskDataConfig
from elmo_jax.tasks.core.tagging import TaggingTask, Tags
from elmo_jax.tasks.core.task import Arrays, Labels, Shape, Use
from elmo_jax.tasks.formats.sources import files_of
from elmo_jax.tasks.srl.metric import evaluate, proposition_lines
from elmo_jax.tasks.srl.model import RoleTagger, SRLModel
from elmo_jax.tasks.srl.reader import Example, read_bio, read_columns


@dataclasses.dataclass(frozen=True)
class SRLDataConfig(TaskDataConfig):
    """The sources of the annotated predicates and their format."""

    format: Literal["conll2012", "propbank", "bio"] = setting(
        "conll2012",
        "The format of the files: the columns of CoNLL-2012 or of PropBank's gold_conll, or lines of BIO tags.",
    )


class SRL(TaggingTask[Example]):
    """Semantic role labelling of given predicates, whose frames are BIO tags."""

    name = "srl"
    metric = "f1"
    spans_and_label = ("arguments", "role")
    data = SRLDataConfig()
    model = SRLModel()
    network = RoleTagger
    sample = {"Text": "The committee wants to publish its report in May."}

    def read(self, source: str, config: Any, use: Use) -> list[Example]:
        """Reads the predicates of files (`files_of`); sentences without a predicate give no example."""
        layout = config.data.format
        examples: list[Example] = []
        files, part = files_of(source, ("conll",))
        for path in files:
            new = read_bio(path) if layout == "bio" else read_columns(path, layout)
            before = examples[-1].sentence + 1 if examples else 0
            examples += [dataclasses.replace(e, sentence=before + e.sentence) for e in new] if before else new
        return examples[part]

    def labels(self, train: Sequence[Example], config: Any) -> Labels:
        """Returns the tags of the training examples, their words, and those that are predicates in other text.

        The last are the words, in lower case, that are predicates in at least half of their occurrences in the training
        sentences, since most words that can be predicates are common nouns and auxiliaries at other times.
        """
        words: Counter[str] = Counter()
        predicates: Counter[str] = Counter()
        # The examples may be a share of the file's, which does not have all predicates of a sentence.
        for _, examples in itertools.groupby(train, lambda example: (example.sentence, example.tokens)):
            sentence = next(examples)
            words.update(word.lower() for word in sentence.tokens)
            predicates.update(sentence.tokens[i].lower() for i in sentence.predicates)
        known = sorted(word for word, number in predicates.items() if 2 * number >= words[word])
        tags = sorted({"O", *super().labels(train, config)["tags"]})
        return {"tags": tags, "predicates": known, "words": sorted(words)}

    def arrays(self, examples: Sequence[Example], number: int, shape: Shape, labels: Labels) -> Arrays:
        """Returns `flags` int32 [B, T], 1 on the predicate, and `tags` int32 [B, T]."""
        flags = np.zeros((number, shape[0][1]), np.int32)
        flags[np.arange(len(examples)), [example.predicate for example in examples]] = 1
        return {"flags": flags, **super().arrays(examples, number, shape, labels)}

    def score(self, examples: Sequence[Example], predictions: Sequence[Tags]) -> dict[str, float]:
        """Returns `f1`, `precision` and `recall` over all labels but V, and `f1_x` of each label x, in percent."""
        return evaluate([example.tags for example in examples], predictions).metrics()

    def write(self, examples: Sequence[Example], predictions: Sequence[Tags]) -> str:
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
        return [Example(texts[0], [], 0, i) for i, word in enumerate(texts[0]) if word.lower() in known]

    def overlooked(self, texts: Sequence[list[str]], labels: Labels) -> list[str]:
        """Returns the words that the training text lacks, so that they are not taken as predicates."""
        known = set(labels["words"])
        every = dict.fromkeys(word for words in texts for word in words if any(map(str.isalpha, word)))
        return [word for word in every if word.lower() not in known]

    def as_json(self, example: Example, prediction: Tags) -> dict[str, Any]:
        """Adds `predicate`, its position; the predicate itself is among the `arguments`, with the role V."""
        value = super().as_json(example, prediction)
        return {"tokens": value.pop("tokens"), "predicate": example.predicate, **value}

    def show(self, example: Example, prediction: Tags) -> str:
        """Returns the predicate and its frame in brackets, as in `chased: [ARG0 The cat] [V chased] [ARG1 mice] .`."""
        return f"{example.tokens[example.predicate]}: {super().show(example, prediction)}"


def _sentences(examples: Sequence[Example]) -> Iterator[list[Example]]:
    """Yields the consecutive examples of the same sentence whose predicates are at rising positions.

    Files may give one position two frames, for which the format of srl-eval has no room; the second one begins
    another sentence.
    """
    group: list[Example] = []
    for example in examples:
        if group and (
            (example.sentence, example.tokens) != (group[-1].sentence, group[-1].tokens)
            or example.predicate <= group[-1].predicate
        ):
            yield group
            group = []
        group.append(example)
    if group:
        yield group


TASK = SRL()
