"""Saves and restores checkpoints: one Orbax step folder holds everything that a run needs to resume.

Saves are asynchronous. A folder `<step>` exists only once all of its files and their manifest are written (Orbax
renames it last), so a process that is killed at any moment leaves either a checkpoint that can be verified or a
temporary folder that is deleted later. Damage that occurs afterwards is detected by checksums when the checkpoint is
restored, and the checkpoint before it is used.
"""

import contextlib
import logging
import math
import os
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils

from elmo_jax import files
from elmo_jax.checkpoints import failures, manifest, trees
from elmo_jax.distributed.collectives import broadcast_from_primary, is_primary
from elmo_jax.errors import PeerLost, TryAgain, UserError, is_of_service, reason_of

_log = logging.getLogger(__name__)
_ASIDE = ".damaged"
# By default, Orbax divides replicated arrays over their devices and compiles a slice per shape and device: 32 programs
# in 2 s for the tiny biLM on two CPU devices. So process 0 writes these arrays, 0.4 GB at the paper's size.
_HANDLERS = ocp.type_handlers.create_type_handler_registry(
    (jax.Array, ocp.type_handlers.ArrayHandler(use_replica_parallel=False)),
    (np.ndarray, ocp.type_handlers.NumpyHandler()),
)
_TEMPORARY = ocp.utils.TMP_DIR_SUFFIX  # part of Orbax's name for a folder that is being written
_NONE, _ALL_DAMAGED = -1, -2  # used in place of a step when process 0 tells the others which one to restore


