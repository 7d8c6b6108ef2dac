"""Reports metrics to the trackers that a run names, next to its own files: Weights & Biases and Trackio.

A tracker may wait for a server, fail, or never answer. So all its calls are made by a separate thread, from a bounded
queue: a run neither waits for a tracker nor ends with it, and one line says which metrics it did not get.
"""

import contextlib
import functools
import importlib.util
import json
import os
import queue
import sys
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from etils import epath

from elmo_jax.errors import UserError, reason_of
from elmo_jax.files import in_bucket, write_text

PROJECT = "elmo_jax"  # unless the environment variables WANDB_PROJECT or TRACKIO_PROJECT name another one
_WAITING = 10_000  # the largest number of records that wait for a tracker
_SECONDS = 30.0  # the time that a tracker has at the end of a launch


Tracker = tuple[
    Callable[[int, Mapping[str, float]], None], Callable[[], None]
]  # `log` and `close`, as in `InBackground`


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


def _trackio(workdir: epath.Path, identity: str, config: dict[str, Any]) -> Tracker:
    import trackio

    # Trackio knows a run by its name alone, which two folders may share.
    name, project = f"{workdir.name}-{identity}", os.environ.get("TRACKIO_PROJECT", PROJECT)
    run = trackio.init(project, name=name, resume="allow", config=config)
    return lambda step, values: run.log(dict(values), step=step), run.finish


_MAKERS: dict[str, Callable[..., Tracker]] = {"wandb": _wandb, "trackio": _trackio}


class InBackground:
    """A tracker that is made and called by a separate thread; see the module."""

    def __init__(self, name: str, make: Callable[[], Tracker]) -> None:
        self._name, self._make = name, make
        self._records: queue.Queue[tuple[int, Mapping[str, float]] | None] = queue.Queue(_WAITING)
        self._warned = False
        self._thread = threading.Thread(target=self._work, name=f"tracker {name}", daemon=True)
        self._thread.start()

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Hands over the metrics of one step, unless the tracker has failed."""
        if not self._thread.is_alive():
            return
        try:
            self._records.put_nowait((step, values))
        except queue.Full:
            self._warn(f"does not answer; its metrics from step {step} on are lost")

    def close(self) -> None:
        """Waits until the tracker has ended, but not longer than half a minute."""
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
                print(f"warning: train.trackers: {self._name} {text}. Training continues", file=sys.stderr, flush=True)


def check_trackers(names: Sequence[str]) -> None:
    """Raises `UserError` if the package of a tracker is not installed."""
    for name in names:
        if name in _MAKERS and importlib.util.find_spec(name) is None:
            raise UserError(f"train.trackers: {name} is not installed; run: pip install 'elmo_jax[{name}]'")


def open_trackers(names: Sequence[str], workdir: epath.Path) -> list[InBackground]:
    """Begins to report to the named trackers, in the run of an earlier launch if there was one.

    The name of the run is that of its folder, and its settings are those of `config.json` there. The file
    `tracker.json` keeps what distinguishes it from other runs of the same name.
    """
    names = [name for name in names if name in _MAKERS]
    if not names:
        return []
    file = workdir / "tracker.json"
    if not file.exists():
        write_text(file, json.dumps({"id": uuid.uuid4().hex[:8]}) + "\n")
    try:
        identity = str(json.loads(file.read_text())["id"])
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{file}: damaged; delete it, and the trackers get a new run") from None
    config = json.loads((workdir / "config.json").read_text())["config"]
    return [InBackground(name, functools.partial(_MAKERS[name], workdir, identity, config)) for name in names]
