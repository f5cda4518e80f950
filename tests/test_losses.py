"""The losses, on numbers worked out by hand; and that their arithmetic is float32 in whatever they come."""

import inspect
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from protovalue import losses
from protovalue.losses import (
    backed_up,
    categorical_loss,
    categorical_target,
    cloning_loss,
    graph_drawing_loss,
    latent_loss,
    measure_loss,
    orthonormality_loss,
    prediction_loss,
    q_loss,
    q_loss_slope,
    q_target,
    successor_measure_loss,
    td_loss,
)

# Two transitions, two tasks, three actions.
PSI = torch.tensor([[[1.0, 2.0, 3.0], [0.0, -1.0, 4.0]], [[5.0, 6.0, 7.0], [1.0, 1.0, 1.0]]])
NEXT = torch.tensor([[[3.0, 6.0, 0.0], [2.0, 2.0, 5.0]], [[9.0, 9.0, 9.0], [8.0, 8.0, 8.0]]])
REWARD = torch.tensor([[True, False], [False, True]])
ACTION = torch.tensor([2, 0])
TERMINAL = torch.tensor([False, True])


def test_what_is_backed_up() -> None:
    assert backed_up(NEXT[0], "mean").tolist() == [3, 3]
    assert backed_up(NEXT, "max").tolist() == [[6, 5], [9, 8]]


def test_td_loss() -> None:
    # Targets 1 + .5 * 2 = 2 and 0 + .5 * 4 = 2, and at the terminal 1 and 0.
    loss, error = td_loss(
        prediction=torch.tensor([[1.0, 2.0], [4.0, 1.0]]),
        next_value=torch.tensor([[2.0, 4.0], [8.0, 8.0]]),
        reward=torch.tensor([[True, False], [True, False]]),
        terminal=torch.tensor([False, True]),
        gamma=0.5,
    )
    assert error.tolist() == [[1.0, 0.0], [-3.0, -1.0]]
    assert loss.item() == (1 + 0 + 9 + 1) / 4


def test_no_gradient_flows_into_what_is_backed_up() -> None:
    prediction, next_value = torch.ones(1, 1, requires_grad=True), torch.ones(1, 1, requires_grad=True)
    loss, _ = td_loss(prediction, next_value, torch.zeros(1, 1), torch.tensor([False]), 0.9)
    loss.backward()
    assert next_value.grad is None
    assert prediction.grad is not None
    assert prediction.grad.item() == pytest.approx(2 * (1 - 0.9))


def test_mean_backup() -> None:
    # Transition 0, action 2: targets 1 + .5 * 3 = 2.5 and 0 + .5 * 3 = 1.5 against 3 and 4: errors -.5 and -2.5.
    # Transition 1 is terminal, action 0: targets 0 and 1 against 5 and 1: errors -5 and 0.
    loss = successor_measure_loss(PSI, NEXT, REWARD, ACTION, TERMINAL, gamma=0.5)
    assert loss.item() == pytest.approx((0.25 + 6.25 + 25 + 0) / 4)


def test_max_backup() -> None:
    # Transition 0: targets 1 + .5 * 6 = 4 and 0 + .5 * 5 = 2.5 against 3 and 4: errors 1 and -1.5.
    loss = successor_measure_loss(PSI, NEXT, REWARD, ACTION, TERMINAL, gamma=0.5, backup="max")
    assert loss.item() == pytest.approx((1 + 2.25 + 25 + 0) / 4)


def test_without_discount_only_the_reward_counts() -> None:
    # Targets are the rewards: errors 1 - 3, 0 - 4, 0 - 5, 1 - 1.
    loss = successor_measure_loss(PSI, NEXT, REWARD.float(), ACTION, TERMINAL, gamma=0.0)
    assert loss.item() == pytest.approx((4 + 16 + 25 + 0) / 4)


