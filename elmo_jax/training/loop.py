"""Pretraining, from an empty folder or from where a run stopped.

Where the state comes from, in this order: the run's own newest good checkpoint; else fresh parameters.
Within a step boundary the order is: fetch the step's figures and refuse what is not finite; evaluate; save. The position of
the data is part of the state, so a batch drawn ahead of a save is drawn again after a restart.
"""

from __future__ import annotations

import dataclasses
import math
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import jax
import numpy as np

from elmo_jax.checkpoints.export import export_bilm
from elmo_jax.checkpoints.manager import Checkpoints
from elmo_jax.config import Config
from elmo_jax.data.batches import DistinctWords, TrainingBatches, prefetched
from elmo_jax.data.corpus import Corpus
from elmo_jax.errors import UserError
from elmo_jax.model.bilm import BiLM, parameter_count
from elmo_jax.model.char_cnn import PADDING
from elmo_jax.model.precision import Precision
from elmo_jax.training import mesh as meshes
from elmo_jax.training.evaluate import Evaluator, Perplexity
from elmo_jax.training.metrics import MetricsLog, Progress, flops_per_token, flops_per_word
from elmo_jax.training.report import draw_curve, write_result
from elmo_jax.training.state import TrainState, initial_state, without_softmax
from elmo_jax.training.step import Batch, Metrics, TrainStep
from elmo_jax.training.workdir import open_workdir


@dataclasses.dataclass(frozen=True)
class Stopped:
    """A run that was asked to stop, and has saved its state."""

    signal: int
    step: int


def pretrain(config: Config, workdir: Path, title: str) -> dict[str, Any] | Stopped:
    """Trains to the end, or until SIGTERM or SIGINT.

    Args:
      config: the experiment.
      workdir: the run's folder; a run that was stopped there goes on.
      title: what the picture is called.

    Returns:
      The contents of `result.json`, or that the run was stopped.

    Raises:
      UserError: a setting, a file or a loss that training cannot go on with.
    """
    return _Run(config, workdir, title).train()


