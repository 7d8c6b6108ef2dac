"""The training checkpoints of bilm-tf: `checkpoint`, `options.json`, `model.ckpt-N.index` and `model.ckpt-N.data-…`.

Besides the parameters in HDF5 files, they have the softmax, Adagrad's accumulator of each parameter, and the number of
updates. The words of the softmax are in the vocabulary file that the biLM was trained with.
"""

import dataclasses
import json
import logging
import os
import re
from pathlib import Path
from typing import Any

import numpy as np

from elmo_jax import files
from elmo_jax.checkpoints.export import GLOBAL_STEP, PretrainedBiLM
from elmo_jax.checkpoints.hdf5 import published_name, published_shape
from elmo_jax.checkpoints.hub import is_url
from elmo_jax.checkpoints.layout import fingerprint, parameter_shapes, unflatten
from elmo_jax.checkpoints.options import OPTIONS, read_options
from elmo_jax.checkpoints.tensor_bundle import TensorBundle
from elmo_jax.config import DIRECTIONS, ModelConfig
from elmo_jax.data.lexicon import marks_first, words_by_line
from elmo_jax.errors import UserError
from elmo_jax.runs.progress import Progress
from elmo_jax.text_files import reading
from elmo_jax.types import Tree

_log = logging.getLogger(__name__)

VOCABULARY = "vocab.txt"
# Keys of options.json that bilm-tf's trainer reads, and the settings that they are; `finetune` checks the values.
_TRAINING = {"batch_size": "batch_size", "unroll_steps": "unroll_steps", "n_negative_samples_batch": "negatives"}
_OPTIMIZER = {"learning_rate": "learning_rate", "all_clip_norm_val": "clip_norm"}
_ADAGRAD = "/Adagrad"  # follows the name of a variable in that of its accumulator
_LATEST = re.compile(r'^model_checkpoint_path: *"(?:[^"\n]*[/\\])?([^"/\\\n]+)"', re.MULTILINE)
_PART = re.compile(r"(?<=.)\.(index|meta|data-\d{5}-of-\d{5})$")
_CELL = re.compile(r"(RNN_\d/)RNN/MultiRNNCell/Cell(\d+)/LSTMCell/(\w+)")
_IN_CELL = {"W_0": "kernel", "B": "bias", "W_P_0": "projection/kernel"}


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A training checkpoint of bilm-tf, which is verified when it is read."""

    path: Path  # which the names of its files begin with, `…/model.ckpt-N`
    options: Path
    vocabulary: Path | None  # the words of the softmax, one per line; None if no file of them is known

    def read(self) -> PretrainedBiLM:
        """Reads the biLM, with its softmax if there is a vocabulary."""
        if self.vocabulary is None:
            text = "%s: the softmax is left out, as nothing names its words (--vocab FILE, or vocab.txt in the folder)"
            _log.warning(text, self.path)
        model, bundle = read_options(self.options), TensorBundle(self.path)
        options = json.loads(self.options.read_bytes())
        has_both = any(name.startswith("lm/RNN_1/") for name in bundle.shapes)
        model = dataclasses.replace(model, directions=DIRECTIONS[: 1 + has_both])
        params, words = self._values(bundle, model)
        step = float(self._value(bundle, GLOBAL_STEP, ()))
        if not 0 <= step <= 2**30:
            raise UserError(f"{self.path}: variable '{GLOBAL_STEP}' is {step}; expected a number of updates")
        train = {name: options[key] for key, name in _TRAINING.items() if options.get(key) is not None}
        train |= {"negatives": 0} if options.get("sample_softmax") is False else {}
        optimizer = {name: options[key] for key, name in _OPTIMIZER.items() if options.get(key) is not None}
        settings = {"train": {**train, "optimizer": optimizer}}
        info = {"experiment": self.path.parent.name, "steps": int(step), GLOBAL_STEP: int(step), "settings": settings}
        return PretrainedBiLM(model, unflatten(params), words, info, fingerprint(params))

    @property
    def has_accumulators(self) -> bool:
        return any(name.endswith(_ADAGRAD) for name in TensorBundle(self.path).shapes)

    def accumulators(self, model: ModelConfig) -> Tree:
        """Reads Adagrad's accumulators, as a tree like the parameters."""
        return unflatten(self._values(TensorBundle(self.path), model, _ADAGRAD)[0])

    def _values(
        self, bundle: TensorBundle, model: ModelConfig, slot: str = ""
    ) -> tuple[dict[str, np.ndarray], list[str] | None]:
        """Returns the parameters, or what the optimizer has of each in a slot, by key path; and the words."""
        lines = [] if self.vocabulary is None else words_by_line(self.vocabulary)
        words, line_of = marks_first(lines) if lines else [], {word: line for line, word in enumerate(lines)}
        expected, values = {_variable(path, model) for path in parameter_shapes(model, 1)}, {}
        for name in bundle.shapes:
            if name.startswith("lm/") and name not in expected and name.rpartition("/")[0] not in expected:
                raise UserError(f"{self.path}: variable '{name}' is there, but {self.options} has no place for it")
        with Progress(f"reading {self.path}{slot}"):
            for path, shape in parameter_shapes(model, len(words) or None).items():
                name = _variable(path, model) + slot
                value = self._value(bundle, name, published_shape(path, shape)).reshape(shape)
                if value.dtype != np.float32 or not np.isfinite(value).all() or (slot and value.min() <= 0):
                    problem = f"has {value.dtype} numbers that are not all finite float32 (above 0 in an accumulator)"
                    raise UserError(f"{self.path}: variable '{name}' {problem}; take another checkpoint")
                moved = path.startswith("softmax/") and words != lines
                values[path] = value[[line_of[word] for word in words]] if moved else value
        return values, words or None

    def _value(self, bundle: TensorBundle, name: str, shape: tuple[int, ...]) -> np.ndarray:
        actual = bundle.shapes.get(name)
        if actual and actual[1:] == shape[1:] and actual != shape and name.startswith("lm/softmax/"):
            problem = f"{shape[0]:,} words, and the softmax of {self.path} has {actual[0]:,}"
            raise UserError(f"{self.vocabulary}: {problem}; give the vocabulary that it was trained with")
        if actual != shape:
            what = "is missing" if actual is None else f"has shape {actual}"
            raise UserError(f"{self.path}: variable '{name}' {what}; expected shape {shape}, as {self.options} says")
        return bundle.read(name)


