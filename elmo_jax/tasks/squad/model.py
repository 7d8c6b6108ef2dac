"""Implements the SQuAD model: BiDAF with residual self-attention (document-qa; Clark and Gardner 2018).

Shapes: B questions with their contexts, T words of the context, J words of the question, D input features per word,
E numbers of the ELMo mix at the output, H units per direction.

Scores of attention are trilinear, `u . x + v . y + (w * x) . y + b` (Seo et al. 2017); no array [B, T, J, D] is made.
"""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from elmo_jax.model.dropout import Dropout
from elmo_jax.settings import fraction, setting
from elmo_jax.tasks.core.task import Embedded, TaskOutput
from elmo_jax.tasks.layers.dense import glorot_uniform, mean_cross_entropy, product
from elmo_jax.tasks.layers.recurrent import BiGRU

MASKED = -1e29  # document-qa's score of padding; finite, so that a row without words has no NaN
NULL_START = -1.0  # document-qa's initial score of attending to nothing


@dataclasses.dataclass(frozen=True)
class SquadModel:
    """The settings of the model without words, characters and ELMo; defaults are those of document-qa's ELMo script."""

    units: int = setting(90, "The number of units per direction of every GRU.", least=1)
    dropout: float = fraction(0.2, "The fraction of features dropped, with one mask for all words of a row.")
    max_answer_length: int = setting(17, "The maximum number of words of a predicted answer.", least=1)


class Trilinear(nn.Module):
    """Maps two sequences [B, T, D] and [B, J, D] to the scores of all pairs of their elements, [B, T, J]."""

    @nn.compact
    def __call__(self, first: jax.Array, second: jax.Array) -> jax.Array:
        size = first.shape[-1]
        of_first = self.param("first", glorot_uniform, (size,))
        of_second = self.param("second", glorot_uniform, (size,))
        of_product = self.param("product", glorot_uniform, (size,))
        bias = self.param("bias", nn.initializers.zeros_init(), ())
        products = jnp.einsum("btd,bjd->btj", first * of_product, second, precision=lax.Precision.HIGHEST)
        return products + product(first, of_first)[:, :, None] + product(second, of_second)[:, None] + bias


class BiDAFAttention(nn.Module):
    """Computes attention in both directions between context and question (Seo et al. 2017)."""

    @nn.compact
    def __call__(
        self, context: jax.Array, question: jax.Array, context_mask: jax.Array, question_mask: jax.Array
    ) -> jax.Array:
        """Attends from the context [B, T, D] to the question [B, J, D] and back.

        Returns:
          [c; q; c * q; c * s], [B, T, 4D]: c are the words of the context, q is what each of them attends to in the
          question, and s is the one vector that the question attends to in the context; arbitrary at padding.
        """
        scores = Trilinear(name="scores")(context, question)  # [B, T, J]
        scores = jnp.where(context_mask[:, :, None] & question_mask[:, None], scores, MASKED)
        seen = jnp.einsum("btj,bjd->btd", jax.nn.softmax(scores), question, precision=lax.Precision.HIGHEST)
        weights = jax.nn.softmax(scores.max(-1))  # [B, T]
        summary = jnp.einsum("bt,btd->bd", weights, context, precision=lax.Precision.HIGHEST)[:, None]
        return jnp.concatenate([context, seen, context * seen, context * summary], axis=-1)


class SelfAttention(nn.Module):
    """Computes attention of each word on the others of its row, or on nothing, which has a learned score."""

    @nn.compact
    def __call__(self, inputs: jax.Array, mask: jax.Array) -> jax.Array:
        """Maps the inputs y [B, T, D] to [a; y; a * y], [B, T, 3D], where a are the attended vectors."""
        null = self.param("null", nn.initializers.constant(NULL_START), ())
        scores = Trilinear(name="scores")(inputs, inputs)  # [B, T, T]
        other = ~jnp.eye(inputs.shape[1], dtype=bool)
        scores = jnp.where(mask[:, :, None] & mask[:, None] & other, scores, MASKED)
        weights = softmax_with_null(scores, null)
        seen = jnp.einsum("bts,bsd->btd", weights, inputs, precision=lax.Precision.HIGHEST)
        return jnp.concatenate([seen, inputs, seen * inputs], axis=-1)


