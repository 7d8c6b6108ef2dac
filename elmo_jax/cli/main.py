"""Defines the command `elmo-jax`."""

import os
import re
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from elmo_jax.distributed.cpu import keep_freed_memory
from elmo_jax.environment import cache_folder, keep_compiled_programs
from elmo_jax.errors import TryAgain, UserError, exit_status, of_machine
from elmo_jax.interrupts import end_of_command, end_on_interrupt, kept
from elmo_jax.version import __version__

if TYPE_CHECKING:
    import argparse

DESCRIPTION = """\
Pretrains, fine-tunes, evaluates and exports ELMo's bidirectional language model (biLM), computes
word vectors with it, and trains task models on them. `COMMAND --help` describes a command.
"""
EPILOG = """\
To pretrain and evaluate a biLM:
  elmo-jax prepare sotu --out data/sotu
  elmo-jax pretrain --config experiments/pretrain_sotu_tiny.py --workdir runs/sotu_tiny
  elmo-jax evaluate runs/sotu_tiny --data my_text.txt
"""

# The modules of `elmo_jax.cli` that define a command, in the order of the help.
COMMANDS = "prepare train export embed task demo settings"
LEAST_ADDRESS_SPACE = 4_000_000_000  # bytes; with 3.1e9 the training of a tiny biLM hangs on 2 cores
MOST_PROGRAMS = 4_000_000_000  # bytes of compiled programs that are kept for this user
_ENCODING = sys.getfilesystemencoding()
_NOT_UTF8 = "" if _ENCODING == "utf-8" else f"the locale's encoding is {_ENCODING}, not UTF-8; set PYTHONUTF8=1"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command with some arguments; unless given, with those of this process, which then ends at a signal.

    Returns the exit status: 0 for success, 2 for a mistake of the user, 75 if another process was lost or a bucket did
    not answer when a run was opened or saved, and 128 plus the number of the signal that stopped a run.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    keep_freed_memory(per_thread=given[:1] in (["pretrain"], ["finetune"]))  # before the first thread
    if arguments is not None:
        return _run(given)
    end_on_interrupt()
    keep_compiled_programs(cache_folder(), MOST_PROGRAMS)
    flags = ("JAX_ENABLE_X64", "JAX_NUMPY_DTYPE_PROMOTION", "JAX_NUMPY_RANK_PROMOTION", "JAX_TRANSFER_GUARD")
    for flag in [name for name in os.environ if name.startswith(flags)]:
        os.environ.pop(flag)  # which are meant for other programs; the numbers here are the same without them
    try:
        return _run(given, check_flags=True)
    finally:
        end_of_command()


def _run(arguments: Sequence[str], check_flags: bool = False) -> int:
    # These imports take a while, in which Ctrl-C must work.
    import logging

    from elmo_jax.cli.values import one_line, tolerant_output

    tolerant_output()
    try:
        options = _options(arguments)
        if check_flags:
            _check_xla_flags()
            if arguments[0] not in ("prepare", "settings"):
                _check_address_space()
        logging.basicConfig(level=logging.WARNING, format="%(message)s")
        return int(options.run(options))
    except (UserError, TryAgain, KeyboardInterrupt) as error:
        _complain(one_line(str(error)) or f"interrupted{kept()}")
        return exit_status(error)
    except BrokenPipeError:  # the reader of the output, such as head, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is still to be flushed goes nowhere
        return 128 + signal.SIGPIPE
    except Exception as error:
        if (line := of_machine(error)) is None:
            raise
        _complain(one_line(line))
        return 2


def _complain(line: str) -> None:
    progress = sys.modules.get("elmo_jax.runs.progress")  # imported by commands that have one
    progress.say(f"elmo-jax: {line}") if progress else print(f"elmo-jax: {line}", file=sys.stderr)


def _check_xla_flags() -> None:
    if os.environ.get("XLA_FLAGS"):
        import subprocess

        probe = [sys.executable, "-c", "import jax; jax.config.update('jax_platforms', 'cpu'); jax.devices()"]
        ended = subprocess.run(probe, capture_output=True, text=True, errors="replace", check=False)
        refusals = r"Unknown flags? in XLA_FLAGS: .*|Couldn't interpret value .*|Could not open file .*"
        refusal = re.search(refusals, ended.stderr)
        if ended.returncode and refusal:
            raise UserError(f"XLA_FLAGS: {refusal[0].removesuffix('.')}; correct it, or unset XLA_FLAGS")


def _check_address_space() -> None:
    import resource

    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY and limit < LEAST_ADDRESS_SPACE:
        raise UserError(
            f"the virtual memory of this process is limited to {limit / 1e9:.1f} GB (ulimit -v); JAX reserves more than"
            f" it uses and needs {LEAST_ADDRESS_SPACE / 1e9:.0f} GB: remove the limit, or limit the resident memory"
        )


def _parser() -> "argparse.ArgumentParser":
    import argparse

    from elmo_jax.cli.values import Parser

    raw = argparse.RawDescriptionHelpFormatter
    parser = Parser("elmo-jax", description=DESCRIPTION, epilog=EPILOG, formatter_class=raw)
    parser.add_argument("--version", action="version", version=f"elmo-jax {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in COMMANDS.split():
        import_module(f"elmo_jax.cli.{command}").add_command(commands)
    return parser


def _options(arguments: Sequence[str]) -> "argparse.Namespace":
    parser = _parser()
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError:
            parser.error(f"{os.fsencode(argument)!r}: {_NOT_UTF8 or 'expected text in UTF-8; rename the file'}")
        if "\0" in argument:
            parser.error(f"{argument!r}: not a path or text, since it holds a zero byte")
        if argument.startswith("-") and argument.endswith("=--"):  # argparse would take the value for no value
            parser.error(f"{argument}: expected a value after the =")
    options, rest = parser.parse_known_args(arguments)
    overrides = [argument for argument in rest if argument.startswith("--config.")]
    strangers = [argument for argument in rest if argument not in overrides]
    if strangers or (overrides and not getattr(options, "takes_settings", False)):
        parser.error(f"unknown arguments: {' '.join(strangers or overrides)}")
    options.overrides = overrides
    return options
