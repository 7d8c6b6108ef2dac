"""Measures training between two reports: losses, tokens, floating-point operations and times."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import numpy as np

from elmo_jax.config import Config, ModelConfig
from elmo_jax.runs.perplexity import exp


@dataclasses.dataclass(frozen=True)
class Work:
    """The floating-point operations of training, counted for the model and not for the program that runs it.

    Attributes:
      config: the settings.
      vocabulary_size: V.
      windows: the average number of positions per word that the filters are applied to.
    """

    config: Config
    vocabulary_size: int
    windows: float

    def operations(self, tokens: int, distinct_words: int) -> float:
        """Returns the operations of forward and backward pass; the backward pass takes twice those of the forward."""
        negatives = self.config.train.negatives
        scored = negatives + 1 if negatives else self.vocabulary_size
        model = self.config.model
        return 3 * (tokens * flops_per_token(model, scored) + distinct_words * flops_per_word(model, self.windows))


class Interval:
    """The measurements of the steps since the last report."""

    def __init__(self, work: Work, step_tokens: int):
        """Begins an interval.

        Args:
          work: the floating-point operations of the training.
          step_tokens: the number of tokens of all rows in one step.
        """
        self._work, self._step_tokens = work, step_tokens
        self._losses: list[np.ndarray] = []
        self._distinct = 0
        self._waited = 0.0
        self._blocked = 0.0
        self._blocks_read = 0
        self._paused = 0.0
        self._started = time.perf_counter()

    def add_wait(self, seconds: float, distinct_words: int, blocks_read: int) -> None:
        """Adds the wait for a batch.

        Args:
          seconds: the time waited.
          distinct_words: the number of distinct words in this process's part of the batch.
          blocks_read: the number of blocks that this process has read up to this batch.
        """
        self._waited += seconds
        self._distinct += distinct_words
        self._blocks_read = blocks_read

    def add_block(self, seconds: float) -> None:
        """Adds a wait for the devices, which includes waiting for the slowest process in their exchanges."""
        self._blocked += seconds

    def add_losses(self, losses: np.ndarray) -> None:
        """Adds the losses [2] of a step in nats per token."""
        self._losses.append(losses)

    def add_pause(self, seconds: float) -> None:
        """Adds the time of an evaluation or a save, which does not count as training."""
        self._paused += seconds

    @property
    def steps(self) -> int:
        """The number of steps whose losses were added."""
        return len(self._losses)

    @property
    def seconds(self) -> float:
        """The seconds of training so far, without evaluations and saves."""
        return time.perf_counter() - self._started - self._paused

    def of_process(self) -> dict[str, float]:
        """Returns the metrics that differ between processes.

        They identify a slow host, which works longest in each step while the others wait for their devices.
        """
        seconds = self.seconds
        return {
            "processes/data_wait": self._waited / seconds,
            "processes/host_seconds": (seconds - self._blocked) / self.steps,
            "processes/blocks_read": self._blocks_read,
            "processes/distinct_words": self._distinct,
        }

    def values(self, distinct_words: int) -> dict[str, Any]:
        """Returns the metrics of the interval.

        `tokens_per_second` counts each token of the text once, although both directions read it.

        Args:
          distinct_words: the number of distinct words in the batches, summed over all devices and steps.
        """
        seconds, tokens = self.seconds, self.steps * self._step_tokens
        forward, backward = (float(loss) for loss in np.mean(self._losses, axis=0))
        # The loss of the sampled softmax does not give a perplexity of the text. The name of the metric says so, lest
        # it be compared with held-out perplexity.
        perplexity = "train/sampled_perplexity" if self._work.config.train.negatives else "train/perplexity"
        return {
            "train/loss/forward": forward,
            "train/loss/backward": backward,
            f"{perplexity}/forward": exp(forward),
            f"{perplexity}/backward": exp(backward),
            "train/tokens_per_second": tokens / seconds,
            "train/model_flops_per_second": self._work.operations(tokens, distinct_words) / seconds,
            "train/data_wait": self._waited / seconds,
            "train/distinct_words_per_token": distinct_words / tokens,
        }


def flops_per_word(model: ModelConfig, windows: float) -> float:
    """Returns the floating-point operations of the token encoder's forward pass for one word.

    A multiplication and an addition count as two operations.

    Args:
      model: the architecture.
      windows: the number of positions that the filters are applied to.
    """
    char_cnn = model.char_cnn
    filters = sum(2 * width * char_cnn.embedding_dim * number for width, number in char_cnn.filters)
    features = char_cnn.features
    projection = 2 * features * model.lstm.projection if features != model.lstm.projection else 0
    return windows * filters + char_cnn.highways * 4 * features**2 + projection


def flops_per_token(model: ModelConfig, softmax_words: int) -> float:
    """Returns the floating-point operations of a token's forward pass in both directions, without the token encoder.

    Args:
      model: the architecture.
      softmax_words: the number of words that are scored for each token.
    """
    lstm = model.lstm
    layer = 2 * 2 * lstm.projection * 4 * lstm.cells
    if lstm.cells != lstm.projection:
        layer += 2 * lstm.cells * lstm.projection
    return 2 * (lstm.layers * layer + 2 * lstm.projection * softmax_words)
