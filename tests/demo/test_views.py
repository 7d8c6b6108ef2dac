"""Predictions become texts with labels, and mistakes on the page become messages."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from elmo_jax.demo import views
from elmo_jax.errors import UserError
from elmo_jax.tasks.core.task import Highlighted, Task
from elmo_jax.tasks.formats.sources import split_texts
from elmo_jax.tasks.registry import get_task
from tests.analysis.texts import tiny_bilm

TOKENS = ["Ann", "saw", "<b>"]
CLASSES = {"positive": 0.75, "<negative>": 0.25}
SAW = {"role": "V", "text": "saw", "start": 1, "end": 2}


def marked(parts: Highlighted) -> str:
    """The text, with `[…|label]` for a part with a label."""
    return "".join(text if label is None else f"[{text}|{label}]" for text, label in parts).strip()


def mention(text: str, start: int, end: int) -> dict[str, Any]:
    return {"text": text, "start": start, "end": end}


@pytest.mark.quick
@pytest.mark.parametrize(
    ("task", "prediction", "expected"),
    [
        ("pos", {"tokens": TOKENS, "tags": ["N", "V", "<"]}, "[Ann|N] [saw|V] [<b>|<]"),
        (
            "ner",
            {"tokens": TOKENS, "tags": [], "entities": [{"type": "PER", **mention("Ann", 0, 1)}]},
            "[Ann|PER] saw <b>",
        ),
        ("srl", {"tokens": TOKENS, "predicate": 1, "tags": [], "arguments": [SAW]}, "Ann [saw|V] <b>"),
        (
            "coref",
            {
                "sentences": [["Ann", "left"], ["She", "and", "her", "cat"]],
                "clusters": [
                    [mention("Ann", 0, 1), mention("She", 2, 3), mention("her", 4, 5)],
                    [mention("She and her cat", 2, 6)],
                    [mention("her cat", 4, 6)],
                ],
            },
            "[Ann|1] left [She|1] [and|2] [her|1] [cat|3] \n1: Ann · She · her\n2: She and her cat\n3: her cat",
        ),
        (
            "squad",
            {"question": "?", "paragraph": "a <b> c", "answer": "<b>", "start": 2, "end": 5, "probability": 0.42},
            "a [<b>|42%] c",
        ),
        ("sst", {"tokens": TOKENS, "label": "positive", "probabilities": CLASSES}, "[Ann saw <b>|positive (75%)]"),
        ("snli", {"premise": TOKENS, "label": "positive", "probabilities": CLASSES}, ""),
    ],
)
def test_each_task_has_its_form(task: str, prediction: dict[str, Any], expected: str) -> None:
    assert marked(get_task(task).highlight(prediction)) == expected


class Model:
    """A task model that has predicates in some sentences only, and returns its input."""

    def __init__(self, reads_documents: bool = False) -> None:
        self.reads_documents = reads_documents
        self.config = SimpleNamespace(data=SimpleNamespace(language="en"))
        # a new task has the JSON of its predictions
        self.task = SimpleNamespace(highlight=lambda prediction: Task.highlight(self.task, prediction))

    def split(self, *texts: str) -> list[Any]:
        task = get_task("snli" if len(texts) > 1 else "coref" if self.reads_documents else "pos")
        return split_texts(task, task.config_class(), *texts)

    def without_examples(self, inputs: list[Any]) -> int:
        return sum(item == ["No", "."] for item in inputs)

    def predict(self, inputs: list[Any]) -> list[Any]:
        return [{"read": item} for item in inputs if item != ["No", "."]]


@pytest.mark.quick
def test_a_model_reads_sentences_documents_or_pairs() -> None:
    def read(model: Any, names: tuple[str, ...], *texts: str) -> list[str]:
        shown, probabilities = views.predicted(model, names, *texts)
        assert probabilities == {}
        return [text.removeprefix('{"read": ').removesuffix("}").replace('"', "'") for text, _ in shown if text != "\n"]

    assert read(Model(), ("Text",), "He sat. She ran.") == ["['He', 'sat', '.']", "['She', 'ran', '.']"]
    document = "[['He', 'sat', '.'], ['She', 'ran', '.']]"
    assert read(Model(reads_documents=True), ("Text",), "He sat. She ran.") == [document]
    assert read(Model(), ("Premise", "Hypothesis"), "It is. So.", "No!") == [
        "[['It', 'is', '.', 'So', '.'], ['No', '!']]"
    ]
    without = "sentences without a word that is a predicate in the training text: 1"
    assert read(Model(), ("Text",), "No. Yes.") == ["['Yes', '.']", without]
    for names, texts, expected in (
        (("Text",), ("No.",), "Text: no sentence has a word that is a predicate in the training text"),
        (("Premise", "Hypothesis"), ("x" * 5_001, "a"), "Premise: has 5,001 characters; the limit is 5,000"),
        (("Premise", "Hypothesis"), ("a", " \n"), "Hypothesis: has no words; type some"),
        (("Premise", "Hypothesis"), ("a", "艾达在一八四三年写了它。"), "Hypothesis: most of this text is in a script"),
    ):
        with pytest.raises(UserError, match=expected):
            views.predicted(Model(), names, *texts)  # type: ignore[arg-type]


def test_words_are_compared_by_their_vectors() -> None:
    bilm = tiny_bilm()

    def vectors(words: str, place: int) -> np.ndarray:
        actual: np.ndarray = bilm.embed([words.split()])[0][0, :, place].astype(np.float64)
        return actual / np.linalg.norm(actual, axis=1, keepdims=True)

    asked = vectors("they saw a play .", 3)
    expected = np.sum(asked * vectors("no play at all .", 1), axis=1)
    shown = views.similarity(bilm, "they saw a play.", " play ", "no play at all.", "play")
    np.testing.assert_allclose([float(cosine) for _, cosine in shown], expected, atol=6e-4)
    assert [layer for layer, _ in shown] == ["layer 0", "layer 1", "layer 2"]
    with pytest.raises(UserError, match="the word '<i>' is not in the sentence: 'they saw a play .'"):
        views.similarity(bilm, "they saw a play.", "<i>", "no play at all.", "play")

    text = [line.split() for line in ("they saw a play .", "no play at all .", "she rows", "Play on !")]
    shown = views.nearest(bilm, text, 3, 1)
    others = [
        float(asked[1] @ vectors(words, place)[1]) for words, place in (("no play at all .", 1), ("Play on !", 0))
    ]
    np.testing.assert_allclose([float(cosine) for cosine, _ in shown], [1, *sorted(others, reverse=True)], atol=6e-4)
    assert {context for _, context in shown} == {"they saw a [play] .", "no [play] at all .", "[Play] on !"}
    with pytest.raises(UserError, match="no other sentence of the text has the word 'rows'"):
        views.nearest(bilm, text, 11, 1)
    with pytest.raises(UserError, match="Text: has 7 characters; the limit is 6"):
        views.sentences("Text", "a b c d", "en", 6)


def test_fields_for_another_language_have_no_english_example_and_are_read_by_its_rules() -> None:
    pytest.importorskip("gradio", reason="gradio is not installed: make test-slow installs it")
    from elmo_jax.demo.page import page

    bilm = tiny_bilm()
    french = dataclasses.replace(bilm, info={"language": "fr"})
    for model, filled in ((bilm, True), (french, False)):
        made = page([("runs/mine", model)]).get_config_file()["components"]
        values = [part["props"].get("value") for part in made if part["type"] == "textbox"]
        assert len(values) == 5 and all(bool(value) == filled for value in values)
        assert "# elmo_jax" in [part["props"].get("value") for part in made if part["type"] == "markdown"]


def test_text_is_read_in_the_language_of_the_model() -> None:
    french = dataclasses.replace(tiny_bilm(), info={"language": "fr"})
    assert len(views.similarity(french, "Il dit que l'homme dort.", "homme", "L'enfant dort.", "enfant")) == 3
    with pytest.raises(UserError, match="not in the sentence"):
        views.similarity(tiny_bilm(), "l'homme", "homme", "l'enfant", "enfant")
