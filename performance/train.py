"""Measures training steps as `pretrain` makes them, with batches of real text made ahead by a thread and donated state.

On several devices of a CPU, a training on one device is timed as well. The making of batches is also measured alone.
"""

import math
import os
import statistics
import time
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from elmo_jax.characters import PADDING
from elmo_jax.config import Config
from elmo_jax.data.batches import BatchSettings, TrainingBatches, prefetched
from elmo_jax.data.corpus import Corpus
from elmo_jax.data.windows import DistinctWords, Share
from elmo_jax.distributed.mesh import REPLICATED, check_rows, make_mesh, named_shardings, to_devices
from elmo_jax.model.precision import Precision
from elmo_jax.training.partitioning import BATCH_SPECS, map_step, model_for, softmax_placement, state_specs
from elmo_jax.training.step import TrainState, TrainStep, initial_state
from elmo_jax.training.throughput import Work, flops_per_token, flops_per_word
from performance.machine import Machine
from performance.sizes import Size

TIMED_AT_LEAST, SECONDS_OF_A_PIECE = 3, 1.5
BATCHES_AT_LEAST = 3.0  # seconds of making batches


def host_batches(size: Size, corpus: Corpus, char_ids: np.ndarray, rows: int, devices: int) -> TrainingBatches:
    settings = BatchSettings.of(size.config(rows, "float32", str(corpus.path)), size.vocabulary_size)
    distinct = DistinctWords(char_ids, PADDING)
    return TrainingBatches(corpus.blocks("train"), distinct, settings, Share(range(rows), devices))


def measure(size: Size, corpus: Corpus, machine: Machine) -> dict[str, Any]:
    mesh = make_mesh()
    rows = machine.rows or (size.rows if machine.is_cpu else size.rows_of_accelerator * mesh.size)
    training = Training(size, corpus, mesh, rows, machine.precision)
    seconds, distinct_words = training.timed(machine)
    tokens = training.config.train.tokens_per_step
    work = Work(training.config, size.vocabulary_size, windows_of(training.char_ids))
    numbers = machine.numbers(tokens, seconds, work.operations(tokens, distinct_words))
    if machine.is_cpu and mesh.size > 1:
        del training  # frees the memory of its state
        seconds, _ = Training(size, corpus, make_mesh(jax.devices()[:1]), rows, machine.precision).timed(machine)
        numbers |= {"devices_used": mesh.size, "tokens_per_second_of_one_device": tokens / seconds}
    return numbers | {"rows": rows}


def measure_batches(size: Size, corpus: Corpus, machine: Machine) -> dict[str, Any]:
    """Returns the metrics of making batches on one core, which is all that the host does for a step.

    A token counts once, although both directions read it. There are no floating-point operations to count.
    """
    rows = machine.rows or (size.rows if machine.is_cpu else size.rows_of_accelerator)
    batches = host_batches(size, corpus, corpus.char_ids(), rows, devices=1)
    machine.probe()
    if hasattr(os, "sched_setaffinity"):  # restricts this thread alone, and not those that JAX has started
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    next(batches)
    made, started = 0, time.perf_counter()
    while (seconds := time.perf_counter() - started) < min(BATCHES_AT_LEAST, machine.seconds) or not made:
        next(batches)
        made += 1
    machine.probe()
    return machine.numbers(made * rows * 20, seconds, operations=0) | {"rows": rows}


class Training:
    """A training of one size on some devices, which has made one step."""

    def __init__(self, size: Size, corpus: Corpus, mesh: Mesh, rows: int, precision: Precision) -> None:
        """Starts the training with `rows` rows per batch, and compiles its step."""
        check_rows(rows, mesh)
        self.mesh = mesh
        self.config = size.config(rows, precision.value, str(corpus.path))
        self.char_ids = corpus.char_ids()
        step, self._state = _start(size, self.config, mesh)
        self._program = map_step(step, self._state, mesh)
        self._on_devices = to_devices(self.char_ids, REPLICATED, mesh)
        batches = host_batches(size, corpus, self.char_ids, rows, mesh.size)
        self._batches = prefetched((to_devices(b, BATCH_SPECS, mesh), int(b.window.word_count.sum())) for b in batches)
        self._distinct_words: list[int] = []
        jax.block_until_ready(self.run(1))  # compiles

    def run(self, steps: int) -> Any:
        for _ in range(steps):
            batch, distinct = next(self._batches)
            self._distinct_words.append(distinct)
            self._state, metrics = self._program(self._state, batch, self._on_devices)
        return metrics

    def timed(self, machine: Machine) -> tuple[float, int]:
        """Returns the seconds per step, and the average number of distinct words per batch."""
        # A piece has several steps, so that work which a step defers (freeing memory) delays the next one, as in
        # training.
        steps = max(2, math.ceil(SECONDS_OF_A_PIECE / machine.timed(lambda: self.run(1))))
        self._distinct_words.clear()
        pieces: list[float] = []
        while len(pieces) < TIMED_AT_LEAST or sum(pieces) < machine.seconds:
            pieces.append(machine.timed(lambda: self.run(steps)))
        distinct_words = round(statistics.mean(self._distinct_words))
        if machine.profile and self.mesh.size == jax.device_count():
            with jax.profiler.trace(str(machine.profile)):
                jax.block_until_ready(self.run(steps))
        # The median piece counts, so that a short disturbance of a shared machine has no effect.
        return statistics.median(pieces) / steps, distinct_words


def windows_of(char_ids: np.ndarray) -> float:
    """Returns the average number of positions per word that the filters are applied to, one of padding included."""
    return float((char_ids != PADDING).sum(1).mean()) + 1


def operations(size: Size, corpus: Corpus, tokens: int, distinct_words: int, scored: int = 0) -> float:
    """Returns the floating-point operations of the forward pass; `scored` words are in each token's softmax."""
    words = distinct_words * flops_per_word(size.model, windows_of(corpus.char_ids()))
    return tokens * flops_per_token(size.model, scored) + words


def _start(size: Size, config: Config, mesh: Any) -> tuple[TrainStep, TrainState]:
    model = model_for(config, mesh)
    placement = softmax_placement(config, size.vocabulary_size, mesh)
    step = TrainStep(model, config.train, 1_000_000, size.vocabulary_size, placement=placement)

    def start() -> TrainState:
        return initial_state(config, model.clone(vocabulary_size=size.vocabulary_size), step.optimizer)

    shardings = named_shardings(state_specs(jax.eval_shape(start), mesh, placement), mesh)
    state: TrainState = jax.jit(start, out_shardings=shardings)()
    return step, state
