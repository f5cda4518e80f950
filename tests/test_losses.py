"""The temporal-difference loss, on numbers worked out by hand."""

import pytest
import torch

from protovalue.losses import successor_measure_loss

# Two transitions, two tasks, three actions.
PSI = torch.tensor([[[1.0, 2.0, 3.0], [0.0, -1.0, 4.0]], [[5.0, 6.0, 7.0], [1.0, 1.0, 1.0]]])
NEXT = torch.tensor([[[3.0, 6.0, 0.0], [2.0, 2.0, 5.0]], [[9.0, 9.0, 9.0], [8.0, 8.0, 8.0]]])
REWARD = torch.tensor([[True, False], [False, True]])
ACTION = torch.tensor([2, 0])
TERMINAL = torch.tensor([False, True])


def test_mean_backup():
    # Transition 0, action 2: targets 1 + .5 * 3 = 2.5 and 0 + .5 * 3 = 1.5 against 3 and 4: errors -.5 and -2.5.
    # Transition 1 is terminal, action 0: targets 0 and 1 against 5 and 1: errors -5 and 0.
    loss = successor_measure_loss(PSI, NEXT, REWARD, ACTION, TERMINAL, gamma=0.5)
    assert loss.item() == pytest.approx((0.25 + 6.25 + 25 + 0) / 4)


def test_max_backup():
    # Transition 0: targets 1 + .5 * 6 = 4 and 0 + .5 * 5 = 2.5 against 3 and 4: errors 1 and -1.5.
    loss = successor_measure_loss(PSI, NEXT, REWARD, ACTION, TERMINAL, gamma=0.5, backup="max")
    assert loss.item() == pytest.approx((1 + 2.25 + 25 + 0) / 4)


def test_without_discount_only_the_reward_counts():
    # Targets are the rewards: errors 1 - 3, 0 - 4, 0 - 5, 1 - 1.
    loss = successor_measure_loss(PSI, NEXT, REWARD.float(), ACTION, TERMINAL, gamma=0.0)
    assert loss.item() == pytest.approx((4 + 16 + 25 + 0) / 4)


def test_gradient_flows_into_the_taken_action_only():
    psi = PSI.clone().requires_grad_()
    target = NEXT.clone().requires_grad_()
    successor_measure_loss(psi, target, REWARD, ACTION, TERMINAL, gamma=0.5).backward()
    assert target.grad is None
    expected = torch.zeros(2, 2, 3)  # d/dpsi of the mean of four squares: -2 error / 4
    expected[0, :, 2] = torch.tensor([0.5, 2.5]) / 2
    expected[1, :, 0] = torch.tensor([5.0, 0.0]) / 2
    torch.testing.assert_close(psi.grad, expected)


def test_unknown_backup_is_refused():
    with pytest.raises(ValueError, match="'sum', expected 'mean' or 'max'"):
        successor_measure_loss(PSI, NEXT, REWARD, ACTION, TERMINAL, 0.5, backup="sum")  # type: ignore[arg-type]
