"""Where PyTorch computes: the device, and the number of CPU threads."""

from typing import Literal

import torch

from protovalue.errors import UserError


def choose_device(wanted: Literal["auto", "cpu", "cuda"], threads: int | None) -> str:
    """Return "cuda" or "cpu" for --device, and set the number of CPU threads; None leaves it as it is."""
    if wanted == "cuda" and not torch.cuda.is_available():
        raise UserError("--device: found cuda, expected cpu: PyTorch sees no CUDA device here")
    if threads:
        torch.set_num_threads(threads)
    return "cuda" if wanted != "cpu" and torch.cuda.is_available() else "cpu"
