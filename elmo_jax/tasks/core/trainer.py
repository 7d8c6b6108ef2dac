"""Trains a task with one seed, from its first step or its newest checkpoint on, and selects the best epoch.

The best evaluation, the patience and the plateau schedule are derived from the recorded dev metrics (see `history`),
the order of the examples depends on the seed and the epoch alone, and a training that is stopped between two
evaluations keeps what it has measured since the last one (see `sums`). So a training that was killed and resumed has
the same result as an uninterrupted one.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Any, Generic

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath

from elmo_jax.checkpoints.manager import Checkpoints
from elmo_jax.errors import UserError
from elmo_jax.runs.recorder import Recorder
from elmo_jax.runs.signals import Stopped, StopSignals
from elmo_jax.tasks.core.config import TaskConfig
from elmo_jax.tasks.core.data import TaskData
from elmo_jax.tasks.core.evaluations import History
from elmo_jax.tasks.core.interval import Sums
from elmo_jax.tasks.core.optimizer import learning_rate
from elmo_jax.tasks.core.program import TaskProgram, TaskState
from elmo_jax.tasks.core.task import Example, Labels, Prediction, Task
from elmo_jax.types import Tree

_STOPPED = "stopped.json"  # in a seed's folder; see `Sums`
KEPT = 2  # the number of newest checkpoints that are kept besides the best one


@dataclasses.dataclass(frozen=True)
class Fitting(Generic[Example, Prediction]):
    """All that the training of a task needs besides its seed.

    Attributes:
      task: the task.
      config: the experiment.
      labels: the result of `Task.labels`.
      program: the training step and the evaluation, compiled once for all seeds.
      train: the training examples.
      dev: the examples that select the best epoch.
      test: the test examples; None if there are none.
      constants: the arrays that are not trained; see `TaskProgram.constants`.
      words: the initial word vectors if they are trained, else None.
    """

    task: Task[Example, Prediction]
    config: TaskConfig
    labels: Labels
    program: TaskProgram
    train: TaskData[Example]
    dev: TaskData[Example]
    test: TaskData[Example] | None
    constants: Tree
    words: np.ndarray | None

    def predict(self, params: Tree, data: TaskData[Example]) -> tuple[list[Prediction], dict[str, list[np.ndarray]]]:
        """Returns the predictions of all examples, in their order, and their arrays if the task averages them."""
        places: dict[int, Prediction] = {}
        arrays: dict[int, dict[str, np.ndarray]] = {}
        for batch, host in data.iterate(data.epoch(None)):
            _, found = self.program.evaluate(params, self.program.place(host), self.constants)
            found = jax.device_get(found)
            chosen = [data.examples[number] for number in batch.examples]
            decoded = self.task.decode(found, chosen, self.labels, self.config)
            for place, number in enumerate(batch.examples):
                places[number] = decoded[place]
                if self.task.averages:
                    arrays[number] = {name: array[place] for name, array in found.items() if array.ndim}
        order = range(len(data.examples))
        names = arrays[0] if arrays else {}
        return [places[number] for number in order], {name: [arrays[n][name] for n in order] for name in names}


class Training(Generic[Example, Prediction]):
    """One launch of the training with one seed."""

    def __init__(
        self, fitting: Fitting[Example, Prediction], seed: int, workdir: epath.Path, title: str, signals: StopSignals
    ) -> None:
        """Opens the folder of the seed.

        Args:
          fitting: what is trained.
          seed: the random seed for the initial parameters, dropout and the order of the examples.
          workdir: the seed's folder.
          title: the name of the training in its progress.
          signals: the signals that ask to stop.
        """
        self._fitting, self._seed, self._workdir, self._title = fitting, seed, workdir, title
        self._signals, self._config = signals, fitting.config.train
        self._checkpoints = Checkpoints(workdir / "checkpoints", keep=KEPT)
        self._steps = self._config.epochs * len(fitting.train.epoch(None))  # the updates of all epochs
        self._sums = Sums()  # of the steps since the last evaluation

    def run(self) -> TaskState | Stopped:
        """Trains to the end and returns the state of the best evaluation; or trains until a signal arrives."""
        launched = time.perf_counter()
        try:
            state = self._first_state()
            found = self._checkpoints.restore(self._abstract(state))
            state, step = found or (state, 0)
            self._sums = Sums.read(self._workdir / _STOPPED, step)
            done = int(state.epoch)
            recorder = Recorder(self._workdir, step, launched, total=self._config.epochs, done=done, unit="epoch")
            try:
                state = self._train(state, recorder)
                if self._signals.received is not None and not self._is_over(state, recorder):
                    step = int(state.step)
                    if self._sums.losses:
                        self._sums.write(self._workdir / _STOPPED, step)
                    self._checkpoints.save(step, state)
                    self._checkpoints.wait()
                    return Stopped(self._signals.received, step)
                return self._best(state, recorder)
            finally:
                recorder.close()
        finally:
            self._checkpoints.close()

    def _first_state(self) -> TaskState:
        data, program = self._fitting.train, self._fitting.program
        batch = data.epoch(None)[0]
        return program.first_state(self._seed, data.arrays(batch), self._fitting.words)

    @staticmethod
    def _abstract(state: TaskState) -> Any:
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), state)

    def _history(self, recorder: Recorder) -> History:
        return History.of(recorder.log.records, f"dev/{self._fitting.task.metric}")

    def _is_over(self, state: TaskState, recorder: Recorder) -> bool:
        return int(state.epoch) >= self._config.epochs or self._history(recorder).is_enough(self._config)

    def _train(self, state: TaskState, recorder: Recorder) -> TaskState:
        """Trains epoch after epoch to the end or until a signal arrives."""
        if not recorder.log.records:
            state = self._evaluate(state, recorder)
        while not self._is_over(state, recorder) and self._signals.received is None:
            state = self._epoch(state, recorder)
        return state

    def _epoch(self, state: TaskState, recorder: Recorder) -> TaskState:
        """Trains the rest of an epoch; evaluates at its end or, if `evaluate_every` is set, every so many steps.

        The last step of the training is evaluated in any case, so that no update is made in vain.
        """
        epoch, every = int(state.epoch), self._config.evaluate_every
        data, program = self._fitting.train, self._fitting.program
        batches = data.epoch(np.random.default_rng([self._seed, epoch]))[int(state.batch) :]
        history = self._history(recorder)
        seed = jnp.asarray(self._seed, jnp.uint32)
        step, began = int(state.step), time.perf_counter()
        for _, host in data.iterate(batches, (self._seed, epoch)):
            rate = self._rate(step, history)
            state, loss = program.train_step(state, program.place(host), self._fitting.constants, rate, seed)
            step += 1
            self._sums.losses.append(loss)
            self._sums.words += sum(int(text["mask"].sum()) for text in host.texts)
            if every and step % every == 0:
                self._sums.seconds += time.perf_counter() - began
                state = self._evaluate(state, recorder)
                history, began = self._history(recorder), time.perf_counter()
                if history.is_enough(self._config):
                    return state
            # A signal is heeded after the evaluation of the step, which would otherwise be missing after the resume.
            if self._signals.received is not None:
                self._sums.seconds += time.perf_counter() - began
                return state
        jax.block_until_ready(state.step)
        self._sums.seconds += time.perf_counter() - began
        recorder.progress.advance()
        state = dataclasses.replace(
            state, epoch=state.epoch + 1, batch=jax.device_put(jnp.zeros((), jnp.int32), state.batch.sharding)
        )
        due = step % every != 0 and epoch + 1 == self._config.epochs if every else True
        return self._evaluate(state, recorder) if due else state

    def _rate(self, step: int, history: History) -> float:
        return learning_rate(self._config.optimizer, step, self._steps, history.metrics)

    def _evaluate(self, state: TaskState, recorder: Recorder) -> TaskState:
        """Evaluates on the dev examples, records and shows the metrics, and saves a checkpoint."""
        fitting = self._fitting
        predictions, _ = fitting.predict(fitting.program.evaluated(state), fitting.dev)
        metrics = fitting.task.score(fitting.dev.examples, predictions)
        step, epoch = int(state.step), int(state.epoch)
        values: dict[str, Any] = {f"dev/{name}": value for name, value in metrics.items()}
        sums, self._sums = self._sums, Sums()
        if sums.losses:
            loss = sums.loss
            if not np.isfinite(loss):
                raise UserError(
                    f"{self._workdir}: the loss became infinite or NaN before step {step}; try a lower"
                    " config.train.optimizer.learning_rate or a lower clip_norm, in another --workdir"
                )
            speed = sums.words / max(sums.seconds, 1e-9)
            values |= {"train/loss": loss, "train/words_per_second": speed, "epoch": epoch}
            values["train/learning_rate"] = self._rate(step - 1, self._history(recorder))
            values["train/seconds"] = recorder.log.latest("train/seconds") + sums.seconds
            values["train/words"] = recorder.log.latest("train/words") + sums.words
        values |= elmo_metrics(fitting.program.evaluated(state))
        recorder.write(step, values)
        first = fitting.task.metric
        shown = f"dev {first} {metrics[first]:.2f}"
        if sums.losses:
            shown = f"{values['train/words_per_second']:,.0f} words/s · loss {values['train/loss']:.4f} · {shown}"
            left = (self._config.epochs - epoch) * values["train/seconds"] / max(epoch, 1)
            recorder.progress.show(f"{self._title} · {shown}", epoch, left)
        recorder.log.flush()
        is_best = self._history(recorder).best == step  # of equally good evaluations, the first one
        self._checkpoints.save(step, state, -metrics[first] if is_best else None)
        return state

    def _best(self, state: TaskState, recorder: Recorder) -> TaskState:
        """Returns the state of the best evaluation."""
        self._checkpoints.wait()
        best = self._history(recorder).best
        if best is None or best == int(state.step):
            return state
        found: TaskState = self._checkpoints.restore_step(best, self._abstract(state))
        return found


def elmo_metrics(params: Tree) -> dict[str, float]:
    """Returns the softmaxed weights and the scale of each mix as metrics, such as `elmo/input/weight_0`."""
    found: dict[str, float] = {}
    for name, values in elmo_mixes(params).items():
        found[f"elmo/{name}/scale"] = values["scale"]
        found |= {f"elmo/{name}/weight_{j}": weight for j, weight in enumerate(values["weights"])}
    return found


def elmo_mixes(params: Tree) -> dict[str, dict[str, Any]]:
    """Returns the softmaxed `weights` and the `scale` of the mixes `input` and `output`, as far as they exist."""
    found = {}
    for name in ("input", "output"):
        mix = params.get("inputs", {}).get(f"{name}_mix", {}).get("mix")
        if mix is not None:
            weights = np.asarray(mix.get("weights", np.zeros(0)), np.float64)
            shares = np.exp(weights - weights.max(initial=0)) if len(weights) else weights
            found[name] = {"weights": (shares / max(shares.sum(), 1e-300)).tolist(), "scale": float(mix["gamma"])}
    return found
