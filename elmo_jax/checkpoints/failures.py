"""What Orbax and TensorStore raise and log when a file cannot be written, in words for a person."""

from __future__ import annotations

import logging
import os
import re

_NUMBER = re.compile(r"os_error_code='(\d+)'")  # TensorStore's way to tell the operating system's error


def is_of_storage(error: Exception) -> bool:
    """Whether the operating system refused a file operation (no space left, no permission, …)."""
    return isinstance(error, OSError) or _NUMBER.search(str(error)) is not None


def reason(error: Exception) -> str:
    """The operating system's words for what went wrong, where the error has its number; else its own first line."""
    number = _NUMBER.search(str(error))
    if number:
        return os.strerror(int(number[1]))
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]


def raise_only() -> None:
    """Orbax logs every error of its threads, traceback and all, before it raises it; this leaves the raising."""
    logging.getLogger("absl").addFilter(_is_news)  # a filter that is there already is not added again


def _is_news(record: logging.LogRecord) -> bool:
    return not (record.exc_info and f"{os.sep}orbax{os.sep}" in record.pathname)
