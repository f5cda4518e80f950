"""Where PyTorch computes: the device, and the number of CPU threads."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import torch

from protovalue.errors import UserError

THREAD_FLOPS = 1e9
"""Work of one call of a network for which another thread pays: `pvn bench threads`, docs/decisions.md."""


def choose_device(wanted: Literal["auto", "cpu", "cuda"]) -> str:
    """Return "cuda" or "cpu" for --device."""
    if wanted == "cuda" and not torch.cuda.is_available():
        raise UserError("--device: found cuda, expected cpu: PyTorch sees no CUDA device here")
    return "cuda" if wanted != "cpu" and torch.cuda.is_available() else "cpu"


def choose_threads(wanted: int | None, flops: Callable[[], float], most: int | None = None) -> int:
    """Set and return the number of CPU threads: `wanted`, or for None by the work of a call.

    `flops` counts that work. It is only called where it decides something: counting takes PyTorch a second of imports.

    Threads that wait for each other at every layer are slower than one where a layer is small, and far slower where
    the cores have other work, too. So there is one for every THREAD_FLOPS, and at most `most`, which is PyTorch's
    own number: all cores, or what OMP_NUM_THREADS says.
    """
    most = most or torch.get_num_threads()
    threads = wanted or (1 if most == 1 else min(most, max(1, int(flops() / THREAD_FLOPS))))
    torch.set_num_threads(threads)
    return threads


def with_threads(label: str) -> str:
    """Return the label of a progress bar with the number of threads that compute."""
    threads = torch.get_num_threads()
    return f"{label} ({threads} thread{'s' * (threads != 1)})"


@contextmanager
def threads_for(flops: Callable[[], float]) -> Iterator[None]:
    """Let one call have the threads that its work deserves, and no more than there were."""
    before = torch.get_num_threads()
    choose_threads(None, flops)
    try:
        yield
    finally:
        torch.set_num_threads(before)
