"""The metrics of a run where the disk is full: training continues, and no complete record is lost."""

from __future__ import annotations

import json
import os
import resource
import signal
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from etils import epath
from tensorboardX.proto.event_pb2 import Event

from elmo_jax.errors import UserError
from elmo_jax.runs.metrics import MetricsLog, read_records

pytestmark = pytest.mark.quick


def points(folder: Path) -> dict[int, float]:
    """All points of a metric in TensorBoard's files, up to the first record of each file that is not complete."""
    actual: dict[int, float] = {}
    for path in sorted(folder.iterdir()):
        content = path.read_bytes()
        while len(content) > 12:
            (length,) = struct.unpack("<Q", content[:8])
            if len(content) < length + 16:
                break
            event = Event.FromString(content[12 : 12 + length])
            for value in event.summary.value:
                actual[event.step] = value.simple_value
            content = content[16 + length :]
    return actual


@pytest.fixture
def disk() -> Iterator[type]:
    """A disk that is full while `limit` bytes are the most that a file may have."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    class Disk:
        @staticmethod
        def limit(size: int) -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))

    try:
        yield Disk
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)


@pytest.mark.parametrize("limit", [0, 1, 60, 61, 90, 300])
def test_a_full_disk_is_told_once_and_blocks_nothing(tmp_path: Path, disk: type, capsys, limit: int) -> None:
    log = MetricsLog(epath.Path(tmp_path), 0)
    log.write(1, {"train/loss": 1.0})
    disk.limit(limit)
    for step in range(2, 60):  # more than the queue of any writer
        log.write(step, {"train/loss": float(step)})
    log.flush()
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1 and "metrics.jsonl: the metrics cannot be written (File too large)" in printed
    assert log.latest("train/loss") == 59
    disk.limit(1 << 20)
    log.flush()
    log.write(60, {"train/loss": 60.0})
    log.close()
    assert [record["step"] for record in read_records(log.path)] == list(range(1, 61))
    assert points(tmp_path / "tensorboard") == {step: float(step) for step in range(1, 61)}
    assert capsys.readouterr().err == ""


def test_a_disk_that_is_full_at_the_start_and_to_the_end(tmp_path: Path, disk: type, capsys) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "train/loss": 1.0}\n')
    disk.limit(0)
    log = MetricsLog(epath.Path(tmp_path), 1)
    log.write(2, {"train/loss": 2.0})
    log.close()
    assert capsys.readouterr().err.count("\n") == 1
    assert read_records(log.path) == [{"step": 1, "train/loss": 1.0}] == log.records[:1]
    assert not (tmp_path / ".metrics.jsonl.tmp").exists()


def test_an_error_that_is_none_of_the_disk_is_not_hidden(tmp_path: Path) -> None:
    log = MetricsLog(epath.Path(tmp_path), 0)
    with pytest.raises(NotImplementedError):
        log.write(1, {"train/loss": object()})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    "line", [b'{"step": 2, "x', b"\xff\xfe", b"[1]", b'{"step": "2"}', b"", b"\0" * 9, b"[" * 9999]
)
def test_a_damaged_line_is_named(tmp_path: Path, line: bytes) -> None:
    path = epath.Path(tmp_path / "metrics.jsonl")
    good = json.dumps({"step": 1}).encode()
    path.write_bytes(good + b"\n" + line + b"\n" + good + b"\n")
    with pytest.raises(UserError, match="metrics.jsonl, line 2: damaged; delete this line") as caught:
        MetricsLog(epath.Path(tmp_path), 5)
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == good + b"\n" + line + b"\n" + good + b"\n"
    path.write_bytes(good + b"\n" + line.replace(b"\n", b""))  # a record without its end was cut short by a kill
    assert read_records(path) == [{"step": 1}]
    assert os.listdir(tmp_path) == ["metrics.jsonl"]
