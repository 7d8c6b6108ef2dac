"""Implements `prepare`, which turns text into a corpus folder that training can read with random access.

The text is read twice and never held in memory: in the first reading its words are written to files (`chunk_files`),
and in the second the words get their ids and the text is cut into blocks (`write`). The result depends only on the text
and the settings, and not on the number of workers, the date or any path. If the command is stopped, the files of the
first reading are kept, and the next command that reads the same text continues with them.
"""

import contextlib
import dataclasses
import importlib.metadata
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from etils import epath

from elmo_jax import files
from elmo_jax.data.blocks import SPLITS
from elmo_jax.data.corpus import BLOCKS, REPORT, Corpus, checksums
from elmo_jax.data.lexicon import LEXICON, VOCABULARY, read_vocabulary
from elmo_jax.data.prepare import pieces
from elmo_jax.data.prepare.chunk_files import PIECE
from elmo_jax.data.prepare.local import LocalRunner, RunnerFailed
from elmo_jax.data.prepare.options import RECORDS, PrepareOptions, TextOptions
from elmo_jax.data.prepare.sources import Files, check_read_once, file_digest, open_sources, say_formats
from elmo_jax.data.prepare.text import LONG_SENTENCE
from elmo_jax.data.prepare.write import CorpusWriter, Text
from elmo_jax.distributed.cpu import available_cores
from elmo_jax.errors import UserError
from elmo_jax.interrupts import keep, kept
from elmo_jax.runs.progress import Progress, say

JOB = "job"  # the file that identifies what was read into the folder of the first reading
_NO_COUNTS = {"tokens": 0, "sentences": 0, "blocks": 0, "unknown_targets": 0.0}
OTHERS = "other"  # the name of the sources without one, where others have names


def prepare(sources: Sequence[str], out: str | os.PathLike[str], options: PrepareOptions | None = None) -> Corpus:
    """Makes a corpus of text, unless it has been made already.

    Sources with the same name (`news=FOLDER`) are one source of the corpus, those without a name next to others are
    called `other`, and no block holds text of two sources. The folder `out` may be in a bucket.

    Raises `UserError` if the input is invalid, or `out` holds something else; no partial corpus is left. Where a worker
    died or the disk was full, the files of the first reading are kept for the next call, as after a signal.
    """
    options = options or PrepareOptions()
    folder = files.parse_path(out)
    if not files.in_bucket(folder):
        folder = epath.Path(os.path.realpath(folder))
    elif len(folder.parts) == 3:  # a root, the scheme and the bucket
        raise UserError(f"{folder}: a whole bucket; name a folder in it")
    options = dataclasses.replace(options, text=options.text.in_language())
    given = options.vocabulary_file or options.base_vocabulary_file
    words = read_vocabulary(files.local(given)) if given else []
    if options.base_vocabulary_file and options.vocabulary_size is not None and options.vocabulary_size < len(words):
        size = f"the vocabulary size is {options.vocabulary_size}"
        raise UserError(f"{size}; expected {len(words)} or more, the size of the vocabulary to extend")
    _check_outside(folder, [*sources, *(options.heldout_sources or ())])
    text = _open(sources, options)
    spool = folder.with_name(f".{folder.name}.partial.text")
    runner = _runner(spool, options)
    if _is_there(folder, spool):
        there = Corpus.open(folder, to_train=False).report
        if changes := "; ".join(_changes(there, _request(text, options, words, runner))):
            what = f"holds a different corpus ({changes})"
            raise UserError(f"{folder}: {what}; choose another folder, or delete this one")
        say(f"{out}: already prepared from this text with these settings; nothing to do", options.progress)
        return Corpus.open(out, to_train=False)
    try:
        with _new_folder(folder) as new:
            request = _request(text, options, words, runner)
            with _first_reading(spool, request, options.progress):
                report = CorpusWriter(new, spool, text, words, options, runner).write()
                of_sources = report.pop("splits_of_sources")
                for number, identity in enumerate([*request["sources"], *(request["heldout_sources"] or [])]):
                    identity["splits"] = {split: counts[number] for split, counts in of_sources.items()}
                with Progress("computing the checksums", show=options.progress):
                    report |= request | {"checksums": checksums(new)}
                    files.write_checksummed_json(new / REPORT, report)
    except RunnerFailed as error:
        raise UserError(f"{error}{kept()}") from error
    except OSError as error:
        raise UserError(f"{out}: cannot be written ({error.strerror or error}){kept()}") from error
    return Corpus.open(out, to_train=False)


def _runner(spool: epath.Path, options: PrepareOptions) -> LocalRunner:
    if options.beam is not None:
        try:
            from elmo_jax.data.prepare.beam import BeamRunner
        except ImportError as error:
            raise UserError(f"--beam: needs Apache Beam ({error}); run: pip install 'elmo_jax[beam]'") from None
        return BeamRunner(spool, options.beam)
    return LocalRunner(spool, options.workers or available_cores(), options.progress)


