"""Loads the biLM of a run's checkpoint, and opens the corpus that the run was trained on."""

import os
from typing import Any

from etils import epath

from elmo_jax import files
from elmo_jax.checkpoints.export import FINETUNED_FROM, GLOBAL_STEP, PretrainedBiLM
from elmo_jax.checkpoints.layout import fingerprint, flatten
from elmo_jax.checkpoints.manager import Checkpoints
from elmo_jax.checkpoints.manifest import trained_since
from elmo_jax.checkpoints.softmax_layout import deinterleave
from elmo_jax.config import Config
from elmo_jax.data.corpus import Corpus
from elmo_jax.errors import UserError
from elmo_jax.runs.folder import from_launch, read_config
from elmo_jax.runs.perplexity import WHOLE, Perplexity, read_evaluations
from elmo_jax.runs.progress import Progress
from elmo_jax.runs.result import read_result
from elmo_jax.settings import to_dict


def load_run(run: str | os.PathLike[str], step: str | None = None) -> PretrainedBiLM:
    """Loads the biLM of a run's checkpoint, for whose vocabulary the run's corpus is needed.

    The step is a number, `last`, or `best` for the lowest held-out perplexity; by default `exported_step`, or the last
    if the run is not complete.
    """
    folder = files.parse_path(run)
    config, metadata = read_config(folder)
    checkpoints = Checkpoints(folder / "checkpoints")
    with Progress(f"reading a checkpoint of {folder}"):
        params, made = checkpoints.restore_params(_chosen_step(folder, checkpoints, step))
        corpus = corpus_of(folder)
        params = deinterleave(params, corpus.vocabulary_size)
        measured = read_evaluations(folder)
        heldout = measured.get((WHOLE, made)) or measured.get(("heldout", made))
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


def first_step(finetuned_from: dict[str, Any] | None) -> int:
    """Returns the step before the first update of a run: that of its source if it is of bilm-tf, otherwise 0."""
    return (finetuned_from or {}).get(GLOBAL_STEP, 0)


def provenance(
    experiment: str,
    step: int,
    heldout: Perplexity | None,
    config: Config,
    corpus: Corpus,
    finetuned_from: dict[str, Any] | None,
) -> dict[str, Any]:
    """Returns the `info` of an export of a step, with `SourceModel.history` of the source for a run that fine-tunes."""
    settings = {name: part for name, part in to_dict(config).items() if name not in ("model", "data")}
    info = {
        "experiment": experiment,
        "steps": step,
        "tokens_seen": (step - first_step(finetuned_from)) * config.train.tokens_per_step,
        "heldout_perplexity": heldout and heldout.as_dict(),
        "corpus_fingerprint": corpus.fingerprint,
        "language": corpus.language,
        "corpus_sources": [files.short_name(source["source"]) for source in corpus.report["sources"]],
        "evaluation_batch_size": config.evaluation.batch_size,
        "settings": settings,
    }
    return info if finetuned_from is None else {**info, FINETUNED_FROM: finetuned_from}
