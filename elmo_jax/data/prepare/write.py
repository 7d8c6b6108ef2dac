"""Makes a corpus of the sources: tokenizes them, chooses what is held out, and writes the lexicon and the blocks.

The final ids depend on the counts, and the counts on which documents are held out; both are known only when the whole
text was read. So its words are written to files first, one per chunk (`chunk_files`). What is done with a chunk or a
shard of blocks depends on no other one, so that a runner (`local`, `beam`) may do it in any process and any order.
"""

import collections
import functools
import hashlib
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from elmo_jax.characters import SPECIAL_WORDS
from elmo_jax.data import blocks
from elmo_jax.data.blocks import SPLITS, Shard, cut_blocks, write_description, write_shard
from elmo_jax.data.corpus import BLOCKS, checksums
from elmo_jax.data.lexicon import BEGIN_SENTENCE_ID, LEXICON, UNKNOWN_ID, write_lexicon
from elmo_jax.data.prepare.chunk_files import Sizes, Summary, read_chunk, read_ids
from elmo_jax.data.prepare.local import LocalRunner
from elmo_jax.data.prepare.options import PrepareOptions
from elmo_jax.data.prepare.pieces import Source, parts
from elmo_jax.data.prepare.sources import size_of
from elmo_jax.data.prepare.text import Errors
from elmo_jax.data.prepare.units import Division, Planned, Units, divide, units_of
from elmo_jax.errors import UserError
from elmo_jax.runs.progress import Progress


class Vocabularies(NamedTuple):
    """The words of the files of the whole vocabulary and of the one to extend; None for a file that is not given."""

    whole: list[str] | None
    base: list[str] | None


class Text(NamedTuple):
    """The sources of a corpus."""

    sources: list[Source]  # those to train on, then those that are held out
    heldout: int  # the number of the latter
    names: list[str]  # of all; empty if they have none

    @property
    def name_of(self) -> list[str]:
        """The name of each source, which may be empty."""
        return self.names or [""] * len(self.sources)


def write_corpus(
    folder: Path, spool: Path, text: Text, given: Vocabularies, options: PrepareOptions, runner: LocalRunner
) -> dict[str, Any]:
    """Writes the lexicon, the vocabulary and the blocks.

    Args:
      folder: the folder of the corpus.
      spool: the folder of the files of the chunks, which may have some of an earlier call.
      text: the sources.
      given: the words of the softmax vocabulary, if they are given.
      options: the options of `prepare`.
      runner: runs the steps.

    Returns:
      The counts for the report.

    Raises:
      UserError: the text has no words, none to train on or none to hold out, or its words are not separated by spaces;
        or there are bytes that are not UTF-8, with `Errors.STRICT`.
    """
    kinds = _kinds(text)
    summaries = _read(text, kinds, options, runner)
    divisions = _divided(summaries, kinds, text, options)
    chunks = [
        Planned(summary.key, rule)
        for of_source, division in zip(summaries, divisions, strict=True)
        for summary, rule in zip(of_source, division.rules, strict=True)
    ]
    first = given.whole or given.base or SPECIAL_WORDS
    sizes = runner.count(chunks, first)
    of_sources = _sizes_of_sources(chunks, sizes, divisions)
    sentences, words = (sum(source[key] for source in of_sources["train"]) for key in ("sentences", "words"))
    if not any(given) and not words:
        raise UserError("no words left to train on; hold out less, or give a vocabulary file to evaluate with")
    # A boundary token is used once per sentence.
    entries = (
        (word, sentences if number < UNKNOWN_ID else count) for number, (word, count) in enumerate(runner.entries())
    )
    lexicon = write_lexicon(folder, entries, len(first), options.vocabulary_size, options.least_count)
    if not any(given) and lexicon.vocabulary_size == len(SPECIAL_WORDS):
        raise UserError(
            f"the minimum count is {options.least_count}, and no word occurs that often; choose a smaller one"
        )
    runner.number(chunks)
    (folder / BLOCKS).mkdir()
    shards = [shard for split in range(len(SPLITS)) for shard in _shards(chunks, sizes, text.name_of, split)]
    write = functools.partial(_write_shard, spool, folder / BLOCKS, lexicon.vocabulary_size)
    total = sum(source["words"] for split in SPLITS for source in of_sources[split])
    written = []
    with Progress("writing the blocks", "words", total, options.progress) as bar:
        workers = 1 if len(shards) <= len(SPLITS) else None  # starting processes would take longer
        for shard in runner.map(write, shards, workers):
            written.append((shard["split"], Shard(*shard["shard"]), shard["names"]))
            bar.add(sum(tokens - sentences for sentences, tokens, *_ in shard["names"].values()))
    shards_of = {split: [shard for name, shard, _ in written if name == split] for split in SPLITS}
    write_description(folder / BLOCKS, shards_of)
    return _report(folder, text, lexicon._asdict(), of_sources, written) | _text_counts(summaries, lexicon._asdict())


