"""Every setting of the project and its default, in one place.

The code reads frozen dataclasses; an experiment file edits a `ml_collections.ConfigDict` of the same shape, so that a
misspelt key is an error and every key can be overridden on the command line (`--config.train.batch_size=64`).
Defaults are those of the paper's 1 Billion Word model (Peters et al. 2018; "original" is its released trainer).
"""

from __future__ import annotations

import dataclasses
import difflib
import operator
import typing
from typing import Any

from ml_collections import ConfigDict

from elmo_jax.errors import UserError

CHARACTERS = 261  # ids of characters: 256 bytes, begin and end of sentence, begin and end of word, padding
PADDING = 260
ORIGINAL_FILTERS = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))


@dataclasses.dataclass(frozen=True)
class CharCNNConfig:
    """The token encoder: character CNN, highways, projection."""

    embedding_dim: int = 16
    filters: tuple[tuple[int, int], ...] = ORIGINAL_FILTERS  # (width in characters, number of filters)
    highways: int = 2
    activation: str = "relu"  # "relu" or "tanh", after the max over positions
    max_characters: int = 50  # of a word, the begin and end marks included

    @property
    def features(self) -> int:
        """Filters in all: the width of the highways."""
        return sum(number for _, number in self.filters)


@dataclasses.dataclass(frozen=True)
class LSTMConfig:
    """The stack of projected LSTMs of one direction."""

    cells: int = 4096
    projection: int = 512  # equal to `cells`: the layers have no projection matrix
    layers: int = 2
    cell_clip: float = 3.0  # 0: no clip
    projection_clip: float = 3.0  # 0: no clip
    skip_connections: bool = True


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """The biLM without its softmax, whose size is that of the vocabulary."""

    char_cnn: CharCNNConfig = CharCNNConfig()
    lstm: LSTMConfig = LSTMConfig()
    dropout: float = 0.1  # on the input of every LSTM layer and on the top output, in training only


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """The text to train on."""

    corpus: str = "data/corpus"  # a folder written by `elmo-jax prepare`
    seed: int = 0  # of the order of the blocks


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """Adagrad on the rows of the softmax; Adagrad or Adam on all else."""

    name: str = "adagrad"  # "adagrad" or "adam": for everything but the softmax
    learning_rate: float = 0.2
    softmax_learning_rate: float = 0.0  # of the softmax rows' Adagrad; 0: the same as `learning_rate`
    initial_accumulator: float = 1.0  # Adagrad's, as the original
    schedule: str = "constant"  # "constant" or "warmup_cosine" (to `final_fraction` of the rate)
    warmup_steps: int = 0
    final_fraction: float = 0.0
    adam_b1: float = 0.9
    adam_b2: float = 0.999
    adam_eps: float = 1e-8
    clip_norm: float = 10.0  # of the global norm over all parameters, softmax rows included; 0: none


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """How the biLM is trained."""

    batch_size: int = 384  # rows over all devices; the original: 128 on each of 3
    unroll_steps: int = 20  # tokens of a row in one step
    epochs: float = 10.0
    steps: int = 0  # 0: as `epochs` says
    carry: str = "endless"  # a row's LSTM state: "endless", as the original, or "block": from zero with each block
    negatives: int = 8192  # of the sampled softmax; 0: the full softmax
    softmax: str = "auto"  # its rows on every device, "replicated", or a share on each, "sharded"; the same numbers
    precision: str = "float32"  # "float32" or "bfloat16" (matrix products only; sums, state and updates stay float32)
    seed: int = 0  # of the initial parameters, dropout and negatives
    log_every: int = 100  # steps
    optimizer: OptimizerConfig = OptimizerConfig()


@dataclasses.dataclass(frozen=True)
class EvaluationConfig:
    """Held-out perplexity: full softmax, no dropout."""

    every: int = 10_000  # steps; 0: only before and after training
    batch_size: int = 64  # rows the text is laid out in; part of the figure's definition (each starts from zero state)
    unroll_steps: int = 64  # tokens of a row in one pass; changes speed and memory only
    vocabulary_chunk: int = 1024  # words of the softmax at a time; changes speed and memory only


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
    """What is kept to go on from."""

    every: int = 5_000  # steps
    keep: int = 3  # newest; the one with the best held-out perplexity is kept beside them


