"""Values that are given by their names, as settings and arguments are."""

from __future__ import annotations

import enum
from typing import Any, TypeVar

from elmo_jax.errors import UserError

Choice = TypeVar("Choice", bound=enum.Enum)


def choice(kind: type[Choice], value: Any, name: str) -> Choice:
    """Returns a member of an enumeration.

    Args:
      kind: the enumeration.
      value: a member, or the value of one, such as "all".
      name: the name of the argument, for the message.

    Raises:
      UserError: the enumeration has no such member.
    """
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(repr(member.value) for member in kind)
        raise UserError(f"{name}: expected one of {known}, got {value!r}") from None
