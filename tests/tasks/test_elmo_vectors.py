"""Two launches that need the layers of the same sentences: one embeds them, and the other waits for it."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from numpy.testing import assert_allclose, assert_array_equal

from elmo_jax.tasks import elmo_vectors
from elmo_jax.tasks.elmo_vectors import make
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
