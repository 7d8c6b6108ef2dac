"""Every setting of a biLM's training and its default, in one place.

The code reads frozen dataclasses; an experiment file edits a `ml_collections.ConfigDict` of the same shape, so that a
misspelt key is an error and every key can be overridden on the command line (`--config.train.batch_size=64`).
Defaults are those of the paper's 1 Billion Word model (Peters et al. 2018; "original" is its released trainer).
"""

from __future__ import annotations

import dataclasses
from typing import Literal

from ml_collections import ConfigDict

from elmo_jax.errors import UserError
from elmo_jax.settings import setting, to_dict

ORIGINAL_FILTERS = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))
_WIDEST = 2**20  # of a layer: far more than any biLM has had, and little enough to count its bytes


@dataclasses.dataclass(frozen=True)
class CharCNNConfig:
    """The token encoder: character CNN, highways, projection."""

    embedding_dim: int = setting(16, "Numbers in a character's vector.", least=1, most=_WIDEST)
    filters: tuple[tuple[int, int], ...] = setting(
        ORIGINAL_FILTERS, "Pairs of a filter's width in characters and how many filters there are of it."
    )
    highways: int = setting(2, "Highway layers behind the filters.", least=0, most=1000)
    activation: Literal["relu", "tanh"] = setting("relu", "Applied after the maximum over positions.")
    max_characters: int = setting(
        50, "Characters of a word that are read, the begin and end marks included.", least=3, most=127
    )  # positions are kept as int8

    @property
    def features(self) -> int:
        """The number of all filters: the width of the highways."""
        return sum(number for _, number in self.filters)


@dataclasses.dataclass(frozen=True)
class LSTMConfig:
    """The stack of projected LSTMs of one direction."""

    cells: int = setting(4096, "Cells of a layer.", least=1, most=_WIDEST)
    projection: int = setting(
        512, "Numbers in a layer's output; equal to `cells`, the layers have no projection.", least=1, most=_WIDEST
    )
    layers: int = setting(2, "Layers of each direction.", least=1, most=1000)
    cell_clip: float = setting(3.0, "Bound of a cell's absolute value; 0 for no bound.", least=0)
    projection_clip: float = setting(3.0, "Bound of a projected output's absolute value; 0 for no bound.", least=0)
    skip_connections: bool = setting(True, "Whether a layer's input is added to its output, from the second layer on.")


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """The biLM without its softmax, whose size is that of the vocabulary."""

    char_cnn: CharCNNConfig = CharCNNConfig()
    lstm: LSTMConfig = LSTMConfig()
    dropout: float = setting(
        0.1,
        "Share of the units dropped in training, at the input of every LSTM layer and the top output.",
        least=0,
        below=1,
    )

    def check(self, where: str = "config") -> None:
        """Raises `UserError` for a model that cannot be built."""
        char_cnn, lstm = self.char_cnn, self.lstm
        if not char_cnn.filters:
            raise UserError(f"{where}.char_cnn.filters: expected at least one pair (width, number)")
        for width, number in char_cnn.filters:
            if not (1 <= width <= char_cnn.max_characters and 1 <= number <= _WIDEST):
                raise UserError(
                    f"{where}.char_cnn.filters: ({width}, {number}) is no filter: expected a width of 1 to"
                    f" {char_cnn.max_characters} characters and a number of 1 to {_WIDEST}"
                )
        if lstm.cells < lstm.projection:
            raise UserError(
                f"{where}.lstm.cells: expected at least the projection, {lstm.projection}, got {lstm.cells}"
            )


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """The text to train on."""

    corpus: str = setting("data/corpus", "The folder that `elmo-jax prepare` wrote.")
    seed: int = setting(0, "Random seed of the order of the blocks.", least=0)


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """Adagrad on the rows of the softmax; Adagrad or Adam on all else."""

    name: Literal["adagrad", "adam"] = setting("adagrad", "The optimizer of everything but the softmax.")
    learning_rate: float = setting(0.2, "The learning rate of everything but the softmax.", above=0)
    softmax_learning_rate: float = setting(
        0.0, "The learning rate of the softmax rows' Adagrad; 0 for that of everything else.", least=0
    )
    initial_accumulator: float = setting(1.0, "What Adagrad's accumulators start from.", above=0)
    schedule: Literal["constant", "warmup_cosine"] = setting(
        "constant", "How the learning rates change: not at all, or up linearly and then down along a cosine."
    )
    warmup_steps: int = setting(0, "Steps in which the learning rates rise.", least=0)
    final_fraction: float = setting(0.0, "Share of the learning rates that the cosine ends at.", least=0, most=1)
    adam_b1: float = setting(0.9, "Adam's decay of the mean of gradients.", least=0, below=1)
    adam_b2: float = setting(0.999, "Adam's decay of the mean of squared gradients.", least=0, below=1)
    adam_eps: float = setting(1e-8, "What Adam adds to the root of the mean of squared gradients.", above=0)
    clip_norm: float = setting(
        10.0, "Bound of the gradient's norm over all parameters, softmax rows included; 0 for no bound.", least=0
    )


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """How the biLM is trained."""

    batch_size: int = setting(384, "Rows over all devices; the original has 128 on each of 3.", least=1)
    unroll_steps: int = setting(20, "Tokens of a row in one step.", least=1)
    epochs: float = setting(10.0, "How often the text is read.", least=0, most=1e6)
    steps: int = setting(0, "Updates to make; 0 for as many as `epochs` says.", least=0)
    carry: Literal["endless", "block"] = setting(
        "endless", "Whether a row's LSTM state goes on for ever, as the original's, or starts from zero in each block."
    )
    negatives: int = setting(8192, "Negatives of the sampled softmax; 0 for the full softmax.", least=0)
    softmax: Literal["auto", "replicated", "sharded"] = setting(
        "auto", "Whether all devices hold all of the softmax's rows or a share each; the numbers are the same."
    )
    precision: Literal["float32", "bfloat16"] = setting(
        "float32", "Of the operands of matrix products; sums, state and updates stay float32."
    )
    seed: int = setting(0, "Random seed of the initial parameters, dropout and negatives.", least=0)
    log_every: int = setting(100, "Steps between two reports.", least=1)
    optimizer: OptimizerConfig = OptimizerConfig()

    @property
    def tokens_per_step(self) -> int:
        """Tokens of all rows in one step, each counted once."""
        return self.batch_size * self.unroll_steps


