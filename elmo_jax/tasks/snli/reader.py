"""Reads pairs of sentences with an entailment label: the files of SNLI, and others in the same layouts."""

import csv
import functools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal

from elmo_jax.data.prepare.text import raw_sentences
from elmo_jax.tasks.core.classification import ClassifiedTexts
from elmo_jax.tasks.core.task import report
from elmo_jax.tasks.formats.lines import read_json
from elmo_jax.tasks.formats.penn import unescape
from elmo_jax.text_files import Line, error_at, read_lines
from elmo_jax.words import is_blank, split_words

LABELS = ("entailment", "neutral", "contradiction")
_NO_LABEL = "-"
WITHOUT_LABEL = "pairs left out, since their annotators did not agree on a label"
_PARALLEL = "labels."  # labels.dev next to s1.dev and s2.dev, the layout of e-SNLI and InferSent

Quoting = Literal["none", "csv"]

_LABEL, _PREMISE, _HYPOTHESIS = "gold_label", "sentence1", "sentence2"
_PREMISE_PARSE, _HYPOTHESIS_PARSE = "sentence1_binary_parse", "sentence2_binary_parse"


def read(path: Path, quoting: Quoting) -> list[ClassifiedTexts]:
    """Reads JSON lines (`.jsonl`), `labels.PART` next to `s1.PART` and `s2.PART`, or otherwise lines with tabs."""
    if ".jsonl" in map(str.lower, path.suffixes):
        return read_jsonl(path)
    if path.name.startswith(_PARALLEL):
        part = path.name.removeprefix(_PARALLEL)
        return read_parallel(path, path.with_name(f"s1.{part}"), path.with_name(f"s2.{part}"))
    return read_tab(path, quoting)


def read_jsonl(path: Path) -> list[ClassifiedTexts]:
    """Reads a file of JSON objects, one per line, as SNLI was published.

    The words are the leaves of `sentence1_binary_parse` and `sentence2_binary_parse` (original: the ESIM program), with
    bracket names and quotes as `penn.unescape` maps them.

    Raises:
      UserError: a line is not a JSON object in which these two fields and `gold_label` are strings, a label is unknown,
        or a sentence has no words.
    """
    rows = []
    for line in read_lines(path):
        if is_blank(line.text):
            continue
        record = read_json(path, line.text, line.number)
        values = []
        for key in (_LABEL, _PREMISE_PARSE, _HYPOTHESIS_PARSE):
            value = record.get(key) if isinstance(record, dict) else None
            if not isinstance(value, str):
                raise error_at(path, line.number, f"expected a JSON object whose {key!r} is a string, found {value!r}")
            values.append(value)
        rows.append((line.number, values))
    return _pairs(path, rows, _leaves)


def read_tab(path: Path, quoting: Quoting = "none") -> list[ClassifiedTexts]:
    """Reads a file with one pair per line and columns separated by tabs.

    Without a header line, the columns are label, premise and hypothesis. A header line names the columns: `gold_label`,
    and either the two binary parses, whose leaves are then the words, or `sentence1` and `sentence2`.

    Sentences without parses are split into words like running text for pretraining: by the Moses tokenizer, after
    quotes and dashes have been replaced by plain ones (`data.prepare.text.raw_sentences`).

    Args:
      path: the file.
      quoting: "csv" if cells may be in double quotes, with double quotes inside them doubled, as spreadsheets and
        pandas write them.

    Raises:
      UserError: a line has another number of columns than the first one, the quotes of a cell are wrong, a label is
        unknown, or a sentence has no words.
    """
    header = [_LABEL, _PREMISE, _HYPOTHESIS]
    rows: list[tuple[int, list[str]]] = []
    for line in read_lines(path):
        if is_blank(line.text):
            continue
        cells = _cells(path, line, quoting)
        if line.number == 1 and _LABEL in cells:
            header = cells
            continue
        if len(cells) != len(header):
            message = f"expected {len(header)} columns separated by tabs, found {len(cells)}"
            raise error_at(path, line.number, message)
        rows.append((line.number, cells))
    has_parses = _PREMISE_PARSE in header and _HYPOTHESIS_PARSE in header
    names = (_LABEL, _PREMISE_PARSE, _HYPOTHESIS_PARSE) if has_parses else (_LABEL, _PREMISE, _HYPOTHESIS)
    for name in names:
        if name not in header:
            raise error_at(path, 1, f"the header line names no column {name!r}")
    picked = [header.index(name) for name in names]
    return _pairs(
        path, [(number, [row[i] for i in picked]) for number, row in rows], _leaves if has_parses else tokenize
    )


def read_parallel(labels: Path, premises: Path, hypotheses: Path) -> list[ClassifiedTexts]:
    """Reads three files whose lines of the same number belong together, the layout of SNLI in e-SNLI and InferSent.

    Each line has a label or a tokenized sentence, whose bracket names and quotes are mapped by `penn.unescape`.

    Raises:
      UserError: one file has fewer lines than another, a label is unknown, or a sentence has no words.
    """
    files = [list(read_lines(path)) for path in (labels, premises, hypotheses)]
    shortest = min(files, key=len)
    for path, lines in zip((labels, premises, hypotheses), files, strict=True):
        if len(lines) != len(shortest):
            short = (labels, premises, hypotheses)[files.index(shortest)]
            raise error_at(path, len(shortest) + 1, f"{short} has no such line; the files must match line by line")
    rows = [(line[0].number, [line[0].text.strip(), line[1].text, line[2].text]) for line in zip(*files, strict=True)]
    return _pairs(labels, rows, _tokens)


def _pairs(
    path: Path, rows: Iterable[tuple[int, Sequence[str]]], split: Callable[[str], list[str]]
) -> list[ClassifiedTexts]:
    """Makes examples from rows, each with its line number, label, premise and hypothesis."""
    split = functools.cache(split)  # most premises of SNLI occur three times
    examples = []
    without_label = 0
    for number, (label, premise, hypothesis) in rows:
        if label == _NO_LABEL:
            without_label += 1
            continue
        if label not in LABELS:
            raise error_at(path, number, f"expected a label of {', '.join(LABELS)} or '-', found {label!r}")
        texts = (split(premise), split(hypothesis))
        if not all(texts):
            raise error_at(path, number, f"the {'hypothesis' if texts[0] else 'premise'} has no words")
        examples.append(ClassifiedTexts(texts, label))
    report(path, {WITHOUT_LABEL: without_label})
    return examples


def _tokens(sentence: str) -> list[str]:
    return [unescape(word) for word in split_words(sentence)]


def _leaves(parse: str) -> list[str]:
    return [unescape(piece) for piece in split_words(parse) if piece not in ("(", ")")]


def tokenize(sentence: str) -> list[str]:
    """Splits a sentence into words as running text is split for pretraining, by the Moses tokenizer."""
    return [word for words in raw_sentences([sentence], paragraph_lines=True) for word in words]


def _cells(path: Path, line: Line, quoting: Quoting) -> list[str]:
    if quoting == "none":
        return line.text.split("\t")
    try:
        return next(csv.reader([line.text], delimiter="\t", strict=True))
    except csv.Error as error:
        raise error_at(path, line.number, f"not a line of quoted columns ({error})") from None
