"""The settings of a task's training; those of its model are declared with the model; see `Task.config_class`."""

import dataclasses
from typing import Literal

from elmo_jax.data.prepare.options import LANGUAGES
from elmo_jax.errors import UserError
from elmo_jax.settings import fraction, setting


@dataclasses.dataclass(frozen=True)
class TaskDataConfig:
    """The sources of the annotated texts, each a path or, if TFDS has the dataset, `tfds:NAME[:SPLIT]`."""

    train: str = setting("", "The training examples: a file, several files separated by commas, or tfds:NAME:SPLIT.")
    dev: str = setting("", "The examples that select the best epoch.")
    test: str = setting("", "The examples that the selected epoch is tested on; empty for none.")
    reader: str = setting("", "A function read(path, config, use) for other files, as module:function.")
    language: str = setting("", "The ISO 639-1 code of the language of running text; empty for that of the biLM.")
    train_fraction: float = setting(1.0, "The fraction of the training examples that is used.", above=0, most=1)

    def check(self, where: str = "config") -> None:
        if self.language and self.language not in LANGUAGES:
            raise UserError(f"{where}.language: expected an ISO 639-1 code such as de, got {self.language!r}")


@dataclasses.dataclass(frozen=True)
class ElmoConfig:
    """How the biLM enters the task model (paper, sections 3.2 and 3.3)."""

    where: Literal["input", "output", "both", "after_first"] = setting(
        "input",
        "Where ELMo enters: at the input of the task's RNN, at its output, at both with a mix each, or, in the tagger"
        " of named entities alone, after its first layer as in TagLM.",
    )
    layers: str = setting("all", "The layers used: all (a mix), top, token (unscaled), or the number of an LSTM layer.")
    regularization: float = setting(0.0, "The factor of the squares of each mix's raw weights.", least=0, most=1e6)
    layer_norm: Literal["none", "tokens", "without_bos_eos"] = setting(
        "none",
        "The normalization of the layers: none; tokens, each vector by its own mean and variance; or without_bos_eos,"
        " as bilm-tf's, each layer over the batch before they are mixed, so that a prediction depends on the batch.",
    )
    train_gamma: bool = setting(True, "Whether the scale of each mix is trained; otherwise it stays 1.")
    dropout: float = fraction(0.5, "The fraction of the units of each mix dropped in training.")
    precompute: bool = setting(True, "Whether the frozen layers are computed once and read from files.")
    dtype: Literal["float16", "float32"] = setting(
        "float16", "The type of the numbers in these files, to which those of predictions are rounded."
    )
    cache: str = setting("", "The folder of these files; empty for the folder elmo/ in the run's folder.")
    trainable: Literal["none", "lstms", "all"] = setting("none", "The part of the biLM that is trained with the task.")
    learning_rate: float = setting(0.0, "The learning rate of that part; 0 for the task's.", least=0, most=1e3)
    unfreeze_epochs: int = setting(
        0, "The epochs after which one more layer of it is trained, from the top; 0 for all.", least=0, most=10**6
    )

    @property
    def positions(self) -> tuple[str, ...]:
        return ("input", "output") if self.where == "both" else (self.where,)

    @property
    def stored_dtype(self) -> str:
        """The type of the frozen layers; those computed for a prediction are rounded as those of the training were."""
        return self.dtype if self.precompute else "float32"

    def check(self, where: str = "config") -> None:
        if self.layers not in ("all", "top", "token") and not self.layers.isdecimal():
            raise UserError(f"{where}.layers: expected all, top, token or the number of a layer, got {self.layers!r}")
        if self.trainable == "none":
            if self.learning_rate or self.unfreeze_epochs:
                raise UserError(f"{where}.trainable: none; learning_rate and unfreeze_epochs would have no effect")
        elif self.precompute or self.layers == "token":
            raise UserError(f"{where}.trainable: needs precompute=false and LSTM layers, not 'token'")


@dataclasses.dataclass(frozen=True)
class WordVectorsConfig:
    """The context-independent vectors of words."""

    path: str = setting(
        "",
        "The pretrained vectors: a text file of GloVe or word2vec (or .gz, .xz, .zip), or glove-6b-50d; empty: none."
        " The vectors of several files, separated by commas, are concatenated.",
    )
    dim: int = setting(50, "The dimension if none are pretrained; 0 for no word vectors.", least=0, most=4096)
    trainable: bool = setting(True, "Whether the vectors are trained with the task.")
    lowercase: Literal["always", "if_absent", "never"] = setting(
        "always", "Whether words are looked up in lower case: always, only if their own form is absent, or never."
    )
    digits: Literal["keep", "zero"] = setting("keep", "Whether digits are kept or all replaced by 0.")
    unknown: Literal["random", "zero"] = setting("random", "The initial vector of a word without a pretrained one.")
    normalize: bool = setting(False, "Whether each pretrained vector is divided by its L2 norm.")
    min_count: int = setting(1, "The minimum training count of a word for a vector that is not pretrained.", least=1)


