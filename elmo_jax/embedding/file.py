"""Writes the vectors of a file of sentences as HDF5 or as NumPy files (`elmo-jax embed`).

The file is processed in windows of at most 1,024 lines and 16,384 words. The lines of a window are sorted by length,
run in batches of 64 rows and put back in order. Each window is written as a part, which is a small HDF5 file that
appears completely or not at all, because an HDF5 file becomes unreadable if the process that writes it is killed. When
all parts are written, they are copied into one file. A command that was stopped resumes with the first missing part.
Memory is needed for one window only, however long the file is; the disk holds the vectors twice while they are copied.
In the format of NumPy files the parts are the result, and nothing is copied.

The rows of a batch are divided over the biLM's devices. Several processes, which share the folder of the output, take
turns at the windows; when all parts are written, process 0 puts them together.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import secrets
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import jax
import numpy as np
from etils import epath
from tqdm import tqdm

from elmo_jax.checkpoints.hdf5_writer import new_hdf5
from elmo_jax.data.prepare.layout import UNSPACED, is_unspaced
from elmo_jax.distributed.collectives import check_equal, fails_together, is_first, of_each, of_first
from elmo_jax.embedding.bilm import EmbeddingBiLM
from elmo_jax.embedding.embed import CarryState
from elmo_jax.embedding.lines import scan, text_lines
from elmo_jax.embedding.output import Format, NotFinite, Settings, check_finite
from elmo_jax.embedding.shards import VectorShards, write_lengths, write_shard
from elmo_jax.errors import UserError
from elmo_jax.files import atomic_file, write_text
from elmo_jax.runs.lock import LEASE, LOCK, locked
from elmo_jax.words import split_words

LINES, WORDS = 1024, 16_384  # the most lines and words of a window
BATCH, BATCH_WORDS = 64, 8_192  # the most rows of a batch and positions, including padding, per device
_JOB = "elmo_jax"  # the attribute that describes what a file of vectors was made from
_JOB_FILE = "job.json"  # the same description, in a folder
# A file whose name ends in a random number, by which all processes know that they share the folder. A shared file
# system may still show the old content of a file that was replaced, but a name that is new has none.
_LAUNCH = ".launch-"


def embed_file(bilm: EmbeddingBiLM, sentences: Path, out: Path, settings: Settings | None = None) -> int:
    """Writes the vectors of every line of a file.

    Args:
      bilm: the model.
      sentences: a UTF-8 file with one tokenised sentence per line, words separated by spaces or tabs; a byte-order
        mark at its beginning is not text.
      out: the HDF5 file to make, or the folder of NumPy files. Dataset "0" is that of the first line; the dataset of a
        blank line is empty. Until the output is complete, the folder `OUT.parts` is beside it.
      settings: what is written. With `CarryState.CARRY` the lines are run one by one in their order, as in bilm-tf's
        `dump_bilm_embeddings`, which is slow, and in one process only.

    Returns:
      The number of lines.

    Raises:
      UserError: a file cannot be read or written, is not UTF-8, or was begun with other settings; or a vector has
        numbers that the type cannot hold.
    """
    settings = settings or Settings()
    with fails_together(), _told(out):
        if not out.name or (out.exists() and not (out.is_file() or out.is_dir())):
            kind = "a pipe or a device" if out.name else "a folder"
            raise UserError(f"{out}: is {kind}; give the name of the file to be made")
        out = Path(os.path.realpath(out))  # a link stays, and what it names is made
        job, text = _job(bilm, sentences, settings)
    check_equal(hashlib.sha256(job.encode()).hexdigest(), "a model, sentences or settings")
    parts = out.with_name(out.name + ".parts")
    if _is_there(out, job, settings.format):
        if (parts / _JOB_FILE).exists() and is_first():  # the last process was killed at its end
            shutil.rmtree(parts, ignore_errors=True)
        return text[0]
    with locked(epath.Path(parts)):
        if _is_there(out, job, settings.format):  # another launch has made it in the meantime
            return text[0]
        launch = str(of_first(secrets.randbits(31)))
        with fails_together(), _told(out):
            if is_first():
                _begin(parts, job, launch)
        with fails_together(), _told(out):
            _check_shared(parts, launch)
        try:
            with fails_together(), _told(out), _unchanged(sentences, text):
                _write_parts(bilm, sentences, parts, settings, text[0])
        except (NotFinite, _Changed):
            shutil.rmtree(parts, ignore_errors=True)  # no other call could complete them
            raise
        with fails_together(), _told(out):
            if is_first():
                _finish(sentences, parts, out, settings.format, job, text[0])
    return text[0]


class _Changed(UserError):
    """The text was changed while its vectors were written."""


@contextlib.contextmanager
def _unchanged(sentences: Path, text: tuple[int, str]) -> Iterator[None]:
    """A context that raises `_Changed` if a file has other lines at its end than `scan` found before."""
    message = f"{sentences}: was changed while its vectors were written; run the command again"
    try:
        yield
    except UnicodeDecodeError:
        raise _Changed(message) from None
    if scan(sentences) != text:
        raise _Changed(message)


def _job(bilm: EmbeddingBiLM, sentences: Path, settings: Settings) -> tuple[str, tuple[int, str]]:
    """Returns the description of what is made, and the number of lines and the digest of the text."""
    settings.check(bilm.config.lstm.layers + 1)
    if settings.state is CarryState.CARRY and jax.process_count() > 1:
        raise UserError("--state carry: every line needs the state after the line before it; use one process")
    lines, digest = scan(sentences)
    if is_unspaced("\n".join(itertools.islice(text_lines(sentences), LINES)), are_words=True):
        raise UserError(f"{sentences}: {UNSPACED}")
    settings_of_format = {} if settings.format is Format.HDF5 else {"format": settings.format.value}
    job = json.dumps({
        "bilm": bilm.fingerprint, "precision": bilm.precision.value, "sentences": digest, "lines": lines,
        "output": settings.output.value, "weights": settings.weights, "gamma": settings.gamma,
        "dtype": settings.dtype, "state": settings.state.value, "version": 1,
        **settings_of_format,
    }, indent=1)  # fmt: skip
    return job, (lines, digest)


def _is_there(out: Path, job: str, format: Format) -> bool:
    """Returns whether the output is there and complete.

    Raises:
      UserError: it is the result of another job, or only some of the processes see it.
    """
    with fails_together(), _told(out):
        there = out.exists()
        if there:
            _check_complete(out, job, format)
    found = of_each({"there": float(there)})["there"]
    if len(set(found)) > 1:
        raise UserError(
            f"{out}: process {found.index(1.0)} sees this output, and process {found.index(0.0)} does not; all"
            " processes must share its folder"
        )
    return there


def _check_shared(parts: Path, launch: str) -> None:
    """Raises `UserError` unless this process sees the folder of process 0."""
    if not (parts / f"{_LAUNCH}{launch}").exists():
        raise UserError(
            f"{parts}: is not the folder that process 0 writes into; all processes must share the folder of the output"
        )


def _finish(sentences: Path, parts: Path, out: Path, format: Format, job: str, lines: int) -> None:
    """Makes the output of all parts."""
    if format is Format.HDF5:
        _join(parts, out, job, lines)
        shutil.rmtree(parts, ignore_errors=True)  # a file server may keep the open file of the lock in it
        return
    write_lengths(parts, (len(split_words(line)) for line in text_lines(sentences)))
    try:
        VectorShards(parts).check()
    except UserError as error:
        raise UserError(f"{error}; remove that file and run the command again") from None
    for file in (*parts.glob(f"*{_LAUNCH}*"), parts / LOCK, parts / LEASE):
        file.unlink(missing_ok=True)
    parts.rename(out)


@contextlib.contextmanager
def _told(out: Path) -> Iterator[None]:
    """A context in which an error of the file system is raised as a `UserError`."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{out}: cannot be written ({error.strerror or ' '.join(str(error).split())})") from error


