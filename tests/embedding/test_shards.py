"""Tests the vectors of a file as a folder of NumPy files: the same numbers as HDF5, resumed, and damaged."""

from __future__ import annotations

import dataclasses
import json
import pickle
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from elmo_jax import EmbeddingBiLM, UserError, VectorShards, load_bilm
from elmo_jax.cli.main import main
from elmo_jax.embedding import embed_file as files
from elmo_jax.embedding.embed import CarryState
from elmo_jax.embedding.embed_file import embed_file
from elmo_jax.embedding.output_settings import Format, Output, Settings
from elmo_jax.embedding.shards import Shard, write_shard
from elmo_jax.files import shown_bytes
from tests.embedding.published import OPTIONS, WEIGHTS, read

LINES = ["The cat sat .", "", "one", "w w w w w w", "", "The dog"]


@pytest.fixture(scope="module")
def bilm() -> EmbeddingBiLM:
    return load_bilm((OPTIONS, WEIGHTS))


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(files, "LINES", 2)  # three files
    path = tmp_path / "sentences.txt"
    path.write_text("\n".join(LINES) + "\n")
    return path


@pytest.mark.parametrize(("output", "dtype"), [(Output.ALL, "float32"), (Output.TOP, "float16")])
def test_the_numbers_are_those_of_hdf5(bilm, text, tmp_path, output, dtype):
    embed_file(bilm, text, tmp_path / "v.hdf5", Settings(output, dtype=dtype))
    assert embed_file(bilm, text, tmp_path / "v", Settings(output, dtype=dtype, format=Format.NPY)) == len(LINES)
    shards = VectorShards(tmp_path / "v")
    assert len(shards) == len(LINES) and shards.lengths.tolist() == [len(line.split()) for line in LINES]
    for actual, expected in zip(shards, read(tmp_path / "v.hdf5"), strict=True):
        assert actual.dtype == dtype
        assert_array_equal(actual, expected)
    assert_array_equal(shards[-1], shards[5])
    again = pickle.loads(pickle.dumps(shards))  # as a loader with worker processes does
    for actual, line in zip(again[4:0:-2], (4, 2), strict=True):
        assert_array_equal(actual, shards[line])
    assert sorted(path.name for path in (tmp_path / "v").iterdir()) == [
        *("000000000000.npy", "000000000002.npy", "000000000004.npy", "job.json", "lengths.npy")
    ]
    assert repr(shards).endswith("6 lines, 13 words)")
    with pytest.raises(IndexError, match="line 6 of 6 lines"):
        shards[6]


def test_a_stopped_command_resumes_in_either_format(bilm, text, tmp_path, monkeypatch):
    settings, real, written = Settings(state=CarryState.CARRY, format=Format.NPY), files.write_shard, []

    def dies(path, *arguments):
        real(path, *arguments)
        if path.suffix == ".npy":
            written.append(path.name)
            if len(written) == 2:
                raise KeyboardInterrupt

    monkeypatch.setattr(files, "write_shard", dies)
    out = tmp_path / "v"
    with pytest.raises(KeyboardInterrupt):
        embed_file(bilm, text, out, dataclasses.replace(settings, format=Format.HDF5))
    assert not out.exists()
    (tmp_path / "v.parts" / ".000000000002.carry.0123abcd.tmp").touch()  # as a killed process leaves it
    embed_file(bilm, text, out, settings)
    assert written == ["000000000000.npy", "000000000002.npy", "000000000004.npy"]
    assert embed_file(bilm, text, out, settings) == len(LINES) and len(written) == 3
    for other in (Settings(Output.TOP, format=Format.NPY), dataclasses.replace(settings, format=Format.HDF5)):
        with pytest.raises(UserError, match="was not made from these sentences with these settings"):
            embed_file(bilm, text, out, other)
    names = sorted(path.name for path in out.iterdir())
    assert not out.with_name("v.parts").exists() and names == [*written, "job.json", "lengths.npy"]
    embed_file(bilm, text, tmp_path / "v.hdf5", dataclasses.replace(settings, format=Format.HDF5))
    for actual, expected in zip(VectorShards(out), read(tmp_path / "v.hdf5"), strict=True):
        assert_array_equal(actual, expected)