@dataclasses.dataclass(frozen=True)
class CharactersConfig:
    """The task's own small character CNN; without filters, there is none."""

    embedding_dim: int = setting(16, "The dimension of a character's embedding.", least=1, most=4096)
    filters: tuple[tuple[int, int], ...] = setting((), "Pairs (width, number of filters).", least=1, most=2**20)
    max_characters: int = setting(40, "The number of characters read per word.", least=1, most=1000)
    min_count: int = setting(1, "The minimum training count for a character to have its own vector.", least=1)
    initial: Literal["xavier", "narrow"] = setting("xavier", "The initial embeddings: Xavier-uniform, or within 0.05.")
    dropout: float = fraction(0.0, "The fraction of the embeddings' numbers dropped in training, below the filters.")


@dataclasses.dataclass(frozen=True)
class TaskOptimizerConfig:
    """The optimizer of the task's parameters."""

    name: Literal["adam", "adadelta"] = setting("adam", "The optimizer.")
    learning_rate: float = setting(1e-3, "The learning rate.", above=0, most=1e3)
    b1: float = fraction(0.9, "Adam's decay rate for the mean of the gradients.")
    b2: float = fraction(0.999, "Adam's decay rate for the mean of the squared gradients.")
    rho: float = fraction(0.95, "Adadelta's decay rate.")
    eps: float = setting(1e-8, "The constant that Adam or Adadelta adds to a denominator.", least=1e-30, most=1)
    clip_norm: float = setting(5.0, "The bound on the gradient's norm; 0 means no bound.", least=0, most=1e9)
    clip_value: float = setting(0.0, "The bound on each element of the gradient; 0 means no bound.", least=0, most=1e9)
    schedule: Literal["constant", "plateau", "staircase", "warmup_cosine"] = setting(
        "constant",
        "The learning rate schedule: constant, multiplied by `decay` when the dev metric does not improve, multiplied"
        " by `decay` every `decay_steps` steps, or a linear warmup followed by a cosine decay to 0.",
    )
    warmup_steps: int = setting(100, "The steps of warmup of warmup_cosine, at most half of all steps.", least=0)
    decay: float = setting(0.5, "The factor at each decay of plateau and staircase.", above=0, most=1)
    decay_steps: int = setting(100, "The number of steps between two decays of the schedule staircase.", least=1)
    plateau_patience: int = setting(0, "The evaluations without improvement that plateau tolerates.", least=0)
    ema: float = fraction(0.0, "The decay rate of a moving average of all weights, used by evaluations; 0 for none.")


@dataclasses.dataclass(frozen=True)
class TaskTrainConfig:
    """The length of the training and its batches."""

    batch_size: int = setting(32, "The number of examples per step.", least=1, most=2**20)
    epochs: int = setting(50, "The maximum number of epochs.", least=0, most=10**6)
    patience: int = setting(10, "The evaluations without a better dev metric before training stops; 0: never.", least=0)
    evaluate_every: int = setting(0, "The steps between two evaluations on dev; 0 for one per epoch.", least=0)
    max_length: int = setting(0, "The largest number of words of a training text; 0 for no limit.", least=0)
    max_sentences: int = setting(
        0, "The sentences above which an epoch reads a random window of a document; 0 for no limit.", least=0
    )
    num_buckets: int = setting(
        0, "The maximum number of buckets of similar length; 0 for 6 on CPUs, 2 on accelerators.", least=0, most=64
    )
    optimizer: TaskOptimizerConfig = TaskOptimizerConfig()


@dataclasses.dataclass(frozen=True)
class TaskConfig:
    """An experiment on a task; `Task.config_class` adds its `data` and `model`."""

    task: str = setting("", "The name of the task, or MODULE:ATTRIBUTE for a task of another package.")
    data: TaskDataConfig = TaskDataConfig()
    bilm: str = setting("", "The biLM: a run, an export, or weights.hdf5; empty for none.")
    bilm_options: str = setting("", "The options.json of published weights.hdf5.")
    elmo: ElmoConfig = ElmoConfig()
    word_vectors: WordVectorsConfig = WordVectorsConfig()
    characters: CharactersConfig = CharactersConfig()
    seeds: tuple[int, ...] = setting((0,), "The random seeds; the task is trained with each.", least=0, most=2**31 - 1)
    train: TaskTrainConfig = TaskTrainConfig()

    def check(self, where: str = "config") -> None:
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise UserError(f"{where}.seeds: expected one or more distinct integers of at least 0, got {self.seeds!r}")
        has_words = self.word_vectors.path or self.word_vectors.dim
        elmo_at_input = self.bilm and "input" in self.elmo.positions
        if not has_words and not self.characters.filters and not elmo_at_input:
            remedy = "set word_vectors.path, word_vectors.dim, characters.filters, or a bilm that enters at the input"
            raise UserError(f"{where}: words have no vectors; {remedy}")


# These settings may differ between two launches of one run.
CHANGEABLE = ("seeds", "data.train", "data.dev", "data.test", "bilm", "bilm_options", "elmo.cache", "word_vectors.path")
