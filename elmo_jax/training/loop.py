"""Training, from an empty folder or from where a run stopped.

Where the state comes from, in this order: the run's own newest good checkpoint; else the model to fine-tune (`tuning`
adds it); else fresh parameters.
At a step boundary the order is: fetch the step's figures and refuse what is not finite; evaluate; save. Where the
rows stand in the text is part of the state, so a batch that was drawn ahead of a save is drawn again after a restart.
"""

from __future__ import annotations

import dataclasses
import signal
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from etils import epath

from elmo_jax.checkpoints.export import export_bilm
from elmo_jax.checkpoints.manager import Checkpoints
from elmo_jax.config import PADDING, Config
from elmo_jax.data.batches import DistinctWords, TrainingBatch, TrainingBatches, prefetched
from elmo_jax.data.corpus import Corpus
from elmo_jax.errors import UserError
from elmo_jax.training import mesh as meshes
from elmo_jax.training.evaluate import Evaluator, Perplexity
from elmo_jax.training.history import history
from elmo_jax.training.lanes import from_lanes
from elmo_jax.training.metrics import MetricsLog, NoProgress, Progress, Records
from elmo_jax.training.report import Finished, draw_curve, summary, write_result
from elmo_jax.training.signals import Stopped, StopSignals
from elmo_jax.training.state import TrainState, initial_state
from elmo_jax.training.step import Metrics, TrainStep
from elmo_jax.training.throughput import Interval, Work
from elmo_jax.training.together import StopAgreement, is_first, of_each, of_first


@dataclasses.dataclass(frozen=True)
class Chosen:
    """What a finished run exports."""

    state: TrainState
    step: int
    heldout: Perplexity