def _kinds(text: Text) -> list[Units]:
    of_text = text.name_of[: len(text.sources) - text.heldout]
    several = [of_text.count(name) > 1 for name in of_text] + [True] * text.heldout
    return [
        units_of(source.format, source.has_documents, one_of_several)
        for source, one_of_several in zip(text.sources, several, strict=True)
    ]


def _read(text: Text, kinds: Sequence[Units], options: PrepareOptions, runner: LocalRunner) -> list[list[Summary]]:
    """Tokenizes the text, and returns the summaries of the chunks of each source."""
    summaries: list[list[Summary]] = [[] for _ in kinds]
    all_parts = parts(text.sources, Errors(options.text.errors), options.text.language or "en")
    unspaced = ""
    for summary in runner.tokenize(all_parts, size_of(text.sources)):
        summaries[summary.key[0]].append(summary)
        unspaced = unspaced or summary.unspaced
        if summary.unspaced and kinds[summary.key[0]] is not Units.DOCUMENTS:
            raise UserError(summary.unspaced)
    every = list(itertools.chain.from_iterable(summaries))
    if 2 * sum(summary.unspaced_bytes for summary in every) > sum(summary.text_bytes for summary in every):
        raise UserError(unspaced)
    if not any(summary.words for summary in every):
        raise UserError("no words in the text; its lines are all empty")
    return summaries


def _divided(
    summaries: Sequence[Sequence[Summary]], kinds: Sequence[Units], text: Text, options: PrepareOptions
) -> list[Division]:
    fractions = [options.fraction] * (len(kinds) - text.heldout) + [1.0] * text.heldout
    boundaries = [[summary.boundaries for summary in of_source] for of_source in summaries]
    divisions = divide(boundaries, kinds, text.name_of, fractions)
    if options.fraction and not any(division.heldout for division in divisions):
        sentences = sum(chunk.sentences for of_source in boundaries for chunk in of_source)
        raise UserError(
            f"--heldout-fraction {options.fraction:g}: nothing can be held out of a text of {sentences} sentences"
            " in one unit; give more text, or held-out text with --heldout, or --heldout-fraction 0"
        )
    return divisions


def _sizes_of_sources(
    chunks: Sequence[Planned], sizes: Sequence[Sizes], divisions: Sequence[Division]
) -> dict[str, list[dict[str, Any]]]:
    """Returns the numbers of documents, sentences and words of each source in each split.

    The number of documents is None if the source does not mark them.
    """
    of_splits = {}
    for split, name in enumerate(SPLITS):
        counts = np.zeros((len(divisions), 2), np.int64)
        for chunk, size in zip(chunks, sizes, strict=True):
            counts[chunk.key[0]] += size[split]
        documents = [division.documents and division.documents[split] for division in divisions]
        of_splits[name] = [
            {"documents": number, "sentences": sentences, "words": words}
            for number, (sentences, words) in zip(documents, counts.tolist(), strict=True)
        ]
    return of_splits


