"""Every setting of a biLM's training and its default, in one place.

The code reads frozen dataclasses; an experiment file edits a `ml_collections.ConfigDict` of the same shape, so that a
misspelt key is an error and every key can be overridden on the command line (`--config.train.batch_size=64`).
Defaults are those of the paper's 1 Billion Word model (Peters et al. 2018; "original" is its released trainer).
"""

import dataclasses
from typing import Literal

from ml_collections import ConfigDict

from elmo_jax.errors import UserError
from elmo_jax.settings import LARGEST_INTEGER, fraction, setting, to_dict

DIRECTIONS = ("forward", "backward")
ORIGINAL_FILTERS = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))
_MOST_LAYERS = 1000  # far more than in any biLM; bounds the list of parameters that a small file can demand
_TINY = 1e-30  # the smallest constant that keeps a divisor above 0; float32 has no numbers far below it
_HUGE = 1e9  # the largest bound on numbers that are themselves far smaller; float32 can compute with it
TRACKERS = ("tensorboard", "wandb")
WIDEST = 2**20  # the widest layer: far wider than in any biLM, and small enough that its bytes can be counted


@dataclasses.dataclass(frozen=True)
class CharCNNConfig:
    """The token encoder: a character CNN, highway layers and a projection (paper, section 3.4)."""

    embedding_dim: int = setting(16, "The dimension of a character's embedding.", least=1, most=WIDEST)
    filters: tuple[tuple[int, int], ...] = setting(
        ORIGINAL_FILTERS, "Pairs (width in characters, number) of the filters.", least=1, most=WIDEST
    )
    highways: int = setting(2, "The number of highway layers after the convolutions.", least=0, most=_MOST_LAYERS)
    activation: Literal["relu", "tanh"] = setting("relu", "The activation of each filter's maximum over the positions.")
    max_characters: int = setting(
        50, "The number of characters read per word, including the begin and end characters.", least=3, most=127
    )  # at most 127, since positions are stored as int8

    @property
    def features(self) -> int:
        """The number of filters of all widths, which is the width of the highway layers."""
        return sum(number for _, number in self.filters)


