"""The settings of a task's training, beside those of its model.

Each task has a config class of its own, a `TaskConfig` whose `model` and `data` are the task's (see `registry`). Like
those of a biLM, experiments edit a `ConfigDict` of the same shape, and every key can be overridden on the command line.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

from elmo_jax.errors import UserError
from elmo_jax.settings import setting


@dataclasses.dataclass(frozen=True)
class TaskDataConfig:
    """The annotated texts; each a path, or `tfds:NAME[:SPLIT]` where TFDS has the data set."""

    train: str = setting("", "Training examples: a file, several separated by commas, or tfds:NAME:SPLIT.")
    dev: str = setting("", "Examples that the best epoch is chosen on.")
    test: str = setting("", "Examples that the chosen epoch is tested on, once; empty for none.")
    train_fraction: float = setting(
        1.0, "Share of the training examples that is used; smaller shares are parts of larger ones.", above=0, most=1
    )


@dataclasses.dataclass(frozen=True)
class ElmoConfig:
    """How the frozen biLM enters the task model (paper, sections 3.2 and 3.3)."""

    where: Literal["input", "output", "both"] = setting(
        "input", "Where ELMo enters: at the input of the task's RNN, at its output, or both, each with its own mix."
    )
    layers: str = setting("all", "Layers used: all (mixed), top, token (no mix), or the number of one LSTM layer.")
    regularization: float = setting(
        0.0, "The factor of the sum of squares of each mix's raw weights.", least=0, most=1e6
    )
    layer_norm: bool = setting(False, "Whether layers are normalised over the batch before they are mixed.")
    dropout: float = setting(0.5, "Share of the mixes' numbers that is dropped in training.", least=0, below=1)
    vectors: Literal["cached", "computed"] = setting(
        "cached", "Whether the frozen layers come from a file made once, or are computed in every step."
    )
    dtype: Literal["float16", "float32"] = setting("float16", "The type of the numbers in that file.")
    cache: str = setting("", "The folder of that file; empty for the folder elmo/ of the run.")

    def check(self, where: str = "config") -> None:
        """Raises `UserError` for layers that no biLM has."""
        if self.layers not in ("all", "top", "token") and not self.layers.isdecimal():
            raise UserError(f"{where}.layers: expected all, top, token or the number of a layer, got {self.layers!r}")


@dataclasses.dataclass(frozen=True)
class WordVectorsConfig:
    """Vectors of words, context-free and of the task's own."""

    path: str = setting(
        "",
        "Pretrained vectors: a text file of GloVe or word2vec (.gz, .xz, .zip too), or glove-6b-50d; empty for none.",
    )
    dim: int = setting(
        50, "Numbers per word without pretrained vectors; 0 for no word vectors at all.", least=0, most=4096
    )
    trainable: bool = setting(True, "Whether the vectors are trained with the task.")
    lowercase: Literal["always", "if_absent", "never"] = setting(
        "always", "Whether words are looked up in lower case: always, where their own form is absent, or never."
    )
    digits: Literal["keep", "zero"] = setting("keep", "Whether digits stay as they are or all become 0.")
    unknown: Literal["random", "zero"] = setting("random", "The vector of a word that has none.")
    normalize: bool = setting(False, "Whether each pretrained vector is divided by its L2 norm.")
    min_count: int = setting(
        1, "Words without a pretrained vector have one of their own if they are used this often in training.", least=1
    )


@dataclasses.dataclass(frozen=True)
class CharactersConfig:
    """A small character CNN of the task's own; none where there are no filters."""

    embedding_dim: int = setting(16, "Numbers in a character's vector.", least=1, most=4096)
    filters: tuple[tuple[int, int], ...] = setting(
        (), "Pairs of a filter's width and how many there are of it.", least=1, most=2**20
    )
    max_characters: int = setting(40, "Characters of a word that are read.", least=1, most=1000)
    min_count: int = setting(1, "Rarer characters of the training text share one vector.", least=1)
    dropout: float = setting(0.0, "Share of the characters' numbers that is dropped in training.", least=0, below=1)
    variant: Literal["masked", "allennlp"] = setting(
        "masked", "Whether windows that are all padding are left out, or take part as in AllenNLP."
    )

    def check(self, where: str = "config") -> None:
        """Raises `UserError` for filters that cannot be."""
        for width, number in self.filters:
            if width < 1 or number < 1:
                raise UserError(f"{where}.filters: ({width}, {number}) is no filter: expected numbers of at least 1")


