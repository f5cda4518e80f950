"""The temporal-difference losses, on numbers worked out by hand."""

import pytest
import torch

from protovalue.losses import (
    categorical_loss,
    categorical_target,
    q_loss,
    q_loss_slope,
    q_target,
    successor_measure_loss,
)

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


def test_q_target():
    target_next = torch.tensor([[1.0, 5.0], [2.0, 3.0]])
    online_next = torch.tensor([[9.0, 0.0], [0.0, 9.0]])
    reward, discount = torch.tensor([0.5, -1.0]), torch.tensor([0.9, 0.0])
    # max: .5 + .9 * 5 and -1 (terminated). Double: the trained network prefers action 0 in the first: .5 + .9 * 1.
    torch.testing.assert_close(q_target(reward, discount, target_next), torch.tensor([5.0, -1.0]))
    torch.testing.assert_close(q_target(reward, discount, target_next, online_next), torch.tensor([1.4, -1.0]))


def test_no_gradient_flows_into_the_target():
    parts = [torch.ones(2, requires_grad=True), torch.ones(2), torch.ones(2, 3, requires_grad=True)]
    assert not q_target(*parts).requires_grad
    assert not q_target(*parts, torch.ones(2, 3, requires_grad=True)).requires_grad


def test_squared_and_huber_loss():
    prediction, target = torch.tensor([0.0, 0.0, 0.0]), torch.tensor([0.5, -1.0, 3.0])
    torch.testing.assert_close(q_loss(prediction, target), torch.tensor([0.25, 1.0, 9.0]))
    torch.testing.assert_close(q_loss(prediction, target, huber=True), torch.tensor([0.125, 0.5, 2.5]))


@pytest.mark.parametrize("huber", [False, True])
def test_the_slope_is_the_loss_s_derivative(huber):
    prediction, target = torch.tensor([0.0, 0.0, 0.0], requires_grad=True), torch.tensor([0.5, -1.5, 3.0])
    (expected,) = torch.autograd.grad(q_loss(prediction, target, huber).sum(), prediction)
    torch.testing.assert_close(q_loss_slope(prediction.detach(), target, huber), expected)
    assert expected.tolist() == ([-0.5, 1.0, -1.0] if huber else [-1.0, 3.0, -6.0])


def test_categorical_target():
    support = torch.tensor([-1.0, 0.0, 1.0])
    probability = torch.tensor([[0.2, 0.3, 0.5], [0.2, 0.3, 0.5], [0.2, 0.3, 0.5]])
    # r .5, discount .5: atoms go to 0, .5, 1: .2 stays on 0, .3 is halved between 0 and 1, .5 is on 1.
    # r 0, discount 0 (terminated): everything on 0. r -3, discount 1: all clipped to -1.
    reward, discount = torch.tensor([0.5, 0.0, -3.0]), torch.tensor([0.5, 0.0, 1.0])
    expected = torch.tensor([[0.0, 0.35, 0.65], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    torch.testing.assert_close(categorical_target(reward, discount, probability, support), expected)


def test_categorical_loss():
    logits = torch.log(torch.tensor([[0.5, 0.25, 0.25]])) + 7.0  # a constant changes nothing
    target = torch.tensor([[0.5, 0.5, 0.0]])
    expected = -(0.5 * torch.tensor(0.5).log() + 0.5 * torch.tensor(0.25).log())
    torch.testing.assert_close(categorical_loss(logits, target), expected[None])