def _check_complete(out: Path, job: str, format: Format) -> None:
    """Raises `UserError` unless `out` is the whole result of a job."""
    if _made_as(out) != job:
        raise UserError(
            f"{out}: exists, and was not made from these sentences with these settings; choose another name"
        )
    if format is Format.NPY:
        try:
            VectorShards(out).check()  # files of the folder may have been lost
        except UserError as error:
            raise UserError(f"{error}; remove the folder {out} and run the command again") from None


def _made_as(out: Path) -> str | None:
    if (out / _JOB_FILE).is_file():
        return (out / _JOB_FILE).read_text(encoding="utf-8")
    try:
        with h5py.File(out, "r") as file:
            return str(file.attrs.get(_JOB))
    except OSError:
        return None


def _begin(parts: Path, job: str, launch: str) -> None:
    description = parts / _JOB_FILE
    if description.exists():
        if description.read_text(encoding="utf-8") != job:
            raise UserError(f"{parts}: begun from other sentences or settings; remove it, or choose another name")
    elif any(not _is_ours(entry.name) for entry in parts.iterdir()):
        raise UserError(f"{parts}: holds something else; choose another name")
    else:
        write_text(description, job)
    for file in parts.glob(f"*{_LAUNCH}*"):  # of a launch that was killed
        file.unlink()
    write_text(parts / f"{_LAUNCH}{launch}", "")


def _is_ours(name: str) -> bool:
    """Returns whether a hidden file is the lock, or may be left by a launch that was killed before its first part."""
    return name in (LOCK, LEASE, f".{_JOB_FILE}.tmp") or _LAUNCH in name


def _windows(sentences: Path) -> Iterator[tuple[int, list[list[str]]]]:
    """Yields the windows of a file: the number of the first line, and the words of the lines."""
    first, words = 0, 0
    window: list[list[str]] = []
    for number, line in enumerate(text_lines(sentences)):
        sentence = split_words(line)
        if window and (len(window) == LINES or words + len(sentence) > WORDS):
            yield first, window
            first, window, words = number, [], 0
        window.append(sentence)
        words += len(sentence)
    if window:
        yield first, window


