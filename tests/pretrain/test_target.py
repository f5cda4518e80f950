"""Target networks: each way of following by hand, over several steps and several modules."""

from typing import Any

import pytest
import torch

from protovalue.pretrain.target import TargetNetwork


def linear(value: float) -> torch.nn.Linear:
    made = torch.nn.Linear(1, 1)
    torch.nn.init.constant_(made.weight, value)
    torch.nn.init.constant_(made.bias, -value)
    return made


def test_a_moving_average_by_hand() -> None:
    """From 1, three quarters of itself and a quarter of 5, then of 9: 2 and 3.75."""
    source, other = linear(1.0), linear(2.0)
    target = TargetNetwork({"net": source, "other": other}, ema=0.75)
    torch.nn.init.constant_(source.weight, 5.0)
    target.follow()
    assert target["net"].weight.item() == 2.0
    assert (target["net"].bias.item(), target["other"].weight.item()) == (-1.0, 2.0)
    torch.nn.init.constant_(source.weight, 9.0)
    torch.nn.init.constant_(other.bias, 6.0)
    target.follow()
    assert target["net"].weight.item() == 3.75
    assert target["other"].bias.item() == 0.75 * -2 + 0.25 * 6
    assert source.weight.item() == 9.0
    assert not any(parameter.requires_grad for parameter in target.parameters())


def test_without_an_average_it_is_the_trained_one_of_each_step() -> None:
    source = linear(1.0)
    target = TargetNetwork({"net": source}, ema=0.0)
    torch.nn.init.constant_(source.weight, 5.0)
    assert target["net"].weight.item() == 1.0
    target.follow()
    assert target["net"].weight.item() == 5.0


def test_copies_every_third_step() -> None:
    source = linear(0.0)
    target = TargetNetwork({"net": source}, ema=None, every=3)
    seen = []
    for step in range(1, 8):
        torch.nn.init.constant_(source.weight, float(step))
        target.follow()
        seen.append(target["net"].weight.item())
    assert seen == [0, 0, 3, 3, 3, 6, 6]
    assert int(target.state_dict()["steps"]) == 7, "counted in the checkpoint: a resumed run copies at the same steps"


@pytest.mark.parametrize("given", [{"ema": None}, {"ema": 0.9, "every": 3}])
def test_it_follows_in_one_way(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="either by a moving average or by copying"):
        TargetNetwork({"net": linear(0.0)}, **given)
