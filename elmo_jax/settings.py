"""Declares, reads, checks and compares settings; `config` declares the settings of a biLM.

Settings are frozen dataclasses whose fields are made by `setting`. Each field has a default, one sentence that
describes it and, if it is a number or consists of numbers, the range of each number. A choice between words has a
`Literal` type.
"""

import dataclasses
import difflib
import enum
import math
import re
import typing
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from elmo_jax.errors import UserError

Choice = TypeVar("Choice", bound=enum.Enum)
# The new names of settings by their old ones.
RENAMED = {
    "shapes": "num_buckets",
    "vectors": "precompute",
    "longest_answer": "max_answer_length",
    "widest": "max_span_width",
    "spans_per_word": "top_span_ratio",
}
LARGEST_INTEGER = 2**31 - 1  # the largest signed integer of 32 bits


@dataclasses.dataclass(frozen=True)
class Range:
    """The range of numbers that a setting may have; it never includes infinities and NaN."""

    least: float | None = None  # the inclusive lower bound; None for none
    most: float | None = None  # the inclusive upper bound; None for none
    above: float | None = None  # the exclusive lower bound; None for none
    below: float | None = None  # the exclusive upper bound; None for none

    def __contains__(self, value: float) -> bool:
        return (
            (isinstance(value, int) or math.isfinite(value))  # isfinite fails for integers beyond all floats
            and (self.least is None or value >= self.least)
            and (self.most is None or value <= self.most)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        most = None if self.most == LARGEST_INTEGER else self.most  # the bound of integers that have no other
        bounds = (("at least", self.least), ("above", self.above), ("at most", most), ("below", self.below))
        text = " and ".join(f"{name} {bound:,.12g}" for name, bound in bounds if bound is not None)
        return f"a number {'of ' if self.least is not None else ''}{text}" if text else "a finite number"


def setting(default: Any, sentence: str, **bounds: float) -> Any:
    """Makes a field of a dataclass of settings, with its default, its description and the bounds of its `Range`.

    The range is that of a number, or of each number of a tuple; integers without an upper bound are limited to 32 bits.
    """
    is_integer = isinstance(default, int) and not isinstance(default, bool)
    if is_integer and not bounds.keys() & {"most", "below"}:
        bounds["most"] = LARGEST_INTEGER
    return dataclasses.field(default=default, metadata={"sentence": sentence, "range": Range(**bounds)})


def fraction(default: Any, sentence: str) -> Any:
    """Makes a `setting` of a fraction, at least 0 and below 1, or of a tuple of such fractions."""
    return setting(default, sentence, least=0, below=1)


def to_dict(config: Any) -> dict[str, Any]:
    """Returns a dataclass of settings as nested dicts, in the form that is written to JSON."""
    return dataclasses.asdict(config)


def from_dict(values: Any, cls: type, where: str = "config") -> Any:
    """Builds a dataclass of settings from nested dicts or a `ConfigDict`; absent keys get their defaults.

    If the class has a method `check`, it is called at the end; it raises `UserError` for settings that are inconsistent
    with each other. `where` is the prefix of the keys in messages.

    Raises:
      UserError: a key is unknown (the message suggests the nearest key), or a value has the wrong type or is outside
        its range.
    """
    if not hasattr(values, "items"):
        raise UserError(f"{where}: expected settings, got {str(values)[:80]!r}")
    types = typing.get_type_hints(cls)
    known = {field.name: field for field in dataclasses.fields(cls)}
    arguments = {}
    for key, value in values.items():
        if key not in known:
            raise UserError(f"{where}.{key}: no such setting; {near_miss(key, known)}")
        if dataclasses.is_dataclass(types[key]):
            arguments[key] = from_dict(value, typing.cast(type, types[key]), f"{where}.{key}")
        else:
            arguments[key] = _checked(value, types[key], known[key], f"{where}.{key}")
    config = cls(**arguments)
    if hasattr(config, "check"):
        config.check(where)
    return config


def near_miss(key: str, known: Iterable[str]) -> str:
    """Returns what to do about a key that does not exist: the most similar one, or where to look."""
    if key in RENAMED:
        return f"its name is now '{RENAMED[key]}'"
    near = difflib.get_close_matches(key, known, 1)
    return f"did you mean '{near[0]}'?" if near else "`elmo-jax settings FILE` lists all settings"


def _checked(value: Any, expected: Any, field: dataclasses.Field[Any], where: str) -> Any:
    if typing.get_origin(expected) is typing.Literal:
        choices = typing.get_args(expected)
        if value not in choices:
            raise UserError(f"{where}: expected {' or '.join(map(repr, choices))}, got {value!r}")
        return value
    allowed: Range = field.metadata["range"]
    if typing.get_origin(expected) is tuple:
        items = _tuple(value, expected, where)
        for item in items:
            for number in item if isinstance(item, tuple) else (item,):
                if isinstance(number, int | float) and number not in allowed:
                    raise UserError(f"{where}: expected each to be {allowed}, got {number:,}")
        return items
    value = _number(value, expected)
    if isinstance(value, str) and re.search("[\0\ud800-\udfff]", value):  # surrogates stand for bytes that are no UTF-8
        raise UserError(f"{where}: expected text in UTF-8, got {value!r}")
    if type(value) is not expected:
        raise UserError(f"{where}: expected {expected.__name__}, got {value!r}")
    if isinstance(value, int | float) and not isinstance(value, bool) and value not in allowed:
        raise UserError(f"{where}: expected {allowed}, got {value:,}")
    return value


def _number(value: Any, expected: Any) -> Any:
    if expected is float and type(value) is int:  # JSON and command lines may write 1 for 1.0
        try:
            return float(value)
        except OverflowError:  # out of every range
            return math.inf if value > 0 else -math.inf
    return value


def _tuple(value: Any, expected: Any, where: str) -> tuple[Any, ...]:
    item = typing.get_args(expected)[0]
    types = typing.get_args(item) or (item,)
    is_pair = len(types) == 2
    try:
        rows = [[_number(*p) for p in zip(row if is_pair else (row,), types, strict=True)] for row in value]
        if isinstance(value, str) or not all(list(map(type, row)) == list(types) for row in rows):
            raise TypeError
    except (TypeError, ValueError):
        pair = "pairs (name, weight)" if types[0] is str else "pairs (width, number)"
        kind = pair if is_pair else f"several values of {item.__name__}"
        raise UserError(f"{where}: expected {kind}, got {value!r}") from None
    if is_pair:
        return tuple(map(tuple, rows))
    if item is str:  # the command line gives a,b as one string
        return tuple(word for (part,) in rows for word in part.split(",") if word)
    return tuple(part for (part,) in rows)


def walk(config: Any, prefix: str = "") -> Iterator[tuple[str, Any, dataclasses.Field[Any], Any]]:
    """Yields the dotted key, the value, the field and the type of every setting."""
    types = typing.get_type_hints(type(config))
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield from walk(value, f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}", value, field, types[field.name]


def differences(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> dict[str, tuple[Any, Any]]:
    """Returns the settings that differ between two results of `to_dict`, as dotted key -> (old, new)."""
    changes: dict[str, tuple[Any, Any]] = {}
    for key in sorted(old.keys() | new.keys()):
        a, b = old.get(key), new.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            changes |= differences(a, b, f"{prefix}{key}.")
        elif _plain(a) != _plain(b):
            changes[prefix + key] = (a, b)
    return changes


def _plain(value: Any) -> Any:
    """Returns tuples as lists, so that settings compare equal to themselves read back from JSON."""
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def choice(kind: type[Choice], value: Any, name: str) -> Choice:
    """Returns the member of an enumeration that is `value` or has this value, such as "all".

    Raises `UserError` if it has no such member; `name` is that of the argument, for the message.
    """
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(repr(member.value) for member in kind)
        raise UserError(f"{name}: expected one of {known}, got {value!r}") from None
