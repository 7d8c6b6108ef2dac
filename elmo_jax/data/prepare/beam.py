"""Runs the steps of `prepare` on Apache Beam, for texts that are larger than one machine.

Every step is a pipeline; between them, this process divides the text by summaries of its chunks. Words are counted and
numbered in buckets, so that no process holds all of them: a bucket has the words with the same checksum modulo the
number of buckets. This process merges the sorted buckets, and holds four bytes per distinct word.

All files are in the folder of the first reading, which the workers have to reach: on this machine, on a disk that all
share, or in a bucket.
"""

import array
import contextlib
import heapq
import io
import json
import secrets
import shlex
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import apache_beam as beam
import numpy as np
from apache_beam.options.pipeline_options import PipelineOptions
from etils import epath

from elmo_jax.data.lexicon import Entry, order_of
from elmo_jax.data.prepare import chunk_files
from elmo_jax.data.prepare.local import LocalRunner, RunnerFailed
from elmo_jax.data.prepare.pieces import Part
from elmo_jax.data.prepare.text import Chunk, Key
from elmo_jax.errors import UserError
from elmo_jax.files import write_bytes

Item = TypeVar("Item")
_CHUNKS_A_BUCKET, _MOST_BUCKETS = 8, 256
_FAILED = 1 << 30  # the number of the chunk that stands for a mistake in the text after the last one


