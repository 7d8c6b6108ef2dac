"""Writes and reads exports: a biLM's parameter tree with its config and vocabulary, for users and other programs.

An export is a folder with `parameters/` (an Orbax PyTree checkpoint), `bilm.json` (layout version, config, shapes,
fingerprint, provenance) and `vocabulary.txt` (the words of the softmax, one per line, in the order of its rows). This
module does not depend on training.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from etils import epath

from elmo_jax import files
from elmo_jax.checkpoints import failures
from elmo_jax.checkpoints.export_folder import (
    DESCRIPTION,
    PARAMETERS,
    VOCABULARY,
    all_files,
    replacing,
)
from elmo_jax.checkpoints.layout import LAYOUT_VERSION, check_shapes, fingerprint, flatten, unflatten
from elmo_jax.checkpoints.provenance import FINETUNED_FROM
from elmo_jax.config import ModelConfig
from elmo_jax.errors import UserError
from elmo_jax.settings import from_dict, to_dict

_DESCRIPTION_BYTES = 1 << 24  # the largest description that is read; more than any architecture needs


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class PretrainedBiLM:
    """A pretrained biLM: its architecture, parameters and vocabulary.

    Attributes:
      config: the architecture.
      params: the parameter tree, a plain nested dict of NumPy arrays; it includes `softmax` if the source does.
      vocabulary: the words of the softmax's rows; None if the source has no vocabulary (HDF5).
      info: the provenance (steps, held-out perplexity, fingerprint of the corpus, …).
      fingerprint: the SHA-256 over keys, dtypes, shapes and bytes of `params`.
    """

    config: ModelConfig
    params: dict[str, Any]
    vocabulary: list[str] | None
    info: dict[str, Any]
    fingerprint: str

    def __repr__(self) -> str:
        """Returns a few lines: the sizes, and what the provenance says of the training."""
        lstm, cnn = self.config.lstm, self.config.char_cnn
        softmax = (
            "no softmax"
            if "softmax" not in self.params
            else f"softmax over {len(self.params['softmax']['bias']):,} words"
        )
        dense = sum(leaf.size for key, leaf in flatten(self.params).items() if not key.startswith("softmax/"))
        lines = [
            f"{type(self).__name__} {self.fingerprint[:12]}: {dense:,} parameters, {softmax}",
            f"{lstm.layers} LSTM layers per direction with {lstm.cells:,} cells and projection {lstm.projection:,};"
            f" {cnn.features:,} character filters, {cnn.highways} highway layers",
        ]
        return "\n  ".join([*lines, *_told(self.info)])


def _told(info: Mapping[str, Any]) -> Iterator[str]:
    """Yields what the provenance says, as far as it is of the form that a training writes; a user may write others."""
    stage: Any = info
    trained = "trained"
    while isinstance(stage, Mapping):
        steps, tokens = stage.get("steps"), stage.get("tokens_seen", 0)
        if isinstance(steps, int) and isinstance(tokens, int):
            yield f"{trained} in the run {stage.get('experiment')!r}: {steps:,} steps, {tokens:,} tokens"
        stage, trained = stage.get(FINETUNED_FROM), "before that, trained"
    heldout = info.get("heldout_perplexity")
    if isinstance(heldout, dict) and isinstance(heldout.get("average"), float):
        yield f"held-out perplexity {heldout['average']:,.1f}"
    sources = info.get("corpus_sources") or info.get("sources")
    if isinstance(sources, list):
        names = [str(source.get("text") if isinstance(source, dict) else source) for source in sources]
        yield f"text: {', '.join(names[:8])}{', …' if len(names) > 8 else ''}"


def export_bilm(
    path: str | os.PathLike[str],
    model: ModelConfig,
    params: Mapping[str, Any],
    vocabulary: Sequence[str] | None = None,
    info: Mapping[str, Any] | None = None,
) -> str:
    """Writes an export; an older one at `path` is replaced once the new one is complete.

    In a run of several processes, only one may call this function.

    Args:
      path: the folder to make.
      model: the architecture.
      params: the parameter tree, of NumPy arrays or of JAX arrays that are fully addressable by this process.
      vocabulary: the words of the softmax's rows; None for a tree without softmax.
      info: the provenance, to be stored as JSON.

    Returns:
      The fingerprint of the parameters.

    Raises:
      UserError: `path` holds something else or cannot be written, `params` or `vocabulary` do not fit `model`, a
        parameter is not a finite number, or `info` cannot be written as JSON.
    """
    path = files.absolute(path)
    flat = {key: np.asarray(leaf) for key, leaf in flatten(params).items()}
    shapes = {key: leaf.shape for key, leaf in flat.items()}
    check_shapes(shapes, model, f"export to {path}")
    _check_vocabulary(vocabulary, shapes, f"export to {path}")
    _check_values(flat, info, f"export to {path}")
    digest = fingerprint(flat)
    description = {
        "layout": LAYOUT_VERSION,
        "model": to_dict(model),
        "shapes": shapes,
        "parameters": sum(leaf.size for leaf in flat.values()),
        "fingerprint": digest,
        "vocabulary_sha256": None if vocabulary is None else _sha256(_lines(vocabulary)),
        "info": dict(info or {}),
    }
    try:
        with replacing(path) as folder:
            _write_params(folder / PARAMETERS, unflatten(flat))
            if vocabulary is not None:
                (folder / VOCABULARY).write_bytes(_lines(vocabulary))
            description["files"] = sorted([*all_files(folder), DESCRIPTION])  # only these may be deleted later
            description["sha256"] = files.digest_of(description)
            (folder / DESCRIPTION).write_text(json.dumps(description, indent=1) + "\n", encoding="utf-8")
    except Exception as error:
        if not failures.is_of_storage(error):
            raise
        raise UserError(f"{path}: the export cannot be written: {failures.reason(error)}") from error
    return digest


def _check_values(flat: Mapping[str, np.ndarray], info: Mapping[str, Any] | None, where: str) -> None:
    """Raises `UserError` unless the parameters are finite floating-point numbers and `info` can be stored as JSON."""
    for key, leaf in flat.items():
        if not jnp.issubdtype(leaf.dtype, jnp.floating) or not np.isfinite(leaf).all():
            raise UserError(f"{where}: parameter '{key}' ({leaf.dtype}): expected floating-point numbers, all finite")
    try:
        json.dumps(dict(info or {}))
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(f"{where}: info cannot be written as JSON ({error})") from None


def is_export(folder: epath.Path) -> bool:
    """Returns whether a folder is an export."""
    return (folder / DESCRIPTION).is_file()


def read_export(folder: epath.Path) -> PretrainedBiLM:
    """Reads an export, and verifies its fingerprint.

    Raises:
      UserError: the export is damaged or has another layout version.
    """
    description = _read_description(folder)
    model = from_dict(description["model"], ModelConfig, f"{folder / DESCRIPTION}: model")
    shapes = {key: tuple(shape) for key, shape in description["shapes"].items()}
    check_shapes(shapes, model, str(folder / DESCRIPTION))
    vocabulary = _read_vocabulary(folder, description["vocabulary_sha256"])
    _check_vocabulary(vocabulary, shapes, str(folder))
    params = _read_params(folder, shapes)
    digest = fingerprint(flatten(params))
    if digest != description["fingerprint"]:
        raise UserError(f"{folder}: the parameters are not those that were exported (fingerprint); export them again")
    rest = {key: value for key, value in description.items() if key != "sha256"}
    if "sha256" in description and description["sha256"] != files.digest_of(rest):  # an older version did not write it
        raise UserError(f"{folder / DESCRIPTION}: not what was exported (checksum); export the biLM again")
    return PretrainedBiLM(model, params, vocabulary, description["info"], digest)


def _read_description(folder: epath.Path) -> dict[str, Any]:
    path = folder / DESCRIPTION
    try:
        with path.open("rb") as file:
            content = file.read(_DESCRIPTION_BYTES + 1)
        if len(content) > _DESCRIPTION_BYTES:
            raise ValueError("larger than 16 MB")
        description = json.loads(content)
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: cannot be read ({' '.join(str(error).split())}); export the biLM again") from None
    layout = description.get("layout") if isinstance(description, dict) else None
    if layout != LAYOUT_VERSION:
        raise UserError(
            f"{path}: layout version {layout!r}, this elmo_jax reads {LAYOUT_VERSION};"
            " export the biLM again, or use the elmo_jax that wrote it"
        )
    for key in ("model", "shapes", "fingerprint", "vocabulary_sha256", "info"):
        kind = dict if key in ("model", "shapes", "info") else (str, type(None))
        if key not in description or not isinstance(description[key], kind):
            raise UserError(f"{path}: '{key}' is missing or damaged; export the biLM again")
    if not all(_is_shape(shape) for shape in description["shapes"].values()):
        raise UserError(f"{path}: 'shapes' is damaged; export the biLM again")
    return description


def _is_shape(value: Any) -> bool:
    return isinstance(value, list) and all(type(size) is int for size in value)


def _write_params(folder: epath.Path, params: dict[str, Any]) -> None:
    checkpointer = _checkpointer()
    try:
        checkpointer.save(folder, args=ocp.args.PyTreeSave(params))
    finally:
        checkpointer.close()
    mark = folder / "commit_success.txt"  # Orbax writes the absolute path into it, which must not be published
    if mark.exists():
        mark.write_text("Checkpoint commit was successful\n")


def _read_params(folder: epath.Path, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """Reads the parameters as NumPy arrays, after their keys and shapes have been compared with those expected."""
    where = folder / PARAMETERS
    if not where.is_dir():
        raise UserError(f"{where}: no such folder; export the biLM again")
    checkpointer = _checkpointer()
    try:
        found = checkpointer.metadata(where).item_metadata
        saved = flatten(getattr(found, "tree", found))
        if {key: tuple(leaf.shape) for key, leaf in saved.items()} != dict(shapes):
            raise UserError(f"{where}: keys or shapes are not those of {DESCRIPTION}; export the biLM again")
        wanted = unflatten({key: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for key, leaf in saved.items()})
        as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), wanted)
        return checkpointer.restore(where, args=ocp.args.PyTreeRestore(item=wanted, restore_args=as_numpy))
    except UserError:
        raise
    except Exception as error:  # on damage, Orbax and TensorStore raise many kinds of exceptions
        reason = " ".join(str(error).split())[:120]
        raise UserError(f"{where}: damaged ({reason}); export the biLM again") from error
    finally:
        checkpointer.close()


def _checkpointer() -> ocp.Checkpointer:
    """Makes a checkpointer in which the other processes of a run take no part."""
    here = jax.process_index()
    alone = ocp.options.MultiprocessingOptions(
        primary_host=here, active_processes={here}, barrier_sync_key_prefix=f"export_{here}"
    )
    failures.tell_once()
    handler = ocp.PyTreeCheckpointHandler(multiprocessing_options=alone)
    return ocp.Checkpointer(handler, multiprocessing_options=alone)


def _lines(vocabulary: Sequence[str]) -> bytes:
    return "".join(f"{word}\n" for word in vocabulary).encode("utf-8")


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _read_vocabulary(folder: epath.Path, expected: str | None) -> list[str] | None:
    if expected is None:
        return None
    path = folder / VOCABULARY
    if not path.is_file():
        raise UserError(f"{path}: no such file; export the biLM again")
    content = path.read_bytes()
    if _sha256(content) != expected:
        raise UserError(f"{path}: not the vocabulary that was exported; export the biLM again")
    return content.decode("utf-8").split("\n")[:-1]  # not splitlines(), since words may contain other line separators


def _check_vocabulary(vocabulary: Sequence[str] | None, shapes: Mapping[str, tuple[int, ...]], where: str) -> None:
    rows = shapes.get("softmax/kernel", (None,))[0]
    if vocabulary is None:
        return
    if rows is None or len(vocabulary) != rows:
        raise UserError(f"{where}: a vocabulary of {len(vocabulary)} words for a softmax of {rows or 'no'} rows")
    for word in vocabulary:
        if "\n" in word:
            raise UserError(f"{where}: the word {word!r} holds a line break; the vocabulary has one word per line")
