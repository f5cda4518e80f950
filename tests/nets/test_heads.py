"""Task heads: the ways to evaluate them against the plain sums, values, gradients and precision."""

import math

import pytest
import torch
from torch import Tensor

from protovalue.errors import UserError
from protovalue.nets.heads import TaskHeads


def heads(num_features: int = 5, num_tasks: int = 3, num_actions: int = 4) -> TaskHeads:
    made = TaskHeads(num_features, num_tasks, num_actions, torch.Generator().manual_seed(0))
    with torch.no_grad():
        made.bias.uniform_(-1, 1, generator=torch.Generator().manual_seed(1))
    return made


def plain(made: TaskHeads, features: Tensor) -> Tensor:
    """psi[n, j, a] = sum_i features[n, i] weight[a, j, i] + bias[a, j]."""
    return torch.einsum("ni,aji->nja", features, made.weight) + made.bias.T


FEATURES = torch.rand(7, 5, generator=torch.Generator().manual_seed(2))
ACTIONS = torch.tensor([2, 0, 2, 2, 1, 0, 2])  # action 3 is never taken


def test_by_hand() -> None:
    made = TaskHeads(2, 1, 2, torch.Generator())
    with torch.no_grad():
        made.weight.copy_(torch.tensor([[[1.0, 2.0]], [[3.0, 4.0]]]))
        made.bias.copy_(torch.tensor([[10.0], [20.0]]))
    features = torch.tensor([[1.0, 1.0], [2.0, 0.0]])
    assert made.all_actions(features).tolist() == [[[13.0, 27.0]], [[12.0, 26.0]]]
    assert made.taken(features, torch.tensor([1, 0])).tolist() == [[27.0], [12.0]]
    assert made.mean(features).tolist() == made.backed_up(features, "mean").tolist() == [[20.0], [19.0]]
    assert made.backed_up(features, "max").tolist() == [[27.0], [26.0]]
    assert made.backed_up(-features, "max").tolist() == [[13.0], [14.0]]
    with pytest.raises(ValueError, match="backup: found 'least'"):
        made.backed_up(features, "least")  # type: ignore[arg-type]


def test_the_three_agree_with_the_plain_computation() -> None:
    made = heads()
    psi = plain(made, FEATURES)
    torch.testing.assert_close(made.all_actions(FEATURES), psi)
    taken = torch.stack([psi[n, :, a] for n, a in enumerate(ACTIONS.tolist())])
    torch.testing.assert_close(made.taken(FEATURES, ACTIONS), taken)
    torch.testing.assert_close(made._taken_of_all(FEATURES, ACTIONS), taken)
    torch.testing.assert_close(made.mean(FEATURES), psi.mean(2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_are_float32_in_whatever_the_features_come(dtype: torch.dtype) -> None:
    """Inside the CPU's own bfloat16 autocast, against float64 on the same features."""
    made, features = heads(), FEATURES.to(dtype)
    psi = torch.einsum("ni,aji->nja", features.double(), made.weight.double()) + made.bias.T
    with torch.autocast("cpu", torch.bfloat16):
        found = [
            (made.all_actions(features), psi),
            (made.taken(features, ACTIONS), psi[torch.arange(7), :, ACTIONS]),
            (made.mean(features), psi.mean(2)),
            (made.backed_up(features, "mean"), psi.mean(2)),
            (made.backed_up(features, "max"), psi.amax(2)),
        ]
    for ours, exact in found:
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours.double(), exact, rtol=1e-6, atol=1e-6)


def test_gradients_of_the_taken_actions() -> None:
    made = heads()
    weights = torch.rand(7, 3, generator=torch.Generator().manual_seed(3))
    gradients = []
    for selected in (True, False):
        features = FEATURES.clone().requires_grad_()
        psi = plain(made, features)
        values = made.taken(features, ACTIONS) if selected else psi[torch.arange(7), :, ACTIONS]
        gradients.append(torch.autograd.grad((values * weights).sum(), [features, made.weight, made.bias]))
    for ours, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, expected)
    assert gradients[0][1][3].abs().max() == 0.0  # nothing for the action never taken


def test_each_task_is_initialised_as_a_layer_of_its_own() -> None:
    made = TaskHeads(512, 100, 6, torch.Generator().manual_seed(0))
    limit = math.sqrt(6 / (512 + 6))
    assert 0.99 * limit < made.weight.abs().max() <= limit
    assert made.weight.var().item() == pytest.approx(limit**2 / 3, rel=0.01)
    assert made.bias.abs().max() == 0.0
    same = TaskHeads(512, 100, 6, torch.Generator().manual_seed(0))
    assert torch.equal(made.weight, same.weight)


def test_an_action_out_of_range_is_no_silent_zero() -> None:
    with pytest.raises((ValueError, RuntimeError)):
        heads().taken(FEATURES, ACTIONS + 2)
    with pytest.raises(UserError, match="number of tasks: found 0"):
        TaskHeads(5, 0, 4, torch.Generator())
