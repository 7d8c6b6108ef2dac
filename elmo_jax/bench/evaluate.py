"""Held-out evaluation with the full softmax, as `evaluate` and the reports of a training make it.

`softmax` is measured afterwards: the full softmax's losses of as many hidden vectors as a window has;
`token_encoder_and_lstm` is the rest.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from elmo_jax.bench.machine import Machine, seconds_of
from elmo_jax.bench.sizes import Size
from elmo_jax.bench.train import windows_of
from elmo_jax.config import PADDING
from elmo_jax.data.batches import DistinctWords
from elmo_jax.data.corpus import Corpus
from elmo_jax.data.lexicon import BEGIN_SENTENCE_ID
from elmo_jax.model.bilm import BiLM, initial_params
from elmo_jax.model.softmax import full_softmax_losses
from elmo_jax.training import mesh as meshes
from elmo_jax.training.evaluate import Evaluator
from elmo_jax.training.lanes import to_lanes
from elmo_jax.training.throughput import flops_per_token, flops_per_word


def measure(size: Size, corpus: Corpus, machine: Machine) -> dict[str, Any]:
    """Tokens a second: the targets of one direction, each counted once."""
    mesh = meshes.make_mesh()
    model = BiLM(
        size.model,
        directions=meshes.preferred_directions(mesh),
        encoder_chunk=meshes.preferred_encoder_chunk(mesh),
        precision=machine.precision,
    )
    whole = model.clone(vocabulary_size=size.vocabulary_size)
    everywhere = meshes.shardings(meshes.EVERYWHERE, mesh)
    params = jax.jit(lambda: to_lanes(initial_params(whole, jax.random.key(0))), out_shardings=everywhere)()
    evaluator = Evaluator(model, size.evaluation, mesh, size.vocabulary_size)
    spellings = corpus.spellings()
    distinct, on_devices = DistinctWords(spellings, PADDING), meshes.to_devices(spellings, meshes.EVERYWHERE, mesh)
    text, short = _text(corpus, size.evaluated_tokens if machine.is_cpu else None)

    def run(blocks: list[np.ndarray]) -> None:
        evaluator.perplexity(params, blocks, distinct, on_devices)

    run([short])  # one window, to compile
    seconds = machine.timed(lambda: run([text]))
    if machine.profile:
        with jax.profiler.trace(str(machine.profile)):
            run([short])
    words = len(np.unique(text))
    operations = len(text) * flops_per_token(size.model, size.vocabulary_size)
    figures = machine.figures(
        len(text), seconds, operations + words * flops_per_word(size.model, windows_of(spellings))
    )

    hidden = jnp.ones((2 * size.evaluation.batch_size * size.evaluation.unroll_steps, size.model.lstm.projection))
    softmax = jax.jit(
        lambda hidden, rows, targets: full_softmax_losses(
            hidden, rows["kernel"], rows["bias"], targets, size.evaluation.vocabulary_chunk, machine.precision
        )
    )
    targets = jnp.zeros(hidden.shape[0], jnp.int32)
    window = seconds_of(machine, softmax, hidden, params["softmax"], targets, repeats=1)
    share = min(1.0, window * 2 * len(text) / hidden.shape[0] / seconds)
    return figures | {
        "rows": size.evaluation.batch_size,
        "time_share": {"softmax": share, "token_encoder_and_lstm": 1 - share},
    }


def _text(corpus: Corpus, tokens: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Whole sentences of the held-out text, about so many tokens (None: all), and one sentence of a window at most."""
    blocks = corpus.blocks("heldout")
    text = np.concatenate([blocks[index] for index in range(len(blocks))])
    starts = np.append(np.flatnonzero(text == BEGIN_SENTENCE_ID), len(text))
    shortest = int(np.argmin(np.diff(starts)))
    if tokens is None or tokens >= len(text):
        end = len(text)
    else:
        end = starts[max(1, int(np.searchsorted(starts, tokens)))]
    return text[:end], text[starts[shortest] : starts[shortest + 1]]
