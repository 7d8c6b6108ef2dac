"""Reads and writes `options.json` of the published format."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from elmo_jax.characters import CHARACTERS
from elmo_jax.config import CharCNNConfig, LSTMConfig, ModelConfig
from elmo_jax.errors import UserError
from elmo_jax.files import local, write_json
from elmo_jax.settings import from_dict, to_dict

_BYTES = 1 << 20  # the largest file that is read; more than any architecture needs
_MOST = (1 << 31) - 1
_LAYERS = 1000  # bounds the number of layers, so that a small file cannot demand a list of any length


def read_options(path: str | os.PathLike[str]) -> ModelConfig:
    """Reads `options.json`; 261 and 262 characters mean the same model, since 262 counts the id of padded tokens.

    Raises:
      UserError: the file does not exist or is not JSON, or a key is missing, has the wrong type or is out of range.
    """
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
    return _Options(path, options).model()


class _Options:
    """The values of an `options.json`, each checked when it is read."""

    def __init__(self, path: Path, values: Any) -> None:
        self._path, self._values = path, values

    def model(self) -> ModelConfig:
        """Returns the architecture that the options describe."""
        characters = self.integer("char_cnn.n_characters")
        if characters not in (CHARACTERS, CHARACTERS + 1):
            raise self.error("char_cnn.n_characters", "261 or 262", characters)
        if self.get("bidirectional", True) is not True:
            raise self.error("bidirectional", "true", self.get("bidirectional", True))
        model = ModelConfig(
            CharCNNConfig(
                embedding_dim=self.integer("char_cnn.embedding.dim"),
                filters=self.filters(),
                highways=self.integer("char_cnn.n_highway", 0, _LAYERS),
                activation=self.get("char_cnn.activation"),
                max_characters=self.integer("char_cnn.max_characters_per_token"),
            ),
            LSTMConfig(
                cells=self.integer("lstm.dim"),
                projection=self.integer("lstm.projection_dim"),
                layers=self.integer("lstm.n_layers", most=_LAYERS),
                cell_clip=self.number("lstm.cell_clip", 0.0),
                projection_clip=self.number("lstm.proj_clip", 0.0),
                skip_connections=self.boolean("lstm.use_skip_connections", False),
            ),
            dropout=self.number("dropout", ModelConfig.dropout),
        )
        try:
            checked: ModelConfig = from_dict(to_dict(model), ModelConfig)
        except UserError as error:
            raise UserError(f"{self._path}: {error}") from None
        return checked

    def error(self, key: str, expected: str, found: Any) -> UserError:
        shown = "nothing" if found is None else repr(found)[:80]
        return UserError(f"{self._path}: '{key}': expected {expected}, found {shown}")

    def get(self, key: str, default: Any = None) -> Any:
        """Returns the value of a dotted key; null counts as absent, as in the original."""
        node = self._values
        for part in key.split("."):
            node = node.get(part) if isinstance(node, dict) else None
        return default if node is None else node

    def integer(self, key: str, default: int | None = None, most: int = _MOST) -> int:
        value = self.get(key, default)
        if type(value) is not int or not 0 <= value <= most:
            raise self.error(key, f"a whole number, at most {most}", value)
        return value

    def number(self, key: str, default: float) -> float:
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise self.error(key, "a number, at least 0", value)
        return float(value)

    def boolean(self, key: str, default: bool) -> bool:
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self.error(key, "true or false", value)
        return value

    def filters(self) -> tuple[tuple[int, int], ...]:
        filters = self.get("char_cnn.filters")
        pairs = isinstance(filters, list) and all(
            isinstance(pair, list) and len(pair) == 2 and all(type(n) is int and 0 < n <= _MOST for n in pair)
            for pair in filters
        )
        if not pairs:
            raise self.error("char_cnn.filters", "a list of pairs [width, number]", filters)
        return tuple((width, number) for width, number in filters)


def write_options(path: str | os.PathLike[str], model: ModelConfig) -> None:
    """Writes `options.json` for inference (262 characters), readable by the original and by AllenNLP."""
    cnn, lstm = model.char_cnn, model.lstm
    options = {
        "lstm": {
            "dim": lstm.cells,
            "projection_dim": lstm.projection,
            "n_layers": lstm.layers,
            "cell_clip": lstm.cell_clip or None,  # AllenNLP requires the key; null means no clipping
            "proj_clip": lstm.projection_clip or None,
            "use_skip_connections": lstm.skip_connections,
        },
        "char_cnn": {
            "embedding": {"dim": cnn.embedding_dim},
            "filters": [list(pair) for pair in cnn.filters],
            "n_highway": cnn.highways,
            "n_characters": CHARACTERS + 1,
            "max_characters_per_token": cnn.max_characters,
            "activation": cnn.activation,
        },
        "dropout": model.dropout,
    }
    write_json(Path(path), options)