@pytest.mark.parametrize(("before", "after"), [(b"<f4", b"<i4"), (b"(7, 3, 32)", b"(7, 32, 3)")])
def test_another_type_or_shape_is_noticed(tmp_path, before, after):
    vectors = np.arange(7 * 3 * 32, dtype=np.float32).reshape(7, 3, 32)
    write_shard(tmp_path / "0.npy", vectors, [3, 0, 4])
    assert_array_equal(Shard(tmp_path / "0.npy")[2], vectors[3:])
    content = (tmp_path / "0.npy").read_bytes()
    assert content.count(before) == 1
    (tmp_path / "0.npy").write_bytes(content.replace(before, after))
    with pytest.raises(UserError, match="missing or damaged"):
        Shard(tmp_path / "0.npy")


@pytest.mark.parametrize("lost", ["000000000000.npy", "000000000002.npy", "000000000004.npy"])
def test_a_folder_that_lost_a_file_is_not_called_complete(bilm, text, tmp_path, lost):
    embed_file(bilm, text, tmp_path / "v", Settings(format=Format.NPY))
    (tmp_path / "v" / lost).unlink()
    with pytest.raises(UserError, match=r"0+[024]\.npy: "):
        embed_file(bilm, text, tmp_path / "v", Settings(format=Format.NPY))


@pytest.mark.parametrize("format", list(Format))
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda part: part.unlink(), r"0.npy: has 2 lines, expected 4; or the file after it is missing"),
        (lambda part: part.write_bytes(part.read_bytes()[:300]), "2.npy: missing or damaged"),
        (lambda part: part.write_bytes(part.read_bytes() + b"."), "2.npy: missing or damaged"),
    ],
)
def test_a_part_that_is_lost_or_cut_is_noticed_before_the_end(
    bilm, text, tmp_path, monkeypatch, format, damage, message
):
    settings, real = Settings(format=format), files._write_parts

    def loses(*arguments):
        lengths = real(*arguments)
        damage(tmp_path / "v.parts" / "000000000002.npy")
        return lengths

    monkeypatch.setattr(files, "_write_parts", loses)
    with pytest.raises(UserError, match=f"00000000000{message}"):
        embed_file(bilm, text, tmp_path / "v", settings)
    assert not (tmp_path / "v").exists()
    monkeypatch.setattr(files, "_write_parts", real)
    (tmp_path / "v.parts" / "000000000002.npy").unlink(missing_ok=True)
    assert embed_file(bilm, text, tmp_path / "v", settings) == len(LINES)


def flipped(content: bytes, position: int) -> bytes:
    return content[:position] + bytes([content[position] ^ 0x10]) + content[position + 1 :]


def test_a_part_of_an_earlier_launch_that_is_damaged_is_noticed(bilm, text, tmp_path):
    embed_file(bilm, text, tmp_path / "v", Settings(format=Format.NPY))
    (tmp_path / "v").rename(tmp_path / "v.parts")  # as it is before the end
    (tmp_path / "v.parts" / "lengths.npy").unlink()
    part = tmp_path / "v.parts" / "000000000002.npy"
    whole = part.read_bytes()
    for position in (300, len(whole) // 2, len(whole) - 40, len(whole) - 10):  # in the vectors, the index, its checksum
        part.write_bytes(flipped(whole, position))
        with pytest.raises(UserError, match="00002.npy: .*damaged .*; remove that file and run the command again"):
            embed_file(bilm, text, tmp_path / "v", Settings(format=Format.NPY))
    part.unlink()
    assert embed_file(bilm, text, tmp_path / "v", Settings(format=Format.NPY)) == len(LINES)
    part = tmp_path / "v" / "000000000002.npy"
    part.write_bytes(flipped(whole, 300))
    with pytest.raises(UserError, match="00002.npy: damaged .*; remove the folder"):
        embed_file(bilm, text, tmp_path / "v", Settings(format=Format.NPY))
    with pytest.raises(UserError, match="00002.npy: damaged .*sentence 1 is another one"):
        VectorShards(tmp_path / "v")[2]


def test_a_full_disk_is_told(bilm, text, tmp_path):
    """The last block of a file is written when it is closed, where `np.save` does not notice a full disk."""
    code = (
        "import resource, signal, sys; from pathlib import Path; import numpy as np;"
        "from elmo_jax.embedding.shards import write_shard;"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000));"
        "write_shard(Path(sys.argv[1]), np.ones((8, 3, 64), np.float32), [8])"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "0.npy")], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1 and "OSError" in ended.stderr and "File too large" in ended.stderr
    assert not (tmp_path / "0.npy").exists()


