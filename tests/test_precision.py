"""Functions that compute in float32 at least, inside and outside of autocast."""

from typing import Any

import torch

from protovalue.precision import in_float32


@in_float32
def product(a: Any, b: Any, scale: float = 1.0) -> tuple[Any, bool]:
    """Return the product, and whether autocast would have rounded it."""
    return a @ b * scale, torch.is_autocast_enabled("cpu")


ODD = torch.tensor([[1.0 + 2**-7]])  # in bfloat16; its square, 1 + 2^-6 + 2^-14, is not


def test_half_precision_is_widened_and_autocast_is_off() -> None:
    exact = 1 + 2**-6 + 2**-14
    for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64):
        for autocast in (False, True):
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                found, on = product(ODD.to(dtype), b=ODD.to(dtype))
                assert torch.is_autocast_enabled("cpu") == autocast, "as before"
            assert found.item() == exact
            assert not on
            assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


def test_other_arguments_go_through() -> None:
    found, _ = product(ODD, ODD, scale=2)
    assert found.item() == 2 * (1 + 2**-6 + 2**-14)
    whole = torch.tensor([[3]])
    assert product(whole, whole)[0].tolist() == [[9]]


def test_gradients_come_back_in_the_argument_s_own_precision() -> None:
    a = ODD.to(torch.bfloat16).requires_grad_()
    product(a, ODD)[0].sum().backward()
    assert a.grad is not None
    assert a.grad.dtype == torch.bfloat16
    assert a.grad.item() == ODD.item()
