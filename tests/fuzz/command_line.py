"""Hands every option of every command values that are empty, negative, huge, missing, in the way or of another type.

The parser is walked, so a new command is covered as soon as it is there.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

from elmo_jax.cli import main as command
from elmo_jax.config import Config
from elmo_jax.settings import walk
from tests.fuzz.things import Ended, run

NUMBERS = ("", "-5", "-1", "0", "1", "1.5", "nan", "inf", "-inf", "1e99", "9" * 40, "x", "0x10", "٣", " 7")
PATHS = (
    *("", ".", "nowhere", "nowhere/x", "{things}/text.txt/x", "{things}", "{things}/text.txt", "a\0b", "~nouser/x"),
    *("file:///tmp/x", "s3://bucket/x", "gs://", "caf\udce9.txt", "n" * 300, "two\nlines", "/dev/null"),
    *("-", "--", "💥"),
)
WORDS = ("", "nonsense", "\0", "\udce9", "-", "a,b", "1,nan", "💥", "x" * 5000)
SETTINGS = ("", "-1", "0", "1", "2147483647", "99999999999999999999", "1e400", "nan", "-inf", "x", "True", "None",
            "()", "((1,2),)", "[1", "{}", "'", "a\0b", "\udce9", "💥")  # fmt: skip
# Options that stop a command from doing much where a value is accepted.
BASES = {
    "prepare": ["{things}/text.txt", "--out", "new", "--workers", "1"],
    "pretrain": ["--config", "{things}/small.py", "--workdir", "{things}/run"],
    "finetune": ["--from", "{things}/out", "--data", "{things}/text.txt", "--workdir", "{things}/tuned",
                 "--epochs", "0", "--workers", "1"],
    "evaluate": ["{things}/out", "--data", "{things}/corpus"],
    "export": ["{things}/run", "--out", "new"],
    "export-hdf5": ["{things}/out", "o.json", "w.hdf5"],
    "embed": ["{things}/out", "{things}/words.txt", "new.hdf5"],
    "neighbours": ["{things}/out", "{things}/few.txt", "--word", "house", "--format", "lines"],
    "settings": ["{things}/small.py"],
    "task train": ["--config", "nowhere.py", "--workdir", "new"],
    "task evaluate": ["{things}/task", "--data", "{things}/problem/dev"],
    "task predict": ["{things}/task", "--text", "the house"],
    "compile": ["--config", "nowhere.py", "--topology", "cpu:1"],
}  # fmt: skip


@dataclasses.dataclass
class Counts:
    """What the cases came to; `faults` holds a line and an account for each."""

    cases: int = 0
    refusals: int = 0
    successes: int = 0
    faults: list[tuple[list[str], str]] = dataclasses.field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.cases} cases: {self.refusals} refused, {self.successes} succeeded, {len(self.faults)} faults"


def commands() -> dict[str, argparse.ArgumentParser]:
    """The parsers of all commands by their names, `task train` and the like included."""
    actual: dict[str, argparse.ArgumentParser] = {}

    def visit(parser: argparse.ArgumentParser, name: str) -> None:
        inner = [action for action in parser._actions if isinstance(action.choices, dict)]
        for action in inner:
            for key, child in action.choices.items():
                visit(child, f"{name} {key}".strip())
        if not inner:
            actual[name] = parser

    visit(command._parser(), "")
    return actual


def options_of(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """All options and positional arguments, but for those that print and end."""
    ending = (argparse._HelpAction, argparse._VersionAction)
    return [action for action in parser._actions if not isinstance(action, ending)]


def base(name: str, parser: argparse.ArgumentParser) -> list[str]:
    """A command line that is well formed; of a command that is not in `BASES`, with things that do not exist."""
    if name in BASES:
        return BASES[name]
    actual: list[str] = []
    for action in options_of(parser):
        if action.required and action.nargs not in ("?", "*"):
            value = str(next(iter(action.choices))) if action.choices else "nowhere"
            actual += [*action.option_strings[-1:], value]
    return actual


def values_of(action: argparse.Action) -> tuple[str, ...]:
    """What is handed to an option."""
    kind = getattr(action.type, "__qualname__", "str")
    if kind.startswith(("whole", "number", "int", "float")):
        return NUMBERS
    if kind in ("local", "anywhere", "output", "source", "Path"):
        return PATHS
    return (*WORDS, *PATHS[:9]) if not action.choices else WORDS


def replaced(arguments: list[str], parser: argparse.ArgumentParser, action: argparse.Action, value: str) -> list[str]:
    """A command line with one option, or one positional argument, of another value."""
    if action.option_strings:
        name = action.option_strings[-1]
        kept = list(arguments)
        if name in kept:
            del kept[kept.index(name) : kept.index(name) + 2]
        return [*kept, name] if action.nargs == 0 else [*kept, f"{name}={value}"]
    positional = [a for a in options_of(parser) if not a.option_strings]
    kept = list(arguments)
    position = positional.index(action)
    return [*kept[:position], value, *kept[position + 1 :]]


def all_cases() -> Iterator[list[str]]:
    """Every option of every command with every value, options left out, and every setting with every value."""
    for name, parser in commands().items():
        arguments = base(name, parser)
        yield [*name.split(), *arguments]
        yield name.split()
        yield [*name.split(), *arguments, "--nonsense"]
        for position in range(len(arguments)):
            yield [*name.split(), *arguments[:position]]
        for action in options_of(parser):
            for value in values_of(action):
                yield [*name.split(), *replaced(arguments, parser, action, value)]
        if parser.get_default("takes_settings"):
            for text in ("--config.", "--config.=1", "--config.x=1", "--config.train", "--config.train=1", "--config"):
                yield [*name.split(), *arguments, text]
    for key, *_ in walk(Config()):
        for value in SETTINGS:
            yield ["settings", f"--config.{key}={value}"]
    for key, value in (("data.corpus", "{things}/text.txt"), ("data.corpus", "a\0b"), ("data.corpus", "{things}")):
        yield ["pretrain", "--config", "{things}/small.py", "--workdir", "new", f"--config.{key}={value}"]


def pairs(chance: random.Random) -> list[str]:
    """A random command with several random values."""
    name, parser = chance.choice(sorted(commands().items()))
    arguments = list(base(name, parser))
    for _ in range(chance.randrange(1, 4)):
        action = chance.choice(options_of(parser) or [argparse.Action([], "none")])
        if action.option_strings or arguments:
            arguments = replaced(arguments, parser, action, chance.choice(values_of(action)))
    return [*name.split(), *arguments]


def few_cases(number: int, seed: int = 0) -> list[list[str]]:
    """A selection that takes seconds: of each command its mistakes that are found before any work."""
    quick = [case for case in all_cases() if is_quick(case)]
    return random.Random(seed).sample(quick, min(number, len(quick)))


def is_quick(case: list[str]) -> bool:
    """Whether a command line begins no training, embedding or evaluation that is not cheap."""
    return case[0] not in ("finetune", "embed", "neighbours", "prepare") or any(
        value in argument for argument in case for value in ("nowhere", "\0", "~nouser", "file:", "nonsense", "9" * 40)
    )


def digests(folder: Path) -> dict[str, str]:
    """What all files hold, to see that none is touched; programs that were compiled and locks do not count."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not {"__pycache__", ".lock"}.intersection(path.parts)
    }


