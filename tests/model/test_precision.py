"""Products in a stated precision against NumPy's, in shapes that are divided and that are not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from elmo_jax.model.precision import Precision


@pytest.mark.parametrize("leading", [(64,), (7,), (1,), (6, 10), (5, 3, 2)])
@pytest.mark.parametrize("precision", Precision)
def test_summed_products_are_sums_of_outer_products(leading, precision):
    a, b = (jax.random.normal(jax.random.key(n), (*leading, n)) for n in (3, 4))
    actual = jax.jit(precision.summed_product)(a, b)
    exact = (np.asarray(precision.operand(x), np.float64).reshape(-1, x.shape[-1]) for x in (a, b))
    assert actual.dtype == jnp.float32
    assert_allclose(actual, np.einsum("ri,rj->ij", *exact), rtol=1e-5, atol=1e-5)
