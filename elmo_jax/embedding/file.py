"""Writes the vectors of a file of sentences as NumPy files or as HDF5 (`elmo-jax embed`).

The file is processed in windows of at most 1,024 lines and 16,384 words. The lines of a window are sorted by length,
run in batches of 64 rows and put back in order. Each window is written as one NumPy file (`shards`), which appears
completely or not at all, in the folder `OUT.parts`. A command that was stopped resumes with the first file that is
missing. When all are there, the folder gets the name of the output, or is converted to one HDF5 file and then deleted:
an HDF5 file becomes unreadable if the process that writes it is killed, so the disk holds the vectors twice until it is
complete. Memory is needed for one window only, however long the file is.

The rows of a batch are divided over the biLM's devices. Several processes, which share the folder of the output, take
turns at the windows; when all are written, process 0 makes the output.
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
from jax.flatten_util import ravel_pytree
from tqdm import tqdm

from elmo_jax.checkpoints.hdf5_writer import new_hdf5
from elmo_jax.data.prepare.layout import UNSPACED, is_unspaced
from elmo_jax.distributed.collectives import check_equal, fails_together, is_first, of_each, of_first
from elmo_jax.embedding.bilm import EmbeddingBiLM
from elmo_jax.embedding.embed import CarryState, empty_carry
from elmo_jax.embedding.lines import scan, text_lines
from elmo_jax.embedding.output import Format, NotFinite, Settings, check_finite
from elmo_jax.embedding.shards import CARRY, VectorShards, save, write_lengths, write_shard
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
        blank line is empty. Until the output is complete, the folder `OUT.parts` is next to it.
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
    asked = f"{job} {settings.format.value}"
    check_equal(hashlib.sha256(asked.encode()).hexdigest(), "a model, sentences or settings")
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
                _finish(sentences, parts, out, settings.format, job)
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
    job = json.dumps({
        "bilm": bilm.fingerprint, "precision": bilm.precision.value, "sentences": digest, "lines": lines,
        "output": settings.output.value, "weights": settings.weights, "gamma": settings.gamma,
        "dtype": settings.dtype, "state": settings.state.value, "version": 1,
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


def _finish(sentences: Path, parts: Path, out: Path, format: Format, job: str) -> None:
    """Makes the output of all parts."""
    write_lengths(parts, (len(split_words(line)) for line in text_lines(sentences)))
    try:
        shards = VectorShards(parts)
        shards.check()
    except UserError as error:
        raise UserError(f"{error}; remove that file and run the command again") from None
    if format is Format.HDF5:
        _convert(shards, out, job)
        shutil.rmtree(parts, ignore_errors=True)  # a file server may keep the open file of the lock in it
        return
    for file in (*parts.glob(f"*{_LAUNCH}*"), *parts.glob(f"*{CARRY}"), parts / LOCK, parts / LEASE):
        file.unlink(missing_ok=True)
    parts.rename(out)


def _convert(shards: VectorShards, out: Path, job: str) -> None:
    """Writes all vectors to one HDF5 file, a dataset per line, which iterates in the order of the text."""
    layout_of_many_names = ("v108", "latest")  # HDF5's older layout is slow with millions of names
    with (
        atomic_file(out) as temporary,
        new_hdf5(temporary, libver=layout_of_many_names, track_order=True) as writer,
    ):
        writer.file.attrs[_JOB] = job
        for line, vectors in enumerate(shards):
            writer.add(str(line), vectors)


@contextlib.contextmanager
def _told(out: Path) -> Iterator[None]:
    """A context in which an error of the file system is raised as a `UserError`."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{out}: cannot be written ({error.strerror or ' '.join(str(error).split())})") from error


def _check_complete(out: Path, job: str, format: Format) -> None:
    """Raises `UserError` unless `out` is the whole result of a job."""
    if _made_from(out, format) != job:
        raise UserError(
            f"{out}: exists, and was not made from these sentences with these settings; choose another name"
        )
    if format is Format.NPY:
        try:
            VectorShards(out).check()  # files of the folder may have been lost
        except UserError as error:
            raise UserError(f"{error}; remove the folder {out} and run the command again") from None


def _made_from(out: Path, format: Format) -> str | None:
    """Returns the description of what an output was made from; None if it has none, or has another format."""
    try:
        if format is Format.NPY:
            return (out / _JOB_FILE).read_text(encoding="utf-8")
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
            part = parts / f"{first:012}.npy"
            if number % jax.process_count() != jax.process_index() or part.exists():
                if not bar.disable:
                    bar.initial += len(window)  # not written by this process, so excluded from the speed
                    bar.n += len(window)
                carry = None
                continue
            if settings.state is CarryState.CARRY:
                carry = carry or _carry_before(bilm, parts, first)
                vectors, carry = _one_by_one(bilm, window, carry, settings)
                save(parts / f"{first + len(window):012}{CARRY}", np.asarray(ravel_pytree(carry)[0]))
            else:
                vectors = _by_length(bilm, window, settings)
            check_finite(vectors, first, sentences, settings)
            write_shard(part, vectors)
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


def _carry_before(bilm: EmbeddingBiLM, parts: Path, line: int) -> Any:
    """Returns the LSTM state at the end of the line before, or None at the beginning."""
    path = parts / f"{line:012}{CARRY}"
    try:
        return None if line == 0 else ravel_pytree(empty_carry(bilm.model, 1))[1](np.load(path, allow_pickle=False))
    except (OSError, ValueError, EOFError, TypeError) as error:
        raise UserError(f"{path}: missing or damaged ({error}); remove the folder {parts} and start again") from None
