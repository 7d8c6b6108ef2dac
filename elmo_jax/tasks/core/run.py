"""Runs a task: reads its examples and its biLM, trains once with each seed, and summarises the results."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from etils import epath

from elmo_jax import files
from elmo_jax.distributed.mesh import make_mesh
from elmo_jax.embedding.bilm import EmbeddingBiLM, frozen_tree
from elmo_jax.errors import UserError
from elmo_jax.model.bilm import parameter_count
from elmo_jax.runs.folder import check_usable, open_workdir
from elmo_jax.runs.lock import locked
from elmo_jax.runs.metrics import read_records
from elmo_jax.runs.result import Finished, best_effort, read_result, write_result
from elmo_jax.runs.signals import Stopped, StopSignals
from elmo_jax.tasks.core.config import CHANGEABLE, TaskConfig
from elmo_jax.tasks.core.data import TaskData
from elmo_jax.tasks.core.inputs import TextEncoder
from elmo_jax.tasks.core.program import TaskState
from elmo_jax.tasks.core.run_files import read_arrays
from elmo_jax.tasks.core.setup import (
    SPLITS,
    layers_of,
    make_program,
    open_model,
    save_inputs,
    short_enough,
    training_share,
    words_of,
)
from elmo_jax.tasks.core.task import Labels, Task
from elmo_jax.tasks.core.task_report import draw, statistics
from elmo_jax.tasks.core.trainer import Fitting, Training, elmo_mixes
from elmo_jax.tasks.core.vocabulary import Vocabulary, WordTable
from elmo_jax.tasks.formats.sources import read_part
from elmo_jax.tasks.registry import task_of
from elmo_jax.training.launch import use_compilation_cache


def train_task(
    config: TaskConfig, workdir: epath.Path, title: str, devices: Sequence[jax.Device] | None = None
) -> Finished | Stopped:
    """Trains a task with every seed of its config, to the end or until SIGTERM or SIGINT.

    Args:
      config: the experiment, of the task's own class.
      workdir: the run's folder; a run that was stopped or killed in it is resumed.
      title: the title of the run's plot.
      devices: the devices to use; all local devices unless given.

    Returns:
      The results of all seeds; or which signal stopped the training, and at which step.

    Raises:
      UserError: a setting or a file is wrong, or the loss is not finite.
    """
    workdir = files.place(workdir)
    if files.in_bucket(workdir):
        raise UserError(f"{workdir}: a task is trained in a folder of this machine")
    task = task_of(config.task)
    splits = {name: read_part(task, config, name) for name in SPLITS}
    for name in ("train", "dev"):
        if not splits[name]:
            raise UserError(f"config.data.{name}: no examples; give a file")
    bilm = open_model(config)
    words, table = words_of(task, config, splits)
    fingerprints = {
        "bilm": bilm.fingerprint if bilm else None,
        "data": {name: _digest(task, examples) for name, examples in splits.items()},
        "word_vectors": files.digest_of([words.as_dict(), table.fingerprint]),
    }
    check_usable(workdir)
    with locked(workdir):
        open_workdir(workdir, config, {"fingerprint": fingerprints}, CHANGEABLE)
        use_compilation_cache(workdir)
        mesh = make_mesh(list(devices or jax.local_devices()))
        run = TaskRun(task, config, bilm, splits, (words, table), workdir, mesh)
        already = True
        with StopSignals() as signals:
            for seed in config.seeds:
                ended = run.train(seed, signals)
                if isinstance(ended, Stopped):
                    return ended
                already = already and ended is None
        return Finished(run.finish(title, fingerprints), already)


def _digest(task: Task[Any, Any], examples: Sequence[Any]) -> str:
    """Returns a digest of the examples, which does not depend on the paths of their files."""
    digest = hashlib.sha256()
    for example in examples:
        digest.update(repr(example).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


class TaskRun:
    """The examples of a run, its compiled programs, and the results of its seeds."""

    def __init__(
        self,
        task: Task[Any, Any],
        config: TaskConfig,
        bilm: EmbeddingBiLM | None,
        splits: dict[str, list[Any]],
        words: tuple[Vocabulary, WordTable],
        workdir: epath.Path,
        mesh: jax.sharding.Mesh,
    ) -> None:
        """Prepares the inputs of all examples.

        Args:
          task: the task.
          config: the experiment.
          bilm: the frozen biLM; None if the experiment has none.
          splits: the examples of `train`, `dev` and `test`.
          words: the vocabulary and the initial word vectors.
          workdir: the run's folder.
          mesh: the devices.
        """
        self._task, self._config, self._workdir = task, config, workdir
        chosen = training_share(splits["train"], config)
        self._labels: Labels = task.labels(chosen, config)
        self._vocabulary, self._table = words
        fitting = short_enough(task, chosen, config)
        self._layers = layers_of(task, config, bilm, {**splits, "train": fitting}, workdir)
        self._program = make_program(task, config, self._labels, self._vocabulary, self._table, bilm, mesh)
        encoder = TextEncoder(config, self._vocabulary, bilm, self._layers)
        devices = mesh.size if task.rows_are_examples else 1
        settings = (self._labels, encoder, config.train.batch_size, devices, config.train.shapes)
        train = TaskData(task, fitting, *settings, max_sentences=config.train.max_sentences)
        known = train.groups.shapes
        self._data = {"train": train, **{n: TaskData(task, splits[n], *settings, known) for n in ("dev", "test")}}
        computed = bilm is not None and self._layers is None
        self._tree = frozen_tree(bilm) if computed and bilm is not None else None
        save_inputs(workdir, self._labels, self._vocabulary, self._table, known)

    def train(self, seed: int, signals: StopSignals) -> TaskState | Stopped | None:
        """Trains with one seed and writes its result; returns None if that was done before."""
        folder = self._workdir / f"seed_{seed}"
        if read_result(folder) is not None:
            return None
        folder.mkdir(parents=True, exist_ok=True)
        fitting = self._fitting(seed)
        ended = Training(fitting, seed, folder, f"seed {seed}", signals).run()
        if isinstance(ended, Stopped):
            return ended
        write_result(folder, self._result(fitting, seed, folder, ended))
        return ended

    def _fitting(self, seed: int) -> Fitting[Any, Any]:
        trainable = self._config.word_vectors.trainable
        words = self._table.first_vectors(seed) if self._table.vectors.shape[1] else None
        constants = self._program.constants(None if trainable else words, self._tree)
        test = self._data["test"] if self._data["test"].examples else None
        return Fitting(
            self._task, self._config, self._labels, self._program,
            self._data["train"], self._data["dev"], test, constants, words if trainable else None,
        )  # fmt: skip

    def _result(self, fitting: Fitting[Any, Any], seed: int, folder: epath.Path, state: TaskState) -> dict[str, Any]:
        """Returns the results of a finished training, and writes its predictions."""
        params = fitting.program.evaluated(state)
        steps_per_epoch = len(fitting.train.epoch(None))

        def epoch_of(step: int) -> int:
            """Returns the epoch, the first one being 1, that a step is in; 0 before the first step."""
            return -(-step // steps_per_epoch)

        found: dict[str, Any] = {"seed": seed, "step": int(state.step), "epoch": epoch_of(int(state.step))}
        for name, data in (("dev", fitting.dev), ("test", fitting.test)):
            if data is not None:
                predictions, arrays = fitting.predict(params, data)
                found[name] = self._task.score(data.examples, predictions)
                files.write_text(folder / f"{name}.predictions", self._task.write(data.examples, predictions))
                if self._task.averages:
                    np.savez_compressed(folder / f"{name}.npz", **_padded(arrays))
        records = read_records(folder / "metrics.jsonl")
        last = [record for record in records if "train/seconds" in record]
        words = {n: v for n, v in state.params.get("inputs", {}).items() if n == "words"}
        return {
            **found,
            "epochs": epoch_of(records[-1]["step"]),
            "words_per_second": last[-1]["train/words"] / last[-1]["train/seconds"] if last else 0.0,
            "seconds": records[-1]["wall_seconds"],
            "parameters": parameter_count(state.params) - parameter_count(words),
            "word_vector_parameters": parameter_count(words),
            "elmo": elmo_mixes(params),
        }

    def finish(self, title: str, fingerprints: dict[str, Any]) -> dict[str, Any]:
        """Writes the results of all seeds and the plot, and returns the results."""
        seeds = [read_result(self._workdir / f"seed_{seed}") or {} for seed in self._config.seeds]
        result: dict[str, Any] = {
            "task": self._task.name,
            "metric": self._task.metric,
            "steps": sum(seed["step"] for seed in seeds),
            **{
                name: statistics([s[name][self._task.metric] for s in seeds])
                for name in ("dev", "test")
                if name in seeds[0]
            },
            "seeds": seeds,
            "examples": {name: len(data.examples) for name, data in self._data.items()},
            "parameters": seeds[0]["parameters"],
            "words_found": self._table.found,
            "elmo": dataclasses.asdict(self._config.elmo) if self._config.bilm else None,
            **fingerprints,
        }
        if self._task.averages and len(seeds) > 1:
            result["ensemble"] = self._ensemble()
        write_result(self._workdir, result)
        with best_effort(self._workdir / "curve.png"):
            draw(self._workdir, title, self._task, self._config, result)
        return result

    def _ensemble(self) -> dict[str, Any]:
        """Returns the metrics of the averaged predictions of all seeds."""
        found = {}
        for name in ("dev", "test"):
            data = self._data[name]
            if data.examples:
                loaded = [_probabilities(self._workdir / f"seed_{seed}", name) for seed in self._config.seeds]
                mean = {key: np.mean([arrays[key] for arrays in loaded], axis=0) for key in loaded[0]}
                predictions = self._task.decode(mean, data.examples, self._labels, self._config)
                found[name] = self._task.score(data.examples, predictions)
        return found


def _probabilities(folder: epath.Path, part: str) -> dict[str, np.ndarray]:
    """Returns the arrays of a seed's predictions of `dev` or `test`."""
    path = folder / f"{part}.npz"
    return read_arrays(path, f"delete {folder / 'result.json'} and run the same command again, which writes both files")


def _padded(arrays: dict[str, list[np.ndarray]]) -> dict[str, Any]:
    """Stacks the arrays of all examples by name; the shorter ones are padded with zeros at their ends."""
    found: dict[str, Any] = {}
    for name, values in arrays.items():
        shapes = [value.shape for value in values]
        found[name] = np.zeros((len(values), *(max(sizes) for sizes in zip(*shapes, strict=True))), np.float32)
        for row, value in enumerate(values):
            found[name][(row, *map(slice, value.shape))] = value
    return found
