"""Measures held-out evaluation with the full softmax, as it is done by `evaluate` and during training."""

from typing import Any

import jax
import numpy as np

from elmo_jax.characters import PADDING
from elmo_jax.checkpoints.softmax_layout import interleave
from elmo_jax.data.corpus import Corpus
from elmo_jax.data.lexicon import BEGIN_SENTENCE_ID
from elmo_jax.data.windows import DistinctWords
from elmo_jax.distributed.mesh import REPLICATED, make_mesh, named_shardings, to_devices
from elmo_jax.model.bilm import initial_params
from elmo_jax.training.evaluate import Evaluator
from elmo_jax.training.partitioning import model_for, params_specs, softmax_placement
from performance.machine import Machine
from performance.sizes import Size
from performance.train import operations


def measure(size: Size, corpus: Corpus, machine: Machine) -> dict[str, Any]:
    """Returns the metrics of evaluation; tokens are the targets of one direction."""
    mesh = make_mesh()
    config = size.config(mesh.size, machine.precision.value, str(corpus.path))
    model, placement = model_for(config, mesh), softmax_placement(config, size.vocabulary_size, mesh)
    whole = model.clone(vocabulary_size=size.vocabulary_size)

    def start() -> Any:
        return interleave(initial_params(whole, jax.random.key(0)))

    shardings = named_shardings(params_specs(jax.eval_shape(start), placement), mesh)
    params = jax.jit(start, out_shardings=shardings)()
    evaluator = Evaluator(model, size.evaluation, mesh, size.vocabulary_size, placement)
    char_ids = corpus.char_ids()
    distinct, on_devices = DistinctWords(char_ids, PADDING), to_devices(char_ids, REPLICATED, mesh)
    text, short = _text(corpus, size.evaluated_tokens if machine.is_cpu else None)

    def run(blocks: list[np.ndarray]) -> None:
        evaluator.sentences(params, blocks, distinct, on_devices)

    run([short])  # compiles, with a text of one window
    seconds = machine.timed(lambda: run([text]))
    if machine.profile:
        with jax.profiler.trace(str(machine.profile)):
            run([short])
    of_model = operations(size, corpus, len(text), len(np.unique(text)), size.vocabulary_size)
    numbers = machine.numbers(len(text), seconds, of_model)
    return numbers | {"rows": size.evaluation.batch_size}


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
