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

import contextlib
import hashlib
import itertools
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import jax
import numpy as np
from etils import epath
from jax.flatten_util import ravel_pytree

from elmo_jax.checkpoints.hdf5_writer import new_hdf5
from elmo_jax.data.prepare.sources import guess_format
from elmo_jax.data.prepare.text import Format as TextFormat
from elmo_jax.data.prepare.text_layout import UNSPACED, is_unspaced
from elmo_jax.distributed.collectives import check_equal, fails_together, is_first, of_first
from elmo_jax.embedding.bilm import EmbeddingBiLM
from elmo_jax.embedding.embed import CarryState
from elmo_jax.embedding.output_settings import Format, Output, Settings
from elmo_jax.embedding.shards import CARRY, VectorShards, check_file, save, write_lengths, write_shard
from elmo_jax.errors import UserError
from elmo_jax.files import atomic_file, check_room, shown_bytes, write_text, writing
from elmo_jax.interrupts import keep
from elmo_jax.model.bilm import initial_carry
from elmo_jax.runs.lock import LEASE, LOCK, locked
from elmo_jax.runs.progress import Progress, say
from elmo_jax.text_files import read_lines, scan_lines
from elmo_jax.words import split_words

LINES, WORDS = 1024, 16_384  # the most lines and words of a window
BATCH, BATCH_WORDS = 64, 8_192  # the most rows of a batch and positions, including padding, per device
_JOB = "elmo_jax"  # the attribute that describes what a file of vectors was made from
_INDEX = "sentence_to_index"  # AllenNLP's name for the dataset of each sentence
_JOB_FILE = "job.json"  # the same description, in a folder


class _Unusable(UserError):
    """A mistake after which no other call can complete the parts that were written, so they are deleted."""


