"""Tests the orthogonal blocks: what they are, and that no factorization of a batch is asked for."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from elmo_jax.tasks.layers.dense import block_orthogonal


@pytest.mark.parametrize("shape", [(6, 18), (9, 12), (4, 18)])
def test_each_block_is_orthogonal_and_its_own(shape):
    actual = np.asarray(jax.jit(block_orthogonal(3), static_argnums=1)(jax.random.key(0), shape))
    rows, columns = shape[0], shape[1] // 3
    blocks = actual.reshape(rows, 3, columns).transpose(1, 0, 2)
    for block in blocks:
        product = block.T @ block if rows >= columns else block @ block.T
        assert_allclose(product, np.eye(min(rows, columns)), atol=1e-5)
    assert np.abs(blocks[0] - blocks[1]).max() > 0.1


def test_matrices_are_factorized_one_by_one():
    """Two factorizations of batches wait for each other for ever on a CPU with as many threads."""

    program = str(jax.make_jaxpr(lambda key: block_orthogonal(5)(key, (4, 20), jnp.float32))(jax.random.key(0)))
    shapes = re.findall(r"f32\[([\d,]+)\][^\n=]*= (?:geqrf|householder_product|qr)\b", program)
    assert shapes and all(shape.count(",") == 1 for shape in shapes), program
