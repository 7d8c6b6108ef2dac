"""Shows the progress of a run or of a command while it works."""

import contextlib
import os
import sys
import threading
import time
from typing import Self

from tqdm import tqdm

_SECONDS_OF_A_LINE, _SECONDS_OF_A_FRAME = 30, 1  # between two lines, and between two changes of a live line
_SECONDS_OF_A_DETAIL = 0.2  # between two changes of the live line while a part of the work progresses


def has_live_line() -> bool:
    """Returns whether stderr is a terminal of known width; `script` and `docker exec -t` make some of width 0."""
    try:
        return sys.stderr is not None and sys.stderr.isatty() and os.get_terminal_size(sys.stderr.fileno()).columns > 0
    except (OSError, ValueError):
        return False


def say(line: str, show: bool = True) -> None:
    """Prints a line to stderr, above a live line, if `show` is true."""
    if show and sys.stderr is not None:  # a program may have no standard error
        tqdm.write(line, file=sys.stderr)
        sys.stderr.flush()


def print_above(text: str) -> None:
    """Prints text to stdout, above a live line."""
    tqdm.write(text, file=sys.stdout, end="")
    sys.stdout.flush()


class RunProgress:
    """The progress of a run: one live line on a terminal, and elsewhere a plain line per report."""

    def __init__(self, total: int, done: int, unit: str = "step", silent: bool = False) -> None:
        """Begins to show progress; earlier launches have done `done` of the `total` units of work."""
        self._total, self._unit, self._silent = total, unit, silent
        self._terminal = has_live_line()
        form, hidden = unit + " {n_fmt}/{total_fmt} |{bar}|{desc}", silent or not self._terminal
        self._bar = tqdm(total=total, initial=done, dynamic_ncols=True, disable=hidden, bar_format=form)
        self._shown, self._description = time.monotonic(), ""  # when something was shown, and the newest metrics

    def advance(self) -> None:
        self._bar.update(1)

    def show(self, text: str, done: int, seconds_left: float) -> None:
        text = f"{text} · {tqdm.format_interval(seconds_left)} left"
        if self._terminal:
            self._description = f" {text}"
            self._bar.set_description_str(self._description)  # tqdm would put a comma before a postfix
        else:
            self.say(f"{self._unit} {done}/{self._total} · {text}")

    def detail(self, text: str, seconds_left: float) -> None:
        """Shows how a part of the work progresses: on the live line, elsewhere when nothing was shown for a minute."""
        if self._silent or time.monotonic() - self._shown < (_SECONDS_OF_A_DETAIL if self._terminal else 60):
            return
        self._shown, text = time.monotonic(), f"{text} · {tqdm.format_interval(seconds_left)} left"
        self._bar.set_description_str(f" {text}") if self._terminal else self.say(text)

    def say(self, text: str) -> None:
        """Prints a line that stays, above the live line."""
        self._shown = time.monotonic()
        self._bar.set_description_str(self._description, refresh=False)  # no longer that of a part of the work
        if not self._silent:
            with contextlib.suppress(OSError):  # the output may be a file on a full disk, and training continues
                tqdm.write(text, file=sys.stderr if self._terminal else sys.stdout)
                sys.stdout.flush()

    def close(self) -> None:
        self._bar.close()


class Progress:
    """A context that shows the progress of a piece of work on stderr, also while none of its units is completed.

    On a terminal this is one live line, from the first second on, which is removed at the end; elsewhere it is a line
    every 30 seconds.
    """

    def __init__(self, text: str, unit: str = "", total: int = 0, show: bool = True) -> None:
        """Names the work, the unit of what is counted, in the plural, and the total amount, if it is known."""
        self._text, self._unit, self._total, self._show = text, unit, total, show
        self._live = has_live_line()
        self._units = self._work = self._skipped_units = self._skipped_work = 0
        self._ended = threading.Event()

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        if self._show:
            self._thread = threading.Thread(target=self._watch, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._show:
            self._thread.join()

    def add(self, units: int, work: int | None = None) -> None:
        """Counts units that were completed, and their work, which is their number unless given."""
        self._units += units
        self._work += units if work is None else work

    def skip(self, units: int, work: int | None = None) -> None:
        """Counts units that an earlier launch completed, and that the speed should not include."""
        self.add(units, work)
        self._skipped_units += units
        self._skipped_work += units if work is None else work

    def line(self) -> str:
        seconds = time.monotonic() - self._began
        here = self._units - self._skipped_units
        if not here:
            return f"{self._text} … {tqdm.format_interval(seconds)}"
        rate, done = here / max(seconds, 1e-9), self._work - self._skipped_work
        parts = [f"{self._text}: {self._units:,} {self._unit}", f"{rate:,.{0 if rate >= 10 else 2}f} {self._unit}/s"]
        if self._total:
            parts[0] += f" ({min(self._work / self._total, 1):.0%})"
            parts.append(f"{tqdm.format_interval(max(self._total - self._work, 0) * seconds / max(done, 1))} left")
        return " · ".join(parts)

    def _watch(self) -> None:
        bar = None
        while not self._ended.wait(_SECONDS_OF_A_FRAME if self._live else _SECONDS_OF_A_LINE):
            with contextlib.suppress(OSError, ValueError):  # stderr was closed, or is a file on a full disk
                if not self._live:
                    print(self.line(), file=sys.stderr, flush=True)
                    continue
                shown = "{desc} |{bar}|" if self._total else "{desc}"
                bar = bar or tqdm(
                    desc=self.line(), total=max(self._total, 1), bar_format=shown, dynamic_ncols=True, leave=False
                )
                bar.n = min(self._work, bar.total)
                bar.set_description_str(self.line())
        if bar is not None:
            bar.close()
