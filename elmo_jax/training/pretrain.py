"""Launches a run, after checking that its folder, settings and corpus fit together and that it is not complete."""

import os
import sys
import warnings
from typing import Any

from etils import epath

from elmo_jax import files
from elmo_jax.checkpoints.export import check_replaceable
from elmo_jax.checkpoints.from_run import first_step
from elmo_jax.checkpoints.manager import Checkpoints
from elmo_jax.config import CHANGEABLE, Config
from elmo_jax.data.corpus import Corpus
from elmo_jax.distributed.collectives import broadcast_from_primary, is_primary, raise_on_all, wait_for_all
from elmo_jax.distributed.initialize import check_connected
from elmo_jax.distributed.mesh import make_mesh
from elmo_jax.errors import UserError
from elmo_jax.interrupts import Stopped
from elmo_jax.runs.folder import check_usable, open_workdir
from elmo_jax.runs.lock import locked
from elmo_jax.runs.metrics import check_trackers
from elmo_jax.runs.result import Finished, read_result
from elmo_jax.training.loop import train
from elmo_jax.training.partitioning import with_precision
from elmo_jax.training.setup import Recipe, TrainingSetup, check_sizes, rows_warning, total_steps, warmup_warning


def pretrain(config: Config, workdir: str | os.PathLike[str], title: str) -> Finished | Stopped:
    """Trains a biLM to the end, or until SIGTERM or SIGINT.

    A run that was stopped or killed resumes in its `workdir`. `title` names the run in its plot and its export.
    """
    folder = files.parse_path(workdir)
    check_connected()
    with raise_on_all():
        corpus = Corpus.open(config.data.corpus)
        if is_primary():
            check_usable(folder)
    with locked(folder):
        return launch(Recipe(), config, corpus, folder, title)


def launch(
    recipe: Recipe,
    config: Config,
    corpus: Corpus,
    workdir: epath.Path,
    title: str,
    metadata: dict[str, Any] | None = None,
) -> Finished | Stopped:
    """Starts or resumes the run of `workdir`, which the caller has locked, unless it is complete.

    `metadata` are the values that must stay the same from one launch to the next, besides settings and corpus.
    """
    mesh = make_mesh()
    config = with_precision(config, mesh)  # what the run records, so that it resumes with the same
    with raise_on_all():
        check_sizes(config, corpus, mesh)
        updates = total_steps(config, corpus)
        total = first_step(recipe.finetuned_from) + updates
        if is_primary():
            check_trackers(config.train.trackers)
            check_replaceable(workdir / "export")  # the end of the run will write it
            _check_continuable(workdir, total)  # before the settings of this launch replace those of the run
    known = {"corpus_fingerprint": corpus.fingerprint, "vocabulary_size": corpus.vocabulary_size}
    open_workdir(workdir, config, {**known, **(metadata or {})}, CHANGEABLE)
    result: dict[str, Any] = {}
    with raise_on_all():
        if is_primary():
            result = read_result(workdir) or {}
    if broadcast_from_primary(result.get("steps") == total or result.get("stopped_early", False)):
        return Finished(result, already=True)
    for warning in filter(None, (warmup_warning(config, updates), rows_warning(config, corpus, updates))):
        if is_primary():
            print(f"elmo-jax: warning: {warning}", file=sys.stderr, flush=True)
    # JAX cannot keep a program whose temporary memory is in several blocks (`partitioning.step_options`; 0.10.2).
    warnings.filterwarnings("ignore", r"Error writing persistent.*Multiple temp buffer allocations", UserWarning)
    ended = train(TrainingSetup(config, corpus, mesh, updates, recipe.frozen), recipe, workdir, title)
    wait_for_all()  # for the export, which the caller may open
    return ended


def _check_continuable(workdir: epath.Path, total: int) -> None:
    steps = Checkpoints(workdir / "checkpoints").steps() if (workdir / "checkpoints").exists() else []
    result = read_result(workdir) or {"stopped_early": True}
    if not steps and not result.get("stopped_early") and result["steps"] < total:
        raise UserError(
            f"{workdir}: this run is complete, and its checkpoints are gone, so it cannot be continued; restore"
            " checkpoints/, or start again in another --workdir (in this one, remove result.json first)"
        )
    if steps and steps[-1] > total:
        problem = f"this run has made {steps[-1]} steps, but {total} are requested now"
        raise UserError(f"{workdir}: {problem}; a run can be made longer, but not shorter")
