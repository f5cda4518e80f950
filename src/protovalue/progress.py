"""Progress of long commands: a bar with rate and ETA on a terminal, a line now and then in a log."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

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
        if not quiet and sys.stderr.isatty():
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[text]}"),
                *([TimeRemainingColumn(elapsed_when_finished=True)] if eta else []),
                console=Console(stderr=True),
                transient=False,
            )
            self._task = self._bar.add_task(label, total=total, completed=done, text=unit)

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
        self._done += n
        text = f"{_number(self.rate)} {self._unit}/s {note}".rstrip() if self._eta else f"{self._unit} {note}".rstrip()
        if self._bar:
            self._bar.update(self._task, completed=self._done, text=text)
        elif not self._quiet and time.monotonic() - self._last_line >= LOG_EVERY:
            self._line(note)

    def _line(self, note: str) -> None:
        self._last_line, self._shown = time.monotonic(), self._done
        left = (self._total - self._done) / self.rate if self.rate > 0 else float("inf")
        eta = f", {_clock(left)} left" if self._done < self._total else f" in {_clock(self._last_line - self._start)}"
        speed = f", {_number(self.rate)}/s{eta}" if self._eta else ""
        share = f"{self._done:,}/{self._total:,} {self._unit}"
        print(f"{self._label}: {share}{speed} {note}".rstrip(), file=sys.stderr, flush=True)


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