def test_gradient_flows_into_the_taken_action_only() -> None:
    psi = PSI.clone().requires_grad_()
    target = NEXT.clone().requires_grad_()
    successor_measure_loss(psi, target, REWARD, ACTION, TERMINAL, gamma=0.5).backward()
    assert target.grad is None
    expected = torch.zeros(2, 2, 3)  # d/dpsi of the mean of four squares: -2 error / 4
    expected[0, :, 2] = torch.tensor([0.5, 2.5]) / 2
    expected[1, :, 0] = torch.tensor([5.0, 0.0]) / 2
    torch.testing.assert_close(psi.grad, expected)


def test_unknown_backup_is_refused() -> None:
    with pytest.raises(ValueError, match="'sum', expected 'mean' or 'max'"):
        successor_measure_loss(PSI, NEXT, REWARD, ACTION, TERMINAL, 0.5, backup="sum")  # type: ignore[arg-type]


def test_q_target() -> None:
    target_next = torch.tensor([[1.0, 5.0], [2.0, 3.0]])
    online_next = torch.tensor([[9.0, 0.0], [0.0, 9.0]])
    reward, discount = torch.tensor([0.5, -1.0]), torch.tensor([0.9, 0.0])
    # max: .5 + .9 * 5 and -1 (terminated). Double: the trained network prefers action 0 in the first: .5 + .9 * 1.
    torch.testing.assert_close(q_target(reward, discount, target_next), torch.tensor([5.0, -1.0]))
    torch.testing.assert_close(q_target(reward, discount, target_next, online_next), torch.tensor([1.4, -1.0]))


def test_no_gradient_flows_into_the_target() -> None:
    parts = (torch.ones(2, requires_grad=True), torch.ones(2), torch.ones(2, 3, requires_grad=True))
    assert not q_target(*parts).requires_grad
    assert not q_target(*parts, torch.ones(2, 3, requires_grad=True)).requires_grad


def test_squared_and_huber_loss() -> None:
    prediction, target = torch.tensor([0.0, 0.0, 0.0]), torch.tensor([0.5, -1.0, 3.0])
    torch.testing.assert_close(q_loss(prediction, target), torch.tensor([0.25, 1.0, 9.0]))
    torch.testing.assert_close(q_loss(prediction, target, huber=True), torch.tensor([0.125, 0.5, 2.5]))


@pytest.mark.parametrize("huber", [False, True])
def test_the_slope_is_the_loss_s_derivative(huber: bool) -> None:
    prediction, target = torch.tensor([0.0, 0.0, 0.0], requires_grad=True), torch.tensor([0.5, -1.5, 3.0])
    (expected,) = torch.autograd.grad(q_loss(prediction, target, huber).sum(), prediction)
    torch.testing.assert_close(q_loss_slope(prediction.detach(), target, huber), expected)
    assert expected.tolist() == ([-0.5, 1.0, -1.0] if huber else [-1.0, 3.0, -6.0])
    assert q_loss_slope(prediction.detach(), target).tolist() == [-1.0, 3.0, -6.0]


def test_categorical_target() -> None:
    support = torch.tensor([-1.0, 0.0, 1.0])
    probability = torch.tensor([[0.2, 0.3, 0.5], [0.2, 0.3, 0.5], [0.2, 0.3, 0.5]])
    # r .5, discount .5: atoms go to 0, .5, 1: .2 stays on 0, .3 is halved between 0 and 1, .5 is on 1.
    # r 0, discount 0 (terminated): everything on 0. r -3, discount 1: all clipped to -1.
    reward, discount = torch.tensor([0.5, 0.0, -3.0]), torch.tensor([0.5, 0.0, 1.0])
    expected = torch.tensor([[0.0, 0.35, 0.65], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    torch.testing.assert_close(categorical_target(reward, discount, probability, support), expected)
    # Atoms half a unit apart, discount .2: .5 and 1.5 go to .1 and .3, a fifth and three fifths of the way to .5.
    found = categorical_target(
        torch.tensor([0.0]), torch.tensor([0.2]), torch.tensor([[0.0, 0.4, 0.0, 0.6]]), torch.tensor([0.0, 0.5, 1, 1.5])
    )
    torch.testing.assert_close(found, torch.tensor([[0.4 * 0.8 + 0.6 * 0.4, 0.4 * 0.2 + 0.6 * 0.6, 0.0, 0.0]]))


def test_categorical_loss() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.25, 0.25]])) + 7.0  # a constant changes nothing
    target = torch.tensor([[0.5, 0.5, 0.0]])
    expected = -(0.5 * torch.tensor(0.5).log() + 0.5 * torch.tensor(0.25).log())
    torch.testing.assert_close(categorical_loss(logits, target), expected[None])


