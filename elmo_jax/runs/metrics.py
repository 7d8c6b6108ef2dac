"""Writes and reads the metrics of a run: `metrics.jsonl`, `evaluations.json` and TensorBoard files; feeds a tracker.

The tracker, Weights & Biases, may wait for a server, fail, or never answer. So all its calls are made by a separate
thread, from a bounded queue: a run neither waits for it nor ends with it, and one line says which metrics it did not
get.
"""

import contextlib
import functools
import importlib.util
import json
import os
import queue
import socket
import struct
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from etils import epath
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.record_writer import masked_crc32c
from tensorboardX.summary import scalar

from elmo_jax.errors import UserError, reason_of
from elmo_jax.files import in_bucket, write_bytes, write_text
from elmo_jax.runs.perplexity import EVALUATIONS, Evaluations, Perplexity, read_evaluations, write_evaluations

_VERSION = "brain.Event:2"  # of TensorBoard's format, in the first event of each file
_RETRY_SECONDS = 60  # between two attempts to write the files, in a bucket or after a failure
PROJECT = "elmo_jax"  # unless the environment variable WANDB_PROJECT names another one
_WAITING = 10_000  # the largest number of records that wait for a tracker
_SECONDS = 30.0  # the time that a tracker has at the end of a launch

Tracker = tuple[Callable[[int, Mapping[str, float]], None], Callable[[], None]]  # its functions `log` and `close`


def _wandb(workdir: epath.Path, identity: str, config: dict[str, Any]) -> Tracker:
    import wandb

    given = os.environ
    run = wandb.init(
        project=given.get("WANDB_PROJECT", PROJECT),
        id=given.get("WANDB_RUN_ID", identity),
        name=given.get("WANDB_NAME", workdir.name),
        dir=given.get("WANDB_DIR", None if in_bucket(workdir) else str(workdir)),
        resume="allow",
        config=config,
        settings=wandb.Settings(console="off", silent=True),  # stdout and stderr stay those of the command
    )
    # W&B's own steps cannot go back, as those of a run do that was killed after its newest checkpoint.
    run.define_metric("*", step_metric="step")
    return lambda step, values: run.log({"step": step, **values}), run.finish


class InBackground:
    """A tracker that is made and called by a separate thread; see the module."""

    def __init__(self, make: Callable[[], Tracker]) -> None:
        self._make = make
        self._records: queue.Queue[tuple[int, Mapping[str, float]] | None] = queue.Queue(_WAITING)
        self._warned = False
        self._thread = threading.Thread(target=self._work, name="tracker", daemon=True)
        self._thread.start()

    def log(self, step: int, values: Mapping[str, float]) -> None:
        if not self._thread.is_alive():
            return
        try:
            self._records.put_nowait((step, values))
        except queue.Full:
            self._warn(f"does not answer; its metrics from step {step} on are lost")

    def close(self) -> None:
        try:
            self._records.put_nowait(None)
        except queue.Full:
            return  # which a line has said
        self._thread.join(_SECONDS)
        if self._thread.is_alive():
            self._warn(f"has not taken the last metrics within {_SECONDS:.0f} seconds; they are lost")

    def _work(self) -> None:
        try:
            log, close = self._make()
            while (record := self._records.get()) is not None:
                log(*record)
            close()
        except Exception as error:  # whatever the tracker's package raises
            self._warn(f"has failed ({reason_of(error)}); it gets no more metrics")

    def _warn(self, text: str) -> None:
        if not self._warned:
            self._warned = True
            with contextlib.suppress(OSError):
                print(f"warning: train.trackers: wandb {text}. Training continues", file=sys.stderr, flush=True)


def check_trackers(names: Sequence[str]) -> None:
    """Raises `UserError` if the package of a tracker is not installed."""
    if "wandb" in names and importlib.util.find_spec("wandb") is None:
        raise UserError("train.trackers: wandb is not installed; run: pip install 'elmo_jax[wandb]'")


def open_tracker(workdir: epath.Path) -> InBackground:
    """Begins to report to W&B, in the run of an earlier launch if there was one, whose id is in `tracker.json`."""
    file = workdir / "tracker.json"
    if not file.exists():
        write_text(file, json.dumps({"id": uuid.uuid4().hex[:8]}) + "\n")
    try:
        identity = str(json.loads(file.read_text())["id"])
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{file}: damaged; delete it, and W&B gets a new run") from None
    config = json.loads((workdir / "config.json").read_text())["config"]
    return InBackground(functools.partial(_wandb, workdir, identity, config))


class Records:
    """The records of a run in memory, for processes that do not write them."""

    def __init__(self, records: Sequence[dict[str, Any]] = (), evaluations: Evaluations | None = None) -> None:
        self.records, self.evaluations = list(records), dict(evaluations or {})

    def write(self, step: int, values: dict[str, Any]) -> None:
        self.records.append({"step": step, **values})

    def add_evaluation(self, text: str, step: int, perplexity: Perplexity) -> None:
        """Adds the perplexity of a text at a step, so that no later launch measures it again."""
        self.evaluations[text, step] = perplexity

    def latest(self, name: str, default: float = 0.0) -> float:
        """Returns the value of a metric in the newest record that has it, or `default` if none has."""
        return next((record[name] for record in reversed(self.records) if name in record), default)

    def flush(self) -> None:
        """Brings the files up to date, if there are any."""

    def close(self) -> None:
        """Writes what is buffered and closes the files, if there are any."""


