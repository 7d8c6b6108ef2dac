"""Measures held-out evaluation with the full softmax, as it is done by `evaluate` and during training.

The share of `softmax` is measured afterwards, from the losses of as many hidden vectors as a window has, and
`token_encoder_and_lstm` is the rest. Shares are measured on a single device only.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from elmo_jax.characters import PADDING
from elmo_jax.checkpoints.softmax_layout import to_lanes
from elmo_jax.data.corpus import Corpus
from elmo_jax.data.lexicon import BEGIN_SENTENCE_ID
from elmo_jax.data.windows import DistinctWords
from elmo_jax.distributed.mesh import REPLICATED, make_mesh, named_shardings, to_devices
from elmo_jax.model.bilm import initial_params
from elmo_jax.model.softmax import full_softmax_losses
from elmo_jax.training.evaluate import Evaluator
from elmo_jax.training.partitioning import model_for, params_specs, softmax_placement
from elmo_jax.training.throughput import flops_per_token, flops_per_word
from performance.machine import Machine, seconds_of
from performance.sizes import Size
from performance.train import windows_of


def measure(size: Size, corpus: Corpus, machine: Machine) -> dict[str, Any]:
    """Returns the metrics of evaluation; tokens are the targets of one direction."""
    mesh = make_mesh()
    config = size.config(mesh.size, machine.precision.value, str(corpus.path))
    model, placement = model_for(config, mesh), softmax_placement(config, size.vocabulary_size, mesh)
    whole = model.clone(vocabulary_size=size.vocabulary_size)

    def start() -> Any:
        return to_lanes(initial_params(whole, jax.random.key(0)))

    shardings = named_shardings(params_specs(jax.eval_shape(start), placement), mesh)
    params = jax.jit(start, out_shardings=shardings)()
    evaluator = Evaluator(model, size.evaluation, mesh, size.vocabulary_size, placement)
    spellings = corpus.spellings()
    distinct, on_devices = DistinctWords(spellings, PADDING), to_devices(spellings, REPLICATED, mesh)
    text, short = _text(corpus, size.evaluated_tokens if machine.is_cpu else None)

    def run(blocks: list[np.ndarray]) -> None:
        evaluator.perplexity(params, blocks, distinct, on_devices)

    run([short])  # compiles, with a text of one window
    seconds = machine.timed(lambda: run([text]))
    if machine.profile:
        with jax.profiler.trace(str(machine.profile)):
            run([short])
    words = len(np.unique(text))
    operations = len(text) * flops_per_token(size.model, size.vocabulary_size)
    figures = machine.figures(
        len(text), seconds, operations + words * flops_per_word(size.model, windows_of(spellings))
    )

    found = {} if mesh.size > 1 else {"time_share": _shares(size, params["softmax"], len(text), seconds, machine)}
    return figures | {"rows": size.evaluation.batch_size, "time_share": {}} | found


def _shares(size: Size, softmax: Any, tokens: int, seconds: float, machine: Machine) -> dict[str, float]:
    """Returns the shares of time on a single device."""
    settings = size.evaluation

    @jax.jit
    def losses(hidden: jax.Array, softmax: Any, targets: jax.Array) -> jax.Array:
        rows, biases = softmax["kernel"], softmax["bias"]
        return full_softmax_losses(hidden, rows, biases, targets, settings.vocabulary_chunk, machine.precision)

    hidden = jnp.ones((2 * settings.batch_size * settings.unroll_steps, size.model.lstm.projection))
    targets = jnp.zeros(hidden.shape[0], jnp.int32)
    window = seconds_of(machine, losses, hidden, softmax, targets, repeats=1)
    share = min(1.0, window * 2 * tokens / hidden.shape[0] / seconds)
    return {"softmax": share, "token_encoder_and_lstm": 1 - share}


def _text(corpus: Corpus, tokens: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Returns whole sentences of the held-out text with about `tokens` tokens (None: all), and one short sentence."""
    blocks = corpus.blocks("heldout")
    text = np.concatenate([blocks[index] for index in range(len(blocks))])
    starts = np.append(np.flatnonzero(text == BEGIN_SENTENCE_ID), len(text))
    shortest = int(np.argmin(np.diff(starts)))
    if tokens is None or tokens >= len(text):
        end = len(text)
    else:
        end = starts[max(1, int(np.searchsorted(starts, tokens)))]
    return text[:end], text[starts[shortest] : starts[shortest + 1]]