@contextlib.contextmanager
def _new_folder(out: epath.Path) -> Iterator[epath.Path]:
    """Yields the folder in which one process at a time writes the corpus: an empty one that is renamed at the end.

    In a bucket, it is `out` itself, to which the report is written last.
    """
    if not files.in_bucket(out):
        with files.atomic_folder(Path(out)) as folder:
            yield epath.Path(folder)
        return

    from elmo_jax.runs.lock import locked  # imports JAX

    with locked(out):
        if (out / REPORT).exists():
            raise UserError(f"{out}: another process has prepared it in the meantime; run the command again")
        for name in (BLOCKS, LEXICON, VOCABULARY):
            (out / name).rmtree(missing_ok=True)
        try:
            yield out
        except BaseException:
            for name in (BLOCKS, LEXICON, VOCABULARY):
                (out / name).rmtree(missing_ok=True)
            raise


@contextlib.contextmanager
def _first_reading(folder: epath.Path, request: dict[str, Any], show: bool) -> Iterator[None]:
    """A context with the folder of the first reading, and the files that a stopped command has finished, if any.

    The folder is kept when the command is stopped, when a worker dies and when the disk is full. This process has
    locked the temporary folder of the corpus.
    """
    settings = {name: request["settings"][name] for name in ("errors", "language")}
    sources = [{**identity, "source": ""} for identity in [*request["sources"], *(request["heldout_sources"] or [])]]
    versions = [importlib.metadata.version(name) for name in ("elmo_jax", "sentencex", "sacremoses")]
    asked, job = files.digest_of([settings, sources, versions, pieces.CHUNK_BYTES]), folder / JOB
    is_same = job.exists() and job.read_text(encoding="utf-8") == asked
    if finished := len(list(folder.glob(f"*{PIECE}"))):
        other = "begins again, since its pieces are of another text or of other settings"
        say(f"{folder}: {f'continues with {finished} finished pieces of the text' if is_same else other}", show)
    if not is_same:
        folder.rmtree(missing_ok=True)
        folder.mkdir()
        files.write_text(job, asked)
    keep(folder)
    try:
        yield
    except (KeyboardInterrupt, RunnerFailed, OSError):
        raise
    except BaseException:
        folder.rmtree()
        raise
    folder.rmtree()


def _open(sources: Sequence[str], options: PrepareOptions) -> Text:
    heldout = open_sources(options.heldout_sources, options.text) if options.heldout_sources else []
    # A test on text that was trained on is meaningless.
    trained = [s.without(heldout) if isinstance(s, Files) else s for s in open_sources(sources, options.text)]
    text = [*trained, *heldout]
    check_read_once(text)
    if options.text.field != TextOptions.field and not any(source.format in RECORDS for source in text):
        what = f"--field {options.text.field}: {text[0].name} is read as {text[0].format}, which has no fields"
        raise UserError(f"{what}; leave it out, or name the format with --format ({' or '.join(RECORDS)})")
    say_formats(text, options.progress)
    names = [files.named(source)[0] for source in (*sources, *(options.heldout_sources or ()))]
    return Text(text, len(sources), [name or (OTHERS if any(names) else "") for name in names])


def _check_outside(out: epath.Path, sources: Sequence[str]) -> None:
    """Raises `UserError` if the corpus would be in a folder of text, where it would be read as text the next time."""
    for _, name in map(files.named, sources):
        folder = files.anywhere(name)
        if name == "sotu" or not folder.is_dir() or not out.resolve().is_relative_to(folder.resolve()):
            continue
        below = out.resolve().relative_to(folder.resolve())
        if not any(part.startswith(".") for part in below.parts):  # what is hidden is not read
            raise UserError(f"{out}: is inside {name}, whose text is to be read; name a folder outside of it")


def _request(text: Text, options: PrepareOptions, words: list[str], runner: LocalRunner) -> dict[str, Any]:
    """Returns what identifies a corpus in its report: the settings, and the checksums of the text."""
    paths = [str(path) for source in text.sources if isinstance(source, Files) for path in source.sizes]
    with Progress("computing the checksums of the text", show=options.progress):
        digests = list(runner.map(file_digest, paths, workers=1))
        trained = sum(len(source.sizes) for source in text.sources[: text.trained] if isinstance(source, Files))
        held = {digest: path for (digest, _), path in zip(digests[trained:], paths[trained:], strict=True)}
        for (digest, _), path in zip(digests, paths[:trained], strict=False):
            if digest in held:
                raise UserError(f"{path}: is a copy of {held[digest]}, which is held out; remove one of them")
        remaining = iter(digests)
        identities = [
            {"source": source.name, "format": str(source.format), **source.identity(remaining)}
            | ({"name": name} if name else {})
            for source, name in zip(text.sources, text.names, strict=True)
        ]
    return {
        "settings": {
            "vocabulary_size": options.vocabulary_size,
            "min_count": options.least_count,
            "vocabulary_file": files.digest_of(words) if options.vocabulary_file else None,
            "base_vocabulary_file": files.digest_of(words) if options.base_vocabulary_file else None,
            "heldout_fraction": options.fraction or (None if options.heldout_sources else 0.0),
            "errors": options.text.errors,
            "language": options.text.language,
        },
        "sources": identities[: text.trained],
        "heldout_sources": identities[text.trained :] or None,
    }