def test_cloning_loss() -> None:
    """Softmax of (log 1, log 2, log 5) is (1, 2, 5) / 8; equal scores are -log(1/3) whatever the action."""
    scores = torch.tensor([[0.0, math.log(2), math.log(5)], [7.0, 7.0, 7.0]])
    loss = cloning_loss(scores, torch.tensor([1, 2]))
    assert loss.tolist() == pytest.approx([math.log(4), math.log(3)])


def test_graph_drawing_loss() -> None:
    """Two states, d = 2. Attraction: 1/2 of the mean of |(1, -2)|^2 = 5 and |(2, 0)|^2 = 4, so 9/4.

    Repulsion: the product of the two is 1 * 3 + 2 * 0 = 3, its square 9; the norms' squares are 5 and 9: 9 - 14 + 2.
    """
    features = torch.tensor([[1.0, 2.0], [3.0, 0.0]])
    attraction, repulsion = graph_drawing_loss(features, torch.tensor([[0.0, 4.0], [1.0, 0.0]]))
    assert attraction.item() == 9 / 4
    assert repulsion.item() == 9 - 14 + 2


def test_repulsion_is_zero_for_orthonormal_functions_and_unbiased() -> None:
    """Over all ordered pairs of a small population, the mean is sum_jk (E f_j f_k - [j = k])^2 by definition."""
    f = np.random.default_rng(0).normal(size=(6, 3))
    pairs = [(a, b) for a in range(6) for b in range(6)]  # independent draws: a state may meet itself
    batches = (torch.tensor(f[list(pair)]) for pair in pairs)
    found = np.mean([graph_drawing_loss(batch, batch)[1].item() for batch in batches])
    assert found == pytest.approx(((f.T @ f / 6 - np.eye(3)) ** 2).sum())
    orthonormal = np.sqrt(6) * np.linalg.qr(f)[0]
    batches = (torch.tensor(orthonormal[list(pair)]) for pair in pairs)
    assert np.mean([graph_drawing_loss(batch, batch)[1].item() for batch in batches]) == pytest.approx(0, abs=1e-12)


def test_repulsion_of_a_larger_batch_is_the_mean_over_its_pairs() -> None:
    f = torch.tensor(np.random.default_rng(1).normal(size=(5, 2)))
    pairs = [graph_drawing_loss(f[[a, b]], f[[a, b]])[1].item() for a in range(5) for b in range(5) if a != b]
    assert graph_drawing_loss(f, f)[1].item() == pytest.approx(np.mean(pairs))


def test_orthonormality_loss() -> None:
    """The same two states: 9 / 2, less the mean of 5 and 9, and 2 / 2. Of a population it is the definition's half."""
    assert orthonormality_loss(torch.tensor([[1.0, 2.0], [3.0, 0.0]])).item() == 4.5 - 7 + 1
    f = np.random.default_rng(0).normal(size=(6, 3))
    batches = [torch.tensor(f[[a, b]]) for a in range(6) for b in range(6)]
    found = np.mean([orthonormality_loss(batch).item() for batch in batches])
    assert found == pytest.approx(((f.T @ f / 6 - np.eye(3)) ** 2).sum() / 2)


