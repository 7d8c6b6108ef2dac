"""Reads and writes `options.json` of the published format."""

import json
import operator
import os
from pathlib import Path
from typing import Any

from elmo_jax.characters import CHARACTERS
from elmo_jax.config import DIRECTIONS, CharCNNConfig, LSTMConfig, ModelConfig
from elmo_jax.errors import UserError
from elmo_jax.files import local, write_json
from elmo_jax.settings import from_dict

OPTIONS = "options.json"  # the name of the file in a folder
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


def read_options(path: str | os.PathLike[str]) -> ModelConfig:
    """Reads `options.json`; 261 and 262 characters mean the same model, since 262 counts the id of padded tokens."""
    path = local(path)
    try:
        with open(path, "rb") as file:
            content = file.read(_BYTES + 1)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); expected the options.json of a biLM") from None
    if len(content) > _BYTES:
        raise UserError(f"{path}: larger than 1 MB; expected the options.json of a biLM")
    try:
        options = json.loads(content)
    except (ValueError, RecursionError):  # ValueError if the content is not UTF-8 or not JSON
        raise UserError(f"{path}: not JSON; expected the options.json of a biLM") from None
    if _get(options, "char_cnn") is None:
        raise UserError(f"{path}: a word-level model (no 'char_cnn'); only models that read characters can be loaded")
    characters, both = _get(options, "char_cnn.n_characters"), _get(options, "bidirectional")
    if characters not in (CHARACTERS, CHARACTERS + 1):
        raise UserError(f"{path}: 'char_cnn.n_characters': expected 261 or 262, got {str(characters)[:80]}")
    if both not in (True, False, None):
        raise UserError(f"{path}: 'bidirectional': expected true or false, got {str(both)[:80]}")
    settings: dict[str, Any] = {"directions": DIRECTIONS[:1] if both is False else DIRECTIONS}
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
    return from_dict(settings, ModelConfig, str(path))


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
