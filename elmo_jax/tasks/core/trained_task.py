"""Loads a trained task, which predicts (`elmo_jax.load_task(RUN).predict(...)`) and is evaluated on other examples."""

import contextlib
import dataclasses
import functools
import json
import os
import sys
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from etils import epath

from elmo_jax import files
from elmo_jax.distributed.mesh import make_mesh
from elmo_jax.errors import UserError
from elmo_jax.model.precision import standard_numerics
from elmo_jax.runs.folder import from_launch, packages_in, read_config_file
from elmo_jax.runs.progress import Progress
from elmo_jax.tasks.core.config import TaskConfig
from elmo_jax.tasks.core.data import TaskData, predict, with_overflow
from elmo_jax.tasks.core.inputs import TextEncoder, embedded
from elmo_jax.tasks.core.program import TaskProgram
from elmo_jax.tasks.core.setup import ADVICE, TaskSetup, check_labels, open_model, rows_of, shapes_in
from elmo_jax.tasks.core.task import Use, report
from elmo_jax.tasks.core.vocabulary import UNKNOWN_ID, Vocabulary, WordTable
from elmo_jax.tasks.formats.sources import read_source, split_texts
from elmo_jax.tasks.registry import check_no_code, get_task, task_config

_STREAMED = 2048  # the number of examples after which predictions are returned


class Examples(list[Any]):
    """Examples that were read from a file; `TrainedTask` predicts for them as for a list of words."""