def _write_parts(bilm: EmbeddingBiLM, sentences: Path, parts: Path, settings: Settings, lines: int) -> None:
    carry: Any = None
    interval = 0.5 if sys.stderr.isatty() else 30.0  # seconds; a log should have fewer lines than a terminal
    # The bar of process 0 stands for all, which progress alike. Where it is shown, TQDM_DISABLE can still hide it.
    hidden = {} if is_first() else {"disable": True}
    with tqdm(total=lines, desc="embedding", unit=" lines", mininterval=interval, dynamic_ncols=True, **hidden) as bar:
        for number, (first, window) in enumerate(_windows(sentences)):
            part = parts / f"{first:012}.{settings.format.value}"
            if number % jax.process_count() != jax.process_index() or part.exists():
                if not bar.disable:
                    bar.initial += len(window)  # not written by this process, so excluded from the speed
                    bar.n += len(window)
                carry = None
                continue
            if settings.state is CarryState.CARRY:
                carry = carry or _carry_before(parts, first)
                vectors, carry = _one_by_one(bilm, window, carry, settings)
            else:
                vectors = _by_length(bilm, window, settings)
            check_finite(vectors, first, sentences, settings)
            if settings.format is Format.NPY:
                write_shard(part, vectors)
            else:
                _write_part(part, first, vectors, carry)
            bar.update(len(window))


def _by_length(bilm: EmbeddingBiLM, window: list[list[str]], settings: Settings) -> list[np.ndarray]:
    """Returns the vectors of a window's lines, in their order, computed in batches of lines of similar length."""
    vectors: list[Any] = [None] * len(window)
    order = sorted(range(len(window)), key=lambda line: len(window[line]))
    devices = max(len(bilm.devices), 1)
    while order:
        rows = order[: BATCH * devices]
        while len(rows) > 1 and len(rows) * len(window[rows[-1]]) > BATCH_WORDS * devices:
            rows.pop()
        order = order[len(rows) :]
        layers, _, _ = bilm.embed([window[line] for line in rows], state=settings.state)
        for line, found in zip(rows, layers, strict=True):
            vectors[line] = settings.of(found[:, : len(window[line])])
    return vectors


def _one_by_one(
    bilm: EmbeddingBiLM, window: list[list[str]], carry: Any, settings: Settings
) -> tuple[list[np.ndarray], Any]:
    vectors = []
    for sentence in window:
        layers, _, carry = bilm.embed([sentence], carry, CarryState.CARRY)
        vectors.append(settings.of(layers[0]))
    return vectors, carry


def _write_part(path: Path, first: int, vectors: list[np.ndarray], carry: Any) -> None:
    with atomic_file(path) as temporary, new_hdf5(temporary) as writer:
        for number, found in enumerate(vectors, first):
            writer.add(f"lines/{number}", found)
        for name, state in (carry or {}).items():
            writer.add(f"carry/{name}/cell", state.cell)
            writer.add(f"carry/{name}/hidden", state.hidden)


def _carry_before(parts: Path, first: int) -> Any:
    """Returns the LSTM state at the end of the part before line `first`, or None at the beginning."""
    from elmo_jax.model.lstm import State

    before = [path for path in parts.glob("*.hdf5") if int(path.stem) < first]
    if not before:
        return None
    with _opened(max(before)) as file:
        return {name: State(node["cell"][()], node["hidden"][()]) for name, node in file["carry"].items()}


@contextlib.contextmanager
def _opened(part: Path) -> Iterator[h5py.File]:
    """Opens a part. Raises `UserError` if it is damaged."""
    advice = "is damaged; remove it and run the command again"
    try:
        file = h5py.File(part, "r")
    except OSError as error:
        raise UserError(f"{part}: {advice} ({error})") from error
    with file:
        try:
            yield file
        except (KeyError, RuntimeError) as error:
            raise UserError(f"{part}: {advice} ({error.args[0]})") from error


def _join(parts: Path, out: Path, job: str, lines: int) -> None:
    """Copies all parts into one file, which is iterated in the order of the lines; `UserError` if some are missing."""
    layout_of_many_names = ("v108", "latest")  # HDF5's older layout is slow with millions of names
    options = {"libver": layout_of_many_names, "track_order": True}
    with atomic_file(out) as temporary, new_hdf5(temporary, **options) as writer:
        writer.file.attrs[_JOB] = job
        following = 0
        for path in sorted(parts.glob("*.hdf5")):
            with _opened(path) as part:
                for name in sorted(part["lines"], key=int):
                    if int(name) != following:
                        break
                    writer.copy(part, f"lines/{name}", name)
                    following += 1
        if following != lines:
            raise UserError(f"{parts}: the vectors of line {following + 1} are missing; run the command again")
