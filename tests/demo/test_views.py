"""Predictions become HTML in which text is escaped, and mistakes on the page become messages."""

from __future__ import annotations

import dataclasses
import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from elmo_jax.demo import views
from elmo_jax.errors import UserError
from elmo_jax.tasks.formats.sources import split_texts
from elmo_jax.tasks.registry import task_of
from tests.analysis.texts import tiny_bilm


def plain(html: str) -> str:
    """The HTML with `[` and `]` in place of boxes, and without colors."""
    return re.sub(r"<mark[^>]*>", "[", html).replace("</mark>", "]").replace("<sub>", "|").replace("</sub>", "")


@pytest.mark.quick
@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([], "a &lt;b&gt; c d"),
        ([(1, 3, "X"), (3, 4, "&")], "a [&lt;b&gt; c|X] [d|&amp;]"),
        ([(0, 1, "in"), (0, 4, "out"), (3, 4, "in")], "[[a|in] &lt;b&gt; c [d|in]|out]"),
        ([(0, 3, "1"), (1, 4, "2")], "[a [&lt;b&gt; c|2]|1][ d|2]"),  # they cross
        ([(0, 2, "1"), (0, 2, "2")], "[[a &lt;b&gt;|2]|1] c d"),
    ],
)
def test_spans_are_boxes(spans: list[views.Span], expected: str) -> None:
    assert plain(views.marked(["a", "<b>", "c", "d"], spans)) == f"<p>{expected}</p>"


TOKENS = ["Ann", "saw", "<b>"]
CLASSES = {"positive": 0.75, "<negative>": 0.25}
SAW = {"role": "V", "text": "saw", "start": 1, "end": 2}


@pytest.mark.quick
@pytest.mark.parametrize(
    ("prediction", "expected"),
    [
        ({"tokens": TOKENS, "tags": ["N", "V", "<"]}, [">Ann|N<", ">saw|V<", ">&lt;b&gt;|&lt;<"]),
        (
            {"tokens": TOKENS, "tags": [], "entities": [{"type": "PER", "text": "Ann", "start": 0, "end": 1}]},
            ["<p>[Ann|PER] saw &lt;b&gt;</p>"],
        ),
        ({"tokens": TOKENS, "predicate": 1, "tags": [], "arguments": [SAW]}, ["<p>Ann [saw|V] &lt;b&gt;</p>"]),
        (
            {
                "sentences": [["Ann", "left"], ["She", "<b>"]],
                "clusters": [[{"text": "Ann", "start": 0, "end": 1}, {"text": "She <b>", "start": 2, "end": 4}]],
            },
            ["<p>[Ann|1] left [She &lt;b&gt;|1]</p>", "<p>1: Ann · She &lt;b&gt;</p>"],
        ),
        (
            {"question": "?", "paragraph": "a <b> c", "answer": "<b>", "start": 2, "end": 5, "probability": 0.42},
            ["<p>a [&lt;b&gt;|42%] c</p>"],
        ),
        (
            {"tokens": TOKENS, "label": "positive", "probabilities": CLASSES},
            ["Ann saw &lt;b&gt;", "<td>positive</td><td>75.0%</td>", "<td>&lt;negative&gt;</td>", "width:25.0%"],
        ),
        ({"premise": TOKENS, "label": "positive", "probabilities": CLASSES}, ["<td>75.0%</td>"]),
        ({"of a new task": "<b>"}, ["<p>{&quot;of a new task&quot;: &quot;&lt;b&gt;&quot;}</p>"]),
    ],
)
def test_each_task_has_its_form(prediction: dict[str, Any], expected: list[str]) -> None:
    shown = plain(views.prediction(prediction))
    assert all(part in shown for part in expected), shown
    assert "<b>" not in shown


