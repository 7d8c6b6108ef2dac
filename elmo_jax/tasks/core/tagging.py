"""A task whose model gives each word a tag; a new one needs a reader, a model and its settings.

Shapes: B examples per batch, T words of the longest example, N tags.
"""

import dataclasses
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import flax.linen as nn
import numpy as np

from elmo_jax.errors import UserError
from elmo_jax.tasks.core.task import Arrays, Highlighted, Labels, Shape, Task, Text
from elmo_jax.tasks.formats.scores import tag_accuracy
from elmo_jax.tasks.formats.tags import spans

Tags = list[str]  # a prediction: one tag per word


@dataclasses.dataclass(frozen=True)
class TaggedSentence:
    """A sentence with tags."""

    tokens: list[str]  # the words
    tags: list[str]  # one tag per word; empty if the sentence is not annotated
    id: str = dataclasses.field(default="", compare=False, repr=False, kw_only=True)  # its name in the file, if any

    def __post_init__(self) -> None:
        if len(self.tags) not in (0, len(self.tokens)):
            raise UserError(f"a sentence has {len(self.tokens)} words and {len(self.tags)} tags: {self.tokens[:10]}")


Sentence = TypeVar("Sentence", bound=TaggedSentence)


class TaggingTask(Task[Sentence, Tags]):
    """The part that all tagging tasks have in common.

    The model predicts `probabilities` [B, T, N] if the task `supports_ensembling`, and otherwise `tags` int [B, T].
    Methods that are not redefined here report the accuracy over words, and write and show one tag per word.

    Attributes:
      network: the class of the model, which takes the settings `model` and the N tags in the order of their numbers.
      spans_and_label: the names of the spans and of their labels in `as_json`, if the tags are those of spans in BIO.
    """

    metric = "accuracy"
    network: Callable[[Any, Sequence[str]], nn.Module]
    spans_and_label: tuple[str, str] | None = None

    def texts(self, example: Sentence) -> tuple[Text, ...]:
        return ([example.tokens],)

    def labels(self, train: Sequence[Sentence], config: Any) -> Labels:
        """Returns the tags of the training examples in alphabetical order."""
        return {"tags": sorted({tag for example in train for tag in example.tags})}

    def arrays(self, examples: Sequence[Sentence], number: int, shape: Shape, labels: Labels) -> Arrays:
        """Returns `tags` int32 [B, T], 0 for a tag that the training lacks; scores compare the tags themselves."""
        numbers = {tag: i for i, tag in enumerate(labels["tags"])}
        tags = np.zeros((number, shape[0][1]), np.int32)
        for row, example in enumerate(examples):
            tags[row, : len(example.tags)] = [numbers.get(tag, 0) for tag in example.tags]
        return {"tags": tags}

    def unseen(self, examples: Sequence[Sentence], labels: Labels) -> Counter[str]:
        known = {"O", *labels["tags"]}
        return Counter(tag for example in examples for tag in example.tags if tag not in known)

    def module(self, config: Any, labels: Labels) -> nn.Module:
        return self.network(config.model, tuple(labels["tags"]))

    def decode(self, predictions: Arrays, examples: Sequence[Sentence], labels: Labels, config: Any) -> list[Tags]:
        ids = predictions["probabilities"].argmax(-1) if self.supports_ensembling else predictions["tags"]
        return [[labels["tags"][i] for i in ids[row, : len(e.tokens)]] for row, e in enumerate(examples)]

    def score(self, examples: Sequence[Sentence], predictions: Sequence[Tags]) -> dict[str, float]:
        return {"accuracy": tag_accuracy([example.tags for example in examples], predictions)}

    def write(self, examples: Sequence[Sentence], predictions: Sequence[Tags]) -> str:
        """Returns lines of word, gold tag (if any) and predicted tag, with tabs between, as for `conlleval -d`."""
        lines: list[str] = []
        for example, predicted in zip(examples, predictions, strict=True):
            columns = [example.tokens, example.tags, predicted] if example.tags else [example.tokens, predicted]
            lines += [*map("\t".join, zip(*columns, strict=True)), ""]
        return "".join(f"{line}\n" for line in lines)

    def from_words(self, texts: Sequence[list[str]], labels: Labels) -> list[Any]:
        return [TaggedSentence(texts[0], [])]

    def as_json(self, example: Sentence, prediction: Tags) -> dict[str, Any]:
        """Returns `tokens` and `tags`; and the spans, with their label, `text`, and words `start` to before `end`."""
        value: dict[str, Any] = {"tokens": example.tokens, "tags": prediction}
        if self.spans_and_label:
            name, kind = self.spans_and_label
            value[name] = [
                {kind: label, "text": " ".join(example.tokens[start : end + 1]), "start": start, "end": end + 1}
                for label, start, end in spans(prediction)
            ]
        return value

    def highlight(self, prediction: dict[str, Any]) -> Highlighted:
        """Returns each word with its tag, or the spans with their labels."""
        if self.spans_and_label:
            name, kind = self.spans_and_label
            return highlight_spans(prediction["tokens"], [(s["start"], s["end"], s[kind]) for s in prediction[name]])
        pairs = zip(prediction["tokens"], prediction["tags"], strict=True)
        return [part for word, tag in pairs for part in ((word, tag), (" ", None))]

    def show(self, example: Sentence, prediction: Tags) -> str:
        """Returns the sentence as `word/TAG word/TAG …`, or with spans in brackets: `[PER Ada Lovelace] wrote …`."""
        if not self.spans_and_label:
            return " ".join(f"{word}/{tag}" for word, tag in zip(example.tokens, prediction, strict=True))
        parts = self.highlight(self.as_json(example, prediction))
        return "".join(f"[{label} {text}]" if label else text for text, label in parts).strip()


def highlight_spans(words: Sequence[str], labelled: Sequence[tuple[int, int, str]]) -> Highlighted:
    """Returns words with the labels of spans (first word, the one after the last, label), the shortest of each word."""
    span_of: dict[int, tuple[int, int, str]] = {}
    for span in sorted(labelled, key=lambda span: span[0] - span[1]):  # the longest first
        span_of |= dict.fromkeys(range(*span[:2]), span)
    groups = itertools.groupby(range(len(words)), key=span_of.get)
    parts = [(" ".join(words[i] for i in indices), span and span[2]) for span, indices in groups]
    return [part for highlighted in parts for part in (highlighted, (" ", None))]
