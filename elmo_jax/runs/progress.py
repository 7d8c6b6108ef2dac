"""What a run shows while it works."""

from __future__ import annotations

import sys

from tqdm import tqdm


class RunProgress:
    """One live line on a terminal; elsewhere a plain line at every report.

    A silent one is for processes that do not speak.
    """

    def __init__(self, total: int, done: int, unit: str = "step", silent: bool = False) -> None:
        """`total` units of work (steps, epochs), of which `done` were made before."""
        self._total, self._unit, self._silent = total, unit, silent
        self._terminal = sys.stderr.isatty()
        self._bar = tqdm(
            total=total,
            initial=done,
            unit=unit,
            dynamic_ncols=True,
            disable=silent or not self._terminal,
            bar_format=unit + " {n_fmt}/{total_fmt} |{bar}|{desc} · {remaining} left",
        )

    def advance(self) -> None:
        """Counts one unit of work."""
        self._bar.update(1)

    def show(self, text: str, done: int, seconds_left: float) -> None:
        """Shows the newest metrics.

        Args:
          text: the metrics.
          done: units of work made.
          seconds_left: until the end.
        """
        if self._terminal:
            self._bar.set_description_str(f" {text}")  # tqdm would put a comma before a postfix
        else:
            minutes, seconds = divmod(round(seconds_left), 60)
            self.say(f"{self._unit} {done}/{self._total} · {text} · {minutes}:{seconds:02d} left")

    def say(self, text: str) -> None:
        """Writes a line that stays."""
        if not self._silent:
            tqdm.write(text, file=sys.stderr if self._terminal else sys.stdout)
            sys.stdout.flush()

    def close(self) -> None:
        """Ends the live line."""
        self._bar.close()
