"""Writes the vectors of a file of sentences as NumPy files or as HDF5 (`elmo-jax embed`).

The file is processed in windows of at most 1,024 lines and 12,288 words. Each window is written as one NumPy file
(`shards`), which appears completely or not at all, in the folder `OUT.parts`, while the devices run the next one. A
command that was stopped resumes with the first file that is missing. When all are there, the folder gets the name of
the output, or is converted to one HDF5 file and then deleted: an HDF5 file becomes unreadable if the process that
writes it is killed, so the disk holds the vectors twice until it is complete. Memory is needed for a few windows only,
however long the file is, which is read twice.

Several processes, which share the folder of the output, take turns at the windows; when all are written, process 0
makes the output.
"""

import contextlib
import hashlib
import io
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

from elmo_jax.checkpoints.hdf5_files import new_hdf5
from elmo_jax.data.batches import prefetched
from elmo_jax.data.prepare.sources import guess_format
from elmo_jax.data.prepare.text import UNSPACED, is_unspaced
from elmo_jax.data.prepare.text import Format as TextFormat
from elmo_jax.distributed.collectives import broadcast_from_primary, check_equal, is_primary, raise_on_all
from elmo_jax.embedding.bilm import EmbeddingBiLM
from elmo_jax.embedding.embed import CarryState, embed_texts
from elmo_jax.embedding.output_settings import Format, Output, Settings
from elmo_jax.embedding.shards import JOB, LENGTHS, VERSION, Shard, VectorShards, advised, write_shard
from elmo_jax.errors import UserError
from elmo_jax.files import atomic_file, check_free_space, shown_bytes, write_bytes, write_text, writing
from elmo_jax.interrupts import keep
from elmo_jax.model.bilm import initial_carry
from elmo_jax.runs.lock import LEASE, LOCK, locked
from elmo_jax.runs.progress import Progress, say
from elmo_jax.text_files import read_lines
from elmo_jax.words import split_words