def embed_file(bilm: EmbeddingBiLM, sentences: Path, out: Path, settings: Settings | None = None) -> int:
    """Writes the vectors of every line of a file.

    Args:
      bilm: the model.
      sentences: a UTF-8 file with one tokenized sentence per line, words separated by spaces or tabs; a byte-order
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
    with _together(out):
        if not out.name or (out.exists() and not (out.is_file() or out.is_dir())):
            kind = "a pipe or a device" if out.name else "a folder"
            raise UserError(f"{out}: is {kind}; give the name of the file to be made")
        out = Path(os.path.realpath(out))  # a link stays, and what it names is made
        job, text = _job(bilm, sentences, settings)
    asked = f"{job} {settings.format.value}"
    check_equal(hashlib.sha256(asked.encode()).hexdigest(), "a model, sentences or settings")
    parts = out.with_name(out.name + ".parts")
    if _is_complete(out, job, settings.format):
        if (parts / _JOB_FILE).exists() and is_first():  # the last process was killed at its end
            shutil.rmtree(parts, ignore_errors=True)
        return text[0]
    with locked(epath.Path(parts)):
        keep(parts)
        if _is_complete(out, job, settings.format):  # another launch has made it in the meantime
            return text[0]
        with _together(out):
            if is_first():
                begin(parts, job)
                _check_room(bilm, sentences, out, settings)
        with _together(out):
            if not (parts / _JOB_FILE).exists():
                raise UserError(
                    f"{parts}: is not the folder that process 0 writes into; all processes must share the folder of the"
                    " output"
                )
        try:
            with _together(out):
                _write_parts(bilm, sentences, parts, settings, text[0])
                with Progress("reading the sentences again", show=is_first()):
                    again = scan_lines(sentences)
                if again != text:
                    raise _Unusable(f"{sentences}: was changed while its vectors were written; run the command again")
        except _Unusable:
            shutil.rmtree(parts, ignore_errors=True)
            raise
        with _together(out):
            if is_first():
                _finish(sentences, parts, out, settings, job)
    return text[0]


@contextlib.contextmanager
def _together(out: Path) -> Iterator[None]:
    """A context in which a mistake, or an error of the file system, is a `UserError` on all processes."""
    with fails_together(), writing(out):
        yield


def _job(bilm: EmbeddingBiLM, sentences: Path, settings: Settings) -> tuple[str, tuple[int, str]]:
    """Returns the description of what is made, and the number of lines and the digest of the text."""
    settings.check(bilm.config.lstm.layers + 1)
    if settings.state is CarryState.CARRY and jax.process_count() > 1:
        raise UserError("--state carry: every line needs the state after the line before it; use one process")
    with Progress("reading the sentences", show=is_first()):
        lines, digest = scan_lines(sentences)
    beginning = itertools.islice(read_lines(sentences), LINES)
    if is_unspaced("\n".join(line.text for line in beginning), are_words=True):
        raise UserError(f"{sentences}: {UNSPACED}")
    format, reason = guess_format(sentences)
    if format is not TextFormat.LINES:
        advice = "expected one tokenized sentence per line, as elmo-jax tokenize writes it; else 'river,' is one word"
        say(f"warning: {sentences}: read as it is, but {reason.partition(', so it is')[0]}; {advice}", is_first())
    made_from = {"bilm": bilm.fingerprint, "precision": bilm.precision.value, "sentences": digest, "lines": lines}
    return json.dumps(made_from | settings.as_dict() | {"version": 2}, indent=1), (lines, digest)


def _is_complete(out: Path, job: str, format: Format) -> bool:
    """Returns whether the output is the whole result of a job; process 0 looks at it."""
    there = False
    with _together(out):
        if is_first() and out.exists():
            if _made_from(out, format) != job:
                raise UserError(
                    f"{out}: exists, and was not made from these sentences with these settings; choose another name"
                )
            if format is Format.NPY:
                _checked(out, f"remove the folder {out}")
            there = True
    return bool(of_first(there))


def _made_from(out: Path, format: Format) -> str | None:
    """Returns the description of what an output was made from; None if it has none, or has another format."""
    try:
        if format is Format.NPY:
            return (out / _JOB_FILE).read_text(encoding="utf-8")
        with h5py.File(out, "r") as file:
            return str(file.attrs.get(_JOB))
    except OSError:
        return None


def _checked(folder: Path, remedy: str) -> VectorShards:
    """Opens a folder of vectors. Raises `UserError` if one of its files is missing or damaged."""
    try:
        shards = VectorShards(folder)
        shards.check()
    except UserError as error:
        raise UserError(f"{error}; {remedy} and run the command again") from None
    return shards


def begin(parts: Path, job: str) -> None:
    """Writes the description of the job, or checks that of the launch that is resumed."""
    description = parts / _JOB_FILE
    if description.exists():
        if description.read_text(encoding="utf-8") != job:
            raise UserError(f"{parts}: begun from another text, model or settings; remove it, or choose another name")
        return
    # A launch that was killed may have left its lock and a part of the description.
    own = {parts / LOCK, parts / LEASE, *parts.glob(f".{_JOB_FILE}.*.tmp")}
    if not own.issuperset(parts.iterdir()):
        raise UserError(f"{parts}: holds something else; choose another name")
    write_text(description, job)


def _check_room(bilm: EmbeddingBiLM, sentences: Path, out: Path, settings: Settings) -> None:
    lstm, parts = bilm.config.lstm, out.with_name(out.name + ".parts")
    with Progress("counting the words"):
        words = sum(settings.vectors_of(len(split_words(line.text))) for line in read_lines(sentences))
    per_word = bilm.config.width * (lstm.layers + 1 if settings.output is Output.ALL else 1)
    size = words * per_word * np.dtype(settings.dtype).itemsize
    what, there = f"{out.name}, {words:,} vectors", sum(file.stat().st_size for file in parts.glob("*.npy"))
    if settings.format is Format.HDF5:
        what, size = f"{what}, {shown_bytes(size)}, and as much in {parts.name} until it is complete", 2 * size
    check_room(out.parent, max(size - there, 0), f"{what}; still to be written")


def _finish(sentences: Path, parts: Path, out: Path, settings: Settings, job: str) -> None:
    with Progress("checking the files"):
        write_lengths(parts, (settings.vectors_of(len(split_words(line.text))) for line in read_lines(sentences)))
        shards = _checked(parts, "remove that file")
    if settings.format is Format.HDF5:
        layout_of_many_names = ("v108", "latest")  # HDF5's older layout is slow with millions of names
        with (
            atomic_file(out) as temporary,
            new_hdf5(temporary, libver=layout_of_many_names, track_order=True) as writer,
        ):
            writer.file.attrs[_JOB] = job
            with Progress("joining the files", "lines", len(shards)) as progress:
                for line, vectors in enumerate(shards):
                    writer.add(str(line), vectors)
                    progress.add(1)
            if settings.sentence_index:
                index = {line.text.strip(): str(number) for number, line in enumerate(read_lines(sentences))}
                writer.file.create_dataset(_INDEX, data=[json.dumps(index)], dtype=h5py.string_dtype())
        shutil.rmtree(parts, ignore_errors=True)  # a file server may keep the open file of the lock in it
        return
    for file in (*parts.glob(f"*{CARRY}"), *parts.glob(".*.npy.*.tmp"), parts / LOCK, parts / LEASE):
        file.unlink(missing_ok=True)
    parts.rename(out)


def _windows(sentences: Path) -> Iterator[tuple[int, list[list[str]]]]:
    """Yields the windows of a file: the number of the first line, and the words of the lines."""
    first, words = 0, 0
    window: list[list[str]] = []
    for number, line in enumerate(read_lines(sentences)):
        sentence = split_words(line.text)
        if window and (len(window) == LINES or words + len(sentence) > WORDS):
            yield first, window
            first, window, words = number, [], 0
        window.append(sentence)
        words += len(sentence)
    if window:
        yield first, window


def _write_parts(bilm: EmbeddingBiLM, sentences: Path, parts: Path, settings: Settings, lines: int) -> None:
    carry: Any = None
    with Progress(
        "embedding", "lines", lines, is_first()
    ) as progress:  # process 0 stands for all, which progress alike
        for number, (first, window) in enumerate(_windows(sentences)):
            part = parts / f"{first:012}.npy"
            if number % jax.process_count() != jax.process_index() or part.exists():
                progress.skip(len(window))
                carry = None
                continue
            if settings.state is CarryState.CARRY:
                carry = carry or _carry_before(bilm, parts, first)
                vectors, carry = _one_by_one(bilm, window, carry, settings)
                save(parts / f"{first + len(window):012}{CARRY}", np.asarray(ravel_pytree(carry)[0]))
            else:
                vectors = _by_length(bilm, window, settings)
            _check_finite(vectors, first, sentences, settings)
            write_shard(part, vectors)
            progress.add(len(window))


def _check_finite(vectors: list[np.ndarray], first: int, sentences: Path, settings: Settings) -> None:
    """Raises `_Unusable` for an infinity or NaN, which programs that read the file would not notice."""
    for number, found in enumerate(vectors, first + 1):
        if not np.isfinite(found).all():
            largest = float(np.finfo(settings.dtype).max)
            raise _Unusable(
                f"{sentences}, line {number}: a vector has NaN or a number beyond {largest:,.6g}, the largest"
                f" {settings.dtype}; take a smaller --gamma or --dtype float32"
            )


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
    if line == 0:
        return None
    try:
        check_file(path)
        return ravel_pytree(initial_carry(bilm.config, 1, np.zeros))[1](np.load(path, allow_pickle=False))
    except UserError as error:
        raise UserError(f"{error}; remove the folder {parts} and start again") from None
