"""Implements question answering as a task of the trainer: the answer to a question is a span of a paragraph."""

import dataclasses
import json
import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import flax.linen as nn
import numpy as np

from elmo_jax.errors import UserError
from elmo_jax.settings import setting
from elmo_jax.tasks.core.config import TaskDataConfig
from elmo_jax.tasks.core.task import Arrays, Highlighted, Labels, Shape, Splitter, Task, Text, TfdsExamples, Use
from elmo_jax.tasks.formats.scores import percent
from elmo_jax.tasks.formats.sources import split_brackets
from elmo_jax.tasks.squad.model import SpanFinder, SquadModel
from elmo_jax.tasks.squad.reader import Example, Missing, Paragraph, questions, read, tokenize
from elmo_jax.words import split_words


@dataclasses.dataclass(frozen=True)
class Prediction:
    """A predicted answer."""

    text: str  # as in the paragraph
    start: int  # the position of the first character in the paragraph
    end: int  # the position after the last character
    probability: float  # that of the first word times that of the last word


@dataclasses.dataclass(frozen=True)
class SquadDataConfig(TaskDataConfig):
    """The files of questions in the JSON of SQuAD 1.1.

    `FILE[Title;Title]` reads the articles with these titles, `FILE[not Title;Title]` the others, and `FILE[:38]` the
    first 38.
    """

    missing: Missing = setting("error", "Whether a question without an answer in its paragraph is an error or skipped.")


