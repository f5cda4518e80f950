"""What a process asks of the machine: to end with its parent, to compute with one thread."""

import multiprocessing
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager


def end_with_parent() -> None:
    """Make this child process end at once when its parent does, however it does."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread: sums have one order, and small matrices are not slowed down by waiting for a busy core."""
    import torch
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(before)