def test_damage_is_named(bilm, text, tmp_path):
    embed_file(bilm, text, tmp_path / "v", Settings(format=Format.NPY))
    middle = tmp_path / "v" / "000000000002.npy"
    whole = middle.read_bytes()
    middle.write_bytes(whole[:-8])
    with pytest.raises(UserError, match=r"000000000002.npy: missing or damaged"):
        VectorShards(tmp_path / "v")[3]
    middle.unlink()
    with pytest.raises(UserError, match=r"000000000000.npy: has 2 lines, expected 4"):
        VectorShards(tmp_path / "v")[3]
    middle.write_bytes(whole)
    (tmp_path / "v" / "lengths.npy").unlink()
    with pytest.raises(UserError, match="not a whole folder"):
        VectorShards(tmp_path / "v")


def test_a_folder_of_another_version_is_refused_when_it_is_opened(bilm, text, tmp_path):
    embed_file(bilm, text, tmp_path / "v", Settings(format=Format.NPY))
    job = tmp_path / "v" / "job.json"
    made_from = json.loads(job.read_text())
    for other in ({**made_from, "version": 1}, {}, []):
        job.write_text(json.dumps(other))
        with pytest.raises(UserError, match="v: written by another version of elmo_jax; run `elmo-jax embed` again"):
            VectorShards(tmp_path / "v")
    job.write_text(json.dumps({**made_from, "lines": 5}))
    with pytest.raises(UserError, match="lengths.npy: has another number of lines than job.json says"):
        VectorShards(tmp_path / "v")


@pytest.mark.parametrize("name", ["v", "v.parts"])
def test_a_description_that_is_damaged_is_refused(bilm, text, tmp_path, name):
    (tmp_path / name).mkdir()
    (tmp_path / name / "job.json").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match=f"{name}: (exists, and was not made|begun) from .*choose another name"):
        embed_file(bilm, text, tmp_path / "v", Settings(format=Format.NPY))


def test_a_disk_without_room_is_told_before_the_work(bilm, text, tmp_path, monkeypatch, capsys):
    embed_file(bilm, text, tmp_path / "v.hdf5")
    size = 13 * 3 * 2 * bilm.config.lstm.projection * 4
    printed = capsys.readouterr().err
    assert f"v.hdf5, 13 vectors, {shown_bytes(size)}, and as much in v.hdf5.parts until it is compl" in printed
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=size))
    embed_file(bilm, text, tmp_path / "v", Settings(format=Format.NPY))
    with pytest.raises(UserError, match="still to be written: .*B, and the disk has .*B free; choose another disk"):
        embed_file(bilm, text, tmp_path / "w.hdf5")
    assert not list((tmp_path / "w.hdf5.parts").glob("*.npy"))


def test_the_command(text, tmp_path, capsys):
    arguments = ["embed", str(WEIGHTS), str(text), str(tmp_path / "v"), "--options", str(OPTIONS), "--format", "npy"]
    assert main(arguments) == 0
    assert "wrote the vectors of 6 lines to" in capsys.readouterr().out
    assert len(VectorShards(tmp_path / "v")) == 6


def test_an_empty_text(bilm, tmp_path):
    (tmp_path / "empty.txt").write_text("")
    assert embed_file(bilm, tmp_path / "empty.txt", tmp_path / "v", Settings(format=Format.NPY)) == 0
    assert list(VectorShards(tmp_path / "v")) == []
