"""Pretraining, from an empty folder or from where a run stopped.

Where the state comes from, in this order: the run's own newest good checkpoint; else fresh parameters.
At a step boundary the order is: fetch the step's figures and refuse what is not finite; evaluate; save. Where the
rows stand in the text is part of the state, so a batch that was drawn ahead of a save is drawn again after a restart.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from etils import epath

from elmo_jax import files
from elmo_jax.checkpoints.export import export_bilm
from elmo_jax.checkpoints.manager import Checkpoints
from elmo_jax.config import PADDING, Config
from elmo_jax.data.batches import DistinctWords, TrainingBatch, TrainingBatches, prefetched
from elmo_jax.data.corpus import Corpus
from elmo_jax.errors import UserError
from elmo_jax.training import mesh as meshes
from elmo_jax.training.checks import check_sizes, total_steps
from elmo_jax.training.evaluate import Evaluator, Perplexity
from elmo_jax.training.lanes import from_lanes
from elmo_jax.training.metrics import MetricsLog, Progress
from elmo_jax.training.report import draw_curve, summary, write_result
from elmo_jax.training.signals import StopSignals
from elmo_jax.training.state import TrainState, initial_state
from elmo_jax.training.step import Metrics, TrainStep
from elmo_jax.training.throughput import Interval, Work
from elmo_jax.training.workdir import open_workdir


@dataclasses.dataclass(frozen=True)
class Finished:
    """A run that has come to its end, in this launch or an earlier one."""

    result: dict[str, Any]  # the contents of `result.json`
    already: bool  # whether this launch found it finished


@dataclasses.dataclass(frozen=True)
class Stopped:
    """A run that was asked to stop, and has saved its state."""

    signal: signal.Signals
    step: int


def pretrain(config: Config, workdir: str | os.PathLike[str], title: str) -> Finished | Stopped:
    """Trains to the end, or until SIGTERM or SIGINT.

    Args:
      config: the experiment.
      workdir: the run's folder; a run that was stopped or killed there goes on.
      title: what the run is called in its picture and its export.

    Raises:
      UserError: a setting, a file or a loss that training cannot go on with.
    """
    folder = files.place(workdir)
    corpus = Corpus.open(config.data.corpus)
    mesh = meshes.make_mesh()
    check_sizes(config, corpus, mesh)
    facts = {"corpus_fingerprint": corpus.fingerprint, "vocabulary_size": corpus.vocabulary_size}
    open_workdir(folder, config, facts)
    total = total_steps(config, corpus)
    done = folder / "result.json"
    if done.exists() and (result := json.loads(done.read_text()))["steps"] == total:
        return Finished(result, already=True)
    _use_compilation_cache(folder)
    return _Run(config, corpus, mesh, folder, title, total).train()


def _use_compilation_cache(workdir: epath.Path) -> None:
    """Keeps compiled programs in the run's folder, unless the user has a place for them."""
    if jax.config.values["jax_compilation_cache_dir"] is None:
        jax.config.update("jax_compilation_cache_dir", str(files.absolute(workdir / "compilation_cache")))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


