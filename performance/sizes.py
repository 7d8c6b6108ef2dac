"""The three sizes at which the original trainers were measured, and the amount of work for each."""

import dataclasses
from typing import Literal

from elmo_jax.config import CharCNNConfig, Config, DataConfig, EvaluationConfig, LSTMConfig, ModelConfig, TrainConfig


@dataclasses.dataclass(frozen=True)
class Size:
    """A size of the biLM and its batches; all have 20 steps, 50 characters, two layers, dropout 0.1 and Adagrad."""

    model: ModelConfig  # the architecture
    rows: int  # the rows of a training batch on a CPU, with which the original trainers were measured
    rows_of_accelerator: int  # the rows of a training batch per accelerator
    negatives: int  # the negatives of the sampled softmax
    vocabulary_size: int  # the rows of the softmax; the text may have fewer words
    evaluation: EvaluationConfig  # the evaluation settings
    evaluated_tokens: int  # the tokens of the held-out text that are evaluated on a CPU; on accelerators, all are

    def config(self, rows: int, precision: Literal["float32", "bfloat16"], corpus: str) -> Config:
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
    # The small one of the published biLMs.
    "small": Size(
        ModelConfig(CharCNNConfig(highways=1), LSTMConfig(1024, 128)),
        rows=128,
        rows_of_accelerator=1024,
        negatives=8192,
        vocabulary_size=18_000,
        evaluation=EvaluationConfig(),
        evaluated_tokens=50_000,
    ),
    # The paper's biLM.
    "original": Size(
        ModelConfig(),
        rows=128,
        rows_of_accelerator=1024,
        negatives=8192,
        vocabulary_size=793_471,
        # The full softmax takes 1.8 GFLOP per token, so few tokens are evaluated on a CPU; in 16 rows they fill a few
        # windows of 64 steps.
        evaluation=EvaluationConfig(batch_size=16),
        evaluated_tokens=4_000,
    ),
}
