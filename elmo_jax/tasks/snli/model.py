"""Implements the sequence model ESIM (Chen et al. 2017) for textual entailment (paper, section 4, and its supplement).

Shapes: B pairs, N words of the longest premise, M words of the longest hypothesis, T either of these, D numbers of
input per word, H encoder units of both directions, E numbers of the ELMo mix at the output, A = H + E.
"""

import dataclasses
from collections.abc import Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp

from elmo_jax.config import WIDEST
from elmo_jax.model.dropout import Dropout
from elmo_jax.settings import fraction, setting
from elmo_jax.tasks.core.task import Embedded, TaskOutput
from elmo_jax.tasks.layers.dense import (
    Dense,
    dot_product_scores,
    masked_max,
    masked_mean,
    mean_cross_entropy,
    product,
)
from elmo_jax.tasks.layers.recurrent import BiLSTM


@dataclasses.dataclass(frozen=True)
class SNLIModel:
    """The sizes and the dropout of ESIM; the defaults are the paper's with ELMo (its supplement)."""

    encoder: int = setting(300, "The number of units per direction of the encoder.", least=1, most=WIDEST)
    projection: int = setting(300, "The number of units of the dense layer after the attention.", least=1, most=WIDEST)
    composition: int = setting(300, "The number of units per direction of the composition layer.", least=1, most=WIDEST)
    output: int = setting(300, "The number of units of the dense layer after the pooling.", least=1, most=WIDEST)
    dropout: float = fraction(
        0.5,
        "The fraction of units dropped at the input of both LSTMs, with one mask per row, and around the output layer.",
    )
    attention_dropout: float = fraction(
        0.5, "The fraction of units dropped after the attention; the baseline without ELMo has 0."
    )
    matrix_penalty: float = setting(
        1e-4,
        "The factor of the sum of the squares of all matrices in the loss; the baseline without ELMo has 0.",
        least=0,
        most=1,
    )


class ESIM(nn.Module):
    """A classifier of an encoder, attention between premise and hypothesis, composition, pooling and output layers.

    The encoder, the projection and the composition are shared by both texts. A second mix of ELMo is joined to the
    encoder's output, before the attention.
    """

    config: SNLIModel
    classes: int = 3  # the number of classes

    def setup(self) -> None:
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
        """Computes the loss and `probabilities` [B, classes]; `arrays` has `label` int [B].

        The loss is the mean cross-entropy over the pairs with words, since the others only fill up the batch, plus,
        unless deterministic, the penalty of the matrices.
        """
        a = self._encode(premise, deterministic)  # [B, N, A]
        b = self._encode(hypothesis, deterministic)  # [B, M, A]
        scores = dot_product_scores(a, b)  # [B, N, M]
        to_b = product(jax.nn.softmax(scores, where=hypothesis.mask[:, None, :]), b)  # [B, N, A]
        to_a = product(jax.nn.softmax(scores.swapaxes(1, 2), where=premise.mask[:, None, :]), a)  # [B, M, A]
        of_premise = self._compose(a, to_b, premise.mask, deterministic)
        of_hypothesis = self._compose(b, to_a, hypothesis.mask, deterministic)
        vectors = jnp.concatenate([*of_premise, *of_hypothesis], axis=-1)
        self.sow("intermediates", "pooled", vectors)
        vectors = jax.nn.relu(self.output(self.plain(vectors, deterministic=deterministic)))
        logits = self.logit(self.plain(vectors, deterministic=deterministic))  # [B, classes]
        self.sow("intermediates", "logits", logits)
        real = premise.mask.any(1) | hypothesis.mask.any(1)
        loss = mean_cross_entropy(logits, arrays["label"], real)
        if not deterministic and self.config.matrix_penalty:
            matrices = [leaf for leaf in jax.tree.leaves(self.variables["params"]) if leaf.ndim == 2]
            loss += self.config.matrix_penalty * sum(jnp.sum(matrix**2) for matrix in matrices)
        return TaskOutput(loss, {"probabilities": jax.nn.softmax(logits)})

    def _encode(self, text: Embedded, deterministic: bool) -> jax.Array:
        """Returns the words in their context, [B, T, A]."""
        inputs = self.variational(text.vectors, deterministic=deterministic)  # [B, T, D]
        encoded = self.encoder(inputs, text.mask)  # [B, T, H]
        self.sow("intermediates", "encoded", encoded)
        return encoded if text.output is None else jnp.concatenate([encoded, text.output], axis=-1)

    def _compose(
        self, encoded: jax.Array, attended: jax.Array, mask: jax.Array, deterministic: bool
    ) -> tuple[jax.Array, jax.Array]:
        """Returns the mean and the maximum over the words of a text, composed with what they attend to."""
        joined = jnp.concatenate([encoded, attended, encoded - attended, encoded * attended], axis=-1)  # [B, T, 4A]
        joined = self.attended(joined, deterministic=deterministic)
        projected = jax.nn.relu(self.projection(joined))
        self.sow("intermediates", "projected", projected)
        projected = self.variational(projected, deterministic=deterministic)
        composed = self.composition(projected, mask)  # [B, T, 2 * composition]
        self.sow("intermediates", "composed", composed)
        return masked_mean(composed, mask), masked_max(composed, mask)
