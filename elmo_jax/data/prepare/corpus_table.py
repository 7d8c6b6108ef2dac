"""The report that `prepare` prints about a corpus."""

from collections.abc import Iterator, Sequence
from typing import Any

from elmo_jax.data.blocks import SPLITS
from elmo_jax.data.corpus import Corpus
from elmo_jax.data.prepare.text import LONG_SENTENCE
from elmo_jax.files import short_name

_NOTHING = {"tokens": 0, "sentences": 0, "blocks": 0, "unknown_targets": 0.0}


def describe(corpus: Corpus) -> str:
    """Returns the report of a corpus as a short table."""
    report, lexicon, text = corpus.report, corpus.report["lexicon"], corpus.report["text"]
    splits = [report["splits"][name] for name in SPLITS]
    rows: list[tuple[str, ...]] = [("", *SPLITS), *_rows(splits, ("words", "sentences", "documents", "blocks"))]
    for name in dict.fromkeys(source["name"] for split in splits for source in split.get("sources", ())):
        named = [next((s for s in split["sources"] if s["name"] == name), _NOTHING) for split in splits]
        rows += [(f"source {name}",), *_rows(named, ("tokens", "sentences", "blocks"), "  ")]
    sources = [*report["sources"], *(report["heldout_sources"] or ())]
    if len(sources) > 1:
        rows += [("words of",)]
        for source in sources:
            words = (f"{source['splits'][name]['words']:,}" for name in SPLITS)
            rows.append((f"  {short_name(source['source'])}", *words))
    width = max(len(row[0]) for row in rows)
    lines = ["  ".join([f"{row[0]:<{width}}", *(f"{cell:>13}" for cell in row[1:])]).rstrip() for row in rows]
    counted = [
        ("distinct words", f"{lexicon['types']:,}"),
        ("softmax vocabulary", f"{lexicon['vocabulary_size']:,}"),
        ("language", corpus.language),
        ("over 48 bytes", f"{lexicon['long_words']:,} distinct, {lexicon['long_word_uses']:,} uses (cut)"),
        ("lines without words", f"{text['empty_lines']:,}"),
        ("<S>, </S>, <UNK>", f"{text['special_words_dropped']:,} (dropped)"),
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