def _is_there(out: epath.Path, spool: epath.Path) -> bool:
    if (out / REPORT).exists():
        return True
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return False
    if files.in_bucket(out):  # where a killed launch may have left its lease and a part of the corpus
        from elmo_jax.runs.lock import LEASE

        if (spool / JOB).exists() or all(path.name == LEASE for path in out.iterdir()):
            return False
    raise UserError(f"{out}: holds something that is not a corpus; choose another folder")


def _changes(report: dict[str, Any], request: dict[str, Any]) -> list[str]:
    changes = [
        f"{key} {report['settings'][key]} there, {value} now"
        for key, value in request["settings"].items()
        if report["settings"][key] != value
    ]
    for key in ("sources", "heldout_sources"):
        there, now = report[key] or [], request[key] or []
        if len(there) != len(now):
            changes.append(f"{key.replace('_', ' ')}: {len(there)} there, {len(now)} now")
        for a, b in zip(there, now, strict=False):
            # The name does not identify the text: the same file may be reached by another path.
            if len(there) == len(now) and {**a, "source": "", "splits": ""} != {**b, "source": "", "splits": ""}:
                changes.append(f"{b['source']}: its text, format or name differs from that of {a['source']}")
    return changes


def describe(corpus: Corpus) -> str:
    """Returns the report of a corpus as a short table."""
    report, lexicon, text = corpus.report, corpus.report["lexicon"], corpus.report["text"]
    splits = [report["splits"][name] for name in SPLITS]
    rows: list[tuple[str, ...]] = [("", *SPLITS), *_rows(splits, ("words", "sentences", "documents", "blocks"))]
    for name in dict.fromkeys(source["name"] for split in splits for source in split.get("sources", ())):
        named = [next((s for s in split["sources"] if s["name"] == name), _NO_COUNTS) for split in splits]
        rows += [(f"source {name}",), *_rows(named, ("tokens", "sentences", "blocks"), "  ")]
    sources = [*report["sources"], *(report["heldout_sources"] or ())]
    if len(sources) > 1:
        rows += [("words of",)]
        for source in sources:
            words = (f"{source['splits'][name]['words']:,}" for name in SPLITS)
            rows.append((f"  {files.short_name(source['source'])}", *words))
    width = max(len(row[0]) for row in rows)
    lines = ["  ".join([f"{row[0]:<{width}}", *(f"{cell:>13}" for cell in row[1:])]).rstrip() for row in rows]
    counted = [
        ("distinct words", f"{lexicon['types']:,}"),
        ("softmax vocabulary", f"{lexicon['vocabulary_size']:,}"),
        ("language", corpus.language),
        ("over 48 bytes", f"{lexicon['long_words']:,} distinct, {lexicon['long_word_uses']:,} uses (cut)"),
        ("lines without words", f"{text['empty_lines']:,}"),
        ("<S> and </S>", f"{text['special_words_dropped']:,} (dropped)"),
        ("lines not UTF-8", f"{text['replaced_lines']:,} (replaced)"),
    ]
    if text["unspaced_documents"]:
        counted.append(("without spaces", f"{text['unspaced_documents']:,} (documents left out)"))
    share = text["long_sentence_words"] / max(1, sum(s["words"] for s in splits))
    long = f"{text['long_sentences']:,} sentences, {text['long_sentence_words']:,} words ({share:.2%} of all)"
    longest = f"; the longest has {text['longest_sentence']:,}" if text["long_sentences"] else ""
    counted.append((f"over {LONG_SENTENCE} words", long + longest))
    lines += [f"{label:<{width}}  {value}" for label, value in counted]
    return "\n".join([f"corpus in {corpus.path}", *lines])


def _rows(splits: Sequence[dict[str, Any]], keys: Sequence[str], indent: str = "") -> Iterator[tuple[str, ...]]:
    for key in keys:
        yield indent + key, *("unknown" if split[key] is None else f"{split[key]:,}" for split in splits)
    yield f"{indent}<UNK> among targets", *(f"{split['unknown_targets']:.2%}" for split in splits)
