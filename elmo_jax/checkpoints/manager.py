"""Checkpoints to resume from: one Orbax step folder holds everything a run needs to go on.

Saves are asynchronous. A folder `<step>` exists only once all of its files and their manifest are written (Orbax
renames it last), so a process killed at any moment leaves either a checkpoint that can be verified or a temporary
folder that is cleared away later. What is damaged afterwards is found by its checksums when it is restored, and the
checkpoint before it is used.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from jax.experimental import multihost_utils

from elmo_jax import files
from elmo_jax.checkpoints import failures, manifest, trees
from elmo_jax.errors import UserError

_log = logging.getLogger(__name__)
_ASIDE = ".damaged"
_TEMPORARY = ".orbax-checkpoint-tmp"  # Orbax's, of a folder that is being written
_NONE, _ALL_DAMAGED = -1, -2  # instead of a step, where processes agree on one


class Checkpoints:
    """The checkpoints of one run. Every process of the run calls every method, in the same order.

    Nothing is created or cleared away before the first `save`, so that evaluation and export may open the folder of a
    run that is being trained.
    """

    def __init__(self, directory: str | os.PathLike[str], keep: int = 3) -> None:
        """Opens a folder of checkpoints, which need not exist.

        Args:
          directory: holds one folder a step.
          keep: how many of the newest stay, at least 1; the one with the lowest held-out perplexity stays beside them.
        """
        self._directory = files.absolute(directory)
        self._keep = keep
        self._manager: ocp.CheckpointManager | None = None
        self._saving: tuple[int, float | None] | None = None  # what Orbax writes at the moment
        self._known: set[int] = set()  # steps that this object saved or restored
        self._failed: set[int] = set()
        self._heldout: dict[int, float] = {}

    def save(self, step: int, state: Any, heldout: float | None = None) -> None:
        """Starts to save; returns as soon as the state may be changed or donated.

        Waits for the save before, if it is not yet done. A step that this object saved or restored is not written
        again; only its `heldout` is noted.

        Args:
          step: updates made.
          state: a pytree of `jax.Array`s, sharded as they may be, typed random keys among them.
          heldout: average held-out perplexity of this state, if it was measured.

        Raises:
          UserError: the save before this one failed, or this one cannot be started (no space left on the device, …); or
            an earlier run left another checkpoint of this step.
        """
        self.wait()
        heldout = heldout if heldout is not None and math.isfinite(heldout) else None
        folder = self._directory / str(step)
        if step in self._failed:  # what is still under way of that save could end up among the files of this one
            raise UserError(f"{folder}: could not be saved before; save a later step, or start the run again")
        if step in self._known:  # not asked of the disk, which another process may see later than this one
            self._note(step, heldout)
            return
        if step in self.steps():
            raise UserError(f"{folder}: holds a checkpoint this run did not make; move it away first")
        try:
            self._saving = (step, heldout)
            manager = self._open()
            if heldout is not None:
                self._heldout[step] = heldout
            self._clear_aside(step)
            with jax.transfer_guard("allow"):  # the training loop forbids transfers that nobody asked for; this is one
                manager.save(step, args=ocp.args.StandardSave(trees.named(state)))
        except Exception as error:
            failure = self._failure(error)
            if not failures.is_of_storage(error):
                raise
            raise failure from error

    def wait(self) -> None:
        """Returns when the save in progress, if there is one, is complete on the disk.

        Raises:
          UserError: it failed; the message names the step, the reason and the last good checkpoint.
        """
        if self._saving is None or self._manager is None:
            return
        try:
            self._manager.wait_until_finished()
        except Exception as error:  # whatever the writing threads raised; it goes on as the cause
            raise self._failure(error) from error
        self._known.add(self._saving[0])
        self._saving = None

    def close(self) -> None:
        """Waits, as `wait` does, and ends Orbax's threads, also when the last save failed."""
        try:
            self.wait()
        finally:
            if self._manager is not None:
                self._manager.close()
                self._manager = None

    def steps(self) -> list[int]:
        """The steps that have a folder, in rising order; none of them verified."""
        return sorted(int(name) for name in _names(self._directory) if name.isdecimal())

    def best_step(self) -> int | None:
        """The step with the lowest held-out perplexity, by the manifests; None where no checkpoint has one."""
        return _best(self._read_heldout())

    def restore(self, abstract_state: Any) -> tuple[Any, int] | None:
        """The newest checkpoint that is whole.

        A damaged one that is newer is named in a warning and moved aside (`<step>.damaged`), and removed when training
        has come to that step again.

        Args:
          abstract_state: a pytree like the saved one, of `jax.ShapeDtypeStruct`s (or arrays) with shardings.

        Returns:
          The state and its step; None where the folder holds no checkpoint at all.

        Raises:
          UserError: there are checkpoints but all are damaged, or the newest whole one is of another model.
        """
        self.wait()
        step = self._newest()
        if step is None:
            return None
        if jax.process_index() == 0:
            for damaged in [other for other in self.steps() if other > step]:
                folder = self._directory / str(damaged)
                aside = self._directory / f"{damaged}{_ASIDE}"
                if aside.exists():
                    aside.rmtree()
                folder.rename(aside)
        if jax.process_count() > 1:  # no process may look for steps before that is done
            multihost_utils.sync_global_devices("elmo_jax: damaged checkpoints are moved aside")
        if self._manager is not None:
            self._manager.reload()
        return self._load(step, abstract_state), step

    def restore_step(self, step: int, abstract_state: Any) -> Any:
        """The state of that step. Raises `UserError` where it is missing, damaged or of another model."""
        self._check(step)
        return self._load(step, abstract_state)

    def restore_params(self, step: int | None = None) -> tuple[dict[str, Any], int]:
        """Only the subtree `params` of a saved state, whatever else the state holds; changes nothing in the folder.

        Args:
          step: which one; None for the newest that is whole.

        Returns:
          The tree, of NumPy arrays, and its step.

        Raises:
          UserError: no checkpoint, a damaged one, or one without `params`.
        """
        self.wait()
        if step is None:
            step = self._newest()
        else:
            self._check(step)
        if step is None:
            raise UserError(f"{self._directory}: no checkpoint here; expected the checkpoints of a training run")
        return trees.load_params(self._directory / str(step)), step

    def _open(self) -> ocp.CheckpointManager:
        """Orbax's manager, made at the first save; it clears away what a killed process left half-written."""
        if self._manager is None:
            failures.tell_once()
            self._heldout = self._read_heldout()
            self._manager = ocp.CheckpointManager(
                self._directory,
                options=ocp.CheckpointManagerOptions(
                    preservation_policy=self,  # `should_preserve` below
                    cleanup_tmp_directories=True,
                    async_options=ocp.AsyncOptions(
                        post_finalization_callback=self._seal, barrier_sync_fn=failures.barrier()
                    ),
                ),
                item_handlers=ocp.StandardCheckpointHandler(),
            )
        return self._manager

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        """Orbax's question which steps stay (`preservation_policy`): the newest, and the best held-out."""
        del context
        steps = [info.step for info in checkpoints]
        self._heldout = {step: value for step, value in self._heldout.items() if step in steps}
        best = _best(self._heldout)
        newest = sorted(steps)[-self._keep :]
        return [step in newest or step == best for step in steps]

    def _seal(self) -> None:
        """Writes the manifest; Orbax calls it on process 0, all files being written and the folder not yet renamed."""
        assert self._saving is not None
        step, heldout = self._saving
        names = [name for name in _names(self._directory) if name.startswith(f"{step}{_TEMPORARY}")]
        folder = self._directory / (names[0] if names else str(step))  # object stores have no temporary name
        manifest.write(folder, manifest.describe(folder, step, heldout))

    def _note(self, step: int, heldout: float | None) -> None:
        """Adds the perplexity to a checkpoint that was saved without it."""
        folder = self._directory / str(step)
        found = manifest.read(folder)
        if heldout is None or isinstance(found, str) or found.heldout == heldout:
            return
        self._heldout[step] = heldout
        if jax.process_index() == 0:
            manifest.write(folder, manifest.Manifest(step, heldout, found.files))

    def _read_heldout(self) -> dict[int, float]:
        found = {step: manifest.read(self._directory / str(step)) for step in self.steps()}
        return {
            step: entry.heldout
            for step, entry in found.items()
            if not isinstance(entry, str) and entry.heldout is not None
        }

    def _newest(self) -> int | None:
        """The newest step that is whole; all processes get the same answer."""
        found = self._verified() if jax.process_index() == 0 else _NONE
        if jax.process_count() > 1:
            found = int(multihost_utils.broadcast_one_to_all(np.int32(found)))
        if found == _ALL_DAMAGED:
            raise UserError(
                f"{self._directory}: every checkpoint is damaged, so the run cannot go on;"
                " restore one from a copy, or move the folder away to start again"
            )
        return None if found == _NONE else found

    def _verified(self) -> int:
        steps = self.steps()
        for step in reversed(steps):
            wrong = manifest.damage(self._directory / str(step), step)
            if wrong is None:
                return step
            _log.warning("%s: damaged checkpoint: %s; the one before is used", self._directory / str(step), wrong)
        aside = any(name.endswith(_ASIDE) for name in _names(self._directory))
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

    def _failure(self, error: Exception) -> UserError:
        """The failed save as one line; what it left behind is removed, for it may be all that fills the disk."""
        assert self._saving is not None
        step = self._saving[0]
        self._saving = None
        self._heldout.pop(step, None)
        self._failed.add(step)
        if jax.process_index() == 0:
            failures.remove_while_written(self._directory, f"{step}{_TEMPORARY}")
        steps = [other for other in self.steps() if not isinstance(manifest.read(self._directory / str(other)), str)]
        last = f"the last good checkpoint is that of step {steps[-1]}" if steps else "there is no earlier checkpoint"
        return UserError(f"{self._directory}: step {step} could not be saved: {failures.reason(error)}; {last}")

    def _clear_aside(self, step: int) -> None:
        """Removes damaged checkpoints that training has come past again."""
        for name in _names(self._directory):
            stem = name.removesuffix(_ASIDE)
            if jax.process_index() == 0 and stem != name and stem.isdecimal() and int(stem) <= step:
                (self._directory / name).rmtree()


def _best(heldout: dict[int, float]) -> int | None:
    return min(heldout, key=lambda step: (heldout[step], -step), default=None)


def _names(directory: epath.Path) -> list[str]:
    return [path.name for path in directory.iterdir()] if directory.exists() else []
