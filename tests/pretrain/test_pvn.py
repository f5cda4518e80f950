"""The method itself: targets by hand, the exact successor measure on Four Rooms, Monte Carlo comparison by hand."""

import numpy as np
import pytest
import torch

from protovalue.data.format import End
from protovalue.losses import td_loss
from protovalue.nets.heads import TaskHeads
from protovalue.nets.statistics import effective_rank, feature_statistics
from protovalue.pretrain.holdout import compare_with_rollouts, discounted_sums
from protovalue.pretrain.target import TargetNetwork
from protovalue.tabular.gridworlds import four_rooms
from tests.data.helpers import made_up, write


def test_td_loss_by_hand():
    """Targets 1 + 0.5 * 2 = 2 and 0 + 0.5 * 4 = 2, and at the terminal 1 and 0."""
    loss, error = td_loss(
        prediction=torch.tensor([[1.0, 2.0], [4.0, 1.0]]),
        next_value=torch.tensor([[2.0, 4.0], [8.0, 8.0]]),
        reward=torch.tensor([[True, False], [True, False]]),
        terminal=torch.tensor([False, True]),
        gamma=0.5,
    )
    assert error.tolist() == [[1.0, 0.0], [-3.0, -1.0]]
    assert loss.item() == (1 + 0 + 9 + 1) / 4


def test_no_gradient_flows_into_the_target():
    prediction, next_value = torch.ones(1, 1, requires_grad=True), torch.ones(1, 1, requires_grad=True)
    loss, _ = td_loss(prediction, next_value, torch.zeros(1, 1), torch.tensor([False]), 0.9)
    loss.backward()
    assert next_value.grad is None
    assert prediction.grad.item() == pytest.approx(2 * (1 - 0.9))


def test_target_network_by_hand():
    source = torch.nn.Linear(1, 1, bias=False)
    source.weight.data.fill_(1.0)
    average, copied = TargetNetwork({"net": source}, ema=0.75), TargetNetwork({"net": source}, ema=None, every=2)
    source.weight.data.fill_(5.0)
    average.follow()
    copied.follow()
    assert average["net"].weight.item() == 0.75 * 1 + 0.25 * 5
    assert copied["net"].weight.item() == 1.0
    average.follow()
    copied.follow()
    assert average["net"].weight.item() == 0.75 * 2 + 0.25 * 5
    assert copied["net"].weight.item() == 5.0
    assert not average["net"].weight.requires_grad


@pytest.mark.parametrize("backup", ["mean", "max"])
def test_four_rooms_converges_to_the_exact_values_of_the_sets(backup):
    """One-hot features on 104 states and all transitions: psi must be the fixed point, solved here by NumPy."""
    world = four_rooms()
    steps = np.stack([matrix.toarray() for matrix in world.transitions])  # (A, n, n)
    actions, n, _ = steps.shape
    assert n == 104
    rng, gamma = np.random.default_rng(0), 0.9
    sets = rng.random((n, 6)) < 0.1
    psi = np.zeros((actions, n, 6))
    for _ in range(400):  # value iteration: error 0.9^400 < 1e-18
        psi = sets + gamma * steps @ (psi.mean(axis=0) if backup == "mean" else psi.max(axis=0))
    if backup == "mean":
        exact = np.linalg.solve(np.eye(n) - gamma * steps.mean(axis=0), sets)
        assert np.allclose(psi.mean(axis=0), exact)

    heads = TaskHeads(n, 6, actions, torch.Generator().manual_seed(0))
    target = TargetNetwork({"heads": heads}, ema=0.5)
    optimizer = torch.optim.SGD(heads.parameters(), lr=0.5 * n * actions * 6 / 2 / 2)  # half a Newton step
    features = torch.eye(n).repeat(actions, 1)
    action = torch.arange(actions).repeat_interleave(n)
    next_features = torch.tensor(steps.reshape(-1, n), dtype=torch.float32)
    reward = torch.tensor(sets).repeat(actions, 1)
    going_on = torch.zeros(len(action), dtype=torch.bool)
    for _ in range(600):
        behind = target["heads"]
        next_value = behind.mean(next_features) if backup == "mean" else behind.all_actions(next_features).amax(2)
        loss, _ = td_loss(heads.taken(features, action), next_value, reward, going_on, gamma)
        optimizer.zero_grad()
        loss.backward()
        heads.bias.grad = None
        optimizer.step()
        target.follow()
    learned = heads.all_actions(torch.eye(n)).detach().numpy()  # (n, m, A)
    assert np.abs(learned.transpose(2, 0, 1) - psi).max() < 1e-3


def test_discounted_sums_by_hand():
    rewards = np.array([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0]])
    assert discounted_sums(rewards, 0.5).tolist() == [[1.25, 0.25], [0.5, 0.5], [1.0, 1.0]]


def test_rollouts_agree_with_a_perfect_prophet_and_not_with_its_opposite(tmp_path):
    """Reward is 1 in every state, so the sum at step t of T is (1 - g^(T-t)) / (1 - g); pixel 0 holds T - t."""
    episodes = []
    for length in (3, 9, 5):
        episode = made_up(length, np.random.default_rng(length))
        episode.frames[:] = (length - np.arange(length + 1))[:, None, None]
        episodes.append(episode)
    cut = made_up(6, np.random.default_rng(6), End.CUT)  # must not count
    data = write(tmp_path / "set", [*episodes, cut])

    def always(obs):
        return torch.ones(len(obs), 1, dtype=bool)

    def prophet(obs, action):
        return (1 - 0.9 ** obs[:, -1, 0, :1].float()) / 0.1

    correlation, predicted, seen = compare_with_rollouts(data, always, prophet, 0.9, "cpu")
    assert correlation[0] == pytest.approx(1.0)
    assert predicted[0] == pytest.approx(seen[0], rel=1e-5)
    correlation, *_ = compare_with_rollouts(data, always, lambda obs, action: -prophet(obs, action), 0.9, "cpu")
    assert correlation[0] == pytest.approx(-1.0)


def test_effective_rank_by_hand():
    assert effective_rank(torch.outer(torch.ones(5), torch.tensor([1.0, 2.0, 3.0]))) == pytest.approx(1.0)
    assert effective_rank(torch.eye(4)) == pytest.approx(4.0)
    # Singular values 3 and 1: q = 3/4, 1/4, exp(H) = (4/3)^(3/4) * 4^(1/4).
    assert effective_rank(torch.diag(torch.tensor([3.0, 1.0]))) == pytest.approx((4 / 3) ** 0.75 * 4**0.25)
    assert effective_rank(torch.zeros(3, 2)) == 0.0


def test_feature_statistics_by_hand():
    found = feature_statistics(torch.tensor([[3.0, 0.0, 4.0], [0.0, 0.0, 0.0]]))
    assert found["dead_units"] == pytest.approx(1 / 3)
    assert found["feature_norm"] == pytest.approx(2.5)
    assert found["feature_rms"] == pytest.approx(np.sqrt(25 / 6))
