"""Implements attention between two texts: scores, masked softmax and the attention of BiDAF.

Shapes: B rows, N and M steps of the two texts, D features per step.
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from elmo_jax.tasks.layers.dense import uniform

_EPSILON = 1e-13  # AllenNLP's addend to the sum of a softmax, with which a row without keys gives zeros
_NOTHING = -1e7  # AllenNLP's score of padding in a maximum over keys


def masked_softmax(scores: jax.Array, mask: jax.Array) -> jax.Array:
    """Returns the softmax over the last axis among the keys that exist; zeros if none exists.

    AllenNLP computes the softmax of `scores * mask`, multiplies it by the mask and normalises again. The result is the
    same unless all scores of a row are far below zero: then padding, whose scores are zero, takes all the weight. Here
    the highest score of an existing key is subtracted instead, so padding has no effect.

    Args:
      scores: [..., M].
      mask: true for keys that exist; its shape broadcasts to that of `scores`.
    """
    mask = jnp.broadcast_to(mask, scores.shape)
    highest = lax.stop_gradient(jnp.max(scores, -1, keepdims=True, where=mask, initial=-jnp.inf))
    highest = jnp.where(jnp.isfinite(highest), highest, 0.0)
    weights = jnp.where(mask, jnp.exp(jnp.where(mask, scores - highest, 0.0)), 0.0)
    return weights / (weights.sum(-1, keepdims=True) + _EPSILON)


def dot_product_scores(queries: jax.Array, keys: jax.Array) -> jax.Array:
    """Maps queries [B, N, D] and keys [B, M, D] to the unscaled scores `q_i · k_j`, [B, N, M]."""
    return jnp.einsum("bnd,bmd->bnm", queries, keys, precision=lax.Precision.HIGHEST)


def attend(weights: jax.Array, values: jax.Array) -> jax.Array:
    """Maps weights [B, N, M] and values [B, M, D] to weighted sums [B, N, D]."""
    return jnp.einsum("bnm,bmd->bnd", weights, values, precision=lax.Precision.HIGHEST)


class TrilinearScores(nn.Module):
    """Computes `w_x · x_i + w_y · y_j + (w_m ∘ x_i) · y_j + b` (Seo et al. 2017), AllenNLP's linear attention.

    The parameters are `x`, `y` and `product`, [D] each, and `bias` [].
    """

    @nn.compact
    def __call__(self, x: jax.Array, y: jax.Array) -> jax.Array:
        """Maps [B, N, D] and [B, M, D] to scores [B, N, M]."""
        size = x.shape[-1]
        init = uniform((6.0 / (3 * size + 1)) ** 0.5)  # AllenNLP's bound, that of one vector of 3D weights
        w_x, w_y, w_m = (self.param(name, init, (size,)) for name in ("x", "y", "product"))
        bias = self.param("bias", nn.initializers.zeros_init(), ())
        of_x = jnp.einsum("bnd,d->bn", x, w_x, precision=lax.Precision.HIGHEST)
        of_y = jnp.einsum("bmd,d->bm", y, w_y, precision=lax.Precision.HIGHEST)
        return of_x[:, :, None] + of_y[:, None, :] + dot_product_scores(x * w_m, y) + bias


def bidaf_attention(
    scores: jax.Array, context: jax.Array, question: jax.Array, context_mask: jax.Array, question_mask: jax.Array
) -> jax.Array:
    """Computes attention in both directions between a context and a question (Seo et al. 2017).

    Args:
      scores: [B, N, M], the scores of all pairs of words.
      context: [B, N, D].
      question: [B, M, D].
      context_mask: [B, N], true on words.
      question_mask: [B, M], true on words.

    Returns:
      `[c; c2q; c ∘ c2q; c ∘ q2c]`, [B, N, 4D]; q2c is one vector for all words of a context.
    """
    c2q = attend(masked_softmax(scores, question_mask[:, None, :]), question)  # [B, N, D]
    best = jnp.where(question_mask[:, None, :], scores, _NOTHING).max(-1)  # [B, N]
    q2c = attend(masked_softmax(best, context_mask)[:, None, :], context)  # [B, 1, D]
    return jnp.concatenate([context, c2q, context * c2q, context * q2c], axis=-1)
