"""The training checkpoints of bilm-tf: `checkpoint`, `options.json`, `model.ckpt-N.index` and `model.ckpt-N.data-…`.

They have what an HDF5 file of the same biLM has and, besides, the softmax, Adagrad's accumulator of every parameter and
the number of updates. The names of the softmax's words are in the vocabulary file that the biLM was trained with.
"""

import dataclasses
import os
import re
from pathlib import Path
from typing import Any

import numpy as np

from elmo_jax import files
from elmo_jax.checkpoints.download import is_url
from elmo_jax.checkpoints.export import PretrainedBiLM
from elmo_jax.checkpoints.hdf5 import published_name, published_shape
from elmo_jax.checkpoints.layout import fingerprint, parameter_shapes, unflatten
from elmo_jax.checkpoints.options import OPTIONS, read_training_options
from elmo_jax.checkpoints.provenance import GLOBAL_STEP
from elmo_jax.checkpoints.tensor_bundle import TensorBundle
from elmo_jax.config import DIRECTIONS, ModelConfig
from elmo_jax.data.lexicon import marks_first, words_by_line
from elmo_jax.errors import UserError
from elmo_jax.runs.progress import Progress
from elmo_jax.text_files import reading
from elmo_jax.types import Tree

VOCABULARY = "vocab.txt"
ADAGRAD = "/Adagrad"  # follows the name of a variable in that of its accumulator
_LATEST = re.compile(r'^model_checkpoint_path: *"(?:[^"\n]*/)?([^"/\n]+)"', re.MULTILINE)
_PART = re.compile(r"\.(index|meta|data-\d{5}-of-\d{5})$")
_CELL = re.compile(r"(RNN_\d/)RNN/MultiRNNCell/Cell(\d+)/LSTMCell/(\w+)")
_IN_CELL = {"W_0": "kernel", "B": "bias", "W_P_0": "projection/kernel"}
_MOST_STEPS = 2**30


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A training checkpoint of bilm-tf.

    Attributes:
      path: the path that its files begin with, `…/model.ckpt-N`.
      options: the path of `options.json`.
      vocabulary: the file with the words of the softmax, one per line; None if there is none.
    """

    path: Path
    options: Path
    vocabulary: Path | None

    def read(self) -> PretrainedBiLM:
        """Reads the biLM, with its softmax if there is a vocabulary.

        Returns:
          The biLM; of its `info`, `global_step` is the number of updates, and `settings` are those of the training.

        Raises:
          UserError: a file is missing or damaged, the options are of another architecture or of a word-level model, the
            vocabulary has not as many words as the softmax, or a parameter is not finite.
        """
        (model, train), bundle = read_training_options(self.options), TensorBundle(self.path)
        has_both = any(name.startswith("lm/RNN_1/") for name in bundle.variables)
        model = dataclasses.replace(model, directions=DIRECTIONS[: 1 + has_both])
        params, words = self._values(bundle, model)
        step = float(self._value(bundle, "global_step", ()))
        if not 0 <= step <= _MOST_STEPS:
            raise UserError(f"{self.path}: variable 'global_step' is {step}; expected a number of updates")
        info = {"experiment": self.path.parent.name, "steps": int(step), GLOBAL_STEP: int(step)}
        info["settings"] = {"train": train}
        return PretrainedBiLM(model, unflatten(params), words, info, fingerprint(params))

    @property
    def has_accumulators(self) -> bool:
        """Whether Adagrad's accumulators are there."""
        return any(name.endswith(ADAGRAD) for name in TensorBundle(self.path).variables)

    def accumulators(self, model: ModelConfig) -> Tree:
        """Returns Adagrad's accumulator of every parameter of the biLM, whose architecture is `model`, as its tree.

        Raises:
          UserError: one is missing or damaged, or has a number that is not above 0.
        """
        return unflatten(self._values(TensorBundle(self.path), model, ADAGRAD)[0])

    def _values(
        self, bundle: TensorBundle, model: ModelConfig, slot: str = ""
    ) -> tuple[dict[str, np.ndarray], list[str] | None]:
        """Returns the parameters, or what the optimizer has for each in a slot, by key path; and the words."""
        found = [] if self.vocabulary is None else words_by_line(self.vocabulary)
        words, row_of = marks_first(found) if found else [], {word: row for row, word in enumerate(found)}
        self._check_nothing_more(bundle, {_variable(path, model) for path in parameter_shapes(model, 1)})
        values = {}
        with Progress(f"reading {self.path}{slot}"):
            for path, shape in parameter_shapes(model, len(found) or None).items():
                name = _variable(path, model) + slot
                value = self._value(bundle, name, published_shape(path, shape)).reshape(shape)
                if value.dtype != np.float32 or not np.isfinite(value).all() or (slot and value.min() <= 0):
                    raise UserError(
                        f"{self.path}: variable '{name}' has {value.dtype} numbers that are not all finite float32 (and"
                        " above 0 in an accumulator); take another checkpoint"
                    )
                if words != found and path.startswith("softmax/"):
                    value = value[[row_of[word] for word in words]]
                values[path] = value
        return values, words or None

    def _value(self, bundle: TensorBundle, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """Returns a variable of this shape."""
        where = f"{self.path}: variable '{name}'"
        if name not in bundle.variables:
            raise UserError(f"{where} is missing; expected shape {shape}, as {self.options} says")
        found = bundle.variables[name].shape
        if found != shape and name.startswith("lm/softmax/") and found[1:] == shape[1:]:
            raise UserError(
                f"{self.vocabulary}: {shape[0]:,} words, and the softmax of {self.path} has {found[0]:,}; give the"
                " vocabulary that it was trained with"
            )
        if found != shape:
            raise UserError(f"{where} has shape {found}, expected {shape}, as {self.options} says")
        return bundle.read(name)

    def _check_nothing_more(self, bundle: TensorBundle, expected: set[str]) -> None:
        """Raises `UserError` if there is a layer, filter, highway or projection that the options do not have."""
        for name in sorted(bundle.variables):
            if name.startswith("lm/") and name not in expected and name.rpartition("/")[0] not in expected:
                raise UserError(f"{self.path}: variable '{name}' has no place in the model that {self.options} says")


def _variable(path: str, model: ModelConfig) -> str:
    """Returns the name of a parameter in bilm-tf's graph; one LSTM layer, or one direction, has a scope less."""
    name = published_name(path)
    if match := _CELL.fullmatch(name):
        direction = match[1] if len(model.directions) > 1 else ""
        layer = f"multi_rnn_cell/cell_{match[2]}/" if model.lstm.layers > 1 else ""
        name = f"{direction}rnn/{layer}lstm_cell/{_IN_CELL[match[3]]}"
    return f"lm/{name}"


def checkpoint_of(source: Any) -> Checkpoint | None:
    """Returns the checkpoint that a `BiLMSource` names, or None if it names something else.

    Raises:
      UserError: a folder has several checkpoints or only a part of one.
    """
    options, given, vocabulary = (*source, None)[:3] if isinstance(source, tuple) else (None, source, None)
    if is_url(os.fspath(given)) or os.fspath(given).startswith(files.HUB) or files.in_bucket(given):
        return None
    place = files.local(given).absolute()
    path = _in_folder(place) if place.is_dir() else place.with_name(_PART.sub("", place.name))
    if path is None or not path.with_name(f"{path.name}.index").is_file():
        return None
    if vocabulary is None and (path.parent / VOCABULARY).is_file():
        vocabulary = path.parent / VOCABULARY
    return Checkpoint(
        path, Path(options or path.parent / OPTIONS), None if vocabulary is None else files.local(vocabulary)
    )


def _in_folder(folder: Path) -> Path | None:
    """Returns the path of the checkpoint in a folder, the one that the file `checkpoint` names if there are several."""
    found = sorted(path.with_suffix("") for path in folder.glob("*.index"))
    latest = folder / "checkpoint"
    with reading(latest):
        named = _LATEST.search(latest.read_text(errors="replace")) if found and latest.is_file() else None
    if named and folder / named[1] not in found:
        raise UserError(f"{latest}: names {named[1]}, whose .index is not there; name one of {_listed(found)}")
    if not named and len(found) > 1:
        raise UserError(f"{folder}: has several checkpoints; name one of {_listed(found)}")
    return folder / named[1] if named else next(iter(found), None)


def _listed(paths: list[Path]) -> str:
    return ", ".join(map(str, paths[-3:]))
