"""The settings of the vectors that `elmo-jax embed` writes.

Shapes: T words per line, L LSTM layers, P projection.
"""

import dataclasses
import enum
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from elmo_jax.config import ModelConfig
from elmo_jax.embedding.embed import CarryState, split_layers
from elmo_jax.errors import UserError


class Format(enum.Enum):
    """The format of the output."""

    HDF5 = "hdf5"  # one file, a dataset per line
    NPY = "npy"  # a folder of NumPy files of at most 1,024 lines each (`elmo_jax.embedding.shards`)


class Output(enum.Enum):
    """The choice of what is written of a sentence's layers."""

    ALL = "all"  # [L+1, T, 2P]
    TOP = "top"  # [T, 2P], the last layer
    AVERAGE = "average"  # [T, 2P], the mean of the layers
    MIX = "mix"  # [T, 2P], gamma * sum_j softmax(weights)_j * layer j


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of the vectors to write."""

    output: Output = Output.ALL
    weights: tuple[float, ...] = ()  # for MIX, the L+1 raw weights before the softmax
    gamma: float = 1.0  # for MIX, the factor of equation 1
    dtype: str = "float32"  # or "float16"
    state: CarryState = CarryState.RESET  # at the beginning of a line
    format: Format = Format.HDF5
    mean_of_words: bool = False  # whether a line has the mean of its words' vectors, T = 1
    # whether an HDF5 file has `sentence_to_index` too, as AllenNLP's: the name of each sentence's dataset, in JSON; of
    # equal lines, it names the last one
    sentence_index: bool = False

    def check(self, layers: int) -> None:
        """Raises `UserError` unless the settings fit each other and the number of layers, L+1."""
        if (self.output is Output.MIX) != bool(self.weights):
            raise UserError("--layers mix and --weights go together; weights are numbers such as 0.1,0.3,-0.2")
        if self.output is not Output.MIX and self.gamma != 1:
            raise UserError(f"--gamma {self.gamma:g}: has an effect only with --layers mix")
        if self.sentence_index and self.format is not Format.HDF5:
            raise UserError("--sentence-index: needs --format hdf5; line i of a folder is number i of the text")
        for name, number in [("--gamma", self.gamma), *(("--weights", weight) for weight in self.weights)]:
            if not math.isfinite(number):
                raise UserError(f"{name}: expected finite numbers, got {number}")
        if self.weights and len(self.weights) != layers:
            raise UserError(f"--weights: {len(self.weights)} weights, but this biLM has {layers} layers of vectors")

    def as_dict(self) -> dict[str, Any]:
        """Returns what the vectors depend on, as JSON values; the format is not part of it."""
        values = {"output": self.output.value, "weights": self.weights, "gamma": self.gamma, "dtype": self.dtype}
        chosen = {name: True for name in ("mean_of_words", "sentence_index") if getattr(self, name)}
        return values | {"state": self.state.value} | chosen

    def vectors_of(self, words: int) -> int:
        """Returns the number of vectors of a line of so many words."""
        return min(words, 1) if self.mean_of_words else words

    def form(self, layers: int) -> tuple[str, np.ndarray | None]:
        """Returns the type and the weight of each of `layers` = L+1 layers, with which `Engine.start` computes."""
        fixed = {Output.TOP: np.eye(layers)[-1], Output.AVERAGE: np.full(layers, 1 / layers)}
        weights = fixed.get(self.output)
        if self.output is Output.MIX:
            shares = np.exp(np.asarray(self.weights) - max(self.weights))
            weights = shares * (self.gamma / shares.sum())
        return "float32" if self.mean_of_words else self.dtype, weights

    def written(self, vectors: np.ndarray, lengths: Sequence[int], config: ModelConfig) -> np.ndarray:
        """Returns what is written of the output of some lines [N, …]: layers [N, L+1, 2P] or mixes [N, 2P]."""
        if self.mean_of_words:
            words = np.array([length for length in lengths if length])
            sums = np.add.reduceat(vectors, np.cumsum(words) - words) if len(words) else vectors
            with np.errstate(over="ignore"):  # `embed_file` refuses infinities
                vectors = (sums / words[:, None].astype(np.float32)).astype(self.dtype)
        if self.output is not Output.ALL:
            return vectors
        layers = np.empty((len(vectors), config.lstm.layers + 1, config.width), vectors.dtype)
        split_layers(vectors, layers, config)
        return layers
