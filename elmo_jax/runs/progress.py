"""Shows the progress of a run while it works."""

import contextlib
import sys
import threading
import time
from collections.abc import Iterator

from tqdm import tqdm

_SECONDS_OF_A_LINE = 30  # between two lines of `elapsed` where there is no terminal
_SECONDS_OF_A_DETAIL = 0.2  # between two changes of the live line while a part of the work progresses


class RunProgress:
    """The progress of a run: one live line on a terminal, and elsewhere a plain line per report."""

    def __init__(self, total: int, done: int, unit: str = "step", silent: bool = False) -> None:
        """Begins to show progress; earlier launches have done `done` of the `total` units of work."""
        self._total, self._unit, self._silent = total, unit, silent
        self._terminal = sys.stderr.isatty()
        self._bar = tqdm(
            total=total,
            initial=done,
            unit=unit,
            dynamic_ncols=True,
            disable=silent or not self._terminal,
            bar_format=unit + " {n_fmt}/{total_fmt} |{bar}|{desc}",
        )
        self._shown, self._description = time.monotonic(), ""  # when something was shown, and the newest metrics

    def advance(self) -> None:
        """Counts one unit of work."""
        self._bar.update(1)

    def show(self, text: str, done: int, seconds_left: float) -> None:
        """Shows the newest metrics, the units of work done so far and the estimated time left."""
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
        """Ends the live line."""
        self._bar.close()


@contextlib.contextmanager
def elapsed(text: str) -> Iterator[None]:
    """Shows on stderr for how long `text`, a piece of work whose end is unknown, has been running.

    On a terminal this is one live line, which is removed at the end; elsewhere it is one line every 30 seconds.
    """
    terminal, began, ended = sys.stderr.isatty(), time.monotonic(), threading.Event()
    bar = tqdm(bar_format="{desc}", dynamic_ncols=True, leave=False, disable=not terminal)

    def show() -> None:
        minutes, seconds = divmod(round(time.monotonic() - began), 60)
        line = f"{text} … {minutes}:{seconds:02d}"
        bar.set_description_str(line) if terminal else print(line, file=sys.stderr, flush=True)

    def watch() -> None:
        while not ended.wait(1 if terminal else _SECONDS_OF_A_LINE):
            show()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        bar.close()
