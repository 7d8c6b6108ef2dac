"""A task whose model gives each word a tag; a new one needs a reader, a model and its settings.

Shapes: B examples per batch, T words of the longest example, N tags.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

from elmo_jax.tasks.core.task import Arrays, Labels, Shape, Task, Text
from elmo_jax.tasks.formats.scores import tag_accuracy
from elmo_jax.tasks.formats.tags import Span

Tags = list[str]  # a prediction: one tag per word


@dataclasses.dataclass(frozen=True)
class TaggedSentence:
    """A sentence with tags."""

    tokens: list[str]  # the words
    tags: list[str]  # one tag per word; empty if the sentence is not annotated
    # its name in the file; empty if it has none
    id: str = dataclasses.field(default="", compare=False, repr=False, kw_only=True)


Sentence = TypeVar("Sentence", bound=TaggedSentence)


class TaggingTask(Task[Sentence, Tags]):
    """The part that all tagging tasks have in common.

    The model predicts `probabilities` [B, T, N] if the task `averages`, and otherwise `tags` int [B, T]. Methods that
    are not redefined here report the accuracy over words, and write and show one tag per word.
    """

    metric = "accuracy"

    def texts(self, example: Sentence) -> tuple[Text, ...]:
        """Returns the words."""
        return ([example.tokens],)

    def labels(self, train: Sequence[Sentence], config: Any) -> Labels:
        """Returns the tags of the training examples in alphabetical order."""
        return {"tags": sorted({tag for example in train for tag in example.tags})}

    def arrays(self, examples: Sequence[Sentence], number: int, shape: Shape, labels: Labels) -> Arrays:
        """Returns `tags` int32 [B, T].

        A gold tag that is not in `labels`, which only happens outside of the training examples, gets the number 0. This
        affects the loss alone, since scores compare the tags themselves; see `unseen`.
        """
        numbers = {tag: i for i, tag in enumerate(labels["tags"])}
        found = np.zeros((number, shape[0][1]), np.int32)
        for row, example in enumerate(examples):
            found[row, : len(example.tags)] = [numbers.get(tag, 0) for tag in example.tags]
        return {"tags": found}

    def unseen(self, examples: Sequence[Sentence], labels: Labels) -> Counter[str]:
        """Returns the tags that the model cannot predict."""
        known = {"O", *labels["tags"]}
        return Counter(tag for example in examples for tag in example.tags if tag not in known)

    def decode(self, predictions: Arrays, examples: Sequence[Sentence], labels: Labels, config: Any) -> list[Tags]:
        """Returns the best tag of every word."""
        ids = predictions["probabilities"].argmax(-1) if self.averages else predictions["tags"]
        return [[labels["tags"][i] for i in ids[row, : len(e.tokens)]] for row, e in enumerate(examples)]

    def score(self, examples: Sequence[Sentence], predictions: Sequence[Tags]) -> dict[str, float]:
        """Returns the accuracy over all words."""
        return {"accuracy": tag_accuracy([example.tags for example in examples], predictions)}

    def write(self, examples: Sequence[Sentence], predictions: Sequence[Tags]) -> str:
        """Returns lines of word, gold tag (if any) and predicted tag, with tabs between, as for `conlleval -d`."""
        lines: list[str] = []
        for example, predicted in zip(examples, predictions, strict=True):
            columns = [example.tokens, example.tags, predicted] if example.tags else [example.tokens, predicted]
            lines += [*map("\t".join, zip(*columns, strict=True)), ""]
        return "".join(f"{line}\n" for line in lines)

    def from_words(self, texts: Sequence[list[str]], labels: Labels) -> list[Any]:
        """Returns the sentence without tags."""
        return [TaggedSentence(texts[0], [])]

    def as_json(self, example: Sentence, prediction: Tags) -> dict[str, Any]:
        """Returns `tokens` and `tags`."""
        return {"tokens": example.tokens, "tags": prediction}

    def show(self, example: Sentence, prediction: Tags) -> str:
        """Returns the sentence as `word/TAG word/TAG …`."""
        return " ".join(f"{word}/{tag}" for word, tag in zip(example.tokens, prediction, strict=True))


def spans_as_json(kind: str, tokens: Sequence[str], spans: Iterable[Span]) -> list[dict[str, Any]]:
    """Returns spans as dicts with their label as `kind`, their `text`, and words `start` to before `end`."""
    return [
        {kind: label, "text": " ".join(tokens[start : end + 1]), "start": start, "end": end + 1}
        for label, start, end in spans
    ]


def in_brackets(tokens: Sequence[str], spans: Iterable[Span]) -> str:
    """Returns the words with spans in brackets, as in `[PER Ada Lovelace] wrote …`."""
    words = list(tokens)
    for span in spans:
        words[span.start] = f"[{span.label} {words[span.start]}"
        words[span.end] += "]"
    return " ".join(words)
