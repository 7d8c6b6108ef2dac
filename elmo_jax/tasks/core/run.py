"""Runs a task: reads its examples and its biLM, trains once with each seed, and summarizes the results."""

import contextlib
import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Any

import jax
from etils import epath

from elmo_jax import files
from elmo_jax.distributed.mesh import make_mesh
from elmo_jax.errors import UserError
from elmo_jax.interrupts import Stopped, StopSignals
from elmo_jax.model.bilm import parameter_count
from elmo_jax.runs.folder import check_usable, open_workdir
from elmo_jax.runs.lock import locked
from elmo_jax.runs.metrics import read_records
from elmo_jax.runs.result import Finished, best_effort, read_result, write_result
from elmo_jax.tasks.core.batches import Ladder, choose_shapes, with_overflow
from elmo_jax.tasks.core.config import CHANGEABLE, TaskConfig
from elmo_jax.tasks.core.data import TaskData, predict, size_of
from elmo_jax.tasks.core.elmo_vectors import StoredLayers
from elmo_jax.tasks.core.inputs import Rows, TextEncoder, elmo_mixes
from elmo_jax.tasks.core.program import TaskProgram, TaskState
from elmo_jax.tasks.core.setup import (
    ADVICE,
    SPLITS,
    TaskSetup,
    check_labels,
    layers_of,
    open_model,
    report_case,
    shapes_in,
    short_enough,
    training_share,
    words_of,
)
from elmo_jax.tasks.core.task import Shape, Task
from elmo_jax.tasks.core.task_report import draw, statistics
from elmo_jax.tasks.core.trainer import Trainer
from elmo_jax.tasks.formats.sources import read_part
from elmo_jax.tasks.registry import task_of


