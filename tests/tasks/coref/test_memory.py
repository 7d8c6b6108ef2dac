"""The memory of training the paper's coreference model on a long document."""

import jax
import jax.numpy as jnp
import pytest

from elmo_jax.tasks.core.task import Embedded
from elmo_jax.tasks.coref.model import CorefModel, SpanRanker

WORDS, ROWS, LONGEST = 4096, 120, 48  # 3,000 words, and what they are rounded up to


@pytest.mark.slow
def test_a_document_of_3000_words_trains_in_four_gigabytes():
    def array(*shape, dtype=jnp.float32):
        return jax.ShapeDtypeStruct(shape, dtype)

    text = Embedded(array(ROWS, LONGEST, 1524), array(ROWS, LONGEST, dtype=bool), words=array(ROWS, LONGEST, 500))
    arrays = {"clusters": (1, WORDS, 10), "speakers": (1, WORDS), "genre": (1,)}
    arrays = {name: array(*shape, dtype=jnp.int32) for name, shape in arrays.items()}
    model, key = SpanRanker(CorefModel()), jax.eval_shape(lambda: jax.random.key(0))

    def gradient(params, text, arrays, key):
        def loss(params):
            return model.apply({"params": params}, text, arrays, deterministic=False, rngs={"dropout": key}).loss

        return jax.value_and_grad(loss)(params)

    params = jax.eval_shape(model.init, key, text, arrays)["params"]
    actual = jax.jit(gradient).lower(params, text, arrays, key).compile().memory_analysis()
    assert (
        0.1e9 < actual.temp_size_in_bytes + actual.argument_size_in_bytes < 2e9
    )  # Adam's moments and layers come on top
