"""The command `export`."""

from __future__ import annotations

import argparse

from elmo_jax.cli.options import Commands, named_path


def add_command(commands: Commands[argparse.ArgumentParser]) -> None:
    """Adds `export`."""
    parser = commands.add_parser(
        "export",
        help="write a run's biLM for use elsewhere",
        description="Writes the frozen parameters, config and vocabulary of a run, for elmo_jax.load_bilm.",
        allow_abbrev=False,
    )
    parser.add_argument("model", type=named_path, metavar="RUN", help="a run's folder")
    parser.add_argument(
        "--step", default="last", metavar="N", help="a kept step, 'last' or 'best' (default: %(default)s)"
    )
    parser.add_argument("--out", type=named_path, metavar="DIR", help="where to (default: RUN/export)")
    parser.set_defaults(run=_export)


def _export(options: argparse.Namespace) -> int:
    from elmo_jax.checkpoints.open import export_run

    out, step = export_run(options.model, options.step, options.out)
    print(f"step {step:,} exported to {out}; load it with elmo_jax.load_bilm({str(out)!r})")
    return 0