def train_task(
    config: TaskConfig, workdir: epath.Path, title: str, devices: Sequence[jax.Device] | None = None
) -> Finished | Stopped:
    """Trains a task with every seed of its config, to the end or until SIGTERM or SIGINT.

    A run that was stopped or killed in `workdir` is resumed. Without `devices`, all local ones are used.

    Returns:
      The results of all seeds; or which signal stopped the training, and at which step.

    Raises:
      UserError: a setting or a file is wrong, or the loss is not finite.
    """
    workdir = files.parse_path(workdir)
    if files.in_bucket(workdir):
        raise UserError(f"{workdir}: a task is trained in a folder of this machine")
    task = task_of(config.task)
    bilm = open_model(config)
    if not config.data.language:
        language = bilm.language if bilm else "en"
        config = dataclasses.replace(config, data=dataclasses.replace(config.data, language=language))
    splits = {name: read_part(task, config, name) for name in SPLITS}
    for name in ("train", "dev"):
        if not splits[name]:
            raise UserError(f"config.data.{name}: no examples; give a file")
    chosen = training_share(splits["train"], config)
    labels = task.labels(chosen, config)
    report_case(task, chosen, labels)
    for name in ("dev", "test"):
        check_labels(task, splits[name], labels, f"config.data.{name}", refuse=len(chosen) == len(splits["train"]))
    words, table = words_of(task, config, splits)
    fingerprints = {
        "bilm": bilm.fingerprint if bilm else None,
        "data": {name: _digest(task, examples) for name, examples in splits.items()},
        "word_vectors": files.digest_of([words.as_dict(), table.fingerprint]),
    }
    check_usable(workdir)
    with locked(workdir):
        open_workdir(workdir, config, {"fingerprint": fingerprints}, CHANGEABLE)
        mesh = make_mesh(list(devices or jax.local_devices()))
        setup = TaskSetup(task, config, labels, words, table, bilm, mesh)
        run = TaskRun(setup, {**splits, "train": short_enough(task, chosen, config)}, workdir)
        already = True
        for seed in config.seeds:
            ended = run.train(seed)
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

    def __init__(self, setup: TaskSetup[Any, Any], splits: dict[str, list[Any]], workdir: epath.Path) -> None:
        self._setup, self._workdir, self._program = setup, workdir, TaskProgram(setup)
        self._stored = setup.bilm is not None and setup.config.elmo.vectors == "cached"
        shapes = self._shapes(splits)
        setup.save(workdir, shapes)
        self._layers: StoredLayers | None = None
        encoder = TextEncoder(setup, self._layers_of if self._stored else None)
        self._data = {
            name: TaskData(setup, encoder, examples, shapes, trains=name == "train")
            for name, examples in splits.items()
            if examples
        }
        with self._compiling():
            if self._stored:
                self._layers = layers_of(setup, splits, workdir)

    def _layers_of(self, rows: Rows) -> list[Any]:
        """Returns the frozen layers of each row; none of rows that only fill a batch."""
        assert self._layers is not None
        return [self._layers[words] if words else () for words in rows]

    def _shapes(self, splits: dict[str, list[Any]]) -> tuple[Shape, ...]:
        """Returns the shapes of the batches, which stay those of the first launch, also on other devices."""
        task, train, file = self._setup.task, self._setup.config.train, self._workdir / "inputs.json"
        if file.exists():
            return shapes_in(files.read_checksummed_json(file, ADVICE))
        ladder = Ladder.of(self._setup.mesh)
        sizes = [size_of(task, example, train.max_sentences) for example in splits["train"]]
        shapes = choose_shapes(sizes, train.num_buckets or ladder.buckets, ladder)
        return with_overflow(shapes, [task.size(example) for name in SPLITS[1:] for example in splits[name]])

    def _compiling(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context that compiles what the seeds need, unless all of them are finished."""
        seeds = self._setup.config.seeds
        if all(read_result(self._workdir / f"seed_{seed}") for seed in seeds):
            return contextlib.nullcontext()
        without_layers = TextEncoder(self._setup, (lambda rows: [()] * len(rows)) if self._stored else None)
        train, *others = (data.batch_of_each_shape(without_layers) for data in self._data.values())
        return self._program.compiling(train, sum(others, []), self._program.constants(seeds[0], self._stored))

    def train(self, seed: int) -> TaskState | Stopped | None:
        """Trains with one seed and writes its result; returns None if that was done before.

        A signal during the training saves and stops it. The result, which has nothing to save, is cut off by a signal,
        and the next launch makes it from the last checkpoint.
        """
        folder = self._workdir / f"seed_{seed}"
        if read_result(folder) is not None:
            return None
        folder.mkdir(parents=True, exist_ok=True)
        constants = self._program.constants(seed, self._stored)
        training = Trainer(self._setup, self._program, self._data, seed, constants, folder)
        with StopSignals() as signals:
            ended = training.train(signals)
        if isinstance(ended, Stopped):
            return ended
        write_result(folder, self._result(training, ended))
        return ended

    def _result(self, training: Trainer[Any, Any], state: TaskState) -> dict[str, Any]:
        """Returns the results of a finished training, and writes its predictions."""
        params, folder, task = self._program.evaluated(state), training.workdir, self._setup.task
        steps_per_epoch = len(self._data["train"].epoch(None))

        def epoch_of(step: int) -> int:
            """Returns the epoch, the first one being 1, that a step is in; 0 before the first step."""
            return -(-step // steps_per_epoch)

        found: dict[str, Any] = {"seed": training.seed, "step": int(state.step), "epoch": epoch_of(int(state.step))}
        for name, data in self._data.items():
            if name != "train":
                models = [(params, training.constants)]
                predictions = predict(self._setup, self._program, models, data)
                found[name] = task.score(data.examples, predictions)
                for ending, text in task.files(data.examples, predictions).items():
                    files.write_text(folder / f"{name}.predictions{ending}", text)
        records = read_records(folder / "metrics.jsonl")
        last = [record for record in records if "train/seconds" in record]
        inputs = state.params.get("inputs", {})
        words, bilm = ({name: inputs.get(name, {})} for name in ("words", "bilm"))
        return {
            **found,
            "epochs": epoch_of(records[-1]["step"]),
            "words_per_second": last[-1]["train/words"] / last[-1]["train/seconds"] if last else 0.0,
            "seconds": records[-1]["wall_seconds"],
            "parameters": parameter_count(state.params) - parameter_count(words) - parameter_count(bilm),
            "word_vector_parameters": parameter_count(words),
            "elmo": elmo_mixes(params, self._setup.config),
        }

    def finish(self, title: str, fingerprints: dict[str, Any]) -> dict[str, Any]:
        """Writes the results of all seeds and the plot, and returns the results."""
        task, config = self._setup.task, self._setup.config
        seeds = [read_result(self._workdir / f"seed_{seed}") or {} for seed in config.seeds]
        result: dict[str, Any] = {
            "task": task.name,
            "metric": task.metric,
            "steps": sum(seed["step"] for seed in seeds),
            **{name: statistics([s[name][task.metric] for s in seeds]) for name in ("dev", "test") if name in seeds[0]},
            "seeds": seeds,
            "examples": {name: len(self._data[name].examples) if name in self._data else 0 for name in SPLITS},
            "parameters": seeds[0]["parameters"],
            "words_found": self._setup.table.found,
            "elmo": dataclasses.asdict(config.elmo) if config.bilm else None,
            **fingerprints,
        }
        if task.averages and len(seeds) > 1:
            models = [self._program.load(self._workdir, seed, self._stored) for seed in config.seeds]
            result["ensemble"] = {
                name: task.score(data.examples, predict(self._setup, self._program, models, data))
                for name, data in self._data.items()
                if name != "train"
            }
        write_result(self._workdir, result)
        with best_effort(self._workdir / "curve.png"):
            draw(self._workdir, title, result)
        return result
