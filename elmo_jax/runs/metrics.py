"""Writes and reads the metrics of a run: `metrics.jsonl`, `evaluations.json` and TensorBoard files; feeds trackers."""

import contextlib
import itertools
import json
import math
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from etils import epath
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.record_writer import RecordWriter
from tensorboardX.summary import scalar

from elmo_jax.errors import UserError
from elmo_jax.files import in_bucket, write_bytes, write_text
from elmo_jax.runs.perplexity import EVALUATIONS, Evaluations, Perplexity, read_evaluations, write_evaluations
from elmo_jax.runs.trackers import open_trackers

_VERSION = "brain.Event:2"  # of TensorBoard's format, in the first event of each file
_RETRY_SECONDS = 60  # between two attempts to write a whole file, in a bucket or after a failure


class Records:
    """The records of a run in memory, for processes that do not write them."""

    def __init__(self, records: Sequence[dict[str, Any]] = (), evaluations: Evaluations | None = None) -> None:
        self.records, self.evaluations = list(records), dict(evaluations or {})

    def write(self, step: int, values: dict[str, Any]) -> None:
        """Adds one record."""
        self.records.append({"step": step, **values})

    def add_evaluation(self, text: str, step: int, perplexity: Perplexity) -> None:
        """Adds the perplexity of a text at a step, so that no later launch measures it again."""
        self.evaluations[text, step] = perplexity

    def latest(self, name: str, default: float = 0.0) -> float:
        """Returns the value of a metric in the newest record that has it, or `default` if none has."""
        return next((record[name] for record in reversed(self.records) if name in record), default)

    def flush(self) -> None:
        """Writes out buffered records; records in memory need no writing."""

    def close(self) -> None:
        """Writes out buffered records and closes the files, if there are any."""


class Board:
    """The event files of one launch in a folder, written without threads, so that a full disk blocks nothing.

    After a failed write a new file is begun, with all points that did not get into the old one.
    """

    def __init__(self, folder: Path, purge: int) -> None:
        """Makes the events of a beginning, without touching the disk.

        From the step `purge` on, TensorBoard hides the points of earlier launches; 0 for none.
        """
        self._folder, self._numbers = folder, itertools.count()
        self._file: RecordWriter | None = None
        self._pending: list[bytes] = []
        if purge:
            self._put(Event(step=purge, session_log=SessionLog(status=SessionLog.START)))

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Adds the points of one step, which the next `flush` writes."""
        for name, value in values.items():
            self._put(Event(step=step, summary=scalar(name, value)))

    def _put(self, event: Event) -> None:
        event.wall_time = time.time()
        self._pending.append(event.SerializeToString())

    def flush(self) -> None:
        """Writes the points that were added.

        Raises:
          OSError: the file cannot be written; the points are kept.
        """
        if not self._pending:
            return
        try:
            if self._file is None:
                self._file = self._open()
            for event in self._pending:
                self._file.write(event)
            self._file.flush()
        except OSError:
            self.close()
            raise
        self._pending.clear()

    def _open(self) -> RecordWriter:
        self._folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}.{next(self._numbers)}"
        file = RecordWriter(str(self._folder / name))
        file.write(Event(wall_time=time.time(), file_version=_VERSION).SerializeToString())
        return file

    def close(self) -> None:
        """Closes the file."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):  # what it still holds is among the points that are kept
                file.close()


