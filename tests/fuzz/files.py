"""Damages one byte, or cuts the end, of every file that a run, a corpus or an export leaves, and reads the whole again.

What is read must be the very same, or be refused in one line.
"""

from __future__ import annotations

import dataclasses
import hashlib
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from elmo_jax.checkpoints.from_run import load_run
from elmo_jax.checkpoints.open import open_bilm
from elmo_jax.data.corpus import Corpus
from elmo_jax.errors import UserError
from elmo_jax.settings import to_dict
from tests.fuzz.command_line import Counts


def of_bilm(bilm: Any) -> tuple[Any, ...]:
    """Everything that is used of a biLM."""
    return bilm.fingerprint, to_dict(bilm.config), bilm.vocabulary, bilm.info


def read_run(folder: Path) -> Any:
    """What the last checkpoint of a run holds; asked for by its step, none before it is taken instead."""
    return of_bilm(load_run(folder, "2"))


def read_export(folder: Path) -> Any:
    """What an export, a run with one or a safetensors file holds."""
    return of_bilm(open_bilm(folder))


def read_published(folder: Path) -> Any:
    """Published weights have no checksum, so only a crash or a traceback is a fault."""
    open_bilm((folder / "options.json", folder / "weights.hdf5"))


def read_corpus(folder: Path) -> Any:
    """All that is used of a corpus."""
    corpus = Corpus.open(folder)
    digest = hashlib.sha256()
    for split in ("train", "heldout"):
        blocks = corpus.blocks(split)
        for number in range(len(blocks)):
            digest.update(blocks[number].tobytes())
    vocabulary = corpus.vocabulary()
    numbers = [corpus.vocabulary_size, corpus.tokens("train"), corpus.tokens("heldout"), corpus.fingerprint]
    return digest.hexdigest(), corpus.words(), corpus.counts().tolist(), vocabulary, numbers


@dataclasses.dataclass(frozen=True)
class Target:
    """Something to damage.

    Attributes:
      name: the folder or file among the things.
      read: reads all of it.
      skipped: parts of names of files that nothing is read from.
    """

    name: str
    read: Callable[[Path], Any]
    skipped: tuple[str, ...] = ()


TARGETS = (
    Target("run", read_run, ("tensorboard", "curve.png", "export", "result.json", "metrics.jsonl")),
    Target("run", read_export, ("tensorboard", "curve.png", "checkpoints", "metrics.jsonl", "evaluations.json")),
    Target("out", read_export),
    Target("one.safetensors", read_export),
    Target("corpus", read_corpus),
    Target("published", read_published),
)


def damaged(content: bytes, chance: random.Random) -> bytes:
    """One bit or one byte is another one, or the end is missing, or there are zeros in its place."""
    kind = chance.randrange(4)
    if kind == 0 or not content:
        return content[: chance.randrange(len(content) + 1)]
    position = chance.randrange(len(content))
    if kind == 1:
        return content[:position] + bytes(min(len(content) - position, 512)) + content[position + 512 :]
    other = content[position] ^ (1 << chance.randrange(8)) if kind == 2 else chance.randrange(256)
    return content[:position] + bytes([other]) + content[position + 1 :]


def check_files(things: Path, scratch: Path, number: int, seed: int, counts: Counts) -> None:
    """Damages files, in turns of the targets, and reads what they belong to.

    Args:
      things: the folder of `make_things`.
      scratch: a folder for a copy of each target.
      number: how often.
      seed: of the choice of files and damages.
      counts: to be added to.
    """
    chance = random.Random(seed)
    copies, expected = [], []
    for index, target in enumerate(TARGETS):
        copy = scratch / str(index) / target.name
        source = things / target.name
        copy.parent.mkdir(parents=True)
        shutil.copytree(source, copy) if source.is_dir() else shutil.copy(source, copy)
        copies.append(copy)
        expected.append(target.read(copy))
    for turn in range(number):
        target, copy = TARGETS[turn % len(TARGETS)], copies[turn % len(TARGETS)]
        every = sorted(path for path in copy.rglob("*") if path.is_file()) if copy.is_dir() else [copy]
        actual = [path for path in every if not any(part in str(path.relative_to(scratch)) for part in target.skipped)]
        path = chance.choice(actual)
        content = path.read_bytes()
        path.write_bytes(damaged(content, chance))
        label = [str(path.relative_to(scratch)), target.read.__name__, f"seed {seed}, turn {turn}"]
        fault = ""
        try:
            if target.read(copy) == expected[turn % len(TARGETS)]:
                counts.successes += 1
            else:
                fault = "other numbers"
        except UserError as error:
            fault = "not one line" if "\n" in str(error) else ""
            counts.refusals += not fault
        except Exception as error:
            fault = f"{type(error).__name__}: {error}"
        counts.cases += 1
        if fault:
            counts.faults.append((label, fault))
        path.write_bytes(content)
