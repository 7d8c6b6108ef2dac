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

from elmo_jax.config import LSTMConfig, ModelConfig
from elmo_jax.distributed.mesh import make_mesh
from elmo_jax.embedding.bilm import frozen_tree
from elmo_jax.tasks.core import elmo_vectors
from elmo_jax.tasks.core.config import ElmoConfig, TaskConfig, WordVectorsConfig
from elmo_jax.tasks.core.elmo_vectors import LayerCache, make
from elmo_jax.tasks.core.inputs import Inputs, TextEncoder, embedded
from elmo_jax.tasks.core.setup import TaskSetup
from elmo_jax.tasks.core.vocabulary import Vocabulary, WordTable
from elmo_jax.tasks.registry import get_task
from tests.analysis.texts import tiny_bilm

SENTENCES = [("the", "old", "boat"), ("fish",), ("a", "boat", "sinks")]


def test_two_launches_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """The second begins while the first has an empty file; `flock` keeps descriptors apart, also in one process."""
    bilm, write, writes = tiny_bilm(), elmo_vectors.write_shard, []
    second_began = threading.Event()

    def slow_write(*arguments: Any) -> None:
        writes.append(arguments)
        second_began.wait(60)
        write(*arguments)

    monkeypatch.setattr(elmo_vectors, "write_shard", slow_write)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(make, tmp_path, bilm, SENTENCES, "float32")
        second = pool.submit(make, tmp_path, bilm, SENTENCES, "float32")
        printed = ""
        while "waiting" not in printed and len(writes) < 2 and not second.done():
            time.sleep(0.01)
            printed += capsys.readouterr().err
        second_began.set()
        stored = [LayerCache(made.result().files) for made in (first, second)]
    assert len(writes) == 1 and "waiting for another process" in printed
    for sentence in SENTENCES:
        assert_array_equal(stored[0][sentence], stored[1][sentence])
        layers = bilm.embed([sentence])[0][0]
        assert_allclose(elmo_vectors.unpack_layers(stored[0][sentence][None], bilm.config)[0], layers, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_layers_that_are_computed_are_rounded_as_stored_ones(tmp_path: Path, dtype: Any) -> None:
    bilm = tiny_bilm()
    elmo = ElmoConfig(dtype=dtype, dropout=0.0)
    config = TaskConfig(word_vectors=WordVectorsConfig(dim=0), elmo=elmo)
    table = WordTable(np.zeros((2, 0), np.float32), np.zeros(2, bool), 0.0, None)
    vocabulary, mesh = Vocabulary([], [], config.word_vectors), make_mesh(jax.devices()[:1])
    setup = TaskSetup(get_task("pos"), config, {}, vocabulary, table, bilm, mesh)
    module = Inputs(config, bilm.config)
    files = LayerCache(make(tmp_path, bilm, SENTENCES, dtype).files)
    stored = lambda rows: [files[words] if words else () for words in rows]  # noqa: E731
    first = TextEncoder(setup, stored)(SENTENCES, 3, 4)
    variables = module.init(jax.random.key(0), first, deterministic=True)
    variables = {"params": variables["params"], "frozen": {"bilm": frozen_tree(bilm)}}
    vectors = []
    for layers in (stored, functools.partial(embedded, bilm, elmo)):  # read from the file, and computed
        text = TextEncoder(setup, layers)(SENTENCES, 3, 4)
        vectors.append(jax.jit(functools.partial(module.apply, deterministic=True))(variables, text)[0].vectors)
    difference = np.abs(vectors[0] - vectors[1])
    assert (difference > 1e-5).mean() < 0.02  # those that are rounded the other way, of which float16 has some


@pytest.mark.parametrize(("choice", "layer"), [("token", 0), ("1", 1), ("2", 2), ("top", 3)])
def test_one_layer_alone(choice: str, layer: int) -> None:
    """Three LSTM layers; the first layer has its vectors twice, of which the token layer is one."""
    stored = np.random.default_rng(0).normal(size=(2, 5, 3 + 3 * 6)).astype(np.float32)
    mask = np.arange(5) < np.array([[5], [3]])
    bilm = ModelConfig(lstm=LSTMConfig(layers=3, projection=3))
    module = Inputs(TaskConfig(elmo=ElmoConfig(layers=choice, dropout=0.0)), bilm)
    text = {"mask": mask, "layers": stored}
    (embedded, penalty), _ = module.init_with_output(jax.random.key(0), text, deterministic=True)
    expected = elmo_vectors.unpack_layers(stored, bilm)[:, layer] * mask[..., None]
    assert_allclose(embedded.vectors, expected[..., : 3 if choice == "token" else 6], rtol=1e-5)
    assert penalty == 0
