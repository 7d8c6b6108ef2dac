"""Writes and reads the metrics of a run: `metrics.jsonl` and TensorBoard files."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from etils import epath
from tensorboardX import SummaryWriter

from elmo_jax.files import in_bucket, write_bytes, write_text

_UPLOAD_SECONDS = 60


class Records:
    """The records of a run in memory, for processes that do not write them."""

    def __init__(self, records: Sequence[dict[str, Any]] = ()) -> None:
        self.records = list(records)

    def write(self, step: int, values: dict[str, Any]) -> None:
        """Adds one record."""
        self.records.append({"step": step, **values})

    def latest(self, name: str, default: float = 0.0) -> float:
        """Returns the value of a metric in the newest record that has it, or `default` if none has."""
        return next((record[name] for record in reversed(self.records) if name in record), default)

    def first(self, name: str) -> dict[str, Any] | None:
        """Returns the oldest record that has a metric, or None."""
        return next((record for record in self.records if name in record), None)

    def flush(self) -> None:
        """Writes out buffered records; records in memory need no writing."""

    def close(self) -> None:
        """Writes out buffered records and closes the files, if there are any."""


class MetricsLog(Records):
    """The metrics in `metrics.jsonl` and `tensorboard/` of the run's folder, one record per report.

    A run that resumes from a checkpoint deletes the records past it and writes them again. Files in a bucket cannot be
    appended to; there both are written whole, at most once per minute and at every `flush`.
    """

    def __init__(self, workdir: epath.Path, step: int):
        """Opens the files.

        Args:
          workdir: the folder of the run.
          step: the step that the run resumes from; records past it are deleted.
        """
        self.path = workdir / "metrics.jsonl"
        super().__init__([record for record in read_records(self.path) if record["step"] <= step])
        write_text(self.path, self._text())
        self._board_folder = workdir / "tensorboard"
        self._scratch = tempfile.TemporaryDirectory(prefix="elmo-jax-") if in_bucket(workdir) else None
        self._file = None if self._scratch else self.path.open("a")
        board = self._scratch.name if self._scratch else str(self._board_folder)
        self._board = SummaryWriter(board, purge_step=step + 1 if step else None)
        self._uploaded = time.monotonic()

    def write(self, step: int, values: dict[str, Any]) -> None:
        """Adds one record, unless an earlier launch, killed afterwards, has written it already.

        Args:
          step: the number of updates made.
          values: the metrics by name; parts of a name are joined by `/`. A list holds one value per process, of which
            TensorBoard gets the largest.
        """
        record = {"step": step, **values}
        if self.records and (last := self.records[-1])["step"] == step and last.keys() == record.keys():
            return
        self.records.append(record)
        for name, value in values.items():
            scalar = (f"{name}/largest", max(value)) if isinstance(value, list) else (name, value)
            self._board.add_scalar(*scalar, step)
        if self._file is not None:
            self._file.write(json.dumps(record) + "\n")
            self._file.flush()
        elif time.monotonic() - self._uploaded > _UPLOAD_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Brings the files up to date."""
        self._board.flush()  # the newest points may still be in the writer's thread; the next flush writes them
        if self._scratch is not None:
            self._upload(Path(self._scratch.name))

    def _upload(self, board: Path) -> None:
        write_text(self.path, self._text())
        for path in board.iterdir():
            write_bytes(self._board_folder / path.name, path.read_bytes())
        self._uploaded = time.monotonic()

    def _text(self) -> str:
        return "".join(json.dumps(record) + "\n" for record in self.records)

    def close(self) -> None:
        """Writes out buffered records and closes the files."""
        self._board.close()
        if self._file is not None:
            self._file.close()
        if self._scratch is not None:
            self._upload(Path(self._scratch.name))
            self._scratch.cleanup()


def read_records(path: epath.Path) -> list[dict[str, Any]]:
    """Reads the records of a `metrics.jsonl`, without a last line that a killed process left incomplete."""
    if not path.exists():
        return []
    lines = path.read_text().split("\n")
    return [json.loads(line) for line in lines[:-1]]  # what follows the last line feed is not a complete line
