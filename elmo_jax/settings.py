"""How settings are declared, read, checked and compared; `config` declares those of a biLM.

Settings are frozen dataclasses whose fields are made by `setting`: each has a default, one sentence that says what it
is, and, if it is a number, the range of its values. Words to choose from are `Literal` types.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import typing
from collections.abc import Iterator
from typing import Any

from elmo_jax.errors import UserError

LARGEST_INTEGER = 2**31 - 1  # what 32 bits hold


@dataclasses.dataclass(frozen=True)
class Range:
    """The numbers that a setting may have; infinities and NaN are never among them."""

    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None

    def __contains__(self, value: float) -> bool:
        return (
            math.isfinite(value)
            and (self.least is None or value >= self.least)
            and (self.most is None or value <= self.most)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        bounds = (("at least", self.least), ("above", self.above), ("at most", self.most), ("below", self.below))
        said = " and ".join(f"{name} {bound:,}" for name, bound in bounds if bound is not None)
        return said or "any finite number"


def setting(
    default: Any,
    sentence: str,
    *,
    least: float | None = None,
    most: float | None = None,
    above: float | None = None,
    below: float | None = None,
) -> Any:
    """A field of a dataclass of settings.

    Args:
      default: its value where none is given.
      sentence: says what it is.
      least, most, above, below: bounds of a number; integers have at most 32 bits in any case.
    """
    if isinstance(default, int) and not isinstance(default, bool) and most is None and below is None:
        most = LARGEST_INTEGER
    metadata = {"sentence": sentence, "range": Range(least, most, above, below)}
    return dataclasses.field(default=default, metadata=metadata)


def to_dict(config: Any) -> dict[str, Any]:
    """A dataclass of settings as plain dicts, as it is written to JSON."""
    return dataclasses.asdict(config)


def from_dict(values: Any, cls: type, where: str = "config") -> Any:
    """Builds a dataclass of settings from nested dicts or a `ConfigDict`; absent keys take their defaults.

    A class with a method `check` has it called at the end: it raises `UserError` for settings that do not go together.

    Args:
      values: the dicts.
      cls: the dataclass.
      where: what the keys are prefixed with in messages.

    Raises:
      UserError: an unknown key (with the near miss), or a value of the wrong type or outside its range.
    """
    types = typing.get_type_hints(cls)
    known = {field.name: field for field in dataclasses.fields(cls)}
    arguments = {}
    for key, value in values.items():
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            hint = f"did you mean '{near[0]}'?" if near else f"known keys: {', '.join(sorted(known))}"
            raise UserError(f"{where}.{key}: no such setting; {hint}")
        if dataclasses.is_dataclass(types[key]):
            if not hasattr(value, "items"):
                raise UserError(f"{where}.{key}: expected settings, got {value!r}")
            arguments[key] = from_dict(value, typing.cast(type, types[key]), f"{where}.{key}")
        else:
            arguments[key] = _checked(value, types[key], known[key], f"{where}.{key}")
    config = cls(**arguments)
    if hasattr(config, "check"):
        config.check(where)
    return config


def _checked(value: Any, expected: Any, field: dataclasses.Field[Any], where: str) -> Any:
    """`value` as the field's type, within its range."""
    if typing.get_origin(expected) is typing.Literal:
        choices = typing.get_args(expected)
        if value not in choices:
            raise UserError(f"{where}: expected {' or '.join(map(repr, choices))}, got {value!r}")
        return value
    if typing.get_origin(expected) is tuple:
        return _tuple(value, expected, where)
    if expected is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)  # JSON and command lines allow 1 for 1.0
    if type(value) is not expected:
        raise UserError(f"{where}: expected {expected.__name__}, got {value!r}")
    if isinstance(value, int | float) and not isinstance(value, bool) and value not in field.metadata["range"]:
        raise UserError(f"{where}: expected a number {field.metadata['range']}, got {value:,}")
    return value


def _tuple(value: Any, expected: Any, where: str) -> tuple[Any, ...]:
    """JSON and ConfigDicts turn tuples to lists: a tuple of numbers or texts, or of pairs of whole numbers."""
    item = typing.get_args(expected)[0]
    try:
        if typing.get_origin(item) is tuple:
            pairs = tuple((width, number) for width, number in value)
            if not all(type(part) is int for pair in pairs for part in pair):
                raise TypeError
            return pairs
        items = tuple(value)
    except (TypeError, ValueError):
        kind = "pairs (width, number)" if typing.get_origin(item) is tuple else f"several values of {item.__name__}"
        raise UserError(f"{where}: expected {kind}, got {value!r}") from None
    if isinstance(value, str) or not all(type(part) is item for part in items):
        raise UserError(f"{where}: expected several values of {item.__name__}, got {value!r}")
    return items


def walk(config: Any, prefix: str = "") -> Iterator[tuple[str, Any, dataclasses.Field[Any], Any]]:
    """Every setting: its dotted key, its value, its field and its type."""
    types = typing.get_type_hints(type(config))
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield from walk(value, f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}", value, field, types[field.name]


def differences(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> dict[str, tuple[Any, Any]]:
    """The settings that differ between two `to_dict` results: dotted key -> (old, new)."""
    found: dict[str, tuple[Any, Any]] = {}
    for key in sorted(old.keys() | new.keys()):
        a, b = old.get(key), new.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            found |= differences(a, b, f"{prefix}{key}.")
        elif _plain(a) != _plain(b):
            found[prefix + key] = (a, b)
    return found


def _plain(value: Any) -> Any:
    """Tuples as lists, so that settings compare equal to themselves read back from JSON."""
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
