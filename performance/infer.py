"""Measures the vectors of sentences as a user computes them: `bilm.embed` with 64 sentences per call.

The sentences are the first 1,024 of the held-out text, sorted by length, as `elmo-jax embed` sorts them. The biLM has
random parameters, which take as long as trained ones. Its cache of words starts empty, so every distinct word is
encoded once; then the same sentences are embedded again, with all words known.
"""

from typing import Any

import jax
import numpy as np

from elmo_jax.checkpoints.export import PretrainedBiLM
from elmo_jax.data.corpus import Corpus
from elmo_jax.data.lexicon import BEGIN_SENTENCE_ID
from elmo_jax.embedding.bilm import EmbeddingBiLM
from elmo_jax.model.bilm import BiLM, initial_params
from performance.machine import Machine
from performance.sizes import Size
from performance.train import operations

SENTENCES, BATCH = 1024, 64


def measure(size: Size, corpus: Corpus, machine: Machine) -> dict[str, Any]:
    sentences = sorted(heldout_sentences(corpus), key=len)
    batches = [sentences[start : start + BATCH] for start in range(0, len(sentences), BATCH)]
    bilm = random_bilm(size, machine)
    bilm.words([f"#{number}" for number in range(600)])  # compiles, as do all numbers of rows of a call of 64 sentences
    for rows in (64, 32, 16, 8, 4, 2, 1):
        bilm.embed([["#"] * 40] * rows)

    def seconds_of_all() -> float:
        return sum(machine.timed(lambda batch=batch: bilm.embed(batch)[0]) for batch in batches)  # type: ignore[misc]

    encoded = bilm.words.encoded
    seconds = seconds_of_all()
    encoded = bilm.words.encoded - encoded
    seconds_known = seconds_of_all()
    tokens = sum(map(len, sentences))
    if machine.profile:
        with jax.profiler.trace(str(machine.profile)):
            bilm.embed(batches[len(batches) // 2])
    numbers = machine.numbers(tokens, seconds, operations(size, corpus, tokens, encoded))
    known = {"tokens_per_second_of_known_words": tokens / seconds_known}
    return numbers | {"rows": BATCH, "distinct_words": encoded} | known


def random_bilm(size: Size, machine: Machine) -> EmbeddingBiLM:
    params = jax.device_get(jax.jit(lambda: initial_params(BiLM(size.model), jax.random.key(0)))())
    return EmbeddingBiLM.of(PretrainedBiLM(size.model, params, None, {}, ""), machine.precision)


def heldout_sentences(corpus: Corpus) -> list[list[str]]:
    blocks, words = corpus.blocks("heldout"), corpus.words()
    text = np.concatenate([blocks[index] for index in range(len(blocks))])
    starts = np.flatnonzero(text == BEGIN_SENTENCE_ID)[1 : SENTENCES + 1]
    return [[words[i] for i in ids[1:]] for ids in np.split(text, starts)[:SENTENCES]]
