"""Implements question answering as a task of the trainer: the answer to a question is a span of a paragraph."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import flax.linen as nn
import numpy as np

from elmo_jax.errors import UserError
from elmo_jax.settings import setting
from elmo_jax.tasks.core.config import TaskDataConfig
from elmo_jax.tasks.core.task import Arrays, Highlighted, Labels, Shape, Splitter, Task, Text, TfdsExamples, Use
from elmo_jax.tasks.formats.sources import split_brackets
from elmo_jax.tasks.squad.metric import metric, metric_with_no_answers
from elmo_jax.tasks.squad.model import SpanFinder, SquadModel
from elmo_jax.tasks.squad.reader import Example, Missing, Paragraph, questions, read, tokenize
from elmo_jax.words import split_words


@dataclasses.dataclass(frozen=True)
class Prediction:
    """A predicted answer."""

    text: str  # the text of the answer as in the paragraph; empty if there is none
    start: int  # the position of the first character in the paragraph
    end: int  # the position after the last character
    probability: float  # the probability of the first word times that of the last word, or of no answer
    no_answer: float | None = None  # the probability that there is no answer; None for SQuAD 1.1


@dataclasses.dataclass(frozen=True)
class SquadDataConfig(TaskDataConfig):
    """The files of questions in the JSON of SQuAD 1.1, or with `missing="no_answer"` of 2.0.

    `FILE[Title;Title]` reads the articles with these titles, `FILE[not Title;Title]` the others, and `FILE[:38]` the
    first 38.
    """

    missing: Missing = setting(
        "error",
        "Whether a question without an answer, or whose answer is not in its paragraph, is an error or skipped;"
        " no_answer trains and evaluates on SQuAD 2.0, whose questions with is_impossible have none.",
    )


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
        """Reads a file in the JSON of SQuAD, or some of its articles; see `SquadDataConfig`."""
        path, part = split_brackets(source)
        return read(path, "unknown" if use == "prediction" else config.data.missing, part)

    def splitter(self, config: Any) -> Splitter:
        """Returns a function that keeps the text, which `from_words` tokenizes."""
        return split_words

    def from_tfds(self, source: str, features: Any, records: TfdsExamples, config: Any) -> list[Example]:
        """Reads datasets in the form of `squad`."""
        articles = [_article(record) for record in records]
        return questions(Path(source), articles, config.data.missing, range(len(articles)))

    def texts(self, example: Example) -> tuple[Text, ...]:
        """Returns the words of the question and those of the paragraph."""
        return ([example.tokens], [example.paragraph.tokens.words])

    def arrays(self, examples: Sequence[Example], number: int, shape: Shape, labels: Labels) -> Arrays:
        """Returns `answers` int32 [B, 2], the first and the last word of the first gold answer, or `NO_ANSWER`."""
        spans = np.zeros((number, 2), np.int32)
        spans[: len(examples)] = [example.span for example in examples]
        return {"answers": spans}

    def module(self, config: Any, labels: Labels) -> nn.Module:
        """Returns the model."""
        return SpanFinder(config.model, no_answer=config.data.missing == "no_answer")

    def decode(self, predictions: Arrays, examples: Sequence[Example], labels: Labels, config: Any) -> list[Prediction]:
        """Returns the text of the most probable span of every paragraph, or an empty one if there is no answer."""
        answers = []
        sides = zip(examples, predictions["start"], predictions["end"], strict=False)
        for row, (example, start, end) in enumerate(sides):
            none = float(predictions["no_answer"][row]) if "no_answer" in predictions else None
            if none is not None and none > config.model.no_answer_threshold:
                answers.append(Prediction("", 0, 0, none, none))
                continue
            tokens = example.paragraph.tokens
            number = len(tokens.words)
            first, last, probability = most_probable_span(start[:number], end[:number], config.model.max_answer_length)
            probability *= 1 - (none or 0)
            text = example.paragraph.answer(first, last)
            answers.append(Prediction(text, tokens.starts[first], tokens.ends[last], probability, none))
        return answers

    def score(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> dict[str, float]:
        """Returns F1, which selects the best evaluation, and the share of exact matches; or SQuAD 2.0's metrics."""
        gold, texts = [example.answers for example in examples], [prediction.text for prediction in predictions]
        without = [prediction.no_answer for prediction in predictions if prediction.no_answer is not None]
        return metric_with_no_answers(gold, texts, without) if without else metric(gold, texts)

    def write(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> str:
        """Returns the JSON object that the official script reads: the predicted answer by the question's id."""
        return _by_id(examples, [prediction.text for prediction in predictions])

    def files(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> dict[str, str]:
        """Adds the probabilities of no answer, which the official script of SQuAD 2.0 takes as `--na-prob-file`."""
        files = super().files(examples, predictions)
        without = [prediction.no_answer for prediction in predictions if prediction.no_answer is not None]
        return files | ({".na_prob": _by_id(examples, without)} if without else {})

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
        """Returns `question`, `answer`, its characters `start` to before `end` in `paragraph`, and `probability`.

        For SQuAD 2.0, also `no_answer_probability`; without an answer, `answer` is empty.
        """
        value = {
            "question": " ".join(example.tokens),
            "paragraph": example.paragraph.text,
            "answer": prediction.text,
            "start": prediction.start,
            "end": prediction.end,
            "probability": round(prediction.probability, 6),
        }
        if prediction.no_answer is not None:
            value["no_answer_probability"] = round(prediction.no_answer, 6)
        return value

    def highlight(self, prediction: dict[str, Any]) -> Highlighted:
        """Returns the paragraph, in which the answer has its probability; or the probability of no answer below it."""
        text, probability = prediction["paragraph"], f"{prediction['probability']:.0%}"
        if not prediction["answer"]:
            return [(text, None), (f"\nno answer ({probability})", None)]
        start, end = prediction["start"], prediction["end"]
        return [(text[:start], None), (text[start:end], probability), (text[end:], None)]

    def show(self, example: Example, prediction: Prediction) -> str:
        """Returns the question with its answer, and below the paragraph with the answer in brackets."""
        marked = text = example.paragraph.text
        if prediction.text:
            marked = f"{text[: prediction.start]}[{prediction.text}]{text[prediction.end :]}"
        answer = prediction.text or "no answer"
        return f"{' '.join(example.tokens)} {answer} ({prediction.probability:.0%})\n  {marked}"


def most_probable_span(start: np.ndarray, end: np.ndarray, longest: int) -> tuple[int, int, float]:
    """Returns the span with the largest product of the probabilities of its first and its last word.

    Of equal products, the shortest span wins, and of equally short ones the first.

    Args:
      start: [T], the probability of each word to be the first of the answer.
      end: [T], the probability of each word to be the last of the answer.
      longest: the number of words of the longest span, at least 1.

    Returns:
      The first and the last word, both inclusive, and the product; it is taken in float64, where it cannot underflow.
    """
    start, end = start.astype(np.float64), end.astype(np.float64)
    best = (0, 0, -1.0)
    for extra in range(min(longest, len(start))):
        products = start[: len(start) - extra] * end[extra:]
        first = int(products.argmax())
        if products[first] > best[2]:
            best = (first, first + extra, float(products[first]))
    return best


def _by_id(examples: Sequence[Example], values: Sequence[str | float]) -> str:
    """Returns a JSON object of values by the id of the question, or by its place if it has none."""
    names = [example.id or str(number) for number, example in enumerate(examples)]
    return json.dumps(dict(zip(names, values, strict=True)), ensure_ascii=False, indent=1) + "\n"


def _article(record: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a question of TFDS as an article of the JSON with one paragraph and one question."""
    answers = record["answers"]
    pairs = zip(answers["text"], answers["answer_start"], strict=True)
    question = {
        "id": record["id"].decode(),
        "question": record["question"].decode(),
        "answers": [{"text": text.decode(), "answer_start": int(start)} for text, start in pairs],
    }
    if "is_impossible" in record:  # SQuAD 2.0
        question["is_impossible"] = bool(record["is_impossible"])
    paragraphs = [{"context": record["context"].decode(), "qas": [question]}]
    return {"title": record["title"].decode(), "paragraphs": paragraphs}


TASK = Squad()