def _shards(
    chunks: Sequence[Planned], sizes: Sequence[Sizes], names: Sequence[str], split: int
) -> Iterator[dict[str, Any]]:
    """Yields what `_write_shard` writes: the text of a split, ordered by names, is cut every `SHARD_TOKENS` tokens."""
    inputs: dict[int, list[Any]] = collections.defaultdict(list)
    rank = {name: number for number, name in enumerate(dict.fromkeys(names))}
    start = 0
    for index in sorted(range(len(chunks)), key=lambda index: rank[names[chunks[index].key[0]]]):
        if tokens := sum(sizes[index][split]):
            for number in range(start // blocks.SHARD_TOKENS, (start + tokens - 1) // blocks.SHARD_TOKENS + 1):
                inputs[number].append((chunks[index], start, names[chunks[index].key[0]]))
        start += tokens
    for number, of_shard in inputs.items():
        yield {"split": SPLITS[split], "number": number, "from": number * blocks.SHARD_TOKENS, "chunks": of_shard}


def _write_shard(spool: Path, folder: Path, vocabulary_size: int, shard: dict[str, Any]) -> dict[str, Any]:
    """Writes the sentences that begin in `SHARD_TOKENS` tokens of a split; no block has text of two names."""
    counts: dict[str, list[int]] = {}

    def cut() -> Iterator[np.ndarray]:
        for name, chunks in itertools.groupby(shard["chunks"], key=lambda chunk: chunk[2]):
            counts[name] = [0, 0, 0, 0]
            for block in cut_blocks(
                _encoded(spool, Planned.of_json(chunk), start, shard) for chunk, start, _ in chunks
            ):
                sentences = int(np.count_nonzero(block == BEGIN_SENTENCE_ID))
                unknown = int(np.count_nonzero((block >= vocabulary_size) | (block == UNKNOWN_ID)))
                counts[name] = [a + b for a, b in zip(counts[name], (sentences, len(block), unknown, 1), strict=True)]
                yield block

    written = write_shard(folder, shard["split"], shard["number"], cut(), spool)
    return {"split": shard["split"], "shard": written, "names": counts}


def _encoded(spool: Path, chunk: Planned, start: int, shard: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ids and lengths of the sentences of a chunk that begin in a shard; the chunk begins at `start`."""
    text = read_chunk(spool, chunk.key)
    keep = chunk.rule.heldout(text.starts, len(text.lengths)) == (shard["split"] == SPLITS[1])
    marked = np.where(keep, text.lengths.astype(np.int64) + 1, 0)
    begins = start + np.cumsum(marked) - marked
    keep &= (begins >= shard["from"]) & (begins < shard["from"] + blocks.SHARD_TOKENS)
    return read_ids(spool, chunk.key)[text.ids[np.repeat(keep, text.lengths)]], text.lengths[keep]


def _report(
    folder: Path,
    text: Text,
    lexicon: dict[str, int],
    of_sources: dict[str, list[dict[str, Any]]],
    written: Sequence[tuple[str, Shard, dict[str, list[int]]]],
) -> dict[str, Any]:
    content = f"{checksums(folder)[LEXICON]} {lexicon['vocabulary_size']}"
    report: dict[str, Any] = {}
    for split in SPLITS:
        named = {name: np.zeros(4, np.int64) for name in text.name_of}
        for name, shard, counts in written:
            if name == split:
                content += f" {split} {shard.sha256}"
                for source, of_source in counts.items():
                    named[source] += of_source
        sentences, tokens, unknown, number = sum(named.values(), np.zeros(4, np.int64)).tolist()
        documents = [source["documents"] for source in of_sources[split] if source["sentences"]]
        report[split] = {
            "words": tokens - sentences,
            "sentences": sentences,
            "tokens": tokens,
            "documents": None if None in documents else sum(documents),
            "blocks": number,
            "unknown_targets": unknown / tokens if tokens else 0.0,
        }
        if text.names:
            report[split]["sources"] = [
                {"name": name, "sentences": counts[0], "tokens": counts[1], "blocks": counts[3]}
                | {"unknown_targets": counts[2] / counts[1] if counts[1] else 0.0}
                for name, counts in ((name, total.tolist()) for name, total in named.items() if tokens)
            ]
            content += "".join(f" {source['name']} {source['blocks']}" for source in report[split]["sources"])
    return {
        "fingerprint": hashlib.sha256(content.encode()).hexdigest(),
        "splits": report,
        "splits_of_sources": of_sources,
    }


def _text_counts(summaries: Sequence[Sequence[Summary]], lexicon: dict[str, int]) -> dict[str, Any]:
    every = list(itertools.chain.from_iterable(summaries))
    text = {name: sum(summary.counts[name] for summary in every) for name in every[0].counts}
    longest = max(summary.longest_sentence for summary in every)
    return {
        "lexicon": {**lexicon, "long_word_uses": text.pop("long_word_uses")},
        "text": {**text, "longest_sentence": longest},
    }