LINES, WORDS = 1024, 12_288  # the most lines and words of a window
_JOB = "elmo_jax"  # the attribute that describes what a file of vectors was made from, as `JOB` does in a folder
_INDEX = "sentence_to_index"  # AllenNLP's name for the dataset of each sentence


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
    """
    settings = settings or Settings()
    with _together(out):
        if not out.name or (out.exists() and not (out.is_file() or out.is_dir())):
            kind = "a pipe or a device" if out.name else "a folder"
            raise UserError(f"{out}: is {kind}; give the name of the file to be made")
        out = Path(os.path.realpath(out))  # a link stays, and what it names is made
        made_from, vectors = _made_from(bilm, sentences, settings)
    lines, job = made_from["lines"], json.dumps(made_from, indent=1)
    asked = f"{job} {settings.format.value}"
    check_equal(hashlib.sha256(asked.encode()).hexdigest(), "a model, sentences or settings")
    parts = out.with_name(out.name + ".parts")
    if _is_complete(out, job, settings.format):
        if (parts / JOB).exists() and is_primary():  # the last process was killed at its end
            shutil.rmtree(parts, ignore_errors=True)
        return lines
    with locked(epath.Path(parts)):
        keep(parts)
        if _is_complete(out, job, settings.format):  # another launch has made it in the meantime
            return lines
        with _together(out):
            if is_primary():
                _begin(parts, job)
                _check_free_space(bilm, vectors, out, settings)
        with _together(out):
            if not (parts / JOB).exists():
                problem = "is not the folder that process 0 writes into"
                raise UserError(f"{parts}: {problem}; all processes must share the folder of the output")
        try:
            with _together(out):
                lengths = _write_parts(bilm, sentences, parts, settings, made_from)
        except _Unusable:
            shutil.rmtree(parts, ignore_errors=True)
            raise
        with _together(out):
            if is_primary():
                _finish(sentences, lengths, parts, out, settings, job)
    return lines


@contextlib.contextmanager
def _together(out: Path) -> Iterator[None]:
    """A context in which a mistake, or an error of the file system, is a `UserError` on all processes."""
    with raise_on_all(), writing(out):
        yield


def _made_from(bilm: EmbeddingBiLM, sentences: Path, settings: Settings) -> tuple[dict[str, Any], int]:
    """Returns what the output depends on, and the number of its vectors."""
    settings.check(bilm.config.lstm.layers + 1)
    if settings.state is CarryState.CARRY and jax.process_count() > 1:
        raise UserError("--state carry: every line needs the state after the line before it; use one process")
    digest, lines, vectors, beginning = hashlib.sha256(), 0, 0, list[str]()
    with Progress("reading the sentences", show=is_primary()):
        for lines, line in read_lines(sentences):
            digest.update(f"{line}\n".encode())
            vectors += settings.vectors_of(len(split_words(line)))
            if lines <= LINES:
                beginning.append(line)
    if is_unspaced("\n".join(beginning), are_words=True):
        raise UserError(f"{sentences}: {UNSPACED}")
    format, reason = guess_format(sentences)
    if format is not TextFormat.LINES:
        advice = "expected one tokenized sentence per line, as elmo-jax tokenize writes it; else 'river,' is one word"
        say(f"warning: {sentences}: read as it is, but {reason.partition(', so it is')[0]}; {advice}", is_primary())
    made_from = {"bilm": bilm.vectors_fingerprint, "precision": bilm.precision.value, "sentences": digest.hexdigest()}
    return made_from | {"lines": lines} | settings.as_dict() | {"version": VERSION}, vectors


def _is_complete(out: Path, job: str, format: Format) -> bool:
    """Returns whether the output is the whole result of a job; process 0 looks at it."""
    with _together(out):
        there = is_primary() and out.exists()
        if there:
            written = None
            with contextlib.suppress(OSError, ValueError):
                if format is Format.NPY:
                    written = (out / JOB).read_text(encoding="utf-8")
                else:
                    with h5py.File(out, "r") as file:
                        written = str(file.attrs.get(_JOB))
            if written != job:
                problem = "exists, and was not made from these sentences with these settings"
                raise UserError(f"{out}: {problem}; choose another name")
            if format is Format.NPY:
                with advised(f"remove the folder {out} and run the command again"):
                    VectorShards(out).check()
    return bool(broadcast_from_primary(there))


def _begin(parts: Path, job: str) -> None:
    """Writes the description of the job; or checks that of the launch that is resumed, and deletes what it left."""
    description = parts / JOB
    if description.exists():
        if description.read_bytes() != job.encode():
            raise UserError(f"{parts}: begun from another text, model or settings; remove it, or choose another name")
        for file in parts.glob(".*.tmp"):  # of a process that was killed
            file.unlink(missing_ok=True)
        return
    # A launch that was killed may have left its lock and a part of the description.
    own = {parts / LOCK, parts / LEASE, *parts.glob(f".{JOB}.*.tmp")}
    if not own.issuperset(parts.iterdir()):
        raise UserError(f"{parts}: holds something else; choose another name")
    write_text(description, job)


def _check_free_space(bilm: EmbeddingBiLM, vectors: int, out: Path, settings: Settings) -> None:
    lstm, parts = bilm.config.lstm, out.with_name(out.name + ".parts")
    per_vector = bilm.config.width * (lstm.layers + 1 if settings.output is Output.ALL else 1)
    size = vectors * per_vector * np.dtype(settings.dtype).itemsize
    what, there = f"{out.name}, {vectors:,} vectors", sum(file.stat().st_size for file in parts.glob("*.npy"))
    if settings.format is Format.HDF5:
        what, size = f"{what}, {shown_bytes(size)}, and as much in {parts.name} until it is complete", 2 * size
    check_free_space(out.parent, max(size - there, 0), f"{what}; still to be written")


def _finish(sentences: Path, lengths: list[int], parts: Path, out: Path, settings: Settings, job: str) -> None:
    content = io.BytesIO()
    np.save(content, np.array(lengths, np.int32))
    write_bytes(parts / LENGTHS, content.getvalue())
    shards = VectorShards(parts)
    shards.check(vectors=False)
    if settings.format is Format.HDF5:
        layout_of_many_names = ("v108", "latest")  # HDF5's older layout is slow with millions of names
        joined = parts / "joined.hdf5"  # not next to the output, where a killed process would leave it
        with (
            atomic_file(joined) as temporary,
            new_hdf5(temporary, libver=layout_of_many_names, track_order=True) as writer,
        ):
            writer.file.attrs[_JOB] = job
            with Progress("joining the files", "lines", len(shards)) as progress:
                for line, vectors in enumerate(shards):  # which verifies them
                    writer.add(str(line), vectors)
                    progress.add(1)
            if settings.sentence_index:
                index = {line.text.strip(): str(number) for number, line in enumerate(read_lines(sentences))}
                writer.file.create_dataset(_INDEX, data=[json.dumps(index)], dtype=h5py.string_dtype())
        joined.replace(out)
        shutil.rmtree(parts, ignore_errors=True)  # a file server may keep the open file of the lock in it
        return
    for file in (*parts.glob("*.carry"), parts / LOCK, parts / LEASE):
        file.unlink(missing_ok=True)
    parts.rename(out)


def _windows(sentences: Path, expected: str) -> Iterator[tuple[int, list[list[str]]]]:
    first, words, digest = 0, 0, hashlib.sha256()
    window: list[list[str]] = []
    for line in read_lines(sentences):
        digest.update(f"{line.text}\n".encode())
        sentence = split_words(line.text)
        if window and (len(window) == LINES or words + len(sentence) > WORDS):
            yield first, window
            first, window, words = first + len(window), [], 0
        window.append(sentence)
        words += len(sentence)
    if digest.hexdigest() != expected:
        raise _Unusable(f"{sentences}: was changed while its vectors were written; run the command again")
    if window:
        yield first, window


def _write_parts(
    bilm: EmbeddingBiLM, sentences: Path, parts: Path, settings: Settings, made_from: dict[str, Any]
) -> list[int]:
    """Writes this process's files that are missing, verifies the others, and returns the lengths of all lines."""
    lengths: list[int] = []
    form = settings.form(bilm.config.lstm.layers + 1)

    def missing() -> Iterator[tuple[tuple[int, list[int]], list[list[str]]]]:
        for number, (first, window) in enumerate(_windows(sentences, made_from["sentences"])):
            of_window = list(map(len, window))
            lengths.extend(map(settings.vectors_of, of_window))
            part, is_own = parts / f"{first:012}.npy", number % jax.process_count() == jax.process_index()
            if is_own and not part.exists():
                yield (first, of_window), window
                continue
            if is_own:
                with advised("remove that file and run the command again"):
                    list(Shard(part))  # which verifies the vectors
            progress.skip(len(window))

    with Progress("embedding", "lines", made_from["lines"], is_primary()) as progress:  # process 0 stands for all
        if settings.state is CarryState.CARRY:
            embedded = _carried(bilm, missing(), parts, *form)
        else:
            embedded = embed_texts(bilm.engine, missing(), *form, settings.state)
        for (first, of_window), vectors, finite in prefetched(embedded):
            written = settings.written(vectors, of_window, bilm.config)
            if settings.mean_of_words:
                finite = np.isfinite(written).all(tuple(range(1, written.ndim)))
            kept = list(map(settings.vectors_of, of_window))
            if not finite.all():
                number = first + 1 + int(np.searchsorted(np.cumsum(kept), np.argmin(finite), "right"))
                largest = float(np.finfo(settings.dtype).max)
                raise _Unusable(
                    f"{sentences}, line {number}: a vector has NaN or a number beyond {largest:,.6g}, the largest"
                    f" {settings.dtype}; take a smaller --gamma or --dtype float32"
                )
            write_shard(parts / f"{first:012}.npy", written, kept)
            progress.add(len(of_window))
    return lengths


def _carried(
    bilm: EmbeddingBiLM, windows: Iterator[Any], parts: Path, dtype: str, weights: np.ndarray | None
) -> Iterator[tuple[Any, np.ndarray, np.ndarray]]:
    """Yields what `embed_texts` yields; each line begins in the state at the end of the line before."""
    carry, expected = initial_carry(bilm.config, 1, np.zeros), 0
    for name, window in windows:
        if name[0] != expected:
            with advised(f"remove the folder {parts} and start again"):
                state: Any = Shard(parts / f"{name[0]:012}.carry")[0]
            carry = ravel_pytree(carry)[1](state)
        results = []
        for sentence in window:
            running = bilm.engine.start([sentence], dtype, weights, carry=carry)
            results.append(running.vectors())
            carry = running.carry()
        expected = name[0] + len(window)
        state = np.asarray(ravel_pytree(carry)[0])
        write_shard(parts / f"{expected:012}.carry", state, [len(state)])
        yield name, *map(np.concatenate, zip(*results, strict=True))