class Checkpoints:
    """The checkpoints of one run.

    Every process of the run must call every method, in the same order. Nothing is created or deleted before the first
    `save`, so that evaluation and export can open the folder of a run that is in training.

    Attributes:
      written: on process 0, the step of the newest save of this launch that is complete, and its time; None for none.
    """

    def __init__(self, directory: str | os.PathLike[str], keep: int = 3, keep_every: int = 0) -> None:
        """Opens a folder of checkpoints, one folder per step, which need not exist.

        Kept are the newest `keep` checkpoints, at least 1, the one with the lowest score and, unless `keep_every` is 0,
        those of every so many steps.
        """
        self._directory = files.absolute(directory)
        self._keep, self._keep_every = keep, keep_every
        self.written: tuple[int, float] | None = None
        self._manager: ocp.CheckpointManager | None = None
        self._saving: tuple[int, float | None] | None = None  # step and score of the save in progress
        self._known: set[int] = set()  # the steps that this object saved or restored
        self._failed: set[int] = set()  # the steps whose save failed
        self._scores: dict[int, float] = {}  # by step

    def save(self, step: int, state: Any, score: float | None = None) -> None:
        """Starts to save a state, after the save before is complete; returns once the state may be changed or donated.

        A step that this object saved or restored is not written again; only its `score`, which is lower for a better
        state, is recorded. The state is a pytree of `jax.Array`s of any sharding, which may include typed random keys.

        Raises `UserError` if the save before this one failed, this one cannot be started (no space left on the device,
        …), or an earlier run left another checkpoint of this step.
        """
        self.wait()
        score = score if score is not None and math.isfinite(score) else None
        folder = self._directory / str(step)
        if step in self._failed:  # pending writes of the failed save could end up among the files of this one
            raise UserError(f"{folder}: could not be saved before; save a later step, or start the run again")
        if step in self._known:  # not looked up on the disk, which processes may see in different states
            entry = manifest.read(folder)
            if score is not None and not isinstance(entry, str) and entry.score != score:
                self._scores[step] = score
                if is_primary():
                    manifest.write(folder, manifest.Manifest(step, score, entry.files))
            return
        if step in self.steps():
            raise UserError(f"{folder}: holds a checkpoint this run did not make; move it away first")
        try:
            self._saving = (step, score)
            manager = self._open()
            if score is not None:
                self._scores[step] = score
            self._clear_aside(step)
            with jax.transfer_guard("allow"):  # the training loop disallows implicit transfers; Orbax makes some
                manager.save(step, args=ocp.args.PyTreeSave(trees.named(state)))
        except Exception as error:
            failure = self._failure(error)
            if not failures.is_of_storage(error) and not isinstance(failure, TryAgain):
                raise
            raise failure from error

    def wait(self) -> None:
        """Waits until the save in progress, if there is one, is complete on the disk.

        Raises `UserError` if it failed, `PeerLost` if another process has not written its part, and `TryAgain` if a
        bucket did not answer.
        """
        if self._saving is None or self._manager is None:
            return
        try:
            self._manager.wait_until_finished()
        except PeerLost:
            self._saving = None
            raise
        except Exception as error:  # the writing threads may raise any exception, which is kept as the cause
            raise self._failure(error) from error
        self._known.add(self._saving[0])
        self._saving = None

    def close(self) -> None:
        """Waits for the save in progress as `wait` does, and ends Orbax's threads even if the save failed."""
        try:
            self.wait()
        finally:
            if self._manager is not None:
                with contextlib.suppress(Exception) if self._failed else contextlib.nullcontext():  # raised before
                    self._manager.close()
                self._manager = None

    def steps(self) -> list[int]:
        """Returns the steps that have a folder, in ascending order and without verification."""
        return manifest.steps_in(self._directory)

    def best_step(self) -> int | None:
        """Returns the intact step with the lowest score in its manifest, or None if there is none with a score."""
        scores = manifest.scores(self._directory, self.steps())
        while (best := _best(scores)) is not None and (wrong := manifest.damage(self._directory / str(best), best)):
            _log.warning("%s: damaged checkpoint: %s; the next best is used", self._directory / str(best), wrong)
            del scores[best]
        return best

    def restore(self, abstract_state: Any) -> tuple[Any, int] | None:
        """Restores the newest checkpoint that is intact.

        A newer checkpoint that is damaged is named in a warning and renamed to `<step>.damaged`; it is deleted when
        training has reached that step again. Returns the state, with the structure and shardings of `abstract_state`,
        and its step; None if there is no checkpoint. Raises `UserError` if all are damaged, or of another model.
        """
        self.wait()
        step = self._checked(broadcast_from_primary(self._verified() if is_primary() else _NONE))
        if step is None:
            return None
        if is_primary():
            for damaged in [other for other in self.steps() if other > step]:
                aside = self._directory / f"{damaged}{_ASIDE}"
                if aside.exists():
                    aside.rmtree()
                (self._directory / str(damaged)).rename(aside)
        if jax.process_count() > 1:  # no process may list the steps before the renaming is done
            multihost_utils.sync_global_devices("elmo_jax: damaged checkpoints are moved aside")
        if self._manager is not None:
            self._manager.reload()
        return self._load(step, abstract_state), step

    def restore_step(self, step: int, abstract_state: Any) -> Any:
        self._check(step)
        return self._load(step, abstract_state)

    def restore_params(self, step: int | None = None, name: str = "params") -> tuple[dict[str, Any], int]:
        """Restores only a subtree of a saved state, by default the newest that is intact, with its step.

        The arrays are of NumPy, and nothing is exchanged with other processes. Raises `UserError` if there is no such
        checkpoint, it is damaged, or its state has no such subtree.
        """
        self.wait()
        if step is None:
            step = self._checked(self._verified())
        else:
            self._check(step)
        if step is None:
            raise UserError(f"{self._directory}: no checkpoint here; expected the checkpoints of a training run")
        return trees.load_subtree(self._directory / str(step), name), step

    def _open(self) -> ocp.CheckpointManager:
        """Returns Orbax's manager, which at its creation deletes the unfinished folders of killed processes."""
        if self._manager is None:
            failures.report_failures_once()
            self._scores = manifest.scores(self._directory, self.steps())
            self._manager = ocp.CheckpointManager(
                self._directory,
                options=ocp.CheckpointManagerOptions(
                    preservation_policy=self,  # Orbax calls `should_preserve` below
                    cleanup_tmp_directories=True,
                    async_options=ocp.AsyncOptions(
                        post_finalization_callback=self._seal, barrier_sync_fn=failures.barrier()
                    ),
                ),
                item_handlers=ocp.PyTreeCheckpointHandler(type_handler_registry=_HANDLERS),
            )
        return self._manager

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        """Tells Orbax which steps to keep (`preservation_policy`): the newest, every so many, and the best one."""
        steps = [info.step for info in checkpoints]
        self._scores = {step: value for step, value in self._scores.items() if step in steps}
        best = _best(self._scores)
        kept = {best, *sorted(steps)[-self._keep :]}
        return [step in kept or bool(self._keep_every and step % self._keep_every == 0) for step in steps]

    def _seal(self) -> None:
        """Writes the manifest; Orbax calls this on process 0 after writing all files, before it renames the folder."""
        assert self._saving is not None
        step, score = self._saving
        names = [name for name in manifest.names_in(self._directory) if name.startswith(f"{step}{_TEMPORARY}")]
        folder = self._directory / (names[0] if names else str(step))  # object stores use no temporary name
        manifest.write(folder, manifest.describe(folder, step, score))
        self.written = step, time.time()

    def _checked(self, step: int) -> int | None:
        if step == _ALL_DAMAGED:
            remedy = "restore one from a copy, or move the folder away to start again"
            raise UserError(f"{self._directory}: every checkpoint is damaged, so the run cannot continue; {remedy}")
        return None if step == _NONE else step

    def _verified(self) -> int:
        steps = self.steps()
        for step in reversed(steps):
            wrong = manifest.damage(self._directory / str(step), step)
            if wrong is None:
                return step
            _log.warning("%s: damaged checkpoint: %s; the one before is used", self._directory / str(step), wrong)
        aside = any(name.endswith(_ASIDE) for name in manifest.names_in(self._directory))
        return _ALL_DAMAGED if steps or aside else _NONE

    def _check(self, step: int) -> None:
        self.wait()
        folder = self._directory / str(step)
        if step not in self.steps():
            there = ", ".join(map(str, self.steps())) or "none"
            raise UserError(f"{self._directory}: no checkpoint of step {step}; there are: {there}")
        wrong = manifest.damage(folder, step)
        if wrong is not None:
            raise UserError(f"{folder}: damaged checkpoint: {wrong}; choose another step")

    def _load(self, step: int, abstract_state: Any) -> Any:
        state = trees.load(self._directory / str(step), abstract_state)
        self._known.add(step)
        return state

    def _failure(self, error: Exception) -> UserError | TryAgain:
        """Returns the error for a failed save, and deletes its files, which may be what fills the disk."""
        assert self._saving is not None
        step = self._saving[0]
        self._saving = None
        self._scores.pop(step, None)
        self._failed.add(step)
        what = f"{self._directory}: step {step} could not be saved: {reason_of(error)}"
        if files.in_bucket(self._directory) and is_of_service(error):  # which is not asked for its files either
            return TryAgain(f"{what}; the same launch resumes from the last good checkpoint")
        if is_primary():
            for path in self._directory.glob(f"{step}{_TEMPORARY}*"):
                with contextlib.suppress(OSError):  # what is still being written is deleted by the next launch
                    path.rmtree()
        steps = [other for other in self.steps() if not isinstance(manifest.read(self._directory / str(other)), str)]
        last = f"the last good checkpoint is that of step {steps[-1]}" if steps else "there is no earlier checkpoint"
        return UserError(f"{what}; {last}")

    def _clear_aside(self, step: int) -> None:
        for name in manifest.names_in(self._directory):
            stem = name.removesuffix(_ASIDE)
            if is_primary() and stem != name and stem.isdecimal() and int(stem) <= step:
                (self._directory / name).rmtree()


def _best(scores: dict[int, float]) -> int | None:
    return min(scores, key=lambda step: (scores[step], -step), default=None)
