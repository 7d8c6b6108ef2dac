"""Writes and reads exports: a biLM's parameters, config and vocabulary in one safetensors file.

The tensors are named by their key paths (`forward/layer_0/kernel`), and other frameworks read them. The metadata has
the key `elmo_jax` with a JSON object (version of the layout, architecture, fingerprint, vocabulary, which is null
without a softmax, and provenance), and the key `sha256` with the SHA-256 of that object's text. The fingerprint covers
the names, shapes and numbers of the tensors, so nothing else in a file needs to be verified.

Numbers may be stored in float16; they are float32 once they have been read, and the fingerprint is that of the numbers
as they are read. This module depends neither on training nor on Orbax.
"""

import dataclasses
import functools
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, Self

import jax.numpy as jnp
import numpy as np
import safetensors.numpy
from etils import epath
from safetensors import SafetensorError

from elmo_jax import files
from elmo_jax.checkpoints.layout import LAYOUT_VERSION, check_shapes, fingerprint, flatten, unflatten
from elmo_jax.config import ModelConfig
from elmo_jax.errors import UserError
from elmo_jax.runs.lock import store_errors
from elmo_jax.runs.progress import Progress
from elmo_jax.settings import from_dict, to_dict

NAME, SUFFIX = "bilm.safetensors", ".safetensors"
# Keys of the provenance: the source model's fingerprint and provenance, and the step of a checkpoint of bilm-tf.
FINETUNED_FROM, GLOBAL_STEP = "finetuned_from", "global_step"
_KEY, _DIGEST = "elmo_jax", "sha256"
_HEADER_BYTES = 100_000_000  # the most that safetensors reads
# The entries of the JSON object and their types, besides `layout`.
_DESCRIPTION: dict[str, Any] = {"model": dict, "fingerprint": str, "vocabulary": list | None, "info": dict}
# What `info` may have that is read again, and its types.
_INFO = {"settings": dict, "steps": int, "language": str, "evaluation_batch_size": int, FINETUNED_FROM: dict}

