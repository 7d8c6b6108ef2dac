"""Defines the command `export`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from etils import epath

from elmo_jax.cli.options import Commands, add_model_options, model_source
from elmo_jax.cli.values import anywhere, check_distinct
from elmo_jax.errors import UserError

if TYPE_CHECKING:
    from elmo_jax.checkpoints.export import PretrainedBiLM
    from elmo_jax.checkpoints.open import BiLMSource


def add_command(commands: Commands[argparse.ArgumentParser]) -> None:
    """Adds the command `export`."""
    parser = commands.add_parser(
        "export",
        help="write a biLM for use elsewhere",
        description="Writes the frozen parameters, config and vocabulary of a biLM, for elmo_jax.load_bilm: as an"
        " export, a folder that Orbax reads too, or as one safetensors file, which other frameworks read.",
        allow_abbrev=False,
    )
    add_model_options(parser)
    parser.add_argument("--step", metavar="N", help="of a run: a kept step, 'last' or 'best' (default: last)")
    parser.add_argument("--out", type=anywhere, metavar="PATH", help="the folder or file (default: RUN/export)")
    parser.add_argument("--format", choices=("export", "safetensors"), default="export", help="(default: %(default)s)")
    parser.add_argument(
        "--dtype",
        choices=("float32", "float16"),
        help="type of the parameters in a safetensors file (default: float32)",
    )
    parser.add_argument(
        "--softmax",
        choices=("keep", "drop"),
        default="keep",
        help="whether the softmax and its vocabulary are written (default: %(default)s)",
    )
    parser.set_defaults(run=_export)


def _export(options: argparse.Namespace) -> int:
    from elmo_jax.checkpoints.export import export_bilm
    from elmo_jax.checkpoints.export_folder import check_replaceable
    from elmo_jax.checkpoints.open import is_run, open_bilm
    from elmo_jax.checkpoints.safetensors import write_safetensors
    from elmo_jax.files import absolute, place
    from elmo_jax.runs.folder import locked_for

    source, out = model_source(options), options.out
    run = None if isinstance(source, tuple) or not is_run(source) else source
    if options.step is not None and run is None:
        raise UserError(f"--step: {options.model} is not a run, which alone has steps to choose from")
    if options.dtype is not None and options.format != "safetensors":
        raise UserError("--dtype: only a safetensors file has one; an export is always float32")
    if out is None:
        if run is None:
            open_bilm(source)  # raises if there is no biLM, which is the mistake to tell first
        if run is None or options.format == "safetensors":
            raise UserError("--out: give the folder, or the file whose name ends in .safetensors")
        out = place(options.model) / "export"
    if options.format == "export":
        out = place(out)
        check_replaceable(out)  # before the biLM is read
    else:
        _check_safetensors(out, options.model)
    with locked_for(out):
        bilm = _read(options, source, run)
        if run is not None and absolute(out) == absolute(run) / "export":
            _check_result(run, bilm)
        if options.format == "safetensors":
            write_safetensors(Path(out), bilm, options.dtype or "float32")
        else:
            export_bilm(out, bilm.config, bilm.params, bilm.vocabulary, bilm.info)
    what = f"step {bilm.info['steps']:,}" if "steps" in bilm.info else str(options.model)
    print(f"{what} exported to {out}; load it with elmo_jax.load_bilm({str(out)!r})")
    return 0


def _check_safetensors(out: Path | epath.Path, model: str) -> None:
    """Raises `UserError` unless a safetensors file may be written to `out`, in place of nothing or of another biLM."""
    from elmo_jax.checkpoints.safetensors import read_safetensors
    from elmo_jax.files import in_bucket

    if in_bucket(out):
        raise UserError(f"--out: {out}: a safetensors file is written to a disk; write it there, and copy it")
    check_distinct({"--out": Path(out)}, {"MODEL": model})
    if Path(out).is_file():
        try:
            read_safetensors(Path(out))
        except UserError as error:
            raise UserError(f"--out: {out}: holds something else than a biLM ({error}); choose another file") from None


def _read(options: argparse.Namespace, source: BiLMSource, run: Path | epath.Path | str | None) -> PretrainedBiLM:
    """Returns the biLM that is to be written."""
    from elmo_jax.checkpoints.open import load_run, open_bilm
    from elmo_jax.checkpoints.safetensors import without_softmax

    bilm = open_bilm(source) if run is None else load_run(run, options.step or "last")
    return without_softmax(bilm) if options.softmax == "drop" else bilm


def _check_result(run: Path | epath.Path | str, bilm: PretrainedBiLM) -> None:
    """Raises `UserError` if a biLM must not become the export of its run, which all commands take for the run's model.

    The model of a run that is complete is what its training exported, which for a fine-tuning is the best step.
    """
    from elmo_jax.checkpoints.open import trained_since
    from elmo_jax.files import absolute
    from elmo_jax.runs.result import read_result

    folder = absolute(run)
    if bilm.vocabulary is None:
        raise UserError(f"--softmax drop: {folder / 'export'} is the run's model, with its softmax; give --out PATH")
    result, step = read_result(folder), bilm.info["steps"]
    if result is None or trained_since(folder, result["steps"]):
        return
    exported = result.get("exported_step", result["steps"])
    if step != exported:
        raise UserError(
            f"{folder / 'export'} is the model of a complete run, of step {exported:,}; give --out PATH for that of"
            f" step {step:,}"
        )