class MetricsLog(Records):
    """The metrics in `metrics.jsonl` and `tensorboard/` of the run's folder, one record per report.

    A run that resumes from a checkpoint deletes the records past it and writes them again; the time that they took is
    added to the newest record that is left, as `seconds/lost`. Files in a bucket cannot be
    appended to; there both are written whole, at most once per minute and at every `flush`.

    Training continues when the files cannot be written, as on a full disk: this is reported once, and later calls write
    what is missing. The next checkpoint will show whether there is space again.
    """

    def __init__(self, workdir: epath.Path, step: int, trackers: Sequence[str] = ("tensorboard",)):
        """Opens the files and the trackers; records past `step`, which the run resumes from, are deleted.

        Raises:
          UserError: a file is damaged.
        """
        self._workdir, self.path = workdir, workdir / "metrics.jsonl"
        records = read_records(self.path)
        super().__init__([record for record in records if record["step"] <= step], read_evaluations(workdir, step))
        if len(self.records) < len(records) and self.records:
            taken = records[-1].get("wall_seconds", 0.0)
            lost = taken - self.latest("wall_seconds") + self.latest("seconds/lost")
            self.records[-1] |= {"wall_seconds": taken, "seconds/lost": lost}
        self._board_folder = workdir / "tensorboard"
        self._scratch = tempfile.TemporaryDirectory(prefix="elmo-jax-") if in_bucket(workdir) else None
        self._has_board = "tensorboard" in trackers
        folder = Path(self._scratch.name if self._scratch else self._board_folder)
        self._board = Board(folder, step + 1 if step and self._has_board else 0)
        self._trackers = open_trackers(trackers, workdir)
        self._file: IO[str] | None = None
        self._tried = -math.inf  # when the whole file was last written, or should have been
        self._warned = False
        self._attempt(self._write_all)

    def write(self, step: int, values: dict[str, Any]) -> None:
        """Adds the record of a step, unless an earlier launch, killed afterwards, has written it already.

        Parts of a metric's name are joined by `/`. A list holds one value per process, of which TensorBoard gets the
        largest.
        """
        record = {"step": step, **values}
        if self.records and (last := self.records[-1])["step"] == step and last.keys() == record.keys():
            return
        self.records.append(record)
        scalars = {
            f"{n}/largest" if isinstance(v, list) else n: max(v) if isinstance(v, list) else v
            for n, v in values.items()
        }
        if self._has_board:
            self._board.add(step, scalars)
        for tracker in self._trackers:
            tracker.log(step, scalars)
        self._attempt(self._append, record)

    def add_evaluation(self, text: str, step: int, perplexity: Perplexity) -> None:
        """Adds the perplexity of a text at a step to `evaluations.json`, after all metrics have been written."""
        super().add_evaluation(text, step, perplexity)
        self.flush()
        self._attempt(write_evaluations, self._workdir, self.evaluations)

    def flush(self) -> None:
        """Brings the files up to date."""
        if self._file is None:
            self._attempt(self._write_all)
        self._attempt(self._board.flush)
        if self._scratch is not None:
            self._attempt(self._upload, Path(self._scratch.name))

    def close(self) -> None:
        """Writes out buffered records and closes the files."""
        self.flush()
        for tracker in self._trackers:
            tracker.close()
        self._close_file()
        self._board.close()
        if self._scratch is not None:
            self._scratch.cleanup()

    def _append(self, record: dict[str, Any]) -> None:
        if self._file is not None:
            self._file.write(json.dumps(record) + "\n")
            self._file.flush()
            self._board.flush()
        elif time.monotonic() - self._tried > _RETRY_SECONDS:
            self.flush()

    def _write_all(self) -> None:
        """Writes both files whole and, where files can be appended to, opens it for the next records."""
        self._tried = time.monotonic()
        self._close_file()
        write_text(self.path, "".join(json.dumps(record) + "\n" for record in self.records))
        if self.evaluations or (self._workdir / EVALUATIONS).exists():
            write_evaluations(self._workdir, self.evaluations)
        if self._scratch is None:
            self._file = open(self.path, "a", encoding="utf-8")

    def _upload(self, board: Path) -> None:
        for path in board.iterdir():
            write_bytes(self._board_folder / path.name, path.read_bytes())

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):  # what it still holds is written by `_write_all`
                file.close()

    def _attempt(self, function: Callable[..., None], *arguments: Any) -> None:
        """Calls what writes a file; if that fails, tells so once and has the whole file written again later."""
        try:
            function(*arguments)
        except Exception as error:  # the clients of object stores raise exceptions of any kind
            if self._scratch is None and not isinstance(error, OSError):
                raise
            self._close_file()
            if not self._warned:
                self._warned = True
                reason = getattr(error, "strerror", None) or " ".join(f"{type(error).__name__}: {error}".split())[:200]
                with contextlib.suppress(OSError):
                    print(
                        f"warning: {self.path}: the metrics cannot be written ({reason}); training continues, and they"
                        " are written as soon as that is possible",
                        file=sys.stderr,
                        flush=True,
                    )


def read_records(path: epath.Path) -> list[dict[str, Any]]:
    """Reads the records of a `metrics.jsonl`, without a last line that a killed process left incomplete.

    Raises:
      UserError: another line is damaged.
    """
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")
    return [_record(line, f"{path}, line {number}") for number, line in enumerate(lines[:-1], 1)]


def _record(line: bytes, where: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):  # not UTF-8 or not JSON
        record = None
    if not isinstance(record, dict) or type(record.get("step")) is not int:
        raise UserError(f"{where}: damaged; delete this line, whose metrics are lost, and start the same command again")
    return record
