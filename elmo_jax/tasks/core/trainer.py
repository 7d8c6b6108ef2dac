"""Trains a task with each seed, starting from the first step or the newest checkpoint, and selects the best epoch.

On CPUs, a training that was killed and resumed has the same result as an uninterrupted one: all decisions follow from
the recorded dev metrics, the order of the examples from seed and epoch, and the state holds what was measured since the
last evaluation. On GPUs, scatter-adds are not deterministic without `--xla_gpu_deterministic_ops`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from etils import epath

from elmo_jax import files
from elmo_jax.errors import UserError
from elmo_jax.interrupts import Stopped, StopSignals
from elmo_jax.runs.result import read_result
from elmo_jax.tasks.core.data import Ladder, TaskData, choose_shapes, predict, size_of, with_overflow
from elmo_jax.tasks.core.elmo_vectors import LayerCache, make
from elmo_jax.tasks.core.inputs import Rows, TextEncoder, elmo_mixes
from elmo_jax.tasks.core.program import TaskProgram, TaskState, learning_rate, no_interval
from elmo_jax.tasks.core.setup import ADVICE, SPLITS, TaskSetup, rows_of, shapes_in
from elmo_jax.tasks.core.task import Shape
from elmo_jax.training.run_context import RunContext, is_out_of_patience

KEPT = 2  # the number of newest checkpoints that are kept in addition to the best one


def dev_metrics(records: Sequence[dict[str, Any]], name: str) -> dict[int, float]:
    """Returns the metric `name` of the evaluations after the first update (AllenNLP) by their steps, oldest first."""
    return {record["step"]: record[name] for record in records if name in record and record["step"] > 0}


def best_step(metrics: dict[int, float]) -> int | None:
    """Returns the step of the best evaluation, the first of equally good ones; None if there is none yet."""
    return max(metrics, key=metrics.__getitem__, default=None)


class Trainer:
    """The examples of a run in batches (`data`), its compiled `program`, and the loop over epochs and steps."""

    def __init__(self, setup: TaskSetup[Any, Any], splits: dict[str, list[Any]], workdir: epath.Path) -> None:
        """Compiles the programs, unless all seeds are finished, and computes the frozen layers that are not stored."""
        self.setup, self.program, self._workdir = setup, TaskProgram(setup), workdir
        self.layers_are_given = setup.bilm is not None and setup.config.elmo.precompute  # read from files
        self._layers: LayerCache | None = None
        shapes = self._shapes(splits)
        setup.save(workdir, shapes)
        encoder = TextEncoder(setup, self._layers_of if self.layers_are_given else None)
        self.data = {
            name: TaskData(setup, encoder, examples, shapes, trains=name == "train")
            for name, examples in splits.items()
            if examples
        }
        seeds = setup.config.seeds
        with contextlib.ExitStack() as stack:
            if not all(read_result(workdir / f"seed_{seed}") for seed in seeds):
                train, *others = (data.batch_of_each_shape() for data in self.data.values())
                frozen = self.program.frozen(seeds[0], self.layers_are_given)
                stack.enter_context(self.program.compiling(train, sum(others, []), frozen))
            if setup.bilm is not None and self.layers_are_given:
                rows = (row for name in SPLITS for row in rows_of(setup.task, splits[name]))
                folder = files.local(setup.config.elmo.cache or workdir / "elmo")
                self._layers = LayerCache(make(folder, setup.bilm, rows, setup.config.elmo.dtype).files)

    def _layers_of(self, rows: Rows) -> list[Any]:
        """Returns the frozen layers of each row; none of rows that only fill a batch, nor for compilation."""
        return [self._layers[words] if words and self._layers else () for words in rows]

    def _shapes(self, splits: dict[str, list[Any]]) -> tuple[Shape, ...]:
        """Returns the shapes of the batches, which stay those of the first launch, also on other devices."""
        task, train, file = self.setup.task, self.setup.config.train, self._workdir / "inputs.json"
        if file.exists():
            return shapes_in(files.read_checksummed_json(file, ADVICE))
        ladder = Ladder.of(self.setup.mesh)
        sizes = [size_of(task, example, train.max_sentences) for example in splits["train"]]
        shapes = choose_shapes(sizes, train.num_buckets or ladder.buckets, ladder)
        return with_overflow(shapes, [task.size(example) for name in SPLITS[1:] for example in splits[name]])

    def train(self, seed: int, signals: StopSignals) -> TaskState | Stopped:
        """Trains with a seed and returns the state of the best evaluation; or trains until a signal arrives."""
        self._config, self._signals, self._seed = self.setup.config.train, signals, seed
        self._frozen = self.program.frozen(seed, self.layers_are_given)
        batches = self.data["train"].epoch(None)
        self._steps = self._config.epochs * len(batches)  # the updates of all epochs
        with RunContext(self._workdir / f"seed_{seed}", KEPT) as self._context:
            batch = self.data["train"].arrays(batches[0])
            restored = self._context.checkpoints.restore(self.program.abstract_state(batch))
            state, step = restored or (self.program.first_state(seed, batch), 0)
            self._context.open(step, total=self._config.epochs, done=int(state.epoch), unit="epoch")
            if not self._context.log.records:
                state = self._evaluate(state, 0.0)
            while not self._is_over(state) and signals.received is None:
                state = self._epoch(state)
            if signals.received is not None and not self._is_over(state):
                return self._context.save_and_stop(int(state.step), state, signals.received)
            self._context.checkpoints.wait()  # the last evaluation has saved this step
            if signals.received is not None:
                return Stopped(signal.Signals(signals.received), int(state.step))
            best = best_step(self._evaluations())
            return state if best in (None, int(state.step)) else self._context.checkpoints.restore_step(best, state)

    def _evaluations(self) -> dict[int, float]:
        return dev_metrics(self._context.log.records, f"dev/{self.setup.task.metric}")

    def _is_over(self, state: TaskState) -> bool:
        losses = [-metric for metric in self._evaluations().values()]
        return int(state.epoch) >= self._config.epochs or is_out_of_patience(losses, self._config.patience)

    def _epoch(self, state: TaskState) -> TaskState:
        """Trains the rest of an epoch; evaluates at its end or, if `evaluate_every` is set, after that many steps."""
        epoch, every = int(state.epoch), self._config.evaluate_every
        data, program = self.data["train"], self.program
        batches = data.epoch(np.random.default_rng([self._seed, epoch]))[int(state.batch) :]
        evaluations = self._evaluations()
        seed, frozen = np.uint32(self._seed), self._frozen
        step, began, before = int(state.step), time.perf_counter(), 0.0
        for _, host in data.iterate(batches, (self._seed, epoch)):
            rate = np.float32(self._rate(step, evaluations))
            state, loss = program.train_step(state, program.device_put(host), frozen, rate, seed)
            self._check_loss(float(before), step)  # of the step before, while this one runs
            before, step = loss, step + 1
            if every and step % every == 0:
                state = self._evaluate(state, began)
                evaluations, began = self._evaluations(), time.perf_counter()
                if self._is_over(state):
                    return state
            # A signal takes effect after the evaluation of the step, which would otherwise be missing after the resume.
            if self._signals.received is not None:
                return self._timed(state, began)
        state = self._with(self._timed(state, began), epoch=np.int32(epoch + 1), batch=np.int32(0))
        self._context.progress.advance()
        due = not every or (step % every != 0 and epoch + 1 == self._config.epochs)  # so that no update is wasted
        return self._evaluate(state) if due else state

    def _check_loss(self, loss: float, step: int) -> None:
        if not np.isfinite(loss):
            problem = f"seed {self._seed}: the loss became infinite or NaN before step {step}"
            remedy = "try a lower config.train.optimizer.learning_rate or a lower clip_norm, in another --workdir"
            raise UserError(f"{self._workdir}: {problem}; {remedy}")

    def _timed(self, state: TaskState, began: float) -> TaskState:
        jax.block_until_ready(state.step)
        seconds = np.float32(float(state.interval["seconds"]) + time.perf_counter() - began)
        return self._with(state, interval={**state.interval, "seconds": seconds})

    def _with(self, state: TaskState, **changes: Any) -> TaskState:
        """Returns the state with other values from the host, on all devices; no program is compiled for them."""
        return dataclasses.replace(state, **self.program.replicated(changes))

    def _rate(self, step: int, metrics: dict[int, float]) -> float:
        return learning_rate(self._config.optimizer, step, self._steps, list(metrics.values()))

    def _evaluate(self, state: TaskState, began: float | None = None) -> TaskState:
        """Evaluates on the dev examples, records and shows the metrics, and saves a checkpoint."""
        if began is not None and int(state.interval["steps"]):  # the seconds since then are missing in the interval
            state = self._timed(state, began)
        params, dev = self.program.evaluated(state), self.data["dev"]
        predictions = predict(self.setup, self.program, [(params, self._frozen)], dev)
        metrics = self.setup.task.score(dev.examples, predictions)
        step, epoch = int(state.step), int(state.epoch)
        values = {**{f"dev/{name}": value for name, value in metrics.items()}, **self._measured(state)}
        for position, mix in elmo_mixes(params, self.setup.config).items():
            values[f"elmo/{position}/scale"] = mix["scale"]
            values |= {f"elmo/{position}/weight_{j}": weight for j, weight in enumerate(mix["weights"])}
        self._context.write(step, values)
        first = self.setup.task.metric
        shown = f"dev {first} {metrics[first]:.2f}"
        if "train/loss" in values:
            shown = f"{values['train/words_per_second']:,.0f} words/s · loss {values['train/loss']:.4f} · {shown}"
            shown += self._context.last_save()
            left = (self._config.epochs - epoch) * values["train/seconds"] / max(epoch, 1)
            self._context.progress.show(f"seed {self._seed} · {shown}", epoch, left)
        self._context.log.flush()
        state = self._with(state, interval=no_interval())
        is_best = best_step(self._evaluations()) == step  # of equally good evaluations, the first one
        self._context.checkpoints.save(step, state, -metrics[first] if is_best else None)
        return state

    def _measured(self, state: TaskState) -> dict[str, Any]:
        interval, step = jax.device_get(state.interval), int(state.step)
        if not interval["steps"]:
            return {}
        loss, words = float(interval["loss"] / interval["steps"]), int(interval["words"])
        seconds = float(interval["seconds"])
        self._check_loss(loss, step)
        return {
            "train/loss": loss,
            "train/words_per_second": words / max(seconds, 1e-9),
            "epoch": int(state.epoch),
            "train/learning_rate": self._rate(step - 1, self._evaluations()),
            "train/seconds": self._context.log.latest("train/seconds") + seconds,
            "train/words": self._context.log.latest("train/words") + words,
        }