Dtype = Literal["float32", "float16"]


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class PretrainedBiLM:
    """A pretrained biLM.

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
        each = "per direction" if len(self.config.directions) > 1 else "(forward only)"
        bias = self.params.get("softmax", {}).get("bias")
        softmax = "no softmax" if bias is None else f"softmax over {len(bias):,} words"
        dense = sum(leaf.size for key, leaf in flatten(self.params).items() if not key.startswith("softmax/"))
        lines = [
            f"{type(self).__name__} {self.fingerprint[:12]}: {dense:,} parameters, {softmax}",
            f"{lstm.layers} LSTM layers {each} with {lstm.cells:,} cells and projection {lstm.projection:,};"
            f" {cnn.features:,} character filters, {cnn.highways} highway layers",
        ]
        return "\n  ".join([*lines, *_history(self.info)])

    @property
    def language(self) -> str:
        """The ISO 639-1 code of the language of the text, whose rules tokenize other text; English if not recorded."""
        return str(self.info.get("language", "en"))

    @property
    def precision_of_training(self) -> str:
        """The precision of the matrix products in training, with which its perplexities were measured."""
        return str(self.info.get("settings", {}).get("train", {}).get("precision", "float32"))

    @functools.cached_property
    def vectors_fingerprint(self) -> str:
        """The fingerprint of all that vectors depend on: the parameters without the softmax, and the architecture."""
        own = self.without_softmax().fingerprint if "softmax" in self.params else self.fingerprint
        cnn, lstm = self.config.char_cnn, self.config.lstm
        # These change vectors, but neither the shape nor the name of a parameter; ELMo's values are left out.
        others = (cnn.activation, cnn.max_characters, lstm.cell_clip, lstm.projection_clip, lstm.skip_connections)
        return own if others == ("relu", 50, 3.0, 3.0, True) else files.digest_of([own, others])

    def without_softmax(self) -> Self:
        """Returns this biLM without its softmax and vocabulary."""
        params = {name: tree for name, tree in self.params.items() if name != "softmax"}
        return dataclasses.replace(self, params=params, vocabulary=None, fingerprint=fingerprint(flatten(params)))


def _history(info: Mapping[str, Any]) -> Iterator[str]:
    """Yields what the provenance says, as far as it is of the form that a training writes; a user may write others."""
    stage: Any = info
    trained = "trained"
    while isinstance(stage, Mapping):
        steps, tokens = stage.get("steps"), stage.get("tokens_seen")
        if isinstance(steps, int):
            seen = f", {tokens:,} tokens" if isinstance(tokens, int) else ""
            yield f"{trained} in the run {stage.get('experiment')!r}: {steps:,} steps{seen}"
        stage, trained = stage.get(FINETUNED_FROM), "before that, trained"
    heldout = info.get("heldout_perplexity")
    if isinstance(heldout, dict) and isinstance(heldout.get("average"), float):
        yield f"held-out perplexity {heldout['average']:,.1f}"
    sources = info.get("corpus_sources") or info.get("sources")
    if isinstance(sources, list):
        names = [str(source.get("text") if isinstance(source, dict) else source) for source in sources]
        yield f"text: {', '.join(names[:8])}{', …' if len(names) > 8 else ''}"


def export_file(path: str | os.PathLike[str]) -> epath.Path:
    """Returns the file of an export that is given as that file, `….safetensors`, or as its folder."""
    folder = files.absolute(path)
    return folder if folder.suffix == SUFFIX else folder / NAME


def find_export(path: str | os.PathLike[str]) -> epath.Path | None:
    """Returns the file of an export that is given as that file, as its folder or as its run; None if there is none."""
    folder = files.absolute(path)
    candidates = [folder] if folder.suffix == SUFFIX else [folder / NAME, folder / "export" / NAME]
    return next((file for file in candidates if file.is_file()), None)


def check_replaceable(path: str | os.PathLike[str]) -> None:
    """Raises `UserError` unless an export may be written to `path`, in place of nothing or of another export."""
    file = export_file(path)
    if file.parent.is_file():
        raise UserError(f"{file.parent}: is a file; give a folder, or the name of a file that ends in {SUFFIX}")
    if not file.exists():
        return
    try:
        _read_description(file)
    except UserError as error:
        problem = "holds something else than an export, or a damaged one"
        raise UserError(f"{file}: {problem}; choose another place or remove it") from error


def export_bilm(
    path: str | os.PathLike[str],
    model: ModelConfig,
    params: Mapping[str, Any],
    vocabulary: Sequence[str] | None = None,
    info: Mapping[str, Any] | None = None,
    dtype: Dtype = "float32",
) -> str:
    """Writes an export; an older one in its place is replaced once the new one is complete.

    In a run of several processes, only one may call this function.

    Args:
      path: the file to make, whose name ends in `.safetensors`, or a folder, for `bilm.safetensors` in it.
      model: the architecture.
      params: the parameter tree, of NumPy arrays or of JAX arrays that are fully addressable by this process.
      vocabulary: the words of the softmax's rows; None for a tree without softmax.
      info: the provenance, to be stored as JSON.
      dtype: the type of the stored numbers. The rounding to float16 has a relative error of at most 2^-11.

    Returns:
      The fingerprint of the parameters as they are read.

    Raises:
      UserError: there is something else or it cannot be written, `params` or `vocabulary` do not fit `model`, a
        parameter is not a finite number in `dtype`, or `info` cannot be written as JSON.
    """
    check_replaceable(path)
    file = export_file(path)
    with Progress(f"exporting to {file}"):
        stored = _stored(params, dtype, f"export to {file}")
        shapes = {key: leaf.shape for key, leaf in stored.items()}
        check_shapes(shapes, model, f"export to {file}")
        _check_vocabulary(vocabulary, shapes.get("softmax/bias"), f"export to {file}")
        _check_info(info or {}, f"export to {file}")
        digest = fingerprint({key: leaf.astype(np.float32, copy=False) for key, leaf in stored.items()})
        description = {
            "layout": LAYOUT_VERSION,
            "model": to_dict(model),
            "fingerprint": digest,
            "vocabulary": None if vocabulary is None else list(vocabulary),
            "info": dict(info or {}),
        }
        try:
            text = json.dumps(description, ensure_ascii=False)
            metadata = {_KEY: text, _DIGEST: hashlib.sha256(text.encode()).hexdigest()}
        except (TypeError, ValueError, RecursionError) as error:
            raise UserError(f"export to {file}: info or a word cannot be written as JSON ({error})") from None
        with store_errors(file):
            file.parent.mkdir(parents=True, exist_ok=True)
            files.write_bytes(file, safetensors.numpy.save(stored, metadata))
        return digest


def _stored(params: Mapping[str, Any], dtype: Dtype, where: str) -> dict[str, np.ndarray]:
    stored = {}
    for key, leaf in flatten(params).items():
        array = np.asarray(leaf)
        with np.errstate(over="ignore"):
            stored[key] = array.astype(dtype, order="C", copy=False)  # stored as they lie in memory
        if not jnp.issubdtype(array.dtype, jnp.floating) or not np.isfinite(stored[key]).all():
            expected = f"expected floating-point numbers, all finite in {dtype}"
            raise UserError(f"{where}: parameter '{key}' ({array.dtype}): {expected}")
    return stored


def _check_vocabulary(vocabulary: Sequence[str] | None, softmax: tuple[int] | None, where: str) -> None:
    words, rows = "no" if vocabulary is None else len(vocabulary), "no" if softmax is None else softmax[0]
    if words != rows:
        raise UserError(f"{where}: a vocabulary of {words} words for a softmax of {rows} rows")
    for word in vocabulary or ():
        if not isinstance(word, str) or "\n" in word:
            raise UserError(f"{where}: the vocabulary has {word!r}, which is no word; expected text in one line")


def read_export(file: epath.Path) -> PretrainedBiLM:
    """Reads and verifies the file of an export; raises `UserError` for what is none, damaged or of another version."""
    description = _read_description(file)
    with Progress(f"reading {file}"):
        try:
            with store_errors(file):
                content = file.read_bytes()
            stored = safetensors.numpy.load(content)
        except (SafetensorError, KeyError, ValueError) as error:  # KeyError: a type that NumPy does not have
            raise UserError(f"{file}: damaged ({' '.join(str(error).split())}); export the biLM again") from None
        flat = {key: leaf.astype(np.float32, copy=False) for key, leaf in stored.items()}
        actual = fingerprint(flat)
    if actual != description["fingerprint"]:
        raise UserError(f"{file}: damaged (the numbers are not those that were written); export the biLM again")
    model = from_dict(description["model"], ModelConfig, f"{file}: model")
    check_shapes({key: leaf.shape for key, leaf in flat.items()}, model, str(file))
    _check_vocabulary(description["vocabulary"], getattr(flat.get("softmax/bias"), "shape", None), str(file))
    for key, leaf in flat.items():
        if not np.isfinite(leaf).all():
            raise UserError(f"{file}: parameter '{key}' has numbers that are not finite; export an earlier step")
    return PretrainedBiLM(model, unflatten(flat), description["vocabulary"], description["info"], actual)


def _read_description(file: epath.Path) -> dict[str, Any]:
    try:
        with store_errors(file), file.open("rb") as opened:
            header = opened.read(min(int.from_bytes(opened.read(8), "little"), _HEADER_BYTES))
        metadata = json.loads(header)["__metadata__"]
        text, digest = str(metadata[_KEY]), metadata[_DIGEST]
        description: dict[str, Any] = json.loads(text)
        layout = description.get("layout")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        problem = "not a biLM of elmo_jax, or a damaged one"
        raise UserError(f"{file}: {problem}; give one that elmo-jax export wrote") from None
    if digest != hashlib.sha256(text.encode()).hexdigest():
        raise UserError(f"{file}: damaged (the metadata '{_KEY}' is not what was written); export the biLM again")
    if layout != LAYOUT_VERSION:
        problem = f"layout version {layout}, this elmo_jax reads {LAYOUT_VERSION}"
        raise UserError(f"{file}: {problem}; export the biLM again, or use the elmo_jax that wrote it")
    for key, kind in _DESCRIPTION.items():
        if not isinstance(description.get(key, ...), kind):
            raise UserError(f"{file}: '{_KEY}' in its metadata has no valid '{key}'; export the biLM again")
    _check_info(description["info"], str(file))
    return description


def _check_info(info: Mapping[str, Any], where: str) -> None:
    stage: Any = info
    while stage is not None:
        for key, kind in _INFO.items():
            if key in stage and not isinstance(stage[key], kind):
                raise UserError(f"{where}: '{key}' in its info: expected {kind.__name__}, got {stage[key]!r:.80}")
        stage = stage.get(FINETUNED_FROM)
    if not isinstance(info.get("settings", {}).get("train", {}), dict):
        raise UserError(f"{where}: 'settings' in its info: expected those of a training")
