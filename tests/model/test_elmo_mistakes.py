"""Settings and layers that the ELMo module refuses."""

from __future__ import annotations

import numpy as np
import pytest

import elmo_jax
from elmo_jax import Layers, UserError, character_ids
from tests.model.elmo_modules import SENTENCES, SIZE, bilm_of, made


@pytest.fixture(scope="module")
def bilm() -> elmo_jax.EmbeddingBiLM:
    return bilm_of()


@pytest.fixture(scope="module")
def characters() -> np.ndarray:
    return character_ids(SENTENCES, SIZE)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"layers": "first"},
            "layers: expected 'all', 'top', 'token' or the number of an LSTM layer, 1 to 2, got 'first'",
        ),
        (
            {"layer_norm": None},
            "layer_norm: expected one of 'none', 'tokens', 'without_bos_eos', 'with_bos_eos', got None",
        ),
        ({"layer_norm": False}, "layer_norm: expected one of"),
        ({"precision": "float16"}, "precision: expected one of 'float32', 'bfloat16', got 'float16'"),
        ({"num_mixes": 0}, "num_mixes: expected a whole number of at least 1, got 0"),
        ({"num_mixes": 2.0}, "num_mixes: expected a whole number of at least 1, got 2.0"),
        ({"dropout": None}, "dropout: expected a number of at least 0 and below 1, got None"),
        ({"dropout": "0.5"}, "dropout: expected a number of at least 0 and below 1, got '0.5'"),
        ({"dropout": 1.0}, "dropout: expected a number of at least 0 and below 1, got 1.0"),
        ({"regularization": -1}, "regularization: expected a number of at least 0, got -1"),
        ({"regularization": float("nan")}, "regularization: expected"),
        ({"regularization": None}, "regularization: expected a number of at least 0, got None"),
    ],
)
def test_settings_out_of_range(bilm, settings, message):
    with pytest.raises(UserError, match=message):
        bilm.elmo(**settings)


def test_layers_of_another_shape_are_refused(bilm, characters):
    layers, mask, _ = bilm.embed(SENTENCES)
    for norm in (Layers.ALL, Layers.TOP):
        module, variables = made(bilm, characters, layers=norm)
        for wrong, counted in (
            (layers[:1, -1], mask[:1]),
            (layers, mask[:1]),
            (layers[..., :5], mask),
            (layers[:, :2], mask),
            (layers, mask[:, :, None]),
        ):
            with pytest.raises(UserError, match=r"expected arrays \[B, 3, T, 10\] and \[B, T\]"):
                module.apply(variables, wrong, counted, method="mix")