class Squad(Task[Example, Prediction]):
    """Question answering on paragraphs."""

    name = "squad"
    metric = "f1"
    data = SquadDataConfig()
    model = SquadModel()
    ids_are_keys = True
    supports_ensembling = True
    texts_per_example = 2
    sample = {"Question": "Where was the treaty signed?", "Paragraph": "The treaty was signed in Paris in 1783."}
    tfds_features = ("id", "title", "context", "question", "answers")

    def read(self, source: str, config: Any, use: Use) -> list[Example]:
        path, part = split_brackets(source)
        return read(path, "unknown" if use == "prediction" else config.data.missing, part)

    def splitter(self, config: Any) -> Splitter:
        """Returns a function that keeps the text, which `from_words` tokenizes."""
        return split_words

    def from_tfds(self, source: str, features: Any, records: TfdsExamples, config: Any) -> list[Example]:
        articles = [_article(record) for record in records]
        return questions(Path(source), articles, config.data.missing, range(len(articles)))

    def texts(self, example: Example) -> tuple[Text, ...]:
        return ([example.tokens], [example.paragraph.tokens.words])

    def arrays(self, examples: Sequence[Example], number: int, shape: Shape, labels: Labels) -> Arrays:
        """Returns `answers` int32 [B, 2], the first and the last word of the first gold answer."""
        spans = np.zeros((number, 2), np.int32)
        spans[: len(examples)] = [example.span for example in examples]
        return {"answers": spans}

    def module(self, config: Any, labels: Labels) -> nn.Module:
        return SpanFinder(config.model)

    def decode(self, predictions: Arrays, examples: Sequence[Example], labels: Labels, config: Any) -> list[Prediction]:
        answers = []
        for example, start, end in zip(examples, predictions["start"], predictions["end"], strict=False):
            tokens = example.paragraph.tokens
            number = len(tokens.words)
            first, last, probability = most_probable_span(start[:number], end[:number], config.model.max_answer_length)
            text = example.paragraph.answer(first, last)
            answers.append(Prediction(text, tokens.starts[first], tokens.ends[last], probability))
        return answers

    def score(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> dict[str, float]:
        return scores([example.answers for example in examples], [prediction.text for prediction in predictions])

    def write(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> str:
        """Returns the JSON object that the official script reads: answers by the id of the question, or its place."""
        names = [example.id or str(number) for number, example in enumerate(examples)]
        answers = {name: prediction.text for name, prediction in zip(names, predictions, strict=True)}
        return json.dumps(answers, ensure_ascii=False, indent=1) + "\n"

    def from_words(self, texts: Sequence[list[str]], labels: Labels) -> list[Example]:
        """Returns the question about the paragraph, whose text has a space between words.

        Both are split into words again, since the model was trained on finer words, which end at hyphens and slashes.
        """
        question, text = (" ".join(words) for words in texts)
        asked, tokens = tokenize(question).words, tokenize(text)
        if not asked or not tokens.words:
            raise UserError("expected a question and a paragraph with words, got an empty one")
        return [Example("", Paragraph("", text, tokens), asked, [], (0, 0))]

    def as_json(self, example: Example, prediction: Prediction) -> dict[str, Any]:
        """Returns `question`, `answer`, its characters `start` to before `end` in `paragraph`, and `probability`."""
        return {
            "question": " ".join(example.tokens),
            "paragraph": example.paragraph.text,
            "answer": prediction.text,
            "start": prediction.start,
            "end": prediction.end,
            "probability": round(prediction.probability, 6),
        }

    def highlight(self, prediction: dict[str, Any]) -> Highlighted:
        text, probability = prediction["paragraph"], f"{prediction['probability']:.0%}"
        start, end = prediction["start"], prediction["end"]
        return [(text[:start], None), (text[start:end], probability), (text[end:], None)]

    def show(self, example: Example, prediction: Prediction) -> str:
        text = example.paragraph.text
        marked = f"{text[: prediction.start]}[{prediction.text}]{text[prediction.end :]}"
        return f"{' '.join(example.tokens)} {prediction.text} ({prediction.probability:.0%})\n  {marked}"


def most_probable_span(start: np.ndarray, end: np.ndarray, longest: int) -> tuple[int, int, float]:
    """Returns the span with the largest product of the probabilities [T] that it starts and ends at a word.

    Of equal products, the shortest span wins, and of equally short ones the first. The result is the first and the last
    word, both inclusive, and the product.
    """
    start, end = start.astype(np.float64), end.astype(np.float64)  # in which the product cannot underflow
    best = (0, 0, -1.0)
    for extra in range(min(longest, len(start))):
        products = start[: len(start) - extra] * end[extra:]
        first = int(products.argmax())
        if products[first] > best[2]:
            best = (first, first + extra, float(products[first]))
    return best


_PUNCTUATION = str.maketrans("", "", string.punctuation)  # ASCII punctuation only
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalize(answer: str) -> str:
    """Returns an answer in the form in which SQuAD 1.1's official script compares answers."""
    # The hyphen of "an-the" goes first, so it becomes one word, which is not an article.
    without_punctuation = answer.lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", without_punctuation).split())


def f1(predicted: str, gold: str) -> float:
    """Returns F1 of the words of two normalized answers as multisets, between 0 and 1; 0 for two empty ones."""
    words, gold_words = normalize(predicted).split(), normalize(gold).split()
    common = sum((Counter(words) & Counter(gold_words)).values())
    if not common:
        return 0.0
    precision, recall = common / len(words), common / len(gold_words)
    return 2 * precision * recall / (precision + recall)


def scores(gold: Sequence[Sequence[str]], predicted: Sequence[str]) -> dict[str, float]:
    """Returns the means over questions of `f1` and `exact_match` with the best gold answer of each, in percent."""
    pairs = list(zip(predicted, gold, strict=True))
    exact = [normalize(answer) in map(normalize, answers) for answer, answers in pairs]
    return {
        "f1": percent(sum(max(f1(answer, each) for each in answers) for answer, answers in pairs), len(pairs)),
        "exact_match": percent(sum(exact), len(pairs)),
    }


def _article(record: Mapping[str, Any]) -> dict[str, Any]:
    answers = record["answers"]
    pairs = zip(answers["text"], answers["answer_start"], strict=True)
    question = {
        "id": record["id"].decode(),
        "question": record["question"].decode(),
        "answers": [{"text": text.decode(), "answer_start": int(start)} for text, start in pairs],
    }
    paragraphs = [{"context": record["context"].decode(), "qas": [question]}]
    return {"title": record["title"].decode(), "paragraphs": paragraphs}


TASK = Squad()
