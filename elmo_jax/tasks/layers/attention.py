"""Attention between two texts: scores, masked softmax, and BiDAF's merge.

Shapes: B rows, N and M steps of the two texts, D features.
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from elmo_jax.tasks.layers.dense import uniform

_EPSILON = 1e-13  # AllenNLP's: what is added to the sum of a softmax, so that a row without any key gives zeros
_NOTHING = -1e7  # AllenNLP's score of a key that is not there, in a maximum over keys


def masked_softmax(scores: jax.Array, mask: jax.Array) -> jax.Array:
    """The softmax over the last axis among the keys that exist; zeros where none does.

    AllenNLP takes the softmax of `scores * mask`, multiplies it with the mask and normalises again. The result is the
    same, except where all scores of a row are far below zero: there the zeros of padding take all its weight. Here the
    highest score of a key that exists is subtracted instead, so padding never matters.

    Args:
      scores: [..., M].
      mask: true on keys that exist, of a shape that broadcasts to that of `scores`.
    """
    mask = jnp.broadcast_to(mask, scores.shape)
    highest = lax.stop_gradient(jnp.max(scores, -1, keepdims=True, where=mask, initial=-jnp.inf))
    highest = jnp.where(jnp.isfinite(highest), highest, 0.0)
    weights = jnp.where(mask, jnp.exp(jnp.where(mask, scores - highest, 0.0)), 0.0)
    return weights / (weights.sum(-1, keepdims=True) + _EPSILON)


def dot_product_scores(queries: jax.Array, keys: jax.Array) -> jax.Array:
    """The scores `q_i · k_j`, unscaled: [B, N, D] and [B, M, D] give [B, N, M]."""
    return jnp.einsum("bnd,bmd->bnm", queries, keys, precision=lax.Precision.HIGHEST)


def attend(weights: jax.Array, values: jax.Array) -> jax.Array:
    """The sums of values by their weights: [B, N, M] and [B, M, D] give [B, N, D]."""
    return jnp.einsum("bnm,bmd->bnd", weights, values, precision=lax.Precision.HIGHEST)


class TrilinearScores(nn.Module):
    """The scores `w_x · x_i + w_y · y_j + (w_m ∘ x_i) · y_j + b` (Seo et al. 2017); AllenNLP's linear attention.

    The parameters are `x`, `y` and `product`, [D] each, and `bias` [].
    """

    @nn.compact
    def __call__(self, x: jax.Array, y: jax.Array) -> jax.Array:
        """Maps [B, N, D] and [B, M, D] to scores [B, N, M]."""
        size = x.shape[-1]
        init = uniform((6.0 / (3 * size + 1)) ** 0.5)  # AllenNLP's, as for one vector of 3D weights
        w_x, w_y, w_m = (self.param(name, init, (size,)) for name in ("x", "y", "product"))
        bias = self.param("bias", nn.initializers.zeros_init(), ())
        of_x = jnp.einsum("bnd,d->bn", x, w_x, precision=lax.Precision.HIGHEST)
        of_y = jnp.einsum("bmd,d->bm", y, w_y, precision=lax.Precision.HIGHEST)
        return of_x[:, :, None] + of_y[:, None, :] + dot_product_scores(x * w_m, y) + bias


def bidaf_attention(
    scores: jax.Array, context: jax.Array, question: jax.Array, context_mask: jax.Array, question_mask: jax.Array
) -> jax.Array:
    """Attention in both directions between a context and a question (Seo et al. 2017).

    Args:
      scores: [B, N, M].
      context: [B, N, D].
      question: [B, M, D].
      context_mask, question_mask: [B, N] and [B, M], true on words.

    Returns:
      [B, N, 4D], `[c; c2q; c ∘ c2q; c ∘ q2c]`; q2c is one vector for all words of a context.
    """
    c2q = attend(masked_softmax(scores, question_mask[:, None, :]), question)  # [B, N, D]
    best = jnp.where(question_mask[:, None, :], scores, _NOTHING).max(-1)  # [B, N]
    q2c = attend(masked_softmax(best, context_mask)[:, None, :], context)  # [B, 1, D]
    return jnp.concatenate([context, c2q, context * c2q, context * q2c], axis=-1)