class TrainedTask:
    """A trained task model of one of its `seeds`, or the models of several, whose predictions are averaged."""

    def __init__(self, run: str | os.PathLike[str], seeds: Sequence[int] | None = None, ensemble: bool = False) -> None:
        """Loads the models; see `load_task`."""
        self._folder = files.parse_path(run)
        self._reported: set[str] = set()  # the sources whose words without vectors were counted on stderr
        written = read_config_file(self._folder)
        if not written["config"].get("task"):
            raise UserError(f"{run}: the run of a biLM, not of a task; expected a run of elmo-jax task train")
        check_no_code(self._folder, written["config"])
        self.config: TaskConfig = task_config(written["config"], packages_in(written))
        self.task = get_task(self.config.task)
        finished = [seed for seed in self.config.seeds if self._is_finished(seed)]
        if not finished:
            raise UserError(f"{run}: no seed of this task has finished training; resume with: elmo-jax task train")
        self.seeds = list(finished if ensemble else finished[:1])
        if seeds is not None:
            if not _is_list(seeds) or {type(seed) for seed in seeds} != {int} or len(set(seeds)) < len(seeds):
                raise UserError(f"seeds: expected a list of distinct whole numbers, got {seeds!r}")
            self.seeds = list(seeds)
        for seed in self.seeds:
            if not self._is_finished(seed):  # it may be one of an earlier launch, with other seeds
                known = ", ".join(map(str, finished))
                raise UserError(f"{run}: seed {seed} has not finished training; finished seeds: {known}")
        if len(self.seeds) > 1 and not self.task.supports_ensembling:
            raise UserError(f"{run}: predictions of the task {self.task.name} cannot be averaged; choose one seed")
        with _reading(self._folder / "inputs.json") as file:
            inputs = files.read_checksummed_json(file, ADVICE)
            vocabulary = Vocabulary(**inputs["vocabulary"], config=self.config.word_vectors)
        with _reading(self._folder / "words.npz") as file, np.load(file) as stored:
            table = WordTable(stored["vectors"], stored["random"], float(stored["spread"]), None)
        self._shapes = shapes_in(inputs)
        path, options = (from_launch(self._folder, given) for given in (self.config.bilm, self.config.bilm_options))
        bilm = open_model(dataclasses.replace(self.config, bilm=path, bilm_options=options))
        expected = written["metadata"]["fingerprint"]["bilm"]
        if bilm is not None and bilm.vectors_fingerprint != expected:
            problem = f"{str(expected)[:12]}, but that of {self.config.bilm} is {bilm.vectors_fingerprint[:12]}"
            remedy = "give the biLM that it was trained with"
            raise UserError(f"{run}: was trained with a biLM of fingerprint {problem}; {remedy}")
        mesh = make_mesh(jax.local_devices())
        self._setup = TaskSetup(self.task, self.config, inputs["labels"], vocabulary, table, bilm, mesh)
        self._program = TaskProgram(self._setup)
        self._models = [self._program.load(self._folder, seed, layers_are_given=True) for seed in self.seeds]

    def _is_finished(self, seed: int) -> bool:
        return (self._folder / f"seed_{seed}" / "result.json").is_file()

    def read(self, source: str) -> Examples:
        """Returns the examples of a file in the format of `data.test`, whose annotation some tasks may lack."""
        return Examples(self._read(source, "prediction"))

    def _read(self, source: str, use: Use) -> list[Any]:
        try:
            return read_source(self.task, self.config, source, use)
        except UserError as error:
            if "config.data." not in str(error):
                raise
            raise UserError(f"{error}; these are settings of a training, and this model reads as in its own") from None

    def split(self, *texts: str) -> list[Any]:
        """Returns the inputs of `predict` in the running text, or texts, of one example; see `sources.split_texts`."""
        return split_texts(self.task, self.config, *texts)

    def predict(self, inputs: Sequence[Any]) -> list[Any]:
        """Predicts for texts that are split into words.

        With `elmo.layer_norm=without_bos_eos`, a prediction also depends on the other inputs, since the layers are
        normalized over a batch as in bilm-tf; give one input at a time for predictions that do not.

        Args:
          inputs: for a task with one text per example, a list of sentences, each a list of words; for others, a list of
            tuples of such sentences (premise, hypothesis; question, paragraph). `split` makes them from running text,
            and `read` returns the examples of a file.

        Returns:
          The predictions as dicts of JSON values: one per input or, for semantic roles, one per predicate. Those of
          examples that have an id in their file have an `id`.

        Raises:
          UserError: an input has another form.
        """
        return list(self.stream(inputs))

    def stream(self, inputs: Sequence[Any]) -> Iterator[Any]:
        """Yields what `predict` returns, in order, while further predictions are made."""
        return (self._json(example, prediction) for example, prediction in self.pairs(inputs))

    def _json(self, example: Any, prediction: Any) -> dict[str, Any]:
        name = getattr(example, "id", "")
        return {**({"id": name} if name else {}), **self.task.as_json(example, prediction)}

    def without_examples(self, inputs: Sequence[Any]) -> int:
        """Returns the number of inputs without a prediction, which are sentences without a predicate."""
        return 0 if isinstance(inputs, Examples) else sum(not self._examples([item]) for item in inputs)

    def evaluate(self, source: str, predictions: str | os.PathLike[str] | None = None) -> dict[str, float]:
        """Returns the official metrics in percent on the annotated examples of a source, a path or a TFDS name.

        The predictions are written as JSON lines to the file `predictions`, if one is given.
        """
        examples = self._read(source, "evaluation")
        check_labels(self.task, examples, self._setup.labels, source)
        data = self.config.data
        if source.strip() not in [own for part in (data.train, data.dev, data.test) for own in files.listed(part)]:
            self._report_unknown(examples, source)
        predicted = self._predictions(examples)
        if predictions is not None:
            lines = [json.dumps(self._json(e, p), ensure_ascii=False) for e, p in zip(examples, predicted, strict=True)]
            files.write_text(files.parse_path(predictions), "".join(f"{line}\n" for line in lines))
        return self.task.score(examples, predicted)

    def pairs(self, inputs: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
        """Yields the examples of the inputs of `predict` with their predictions, as `task` has them, like `stream`."""
        examples = inputs if isinstance(inputs, Examples) else self._examples(inputs)
        self._report_unknown(examples, "the text")
        texts = [text for item in inputs for text in (item if isinstance(item, tuple) else [item])]
        words = [] if examples is inputs else self.task.overlooked(texts, self._setup.labels)
        shown = f"{', '.join(words[:20])}{', …' if len(words) > 20 else ''}"
        report("the text", {f"words that the training text lacks, not taken as predicates: {shown}": len(words)})
        # With a norm of the batch, predictions depend on all examples.
        size = max(1, len(examples)) if self.config.elmo.layer_norm == "without_bos_eos" else _STREAMED
        with Progress("predicting", "examples", len(examples)) as progress:
            for start in range(0, len(examples), size):
                part = examples[start : start + size]
                yield from zip(part, self._predictions(part, progress), strict=True)

    def _examples(self, inputs: Sequence[Any]) -> list[Any]:
        examples: list[Any] = []
        if not _is_list(inputs):
            raise UserError(f"expected a list of examples, got {str(inputs)[:80]!r}")
        expected = self.task.texts_per_example
        for item in inputs:
            texts = item if isinstance(item, tuple) else (item,)
            if len(texts) != expected:
                raise UserError(f"expected {expected} texts per example, got {len(texts)}: {str(item)[:80]!r}")
            for text in texts:
                rows = text if self.task.document_level else [text]
                if not (_is_list(rows) and all(_is_list(r) and all(isinstance(w, str) for w in r) for r in rows)):
                    raise UserError(f"expected lists of words, got {str(item)[:80]!r}; split text into words")
            examples += self.task.from_words(texts, self._setup.labels)
        return examples

    def _report_unknown(self, examples: Sequence[Any], source: str) -> None:
        """Reports once for each source how many words have no vector here though they may have a pretrained one."""
        if not self.config.word_vectors.path or source in self._reported:
            return
        words = {word for row in rows_of(self.task, examples) for word in row}
        unknown = sum(self._setup.vocabulary.word_id(word) == UNKNOWN_ID for word in words)
        if unknown:
            self._reported.add(source)
            print(
                f"elmo-jax: {source}: {unknown:,} of {len(words):,} distinct words have no vector in this run, which"
                " only read the pretrained vectors of the words in its data.train, data.dev and data.test; if"
                f" {self.config.word_vectors.path} has vectors for them, train with this text as data.test to use them",
                file=sys.stderr,
            )

    @standard_numerics()
    def _predictions(self, examples: Sequence[Any], progress: Progress | None = None) -> list[Any]:
        bilm = self._setup.bilm if self.config.elmo.trainable == "none" else None
        encoder = TextEncoder(self._setup, functools.partial(embedded, bilm, self.config.elmo) if bilm else None)
        shapes = with_overflow(self._shapes, [self.task.size(example) for example in examples])
        data = TaskData(self._setup, encoder, examples, shapes)
        return predict(self._setup, self._program, self._models, data, progress)


@contextlib.contextmanager
def _reading(path: epath.Path) -> Iterator[epath.Path]:
    try:
        yield path
    except FileNotFoundError:
        raise UserError(f"{path}: missing; {ADVICE}") from None
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(f"{path}: damaged ({type(error).__name__}); {ADVICE}") from None


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def load_task(run: str | os.PathLike[str], seeds: Sequence[int] | None = None, ensemble: bool = False) -> TrainedTask:
    """Loads a trained task.

    A run keeps pretrained word vectors only for the words of its `data.train`, `data.dev` and `data.test`. All other
    words are unknown to it; a line on stderr reports their number.

    Args:
      run: the folder of a run of `elmo-jax task train`.
      seeds: the seeds whose models are used; by default the first finished one.
      ensemble: whether the predictions of all finished seeds are averaged.

    Raises:
      UserError: there is no such run, no seed is finished, or the biLM is not the one that the task was trained with.
    """
    return TrainedTask(run, seeds, ensemble)
