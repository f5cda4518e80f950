"""The oracle: the optimal action values of a small MDP, found from walks of a random policy."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from protovalue.losses import q_loss, q_target
from protovalue.pretrain.loop import pretrain
from protovalue.pretrain.reward import RewardConfig
from protovalue.tabular.gridworlds import open_grid
from tests.pretrain.helpers import pictures, successors, trained, walks

GOAL, PIT, GAMMA = 15, 6, 0.9


def reward_of(state: int) -> float:
    """Raw rewards: clipped to 1 and -1."""
    return {GOAL: 5.0, PIT: -3.0}.get(state, 0.0)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mdp") / "set"
    return walks(folder, successors(open_grid(4, 4)), 300, 20, reward=reward_of, ends=(GOAL, PIT))


@pytest.fixture
def config(data, tmp_path):
    return RewardConfig(
        out=tmp_path / "run", data=(data.folders[0].path,), encoder="minatar", steps=1200, batch_size=64,
        learning_rate=2e-3, gamma=GAMMA, target_ema=0.95, threads=1,
    )  # fmt: skip


def test_target_and_loss_by_hand():
    """Plain: 1 + 0.5 max(2, 4) = 3. Double: the trained network prefers action 0: 1 + 0.5 * 2 = 2. Terminal: 1."""
    reward, discount = torch.tensor([1.0, 1.0]), torch.tensor([0.5, 0.0])
    target_next, online_next = torch.tensor([[2.0, 4.0], [9.0, 9.0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    assert q_target(reward, discount, target_next).tolist() == [3.0, 1.0]
    assert q_target(reward, discount, target_next, online_next).tolist() == [2.0, 1.0]
    prediction = torch.tensor([0.0, 1.5])
    assert q_loss(prediction, torch.tensor([3.0, 1.0])).tolist() == [9.0, 0.25]
    assert q_loss(prediction, torch.tensor([3.0, 1.0]), huber=True).tolist() == [2.5, 0.125]


def test_it_finds_the_optimal_values(data, config):
    after = successors(open_grid(4, 4))
    clipped = np.clip([reward_of(state) for state in range(16)], -1, 1)
    going_on = np.array([state not in (GOAL, PIT) for state in range(16)])
    exact = np.zeros((4, 16))
    for _ in range(400):  # value iteration: error 0.9^400 < 1e-18
        exact = clipped[after] + GAMMA * (going_on * exact.max(axis=0))[after]
    method = trained(config, data)
    with torch.no_grad():
        features = method.encoder(torch.from_numpy(pictures(np.arange(16))[:, None]))
        learned = method.head.all_actions(features)[:, 0].T.numpy()
    inside = np.flatnonzero(going_on)
    assert np.abs(exact[:, inside]).max() == 1.0
    assert np.abs(learned - exact)[:, inside].max() < 0.05


@pytest.mark.parametrize(
    "change",
    [{"gamma": 0.5}, {"clip_rewards": False}, {"double": False}, {"huber": True}, {"target_ema": 0.5}],
    ids=str,
)
def test_every_option_changes_the_result(config, tmp_path, change):
    short = replace(config, steps=20)
    pretrain(short, quiet=True)
    pretrain(replace(short, out=tmp_path / "other", **change), quiet=True)
    first, second = ((path / "encoder" / "model.safetensors").read_bytes() for path in (short.out, tmp_path / "other"))
    assert first != second


def test_clipped_rewards_are_not_refused(data, config, tmp_path):
    """Clipping twice is clipping once: a data set whose rewards are already clipped gives the same encoder."""
    after = successors(open_grid(4, 4))
    clipped = walks(
        tmp_path / "clipped", after, 300, 20, reward=lambda s: float(np.clip(reward_of(s), -1, 1)), ends=(GOAL, PIT)
    )
    short = replace(config, steps=20)
    pretrain(short, quiet=True)
    pretrain(replace(short, out=tmp_path / "other", data=(clipped.folders[0].path,), clip_rewards=True), quiet=True)
    first, second = ((path / "encoder" / "model.safetensors").read_bytes() for path in (short.out, tmp_path / "other"))
    assert first == second
