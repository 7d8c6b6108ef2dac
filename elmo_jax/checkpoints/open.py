"""One way to open a biLM: a run, an export, or published weights.

A run that has an export gives that one, which is what the run chose to leave; it is said where the run was trained on
since. A run without an export gives its newest checkpoint that is whole.
"""

from __future__ import annotations

import json
import logging
import os
from typing import TYPE_CHECKING, Any

from etils import epath

from elmo_jax import files
from elmo_jax.checkpoints.export import PretrainedBiLM, export_bilm, is_export, read_export
from elmo_jax.checkpoints.hdf5 import read_hdf5
from elmo_jax.checkpoints.layout import fingerprint, flatten
from elmo_jax.checkpoints.manager import Checkpoints
from elmo_jax.checkpoints.provenance import FINETUNED_FROM, provenance
from elmo_jax.checkpoints.softmax_layout import from_lanes, stored_rows
from elmo_jax.errors import UserError
from elmo_jax.runs.folder import read_config, read_config_file
from elmo_jax.runs.metrics import read_records
from elmo_jax.runs.perplexity import of_record

if TYPE_CHECKING:  # an export needs nothing of the data
    from elmo_jax.data.corpus import Corpus

_log = logging.getLogger(__name__)

Path = str | os.PathLike[str]
BiLMSource = Path | tuple[Path, Path]

_EXPECTED = (
    "expected a run's folder, an export, or published weights with their options (on the command line"
    " WEIGHTS.hdf5 --options OPTIONS.json, in Python the pair (options, weights))"
)


def open_bilm(source: BiLMSource) -> PretrainedBiLM:
    """Opens a biLM and verifies it.

    Args:
      source: a run's folder, an export, or the pair (options.json, weights.hdf5) of a published biLM.

    Returns:
      The biLM; its `info["steps"]` says which step of a run it is.

    Raises:
      UserError: something else, a damaged one, or one of another layout version.
    """
    if isinstance(source, tuple):
        model, params = read_hdf5(*source)
        return PretrainedBiLM(model, params, None, {}, fingerprint(flatten(params)))
    folder = files.absolute(source)
    if is_export(folder):
        return read_export(folder)
    if _is_run(folder):
        if not is_export(folder / "export"):
            return load_run(folder)
        bilm = read_export(folder / "export")
        _tell_of_later_steps(folder, bilm.info.get("steps"))
        return bilm
    if is_export(folder / "export"):  # of a run whose other files are gone
        return read_export(folder / "export")
    what = "no such file or folder" if not folder.exists() else "a file" if folder.is_file() else "no biLM here"
    raise UserError(f"{os.fspath(source)}: {what}; {_EXPECTED}")


def run_of(source: BiLMSource) -> epath.Path | None:
    """The folder of the run that made a biLM, where it still is in one."""
    if isinstance(source, tuple):
        return None
    folder = files.absolute(source)
    inside = folder.parent if folder.name == "export" else folder
    return inside if _is_run(inside) else None


def _is_run(folder: epath.Path) -> bool:
    return (folder / "config.json").is_file()


def _tell_of_later_steps(run: epath.Path, exported: int | None) -> None:
    """Warns where a run was trained on after its export: its last launch has not come to the end yet."""
    steps = Checkpoints(run / "checkpoints").steps()
    done = run / "result.json"
    finished = json.loads(done.read_text())["steps"] if done.is_file() else 0
    if exported is not None and steps and steps[-1] > max(exported, finished):
        _log.warning(
            "%s: this is step %s, the run's export; its newest checkpoint is of step %s, which elmo-jax export writes",
            run, f"{exported:,}", f"{steps[-1]:,}",
        )  # fmt: skip


def load_run(run: Path, step: str = "last") -> PretrainedBiLM:
    """The biLM of a kept checkpoint.

    Args:
      run: a run's folder.
      step: the number of a kept step, `last` or `best` (lowest held-out perplexity).

    Raises:
      UserError: no run, no such step, or the corpus it was trained on is no longer there for its vocabulary.
    """
    folder = files.place(run)
    config, facts = read_config(folder), read_config_file(folder)["facts"]
    checkpoints = Checkpoints(folder / "checkpoints", keep=config.checkpoint.keep)
    params, made = checkpoints.restore_params(_chosen_step(run, checkpoints, step))
    corpus = corpus_of(folder)
    if len(params["softmax"]["bias"]) != stored_rows(corpus.vocabulary_size):
        raise UserError(
            f"{run}: the softmax's rows of step {made} lie as another version of elmo_jax stores them; use that"
        )
    params = from_lanes(params, corpus.vocabulary_size)
    records = read_records(folder / "metrics.jsonl")
    measured = [r for r in records if r["step"] == made and "heldout/perplexity/average" in r]
    heldout = of_record(measured[-1] if measured else None, "heldout")
    info = provenance(folder.name, made, heldout, config, corpus, facts.get(FINETUNED_FROM))
    return PretrainedBiLM(config.model, params, corpus.vocabulary(), info, fingerprint(flatten(params)))


def _chosen_step(run: Path, checkpoints: Checkpoints, step: str) -> int | None:
    """The number of a step; None for the newest that is whole."""
    if step == "last":
        return None
    if step.isdecimal():
        return int(step)
    if step != "best":
        raise UserError(f"--step: expected a number, 'last' or 'best', got {step!r}")
    best = checkpoints.best_step()
    if best is None:
        raise UserError(f"{run}: no kept checkpoint has a held-out perplexity; take --step last")
    return best


def corpus_of(run: epath.Path) -> Corpus:
    """The corpus that a run was trained on. Raises `UserError` where it is no longer there."""
    from elmo_jax.data.corpus import Corpus

    inside = run / "corpus"  # of a run that fine-tunes, which may have moved with it
    corpus = Corpus.open(str(inside) if inside.exists() else read_config(run).data.corpus)
    if corpus.fingerprint != read_config_file(run)["facts"]["corpus_fingerprint"]:
        raise UserError(
            f"{corpus.path}: not the corpus that {run} was trained on (its fingerprint differs);"
            " say where that is: the run's config.json names data.corpus"
        )
    return corpus


def export_run(run: Path, step: str, out: Path | None) -> tuple[epath.Path, int]:
    """Exports the biLM of a kept checkpoint; returns the folder and the step."""
    bilm = load_run(run, step)
    folder = files.place(run) / "export" if out is None else files.place(out)
    export_bilm(folder, bilm.config, bilm.params, bilm.vocabulary, bilm.info)
    steps: Any = bilm.info["steps"]
    return folder, int(steps)
