"""Ctrl-C and SIGTERM, with which clusters end a job: the step is finished, a checkpoint written, one line said.

Both are a KeyboardInterrupt, so that whatever cleans up after one does so after the other; the exit codes differ.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)
INTERRUPTED, TERMINATED = 128 + signal.SIGINT, 128 + signal.SIGTERM  # exit codes: 130 and 143
_raised: int | None = None  # the signal that was raised last within `raised`
_Handler = Callable[[int, FrameType | None], None]


class Terminated(KeyboardInterrupt):
    """SIGTERM came."""


def interruption(number: int | None) -> KeyboardInterrupt:
    """Return what a signal raises."""
    return Terminated() if number == signal.SIGTERM else KeyboardInterrupt()


def farewell(error: KeyboardInterrupt, then: str) -> tuple[str, int]:
    """Return the last line and the exit code of a command that was ended so; `then` is what there is to know now."""
    if isinstance(error, Terminated):
        return f"pvn: terminated; {then}", TERMINATED
    return f"pvn: interrupted; {then}", INTERRUPTED


class Stop:
    """Whether the user, or the cluster, asked to stop."""

    signal: int | None = None

    @property
    def requested(self) -> bool:
        """Whether one of the signals came."""
        return self.signal is not None

    def error(self) -> KeyboardInterrupt:
        """Return what to raise when all is saved."""
        return interruption(self.signal)


@contextmanager
def _handling(handle: _Handler) -> Iterator[None]:
    """Handle both signals for a while; one that is ignored, as in the background of a script, stays so."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread may handle signals
        yield
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}
    before = {number: old for number, old in before.items() if old not in (signal.SIG_IGN, None)}  # None: not Python's
    for number in before:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def stop_on_interrupt() -> Iterator[Stop]:
    """Turn the first Ctrl-C or SIGTERM into `stop.requested`; a second Ctrl-C interrupts at once.

    A second SIGTERM does not: a cluster may send it to every process of a job, and so may the job's own parent.
    """
    stop, pressed = Stop(), 0
    stop.signal = _raised  # what was raised and has not ended the command was swallowed on its way

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        pressed += number == signal.SIGINT
        if pressed > 1:
            raise KeyboardInterrupt
        stop.signal = stop.signal or number

    with _handling(handle):
        yield stop


@contextmanager
def raised() -> Iterator[None]:
    """Raise what comes, at once, SIGTERM like Ctrl-C.

    Code that catches everything, as some modules do while they are imported, may swallow it: `stop_on_interrupt` within
    this context knows of it, so that a run does not go on as if nobody had asked it to stop.
    """

    def handle(number: int, frame: FrameType | None) -> None:
        global _raised
        _raised = number
        raise interruption(number)

    global _raised
    _raised = None
    try:
        with _handling(handle):
            yield
    finally:
        _raised = None


@contextmanager
def ending_at_once() -> Iterator[None]:
    """End the process at once: for a time in which nothing is begun that would need an end, such as imports.

    An exception would not do: some libraries catch all that comes while they are imported, and go on without a part.
    """

    def handle(number: int, frame: FrameType | None) -> None:
        line, code = farewell(interruption(number), "nothing was begun")
        os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, f"{line}\n".encode())
        os._exit(code)

    with _handling(handle):
        yield