class BeamRunner(LocalRunner):
    """Runs the steps on Apache Beam."""

    def __init__(self, folder: epath.Path, options: str) -> None:
        super().__init__(folder, 1, False)
        self._options = _parsed(options)
        self._prefix = secrets.token_hex(4)  # files of an earlier launch may be of other settings
        self._numbers: list[array.array[int]] = []  # the ids of the words of each bucket

    def map(self, function: Callable[[Item], Any], items: Iterable[Item], workers: int | None = None) -> Iterator[Any]:
        numbered = list(enumerate(items))
        call = beam.Map(lambda item: (item[0], function(item[1])))
        return (result for _, result in self._run(lambda pipeline: self._spread(pipeline, numbered) | call))

    def tokenize(self, parts: Iterable[Part], size: int) -> Iterator[chunk_files.Summary]:
        of_text = list(parts)
        values = self._run(
            lambda pipeline: (
                pipeline
                | beam.Create(of_text, reshuffle=True)
                | "chunks" >> beam.FlatMap(_chunks)
                | beam.Reshuffle()
                | "tokenize" >> beam.Map(_tokenized, self._folder)
            )
        )
        for _, summary, mistake in values:
            if mistake:
                raise UserError(mistake)
            yield chunk_files.Summary.of_json(summary)

    def count(self, chunks: Sequence[chunk_files.Planned], given: Sequence[str]) -> list[chunk_files.Sizes]:
        self._given = given
        self._numbers = [array.array("i") for _ in range(min(1 + len(chunks) // _CHUNKS_A_BUCKET, _MOST_BUCKETS))]
        first = self._file("given")
        _write_json(list(given), first)

        def build(pipeline: Any) -> Any:
            count = beam.FlatMap(_counted, self._folder, len(self._numbers)).with_outputs("sizes", main="words")
            counted = self._spread(pipeline, chunks) | count
            _ = counted.words | beam.GroupByKey() | "sort" >> beam.Map(_write_bucket, str(self._file("")), first)
            return counted.sizes

        return [sizes for _, sizes in self._run(build)]

    def entries(self) -> Iterator[Entry]:
        key = order_of(self._given)
        given = [(word, 0, -1) for word in self._given]  # after those of the buckets, which have the counts of the text
        prefix = str(self._file(""))
        streams = [_read_bucket(prefix, bucket) for bucket in range(len(self._numbers))]
        number, last = 0, None
        for word, count, bucket in heapq.merge(*streams, given, key=lambda entry: key(entry[:2])):
            if word == last:
                continue
            if bucket >= 0:
                self._numbers[bucket].append(number)
            yield word, count
            number, last = number + 1, word

    def number(self, chunks: Sequence[chunk_files.Planned]) -> None:
        for bucket, numbers in enumerate(self._numbers):
            write_bytes(self._file(f"{bucket}.numbers"), numbers.tobytes())
        self._run(
            lambda pipeline: (
                self._spread(pipeline, chunks)
                | "words" >> beam.FlatMap(_words, self._folder, len(self._numbers))
                | "by bucket" >> beam.GroupByKey()
                | "number" >> beam.FlatMap(_numbered, str(self._file("")))
                | "by chunk" >> beam.GroupByKey()
                | "write" >> beam.Map(_write_numbers, self._folder)
            )
        )

    def _file(self, name: str) -> epath.Path:
        return self._folder / f"{self._prefix}.{name}"

    def _spread(self, pipeline: Any, items: Iterable[Any]) -> Any:
        """Returns a collection of values of JSON, from a file, since a pipeline may not have millions of them."""
        path = self._file("items.json")
        _write_json(list(items), path)
        return pipeline | beam.Create([path]) | "read" >> beam.FlatMap(_read_json) | "spread" >> beam.Reshuffle()

    def _run(self, build: Callable[[Any], Any]) -> list[Any]:
        """Runs the pipeline that `build` makes, and returns the values of JSON of its collection, sorted."""
        self._folder.mkdir(parents=True, exist_ok=True)
        results = self._file("results.json")
        try:
            with beam.Pipeline(options=PipelineOptions(self._options)) as pipeline:
                _ = build(pipeline) | "collect" >> beam.combiners.ToList() | beam.Map(_write_json, results)
            return sorted(_read_json(results), key=lambda value: value[0])
        except Exception as error:  # of any runner
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise RunnerFailed(f"--beam {shlex.join(self._options)}: the pipeline failed: {lines[-1]}") from error
        finally:
            for path in self._folder.glob(f"{self._prefix}.*.json"):
                path.unlink()
            with contextlib.suppress(OSError, ValueError):
                self._folder.rmdir()  # empty as long as only the checksums of the text are known


def _parsed(options: str) -> list[str]:
    with contextlib.redirect_stderr(io.StringIO()) as printed:
        try:
            arguments = shlex.split(options)
            runner = PipelineOptions(arguments).get_all_options(retain_unknown_options=True)["runner"]
        except (ValueError, SystemExit) as error:  # argparse prints its usage, and ends the process
            message = printed.getvalue().strip().rpartition("error: ")[2] or str(error)
            raise UserError(f"--beam {options}: {message}") from None
    if not runner:
        raise UserError(f"--beam {options}: names no runner; give --runner=NAME; Beam's default downloads a program")
    return arguments


def _read_json(path: epath.Path) -> list[Any]:
    return json.loads(path.read_bytes())


def _write_json(value: Any, path: epath.Path) -> None:
    write_bytes(path, json.dumps(value).encode())


def _chunks(part: Part) -> Iterator[Chunk | tuple[Key, str]]:
    """Yields the chunks of a part, or the message about a mistake, which only the process of the user can report."""
    try:
        yield from part.chunks()
    except UserError as error:
        yield (*part.key, _FAILED), str(error)


def _tokenized(chunk: Chunk | tuple[Key, str], folder: epath.Path) -> tuple[Key, chunk_files.Summary | None, str]:
    if not isinstance(chunk, Chunk):
        return chunk[0], None, chunk[1]
    try:
        return chunk.key, chunk_files.write_chunk(chunk, folder)[0], ""
    except UserError as error:
        return chunk.key, None, str(error)


def _by_bucket(words: Sequence[str], buckets: int) -> Iterator[tuple[int, np.ndarray, str]]:
    """Yields the buckets of some words with the indices of their words, and these words, one per line."""
    of_word = np.fromiter((zlib.crc32(word.encode()) % buckets for word in words), np.int64, len(words))
    for bucket in np.unique(of_word).tolist():
        indices = np.flatnonzero(of_word == bucket)
        yield bucket, indices, "\n".join([words[index] for index in indices.tolist()])


def _counted(item: Any, folder: epath.Path, buckets: int) -> Iterator[Any]:
    chunk = chunk_files.Planned.of_json(item)
    words, counts, sizes = chunk_files.count_words(folder, chunk)
    yield beam.pvalue.TaggedOutput("sizes", (chunk.key, sizes))
    for bucket, indices, text in _by_bucket(words, buckets):
        yield bucket, (text, counts[indices])


def _write_bucket(bucket: tuple[int, Iterable[tuple[str, np.ndarray]]], prefix: str, given: epath.Path) -> None:
    total: dict[str, int] = {}
    for text, counts in bucket[1]:
        for word, count in zip(text.split("\n"), counts.tolist(), strict=True):
            total[word] = total.get(word, 0) + count
    lines = (f"{word}\t{count}\n" for word, count in sorted(total.items(), key=order_of(_read_json(given))))
    write_bytes(epath.Path(f"{prefix}{bucket[0]}.words"), "".join(lines).encode())


def _read_bucket(prefix: str, bucket: int) -> Iterator[tuple[str, int, int]]:
    """Yields the words of a bucket, which may have none, in order, their counts, and the bucket."""
    path = epath.Path(f"{prefix}{bucket}.words")
    if path.exists():
        with path.open("rb") as file:
            for line in io.BufferedReader(file):  # an object of a bucket is slow to read by lines
                word, _, count = line.partition(b"\t")
                yield word.decode(), int(count), bucket


def _words(item: Any, folder: epath.Path, buckets: int) -> Iterator[tuple[int, tuple[Key, np.ndarray, str]]]:
    key = chunk_files.Planned.of_json(item).key
    for bucket, indices, text in _by_bucket(chunk_files.read_chunk(folder, key).types, buckets):
        yield bucket, (key, indices, text)


def _numbered(
    bucket: tuple[int, Iterable[tuple[Key, np.ndarray, str]]], prefix: str
) -> Iterator[tuple[Key, tuple[np.ndarray, np.ndarray]]]:
    numbers = array.array("i", epath.Path(f"{prefix}{bucket[0]}.numbers").read_bytes())
    ids = dict(zip((word for word, _, _ in _read_bucket(prefix, bucket[0])), numbers, strict=True))
    for key, indices, text in bucket[1]:
        yield key, (indices, np.array([ids[word] for word in text.split("\n")], np.int32))


def _write_numbers(chunk: tuple[Key, Iterable[tuple[np.ndarray, np.ndarray]]], folder: epath.Path) -> tuple[Key]:
    values = list(chunk[1])
    ids = np.empty(sum(len(indices) for indices, _ in values), np.int32)
    for indices, numbers in values:
        ids[indices] = numbers
    chunk_files.write_arrays(folder, chunk[0], chunk_files.IDS, ids)
    return (chunk[0],)
