"""Reads a text for the second time: makes the lexicon, replaces provisional ids with final ones, and writes blocks."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from elmo_jax.characters import MARKS
from elmo_jax.data.blocks import cut_blocks, write_blocks
from elmo_jax.data.corpus import BLOCKS, LEXICON, VOCABULARY, checksums
from elmo_jax.data.lexicon import BEGIN_SENTENCE_ID, END_SENTENCE_ID, UNKNOWN_ID, Lexicon, build_lexicon
from elmo_jax.data.prepare.options import PrepareOptions
from elmo_jax.data.prepare.spool import Part
from elmo_jax.errors import UserError
from elmo_jax.runs.progress import Progress

_TEXT_COUNTS = (  # the counts of a spool that the report has
    "empty_lines",
    "marks_dropped",
    "replaced_lines",
    "unspaced_documents",
    "long_sentences",
    "long_sentence_words",
    "longest_sentence",
)
_LONGEST_SPELT = 48  # the number of bytes per word that the model reads (original: 50, including two marks)


class Vocabularies(NamedTuple):
    """The words of the files of the whole vocabulary and of the one to extend; None for a file that is not given."""

    whole: list[str] | None
    base: list[str] | None


def encode(folder: Path, splits: dict[str, Part], given: Vocabularies, options: PrepareOptions) -> dict[str, Any]:
    """Writes the lexicon, the vocabulary and the blocks.

    Args:
      folder: the folder to write to.
      splits: the text of `train` and `heldout`, parts of one spool; either part may be empty.
      given: the words of the softmax vocabulary, if they are given.
      options: the options of `prepare`.

    Returns:
      The counts for the report.

    Raises:
      UserError: the text has no words, or no words to train on.
    """
    train = splits["train"]
    types = train.spool.types  # the words of both splits
    with Progress("counting the words", show=options.progress):
        counts = {split: part.counts(len(types)) for split, part in splits.items()}
    words = {split: int(counts[split].sum()) for split in splits}
    if not sum(words.values()):
        raise UserError("no words in the text; its lines are all empty")
    if not any(given) and not words["train"]:
        raise UserError("no words left to train on; hold out less, or give a vocabulary file to evaluate with")
    uses = counts["train"].copy()
    uses[[BEGIN_SENTENCE_ID, END_SENTENCE_ID]] = train.sentences
    lexicon, ids = build_lexicon(types, uses, given.whole, options.vocabulary_size, options.least_count, given.base)
    if not any(given) and lexicon.vocabulary_size == len(MARKS):
        raise UserError(
            f"the minimum count is {options.least_count}, and no word occurs that often; choose a smaller one"
        )
    lexicon.write(folder / LEXICON, folder / VOCABULARY)

    named: dict[str, list[dict[str, Any]]] = {split: [] for split in splits}
    size = lexicon.vocabulary_size
    with Progress("writing the blocks", "words", sum(words.values()), options.progress) as bar:
        blocks, digest = write_blocks(
            folder / BLOCKS,
            {split: _blocks(part, ids, size, named[split]) for split, part in splits.items() if words[split]},
            lambda block: bar.add(int(np.count_nonzero(block))),
        )
    content = f"{checksums(folder)[LEXICON]} {size} {digest}"
    content += "".join(f" {split} {s['name']} {s['blocks']}" for split, found in named.items() for s in found)
    sources = {split: part.of_sources() for split, part in splits.items()}
    return {
        "fingerprint": hashlib.sha256(content.encode()).hexdigest(),
        "splits": {
            split: _split_report(sources[split], counts[split], ids, size, blocks.get(split, 0))
            | ({"sources": named[split]} if train.spool.names else {})
            for split in splits
        },
        "splits_of_sources": sources,
        "lexicon": _lexicon_report(lexicon, ids, sum(counts.values(), np.zeros(len(types), np.int64))),
        "text": {name: getattr(train.spool, name) for name in _TEXT_COUNTS},
    }


def _blocks(part: Part, ids: np.ndarray, vocabulary_size: int, named: list[dict[str, Any]]) -> Iterator[np.ndarray]:
    """Yields the blocks of a split, and adds the counts of each named source to `named`, which no block crosses."""
    if not part.spool.names:
        yield from cut_blocks(_encoded(part, ids))
    for name in dict.fromkeys(part.spool.names):
        blocks = tokens = sentences = unknown = 0
        for block in cut_blocks(_encoded(part.of_name(name), ids)):
            blocks += 1
            tokens += len(block)
            sentences += int(np.count_nonzero(block == BEGIN_SENTENCE_ID))
            unknown += int(np.count_nonzero((block >= vocabulary_size) | (block == UNKNOWN_ID)))
            yield block
        counted = {"name": name, "sentences": sentences, "tokens": tokens, "blocks": blocks}
        named.append({**counted, "unknown_targets": unknown / tokens if tokens else 0.0})


def _encoded(part: Part, ids: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    return ((ids[provisional], lengths) for provisional, lengths in part.read())


def _split_report(
    sources: list[dict[str, int | None]], counts: np.ndarray, ids: np.ndarray, vocabulary_size: int, blocks: int
) -> dict[str, Any]:
    """Returns the counts of a split; a target is a word or, once per sentence, a sentence mark."""
    words, sentences = int(counts.sum()), sum(source["sentences"] or 0 for source in sources)
    documents = [source["documents"] for source in sources if source["sentences"]]
    unknown = int(counts[(ids >= vocabulary_size) | (ids == UNKNOWN_ID)].sum())
    targets = words + sentences
    return {
        "words": words,
        "sentences": sentences,
        "tokens": targets,
        "documents": None if None in documents else sum(number or 0 for number in documents),
        "blocks": blocks,
        "unknown_targets": unknown / targets if targets else 0.0,
    }


def _lexicon_report(lexicon: Lexicon, ids: np.ndarray, uses: np.ndarray) -> dict[str, Any]:
    """Returns the counts of the lexicon; `uses` `[n]` counts the words with ids `ids` `[n]` in both splits."""
    long = np.fromiter((len(w.encode()) > _LONGEST_SPELT for w in lexicon.words), bool, len(lexicon.words))
    return {
        "types": len(lexicon.words),
        "vocabulary_size": lexicon.vocabulary_size,
        "long_words": int(long.sum()),
        "long_word_uses": int(uses[long[ids]].sum()),
    }