@dataclasses.dataclass(frozen=True)
class FinetuneConfig:
    """What `finetune` does beside training; `pretrain` has no use for it."""

    vocabulary: str = "keep"  # the model's, as the paper does; "extend": with the domain's words behind them
    min_count: int = 2  # words added are used this often in the domain's training text
    vocabulary_size: int = 0  # words of the softmax at most, the model's included; 0: as `min_count` says
    trainable: str = "all"  # "all", "all_but_token_encoder" or "softmax"; all else stays bit-equal
    evaluations: int = 4  # an epoch, whatever `evaluation.every` says; 0: as that says
    patience: int = 3  # held-out evaluations without a lower perplexity that end the training; 0: never
    softmax_epochs: float = 1.0  # on the softmax alone, where the model comes without one


@dataclasses.dataclass(frozen=True)
class Config:
    """One experiment."""

    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    train: TrainConfig = TrainConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    finetune: FinetuneConfig = FinetuneConfig()


# Settings that may differ between two launches of one run: none changes a step that both would make. (A schedule does
# depend on the number of steps: a longer run follows the longer schedule from where it stands.)
CHANGEABLE = (
    "train.epochs",
    "train.steps",
    "train.log_every",
    "train.softmax",  # but for rounding
    "evaluation.every",
    "finetune.evaluations",
    "evaluation.unroll_steps",
    "evaluation.vocabulary_chunk",
    "checkpoint.every",
    "checkpoint.keep",
    "data.corpus",  # the folder may move; its fingerprint must not change
)


def default_config() -> ConfigDict:
    """The defaults, for an experiment's `get_config()` to edit and return; locked, so a misspelt key fails there."""
    return ConfigDict(dataclasses.asdict(Config())).lock()


def to_dict(config: Any) -> dict[str, Any]:
    """A (part of a) config as plain dicts, as it is written to JSON."""
    return dataclasses.asdict(config)


def from_dict(values: Any, cls: type = Config, where: str = "config") -> Any:
    """Builds the frozen dataclass `cls` from nested dicts or a `ConfigDict`; absent keys take their defaults.

    Raises:
      UserError: an unknown key (with the near miss) or a value of the wrong type.
    """
    types = typing.get_type_hints(cls)
    known = {field.name for field in dataclasses.fields(cls)}
    arguments = {}
    for key, value in values.items():
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            hint = f"did you mean '{near[0]}'?" if near else f"known keys: {', '.join(sorted(known))}"
            raise UserError(f"{where}.{key}: no such setting; {hint}")
        if dataclasses.is_dataclass(types[key]):
            arguments[key] = from_dict(value, types[key], f"{where}.{key}")
        else:
            arguments[key] = _converted(value, types[key], f"{where}.{key}")
    config = cls(**arguments)
    if cls is Config:
        check(config)
    elif cls is ModelConfig:
        check_model(config)
    return config


def _converted(value: Any, expected: Any, where: str) -> Any:
    """`value` as the field's type: JSON and ConfigDicts turn tuples to lists and allow 1 for 1.0."""
    if typing.get_origin(expected) is tuple:  # only `filters`
        try:
            return tuple((int(width), int(number)) for width, number in value)
        except (TypeError, ValueError):
            raise UserError(f"{where}: expected pairs (width, number), got {value!r}") from None
    if expected is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not expected:
        raise UserError(f"{where}: expected {expected.__name__}, got {value!r}")
    return value


_AT_LEAST_ONE = (
    *("train.batch_size", "train.unroll_steps", "train.log_every", "finetune.min_count", "checkpoint.every"),
    *("evaluation.batch_size", "evaluation.unroll_steps", "evaluation.vocabulary_chunk", "checkpoint.keep"),
)
_NOT_NEGATIVE = (
    *("train.negatives", "train.steps", "train.epochs", "train.optimizer.warmup_steps", "evaluation.every"),
    *("finetune.vocabulary_size", "finetune.evaluations", "finetune.patience", "finetune.softmax_epochs"),
)