@dataclasses.dataclass(frozen=True)
class LSTMConfig:
    """The stack of LSTM layers with projections, the same for each direction."""

    cells: int = setting(4096, "The number of cells per layer.", least=1, most=WIDEST)
    projection: int = setting(
        512, "The dimension of a layer's output; if it equals `cells`, there is no projection.", least=1, most=WIDEST
    )
    layers: int = setting(2, "The number of layers per direction.", least=1, most=_MOST_LAYERS)
    cell_clip: float = setting(3.0, "The bound on a cell's absolute value; 0 means no bound.", least=0, most=_HUGE)
    projection_clip: float = setting(3.0, "The bound of projected outputs; 0 means no bound.", least=0, most=_HUGE)
    skip_connections: bool = setting(True, "Whether a layer's input is added to its output, from the second layer on.")


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """The biLM without its softmax, whose size follows from the vocabulary."""

    char_cnn: CharCNNConfig = CharCNNConfig()
    lstm: LSTMConfig = LSTMConfig()
    dropout: float = fraction(
        0.1, "The fraction of units dropped in training, at every LSTM layer's input and the top layer's output."
    )
    directions: tuple[str, ...] = setting(
        DIRECTIONS, "The directions: forward and backward, or forward alone, for a language model of the left context."
    )

    @property
    def width(self) -> int:
        """The dimension of a layer's vectors, in which the directions are concatenated."""
        return len(self.directions) * self.lstm.projection

    def check(self, where: str = "config") -> None:
        cnn, lstm = self.char_cnn, self.lstm
        if self.directions not in (DIRECTIONS, DIRECTIONS[:1]):
            raise UserError(f"{where}.directions: expected {DIRECTIONS} or {DIRECTIONS[:1]}, got {self.directions}")
        if not 1 <= len(cnn.filters) <= _MOST_LAYERS:
            expected = f"expected 1 to {_MOST_LAYERS} pairs (width, number), got {len(cnn.filters)}"
            raise UserError(f"{where}.char_cnn.filters: {expected}")
        for width, number in cnn.filters:
            if width > cnn.max_characters:
                expected = f"expected a width of 1 to {cnn.max_characters} characters"
                raise UserError(f"{where}.char_cnn.filters: ({width}, {number}) is no filter: {expected}")
        if lstm.cells < lstm.projection:
            expected = f"expected at least the projection, {lstm.projection}"
            raise UserError(f"{where}.lstm.cells: {expected}, got {lstm.cells}")


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """The text that the biLM is trained on."""

    corpus: str = setting("data/corpus", "The folder that `elmo-jax prepare` wrote.")
    seed: int = setting(0, "The random seed for the order of the blocks.", least=0)
    mixture: tuple[tuple[str, float], ...] = setting(
        (), "Pairs (name, weight): how often an epoch reads each source, by default once.", least=0, most=100
    )

    def check(self, where: str = "config.data") -> None:
        names = [name for name, _ in self.mixture]
        for name in names:
            if names.count(name) > 1:
                raise UserError(f"{where}.mixture: the source {name!r} is listed twice; expected one weight per source")


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """The optimizers: Adagrad for the rows of the softmax, and Adagrad or Adam for all other parameters."""

    name: Literal["adagrad", "adam"] = setting("adagrad", "The optimizer of all parameters except the softmax.")
    learning_rate: float = setting(0.2, "The learning rate of all parameters except the softmax.", above=0, most=1e3)
    softmax_learning_rate: float = setting(
        0.0, "The learning rate of Adagrad for the softmax rows; 0 means `learning_rate`.", least=0, most=1e3
    )
    initial_accumulator: float = setting(1.0, "The initial value of Adagrad's accumulators.", least=_TINY, most=_HUGE)
    schedule: Literal["constant", "warmup_cosine"] = setting(
        "constant", "The learning rate schedule: constant, or a linear warmup followed by a cosine decay."
    )
    warmup_steps: int = setting(0, "The number of steps of the linear warmup of warmup_cosine.", least=0)
    final_fraction: float = setting(0.0, "The fraction of the rates at which the decay ends.", least=0, most=1)
    adam_b1: float = fraction(0.9, "Adam's decay rate for the mean of the gradients.")
    adam_b2: float = fraction(0.999, "Adam's decay rate for the mean of the squared gradients.")
    adam_eps: float = setting(1e-8, "The constant that Adam adds to the divisor of its updates.", least=_TINY, most=1)
    clip_norm: float = setting(
        10.0, "The bound on the gradient's norm, including the softmax rows; 0 means no bound.", least=0, most=_HUGE
    )


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """The training of the biLM."""

    batch_size: int = setting(384, "The number of rows over all devices; bilm-tf has 128 on each of 3.", least=1)
    accumulate: int = setting(
        1, "The number of groups of rows that a device trains in turn in a step, which takes less memory.", least=1
    )
    unroll_steps: int = setting(20, "The number of tokens per row and step.", least=1)
    epochs: float = setting(10.0, "The number of epochs, each as `data.mixture` says.", least=0, most=1e6)
    steps: int = setting(0, "The number of updates; 0 means as many as `epochs` epochs take.", least=0)
    carry: Literal["endless", "block"] = setting(
        "endless", "Whether a row's LSTM state is never reset, as in bilm-tf, or is reset at each block."
    )
    negatives: int = setting(8192, "The number of negative samples of a step; 0 means the full softmax.", least=0)
    softmax: Literal["auto", "replicated", "sharded"] = setting(
        "auto", "Whether every device holds all rows of the softmax or a share; results are equal up to rounding."
    )
    precision: Literal["float32", "bfloat16", "auto"] = setting(
        "float32",
        "The type of the operands of matrix products; sums, state and updates are always float32. `auto` means bfloat16"
        " on accelerators and on processors with instructions for it, otherwise float32.",
    )
    seed: int = setting(0, "The random seed for the initial parameters, dropout and negative samples.", least=0)
    log_every: int = setting(100, "The number of steps between two reports.", least=1)
    log_seconds: float = setting(
        30.0, "The number of seconds after which a report comes earlier than that; 0 means never.", least=0, most=1e9
    )
    profile: tuple[int, ...] = setting(
        (), "The first step to trace with JAX's profiler, and the number of steps.", least=1, most=LARGEST_INTEGER
    )
    trackers: tuple[str, ...] = setting(
        ("tensorboard",), "What the metrics are reported to, next to metrics.jsonl: tensorboard, wandb."
    )
    watchdog: float = setting(
        30.0, "Minutes without a step (tenfold for other work) that end the process; 0: never.", least=0, most=1e6
    )
    optimizer: OptimizerConfig = OptimizerConfig()

    @property
    def tokens_per_step(self) -> int:
        """The number of tokens of all rows in one step; a token counts once, not once per direction."""
        return self.batch_size * self.unroll_steps