def test_the_measure_loss_is_least_at_the_density() -> None:
    """0 -> 1 -> 2, where it ends, 2 -> 0 -> 1, gamma 1/2: states 0, 1, 2 have the frequencies 1/2, 1/4, 1/4.

    So the state itself counts 2, 4 or 4: 1 has (0, 4, 0), 0 has (2, 0, 0) and half of that, 2 has (0, 0, 4) and half of
    what 0 has. Over all pairs of independent transitions the gradient there is 0. What is left of the squares is the
    state itself, 1/4 * 4 + 1/16 * 16 + 1/16 * 16 in the mean; the own densities are 1/2 * 2 + 1/4 * 4 + 1/4 * 4.
    """
    density = torch.tensor([[2.0, 2, 0], [0, 4, 0], [1, 1, 4]], requires_grad=True)
    x, after = torch.tensor([0, 1, 2, 0]), torch.tensor([1, 2, 0, 1])
    terminal = torch.tensor([False, True, False, False])
    losses = []
    for pair in ([i, j] for i in range(4) for j in range(4)):
        rows = density[x[pair]][:, x[pair]]
        losses.append(measure_loss(rows, density[after[pair]][:, x[pair]], terminal[pair], 0.5))
    loss = torch.stack(losses).mean()
    assert loss.item() == 3 / 2 - 3
    loss.backward()
    assert density.grad is not None
    assert density.grad.abs().max() < 1e-6


def test_prediction_loss() -> None:
    """Squared distances 1 + 4, 0 and 9; of a step that does not exist there is neither loss nor gradient."""
    prediction = torch.tensor([[[1.0, 2.0], [5.0, 5.0]], [[3.0, 0.0], [7.0, 7.0]]], requires_grad=True)
    target = torch.tensor([[[0.0, 0.0], [5.0, 5.0]], [[0.0, 0.0], [0.0, 0.0]]], requires_grad=True)
    valid = torch.tensor([[True, True], [True, False]])
    loss = prediction_loss(prediction, target, valid)
    assert loss.item() == pytest.approx((5 + 0 + 9) / 3)
    loss.backward()
    assert target.grad is None
    assert prediction.grad is not None
    torch.testing.assert_close(prediction.grad[:, 0], torch.tensor([[2.0, 4.0], [6.0, 0.0]]) / 3)
    assert prediction.grad[1, 1].tolist() == [0, 0]
    assert prediction_loss(prediction[:, 0], target[:, 0]).item() == 7
    assert prediction_loss(prediction, target, ~valid & valid).item() == 0


def test_latent_loss() -> None:
    """Two segments of two steps. Distances of unit vectors: equal 0, at right angles 2, opposite 4; at 60 degrees 1."""
    prediction = torch.tensor([[[2.0, 0.0], [3.0, 0.0]], [[1.0, 0.0], [5.0, 0.0]]], requires_grad=True)
    target = torch.tensor([[[7.0, 0.0], [0.0, 1.0]], [[0.5, math.sqrt(3) / 2], [-9.0, 0.0]]], requires_grad=True)
    everything = torch.ones(2, 2, dtype=torch.bool)
    assert latent_loss(prediction, target, everything).item() == pytest.approx((0 + 2 + 1 + 4) / 4)
    ended = torch.tensor([[True, True], [True, False]])
    loss = latent_loss(prediction, target, ended)
    assert loss.item() == pytest.approx((0 + 2 + 1) / 3)
    loss.backward()
    assert target.grad is None
    assert prediction.grad is not None
    assert prediction.grad[1, 1].tolist() == [0, 0], "no gradient from a step that does not exist"
    assert prediction.grad[1, 0].abs().sum() > 0


def test_latent_loss_of_short_vectors_and_of_nothing() -> None:
    """0.0005 is divided by 0.001: half a unit vector, at a distance of a quarter. No step at all is no loss."""
    short, unit, one = torch.tensor([[[0.0005, 0.0]]]), torch.tensor([[[2.0, 0.0]]]), torch.ones(1, 1).bool()
    assert latent_loss(short, unit, one).item() == pytest.approx(0.25)
    assert latent_loss(-unit, unit, ~one).item() == 0.0


def numbers(*shape: int) -> torch.Tensor:
    """Numbers that bfloat16 holds exactly, between -2 and 2 in steps of 1/64: their sums and products it does not."""
    return torch.randint(-128, 129, shape, generator=torch.Generator().manual_seed(sum(shape))) / 64