@dataclasses.dataclass(frozen=True)
class TaskOptimizerConfig:
    """How the parameters of the task are updated."""

    name: Literal["adam", "adadelta", "adagrad", "sgd"] = setting("adam", "The optimizer.")
    learning_rate: float = setting(1e-3, "The learning rate.", above=0, most=1e3)
    b1: float = setting(0.9, "Adam's decay of the mean of gradients.", least=0, below=1)
    b2: float = setting(0.999, "Adam's decay of the mean of squared gradients.", least=0, below=1)
    rho: float = setting(0.95, "Adadelta's decay.", least=0, below=1)
    eps: float = setting(1e-8, "What is added to roots of squares.", above=0, most=1)
    clip_norm: float = setting(5.0, "Bound of the gradient's global norm; 0 for none.", least=0, most=1e9)
    clip_value: float = setting(0.0, "Bound of each number of the gradient; 0 for none.", least=0, most=1e9)
    weight_decay: float = setting(
        0.0, "Factor of the sum of squares of all matrices, added to the loss.", least=0, most=1
    )
    schedule: Literal["constant", "plateau", "staircase", "warmup_cosine"] = setting(
        "constant",
        "How the learning rate changes: not at all, multiplied by decay when the dev metric does not improve,"
        " multiplied by decay every decay_steps, or raised from 0 for warmup_steps and then lowered along a cosine.",
    )
    warmup_steps: int = setting(100, "Number of steps of the warm-up, at most half of all steps.", least=0)
    decay: float = setting(0.5, "What the rate is multiplied by.", above=0, most=1)
    decay_steps: int = setting(100, "Steps between two decays of the staircase.", least=1)
    plateau_patience: int = setting(0, "Evaluations without improvement before the plateau decays the rate.", least=0)
    ema: float = setting(0.0, "Decay of an average of all weights that evaluations use; 0 for none.", least=0, below=1)


@dataclasses.dataclass(frozen=True)
class TaskTrainConfig:
    """How long and in which batches the task is trained."""

    batch_size: int = setting(32, "Examples per step.", least=1, most=2**20)
    epochs: int = setting(50, "Times that the training examples are read, at most.", least=0, most=10**6)
    patience: int = setting(10, "Evaluations without a better dev metric that end the training; 0 for never.", least=0)
    evaluate_every: int = setting(0, "Steps between two evaluations on dev; 0 for one after each epoch.", least=0)
    max_length: int = setting(0, "Training examples with longer texts are left out; 0 for none.", least=0)
    shapes: int = setting(6, "Groups of similar length that batches are made of, each compiled once.", least=1, most=64)
    optimizer: TaskOptimizerConfig = TaskOptimizerConfig()


@dataclasses.dataclass(frozen=True)
class TaskConfig:
    """One experiment on a task; each task's own class adds its `data` and `model`."""

    task: str = setting("", "The name of the task.")
    data: TaskDataConfig = TaskDataConfig()
    bilm: str = setting("", "The biLM: a run, an export, a packaged name or weights.hdf5; empty for none.")
    bilm_options: str = setting("", "The options.json of published weights.")
    elmo: ElmoConfig = ElmoConfig()
    word_vectors: WordVectorsConfig = WordVectorsConfig()
    characters: CharactersConfig = CharactersConfig()
    seeds: tuple[int, ...] = setting((0,), "Random seeds; the task is trained once with each.", least=0, most=2**31 - 1)
    train: TaskTrainConfig = TaskTrainConfig()

    def check(self, where: str = "config") -> None:
        """Raises `UserError` for settings that do not go together."""
        if not self.seeds or len(set(self.seeds)) < len(self.seeds) or min(self.seeds) < 0:
            raise UserError(f"{where}.seeds: expected different whole numbers of at least 0, got {self.seeds!r}")
        has_words = self.word_vectors.path or self.word_vectors.dim
        elmo_at_input = self.bilm and self.elmo.where != "output"
        if not has_words and not self.characters.filters and not elmo_at_input:
            raise UserError(
                f"{where}: words have no vectors: give word_vectors.path or dim, characters.filters, or a bilm at the"
                " input"
            )


# Settings that may differ between two launches of one run.
CHANGEABLE = ("seeds", "data.train", "data.dev", "data.test", "bilm", "bilm_options", "elmo.cache", "word_vectors.path")