@dataclasses.dataclass(frozen=True)
class EvaluationConfig:
    """The evaluation of held-out perplexity, with the full softmax and without dropout."""

    every: int = setting(10_000, "The number of steps between evaluations; 0 for none during training.", least=0)
    tokens: int = setting(
        0,
        "The number of held-out tokens that are evaluated, in blocks spread evenly over the text; 0 means all of them"
        " at the end, and during training as many as take 5% of the run, at least 20,000.",
        least=0,
    )
    batch_size: int = setting(
        64, "The number of rows of the text; each starts from a zero state, so the metric depends on it.", least=1
    )
    unroll_steps: int = setting(64, "The number of tokens per row and pass; it affects speed and memory only.", least=1)
    vocabulary_chunk: int = setting(1024, "The words scored at a time; it affects speed and memory only.", least=1)


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
    """The checkpoints that a run can resume from."""

    every: int = setting(5_000, "The number of steps between two checkpoints.", least=1)
    minutes: float = setting(15.0, "The minutes after which a checkpoint comes earlier; 0: never.", least=0, most=1e6)
    keep_every: int = setting(0, "The number of steps between checkpoints that are kept forever; 0: none.", least=0)
    keep: int = setting(3, "The number of newest checkpoints kept, in addition to the best one.", least=1)


@dataclasses.dataclass(frozen=True)
class FinetuneConfig:
    """The settings of `finetune` beyond those of training; `pretrain` ignores them."""

    vocabulary: Literal["keep", "extend"] = setting(
        "keep", "Whether the softmax keeps the model's words, as in the paper, or is extended by the domain's words."
    )
    min_count: int = setting(2, "The number of uses in the training text from which a word is added.", least=1)
    vocabulary_size: int = setting(
        0, "The maximum number of words of the softmax; 0 means that only `min_count` decides.", least=0
    )
    trainable: Literal["all", "all_but_token_encoder", "softmax"] = setting(
        "all", "The parameters that are trained; all others stay equal bit for bit."
    )
    evaluations: int = setting(4, "The number of evaluations per epoch; 0 means `evaluation.every`.", least=0)
    patience: int = setting(
        3, "The number of evaluations without a lower held-out perplexity that end the run; 0 means never.", least=0
    )
    optimizer: Literal["continue", "fresh"] = setting(
        "continue", "Whether Adagrad continues with the accumulators of a checkpoint of bilm-tf, or with new ones."
    )
    softmax_epochs: float = setting(
        1.0, "The number of epochs in which the softmax alone is trained, if the model has none.", least=0, most=1e6
    )


@dataclasses.dataclass(frozen=True)
class Config:
    """All settings of one experiment."""

    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    train: TrainConfig = TrainConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    finetune: FinetuneConfig = FinetuneConfig()

    def check(self, where: str = "config") -> None:
        trackers = self.train.trackers
        if len(set(trackers)) < len(trackers) or not set(trackers) <= set(TRACKERS):
            expected = f"expected some of {', '.join(TRACKERS)}"
            raise UserError(f"{where}.train.trackers: {expected}, got {', '.join(trackers)}")
        optimizer = self.train.optimizer
        if optimizer.name == "adam" and not optimizer.softmax_learning_rate:
            raise UserError(
                f"{where}.train.optimizer.softmax_learning_rate: expected the learning rate of Adagrad for the softmax"
                " rows (0.2 in bilm-tf), got 0; with optimizer 'adam' it does not default to learning_rate"
            )


# Settings that may differ between two launches of one run, because none changes a step that both launches would make.
# (A schedule does depend on the number of steps: a lengthened run continues on the schedule of the new length.)
CHANGEABLE = (
    "train.epochs",
    "train.steps",
    "train.log_every",
    "train.log_seconds",
    "train.profile",
    "train.trackers",
    "train.watchdog",
    "train.softmax",  # the numbers are the same up to rounding
    "train.accumulate",  # likewise without dropout, as with another number of devices
    "evaluation.every",
    "finetune.evaluations",
    "evaluation.unroll_steps",
    "evaluation.vocabulary_chunk",
    "checkpoint.every",
    "checkpoint.minutes",
    "checkpoint.keep_every",
    "checkpoint.keep",
    "data.corpus",  # the folder may move, but its fingerprint must stay the same
)


def default_config() -> ConfigDict:
    """Returns the defaults for an experiment's `get_config()` to edit; locked, so that a misspelt key is an error."""
    return ConfigDict(to_dict(Config())).lock()