@dataclasses.dataclass(frozen=True)
class EvaluationConfig:
    """Held-out perplexity: full softmax, no dropout."""

    every: int = setting(10_000, "Steps between two evaluations; 0 for only before and after training.", least=0)
    batch_size: int = setting(
        64, "Rows the text is laid out in, each from a zero state: part of what the metric means.", least=1
    )
    unroll_steps: int = setting(64, "Tokens of a row in one pass; changes speed and memory only.", least=1)
    vocabulary_chunk: int = setting(
        1024, "Words of the softmax scored at a time; changes speed and memory only.", least=1
    )


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
    """What is kept to go on from."""

    every: int = setting(5_000, "Steps between two checkpoints.", least=1)
    keep: int = setting(3, "Newest checkpoints kept, beside that with the best held-out perplexity.", least=1)


@dataclasses.dataclass(frozen=True)
class FinetuneConfig:
    """What `finetune` does beside training; `pretrain` has no use for it."""

    vocabulary: Literal["keep", "extend"] = setting(
        "keep", "Whether the softmax keeps the model's words, as the paper does, or has the domain's words behind them."
    )
    min_count: int = setting(2, "Words that are added are used this often in the domain's training text.", least=1)
    vocabulary_size: int = setting(
        0, "The most words of the softmax, the model's included; 0 for as many as `min_count` gives.", least=0
    )
    trainable: Literal["all", "all_but_token_encoder", "softmax"] = setting(
        "all", "What is trained; everything else stays equal bit for bit."
    )
    evaluations: int = setting(
        4, "Evaluations per epoch, whatever `evaluation.every` says; 0 for as that says.", least=0
    )
    patience: int = setting(
        3, "Evaluations without a lower held-out perplexity that end the training; 0 for never.", least=0
    )
    softmax_epochs: float = setting(
        1.0, "Epochs of training the softmax alone, where the model comes without one.", least=0, most=1e6
    )


@dataclasses.dataclass(frozen=True)
class Config:
    """One experiment."""

    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    train: TrainConfig = TrainConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    finetune: FinetuneConfig = FinetuneConfig()

    def check(self, where: str = "config") -> None:
        """Raises `UserError` for settings that do not go together."""
        optimizer = self.train.optimizer
        if optimizer.name == "adam" and not optimizer.softmax_learning_rate:
            raise UserError(
                f"{where}.train.optimizer.softmax_learning_rate: give the rate of the softmax rows' Adagrad (the"
                " original's is 0.2); with 'adam' it cannot be the same as learning_rate"
            )


# Settings that may differ between two launches of one run: none changes a step that both would make. (A schedule does
# depend on the number of steps: a longer run follows the longer schedule from where it stands.)
CHANGEABLE = (
    "train.epochs",
    "train.steps",
    "train.log_every",
    "train.softmax",  # the numbers are the same up to rounding
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
    return ConfigDict(to_dict(Config())).lock()