def check(config: Config) -> None:
    """Raises `UserError` for settings that cannot be trained with; one line that names the key."""
    check_model(config.model)
    train, optimizer = config.train, config.train.optimizer
    _choice("train.carry", train.carry, ("endless", "block"))
    _choice("train.softmax", train.softmax, ("auto", "replicated", "sharded"))
    _choice("train.precision", train.precision, ("float32", "bfloat16"))
    _choice("train.optimizer.name", optimizer.name, ("adagrad", "adam"))
    _choice("train.optimizer.schedule", optimizer.schedule, ("constant", "warmup_cosine"))
    _choice("finetune.vocabulary", config.finetune.vocabulary, ("keep", "extend"))
    _choice("finetune.trainable", config.finetune.trainable, ("all", "all_but_token_encoder", "softmax"))
    if optimizer.name == "adam" and not optimizer.softmax_learning_rate:
        raise UserError(
            "config.train.optimizer.softmax_learning_rate: give the rate of the softmax rows' Adagrad (the original's"
            " is 0.2); with 'adam' it cannot be the same as learning_rate"
        )
    for key in _AT_LEAST_ONE + _NOT_NEGATIVE:
        _at_least(1 if key in _AT_LEAST_ONE else 0, operator.attrgetter(key)(config), key)
    for key, rate in (
        ("learning_rate", optimizer.learning_rate),
        ("initial_accumulator", optimizer.initial_accumulator),
    ):
        if not rate > 0:
            raise UserError(f"config.train.optimizer.{key}: expected a number above 0, got {rate}")


def check_model(model: ModelConfig) -> None:
    """Raises `UserError` for a model that cannot be built."""
    char_cnn, lstm = model.char_cnn, model.lstm
    _choice("model.char_cnn.activation", char_cnn.activation, ("relu", "tanh"))
    _at_least(3, char_cnn.max_characters, "model.char_cnn.max_characters")
    if char_cnn.max_characters > 127:  # positions are kept as int8
        raise UserError(f"config.model.char_cnn.max_characters: expected at most 127, got {char_cnn.max_characters}")
    _at_least(1, char_cnn.embedding_dim, "model.char_cnn.embedding_dim")
    _at_least(0, char_cnn.highways, "model.char_cnn.highways")
    if not char_cnn.filters:
        raise UserError("config.model.char_cnn.filters: expected at least one pair (width, number)")
    for width, number in char_cnn.filters:
        if not (1 <= width <= char_cnn.max_characters and number >= 1):
            raise UserError(
                f"config.model.char_cnn.filters: ({width}, {number}) is no filter: expected a width of 1 to"
                f" {char_cnn.max_characters} characters and a number of at least 1"
            )
    _at_least(1, lstm.layers, "model.lstm.layers")
    _at_least(1, lstm.projection, "model.lstm.projection")
    if lstm.cells < lstm.projection:
        raise UserError(
            f"config.model.lstm.cells: expected at least the projection, {lstm.projection}, got {lstm.cells}"
        )
    if not 0 <= model.dropout < 1:
        raise UserError(f"config.model.dropout: expected 0 <= dropout < 1, got {model.dropout}")


def _choice(key: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise UserError(f"config.{key}: expected {' or '.join(map(repr, choices))}, got {value!r}")


def _at_least(least: int, value: float, key: str) -> None:
    if value < least:
        raise UserError(f"config.{key}: expected at least {least}, got {value}")


def differences(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> dict[str, tuple[Any, Any]]:
    """The settings that differ between two `to_dict` results: dotted key -> (old, new)."""
    found: dict[str, tuple[Any, Any]] = {}
    for key in sorted(old.keys() | new.keys()):
        a, b = old.get(key), new.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            found |= differences(a, b, f"{prefix}{key}.")
        elif _plain(a) != _plain(b):
            found[prefix + key] = (a, b)
    return found


def _plain(value: Any) -> Any:
    """Tuples as lists, so that a config compares equal to itself read back from JSON."""
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
