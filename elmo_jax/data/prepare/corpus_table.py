"""The report that `prepare` prints about a corpus."""

from __future__ import annotations

from pathlib import Path

from elmo_jax.data.blocks import SPLITS
from elmo_jax.data.corpus import Corpus
from elmo_jax.data.prepare.text import LONG_SENTENCE


def describe(corpus: Corpus) -> str:
    """Returns the report of a corpus as a short table."""
    report, lexicon, text = corpus.report, corpus.report["lexicon"], corpus.report["text"]
    splits = [report["splits"][name] for name in SPLITS]
    rows: list[tuple[str, ...]] = [("", *SPLITS)]
    for key in ("words", "sentences", "documents", "blocks"):
        rows.append((key, *("unknown" if s[key] is None else f"{s[key]:,}" for s in splits)))
    rows.append(("<UNK> among targets", *(f"{s['unknown_targets']:.2%}" for s in splits)))
    sources = [*report["sources"], *(report["heldout_sources"] or ())]
    if len(sources) > 1 and all("splits" in source for source in sources):  # older reports have no counts per source
        rows += [("words of",)]
        rows += [(f"  {_last(s['source'])}", *(f"{s['splits'][name]['words']:,}" for name in SPLITS)) for s in sources]
    width = max(len(row[0]) for row in rows)
    lines = ["  ".join([f"{row[0]:<{width}}", *(f"{cell:>13}" for cell in row[1:])]).rstrip() for row in rows]
    counted = [
        ("distinct words", f"{lexicon['types']:,}"),
        ("softmax vocabulary", f"{lexicon['vocabulary_size']:,}"),
        ("over 48 bytes", f"{lexicon['long_words']:,} distinct, {lexicon['long_word_uses']:,} uses (cut)"),
        ("lines without words", f"{text['empty_lines']:,}"),
        ("marks in the text", f"{text['marks_dropped']:,} (dropped)"),
        ("lines not UTF-8", f"{text['replaced_lines']:,} (replaced)"),
    ]
    if text.get("unspaced_documents"):  # older reports do not have it
        counted.append(("without spaces", f"{text['unspaced_documents']:,} (documents left out)"))
    if "long_sentences" in text:
        long, words = text["long_sentences"], text["long_sentence_words"]
        share = words / max(1, sum(s["words"] for s in splits))
        longest = f"; the longest has {text['longest_sentence']:,}" if long else ""
        counted.append(
            (f"over {LONG_SENTENCE} words", f"{long:,} sentences, {words:,} words ({share:.2%} of all){longest}")
        )
    lines += [f"{label:<{width}}  {value}" for label, value in counted]
    return "\n".join([f"corpus in {corpus.path}", *lines])


def _last(name: str) -> str:
    """Returns the last part of a source's name, which is enough to recognise it."""
    return name if name.lower().startswith("tfds:") else Path(name).name
