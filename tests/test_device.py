"""The device and its threads, as pretraining, agents and evaluation choose them."""

from typing import Any

import pytest
import torch

from protovalue.device import choose_device
from protovalue.errors import UserError


def test_threads_are_set_or_left(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    assert [choose_device("auto", 2), choose_device("cpu", 1), choose_device("cpu", None)] == ["cpu"] * 3
    assert asked == [2, 1]


def test_the_device_that_is_there_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    def device(wanted: Any, there: Any) -> str:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
        return choose_device(wanted, None)

    assert [device("auto", True), device("auto", False), device("cpu", True)] == ["cuda", "cpu", "cpu"]
    assert device("cuda", True) == "cuda"
    with pytest.raises(UserError, match="--device: found cuda, expected cpu: PyTorch sees no CUDA device here"):
        device("cuda", False)
