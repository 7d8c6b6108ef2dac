"""What training did between two reports: losses, tokens, the work they took and where the time went."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import numpy as np

from elmo_jax.config import Config, ModelConfig
from elmo_jax.runs.perplexity import exp


@dataclasses.dataclass(frozen=True)
class Work:
    """Floating-point operations of a training step, counted for the model, not for the program that runs it."""

    config: Config
    vocabulary_size: int
    windows: float  # positions that the filters are put on for a word, on average

    def operations(self, tokens: int, distinct_words: int) -> float:
        """Forward and backward; the backward pass is twice the forward pass."""
        negatives = self.config.train.negatives
        scored = negatives + 1 if negatives else self.vocabulary_size
        model = self.config.model
        return 3 * (tokens * flops_per_token(model, scored) + distinct_words * flops_per_word(model, self.windows))


class Interval:
    """The steps since the last report."""

    def __init__(self, work: Work, step_tokens: int):
        """`step_tokens` are those of all rows in one step."""
        self._work, self._step_tokens = work, step_tokens
        self._losses: list[np.ndarray] = []
        self._distinct = 0
        self._waited = 0.0
        self._blocked = 0.0
        self._blocks_read = 0
        self._paused = 0.0
        self._started = time.perf_counter()

    def add_wait(self, seconds: float, distinct_words: int, blocks_read: int) -> None:
        """Adds the wait for a batch of so many distinct words; for it and those before so many blocks were read."""
        self._waited += seconds
        self._distinct += distinct_words
        self._blocks_read = blocks_read

    def add_block(self, seconds: float) -> None:
        """Adds a wait for the devices, and through their exchanges for the slowest process."""
        self._blocked += seconds

    def add_losses(self, losses: np.ndarray) -> None:
        """Adds a step's losses [2] in nats per token."""
        self._losses.append(losses)

    def add_pause(self, seconds: float) -> None:
        """Adds time that evaluation and saves took, which is not training."""
        self._paused += seconds

    @property
    def steps(self) -> int:
        """Steps whose losses were added."""
        return len(self._losses)

    @property
    def seconds(self) -> float:
        """Seconds of training so far."""
        return time.perf_counter() - self._started - self._paused

    def of_process(self) -> dict[str, float]:
        """What differs between processes: a slow host works longest in each step, while the others wait for devices."""
        seconds = self.seconds
        return {
            "processes/data_wait": self._waited / seconds,
            "processes/host_seconds": (seconds - self._blocked) / self.steps,
            "processes/blocks_read": self._blocks_read,
            "processes/distinct_words": self._distinct,
        }

    def values(self, distinct_words: int) -> dict[str, Any]:
        """For the metrics. `tokens_per_second` counts each token of the text once, though both directions read it.

        Args:
          distinct_words: of the batches of all processes.
        """
        seconds, tokens = self.seconds, self.steps * self._step_tokens
        forward, backward = (float(loss) for loss in np.mean(self._losses, axis=0))
        # the loss of the sampled softmax gives no perplexity of the text: named so that nobody compares it
        # with held-out
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
    """Forward floating-point operations (a multiplication and an addition are two) of the token encoder for one word.

    Args:
      model: the architecture.
      windows: positions that the filters are put on.
    """
    char_cnn = model.char_cnn
    filters = sum(2 * width * char_cnn.embedding_dim * number for width, number in char_cnn.filters)
    features = char_cnn.features
    projection = 2 * features * model.lstm.projection if features != model.lstm.projection else 0
    return windows * filters + char_cnn.highways * 4 * features**2 + projection


def flops_per_token(model: ModelConfig, softmax_words: int) -> float:
    """Forward operations of a token in both directions, without the token encoder.

    Args:
      model: the architecture.
      softmax_words: words that each token is scored against.
    """
    lstm = model.lstm
    layer = 2 * 2 * lstm.projection * 4 * lstm.cells
    if lstm.cells != lstm.projection:
        layer += 2 * lstm.cells * lstm.projection
    return 2 * (lstm.layers * layer + 2 * lstm.projection * softmax_words)