class _Run:
    """One launch of a run."""

    def __init__(
        self, config: Config, corpus: Corpus, mesh: jax.sharding.Mesh, workdir: epath.Path, title: str, total: int
    ) -> None:
        self._launched = time.perf_counter()
        self._config, self._corpus, self._mesh = config, corpus, mesh
        self._workdir, self._title, self._total = workdir, title, total
        self._step_tokens = config.train.batch_size * config.train.unroll_steps
        model = meshes.model_for(config, mesh)
        self._step = TrainStep(model, config.train, total, corpus.vocabulary_size)
        self._evaluator = Evaluator(model, config.evaluation, mesh, corpus.vocabulary_size)
        self._checkpoints = Checkpoints(workdir / "checkpoints", keep=config.checkpoint.keep)
        spellings = corpus.spellings(config.model.char_cnn.max_characters)
        self._distinct = DistinctWords(spellings, PADDING)
        self._spellings = meshes.to_devices(spellings, meshes.EVERYWHERE, mesh)
        # the filters are put on every position that holds a character, and on one of padding
        self._work = Work(config, corpus.vocabulary_size, float((spellings != PADDING).sum(1).mean()) + 1)

        def start() -> TrainState:
            return initial_state(config, model.clone(vocabulary_size=corpus.vocabulary_size), self._step.optimizer)

        self._shapes = jax.eval_shape(start)
        self._shardings = meshes.shardings(meshes.state_specs(self._shapes), mesh)
        self._fresh = jax.jit(start, out_shardings=self._shardings)

    def train(self) -> Finished | Stopped:
        state, step = self._start()
        self._log = MetricsLog(self._workdir, step)
        self._wall_before = self._log.latest("wall_seconds")
        self._progress = Progress(self._total, step)
        try:
            if self._log.first("heldout/perplexity/average") is None:
                self._evaluate(state if step == 0 else self._fresh(), 0, "before training")
            with StopSignals() as signals:
                state, step = self._loop(state, step, signals)
            if signals.received is not None and step < self._total:
                self._checkpoints.save(step, state)
                self._checkpoints.wait()
                return Stopped(signals.received, step)
            return self._finish(state)
        finally:
            self._progress.close()
            self._log.close()
            self._checkpoints.close()

    def _start(self) -> tuple[TrainState, int]:
        """The state to go on from, and its step."""
        found = self._checkpoints.restore(
            jax.tree.map(
                lambda s, sharding: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=sharding),
                self._shapes,
                self._shardings,
            )
        )
        if found is None:
            return self._fresh(), 0
        state, step = found
        if step > self._total:
            raise UserError(
                f"{self._workdir}: this run has made {step} steps and is now asked for {self._total};"
                " a run can be trained longer, not shorter"
            )
        return state, step

    def _batches(self, state: TrainState, step: int) -> Iterator[tuple[TrainingBatch, int]]:
        """Batches on the devices, and their numbers of distinct words, from the state's position on."""
        train = self._config.train
        batches = TrainingBatches(
            self._corpus.blocks("train"),
            self._distinct,
            vocabulary_size=self._corpus.vocabulary_size,
            rows=meshes.local_rows(train.batch_size, self._mesh),
            total_rows=train.batch_size,
            position=meshes.to_host(state.position),
            step=step,
            unroll_steps=train.unroll_steps,
            devices=len(self._mesh.local_devices),
            negatives=train.negatives,
            data_seed=self._config.data.seed,
            draw_seed=train.seed,
        )
        return prefetched(
            (meshes.to_devices(batch, meshes.BATCH_SPECS, self._mesh), int(batch.window.word_count.sum()))
            for batch in batches
        )

    def _loop(self, state: TrainState, step: int, signals: StopSignals) -> tuple[TrainState, int]:
        """Trains from `step` to the end or to a signal; returns the state and its step."""
        program = meshes.map_step(self._step, self._shapes, self._mesh)
        batches = self._batches(state, step)
        interval = Interval(self._work, self._step_tokens)
        # figures are fetched one step late: the device has its next step by then
        pending: tuple[int, Metrics] | None = None
        with jax.transfer_guard("disallow"):
            while step < self._total and signals.received is None:
                waiting = time.perf_counter()
                batch, distinct = next(batches)
                interval.waited(time.perf_counter() - waiting, distinct)
                state, metrics = program(state, batch, self._spellings)
                step += 1
                self._progress.step()
                if pending is not None:
                    self._receive(interval, *pending)
                pending = step, metrics
                reporting = step % self._config.train.log_every == 0 or step == self._total
                if reporting or self._is_due(step):
                    self._receive(interval, *pending)
                    pending = None
                if reporting:
                    self._report(interval, step, metrics)
                    interval = Interval(self._work, self._step_tokens)
                if self._is_due(step):
                    began = time.perf_counter()
                    self._evaluate_and_save(state, step)
                    interval.paused(time.perf_counter() - began)
            if pending is not None:
                self._receive(interval, *pending)
            if interval.steps:  # stopped between two reports
                self._report(interval, step, metrics)
        return state, step

    def _is_due(self, step: int) -> bool:
        """Whether to evaluate or save here; the last step is for `_finish`."""
        every = (self._config.evaluation.every, self._config.checkpoint.every)
        return step < self._total and any(n and step % n == 0 for n in every)

    def _evaluate_and_save(self, state: TrainState, step: int) -> None:
        every = self._config.evaluation.every
        heldout = self._evaluate(state, step, f"at step {step}").average if every and step % every == 0 else None
        self._log.flush()  # what stands there up to a checkpoint is kept when the run goes on from it
        self._checkpoints.save(step, state, heldout)

    def _receive(self, interval: Interval, step: int, metrics: Metrics) -> None:
        """Takes in the figures of a step."""
        losses, norm = jax.device_get((metrics.loss, metrics.gradient_norm))
        if not (np.isfinite(losses).all() and np.isfinite(norm)):
            self._checkpoints.wait()
            kept = self._checkpoints.steps()
            good = f"the last checkpoint is that of step {kept[-1]}" if kept else "no checkpoint was written yet"
            last = self._log.records[-1]["step"]
            raise UserError(
                f"{self._workdir}: the loss stopped being finite between steps {last} and {step}: forward {losses[0]},"
                f" backward {losses[1]}, gradient norm {norm}; {good}. Try a lower"
                " config.train.optimizer.learning_rate, more warmup_steps or a lower clip_norm, in a folder of its own"
            )
        interval.lost(losses)

    def _report(self, interval: Interval, step: int, metrics: Metrics) -> None:
        """Writes what the interval gave."""
        values = interval.values() | {
            "train/gradient_norm": float(jax.device_get(metrics.gradient_norm)),
            "train/learning_rate": float(jax.device_get(metrics.learning_rate)),
            "train/seconds": self._log.latest("train/seconds") + interval.seconds,
        }
        self._write(step, values)
        self._progress.show(values, step, (self._total - step) * interval.seconds / interval.steps)

    def _write(self, step: int, values: dict[str, Any]) -> None:
        wall = self._wall_before + time.perf_counter() - self._launched
        self._log.write(step, {"tokens": step * self._step_tokens, **values, "wall_seconds": wall})

    def _evaluate(self, state: TrainState, step: int, when: str) -> Perplexity:
        """Held-out perplexity, written and shown."""
        blocks = self._corpus.blocks("heldout")
        found = self._evaluator.perplexity(state.params, blocks, self._distinct, self._spellings)
        self._write(step, {f"heldout/perplexity/{name}": value for name, value in found.as_dict().items()})
        self._progress.say(
            f"held-out perplexity {when}: forward {found.forward:,.1f} · backward {found.backward:,.1f}"
            f" · average {found.average:,.1f}"
        )
        return found

    def _finish(self, state: TrainState) -> Finished:
        """Evaluates, saves, exports and reports."""
        self._checkpoints.save(self._total, state)  # so that a kill during the evaluation costs no training
        after = self._evaluate(state, self._total, "after training")
        self._checkpoints.save(self._total, state, after.average)  # notes the figure
        self._checkpoints.wait()
        params = from_lanes(jax.device_get(state.params), self._corpus.vocabulary_size)
        result = {
            "experiment": self._title,
            "steps": self._total,
            "tokens_seen": self._total * self._step_tokens,
            **summary(self._log.records, after, params),
            "wall_seconds": self._wall_before + time.perf_counter() - self._launched,
            "devices": f"{self._mesh.size} × {self._mesh.devices.flat[0].device_kind}",
        }
        history = {key: result[key] for key in ("experiment", "steps", "tokens_seen", "heldout_perplexity")}
        history["corpus_fingerprint"] = self._corpus.fingerprint
        history["evaluation_batch_size"] = self._config.evaluation.batch_size
        export_bilm(self._workdir / "export", self._config.model, params, self._corpus.vocabulary(), history)
        draw_curve(self._workdir, self._log.records, self._title, bool(self._config.train.negatives))
        write_result(self._workdir, result)  # last: it says that the run is complete
        return Finished(result, already=False)
