"""Declares the settings of the taggers and the results of their trainings."""

from __future__ import annotations

import dataclasses

VARIANTS = {"without": "without ELMo", "top": "top layer only", "all": "all layers mixed"}


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The settings of the taggers, which are the same for all three variants."""

    epochs: int = 10
    batch_size: int = 64
    learning_rate: float = 3e-3  # Adam's, with 100 steps of warmup and a cosine decay to 0
    clip_norm: float = 5.0
    hidden: int = 100  # the number of units per direction of the biLSTM
    word_features: int = 100
    character_features: int = 64
    characters: int = 20  # W, the number of a word's first bytes including its marks
    dropout: float = 0.5
    regularization: float = 1e-3  # the factor of the penalty of the mix's weights
    layer_norm: str = "without_marks"  # the layer norm of the mixed layers; the top layer alone has none
    own_words: bool = True  # whether there are word vectors and a character CNN besides ELMo


@dataclasses.dataclass(frozen=True)
class Result:
    """The accuracies of a training in percent, and for each mix (input, output) gamma and the softmaxed weights."""

    variant: str
    seed: int
    epoch: int
    dev: float
    test: float
    gammas: list[float]
    weights: list[list[float]]
