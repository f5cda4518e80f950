"""Where rounding may be: inside networks. Heads, targets, discounts, sums and losses are float32, always."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, ParamSpec, TypeVar

import torch
from torch import Tensor

Precision = Literal["float32", "tf32", "bfloat16"]
"""What a network computes in."""

P = ParamSpec("P")
R = TypeVar("R")
_HALF = (torch.bfloat16, torch.float16)


def choose_precision(wanted: Literal["auto", "float32", "tf32", "bfloat16"], device: str) -> Precision:
    """Return the precision for --precision on a device."""
    cuda = device.startswith("cuda")
    if wanted == "auto":
        return "bfloat16" if cuda else "float32"
    return wanted


@contextmanager
def rounded_convolutions() -> Iterator[None]:
    """Let convolutions on CUDA round their factors to TF32, 10 bits, for a while. Matrix products stay as they are."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = True
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before


def in_float32(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function of tensors compute in float32: what comes in half precision is widened, and autocast is off.

    In bfloat16 a discount of 0.99 is 0.98828 and one of 0.999 is 1, and numbers near 1 are 0.0078 apart. Widening the
    arguments is not enough: autocast would round them again in the first matrix product. float64 stays as it is.
    """

    @functools.wraps(function)
    def widened(*args: P.args, **kwargs: P.kwargs) -> R:
        values: Any = [_widened(value) for value in args]
        named: Any = {name: _widened(value) for name, value in kwargs.items()}
        kind = next(value.device.type for value in (*args, *kwargs.values()) if isinstance(value, Tensor))
        if not torch.is_autocast_enabled(kind):  # entering a context takes longer than this whole function
            return function(*values, **named)
        with torch.autocast(kind, enabled=False):
            return function(*values, **named)

    return widened


def _widened(value: object) -> object:
    return value.to(torch.float32) if isinstance(value, Tensor) and value.dtype in _HALF else value