def softmax_with_null(scores: jax.Array, null: jax.Array) -> jax.Array:
    """Returns the softmax over the last axis of `scores` [..., N] and one more score, `null` [], without its weight."""
    largest = lax.stop_gradient(jnp.maximum(scores.max(-1, keepdims=True), null))
    exponentials = jnp.exp(scores - largest)
    return exponentials / (exponentials.sum(-1, keepdims=True) + jnp.exp(null - largest))


class SpanFinder(nn.Module):
    """Finds the words of the context that answer the question."""

    config: SquadModel  # the settings of the model

    @nn.compact
    def __call__(
        self, question: Embedded, context: Embedded, arrays: dict[str, jax.Array], *, deterministic: bool = True
    ) -> TaskOutput:
        """Computes the loss, and the probabilities `start` and `end` [B, T] of the answer's first and last word.

        `arrays` has `answers` int32 [B, 2], the first and the last word of the gold answer, both inclusive. The
        probabilities are zero at padding.
        """
        units, mask = self.config.units, context.mask
        encoder = BiGRU(units, name="encoder")
        read, asked = (self._read(encoder, text, deterministic) for text in (context, question))
        both = BiDAFAttention(name="attention")(read, asked, mask, question.mask)  # [B, T, 4 (2H + E)]
        joined = nn.relu(self._dense(2 * units, "joined")(both))  # [B, T, 2H]
        hidden = joined + self._attended(joined, mask, deterministic)
        hidden = self._drop(hidden, deterministic)
        first = BiGRU(units, name="start")(hidden, mask)
        last = BiGRU(units, name="end")(jnp.concatenate([hidden, first], axis=-1), mask)
        start = jnp.where(mask, self._dense(1, "start_logits")(first)[..., 0], MASKED)  # [B, T]
        end = jnp.where(mask, self._dense(1, "end_logits")(last)[..., 0], MASKED)
        self.sow("intermediates", "logits", (start, end))
        answers, filled = arrays["answers"], mask.any(-1)
        loss = mean_cross_entropy(start, answers[:, 0], filled) + mean_cross_entropy(end, answers[:, 1], filled)
        return TaskOutput(loss, {"start": jax.nn.softmax(start), "end": jax.nn.softmax(end)})

    def _drop(self, x: jax.Array, deterministic: bool) -> jax.Array:
        return Dropout(self.config.dropout, "variational")(x, deterministic=deterministic)

    def _read(self, encoder: BiGRU, text: Embedded, deterministic: bool) -> jax.Array:
        """Applies the first GRU to the context or the question and joins the output ELMo, [B, T, 2H + E]."""
        hidden = self._drop(encoder(self._drop(text.vectors, deterministic), text.mask), deterministic)
        return hidden if text.output is None else jnp.concatenate([hidden, text.output], axis=-1)

    def _attended(self, joined: jax.Array, mask: jax.Array, deterministic: bool) -> jax.Array:
        """Returns what the residual self-attention adds to `joined`, [B, T, 2H]."""
        units = self.config.units
        hidden = BiGRU(units, name="self_encoder")(self._drop(joined, deterministic), mask)
        hidden = SelfAttention(name="self_attention")(self._drop(hidden, deterministic), mask)  # [B, T, 6H]
        return nn.relu(self._dense(2 * units, "self_joined")(hidden))

    def _dense(self, size: int, name: str) -> nn.Dense:
        initial = nn.initializers.glorot_uniform()  # original
        return nn.Dense(size, kernel_init=initial, precision=lax.Precision.HIGHEST, name=name)
