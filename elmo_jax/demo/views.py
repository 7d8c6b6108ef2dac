"""Computes what the page shows: texts with labels, probabilities and cosines, as Gradio's components take them."""

import itertools
from collections.abc import Sequence

import numpy as np

from elmo_jax.analysis.neighbours import Occurrence, nearest_uses, occurrence_in
from elmo_jax.embedding.bilm import EmbeddingBiLM
from elmo_jax.embedding.tokens import tokenize
from elmo_jax.errors import UserError
from elmo_jax.tasks.core.task import Highlighted
from elmo_jax.tasks.core.trained_task import TrainedTask

LONGEST = 5_000  # characters of a text for a task model, or of a sentence
LONGEST_TEXT = 20_000  # characters of a text in which contexts are searched


def language_of(model: TrainedTask | EmbeddingBiLM) -> str:
    """Returns the language by whose rules text for a model is tokenized."""
    return model.language if isinstance(model, EmbeddingBiLM) else model.config.data.language


def sentences(name: str, text: str, language: str, longest: int = LONGEST) -> list[list[str]]:
    """Returns the words of a text's sentences, or raises `UserError` if it is too long, has no words or no spaces.

    The message begins with `name`, the name of the text's field.
    """
    if len(text) > longest:
        raise UserError(f"{name}: has {len(text):,} characters; the limit is {longest:,}")
    tokenized = tokenize("\n".join(text.splitlines()), language=language, name=name)
    if not tokenized:
        raise UserError(f"{name}: has no words; type some")
    return tokenized


def predicted(model: TrainedTask, names: Sequence[str], *texts: str) -> tuple[Highlighted, dict[str, float]]:
    """Returns the predictions of a task model for the texts of one example, or for each sentence of one text.

    These are the text with its labels and, for a single prediction of a classifier, the probability of each class.
    Raises `UserError` if a text has no words or is too long, or no sentence has a predicate.
    """
    for name, text in zip(names, texts, strict=True):
        sentences(name, text, language_of(model))  # checks the text
    inputs = model.split(*texts)
    without = model.without_examples(inputs)
    if without == len(inputs):
        raise UserError(f"{names[0]}: no sentence has a word that is a predicate in the training text")
    predictions = model.predict(inputs)
    lines = [("\n", None)]
    shown = [part for prediction in predictions for part in (*model.task.highlight(prediction), *lines)]
    if without:
        shown.append((f"sentences without a word that is a predicate in the training text: {without}", None))
    return shown, predictions[0].get("probabilities", {}) if len(predictions) == 1 else {}


def nearest(bilm: EmbeddingBiLM, text: Sequence[Sequence[str]], number: int, layer: int) -> list[tuple[str, str]]:
    """Returns the contexts of a text's word `number`, counted from 0, that are nearest in the text, with their cosines.

    Raises `UserError` if the text has the word only once.
    """
    words = [Occurrence(tuple(sentence), index) for sentence in text for index in range(len(sentence))]
    (neighbours,) = nearest_uses(bilm, [word.words for word in words], [words[number]], number=10, layer=layer)
    if not neighbours:
        raise UserError(f"no other sentence of the text has the word {words[number].word!r}")
    return [(f"{cosine:.3f}", near.shown()) for cosine, near in [(1, words[number]), *neighbours]]


def similarity(bilm: EmbeddingBiLM, text: str, word: str, other: str, other_word: str) -> list[tuple[str, str]]:
    """Returns the name of each layer and the cosine there of two words in their sentences, which must have them."""
    both = (("Sentence 1", text, word), ("Sentence 2", other, other_word))
    asked = [(sentences(name, given, bilm.language), wanted.strip()) for name, given, wanted in both]
    queries = [occurrence_in(tuple(itertools.chain(*text)), word) for text, word in asked]
    layers = bilm.embed([query.words for query in queries])[0]
    first, second = (layers[row, :, query.position] for row, query in enumerate(queries))  # [L+1, F] each
    norms = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    cosines = np.sum(first * second, axis=1) / np.maximum(norms, 1e-12)
    return [(f"layer {layer}", f"{cosine:.3f}") for layer, cosine in enumerate(cosines)]