class _GrowingFile:
    """A file that is appended to or, in a bucket, written whole. What could not be written is written the next time."""

    def __init__(self, path: epath.Path) -> None:
        self._path, self.content = path, bytearray()
        self._written = -1  # the bytes that are in the file; -1 to write it whole, which never leaves half a file

    def flush(self) -> None:
        before, self._written = self._written, -1
        is_object = in_bucket(self._path)
        if before < 0 or (is_object and before < len(self.content)):
            if not is_object:
                self._path.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(self._path, bytes(self.content))
        elif before < len(self.content):
            with open(self._path, "r+b") as file:
                file.seek(before)
                file.write(self.content[before:])
        self._written = len(self.content)


class MetricsLog(Records):
    """The metrics in `metrics.jsonl` and `tensorboard/` of the run's folder, one record per report.

    A run that resumes from a checkpoint deletes the records past it and writes them again; the time that they took is
    added to the newest record that is left, as `seconds/lost`. In a bucket, the files are written at most once per
    minute and at every `flush`. If they cannot be written, as on a full disk, this is reported once, training
    continues, and later calls write what is missing.
    """

    def __init__(self, workdir: epath.Path, step: int, trackers: Sequence[str] = ("tensorboard",)):
        """Deletes the records past `step`, which the run resumes from; raises `UserError` if a file is damaged."""
        self._workdir, self.path = workdir, workdir / "metrics.jsonl"
        records = read_records(self.path)
        super().__init__([record for record in records if record["step"] <= step], read_evaluations(workdir, step))
        if len(self.records) < len(records) and self.records:
            taken = records[-1].get("wall_seconds", 0.0)
            lost = taken - self.latest("wall_seconds") + self.latest("seconds/lost")
            self.records[-1] |= {"wall_seconds": taken, "seconds/lost": lost}
        self._metrics = _GrowingFile(self.path)
        self._metrics.content += b"".join(map(_line, self.records))
        # TensorBoard reads the files of a run in the order of their names.
        name = f"events.out.tfevents.{time.time_ns()}.{socket.gethostname()}.{os.getpid()}"
        self._events = _GrowingFile(workdir / "tensorboard" / name)
        self._first_step, self._has_events = step + 1, "tensorboard" in trackers
        self._has_evaluations = bool(self.evaluations) or (workdir / EVALUATIONS).exists()
        self._tracker = open_tracker(workdir) if "wandb" in trackers else None
        self._retry = 0.0  # when the files are next to be written
        self._warned = False
        self.flush()

    def write(self, step: int, values: dict[str, Any]) -> None:
        """Adds the record of a step, unless an earlier launch, killed afterwards, has written it already.

        A list holds one value per process, of which TensorBoard gets the largest.
        """
        record = {"step": step, **values}
        if self.records and (last := self.records[-1])["step"] == step and last.keys() == record.keys():
            return
        self.records.append(record)
        scalars = {}
        for name, value in values.items():
            is_list = isinstance(value, list)
            scalars[f"{name}/largest" if is_list else name] = max(value) if is_list else value
        if self._has_events:
            self._add_events(step, scalars)
        if self._tracker:
            self._tracker.log(step, scalars)
        self._metrics.content += _line(record)
        if time.monotonic() >= self._retry:
            self.flush()

    def _add_events(self, step: int, scalars: Mapping[str, float]) -> None:
        events = [Event(step=step, summary=scalar(name, value)) for name, value in scalars.items()]
        if not self._events.content:
            events.insert(0, Event(file_version=_VERSION))
            if self._first_step > 1:  # hides the points of earlier launches from this step on
                events.insert(1, Event(step=self._first_step, session_log=SessionLog(status=SessionLog.START)))
        for event in events:
            event.wall_time = time.time()
            data = event.SerializeToString()
            length = struct.pack("<Q", len(data))
            for part in (length, data):
                self._events.content += part + struct.pack("<I", masked_crc32c(part))

    def add_evaluation(self, text: str, step: int, perplexity: Perplexity) -> None:
        super().add_evaluation(text, step, perplexity)
        self._has_evaluations = True
        self.flush()  # the metrics first

    def flush(self) -> None:
        """Brings the files up to date; what fails is reported once, and tried again later."""
        waits = in_bucket(self._workdir)
        try:
            self._metrics.flush()
            if self._events.content:
                self._events.flush()
            if self._has_evaluations:
                write_evaluations(self._workdir, self.evaluations)
                self._has_evaluations = False
        except Exception as error:  # the clients of object stores raise exceptions of any kind
            if not (waits or isinstance(error, OSError)):
                raise
            waits = True
            if not self._warned:
                self._warned = True
                reason = f"the metrics cannot be written ({reason_of(error)}); training continues, and they are written"
                with contextlib.suppress(OSError):
                    print(f"warning: {self.path}: {reason} as soon as possible", file=sys.stderr, flush=True)
        self._retry = time.monotonic() + (_RETRY_SECONDS if waits else 0)

    def close(self) -> None:
        self.flush()
        if self._tracker:
            self._tracker.close()


def _line(record: dict[str, Any]) -> bytes:
    return f"{json.dumps(record)}\n".encode()


def read_records(path: epath.Path) -> list[dict[str, Any]]:
    """Reads the records of a `metrics.jsonl`, without a last line that a killed process left incomplete."""
    records: list[dict[str, Any]] = []
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    for number, line in enumerate(lines, 1):
        try:
            records.append(json.loads(line))
            is_record = type(records[-1]["step"]) is int
        except (ValueError, RecursionError, TypeError, KeyError):  # not UTF-8, not JSON or no record
            is_record = False
        if not is_record:
            remedy = "delete this line, whose metrics are lost, and start the same command again"
            raise UserError(f"{path}, line {number}: damaged; {remedy}")
    return records