# the options whose files and folders a command is asked to write
_WRITTEN = ("--json", "--per-sentence", "--cache", "--out")


def written(arguments: list[str], option: str) -> list[str]:
    """Returns the values that an option has in some arguments."""
    joined = [argument.partition("=")[2] for argument in arguments if argument.startswith(f"{option}=")]
    apart = [value for name, value in zip(arguments, arguments[1:], strict=False) if name == option]
    return [os.path.abspath(value) for value in joined + apart if value and "\0" not in value]


def check(case: list[str], things: Path, scratch: Path, counts: Counts) -> Ended:
    """Runs one command line in an empty folder and counts its end."""
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    before = digests(things)
    arguments = [argument.replace("{things}", str(things)) for argument in case]
    ended = run(arguments, scratch)
    fault = ended.fault
    if not fault and digests(things) != before:
        after = digests(things)
        changed = [name for name in before.keys() | after.keys() if before.get(name) != after.get(name)]
        if ended.status == 0:  # a run may be made longer
            changed = [name for name in changed if not name.startswith("tuned/")]
        asked = [value for option in _WRITTEN for value in written(arguments, option)]
        asked += [str(things / "run" / "export")] * (arguments[:1] == ["export"])
        changed = [name for name in changed if not any((things / name).is_relative_to(path) for path in asked)]
        # a refused launch keeps the corpus that it has prepared for the next one
        changed = [name for name in changed if not name.startswith(("tuned/corpus/", "tuned/original/"))]
        fault = f"files were changed: {changed}" if changed else ""
    counts.cases += 1
    if fault:
        counts.faults.append((arguments, fault))
    elif ended.status == 0:
        counts.successes += 1
    else:
        counts.refusals += 1
    return ended
