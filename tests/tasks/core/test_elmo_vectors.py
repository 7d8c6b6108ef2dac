"""Stored layers: two launches that need the same ones at once, and predictions that compute what was stored."""

from __future__ import annotations

import functools
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from elmo_jax.embedding.bilm import frozen_tree
from elmo_jax.tasks.core import elmo_vectors
from elmo_jax.tasks.core.config import CharactersConfig, ElmoConfig, TaskConfig, WordVectorsConfig
from elmo_jax.tasks.core.elmo_vectors import Layers, make
from elmo_jax.tasks.core.inputs import ElmoMix, Inputs, InputSettings, TextEncoder
from elmo_jax.tasks.core.vocabulary import Vocabulary
from tests.analysis.texts import tiny_bilm

SENTENCES = [("the", "old", "boat"), ("fish",), ("a", "boat", "sinks")]


def test_two_launches_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """The second begins while the first has an empty file; `flock` keeps descriptors apart, also in one process."""
    bilm, write, writes = tiny_bilm(), elmo_vectors._write, []
    second_began = threading.Event()

    def slow_write(*arguments: Any) -> None:
        writes.append(arguments)
        second_began.wait(60)
        write(*arguments)

    monkeypatch.setattr(elmo_vectors, "_write", slow_write)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(make, tmp_path, bilm, SENTENCES, "float32")
        second = pool.submit(make, tmp_path, bilm, SENTENCES, "float32")
        while not (said := capsys.readouterr().err) and len(writes) < 2 and not second.done():
            time.sleep(0.01)
        second_began.set()
        files = first.result(), second.result()
    assert len(writes) == 1 and "waiting for another process" in said
    for sentence in SENTENCES:
        assert_array_equal(files[0][sentence], files[1][sentence])
        layers = bilm.embed([sentence])[0][0]
        assert_allclose(files[0][sentence], elmo_vectors.packed(layers), atol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_layers_that_are_computed_are_rounded_as_stored_ones(tmp_path: Path, dtype: Any) -> None:
    bilm = tiny_bilm()
    elmo = ElmoConfig(dtype=dtype, dropout=0.0)
    config = TaskConfig(word_vectors=WordVectorsConfig(dim=0), elmo=elmo)
    vocabulary = Vocabulary([], [], config.word_vectors)
    module = Inputs(InputSettings(0, 0, False, 0, CharactersConfig(), bilm.config, elmo))
    files = Layers([make(tmp_path, bilm, SENTENCES, dtype)])
    variables = module.init(
        jax.random.key(0), TextEncoder(config, vocabulary, bilm, files)(SENTENCES, 3, 4), deterministic=True
    )
    variables = {**variables, "constants": {"bilm": frozen_tree(bilm)}}
    vectors = []
    for layers in (files, None):  # read from the file, and computed
        text = TextEncoder(config, vocabulary, bilm, layers, embeds=layers is None)(SENTENCES, 3, 4)
        vectors.append(jax.jit(functools.partial(module.apply, deterministic=True))(variables, text)[0].vectors)
    difference = np.abs(vectors[0] - vectors[1])
    assert np.median(difference) < 1e-7  # a number that is rounded the other way is off by more
    assert (difference > 1e-6).mean() < 0.02


@pytest.mark.parametrize(("choice", "layer"), [("token", 0), ("1", 1), ("2", 2), ("top", 3)])
def test_one_layer_alone(choice: str, layer: int) -> None:
    """Three LSTM layers; the first layer has its vectors twice, of which the token layer is one."""
    layers = np.random.default_rng(0).normal(size=(2, 4, 5, 6)).astype(np.float32)
    mask = np.arange(5) < np.array([[5], [3]])
    mix = ElmoMix(ElmoConfig(layers=choice, dropout=0.0))
    (mixed, squares), _ = mix.init_with_output(jax.random.key(0), layers, mask, deterministic=True)
    assert_allclose(mixed, (layers[:, layer] * mask[..., None])[..., : 3 if choice == "token" else 6], rtol=1e-6)
    assert squares == 0