PROBABILITY = torch.tensor([[0.25, 0.625, 0.125], [0.5, 0.25, 0.25]])
CASES = {
    "backed_up": (numbers(9, 3, 7), "mean"),
    "td_loss": (numbers(9, 4), numbers(4, 9).T, numbers(9, 4) > 0, torch.arange(9) == 3, 0.99),
    "successor_measure_loss": (PSI, NEXT, REWARD, ACTION, TERMINAL, 0.99),
    "q_target": (numbers(5), torch.tensor([0.99, 0.99, 0.0, 0.999, 0.99]), numbers(5, 3), numbers(3, 5).T),
    "q_loss": (numbers(6), numbers(2, 3).flatten(), False),
    "q_loss_slope": (numbers(6), numbers(2, 3).flatten(), False),
    "categorical_target": (numbers(2), torch.tensor([0.99, 0.999]), PROBABILITY, torch.tensor([-1.0, 0.0, 1.0])),
    "categorical_loss": (numbers(2, 3), PROBABILITY),
    "cloning_loss": (numbers(5, 3), torch.tensor([0, 2, 1, 1, 0])),
    "graph_drawing_loss": (numbers(9, 4), numbers(4, 9).T),
    "orthonormality_loss": (numbers(9, 4),),
    "measure_loss": (numbers(7, 7), numbers(7, 7).T, torch.arange(7) == 3, 0.99),
    "prediction_loss": (numbers(5, 2, 8), numbers(8, 2, 5).permute(2, 1, 0), torch.ones(5, 2, dtype=torch.bool)),
    "latent_loss": (numbers(5, 2, 8), numbers(8, 2, 5).permute(2, 1, 0), torch.ones(5, 2, dtype=torch.bool)),
}


def test_every_loss_is_checked_for_its_precision() -> None:
    own = {
        name for name, found in inspect.getmembers(losses, inspect.isfunction) if found.__module__ == losses.__name__
    }
    assert own - {"_gram"} == CASES.keys()  # which two of them call


@pytest.mark.parametrize("name", CASES)
def test_the_arithmetic_is_float32_whatever_the_arguments_are(name: str) -> None:
    """Inside the CPU's own bfloat16 autocast, what comes as bfloat16 gives what float64 gives, to float32's precision.

    Discounts are tensors in float32, because bfloat16 has no 0.99.
    """
    function, arguments = getattr(losses, name), CASES[name]
    discounts = {id(value) for value in arguments[1:2] if name in ("q_target", "categorical_target")}

    def converted(dtype: Any) -> Iterator[Any]:
        for value in arguments:
            kept = dtype == torch.bfloat16 and id(value) in discounts
            if isinstance(value, torch.Tensor) and value.is_floating_point() and not kept:
                yield value.to(dtype)
            else:
                yield value

    with torch.autocast("cpu", torch.bfloat16):
        found = function(*converted(torch.bfloat16))
    exact = function(*converted(torch.float64))
    pairs = zip(found, exact, strict=True) if isinstance(found, tuple) else [(found, exact)]
    for ours, double in pairs:
        assert (ours.dtype, double.dtype) == (torch.float32, torch.float64)
        torch.testing.assert_close(ours.double(), double, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(("gamma", "target"), [(0.99, 1 + 0.99 * 3), (0.999, 1 + 0.999 * 3)])
def test_the_discount_is_not_rounded(gamma: float, target: float) -> None:
    """In bfloat16 0.99 is 0.98828 and 0.999 is 1: targets of 3.96484 and 4 for 3.97 and 3.997."""
    one, three = torch.ones(1, 1, dtype=torch.bfloat16), torch.full((1, 1), 3.0, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        loss, error = td_loss(0 * one, three, one > 0, torch.tensor([False]), gamma=gamma)
        found = q_target(one, torch.full((1, 1), gamma), three[..., None])
    assert error.item() == pytest.approx(target, rel=1e-7)
    assert loss.item() == pytest.approx(target**2, rel=1e-6)
    assert found.item() == pytest.approx(target, rel=1e-7)
