"""Makes a corpus of the sources: tokenizes them, chooses what is held out, and writes the lexicon and the blocks.

The final ids depend on the counts, and the counts on which documents are held out; both are known only when the whole
text was read. So its words are written to files first, one per chunk (`chunk_files`). What is done with a chunk or a
shard of blocks depends on no other one, so that a runner (`local`, `beam`) may do it in any process and any order.
"""

import collections
import dataclasses
import functools
import hashlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from elmo_jax.characters import SPECIAL_WORDS
from elmo_jax.data import blocks
from elmo_jax.data.blocks import SPLITS, Shard, cut_blocks, write_description, write_shard
from elmo_jax.data.corpus import BLOCKS, checksums
from elmo_jax.data.lexicon import BEGIN_SENTENCE_ID, LEXICON, UNKNOWN_ID, write_lexicon
from elmo_jax.data.prepare.chunk_files import IDS, Planned, Sizes, Summary, divide, read_arrays, read_chunk
from elmo_jax.data.prepare.local import LocalRunner
from elmo_jax.data.prepare.options import PrepareOptions
from elmo_jax.data.prepare.pieces import parts
from elmo_jax.data.prepare.sources import Source, size_of
from elmo_jax.data.prepare.text import Errors, Format
from elmo_jax.errors import UserError
from elmo_jax.runs.progress import Progress


class Text(NamedTuple):
    """The sources of a corpus."""

    sources: list[Source]  # those to train on, then those that are held out
    trained: int  # the number of the former
    names: list[str]  # the name of each source, which is empty if none has one


