"""Turns text of the user into HTML that shows what a model says of it; everything is escaped."""

import functools
import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from elmo_jax.analysis.neighbours import Occurrence, nearest_uses, occurrence_in
from elmo_jax.embedding.bilm import EmbeddingBiLM
from elmo_jax.embedding.tokens import tokenize
from elmo_jax.errors import UserError
from elmo_jax.tasks.core.trained_task import TrainedTask

LONGEST = 5_000  # characters of a text for a task model, or of a sentence
LONGEST_TEXT = 20_000  # characters of a text in which contexts are searched

Span = tuple[int, int, str]  # the first piece of a text, the one after the last, and the label


def message(text: str) -> str:
    """Returns a message to the user."""
    return f'<p class="message" role="alert">{escape(text)}</p>'


def answered(function: Callable[..., str]) -> Callable[..., str]:
    """Makes a function return a message for a mistake of the user."""

    @functools.wraps(function)
    def call(*arguments: Any) -> str:
        try:
            return function(*arguments)
        except UserError as error:
            return message(str(error))

    return call


def language_of(model: TrainedTask | EmbeddingBiLM) -> str:
    """Returns the language by whose rules text for a model is tokenized."""
    return model.language if isinstance(model, EmbeddingBiLM) else model.config.data.language


def sentences(name: str, text: str, language: str, longest: int = LONGEST) -> list[list[str]]:
    """Returns the words of a text's sentences; `name` is that of its field.

    Raises:
      UserError: the text is too long, has no words, or has no spaces between them.
    """
    if len(text) > longest:
        raise UserError(f"{name}: has {len(text):,} characters; the limit is {longest:,}")
    found = tokenize("\n".join(text.splitlines()), language=language, name=name)
    if not found:
        raise UserError(f"{name}: has no words; type some")
    return found


@answered
def predicted(model: TrainedTask, names: Sequence[str], *texts: str) -> str:
    """Returns the predictions of a task model for the texts of one example, or for each sentence of one text."""
    for name, text in zip(names, texts, strict=True):
        sentences(name, text, language_of(model))  # checks the text
    inputs = model.split(*texts)
    without = model.without_examples(inputs)
    shown = message("a sentence has no word that is a predicate in the training text") if without else ""
    return shown + "".join(map(prediction, model.predict(inputs) if without < len(inputs) else []))


def prediction(found: Mapping[str, Any]) -> str:
    """Returns one of the predictions of `TrainedTask.predict`."""
    if "clusters" in found:
        words = [word for sentence in found["sentences"] for word in sentence]
        clusters = [(str(number), cluster) for number, cluster in enumerate(found["clusters"], 1)]
        spans = [(mention["start"], mention["end"], number) for number, cluster in clusters for mention in cluster]
        lists = (f"<p>{number}: {escape(' · '.join(m['text'] for m in cluster))}</p>" for number, cluster in clusters)
        return marked(words, spans) + "".join(lists)
    if "answer" in found:
        probability = f"{found['probability']:.0%}"
        spans = [(found["start"], found["end"], probability)] if found["answer"] else []
        return marked(found["paragraph"], spans, space="") + ("" if spans else f"<p>no answer ({probability})</p>")
    if "probabilities" in found:
        shown = marked(found["tokens"], []) if "tokens" in found else ""  # two texts are in their fields
        return shown + bars(found["probabilities"], ".1%")
    for spans_name, label in (("arguments", "role"), ("entities", "type")):
        if spans_name in found:
            return marked(found["tokens"], [(s["start"], s["end"], s[label]) for s in found[spans_name]])
    if "tags" in found:
        pairs = zip(found["tokens"], found["tags"], strict=True)
        cells = (f'<span class="word">{escape(word)}<sub>{escape(tag)}</sub></span>' for word, tag in pairs)
        return f"<p>{' '.join(cells)}</p>"
    return f"<p>{escape(json.dumps(found, ensure_ascii=False))}</p>"  # of a task that was added


def marked(pieces: Sequence[str], spans: Iterable[Span], space: str = " ") -> str:
    """Returns a text, in words or characters, with its spans in boxes that have the label at their end.

    Boxes are nested; where two spans cross, the inner box is divided at the end of the outer one.
    """
    ordered = sorted(spans, key=lambda span: -span[1])
    found: list[str] = []
    inside: list[Span] = []  # the spans of the open boxes, the outermost first
    for place, piece in enumerate(pieces):
        starting = [span for span in ordered if span[0] == place]
        found += [space if place else "", *map(_opened, starting), escape(piece)]
        inside += starting
        ending = [depth for depth, span in enumerate(inside) if span[1] == place + 1]
        closed = inside[ending[0] :] if ending else []
        again = [span for span in closed if span[1] > place + 1]
        inside = [*inside[: len(inside) - len(closed)], *again]
        found += [*(f"<sub>{escape(span[2])}</sub></mark>" for span in reversed(closed)), *map(_opened, again)]
    return f"<p>{''.join(found)}</p>"


def _opened(span: Span) -> str:
    hue = 137 * sum(map(ord, span[2])) % 360  # far apart for labels that differ in one digit
    return f'<mark style="background:hsl({hue} 80% 85%)">'


def bars(values: Mapping[str, float], form: str) -> str:
    """Returns a table of names and numbers, with bars for numbers from 0 to 1; `form` formats a number."""
    bar = '<div class="bar" style="width:{:.1%}"></div>'
    return _table((escape(name), f"{value:{form}}", bar.format(max(value, 0))) for name, value in values.items())


def _table(rows: Iterable[Sequence[str]]) -> str:
    lines = (f"<tr><td>{'</td><td>'.join(row)}</td></tr>" for row in rows)
    return f"<table>{''.join(lines)}</table>"


@answered
def nearest(bilm: EmbeddingBiLM, text: Sequence[Sequence[str]], number: int, layer: int) -> str:
    """Returns the contexts of a text's word `number`, counted from 0, that are nearest in the text."""
    words = [Occurrence(tuple(sentence), place) for sentence in text for place in range(len(sentence))]
    (found,) = nearest_uses(bilm, [word.words for word in words], [words[number]], number=10, layer=layer)
    if not found:
        raise UserError(f"no other sentence of the text has the word {words[number].word!r}")
    return _table((f"{cosine:.3f}", escape(near.shown())) for cosine, near in [(1, words[number]), *found])


@answered
def similarity(bilm: EmbeddingBiLM, text: str, word: str, other: str, other_word: str) -> str:
    """Returns the cosine between two words in their sentences for each layer."""
    both = (("Sentence 1", text, word), ("Sentence 2", other, other_word))
    asked = [(sentences(name, given, bilm.language), wanted.strip()) for name, given, wanted in both]
    queries = [occurrence_in(tuple(itertools.chain(*found)), word) for found, word in asked]
    layers = bilm.embed([query.words for query in queries])[0]
    first, second = (layers[row, :, query.place] for row, query in enumerate(queries))  # [L+1, F] each
    norms = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    cosines = np.sum(first * second, axis=1) / np.maximum(norms, 1e-12)
    return bars({f"layer {layer}": float(cosine) for layer, cosine in enumerate(cosines)}, ".3f")
