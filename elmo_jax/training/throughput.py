"""Measures training between two reports: losses, tokens, floating-point operations and times."""

import dataclasses
import time
from typing import Any

import numpy as np

from elmo_jax.config import DIRECTIONS, Config, ModelConfig
from elmo_jax.runs.perplexity import exp

_EVALUATION_SHARE = 0.05  # of the operations of a training
_LEAST_EVALUATED = 20_000  # tokens, from which the perplexities of two steps can be compared


@dataclasses.dataclass(frozen=True)
class Work:
    """The floating-point operations of training, counted for the model and not for the program that runs it."""

    config: Config
    vocabulary_size: int
    windows: float  # the average number of positions per word that the filters are applied to

    def operations(self, tokens: int, distinct_words: int) -> float:
        """Returns the operations of forward and backward pass; the backward pass takes twice those of the forward."""
        negatives = self.config.train.negatives
        scored = negatives + 1 if negatives else self.vocabulary_size
        model = self.config.model
        return 3 * (tokens * flops_per_token(model, scored) + distinct_words * flops_per_word(model, self.windows))


@dataclasses.dataclass
class Interval:
    """The measurements of the steps since the last report, which the training loop adds up."""

    work: Work  # the floating-point operations of the training
    losses: list[np.ndarray] = dataclasses.field(default_factory=list)  # [2] of each step, in nats per token
    distinct_words: int = 0  # in this process's parts of the batches
    blocks_read: int = 0  # by this process, up to the newest batch
    waited: float = 0.0  # the seconds of waiting for batches
    blocked: float = 0.0  # those of waiting for the devices, and so for the slowest process in their exchanges
    started: float = dataclasses.field(default_factory=time.perf_counter)

    @property
    def steps(self) -> int:
        return len(self.losses)

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.started

    def of_process(self) -> dict[str, float]:
        # They identify a slow host, which works longest in each step while the others wait for their devices.
        seconds = self.seconds
        return {
            "processes/data_wait": self.waited / seconds,
            "processes/host_seconds": (seconds - self.blocked) / self.steps,
            "processes/blocks_read": self.blocks_read,
            "processes/distinct_words": self.distinct_words,
        }

    def values(self, distinct_words: int) -> dict[str, Any]:
        """Returns the metrics of the interval, in whose batches all devices had so many distinct words.

        `tokens_per_second` counts each token of the text once, although both directions read it.
        """
        seconds, tokens = self.seconds, self.steps * self.work.config.train.tokens_per_step
        losses = dict(zip(DIRECTIONS, np.mean(self.losses, axis=0).tolist(), strict=False))
        # The loss of the sampled softmax does not give a perplexity of the text, which the name of the metric shows.
        perplexity = "train/sampled_perplexity" if self.work.config.train.negatives else "train/perplexity"
        return {
            **{f"train/loss/{name}": loss for name, loss in losses.items()},
            **{f"{perplexity}/{name}": exp(loss) for name, loss in losses.items()},
            "train/tokens_per_second": tokens / seconds,
            "train/model_flops_per_second": self.work.operations(tokens, distinct_words) / seconds,
            "train/data_wait": self.waited / seconds,
            "train/distinct_words_per_token": distinct_words / tokens,
        }


def affordable_evaluation(config: Config, vocabulary_size: int, total_steps: int) -> int:
    """Returns the number of tokens of each evaluation with which all of them take about 5% of a run, at least 20,000.

    It follows from the operations of both, without the token encoder, so that all launches and hosts agree on it.
    """
    scored = config.train.negatives + 1 if config.train.negatives else vocabulary_size
    ratio = 3 * flops_per_token(config.model, scored) / flops_per_token(config.model, vocabulary_size)
    every = config.evaluation.every
    number = 2 + (total_steps // every if every else 0)
    tokens = _EVALUATION_SHARE * ratio * total_steps * config.train.tokens_per_step / number
    return max(_LEAST_EVALUATED, int(tokens))


def flops_per_word(model: ModelConfig, windows: float) -> float:
    """Returns the floating-point operations, two per multiplication and addition, of the token encoder's forward pass.

    They are those of one word, with filters at `windows` positions.
    """
    char_cnn = model.char_cnn
    filters = sum(2 * width * char_cnn.embedding_dim * number for width, number in char_cnn.filters)
    features = char_cnn.features
    projection = 2 * features * model.lstm.projection if features != model.lstm.projection else 0
    return windows * filters + char_cnn.highways * 4 * features**2 + projection


def flops_per_token(model: ModelConfig, softmax_words: int) -> float:
    """Returns the operations of a token's forward pass without the token encoder; `softmax_words` words are scored."""
    lstm = model.lstm
    layer = 2 * 2 * lstm.projection * 4 * lstm.cells
    if lstm.cells != lstm.projection:
        layer += 2 * lstm.cells * lstm.projection
    return len(model.directions) * (lstm.layers * layer + 2 * lstm.projection * softmax_words)