@dataclasses.dataclass(frozen=True)
class CorpusWriter:
    """Writes the lexicon, the vocabulary and the blocks."""

    folder: epath.Path  # of the corpus
    spool: epath.Path  # the folder of the files of the chunks, which may have some of an earlier command
    text: Text
    given: Sequence[str]  # the words of the softmax vocabulary, or the first of them; empty unless given
    options: PrepareOptions
    runner: LocalRunner

    def write(self) -> dict[str, Any]:
        """Writes the lexicon, the vocabulary and the blocks, and returns the counts for the report."""
        summaries = self._read()
        chunks = self._divided(summaries)
        sizes = self.runner.count(chunks, self.given or SPECIAL_WORDS)
        of_sources = self._sizes_of_sources(chunks, sizes)
        lexicon = self._write_lexicon(of_sources)
        self.runner.number(chunks)
        size = lexicon["vocabulary_size"]
        shards = self._write_blocks(list(zip(chunks, sizes, strict=True)), size)
        report = self._report(of_sources, shards, f"{checksums(self.folder)[LEXICON]} {size}")
        counts = {name: sum(summary.counts[name] for summary in summaries) for name in summaries[0].counts}
        return {
            **report,
            "splits_of_sources": of_sources,
            "lexicon": {**lexicon, "long_word_uses": counts.pop("long_word_uses")},
            "text": {**counts, "longest_sentence": max(summary.longest_sentence for summary in summaries)},
        }

    def _read(self) -> list[Summary]:
        text, sources, summaries, unspaced = self.options.text, self.text.sources, [], ""
        all_parts = parts(sources, Errors(text.errors), text.language or "en")
        for summary in self.runner.tokenize(all_parts, size_of(sources)):
            summaries.append(summary)
            unspaced = unspaced or summary.unspaced
            if summary.unspaced and not sources[summary.key[0]].has_documents:
                raise UserError(summary.unspaced)
        if 2 * sum(summary.unspaced_bytes for summary in summaries) > sum(summary.text_bytes for summary in summaries):
            raise UserError(unspaced)
        if not any(summary.words for summary in summaries):
            names = ", ".join(source.name for source in sources)
            raise UserError(f"{names}: no words in the text; its lines are all empty")
        return summaries

    def _divided(self, summaries: Sequence[Summary]) -> list[Planned]:
        groups = collections.defaultdict[tuple[float, bool, str | int], list[Summary]](list)
        for number, of_source in itertools.groupby(summaries, key=lambda summary: summary.key[0]):
            source, names = self.text.sources[number], self.text.names[: self.text.trained]
            is_one_of_several = number >= self.text.trained or names.count(self.text.names[number]) > 1
            # Running text named with others is one document each, as a file of a folder is.
            shared = is_one_of_several and source.format is Format.RAW and not source.has_documents
            fraction = self.options.fraction if number < self.text.trained else 1.0
            name = self.text.names[number] if shared else number
            has_documents = shared or source.has_documents
            groups[fraction, has_documents, name] += of_source
        planned: list[Planned] = []
        for (fraction, has_documents, _), chunks in groups.items():
            planned += divide([(c.key, c.boundaries) for c in chunks], has_documents, fraction)
        return sorted(planned)

    def _sizes_of_sources(self, chunks: Sequence[Planned], sizes: Sequence[Sizes]) -> dict[str, list[dict[str, Any]]]:
        """Returns the numbers of documents (None if they are not marked), sentences and words of splits and sources."""
        counts = np.zeros((len(self.text.sources), *np.shape(sizes)[1:]), np.int64)
        np.add.at(counts, [chunk.key[0] for chunk in chunks], sizes)
        unmarked = {chunk.key[0] for chunk in chunks if chunk.size}
        return {
            split: [
                {"documents": None if number in unmarked else documents, "sentences": sentences, "words": words}
                for number, (documents, sentences, words) in enumerate(counts[:, index].tolist())
            ]
            for index, split in enumerate(SPLITS)
        }

    def _write_lexicon(self, of_sources: dict[str, list[dict[str, Any]]]) -> dict[str, int]:
        options = self.options
        trained, heldout = (sum(source["sentences"] for source in of_sources[split]) for split in SPLITS)
        if options.fraction and not heldout:
            problem = f"nothing can be held out of a text of {trained} sentences in one unit"
            remedy = "give more text, or held-out text with --heldout, or --heldout-fraction 0"
            raise UserError(f"--heldout-fraction {options.fraction:g}: {problem}; {remedy}")
        if not self.given and not trained:
            raise UserError("no words left to train on; hold out less, or give a vocabulary file to evaluate with")
        numbered = enumerate(self.runner.entries())  # a boundary token is used once per sentence
        entries = ((word, trained if number < UNKNOWN_ID else count) for number, (word, count) in numbered)
        first = len(self.given or SPECIAL_WORDS)
        lexicon = write_lexicon(self.folder, entries, first, options.vocabulary_size, options.least_count)
        if not self.given and lexicon["vocabulary_size"] == len(SPECIAL_WORDS):
            least = options.least_count
            raise UserError(f"the minimum count is {least}, and no word occurs that often; choose a smaller one")
        return lexicon

    def _write_blocks(self, planned: Sequence[tuple[Planned, Sizes]], vocabulary_size: int) -> list[Any]:
        folder = self.folder / BLOCKS
        folder.mkdir()
        shards = [shard for split in range(len(SPLITS)) for shard in _shards(planned, self.text.names, split)]
        write = functools.partial(_write_shard, self.spool, folder, vocabulary_size)
        words = sum(words for _, sizes in planned for _, _, words in sizes)
        written = []
        with Progress("writing the blocks", "words", words, self.options.progress) as bar:
            workers = 1 if len(shards) <= len(SPLITS) else None  # starting processes would take longer
            for split, shard, counts in self.runner.map(write, shards, workers):
                written.append((split, Shard(*shard), counts))
                bar.add(sum(tokens - sentences for sentences, tokens, *_ in counts.values()))
        write_description(folder, {name: [shard for split, shard, _ in written if split == name] for name in SPLITS})
        return written

    def _report(self, of_sources: dict[str, list[dict[str, Any]]], shards: list[Any], content: str) -> dict[str, Any]:
        """Returns the counts of the splits, and the fingerprint of `content` and the shards."""
        report: dict[str, Any] = {}
        for split in SPLITS:
            of_names = {name: np.zeros(4, np.int64) for name in self.text.names}
            for of_split, shard, counts in shards:
                if of_split == split:
                    content += f" {split} {shard.sha256}"
                    for name, of_name in counts.items():
                        of_names[name] += of_name
            documents = [source["documents"] for source in of_sources[split] if source["sentences"]]
            total = _counts(sum(of_names.values(), np.zeros(4, np.int64)))
            words, total_documents = total["tokens"] - total["sentences"], None if None in documents else sum(documents)
            report[split] = {"words": words, "documents": total_documents, **total}
            if any(self.text.names):
                named = [{"name": name, **_counts(counts)} for name, counts in of_names.items() if counts.any()]
                report[split]["sources"] = named
                content += "".join(f" {source['name']} {source['blocks']}" for source in named)
        return {"fingerprint": hashlib.sha256(content.encode()).hexdigest(), "splits": report}


