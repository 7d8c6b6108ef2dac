"""Implements attention between two texts: scores, masked softmax and weighted sums.

Shapes: B rows, N and M steps of the two texts, D features per step.
"""

import jax
import jax.numpy as jnp
from jax import lax

_EPSILON = 1e-13  # AllenNLP's addend to the sum of a softmax, with which a row without keys gives zeros


def masked_softmax(scores: jax.Array, mask: jax.Array) -> jax.Array:
    """Returns the softmax of scores [..., M] among the keys whose mask is true; zeros if there is none.

    AllenNLP computes the softmax of `scores * mask`, multiplies it by the mask and normalises again. The result is the
    same unless all scores of a row are far below zero: then padding, whose scores are zero, takes all the weight. Here
    the highest score of an existing key is subtracted instead, so padding has no effect.
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
