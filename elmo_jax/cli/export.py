"""Defines the command `export`."""

from __future__ import annotations

import argparse

from etils import epath

from elmo_jax.cli.options import Commands


def add_command(commands: Commands[argparse.ArgumentParser]) -> None:
    """Adds the command `export`."""
    parser = commands.add_parser(
        "export",
        help="write the biLM of a run for use elsewhere",
        description="Writes the frozen parameters, config and vocabulary of a run, for elmo_jax.load_bilm.",
        allow_abbrev=False,
    )
    parser.add_argument("model", type=epath.Path, metavar="RUN", help="a run's folder")
    parser.add_argument(
        "--step",
        default="last",
        metavar="N",
        help="the step of a kept checkpoint, 'last' or 'best' (default: %(default)s)",
    )
    parser.add_argument("--out", type=epath.Path, metavar="DIR", help="the export's folder (default: RUN/export)")
    parser.set_defaults(run=_export)


def _export(options: argparse.Namespace) -> int:
    from elmo_jax.checkpoints.open import export_run

    out, step = export_run(options.model, options.step, options.out)
    print(f"step {step:,} exported to {out}; load it with elmo_jax.load_bilm({str(out)!r})")
    return 0