def _counts(counts: np.ndarray) -> dict[str, Any]:
    sentences, tokens, unknown, number = counts.tolist()
    share = unknown / tokens if tokens else 0.0
    return {"sentences": sentences, "tokens": tokens, "blocks": number, "unknown_targets": share}


def _shards(planned: Sequence[tuple[Planned, Sizes]], names: Sequence[str], split: int) -> Iterator[dict[str, Any]]:
    """Yields what `_write_shard` writes: the text of a split, ordered by names, is cut every `SHARD_TOKENS` tokens."""
    inputs = collections.defaultdict[int, list[Any]](list)
    rank = {name: number for number, name in enumerate(dict.fromkeys(names))}
    start = 0
    for chunk, sizes in sorted(planned, key=lambda item: rank[names[item[0].key[0]]]):
        _, sentences, words = sizes[split]
        end = start + sentences + words
        for number in range(start // blocks.SHARD_TOKENS, -(-end // blocks.SHARD_TOKENS) if end > start else 0):
            inputs[number].append((chunk, start, names[chunk.key[0]]))
        start = end
    for number, of_shard in inputs.items():
        yield {"split": SPLITS[split], "number": number, "from": number * blocks.SHARD_TOKENS, "chunks": of_shard}


def _write_shard(spool: epath.Path, folder: epath.Path, vocabulary_size: int, shard: dict[str, Any]) -> Any:
    """Writes the sentences that begin in `SHARD_TOKENS` tokens of a split; no block has text of two names.

    Returns the split, the shard, and the sentences, tokens, unknown targets and blocks of each name.
    """
    counts: dict[str, list[int]] = {}

    def cut() -> Iterator[np.ndarray]:
        for name, chunks in itertools.groupby(shard["chunks"], key=lambda chunk: chunk[2]):
            counts[name] = [0, 0, 0, 0]
            parts = (_encoded(spool, Planned.of_json(chunk), start, shard) for chunk, start, _ in chunks)
            for block in cut_blocks(parts):
                sentences = int(np.count_nonzero(block == BEGIN_SENTENCE_ID))
                unknown = int(np.count_nonzero((block >= vocabulary_size) | (block == UNKNOWN_ID)))
                counts[name] = [a + b for a, b in zip(counts[name], (sentences, len(block), unknown, 1), strict=True)]
                yield block

    return shard["split"], write_shard(folder, shard["split"], shard["number"], cut(), spool), counts


def _encoded(spool: epath.Path, chunk: Planned, start: int, shard: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ids and lengths of the sentences of a chunk that begin in a shard; the chunk begins at `start`."""
    text = read_chunk(spool, chunk.key)
    keep = chunk.divide(text.starts, len(text.lengths))[0] == (shard["split"] == SPLITS[1])
    marked = np.where(keep, text.lengths.astype(np.int64) + 1, 0)
    begins = start + np.cumsum(marked) - marked
    keep &= (begins >= shard["from"]) & (begins < shard["from"] + blocks.SHARD_TOKENS)
    return read_arrays(spool, chunk.key, IDS)[0][text.ids[np.repeat(keep, text.lengths)]], text.lengths[keep]
