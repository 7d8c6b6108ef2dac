"""Shows the progress of `prepare`: a bar on a terminal, a few plain lines elsewhere."""

import sys
import time
from typing import Self

from tqdm import tqdm

_SECONDS_BETWEEN_LINES = 30.0


def say(line: str, show: bool) -> None:
    """Prints one line to standard error if `show` is true."""
    if show:
        print(line, file=sys.stderr, flush=True)


class Progress:
    """A context manager that counts the words processed in one phase."""

    def __init__(self, phase: str, show: bool, total: int | None = None) -> None:
        """Begins a phase.

        Args:
          phase: the name of the phase, such as "reading the text".
          show: whether progress is shown.
          total: the number of words to process, if known.
        """
        self._phase, self._total = phase, total
        self._show_lines = show and not sys.stderr.isatty()
        self._bar = tqdm(
            total=total,
            desc=phase,
            unit=" words",
            unit_scale=True,
            dynamic_ncols=True,
            disable=not (show and sys.stderr.isatty()),
        )
        self._words, self._next_line = 0, time.monotonic() + _SECONDS_BETWEEN_LINES
        say(phase, self._show_lines)

    def add(self, words: int) -> None:
        """Counts words that have been processed."""
        self._words += words
        self._bar.update(words)
        if self._show_lines and time.monotonic() > self._next_line:
            self._next_line += _SECONDS_BETWEEN_LINES
            share = f" of {self._total:,}" if self._total else ""
            say(f"{self._phase}: {self._words:,}{share} words", True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()
