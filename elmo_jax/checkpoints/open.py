"""Opens a biLM by its name, or from a run, an export or published weights, in the same way for all commands.

If a run has an export, that is the model; a warning says if the run has been trained further since. If a run has no
export, the model is its newest checkpoint that is intact.
"""

from __future__ import annotations

import logging
import math
import os
import pathlib
from typing import TYPE_CHECKING

from etils import epath

from elmo_jax import files
from elmo_jax.checkpoints.export import PretrainedBiLM, is_export, read_export
from elmo_jax.checkpoints.hdf5 import read_hdf5
from elmo_jax.checkpoints.layout import fingerprint, flatten
from elmo_jax.checkpoints.manager import Checkpoints
from elmo_jax.checkpoints.manifest import scores
from elmo_jax.checkpoints.provenance import FINETUNED_FROM, provenance
from elmo_jax.checkpoints.safetensors import SUFFIX, is_safetensors, read_safetensors
from elmo_jax.checkpoints.softmax_layout import from_lanes, stored_rows
from elmo_jax.errors import UserError
from elmo_jax.pretrained import packaged_names, packaged_path
from elmo_jax.runs.folder import from_launch, read_config, read_config_file
from elmo_jax.runs.metrics import read_records
from elmo_jax.runs.perplexity import geometric_mean, has_perplexities, of_record
from elmo_jax.runs.result import read_result

if TYPE_CHECKING:  # not imported otherwise, since an export can be opened without the data packages
    from elmo_jax.data.corpus import Corpus

_log = logging.getLogger(__name__)

Path = str | os.PathLike[str]
BiLMSource = Path | tuple[Path, Path]

_EXPECTED = (
    "expected the name of a packaged biLM (%s), a run's folder, an export, a safetensors file, or published weights"
    " with their options (on the command line WEIGHTS.hdf5 --options OPTIONS.json, in Python (options, weights))"
)


def open_bilm(source: BiLMSource) -> PretrainedBiLM:
    """Opens a biLM and verifies it.

    Args:
      source: the name of a packaged biLM (`english`), a run's folder, an export, a safetensors file, or the pair
        (options.json, weights.hdf5) of a published biLM.

    Returns:
      The biLM; `info["steps"]` is the step of the run that it was made at.

    Raises:
      UserError: the source is none of these, is damaged, has another layout version, or is both the name of a packaged
        biLM and a file or folder.
    """
    if isinstance(source, tuple) and len(source) == 2:
        model, params = read_hdf5(*source)
        return PretrainedBiLM(model, params, None, {}, fingerprint(flatten(params)))
    if not isinstance(source, (str, os.PathLike)):
        raise UserError(f"{source!r}: {_EXPECTED % ' or '.join(packaged_names())}")
    folder = files.absolute(source)
    if packaged := packaged_path(os.fspath(source)):
        if folder.exists():
            raise UserError(
                f"{source}: the name of a packaged biLM, and also of {folder}; for that, give its full path"
            )
        return read_safetensors(packaged)
    if folder.suffix == SUFFIX and is_safetensors(path := pathlib.Path(folder)):
        return read_safetensors(path)
    if is_export(folder):
        return read_export(folder)
    if other := _of_others(folder):
        raise UserError(f"{os.fspath(source)}: {other}")
    if is_run(folder):
        if not is_export(folder / "export"):
            return load_run(folder)
        bilm = read_export(folder / "export")
        _tell_of_later_steps(folder, bilm.info.get("steps"))
        return bilm
    if is_export(folder / "export"):  # the export of a run whose other files have been deleted
        return read_export(folder / "export")
    if folder.is_file() and folder.suffix in (".hdf5", ".h5"):
        raise UserError(f"{os.fspath(source)}: published weights; give --options options.json too (in Python a pair)")
    what = "no such file or folder" if not folder.exists() else "a file" if folder.is_file() else "no biLM here"
    raise UserError(f"{os.fspath(source)}: {what}; {_EXPECTED % ' or '.join(packaged_names())}")


def _of_others(path: epath.Path) -> str | None:
    """Returns what to do with a model of another program, or with an archive; None for what is neither."""
    if path.is_file() and path.suffix in (".zip", ".tar", ".tgz", ".gz", ".bz2", ".xz"):
        return "an archive; unpack it, and give what is in it"
    if not path.is_dir():
        return None
    options, weights = path / "options.json", sorted([*path.glob("*.hdf5"), *path.glob("*.h5")])
    if options.is_file() and weights:
        return f"published weights; give {weights[0]} --options {options} (in Python the pair of options and weights)"
    if any((path / name).exists() for name in ("char.dic", "encoder.pkl", "token_embedder.pkl")):
        return "a model of ELMoForManyLangs, which has another architecture and cannot be read"
    if list(path.glob("model.ckpt*")):
        return "a TensorFlow checkpoint of bilm-tf; dump its weights to HDF5 there (bin/dump_weights.py in bilm-tf)"
    return None