def _variable(path: str, model: ModelConfig) -> str:
    """Returns the name of a parameter in bilm-tf's graph; one LSTM layer, or one direction, has a scope less."""
    name = published_name(path)
    if match := _CELL.fullmatch(name):
        direction = match[1] if len(model.directions) > 1 else ""
        layer = f"multi_rnn_cell/cell_{match[2]}/" if model.lstm.layers > 1 else ""
        name = f"{direction}rnn/{layer}lstm_cell/{_IN_CELL[match[3]]}"
    return f"lm/{name}"


def checkpoint_of(source: Any) -> Checkpoint | None:
    """Returns the checkpoint that a `BiLMSource` names, or None if it names something else."""
    options, given, vocabulary = (*source, None)[:3] if isinstance(source, tuple) else (None, source, None)
    if is_url(os.fspath(given)) or os.fspath(given).startswith(files.HUB) or files.in_bucket(given):
        return None
    path = files.local(given).absolute()
    path = _latest(path) if path.is_dir() else path.with_name(_PART.sub("", path.name))
    if not Path(f"{path}.index").is_file():
        return None
    if vocabulary is None and (path.parent / VOCABULARY).is_file():
        vocabulary = path.parent / VOCABULARY
    return Checkpoint(path, files.local(options or path.parent / OPTIONS), vocabulary and files.local(vocabulary))


def _latest(folder: Path) -> Path:
    """Returns the path of the checkpoint in a folder, of several the one that the file `checkpoint` names."""
    prefixes, latest = sorted(path.with_suffix("") for path in folder.glob("[!.]*.index")), folder / "checkpoint"
    with reading(latest):
        named = _LATEST.search(latest.read_text(errors="replace")) if prefixes and latest.is_file() else None
    chosen = [path for path in prefixes if not named or path.name == named[1]]
    if prefixes and len(chosen) != 1:
        what = f"{latest} names {named[1]}, whose .index is not there" if named else f"{folder} has several checkpoints"
        raise UserError(f"{what}; name one, such as {prefixes[-1]}")
    return chosen[0] if chosen else folder
