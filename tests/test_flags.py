"""Flags of JAX that a program sets for its own code, and XLA's optimizations, change no number here."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.model.elmo_modules import SENTENCES, bilm_of, made

FLAGS = {
    "jax_enable_x64": True,
    "jax_numpy_dtype_promotion": "strict",
    "jax_numpy_rank_promotion": "raise",
    "jax_disable_jit": True,
}


@pytest.fixture(params=FLAGS)
def flag(request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of a flag that is set after `usual` was computed; the caches of compiled functions are of the others."""
    before = getattr(jax.config, request.param)
    yield request.param
    jax.config.update(request.param, before)


def compared(flag: str, compute: Any) -> None:
    """Computes with the usual flags and with the other value of one, and compares arrays and types."""
    usual = jax.tree.map(np.asarray, compute())
    jax.config.update(flag, FLAGS[flag])
    actual = jax.tree.map(np.asarray, compute())
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), actual, usual)
    assert jax.tree.map(lambda x: x.dtype, actual) == jax.tree.map(lambda x: x.dtype, usual)


@pytest.mark.parametrize(
    "flag",
    [pytest.param(name, marks=pytest.mark.slow) if name == "jax_disable_jit" else name for name in FLAGS],
    indirect=True,
)
def test_vectors(flag: str) -> None:
    compared(flag, lambda: bilm_of().embed(SENTENCES, state="warm_up")[0])


@pytest.mark.slow  # those of a biLM that is trained too are in embedding/test_programs.py
def test_elmo_in_a_model_and_its_gradients(flag: str) -> None:
    bilm = bilm_of()
    characters = bilm.character_ids(SENTENCES)

    def compute() -> Any:
        module, variables = made(bilm, characters, num_mixes=2, layer_norm="without_bos_eos")

        def total(params: Any) -> Any:
            output = module.apply({**variables, "params": params}, characters)
            return sum(mix.sum() for mix in output.mixes), output

        return jax.value_and_grad(total, has_aux=True)(variables["params"])

    compared(flag, compute)


@pytest.mark.parametrize(
    "test",
    [
        "embedding.test_embed:test_the_originals_calls_with_the_state_carried('skip')",
        pytest.param("training.test_oracle:test_forty_steps_of_the_original_trainer('cpu')", marks=pytest.mark.slow),
    ],
)
def test_xlas_own_optimizations(test: str) -> None:
    """The suite compiles with few optimizations (`tests/environment.py`), users with all."""
    module, call = test.split(":")
    program = f"from tests.{module} import *; {call}"
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    environment["PYTHONPATH"] = str(Path(__file__).parents[1])
    ended = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
