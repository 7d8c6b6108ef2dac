"""Converts between spans of a sentence, tags per word and brackets.

Four notations are used:
- BIO (IOB2): a span is B-x I-x I-x; every word outside of spans is O.
- IOB1: a span is I-x I-x I-x; it opens with B-x only if it directly follows another span of the same type.
- BIOUL (BILOU): a span of one word is U-x; a longer one is B-x I-x … L-x. BIOES has S for U and E for L.
- Brackets (CoNLL-2005 and CoNLL-2012): a span is `(x*`, `*`, `*)`; a span of one word is `(x*)`.
"""

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

Scheme = Literal["iob1", "bio", "bioul", "bioes"]  # the notations of files
AnyScheme = Literal["auto", "iob1", "bio", "bioul", "bioes"]

# The prefixes of each notation: of the first word of a span, of an inner one, of a single one, and of the last one.
_PREFIXES: dict[Scheme, str] = {"iob1": "BI", "bio": "BI", "bioul": "BIUL", "bioes": "BISE"}
_BRACKET = re.compile(r"(?:\(([^()*]+))?\*(\))?")


class Span(NamedTuple):
    """A span of the words `start` to `end` of a sentence, both inclusive and counted from 0, and its type."""

    label: str
    start: int
    end: int


class TagError(ValueError):
    """A sequence of tags breaks the rules of its notation at the word `position`, from 0, for some `reason`."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(f"tag {position}: {reason}")
        self.position, self.reason = position, reason


def spans(tags: Sequence[str]) -> list[Span]:
    """Returns the spans of BIO or IOB1 tags as conlleval finds them, also if the tags are ill-formed.

    A span starts at every B, at an I after O and at an I of another type than the tag before.
    """
    result: list[Span] = []
    before = ""  # the type of the previous word's span; empty if it is in no span
    for position, tag in enumerate(tags):
        mark, label = _split(tag, position, "BI")
        if mark == "B" or (mark == "I" and label != before):
            result.append(Span(label, position, position))
        elif mark == "I":
            result[-1] = result[-1]._replace(end=position)
        before = label
    return result


def scheme_of(sentences: Sequence[Sequence[str]]) -> Scheme:
    """Returns the notation of the tags of all sentences of a file; raises `ValueError` if there is more than one."""
    marks = {tag[0] for tags in sentences for tag in tags if tag[1:2] == "-"}
    if marks & set("ESUL"):
        return "bioes" if marks & set("ES") else "bioul"
    opened = {"I": "", "B": ""}  # a tag that opens a span as IOB1 has it, and one as only BIO has it
    for tags in sentences:
        for before, tag in zip(("O", *tags), tags, strict=False):
            if tag[:2] in ("I-", "B-") and (before == "O" or before[2:] != tag[2:]):
                opened[tag[0]] = opened[tag[0]] or tag
    if opened["I"] and opened["B"]:
        raise ValueError(f"spans open with I ({opened['I']}), as in IOB1, and others with B ({opened['B']}), as in BIO")
    return "iob1" if opened["I"] else "bio"


def to_bio(tags: Sequence[str], scheme: Scheme) -> list[str]:
    """Converts the tags of one sentence of a file to BIO; raises `TagError` at one that its notation does not allow.

    In the notation "iob1", B may also open a span that follows no other one, as in AllenNLP.
    """
    prefixes = _PREFIXES[scheme]
    if scheme == "iob1":
        return bioul_to_bio(to_bioul(tags))
    last = prefixes[3:]
    open_label = ""  # the type of the open span; empty if none is open
    for position, tag in enumerate(tags):
        prefix, label = _split(tag, position, prefixes)
        continues = prefix == "I" or prefix == last
        if continues and label != open_label and scheme == "bio":
            raise TagError(position, f"{tag!r} opens a span, where BIO expects 'B-{label}'; is the file in IOB1?")
        if (continues and label != open_label) or (last and open_label and not continues):
            before = f"follow {tags[position - 1]!r}" if position else "begin the sentence"
            raise TagError(position, f"{tag!r} cannot {before}")
        open_label = label if prefix in "BI" else ""
    if last and open_label:
        raise TagError(len(tags) - 1, f"the sentence ends inside a span of type {open_label!r}")
    return bioul_to_bio(tags, prefixes)


def to_bioul(tags: Sequence[str]) -> list[str]:
    """Converts BIO or IOB1 tags to BIOUL; ill-formed tags are read as `spans` does."""
    converted = ["O"] * len(tags)
    for label, start, end in spans(tags):
        whole = [f"B-{label}", *[f"I-{label}"] * (end - start - 1), f"L-{label}"]
        converted[start : end + 1] = whole if end > start else [f"U-{label}"]
    return converted


def bioul_to_bio(tags: Sequence[str], prefixes: str = "BIUL") -> list[str]:
    """Converts tags to BIO one by one, U to B and L to I, so that ill-formed sequences stay ill-formed."""
    bio = dict(zip(prefixes, "BIBI", strict=False))
    return [bio.get(tag[0], tag[0]) + tag[1:] for tag in tags]


def brackets(tags: Sequence[str]) -> list[str]:
    """Converts BIO or IOB1 tags to the brackets that srl-eval reads; ill-formed tags are read as `spans` does."""
    cells = ["*"] * len(tags)
    for label, start, end in spans(tags):
        cells[start] = f"({label}{cells[start]}"
        cells[end] += ")"
    return cells


def brackets_to_bio(cells: Sequence[str]) -> list[str]:
    """Converts one column of brackets, which are not nested, to BIO tags; raises `TagError`."""
    tags = []
    open_label = ""
    for position, cell in enumerate(cells):
        match = _BRACKET.fullmatch(cell)
        if not match:
            raise TagError(position, f"expected *, (x*, *) or (x*), found {cell!r}")
        label, closes = match[1], match[2]
        if label and open_label:
            raise TagError(position, f"{cell!r} opens a span inside a span of type {open_label!r}")
        if closes and not (label or open_label):
            raise TagError(position, f"{cell!r} closes a span that was not opened")
        tags.append(f"B-{label}" if label else f"I-{open_label}" if open_label else "O")
        open_label = "" if closes else label or open_label
    if open_label:
        raise TagError(len(cells) - 1, f"the sentence ends inside a span of type {open_label!r}")
    return tags


def _split(tag: str, position: int, marks: str) -> tuple[str, str]:
    """Returns the mark of a tag and its type, which is empty for O and may hold hyphens."""
    if tag == "O":
        return tag, ""
    mark, _, label = tag.partition("-")
    if len(mark) != 1 or mark not in marks or not label:
        expected = ", ".join(["O", *(f"{m}-x" for m in marks)])
        name = {"E": "bioes", "S": "bioes", "U": "bioul", "L": "bioul"}.get(mark if marks == "BI" and label else "")
        hint = f"; set config.data.scheme={name}" if name else ""
        raise TagError(position, f"expected one of {expected}, found {tag!r}{hint}")
    return mark, label
