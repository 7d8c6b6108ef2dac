"""Reads and writes `options.json` of the published format."""

import json
import operator
import os
from pathlib import Path
from typing import Any

from elmo_jax.characters import CHARACTERS
from elmo_jax.config import CharCNNConfig, LSTMConfig, ModelConfig
from elmo_jax.errors import UserError
from elmo_jax.files import local, write_json
from elmo_jax.settings import from_dict

OPTIONS = "options.json"  # the name of the options in a folder of published weights, or of a checkpoint of bilm-tf
_BYTES = 1 << 20  # the largest file that is read; more than any architecture needs
_PARTS = {"lstm": LSTMConfig, "char_cnn": CharCNNConfig, "": ModelConfig}
# Each key of options.json, the setting that it is, and the value if it is absent; None if it must be there.
_KEYS: tuple[tuple[str, str, Any], ...] = (
    ("lstm.dim", "lstm.cells", None),
    ("lstm.projection_dim", "lstm.projection", None),
    ("lstm.n_layers", "lstm.layers", None),
    ("lstm.cell_clip", "lstm.cell_clip", 0.0),  # null means no clipping
    ("lstm.proj_clip", "lstm.projection_clip", 0.0),
    ("lstm.use_skip_connections", "lstm.skip_connections", False),
    ("char_cnn.embedding.dim", "char_cnn.embedding_dim", None),
    ("char_cnn.filters", "char_cnn.filters", None),
    ("char_cnn.n_highway", "char_cnn.highways", 0),
    ("char_cnn.max_characters_per_token", "char_cnn.max_characters", None),
    ("char_cnn.activation", "char_cnn.activation", None),
    ("dropout", "dropout", ModelConfig.dropout),
)


# Likewise of the settings of training, which are not checked here.
_TRAINING = {"batch_size": "batch_size", "unroll_steps": "unroll_steps", "negatives": "n_negative_samples_batch"}
_OPTIMIZER = {"learning_rate": "learning_rate", "clip_norm": "all_clip_norm_val"}


def read_options(path: str | os.PathLike[str]) -> ModelConfig:
    """Reads `options.json`; 261 and 262 characters mean the same model, since 262 counts the id of padded tokens.

    Raises:
      UserError: the file does not exist or is not JSON, or a key is missing, has the wrong type or is out of range.
    """
    options = _read(path)
    if (both := _get(options, "bidirectional")) not in (True, None):
        raise UserError(f"{path}: 'bidirectional': expected true, got {str(both)[:80]}")
    return _model(path, options)


def read_training_options(path: str | os.PathLike[str]) -> tuple[ModelConfig, dict[str, Any]]:
    """Reads the `options.json` of a checkpoint, and also returns the settings `train` with which bilm-tf continues.

    The variables of the checkpoint tell whether the model has two directions.

    Raises:
      UserError: as for `read_options`, or the model reads whole words.
    """
    options = _read(path)
    if _get(options, "char_cnn") is None:
        raise UserError(f"{path}: a word-level model (no 'char_cnn'); only models that read characters can be loaded")
    train, optimizer = (
        {name: options[key] for name, key in keys.items() if options.get(key) is not None}
        for keys in (_TRAINING, _OPTIMIZER)
    )
    softmax = {"negatives": 0} if options.get("sample_softmax") is False else {}
    return _model(path, options), {**train, **softmax, "optimizer": optimizer}


def _read(path: str | os.PathLike[str]) -> Any:
    """Returns the content of a file of options."""
    path = local(path)
    try:
        with open(path, "rb") as file:
            content = file.read(_BYTES + 1)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); expected the options.json of a biLM") from None
    if len(content) > _BYTES:
        raise UserError(f"{path}: larger than 1 MB; expected the options.json of a biLM")
    try:
        return json.loads(content)
    except (ValueError, RecursionError):  # ValueError if the content is not UTF-8 or not JSON
        raise UserError(f"{path}: not JSON; expected the options.json of a biLM") from None


def _model(path: str | os.PathLike[str], options: Any) -> ModelConfig:
    """Returns the architecture that the options describe; each is checked as the setting that it is."""
    characters = _get(options, "char_cnn.n_characters")
    if characters not in (CHARACTERS, CHARACTERS + 1):
        raise UserError(f"{path}: 'char_cnn.n_characters': expected 261 or 262, got {str(characters)[:80]}")
    settings: dict[str, Any] = {}
    for key, setting, absent in _KEYS:
        value = _get(options, key)
        value = absent if value is None else value
        if value is None:
            raise UserError(f"{path}: '{key}' is missing")
        part, _, name = setting.rpartition(".")
        try:
            from_dict({name: value}, _PARTS[part], "")
        except UserError as error:
            raise UserError(f"{path}: '{key}'{str(error).removeprefix(f'.{name}')}") from None
        (settings.setdefault(part, {}) if part else settings)[name] = value
    model: ModelConfig = from_dict(settings, ModelConfig, str(path))
    return model


def _get(options: Any, key: str) -> Any:
    """Returns the value of a dotted key; None if it is absent or null, which mean the same in bilm-tf."""
    for part in key.split("."):
        options = options.get(part) if isinstance(options, dict) else None
    return options


def write_options(path: str | os.PathLike[str], model: ModelConfig) -> None:
    """Writes `options.json` for inference (262 characters), readable by bilm-tf and by AllenNLP."""
    options: dict[str, Any] = {"lstm": {}, "char_cnn": {"embedding": {}, "n_characters": CHARACTERS + 1}}
    for key, setting, _ in _KEYS:
        value = operator.attrgetter(setting)(model)
        *parts, name = key.split(".")
        node = options
        for part in parts:
            node = node[part]
        node[name] = (value or None) if name.endswith("_clip") else value  # AllenNLP requires both keys
    write_json(Path(path), options)
