"""Progress of long commands: a bar with rate and ETA on a terminal, a line now and then in a log; times in words."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Self

from rich.console import Console, RenderableType
from rich.progress import Progress, ProgressColumn, Task
from rich.progress_bar import ProgressBar as Drawn
from rich.table import Table
from rich.text import Text

_silent: ContextVar[bool] = ContextVar("_silent", default=False)


@contextmanager
def silenced() -> Iterator[None]:
    """Show no progress from here on: for bars that are made far below whoever was asked to be quiet."""
    before = _silent.set(True)
    try:
        yield
    finally:
        _silent.reset(before)


def say(line: str) -> None:
    """Print a line about what is done, beside the bars and silent where they are."""
    if not _silent.get():
        print(line, file=sys.stderr, flush=True)


LOG_EVERY = 10.0  # seconds between lines when the output is not a terminal
LEAST_BAR, MOST_BAR, LEAST_NOTE = 10, 40, 8  # characters


class ProgressBar:
    """A bar over `total` units of work that starts at `done`, written to stderr.

    Use as a context manager; call `advance(n)` as work is done. `note` is a short text after the rate. Without `eta`
    there is neither rate nor time left: for work whose units are not alike, where `note` can say it better.
    """

    def __init__(self, label: str, total: int, unit: str, done: int = 0, quiet: bool = False, eta: bool = True) -> None:
        quiet = quiet or _silent.get()
        self._label, self._total, self._unit, self._quiet, self._eta = label, total, unit, quiet, eta
        self._first = self._done = done
        self._start = self._last_line = time.monotonic()
        self._shown = -1  # what the last line said
        self._bar: Progress | None = None
        self._note = ""
        if not quiet and sys.stderr.isatty():
            self._bar = Progress(_Line(self), console=Console(stderr=True), transient=False)
            self._bar.add_task(label, total=total)

    def __enter__(self) -> Self:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()
        elif not self._quiet and self._shown != self._done:
            self._line("")

    @property
    def rate(self) -> float:
        """Units per second since the start."""
        return (self._done - self._first) / max(time.monotonic() - self._start, 1e-9)

    def advance(self, n: int, note: str = "") -> None:
        """Count `n` more units of work."""
        self._done, self._note = self._done + n, note
        if not self._bar and not self._quiet and time.monotonic() - self._last_line >= LOG_EVERY:
            self._line(note)

    def _line(self, note: str) -> None:
        self._last_line, self._shown = time.monotonic(), self._done
        print(f"{self._label}: {self._facts()} {note}".rstrip(), file=sys.stderr, flush=True)

    def _facts(self) -> str:
        """Say how much is done, how fast, and how long it takes."""
        share = f"{self._done:,}/{self._total:,} {self._unit}"
        if not self._eta:
            return share
        left = (self._total - self._done) / self.rate if self.rate > 0 else float("inf")
        gone = time.monotonic() - self._start
        eta = f", {_clock(left)} left" if self._done < self._total else f" in {_clock(gone)}"
        return f"{share}, {_number(self.rate)}/s{eta}"

    def drawn(self, width: int) -> RenderableType:
        """Return the line of a terminal that is so wide."""
        label, bar, note = fitted(width, self._label, self._facts(), self._note)
        row: list[RenderableType] = [Text(label, no_wrap=True)]
        if bar:
            row.append(Drawn(self._total, self._done, bar))
        row.append(Text(f"{self._facts()} {note}".rstrip(), no_wrap=True, overflow="ellipsis"))
        grid = Table.grid(padding=(0, 1, 0, 0))
        grid.add_row(*row)
        return grid


class _Line(ProgressColumn):
    """The whole line as one column: rich would shorten all of several columns alike, numbers too."""

    def __init__(self, bar: ProgressBar) -> None:
        super().__init__()
        self._owner = bar

    def render(self, task: Task) -> RenderableType:
        """Draw it as wide as the terminal is now."""
        assert self._owner._bar is not None
        return self._owner.drawn(self._owner._bar.console.width)


def fitted(width: int, label: str, facts: str, note: str) -> tuple[str, int, str]:
    """Return label, width of the bar and note that stand in one line with the facts, which are never shortened.

    Where there is little room the note goes first, from its end, then the bar, then the label.
    """
    room = width - len(facts) - 1
    label = _cut(label, max(room, 0))
    room -= len(label) + 1
    space = room - LEAST_BAR - 1
    note = _cut(note, space) if space >= LEAST_NOTE else ""
    bar = min(MOST_BAR, room - (len(note) + 1 if note else 0))
    return label, bar if bar >= LEAST_BAR // 2 else 0, note


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: max(width - 1, 0)].rstrip()}…" if width > 1 else ""


def duration(seconds: float) -> str:
    """Write a time so that it can be read: 0.4 s, 12 s, 3.5 min, 2.5 h, 12 days."""
    for limit, unit, size in ((99.5, "s", 1), (99.5 * 60, "min", 60), (99.5 * 3600, "h", 3600)):
        if seconds < limit:
            value = seconds / size
            return f"{value:.1f} {unit}" if 0 < value < 9.95 else f"{value:.0f} {unit}"
    return f"{seconds / 86400:,.0f} days"


def _number(rate: float) -> str:
    """A rate with enough digits to mean something: 1,234 or 0.42."""
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"


def _clock(seconds: float) -> str:
    """Seconds as 1:02:03 or 2:03."""
    if seconds == float("inf"):
        return "unknown time"
    minutes, s = divmod(round(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02d}:{s:02d}" if hours else f"{m}:{s:02d}"
