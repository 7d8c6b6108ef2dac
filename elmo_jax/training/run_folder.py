"""The biLM of a run's folder, finished or not: for evaluation and export."""

from __future__ import annotations

import os

from etils import epath

from elmo_jax.checkpoints.export import PretrainedBiLM, export_bilm, load_bilm
from elmo_jax.checkpoints.layout import fingerprint, flatten
from elmo_jax.checkpoints.manager import Checkpoints
from elmo_jax.data.corpus import Corpus
from elmo_jax.errors import UserError
from elmo_jax.files import place
from elmo_jax.training.evaluate import FIGURES
from elmo_jax.training.history import FINETUNED_FROM, history
from elmo_jax.training.lanes import from_lanes, stored_rows
from elmo_jax.training.metrics import read_records
from elmo_jax.training.workdir import read_config, read_config_file


def load_run(run: str | os.PathLike[str], step: str = "last") -> PretrainedBiLM:
    """The biLM of a kept checkpoint.

    Args:
      run: a run's folder.
      step: the number of a kept step, `last` or `best` (lowest held-out perplexity).

    Raises:
      UserError: no run, no such step, or the corpus it was trained on is no longer there for its vocabulary.
    """
    folder = place(run)
    config, facts = read_config(folder), read_config_file(folder)["facts"]
    checkpoints = Checkpoints(folder / "checkpoints", keep=config.checkpoint.keep)
    if step == "best":
        chosen = checkpoints.best_step()
        if chosen is None:
            raise UserError(f"{run}: no kept checkpoint has a held-out perplexity; take --step last")
    elif step == "last":
        chosen = None
    elif step.isdecimal():
        chosen = int(step)
    else:
        raise UserError(f"--step: expected a number, 'last' or 'best', got {step!r}")
    params, made = checkpoints.restore_params(chosen)
    corpus = corpus_of(folder)
    if len(params["softmax"]["bias"]) != stored_rows(corpus.vocabulary_size):
        raise UserError(
            f"{run}: the softmax's rows of step {made} lie as another version of elmo_jax stores them; use that"
        )
    params = from_lanes(params, corpus.vocabulary_size)
    heldout = [
        r for r in read_records(folder / "metrics.jsonl") if r["step"] == made and "heldout/perplexity/average" in r
    ]
    figures = {name: heldout[-1][f"heldout/perplexity/{name}"] for name in FIGURES} if heldout else None
    info = history(folder.name, made, figures, config, corpus, facts.get(FINETUNED_FROM))
    return PretrainedBiLM(config.model, params, corpus.vocabulary(), info, fingerprint(flatten(params)))


def corpus_of(run: epath.Path) -> Corpus:
    """The corpus that a run was trained on. Raises `UserError` where it is no longer there."""
    inside = run / "corpus"  # of a run that fine-tunes, which may have moved with it
    corpus = Corpus.open(str(inside) if inside.exists() else read_config(run).data.corpus)
    if corpus.fingerprint != read_config_file(run)["facts"]["corpus_fingerprint"]:
        raise UserError(
            f"{corpus.path}: not the corpus that {run} was trained on (its fingerprint differs);"
            " say where that is: the run's config.json names data.corpus"
        )
    return corpus


def load_run_or_export(path: str | os.PathLike[str]) -> PretrainedBiLM:
    """An export; a run's export; or the newest checkpoint of a run that has none yet."""
    folder = place(path)
    if (folder / "config.json").exists() and not (folder / "export").exists():
        return load_run(folder)
    return load_bilm(path)


def export_run(run: str | os.PathLike[str], step: str, out: str | os.PathLike[str] | None) -> epath.Path:
    """Exports the biLM of a kept checkpoint; returns the folder."""
    bilm = load_run(run, step)
    out = place(run) / "export" if out is None else place(out)
    export_bilm(out, bilm.config, bilm.params, bilm.vocabulary, bilm.info)
    return out
