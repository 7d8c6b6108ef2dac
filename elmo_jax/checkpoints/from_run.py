"""Loads the biLM of a run's checkpoint, and opens the corpus that the run was trained on."""

import os

from etils import epath

from elmo_jax import files
from elmo_jax.checkpoints.export import PretrainedBiLM
from elmo_jax.checkpoints.layout import fingerprint, flatten
from elmo_jax.checkpoints.manager import Checkpoints
from elmo_jax.checkpoints.manifest import trained_since
from elmo_jax.checkpoints.provenance import FINETUNED_FROM, provenance
from elmo_jax.checkpoints.softmax_layout import deinterleave
from elmo_jax.data.corpus import Corpus
from elmo_jax.errors import UserError
from elmo_jax.runs.folder import from_launch, read_config
from elmo_jax.runs.perplexity import read_evaluations
from elmo_jax.runs.progress import Progress
from elmo_jax.runs.result import read_result


def load_run(run: str | os.PathLike[str], step: str | None = None) -> PretrainedBiLM:
    """Loads the biLM of a checkpoint.

    Args:
      run: a run's folder.
      step: the number of a step that has a checkpoint, `last`, or `best` for the lowest held-out perplexity; by default
        `exported_step`, or the last if the run is not complete.

    Raises:
      UserError: the folder is not a run, the checkpoint does not exist, or the run's corpus, which has the vocabulary,
        is missing.
    """
    folder = files.parse_path(run)
    config, metadata = read_config(folder)
    checkpoints = Checkpoints(folder / "checkpoints")
    with Progress(f"reading a checkpoint of {folder}"):
        params, made = checkpoints.restore_params(_chosen_step(folder, checkpoints, step))
        corpus = corpus_of(folder)
        params = deinterleave(params, corpus.vocabulary_size)
        heldout = read_evaluations(folder).get(("heldout", made))
        info = provenance(files.absolute(run).name, made, heldout, config, corpus, metadata.get(FINETUNED_FROM))
        return PretrainedBiLM(config.model, params, corpus.vocabulary(), info, fingerprint(flatten(params)))


def exported_step(run: epath.Path) -> int | None:
    """Returns the step that the training of a complete run exported, or None for a run that is not complete."""
    result = read_result(run)
    if result is None or trained_since(run, result["steps"]):
        return None
    return int(result.get("exported_step", result["steps"]))


def _chosen_step(run: epath.Path, checkpoints: Checkpoints, step: str | None) -> int | None:
    if step is None or step == "last":
        return exported_step(run) if step is None else None
    if step.isdecimal():
        return int(step)
    if step != "best":
        raise UserError(f"--step: expected a number, 'last' or 'best', got {step!r}")
    best = checkpoints.best_step()
    if best is None:
        raise UserError(f"{run}: no kept checkpoint has a held-out perplexity; use --step last")
    return best


def corpus_of(run: epath.Path) -> Corpus:
    """Opens the corpus that a run was trained on; raises `UserError` if it is not there."""
    config, metadata = read_config(run)
    fingerprint = metadata["corpus_fingerprint"]
    # A fine-tuning run may have prepared its corpus in its own folder, which may have been moved since.
    inside = run / "corpus"
    if inside.exists() and (corpus := Corpus.open(str(inside))).fingerprint == fingerprint:
        return corpus
    remedy = f"set data.corpus in {run / 'config.json'} to the full path of the corpus that it was trained on"
    try:
        corpus = Corpus.open(from_launch(run, config.data.corpus))
    except UserError as error:
        raise UserError(f"{error}, or {remedy}") from None
    if corpus.fingerprint != fingerprint:
        raise UserError(f"{corpus.path}: not the corpus of {run} (its fingerprint differs); {remedy}")
    return corpus
