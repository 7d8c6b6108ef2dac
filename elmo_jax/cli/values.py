"""Defines the types of the command line's values, so that wrong values are refused before anything is loaded."""

import argparse
import functools
import glob
import math
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from etils import epath

from elmo_jax import files
from elmo_jax.errors import UserError
from elmo_jax.files import in_bucket
from elmo_jax.settings import LARGEST_INTEGER, Range

AnyPath = TypeVar("AnyPath", Path, epath.Path)

LONGEST = 1200  # the most characters of a message
_WHOLE = re.compile(r"[+-]?[0-9]{1,30}")  # Python itself would read 1_0 as 10


class Parser(argparse.ArgumentParser):
    """A parser that takes no abbreviations, and whose errors are `UserError`s, one line each."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **{"allow_abbrev": False, **options})

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{one_line(message)}; see: {self.prog} --help")


def one_line(text: str) -> str:
    """Returns a text that a terminal shows in one line, without line breaks and control characters; cuts a long one."""
    shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in " ".join(text.split()))
    return shown if len(shown) <= LONGEST else f"{shown[: LONGEST * 3 // 4]} … {shown[-LONGEST // 4 :]}"


def whole(least: int, most: int = LARGEST_INTEGER) -> Callable[[str], int]:
    """Returns the type of whole numbers in a range."""
    return functools.partial(_parsed, int, Range(least, most))


def number(least: float | None = None, most: float | None = None) -> Callable[[str], float]:
    """Returns the type of finite numbers in a range."""
    return functools.partial(_parsed, float, Range(least, most))


def _parsed(kind: Callable[[str], float], allowed: Range, text: str) -> Any:
    try:
        value = kind(text) if kind is float or _WHOLE.fullmatch(text) else math.nan  # which is in no range
    except ValueError:
        value = math.nan
    if value not in allowed:
        expected = str(allowed).replace("number", "whole number" if kind is int else "number")
        raise argparse.ArgumentTypeError(f"expected {expected}, got {text[:40]!r}")
    return value


def _path(function: Callable[[str], AnyPath]) -> Callable[[str], AnyPath]:
    def parse(text: str) -> AnyPath:
        if text == "-":
            hint = "which is no standard stream here; a file '-' is ./-"
            raise argparse.ArgumentTypeError(f"expected a path, got '-', {hint}")
        try:
            return function(text)
        except UserError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse


def _fetched(name: str) -> str | os.PathLike[str]:
    from elmo_jax.checkpoints.hub import fetched  # downloads what is on the Hub, `hf:USER/NAME`, or at a URL

    return fetched(name)


local = _path(files.local)  # a path on this machine, which may begin with `~`
anywhere = _path(files.parse_path)  # a path on this machine or in a bucket (`gs://…`)
bilm = _path(lambda name: files.parse_path(_fetched(name)))
downloaded = _path(lambda name: files.local(_fetched(name)))


_OF_RUNS = ("config.json", "corpus.json", "inputs.json", "metrics.jsonl", "result.json")


def output(text: str) -> Path:
    """Returns the path of a file to be written, whose folder must exist, so that nothing is computed in vain."""
    path = local(text)
    try:
        if path.is_dir():
            raise argparse.ArgumentTypeError(f"expected the name of a file, got the folder {text!r}")
        if not path.parent.is_dir():
            raise argparse.ArgumentTypeError(f"no folder {str(path.parent)!r}; make it first")
        real = Path(os.path.realpath(path))
        if real.is_file() and str(path).startswith(("/dev/std", "/dev/fd/")):
            raise argparse.ArgumentTypeError(f"{text!r} is {str(real)!r}, which would be replaced; name another file")
        if real.name in _OF_RUNS and (real.with_name("config.json").exists() or real.with_name("corpus.json").exists()):
            raise argparse.ArgumentTypeError(f"{text!r} is a file of a run or a corpus; choose another name")
        # An existing file is replaced, which needs the permission to write into its folder; a device is not.
        is_device = path.exists() and not path.is_file()
        if not os.access(path if is_device else path.parent, os.W_OK):
            raise argparse.ArgumentTypeError(f"no permission to write {text!r}")
    except OSError as error:  # such as too long a name
        raise argparse.ArgumentTypeError(f"{text!r} cannot be written ({error.strerror})") from None
    return path


def source(text: str) -> str:
    """Returns a source of text: a path, a pattern or a name, which may follow `NAME=`."""
    anywhere(files.named(text)[1])
    return text


def check_distinct(outputs: dict[str, Path | None], inputs: dict[str, Any], texts: Sequence[str] = ()) -> None:
    """Raises `UserError` if a file to be written is another one of them, or a file that is read.

    All are by the names of their options: `outputs`, the files to be written, and `inputs`, the files and folders that
    are read. `texts` are the sources of text (files, folders, globs) of --data.
    """
    known = {os.path.realpath(path): name for name, path in inputs.items() if not in_bucket(path)}
    folders: dict[str, str] = {}  # of text, whose files are all read
    for text in texts:
        pattern = str(files.parse_path(files.named(text)[1]))
        for match in [pattern] if os.path.exists(pattern) else glob.glob(pattern, recursive=True):
            real_path = os.path.realpath(match)
            known[real_path] = f"--data {text}"
            if os.path.isdir(real_path):
                folders[real_path] = known[real_path]
    for name, path in outputs.items():
        if path is None or (path.exists() and not path.is_file()):  # a device, such as /dev/null
            continue
        real_path = os.path.realpath(path)
        above = next((folders[str(parent)] for parent in Path(real_path).parents if str(parent) in folders), None)
        if real_path in known or (above and path.exists()):
            raise UserError(f"{name}: {path} is the file of {known.get(real_path, above)}, which would be overwritten")
        known[real_path] = name


def tolerant_output(encoding: str | None = None) -> None:
    """Makes standard output, in its own or a given encoding, print what that does not have with escapes."""
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(encoding=encoding, errors="backslashreplace")
