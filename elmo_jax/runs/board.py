"""Writes metrics as event files for TensorBoard, without threads, so that a full disk blocks nothing."""

import contextlib
import itertools
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path

from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.record_writer import RecordWriter
from tensorboardX.summary import scalar

_VERSION = "brain.Event:2"  # of the format, in the first event of each file


class Board:
    """The event files of one launch in a folder.

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