class Run:
    """One launch of a run."""

    _predecessor: dict[str, Any] | None = None  # of the model that is fine-tuned, for the history of the export
    _frozen: tuple[str, ...] = ()  # parts of the parameter tree that are not trained

    def __init__(
        self,
        config: Config,
        corpus: Corpus,
        mesh: jax.sharding.Mesh,
        workdir: epath.Path,
        title: str,
        total: int,
    ) -> None:
        self._launched = time.perf_counter()
        self._stopping = 0  # the signal after which all processes stop
        self._config, self._corpus, self._mesh = config, corpus, mesh
        self._workdir, self._title, self._total = workdir, title, total
        self._evaluated: tuple[int, Perplexity] | None = None  # the newest held-out figure of this launch, and its step
        self._step_tokens = config.train.batch_size * config.train.unroll_steps
        model = meshes.model_for(config, mesh)
        words = corpus.vocabulary_size
        placement = meshes.softmax_placement(config, words, mesh)
        self._model = model
        self._step = TrainStep(model, config.train, total, words, self._frozen, placement)
        self._evaluator = Evaluator(model, config.evaluation, mesh, words, placement)
        self._checkpoints = Checkpoints(workdir / "checkpoints", keep=config.checkpoint.keep)
        spellings = corpus.spellings(config.model.char_cnn.max_characters)
        self._distinct = DistinctWords(spellings, PADDING)
        self._spellings = meshes.to_devices(spellings, meshes.EVERYWHERE, mesh)
        # the filters are put on every position that holds a character, and on one of padding
        self._work = Work(config, corpus.vocabulary_size, float((spellings != PADDING).sum(1).mean()) + 1)

        def start(params: dict[str, Any] | None) -> TrainState:
            with_softmax = model.clone(vocabulary_size=corpus.vocabulary_size)
            return initial_state(config, with_softmax, self._step.optimizer, params, self._frozen)

        self._shapes = jax.eval_shape(lambda: start(None))
        self._shardings = meshes.shardings(meshes.state_specs(self._shapes, placement), mesh)
        self._start_from = jax.jit(start, out_shardings=self._shardings)

    def train(self) -> Finished | Stopped:
        """Trains to the end or to a signal."""
        state, step = self._start()
        self._log = MetricsLog(self._workdir, step) if is_first() else Records()
        self._wall_before = self._log.latest("wall_seconds")
        self._progress = Progress(self._total, step) if is_first() else NoProgress()
        try:
            self._before(state, step)
            with StopSignals() as signals:
                state, step = self._loop(state, step, signals)
            if self._stopping and step < self._total and not self._is_enough():
                self._checkpoints.save(step, state)
                self._checkpoints.wait()
                return Stopped(signal.Signals(self._stopping), step)
            return self._finish(state, step)
        finally:
            self._progress.close()
            self._log.close()
            self._checkpoints.close()

    def _start(self) -> tuple[TrainState, int]:
        """The state to go on from, and its step."""
        found = self._checkpoints.restore(self._abstract_state())
        if found is None:
            return self._first_state(), 0
        state, step = found
        if step > self._total:
            raise UserError(
                f"{self._workdir}: this run has made {step} steps and is now asked for {self._total};"
                " a run can be trained longer, not shorter"
            )
        return state, step

    def _first_state(self) -> TrainState:
        """The state of step 0."""
        return self._start_from(None)

    def _abstract_state(self) -> Any:
        """Shapes and shardings, as a restore wants them."""
        return jax.tree.map(
            lambda s, sharding: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=sharding),
            self._shapes,
            self._shardings,
        )

    def _before(self, state: TrainState, step: int) -> None:
        """The figures before training, unless an earlier launch wrote them; `state` is that of `step`."""
        if self._lacks("heldout/perplexity/average"):
            self._evaluate(state if step == 0 else self._first_state(), 0, "before training")

    def _lacks(self, name: str) -> bool:
        """Whether no record has this figure; process 0 keeps the records and says so to all."""
        return bool(of_first(self._log.first(name) is None))

    def _batches(self, state: TrainState, step: int) -> Iterator[tuple[TrainingBatch, int, int]]:
        """Batches on the devices from the state's position on; distinct words of each, and blocks read until then."""
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

        def ready(batch: TrainingBatch) -> tuple[TrainingBatch, int, int]:
            counts = int(batch.window.word_count.sum()), batches.blocks_read
            return meshes.to_devices(batch, meshes.BATCH_SPECS, self._mesh), *counts

        return prefetched(map(ready, batches))

    def _loop(self, state: TrainState, step: int, signals: StopSignals) -> tuple[TrainState, int]:
        """Trains from `step` to the end or to a signal; returns the state and its step."""
        program = meshes.map_step(self._step, self._shapes, self._mesh)
        batches = self._batches(state, step)
        agreement = StopAgreement(self._mesh)
        interval = Interval(self._work, self._step_tokens)
        # figures are fetched one step late: the device has its next step by then
        pending: tuple[int, Metrics, jax.Array | int] | None = None
        with jax.transfer_guard("disallow"):
            while step < self._total and not self._stopping and not self._is_enough():
                waiting = time.perf_counter()
                batch, *counts = next(batches)
                interval.waited(time.perf_counter() - waiting, *counts)
                state, metrics = program(state, batch, self._spellings)
                stopping = agreement.announce(signals.received)
                step += 1
                self._progress.step()
                if pending is not None:
                    self._receive(interval, *pending)
                pending = step, metrics, stopping
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

    def _is_enough(self) -> bool:
        """Whether to end before the last step."""
        return False

    def _is_due(self, step: int) -> bool:
        """Whether to evaluate or save here; the last step is for `_finish`."""
        every = (self._config.evaluation.every, self._config.checkpoint.every)
        return step < self._total and any(n and step % n == 0 for n in every)

    def _evaluate_and_save(self, state: TrainState, step: int) -> None:
        every = self._config.evaluation.every
        heldout = self._evaluate(state, step, f"at step {step}").average if every and step % every == 0 else None
        self._log.flush()  # what stands there up to a checkpoint is kept when the run goes on from it
        self._checkpoints.save(step, state, heldout)

    def _receive(self, interval: Interval, step: int, metrics: Metrics, stopping: jax.Array | int) -> None:
        """Takes in the figures of a step."""
        waiting = time.perf_counter()
        losses, norm, self._stopping = jax.device_get((metrics.loss, metrics.gradient_norm, stopping))
        interval.blocked(time.perf_counter() - waiting)
        if not (np.isfinite(losses).all() and np.isfinite(norm)):
            self._checkpoints.wait()
            kept = self._checkpoints.steps()
            good = f"the last checkpoint is that of step {kept[-1]}" if kept else "no checkpoint was written yet"
            last = int(self._log.latest("step"))
            raise UserError(
                f"{self._workdir}: the loss stopped being finite between steps {last} and {step}: forward {losses[0]},"
                f" backward {losses[1]}, gradient norm {norm}; {good}. Try a lower"
                " config.train.optimizer.learning_rate, more warmup_steps or a lower clip_norm, in a folder of its own"
            )
        interval.lost(losses)

    def _report(self, interval: Interval, step: int, metrics: Metrics) -> None:
        """Writes what the interval gave."""
        of_processes = of_each(interval.of_process())
        values = interval.values(int(sum(of_processes.pop("processes/distinct_words")))) | {
            "train/gradient_norm": float(jax.device_get(metrics.gradient_norm)),
            "train/learning_rate": float(jax.device_get(metrics.learning_rate)),
            "train/seconds": self._log.latest("train/seconds") + interval.seconds,
            **of_processes,
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
        self._evaluated = step, found
        self._write(step, {f"heldout/perplexity/{name}": value for name, value in found.as_dict().items()})
        self._progress.say(
            f"held-out perplexity {when}: forward {found.forward:,.1f} · backward {found.backward:,.1f}"
            f" · average {found.average:,.1f}"
        )
        return found

    def _finish(self, state: TrainState, step: int) -> Finished:
        """Evaluates, saves, exports and reports."""
        self._checkpoints.save(step, state)  # so that a kill during the evaluation costs no training
        if self._evaluated is not None and self._evaluated[0] == step:
            after = self._evaluated[1]
        else:
            after = self._evaluate(state, step, "after training")
        self._checkpoints.save(step, state, after.average)  # notes the figure
        self._checkpoints.wait()
        chosen = self._choose(Chosen(state, step, after))
        params = from_lanes(meshes.whole(chosen.state.params), self._corpus.vocabulary_size)
        more = self._more_findings(chosen, step)
        if not is_first():
            return Finished({}, already=False)
        result = {
            "experiment": self._title,
            "steps": step,
            "tokens_seen": step * self._step_tokens,
            **summary(self._log.records, chosen.heldout, params),
            **more,
            "wall_seconds": self._wall_before + time.perf_counter() - self._launched,
            "devices": f"{self._mesh.size} × {self._mesh.devices.flat[0].device_kind}",
        }
        heldout = chosen.heldout.as_dict()
        info = history(self._title, chosen.step, heldout, self._config, self._corpus, self._predecessor)
        export_bilm(self._workdir / "export", self._config.model, params, self._corpus.vocabulary(), info)
        self._draw(result)
        write_result(self._workdir, result)  # last: it says that the run is complete
        return Finished(result, already=False)

    def _choose(self, last: Chosen) -> Chosen:
        """What to export."""
        return last

    def _more_findings(self, chosen: Chosen, step: int) -> dict[str, Any]:
        """What this kind of run adds to `result.json`; its last step is `step`."""
        return {}

    def _draw(self, result: dict[str, Any]) -> None:
        """Draws `curve.png`."""
        draw_curve(self._workdir, self._log.records, self._title, bool(self._config.train.negatives))
