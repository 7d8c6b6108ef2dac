"""Opens a biLM by its name, or from a run, an export or published weights, in the same way for all commands.

If a run has an export, that is the model; a warning says if the run has been trained further since. If a run has no
export, the model is its newest checkpoint that is intact.
"""

import logging
import os
import shutil
import zipfile

from etils import epath

from elmo_jax import files
from elmo_jax.checkpoints.export import NAME, PretrainedBiLM, find_export, read_export
from elmo_jax.checkpoints.hub import fetched
from elmo_jax.checkpoints.layout import fingerprint, flatten
from elmo_jax.checkpoints.manifest import trained_since
from elmo_jax.checkpoints.options import OPTIONS
from elmo_jax.errors import UserError
from elmo_jax.pretrained import packaged_names, packaged_path
from elmo_jax.runs.result import read_result
from elmo_jax.text_files import check_zip, reading

_log = logging.getLogger(__name__)

Path = str | os.PathLike[str]
BiLMSource = Path | tuple[Path, Path] | tuple[Path | None, Path, Path | None]

_EXPECTED = (
    "expected the name of a packaged biLM (%s), a run's folder, an export, hf:USER/NAME[@REVISION], a checkpoint"
    " of bilm-tf (its folder or model.ckpt-N), or published weights with their options (a folder or zip file with both;"
    " on the command line also WEIGHTS.hdf5 --options OPTIONS.json, in Python (options, weights))"
)


def open_bilm(source: BiLMSource) -> PretrainedBiLM:
    """Opens a biLM, from any source that `elmo_jax.load_bilm` accepts, and verifies it.

    Its `info["steps"]` is the step of the run that it was made at. Raises `UserError` if the source is not a biLM, is
    damaged, has another layout version, or is both the name of a packaged biLM and a file or folder.
    """
    if isinstance(source, tuple) and len(source) in (2, 3):
        return _published(*source)
    if not isinstance(source, (str, os.PathLike)):
        raise UserError(f"{source!r}: {_EXPECTED % ' or '.join(packaged_names())}")
    source = fetched(source)
    folder = files.absolute(source)
    if packaged := packaged_path(os.fspath(source)):
        if folder.exists():
            problem = f"the name of a packaged biLM, and also of {folder}"
            raise UserError(f"{source}: {problem}; for that, give its full path")
        return read_export(epath.Path(packaged))
    file = find_export(folder)
    if file is not None:
        bilm = read_export(file)
        if is_run(folder) and (exported := bilm.info.get("steps")) is not None:
            finished = (read_result(folder) or {}).get("steps", 0)
            if newest := trained_since(folder, max(exported, finished)):
                message = "%s: this is step %s, the run's export; its newest checkpoint is of step %s (elmo-jax export)"
                _log.warning(message, folder, f"{exported:,}", f"{newest:,}")
        return bilm
    from elmo_jax.checkpoints.bilm_tf import checkpoint_of

    if checkpoint := checkpoint_of(folder):
        return checkpoint.read()
    if folder.is_dir() and (weights := _weights_in(folder)):
        return _published(folder / OPTIONS, weights)
    if folder.is_file() and folder.suffix == ".zip":
        return _open_zip(folder)
    if other := _of_others(folder):
        raise UserError(f"{os.fspath(source)}: {other}")
    if is_run(folder):
        from elmo_jax.checkpoints.from_run import load_run

        return load_run(folder)
    if folder.is_file() and folder.suffix in (".hdf5", ".h5"):
        raise UserError(f"{os.fspath(source)}: published weights; give --options options.json too (in Python a pair)")
    what = "no such file or folder" if not folder.exists() else "a file" if folder.is_file() else "no biLM here"
    raise UserError(f"{os.fspath(source)}: {what}; {_EXPECTED % ' or '.join(packaged_names())}")


def _published(options: Path | None, weights: Path, vocabulary: Path | None = None) -> PretrainedBiLM:
    from elmo_jax.checkpoints.bilm_tf import checkpoint_of
    from elmo_jax.checkpoints.hdf5 import read_hdf5

    if checkpoint := checkpoint_of((options, weights, vocabulary)):
        return checkpoint.read()
    if vocabulary is not None or options is None:
        open_bilm(weights if options is None else (options, weights))  # raises for what cannot be opened at all
        raise UserError(f"--vocab {vocabulary}: has no effect, as {weights} is no checkpoint of bilm-tf; leave it out")
    model, params = read_hdf5(fetched(options), fetched(weights))
    return PretrainedBiLM(model, params, None, {}, fingerprint(flatten(params)))


def _weights_in(folder: epath.Path) -> epath.Path | None:
    weights = sorted(path for path in folder.glob("[!.]*") if path.suffix in (".hdf5", ".h5"))
    if not weights or not (folder / OPTIONS).is_file():
        return None
    if len(weights) > 1:
        names = ", ".join(path.name for path in weights)
        raise UserError(f"{folder}: has several weights ({names}); name one, with --options {folder / OPTIONS}")
    return weights[0]


def _open_zip(path: epath.Path) -> PretrainedBiLM:
    with files.temporary_folder() as folder, reading(path), zipfile.ZipFile(path) as archive:
        check_zip(archive)
        for entry in archive.infolist():
            base = os.path.basename(entry.filename)
            if base == OPTIONS or (base.endswith((".hdf5", ".h5")) and not base.startswith(".")):  # macOS adds such
                files.check_free_space(folder, entry.file_size, f"{base} of {path.name}")
                with archive.open(entry) as packed, (folder / base).open("xb") as file:
                    shutil.copyfileobj(packed, file)
        weights = _weights_in(epath.Path(folder))
        if weights is None:
            raise UserError(f"{path}: expected {OPTIONS} and weights (.hdf5) in it; unpack it, and give what is in it")
        return _published(folder / OPTIONS, weights)


def _of_others(path: epath.Path) -> str | None:
    """Returns what to do with a model of another program, or with an archive; None for what is neither."""
    if path.is_file() and path.suffix in (".tar", ".tgz", ".gz", ".bz2", ".xz"):
        return "an archive; unpack it, and give what is in it"
    if list(path.glob("model.ckpt*")) or (path.parent / f"{path.name}.data-00000-of-00001").exists():
        return "a checkpoint of bilm-tf without its .index; get that file too"
    if not path.is_dir():
        return None
    if any((path / name).exists() for name in ("char.dic", "encoder.pkl", "token_embedder.pkl")):
        return "a model of ELMoForManyLangs, which has another architecture and cannot be read"
    if any((path / name).exists() for name in ("weights.th", "pytorch_model.bin", "model.safetensors")):
        return "a model of AllenNLP or Transformers; of an ELMo in it, give the options and weights that it was made of"
    return None


def run_of(source: BiLMSource) -> epath.Path | None:
    """Returns the folder of the run that a biLM is in, or None if it is not in one."""
    if isinstance(source, tuple):
        return None
    folder = files.absolute(source)
    folder = folder.parent if folder.name == NAME else folder
    inside = folder.parent if folder.name == "export" else folder
    return inside if is_run(inside) else None


def is_run(path: Path) -> bool:
    """Returns whether a path is the folder of a run."""
    return (files.absolute(path) / "config.json").is_file()
