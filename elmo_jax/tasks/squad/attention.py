"""Implements the attentions of the SQuAD model: between context and question, and of the context on itself.

Shapes: B rows, T words of the context, J words of the question, D features per word.

Scores are trilinear, `u . x + v . y + (w * x) . y + b` (Seo et al. 2017); no array [B, T, J, D] is made.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from elmo_jax.tasks.layers.dense import glorot_uniform, product

MASKED = -1e29  # document-qa's score of padding; finite, so that a row without words has no NaN
NULL_START = -1.0  # document-qa's initial score of attending to nothing


class Trilinear(nn.Module):
    """Computes the scores of all pairs of elements of two sequences."""

    @nn.compact
    def __call__(self, first: jax.Array, second: jax.Array) -> jax.Array:
        """Maps [B, T, D] and [B, J, D] to the scores of all pairs, [B, T, J]."""
        size = first.shape[-1]
        of_first = self.param("first", glorot_uniform, (size,))
        of_second = self.param("second", glorot_uniform, (size,))
        of_product = self.param("product", glorot_uniform, (size,))
        bias = self.param("bias", nn.initializers.zeros_init(), ())
        products = jnp.einsum("btd,bjd->btj", first * of_product, second, precision=lax.Precision.HIGHEST)
        alone = product(first, of_first)[:, :, None]
        other = product(second, of_second)[:, None]
        return products + alone + other + bias


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
    """Returns the softmax over the last axis of `scores` [..., N] and one more score, `null` [], without its weight.

    The weights therefore add up to less than 1.
    """
    largest = lax.stop_gradient(jnp.maximum(scores.max(-1, keepdims=True), null))
    exponentials = jnp.exp(scores - largest)
    return exponentials / (exponentials.sum(-1, keepdims=True) + jnp.exp(null - largest))
