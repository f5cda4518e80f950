"""Where PyTorch computes: the device, how data come to it, and the number of CPU threads."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from numpy.typing import NDArray
from torch import Tensor

from protovalue.errors import UserError

THREAD_FLOPS = 1e9
"""Work of one call of a network for which another thread pays: `pvn bench threads`, docs/decisions.md."""


def choose_device(wanted: Literal["auto", "cpu", "cuda", "mps"]) -> str:
    """Return "cuda", "mps" or "cpu" for --device.

    On CUDA float32 is float32 from here on: PyTorch by itself rounds the factors of convolutions to TF32.
    """
    here = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if wanted == "auto":
        wanted = "cuda" if here["cuda"] else "cpu"
    if not here[wanted]:
        raise UserError(f"--device: found {wanted}, expected cpu: PyTorch sees no {wanted.upper()} device here")
    if wanted == "cuda":
        torch.backends.cudnn.allow_tf32 = False
    return wanted


def put(array: NDArray[Any], device: torch.device) -> Tensor:
    """Bring an array to a device. To CUDA it goes by way of pinned memory, so that nobody waits for the copy."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def pinning(make: Callable[[int], dict[str, Tensor]], device: str) -> Callable[[int], dict[str, Tensor]]:
    """Return a function that makes the same tensors in memory that a device of this kind can read by itself."""
    if not device.startswith("cuda"):
        return make
    return lambda step: {name: tensor.pin_memory() for name, tensor in make(step).items()}


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
