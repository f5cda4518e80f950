"""What a process asks of the machine: to end with its parent, to hear no signals, to compute with one thread."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker

from protovalue.interrupt import SIGNALS


def end_with_parent() -> None:
    """Make this child process end at once when its parent does, however it does."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


@contextmanager
def shielded() -> Iterator[None]:
    """Start processes that neither Ctrl-C nor SIGTERM reaches, not even while they start: their parent tells them.

    The signals are blocked, which a child inherits, and come to this process at the end.
    """
    resource_tracker.ensure_running()  # it would unblock them when it starts
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def unshielded() -> None:
    """Hear the signals again, with those that came meanwhile."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread: sums have one order, and small matrices are not slowed down by waiting for a busy core."""
    import torch
    from threadpoolctl import threadpool_limits

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(before)


def wait_quietly() -> None:
    """Let threads without work sleep rather than spin, unless the user says otherwise; before PyTorch is imported.

    On idle cores it costs little; where other processes run, a thread that spins takes the core from the one that it
    waits for.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
