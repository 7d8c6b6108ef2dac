"""Tests pooling over words against a loop over rows."""

import jax
import numpy as np
from numpy.testing import assert_allclose

from elmo_jax.tasks.layers.dense import SelfAttentivePooling, masked_max, masked_mean, masked_min

ROWS, STEPS, FEATURES = 4, 5, 3
LENGTHS = (5, 2, 0, 1)


def test_equals_a_loop_over_rows():
    vectors = np.random.default_rng(0).normal(size=(ROWS, STEPS, FEATURES)).astype(np.float32)
    mask = np.arange(STEPS) < np.asarray(LENGTHS)[:, None]
    model = SelfAttentivePooling()
    variables = jax.jit(model.init)(jax.random.key(0), vectors, mask)

    @jax.jit
    def pooled(variables):
        three = [pool(vectors, mask) for pool in (masked_max, masked_min, masked_mean)]
        return *three, model.apply(variables, vectors, mask)

    highest, lowest, mean, attentive = map(np.asarray, pooled(variables))
    score = variables["params"]["score"]
    for row, length in enumerate(LENGTHS):
        words = vectors[row, :length]
        if not length:
            assert (highest[row] == -1e7).all() and (lowest[row] == 1e7).all()
            assert not mean[row].any() and not attentive[row].any()
            continue
        assert_allclose(highest[row], words.max(0))
        assert_allclose(lowest[row], words.min(0))
        assert_allclose(mean[row], words.mean(0), atol=1e-5)
        beta = np.exp(words @ score["kernel"] + score["bias"])
        assert_allclose(attentive[row], (beta / beta.sum() * words).sum(0), atol=1e-5)