class Model:
    """A task model that has predicates in some sentences only, and returns its input."""

    def __init__(self, reads_documents: bool = False) -> None:
        self.reads_documents = reads_documents
        self.config = SimpleNamespace(data=SimpleNamespace(language="en"))

    def split(self, *texts: str) -> list[Any]:
        task = task_of("snli" if len(texts) > 1 else "coref" if self.reads_documents else "pos")
        return split_texts(task, task.config_class(), *texts)

    def without_examples(self, inputs: list[Any]) -> int:
        return sum(item == ["No", "."] for item in inputs)

    def predict(self, inputs: list[Any]) -> list[Any]:
        return [{"read": item} for item in inputs if item != ["No", "."]]


@pytest.mark.quick
def test_a_model_reads_sentences_documents_or_pairs() -> None:
    def read(model: Any, names: tuple[str, ...], *texts: str) -> list[str]:
        shown = views.predicted(model, names, *texts).replace("&quot;", "'")
        return re.findall(r"<p>{'read': (.*?)}</p>", shown) + re.findall('alert">(.*?)</p>', shown)

    assert read(Model(), ("Text",), "He sat. She ran.") == ["['He', 'sat', '.']", "['She', 'ran', '.']"]
    document = "[['He', 'sat', '.'], ['She', 'ran', '.']]"
    assert read(Model(reads_documents=True), ("Text",), "He sat. She ran.") == [document]
    assert read(Model(), ("Premise", "Hypothesis"), "It is. So.", "No!") == [
        "[['It', 'is', '.', 'So', '.'], ['No', '!']]"
    ]
    without = "a sentence has no word that is a predicate in the training text"
    assert read(Model(), ("Text",), "No. Yes.") == ["['Yes', '.']", without]
    assert read(Model(), ("Text",), "No.") == [without]
    for texts, expected in (
        (("x" * 5_001, "a"), "Premise: has 5,001 characters; the limit is 5,000"),
        (("a", " \n"), "Hypothesis: has no words; type some"),
        (("a", "艾达在一八四三年写了它。"), "Hypothesis: most of this text is in a script without spaces"),
    ):
        (line,) = read(Model(), ("Premise", "Hypothesis"), *texts)
        assert line.startswith(expected)


def test_words_are_compared_by_their_vectors() -> None:
    bilm = tiny_bilm()

    def vectors(words: str, place: int) -> np.ndarray:
        found: np.ndarray = bilm.embed([words.split()])[0][0, :, place].astype(np.float64)
        return found / np.linalg.norm(found, axis=1, keepdims=True)

    def numbers(html: str) -> list[float]:
        return [float(number) for number in re.findall(r"<td>(-?[01]\.\d{3})</td>", html)]

    asked = vectors("they saw a play .", 3)
    expected = np.sum(asked * vectors("no play at all .", 1), axis=1)
    shown = views.similarity(bilm, "they saw a play.", " play ", "no play at all.", "play")
    np.testing.assert_allclose(numbers(shown), expected, atol=6e-4)
    assert len(expected) == 3 and "<td>layer 2</td>" in shown
    missing = views.similarity(bilm, "they saw a play.", "<i>", "no play at all.", "play")
    assert "the word &#x27;&lt;i&gt;&#x27; is not in the sentence: &#x27;they saw a play .&#x27;" in missing

    text = [line.split() for line in ("they saw a play .", "no play at all .", "she rows", "Play on !")]
    shown = views.nearest(bilm, text, 3, 1)
    others = [
        float(asked[1] @ vectors(words, place)[1]) for words, place in (("no play at all .", 1), ("Play on !", 0))
    ]
    np.testing.assert_allclose(numbers(shown), [1, *sorted(others, reverse=True)], atol=6e-4)
    assert "<td>no [play] at all .</td>" in shown and "rows" not in shown
    assert "no other sentence of the text has the word &#x27;rows&#x27;" in views.nearest(bilm, text, 11, 1)
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
    assert "layer 0" in views.similarity(french, "Il dit que l'homme dort.", "homme", "L'enfant dort.", "enfant")
    assert "not in the sentence" in views.similarity(tiny_bilm(), "l'homme", "homme", "l'enfant", "enfant")
