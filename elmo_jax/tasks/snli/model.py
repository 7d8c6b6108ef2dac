"""The sequence model ESIM (Chen et al. 2017), for textual entailment (paper, section 4, and its supplement).

Shapes: B pairs, N words of the longest premise, M of the longest hypothesis, T either, D input, H encoder units of both
directions, E output ELMo, A = H + E.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp

from elmo_jax.settings import setting
from elmo_jax.tasks.embedded import Embedded, TaskOutput
from elmo_jax.tasks.layers.attention import attend, dot_product_scores, masked_softmax
from elmo_jax.tasks.layers.classify import mean_cross_entropy
from elmo_jax.tasks.layers.dense import Dense
from elmo_jax.tasks.layers.dropout import Dropout
from elmo_jax.tasks.layers.lstm import BiLSTM
from elmo_jax.tasks.layers.pooling import masked_max, masked_mean

CLASSES = 3
_WIDEST = 2**20


@dataclasses.dataclass(frozen=True)
class SNLIModel:
    """The sizes and the dropout of ESIM; the defaults are the paper's with ELMo (its supplement)."""

    encoder: int = setting(300, "Units of each direction of the encoder of words.", least=1, most=_WIDEST)
    projection: int = setting(300, "Units of the dense layer behind the attention.", least=1, most=_WIDEST)
    composition: int = setting(300, "Units of each direction of the composition layer.", least=1, most=_WIDEST)
    output: int = setting(300, "Units of the dense layer behind the pooling.", least=1, most=_WIDEST)
    dropout: float = setting(
        0.5,
        "Share of the units dropped at the input of both LSTMs, with one mask per row, and around the output layer.",
        least=0,
        below=1,
    )
    attention_dropout: float = setting(
        0.5, "Share of the units dropped behind the attention; the baseline without ELMo has 0.", least=0, below=1
    )
    matrix_penalty: float = setting(
        1e-4,
        "What the sum of the squares of all matrices is multiplied with in training; 0 without ELMo.",
        least=0,
        most=1,
    )


class ESIM(nn.Module):
    """Encoder, attention of premise and hypothesis on each other, composition, pooling, output layers.

    The encoder, the projection and the composition are shared by both texts. A second mix of ELMo is joined to the
    encoder's output, before the attention.

    Attributes:
      config: the sizes and the dropout.
      classes: how many there are.
    """

    config: SNLIModel
    classes: int = CLASSES

    def setup(self) -> None:
        """The layers that both texts share."""
        config = self.config
        self.variational = Dropout(config.dropout, "variational")
        self.plain = Dropout(config.dropout)
        self.attended = Dropout(config.attention_dropout)
        self.encoder = BiLSTM(config.encoder, "xavier")
        self.projection = Dense(config.projection, "xavier")
        self.composition = BiLSTM(config.composition, "xavier")
        self.output = Dense(config.output, "xavier")
        self.logit = Dense(self.classes, "xavier")

    def __call__(
        self, premise: Embedded, hypothesis: Embedded, arrays: Mapping[str, jax.Array], *, deterministic: bool = True
    ) -> TaskOutput:
        """Classifies a batch of pairs.

        Args:
          premise, hypothesis: the words; a pair without words fills the batch up and counts nowhere.
          arrays: `label` int [B].
          deterministic: no dropout; otherwise the apply needs a `dropout` key.

        Returns:
          loss: the mean cross-entropy over the pairs with words, and, when not deterministic, the matrices' penalty.
          predictions: `label` int32 [B], `probabilities` [B, classes].
        """
        a = self._encode(premise, deterministic)  # [B, N, A]
        b = self._encode(hypothesis, deterministic)  # [B, M, A]
        scores = dot_product_scores(a, b)  # [B, N, M]
        to_b = attend(masked_softmax(scores, hypothesis.mask[:, None, :]), b)  # [B, N, A]
        to_a = attend(masked_softmax(scores.swapaxes(1, 2), premise.mask[:, None, :]), a)  # [B, M, A]
        pooled = [
            *self._compose(a, to_b, premise.mask, deterministic),
            *self._compose(b, to_a, hypothesis.mask, deterministic),
        ]
        vectors = jnp.concatenate(pooled, axis=-1)
        self.sow("intermediates", "pooled", vectors)
        vectors = jax.nn.relu(self.output(self.plain(vectors, deterministic=deterministic)))
        logits = self.logit(self.plain(vectors, deterministic=deterministic))  # [B, classes]
        self.sow("intermediates", "logits", logits)
        real = premise.mask.any(1) | hypothesis.mask.any(1)
        loss = mean_cross_entropy(logits, arrays["label"], real)
        if not deterministic and self.config.matrix_penalty:
            loss += self.config.matrix_penalty * self._squares()
        predictions = {"label": logits.argmax(-1).astype(jnp.int32), "probabilities": jax.nn.softmax(logits)}
        return TaskOutput(loss, predictions)

    def _encode(self, text: Embedded, deterministic: bool) -> jax.Array:
        """Words in their context [B, T, A]."""
        inputs = self.variational(text.vectors, deterministic=deterministic)  # [B, T, D]
        encoded = self.encoder(inputs, text.mask)  # [B, T, H]
        self.sow("intermediates", "encoded", encoded)
        return encoded if text.output is None else jnp.concatenate([encoded, text.output], axis=-1)

    def _compose(
        self, encoded: jax.Array, attended: jax.Array, mask: jax.Array, deterministic: bool
    ) -> tuple[jax.Array, jax.Array]:
        """The mean and the maximum over words of a text and what it attends to."""
        joined = jnp.concatenate([encoded, attended, encoded - attended, encoded * attended], axis=-1)  # [B, T, 4A]
        joined = self.attended(joined, deterministic=deterministic)
        projected = jax.nn.relu(self.projection(joined))
        self.sow("intermediates", "projected", projected)
        projected = self.variational(projected, deterministic=deterministic)
        composed = self.composition(projected, mask)  # [B, T, 2 * composition]
        self.sow("intermediates", "composed", composed)
        return masked_mean(composed, mask), masked_max(composed, mask)

    def _squares(self) -> jax.Array:
        """The sum of the squares of all matrices, those of the dense layers and of the LSTMs."""
        matrices = [leaf for leaf in jax.tree.leaves(self.variables["params"]) if leaf.ndim == 2]
        return sum((jnp.sum(matrix**2) for matrix in matrices), jnp.zeros(()))