class _Interval:
    """What happened since the last report."""

    def __init__(self) -> None:
        self.losses: list[np.ndarray] = []
        self.distinct = 0
        self.waited = 0.0
        self.idle = 0.0  # spent on evaluation and saves, not counted as training
        self.started = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Of training."""
        return time.perf_counter() - self.started - self.idle


class _Run:
    def __init__(self, config: Config, workdir: Path, title: str):
        self.config, self.workdir, self.title = config, workdir, title
        self.corpus = Corpus.open(Path(config.data.corpus))
        self.mesh = meshes.make_mesh()
        self._check_sizes()
        rows, steps = config.train.batch_size, config.train.unroll_steps
        self.step_tokens = rows * steps
        self.total = config.train.steps or math.ceil(config.train.epochs * self.corpus.tokens("train") / self.step_tokens)
        facts = {"corpus_fingerprint": self.corpus.fingerprint, "vocabulary_size": self.corpus.vocabulary_size}
        open_workdir(workdir, config, facts)
        _use_compilation_cache(workdir)
        model = BiLM(
            config.model,
            precision=Precision(config.train.precision),
            directions=meshes.preferred_directions(self.mesh),
            encoder_chunk=meshes.preferred_encoder_chunk(self.mesh),
        )
        self.model_with_softmax = model.clone(vocabulary_size=self.corpus.vocabulary_size)
        self.step = TrainStep(model, config.train, self.total)
        self.evaluator = Evaluator(model, config.evaluation, self.mesh)
        spellings = self.corpus.spellings(config.model.char_cnn.max_characters)
        self.distinct = DistinctWords(spellings, PADDING)
        # positions that hold a character of a word, and one past them, for the account of the work done
        self.windows = float((spellings != PADDING).sum(1).mean()) + 1
        self.spellings = meshes.to_devices(spellings, meshes.EVERYWHERE, self.mesh)
        self.checkpoints = Checkpoints(workdir / "checkpoints", keep=config.checkpoint.keep)
        self.signal: int | None = None

    def _check_sizes(self) -> None:
        train, corpus = self.config.train, self.corpus
        meshes.check_rows(train.batch_size, self.mesh)
        if train.negatives >= corpus.vocabulary_size:
            raise UserError(
                f"config.train.negatives: {train.negatives} distinct negatives cannot be drawn from the vocabulary of"
                f" {corpus.vocabulary_size} words in {corpus.path}; take fewer, or 0 for the full softmax"
            )
        tokens, needed = corpus.tokens("train"), train.batch_size * train.unroll_steps
        if tokens < needed:
            raise UserError(
                f"{corpus.path}: {tokens} training tokens are fewer than one batch of {train.batch_size} rows ×"
                f" {train.unroll_steps} steps = {needed}; give more text, or lower config.train.batch_size"
            )

    def train(self) -> dict[str, Any] | Stopped:
        state, restored = self._start()
        self.log = MetricsLog(self.workdir, restored)
        self.trained_before = self.log.latest("train/seconds")
        self.launched = time.perf_counter()
        self.wall_before = self.log.latest("wall_seconds")
        self.progress = Progress(self.total, restored)
        try:
            if not any("heldout/perplexity/average" in r for r in self.log.records if r["step"] == 0):
                start = state if restored == 0 else self._fresh()
                self._evaluate(start, 0, "before training")
            with self._signals():
                state, done = self._loop(state, restored)
            if done < self.total:
                assert self.signal is not None
                self.checkpoints.save(done, state)
                self.checkpoints.wait()
                return Stopped(self.signal, done)
            return self._finish(state)
        finally:
            self.progress.close()
            self.log.close()
            self.checkpoints.close()

    def _start(self) -> tuple[TrainState, int]:
        """The state to go on from, and its step."""
        shapes = jax.eval_shape(lambda: initial_state(self.config, self.model_with_softmax, self.step.optimizer))
        self.shardings = meshes.shardings(meshes.state_specs(shapes), self.mesh)
        self.program = meshes.map_step(self.step, shapes, self.mesh)
        target = jax.tree.map(
            lambda s, sharding: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=sharding), shapes, self.shardings
        )
        found = self.checkpoints.restore(target)
        if found is None:
            return self._fresh(), 0
        state, step = found
        if step > self.total:
            raise UserError(
                f"{self.workdir}: this run has made {step} steps and is now asked for {self.total};"
                " a run can be trained longer, not shorter"
            )
        return state, step

    def _fresh(self) -> TrainState:
        make = jax.jit(
            lambda: initial_state(self.config, self.model_with_softmax, self.step.optimizer),
            out_shardings=self.shardings,
        )
        state: TrainState = make()
        return state

    def _batches(self, state: TrainState, step: int) -> Iterator[tuple[Batch, int]]:
        """Batches on the devices, and their numbers of distinct words, from the state's position on."""
        train = self.config.train
        rows = meshes.local_rows(train.batch_size, self.mesh)
        batches = TrainingBatches(
            self.corpus.blocks("train"),
            self.distinct,
            vocabulary_size=self.corpus.vocabulary_size,
            rows=rows,
            total_rows=train.batch_size,
            position=meshes.to_host(state.position),
            step=step,
            unroll_steps=train.unroll_steps,
            devices=len(self.mesh.local_devices),
            negatives=train.negatives,
            data_seed=self.config.data.seed,
            draw_seed=train.seed,
        )
        on_devices = (
            (meshes.to_devices(Batch(**batch._asdict()), meshes.BATCH_SPECS, self.mesh), int(batch.count.sum()))
            for batch in batches
        )
        return prefetched(on_devices)

    def _loop(self, state: TrainState, step: int) -> tuple[TrainState, int]:
        """Trains from `step` to the end or to a signal; returns the state and its step."""
        interval = _Interval()
        pending: tuple[int, Metrics] | None = None
        batches = self._batches(state, step)
        with jax.transfer_guard("disallow"):
            while step < self.total and self.signal is None:
                waiting = time.perf_counter()
                batch, distinct = next(batches)
                interval.waited += time.perf_counter() - waiting
                interval.distinct += distinct
                state, metrics = self.program(state, batch, self.spellings)
                step += 1
                self.progress.step()
                if pending is not None:
                    self._receive(interval, *pending)  # one step late: the device has the next one already
                pending = step, metrics
                train, saving = self.config.train, self.config.checkpoint
                evaluating = bool(self.config.evaluation.every) and step % self.config.evaluation.every == 0
                reporting = step % train.log_every == 0 or step == self.total
                due = evaluating or step % saving.every == 0 or step == self.total
                if reporting or due:
                    norm = self._receive(interval, *pending)
                    pending = None
                    if reporting:
                        interval = self._report(interval, step, norm, metrics)
                if due and step < self.total:
                    began = time.perf_counter()
                    heldout = self._evaluate(state, step, f"step {step}").average if evaluating else None
                    self.checkpoints.save(step, state, heldout)
                    interval.idle += time.perf_counter() - began
            if pending is not None:
                self._receive(interval, *pending)
        return state, step

    def _receive(self, interval: _Interval, step: int, metrics: Metrics) -> float:
        """Takes in the figures of a step; returns the gradient norm."""
        losses, norm = jax.device_get((metrics.loss, metrics.gradient_norm))
        if not (np.isfinite(losses).all() and np.isfinite(norm)):
            self.checkpoints.wait()
            steps = self.checkpoints.steps()
            good = f"the checkpoint of step {steps[-1]} is good" if steps else "no checkpoint was written yet"
            last = self.log.records[-1]["step"] if self.log.records else 0
            raise UserError(
                f"{self.workdir}: the loss is not finite at step {step} (it was at step {last}): forward {losses[0]}, backward"
                f" {losses[1]}, gradient norm {norm}; {good}. Try a lower config.train.optimizer.learning_rate, more"
                " warmup_steps, or a lower clip_norm, in a folder of its own"
            )
        interval.losses.append(losses)
        return float(norm)

    def _report(self, interval: _Interval, step: int, norm: float, metrics: Metrics) -> _Interval:
        """Writes what the interval gave, and begins the next."""
        count, seconds = len(interval.losses), interval.seconds
        tokens = count * self.step_tokens
        losses = np.mean(interval.losses, axis=0)
        negatives = self.config.train.negatives
        scored = negatives + 1 if negatives else self.corpus.vocabulary_size
        work = tokens * flops_per_token(self.config.model, scored)
        work += interval.distinct * flops_per_word(self.config.model, self.windows)
        self.trained_before += seconds
        # the loss of the sampled softmax is no perplexity of the text: named so that it is not compared with held-out
        perplexity = "train/sampled_perplexity" if negatives else "train/perplexity"
        values = {
            "tokens": step * self.step_tokens,
            "train/loss/forward": float(losses[0]),
            "train/loss/backward": float(losses[1]),
            f"{perplexity}/forward": _exp(losses[0]),
            f"{perplexity}/backward": _exp(losses[1]),
            "train/gradient_norm": norm,
            "train/learning_rate": float(jax.device_get(metrics.learning_rate)),
            "train/tokens_per_second": tokens / seconds,
            "train/model_flops_per_second": 3 * work / seconds,  # backward: twice the forward pass
            "train/data_wait": interval.waited / seconds,
            "train/distinct_words": interval.distinct / tokens,
            "train/seconds": self.trained_before,
            "wall_seconds": self.wall_before + time.perf_counter() - self.launched,
        }
        self.log.write(step, values)
        self.progress.show(values, step, (self.total - step) * seconds / count)
        return _Interval()

    def _evaluate(self, state: TrainState, step: int, when: str) -> Perplexity:
        """Held-out perplexity, written and shown."""
        blocks = self.corpus.blocks("heldout")
        found = self.evaluator.perplexity(state.params, blocks, self.distinct, self.spellings)
        values = {f"heldout/perplexity/{name}": value for name, value in found.as_dict().items()}
        wall = self.wall_before + time.perf_counter() - self.launched
        self.log.write(step, {"tokens": step * self.step_tokens, **values, "wall_seconds": wall})
        self.progress.say(
            f"held-out perplexity {when}: forward {found.forward:,.1f} · backward {found.backward:,.1f} · average"
            f" {found.average:,.1f}"
        )
        return found

    def _finish(self, state: TrainState) -> dict[str, Any]:
        """Evaluates, saves, exports and reports."""
        after = self._evaluate(state, self.total, "after training")
        self.checkpoints.save(self.total, state, after.average)
        self.checkpoints.wait()
        before = next(r for r in self.log.records if r["step"] == 0 and "heldout/perplexity/average" in r)
        seconds = self.log.latest("train/seconds")
        first = next((r for r in self.log.records if "train/seconds" in r), None)
        dense = parameter_count(without_softmax(state.params))
        result = {
            "experiment": self.title,
            "heldout_perplexity": after.as_dict(),
            "heldout_perplexity_before": {
                name: before[f"heldout/perplexity/{name}"] for name in ("forward", "backward", "average")
            },
            "heldout_tokens": after.tokens,
            "heldout_unknown": after.unknown,
            "tokens_per_second": _speed(self.total * self.step_tokens, seconds, first),
            "steps": self.total,
            "tokens_seen": self.total * self.step_tokens,
            "parameters": dense,
            "softmax_parameters": parameter_count(state.params["softmax"]),
            "vocabulary_size": self.corpus.vocabulary_size,
            "wall_seconds": self.wall_before + time.perf_counter() - self.launched,
            "devices": f"{self.mesh.size} × {self.mesh.devices.flat[0].device_kind}",
        }
        history = {key: result[key] for key in ("experiment", "steps", "tokens_seen", "heldout_perplexity")}
        history |= {"corpus_fingerprint": self.corpus.fingerprint}
        export_bilm(self.workdir / "export", self.config.model, state.params, self.corpus.vocabulary(), history)
        draw_curve(self.workdir, self.log.records, self.title, bool(self.config.train.negatives))
        write_result(self.workdir, result)  # last: it says that the run is complete
        return result

    def _signals(self) -> Any:
        return _Signals(self._stop)

    def _stop(self, number: int) -> None:
        self.signal = number


def _speed(tokens: int, seconds: float, first: dict[str, Any] | None) -> float:
    """Tokens a second over the run, without its first report, which has the compilation in it."""
    if first is None or first["tokens"] >= tokens:
        return tokens / seconds if seconds else 0.0
    return (tokens - first["tokens"]) / (seconds - first["train/seconds"])


def _exp(loss: float) -> float:
    return math.exp(loss) if loss < 700 else math.inf


class _Signals:
    """SIGTERM and SIGINT end the loop after the step in progress; a second SIGINT ends it at once."""

    def __init__(self, stop: Callable[[int], None]):
        self._stop = stop

    def __enter__(self) -> None:
        self._old = {number: signal.signal(number, self._receive) for number in (signal.SIGTERM, signal.SIGINT)}

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self._stop(number)
        signal.signal(number, self._old[number])

    def __exit__(self, *_: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)


def _use_compilation_cache(workdir: Path) -> None:
    """Keeps compiled programs in the run's folder, unless the user has a place for them."""
    if jax.config.jax_compilation_cache_dir is None:
        jax.config.update("jax_compilation_cache_dir", str((workdir / "compilation_cache").absolute()))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
