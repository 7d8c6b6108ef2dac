"""Defines the commands `export` and `export-hdf5`, which writes the published format."""

import argparse
import os
import sys

from elmo_jax import files
from elmo_jax.cli.options import Commands, add_choice, add_model_options, model_source
from elmo_jax.cli.values import anywhere, bilm, local
from elmo_jax.errors import UserError


def add_command(commands: Commands) -> None:
    """Adds the commands `export` and `export-hdf5`."""
    parser = commands.add_parser(
        "export",
        help="write a biLM for use elsewhere",
        description="Writes the frozen parameters, config and vocabulary of a biLM as one safetensors file, for"
        " elmo_jax.load_bilm and for other frameworks.",
    )
    add_model_options(parser)
    step = "of a run: a kept step, 'last' or 'best' (default: the exported one, or the last)"
    parser.add_argument("--step", metavar="N", help=step)
    out = "the file, whose name ends in .safetensors, or a folder for bilm.safetensors (default: RUN/export)"
    parser.add_argument("--out", type=anywhere, metavar="PATH", help=out)
    add_choice(parser, "--dtype", ("float32", "float16"), "type of the parameters in the file")
    add_choice(parser, "--softmax", ("keep", "drop"), "whether the softmax and its vocabulary are written")
    push = "also upload the export to the Hugging Face Hub, with a model card"
    parser.add_argument("--push", metavar="hf:USER/NAME", help=push)
    parser.set_defaults(run=_export)

    parser = commands.add_parser(
        "export-hdf5",
        help="convert a biLM to the published format",
        description="Writes a biLM without its softmax in the published format, which bilm-tf reads, and"
        " AllenNLP unless the command prints what it cannot read.",
    )
    parser.add_argument("model", type=bilm, metavar="MODEL", help="a run's folder or an export")
    parser.add_argument("options", type=local, metavar="options.json", help="the options to write")
    parser.add_argument("weights", type=local, metavar="weights.hdf5", help="the weights to write")
    parser.set_defaults(run=_export_hdf5)


def _export(options: argparse.Namespace) -> int:
    from elmo_jax.checkpoints.export import NAME, check_replaceable, export_bilm, export_file, find_export
    from elmo_jax.checkpoints.from_run import exported_step, load_run
    from elmo_jax.checkpoints.hub import check_pushable, push
    from elmo_jax.checkpoints.open import is_run, open_bilm
    from elmo_jax.runs.folder import locked_for

    source, out = model_source(options), options.out
    if options.push is not None:
        check_pushable(options.push)
    run = None if isinstance(source, tuple) or not is_run(source) else source
    if options.step is not None and run is None:
        raise UserError(f"--step: {options.model} is not a run, which alone has steps to choose from")
    if out is None:
        if run is None:
            open_bilm(source)  # raises if there is no biLM, which is the mistake to report first
            raise UserError("--out: give the folder, or the file whose name ends in .safetensors")
        out = files.parse_path(options.model) / "export"
    read = None if run is not None else find_export(options.model)
    if read is not None and os.path.realpath(read) == os.path.realpath(export_file(out)):
        raise UserError(f"--out: {out} is the export that is read, which would be overwritten; choose another place")
    file = export_file(out)
    owner = file.parent.parent if file.parent.name == "export" else file.parent
    own = run is not None and os.path.realpath(owner) == os.path.realpath(files.absolute(run))
    if file.name == NAME and is_run(owner) and not (own and owner != file.parent):
        raise UserError(f"--out: {out} would take the place of the model of the run {owner}; choose another folder")
    check_replaceable(out)  # before the biLM is read
    with locked_for(export_file(out)):
        bilm = open_bilm(source) if run is None else load_run(run, options.step)
        bilm = bilm.without_softmax() if options.softmax == "drop" else bilm
        if run is not None and export_file(out) == export_file(files.parse_path(run) / "export"):
            # All commands take it for the run's model, which for a fine-tuning is the best step.
            chosen = exported_step(files.absolute(run))  # which may be 0
            step = bilm.info["steps"] if chosen is None else chosen
            if bilm.vocabulary is None or options.dtype != "float32" or bilm.info["steps"] != step:
                what = f"holds the run's model, of step {step:,}, in float32 and with its softmax"
                raise UserError(f"{files.absolute(run) / 'export'}: {what}; give --out PATH for anything else")
        export_bilm(out, bilm.config, bilm.params, bilm.vocabulary, bilm.info, options.dtype)
    what = f"step {bilm.info['steps']:,}" if "steps" in bilm.info else str(options.model)
    print(f"{what} exported to {out}; load it with elmo_jax.load_bilm({str(out)!r})")
    if options.push is not None:
        push(export_file(out), options.push, bilm)
        print(f"uploaded; load it with elmo_jax.load_bilm({options.push!r})")
    return 0


def _export_hdf5(options: argparse.Namespace) -> int:
    from elmo_jax.checkpoints.hdf5 import unreadable_by_allennlp, write_hdf5
    from elmo_jax.checkpoints.open import open_bilm
    from elmo_jax.checkpoints.options import read_options

    paths = weights, architecture = options.weights, options.options
    if os.path.realpath(architecture) == os.path.realpath(weights):
        raise UserError(f"{architecture}: options and weights are two files; give each its own path")
    if architecture.suffix in (".hdf5", ".h5") or weights.suffix == ".json":
        raise UserError(f"{architecture} {weights}: expected first the options (.json) and then the weights (.hdf5)")
    bilm = open_bilm(options.model).without_softmax()
    if there := [path for path in paths if path.exists()]:
        try:
            if weights.exists():
                same = open_bilm((architecture, weights)).fingerprint == bilm.fingerprint
            else:  # as left by a process that was killed before the weights were complete
                same = read_options(architecture) == bilm.config
        except UserError:
            same = False
        if not same:
            raise UserError(f"{there[0]}: exists, and is not this biLM; choose another name or remove it")
    for path in paths:
        files.make_folder_of(path)
    write_hdf5(architecture, weights, bilm.config, bilm.params)
    if problems := unreadable_by_allennlp(bilm.config):
        print(f"elmo-jax: AllenNLP cannot read this biLM: {'; '.join(problems)}", file=sys.stderr)
    print(f"wrote {architecture} and {weights}")
    return 0
