"""Tests scores and the masked softmax against the oracles."""

import jax
import jax.numpy as jnp
import numpy as np
from numpy.testing import assert_allclose

from elmo_jax.tasks.layers.attention import dot_product_scores, masked_softmax
from tests.tasks import weights


def test_scores_are_the_oracle():
    case = weights.oracle("attention", "linear_matrix_attention")
    x, y = case["input"]["x"], case["input"]["y"]
    weights.close(jax.jit(dot_product_scores)(x, y), case["output"]["dot_product"])


def test_masked_softmax_is_the_oracle():
    case = weights.oracle("attention", "masked_softmax")
    mask = case["input"]["mask"][:, None, :] > 0
    found = jax.jit(masked_softmax)(case["input"]["scores"], mask)
    weights.close(found, case["output"]["softmax"])
    empty = ~case["input"]["mask"].any(1)
    assert empty.any() and not np.asarray(found)[empty].any()


def test_masked_softmax_never_sees_padding():
    scores, mask = jnp.array([-200.0, -201.0, -199.5]), jnp.array([True, True, False])
    expected = jax.nn.softmax(scores[:2])  # zeros of padding would take all weight from such low scores
    low, high = jax.jit(lambda: (masked_softmax(scores, mask), masked_softmax(-scores, mask)))()
    assert_allclose(low, [*expected, 0], atol=1e-6)
    assert_allclose(high, [*expected[::-1], 0], atol=1e-6)


def test_masked_softmax_gradients():
    scores = jnp.array([[1.0, -2.0, 3.0, 0.5], [7.0, 1.0, 2.0, 3.0]])
    mask = jnp.array([[True, True, False, True], [False] * 4])
    cotangent = jnp.array([[1.0, 2.0, 4.0, -1.0], [3.0, 1.0, 2.0, 5.0]])

    @jax.jit
    def gradients(scores):
        mine = jax.grad(lambda s: (masked_softmax(s, mask) * cotangent).sum())(scores)
        kept = jnp.array([0, 1, 3])
        plain = jax.grad(lambda s: (jax.nn.softmax(s) * cotangent[0, kept]).sum())(scores[0, kept])
        return mine, jnp.zeros(4).at[kept].set(plain)

    mine, plain = gradients(scores)
    assert_allclose(mine[0], plain, atol=1e-6)
    assert not np.asarray(mine[1]).any()
