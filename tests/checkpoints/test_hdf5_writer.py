"""HDF5 files on a disk that is full, at every size: an error, never a crash, and what is complete stays."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from elmo_jax.checkpoints.hdf5_files import new_hdf5
from elmo_jax.cli.main import main

ROOT = Path(__file__).parents[2]
SKIP = ROOT / "tests" / "oracles" / "embedding" / "skip"
SOURCE = ("--options", str(SKIP / "options.json"))
NUMBERS = np.arange(700, dtype=np.float32)
SIZES = (0, 500, 800, 2048, 5000, 20_000, 60_000, 120_000, 1 << 20)


def limited(size: int, function: Callable[[], object]) -> None:
    """Calls a function while no file may have more than so many bytes, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        function()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)


def write(path: Path) -> None:
    with new_hdf5(path) as writer:
        for number in range(40):
            writer.add(f"lines/{number}", NUMBERS + number)


def test_every_size_is_an_error_or_the_whole_file(tmp_path: Path) -> None:
    """Datasets of 2.8 kB go into files of up to 160 kB; the HDF5 library alone crashes at most of these sizes."""
    path, failures = tmp_path / "file.hdf5", 0
    for size in range(0, 160_000, 1777):
        try:
            limited(size, lambda: write(path))
        except OSError as error:
            assert error.strerror == "File too large"
            failures += 1
        else:
            with h5py.File(path) as file:
                assert all((file[f"lines/{n}"][...] == NUMBERS + n).all() for n in range(40))
    assert 50 < failures < 90


def test_the_first_error_ends_it(tmp_path: Path) -> None:
    def added() -> None:
        with new_hdf5(tmp_path / "file.hdf5") as writer:
            writer.add("small", NUMBERS[:10])
            with pytest.raises(OSError, match="File too large"):
                writer.add("large", np.zeros(100_000))
            assert writer.file["large"][-1] == 0  # the library continues in memory
            assert (writer.file["small"][...] == NUMBERS[:10]).all()

    with pytest.raises(OSError, match="File too large"):
        limited(10_000, added)


def commands() -> None:
    """Runs in a separate process: the three commands that write HDF5, at every size; prints how each ended."""
    text, words, out = Path("text.txt"), Path("words.txt"), Path("out")
    text.write_text("".join(f"a b {n}\n" for n in range(60)))
    words.write_text("".join(f"word{n}\n" for n in range(900)))
    weights = str(SKIP / "weights.hdf5")
    assert main(["export", weights, *SOURCE, "--out", "export"]) == 0
    lines = {
        "embed": ["embed", weights, str(text), f"{out}/e.hdf5", *SOURCE],
        "words": ["embed", "--words", weights, str(words), f"{out}/w.hdf5", *SOURCE],
        "export": ["export-hdf5", "export", f"{out}/o.json", f"{out}/x.hdf5"],
    }
    out.mkdir()
    actual: dict[str, list[int]] = {name: [] for name in lines}
    for name, arguments in lines.items():
        for size in SIZES:
            limited(size, lambda arguments=arguments, name=name: actual[name].append(main(arguments)))
            if actual[name][-1] == 0:
                break
    print(json.dumps({"ended": actual, "left": sorted(path.name for path in out.iterdir())}))


def test_the_commands_give_one_line(tmp_path: Path) -> None:
    code = "from tests.checkpoints.test_hdf5_writer import commands; commands()"
    # JAX would keep the beginning of a compiled program that is too long, and never replace it
    environment = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "1e9"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, (done.returncode, done.stderr)
    assert "Traceback" not in done.stderr
    actual = json.loads(done.stdout.splitlines()[-1])
    for name, ended in actual["ended"].items():
        assert len(ended) > 4 and ended == [2] * (len(ended) - 1) + [0], (name, ended)
    printed = [line for line in done.stderr.splitlines() if line.startswith("elmo-jax: ")]
    refused = [line for line in printed if not line.startswith("elmo-jax: AllenNLP cannot read this biLM")]
    assert len(refused) == sum(len(ended) - 1 for ended in actual["ended"].values())
    assert all(line.endswith("cannot be written (File too large)") for line in refused), refused
    assert actual["left"] == ["e.hdf5", "o.json", "w.hdf5", "x.hdf5"]  # nothing that is half a file
