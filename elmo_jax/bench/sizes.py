"""The three sizes at which the originals were measured, and how much of each is run."""

from __future__ import annotations

import dataclasses
from typing import Literal

from elmo_jax.config import CharCNNConfig, Config, DataConfig, EvaluationConfig, LSTMConfig, ModelConfig, TrainConfig


@dataclasses.dataclass(frozen=True)
class Size:
    """A biLM and its training batch: 20 steps, 50 characters, two layers, dropout 0.1, Adagrad."""

    model: ModelConfig
    rows: int  # of a training batch on a CPU: those that the originals were measured with
    rows_of_accelerator: int  # of a training batch, for each device
    negatives: int
    vocabulary_size: int  # rows of the softmax; the text may hold fewer words
    evaluation: EvaluationConfig
    evaluated_tokens: int  # of the held-out text, on a CPU; an accelerator reads it all

    def config(self, rows: int, precision: Literal["float32", "bfloat16"], corpus: str) -> Config:
        """The experiment, for `rows` rows."""
        train = TrainConfig(batch_size=rows, negatives=self.negatives, precision=precision)
        return Config(self.model, DataConfig(corpus), train, self.evaluation)


SIZES = {
    "tiny": Size(
        ModelConfig(CharCNNConfig(filters=((1, 32), (2, 32), (3, 64), (4, 128)), highways=1), LSTMConfig(256, 64)),
        rows=64,
        rows_of_accelerator=1024,
        negatives=2048,
        vocabulary_size=18_000,
        evaluation=EvaluationConfig(),
        evaluated_tokens=100_000,
    ),
    # the published small biLM
    "small": Size(
        ModelConfig(CharCNNConfig(highways=1), LSTMConfig(1024, 128)),
        rows=128,
        rows_of_accelerator=1024,
        negatives=8192,
        vocabulary_size=18_000,
        evaluation=EvaluationConfig(),
        evaluated_tokens=50_000,
    ),
    # the paper's
    "original": Size(
        ModelConfig(),
        rows=128,
        rows_of_accelerator=1024,
        negatives=8192,
        vocabulary_size=793_471,
        # 1.8 GFLOP a token with the full softmax: on a CPU, 16 rows keep a few windows of 64 steps full
        evaluation=EvaluationConfig(batch_size=16),
        evaluated_tokens=4_000,
    ),
}