def run_of(source: BiLMSource) -> epath.Path | None:
    """Returns the folder of the run that a biLM is in, or None if it is not in one."""
    if isinstance(source, tuple):
        return None
    folder = files.absolute(source)
    inside = folder.parent if folder.name == "export" else folder
    return inside if is_run(inside) else None


def is_run(path: Path) -> bool:
    """Returns whether a path is the folder of a run."""
    folder = files.absolute(path)
    return (folder / "config.json").is_file()


def _tell_of_later_steps(run: epath.Path, exported: int | None) -> None:
    """Warns if a run has been trained further since its export, because its last launch has not finished."""
    finished = (read_result(run) or {}).get("steps", 0)
    newest = None if exported is None else trained_since(run, max(exported, finished))
    if newest is not None:
        _log.warning(
            "%s: this is step %s, the run's export; its newest checkpoint is of step %s, which elmo-jax export writes",
            run, f"{exported:,}", f"{newest:,}",
        )  # fmt: skip


def trained_since(run: epath.Path, step: int) -> int | None:
    """Returns the newest step of a run that has a checkpoint, or None if it is not later than `step`."""
    steps = Checkpoints(run / "checkpoints").steps()
    return steps[-1] if steps and steps[-1] > step else None


def load_run(run: Path, step: str = "last") -> PretrainedBiLM:
    """Loads the biLM of a checkpoint.

    Args:
      run: a run's folder.
      step: the number of a step that has a checkpoint, `last`, or `best` for the lowest held-out perplexity.

    Raises:
      UserError: the folder is not a run, the checkpoint does not exist, or the run's corpus, which has the vocabulary,
        is missing.
    """
    folder = files.place(run)
    config, facts = read_config(folder), read_config_file(folder)["facts"]
    checkpoints = Checkpoints(folder / "checkpoints", keep=config.checkpoint.keep)
    params, made = checkpoints.restore_params(_chosen_step(run, checkpoints, step))
    corpus = corpus_of(folder)
    if len(params["softmax"]["bias"]) != stored_rows(corpus.vocabulary_size):
        raise UserError(f"{run}: step {made} has the softmax layout of another version of elmo_jax; use that version")
    params = from_lanes(params, corpus.vocabulary_size)
    heldout = _heldout_of_step(folder, made)
    info = provenance(files.absolute(run).name, made, heldout, config, corpus, facts.get(FINETUNED_FROM))
    return PretrainedBiLM(config.model, params, corpus.vocabulary(), info, fingerprint(flatten(params)))


def _heldout_of_step(run: epath.Path, step: int) -> dict[str, float] | None:
    """Returns the held-out perplexities of a checkpoint from the run's metrics, or None if they were not measured.

    Raises:
      UserError: the metrics contradict themselves or the checkpoint, whose manifest has the average and a checksum.
    """
    path = run / "metrics.jsonl"
    records = [record for record in read_records(path) if record["step"] == step]
    found = next((of_record(r, "heldout") for r in reversed(records) if has_perplexities(r, "heldout")), None)
    score = scores(run / "checkpoints", [step]).get(step)
    if found is None:
        is_intact = score is None or not path.exists()
    else:
        is_intact = min(found.values()) > 0
        is_intact = is_intact and found["average"] == geometric_mean(found["forward"], found["backward"])
        # The record may be of an earlier launch on other devices, whose results are equal only up to rounding.
        is_intact = is_intact and (score is None or math.isclose(found["average"], score, rel_tol=1e-3))
    if not is_intact:
        raise UserError(
            f"{path}: damaged: the held-out perplexity of step {step} is not that of its checkpoint; restore the file"
            " from a copy, or move it away to load the biLM without its perplexities"
        )
    return found


def _chosen_step(run: Path, checkpoints: Checkpoints, step: str) -> int | None:
    """Returns the number of a step, or None for the newest that is intact."""
    if step == "last":
        return None
    if step.isdecimal():
        return int(step)
    if step != "best":
        raise UserError(f"--step: expected a number, 'last' or 'best', got {step!r}")
    best = checkpoints.best_step()
    if best is None:
        raise UserError(f"{run}: no kept checkpoint has a held-out perplexity; use --step last")
    return best


def corpus_of(run: epath.Path) -> Corpus:
    """Opens the corpus that a run was trained on.

    Raises:
      UserError: the corpus no longer exists, or another one is in its place.
    """
    from elmo_jax.data.corpus import Corpus

    fingerprint = read_config_file(run)["facts"]["corpus_fingerprint"]
    # A fine-tuning run may have prepared its corpus in its own folder, which may have been moved since.
    inside = run / "corpus"
    if inside.exists() and (corpus := Corpus.open(str(inside))).fingerprint == fingerprint:
        return corpus
    remedy = f"set data.corpus in {run / 'config.json'} to the full path of the corpus that it was trained on"
    try:
        corpus = Corpus.open(from_launch(run, read_config(run).data.corpus))
    except UserError as error:
        raise UserError(f"{error}, or {remedy}") from None
    if corpus.fingerprint != fingerprint:
        raise UserError(f"{corpus.path}: not the corpus of {run} (its fingerprint differs); {remedy}")
    return corpus
