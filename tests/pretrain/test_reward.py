"""The oracle: the optimal action values of a small MDP, found from walks of a random policy."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from protovalue.data.dataset import Dataset
from protovalue.data.format import End
from protovalue.pretrain.loop import pretrain
from protovalue.pretrain.method_configs import RewardConfig
from protovalue.tabular.gridworlds import open_grid
from tests.pretrain.helpers import episodes, fill_table, made, pictures, successors, trained, walks

GOAL, PIT, GAMMA = 15, 6, 0.9


def reward_of(state: int) -> float:
    """Raw rewards: clipped to 1 and -1."""
    return {GOAL: 5.0, PIT: -3.0}.get(state, 0.0)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("mdp") / "set"
    return walks(folder, successors(open_grid(4, 4)), 300, 20, reward=reward_of, ends=(GOAL, PIT))


@pytest.fixture
def config(data: Dataset, tmp_path: Path) -> RewardConfig:
    return RewardConfig(
        out=tmp_path / "run", data=(data.folders[0].path,), architecture="minatar", steps=1200, batch_size=64,
        learning_rate=2e-3, gamma=GAMMA, target_ema=0.95, threads=1,
    )  # fmt: skip


OPTIONS = [{}, {"double": False}, {"huber": True}, {"clip_rewards": False}]


@pytest.mark.parametrize("change", OPTIONS, ids=str)
def test_loss_by_hand(table: str, tmp_path: Path, change: Any) -> None:
    """0 -> 1 -> 2 by actions 1, 0 with rewards 0.5 and 5, where it terminates; 2 -> 0 by action 0, reward -3, cut."""
    first, second = ((0, 1, 2), (1, 0), (0.5, 5), End.TERMINATED), ((2, 0), (0,), (-3,), End.TRUNCATED)
    data = episodes(tmp_path / "few", first, second)
    config = RewardConfig(out=tmp_path / "run", data=(tmp_path / "few",), architecture=table, gamma=0.5, batch_size=12)
    config = replace(config, **change)
    method = made(config, data)
    q, behind = [[1.0, 2.0], [0.5, -1.0], [4.0, 3.0]], [[8.0, -2.0], [1.0, 7.0], [9.0, 9.0]]  # [state][action]
    fill_table(method.head, np.array(q)[:, None])
    fill_table(method.target["head"], np.array(behind)[:, None])
    loss, logged = method.loss(method.sample(3))
    # In state 0 the network prefers action 1, which the target network values at -2; in state 1 action 0, valued at 1.
    best = {0: 8.0, 1: 7.0} if change == {"double": False} else {0: -2.0, 1: 1.0}
    rewards = [0.5, 5.0, -3.0] if change == {"clip_rewards": False} else [0.5, 1.0, -1.0]
    targets = [rewards[0] + 0.5 * best[1], rewards[1], rewards[2] + 0.5 * best[0]]
    drawn = method.sampler.indices(3)
    errors = np.array([targets[i] - [2.0, 0.5, 4.0][i] for i in drawn])
    size = np.abs(errors)
    losses = np.where(size < 1, errors**2 / 2, size - 0.5) if change == {"huber": True} else errors**2
    assert set(drawn) == {0, 1, 2}
    assert loss.item() == pytest.approx(losses.mean(), rel=1e-6)
    assert logged["td_error_std"].item() == pytest.approx(errors.std(ddof=1), rel=1e-6)
    assert logged["prediction_mean"].item() == pytest.approx(np.mean([[2.0, 0.5, 4.0][i] for i in drawn]), rel=1e-6)
    assert logged["reward_mean"].item() == pytest.approx(np.mean([rewards[i] for i in drawn]), rel=1e-6)
    loss.backward()
    assert all(parameter.grad is None for parameter in method.target.parameters())


@pytest.mark.parametrize(("encoder", "accuracy"), [("minatar", 0.05), ("table", 0.01)])
def test_it_finds_the_optimal_values(
    data: Dataset, config: RewardConfig, table: str, encoder: str, accuracy: float
) -> None:
    after = successors(open_grid(4, 4))
    clipped = np.clip([reward_of(state) for state in range(16)], -1, 1)
    going_on = np.array([state not in (GOAL, PIT) for state in range(16)])
    exact = np.zeros((4, 16))
    for _ in range(400):  # value iteration: error 0.9^400 < 1e-18
        exact = clipped[after] + GAMMA * (going_on * exact.max(axis=0))[after]
    if encoder == table:
        config = replace(config, architecture=table, learning_rate=0.3, adam_epsilon=0.1, target_ema=0.8)
    method = trained(config, data)
    with torch.no_grad():
        features = method.encoder(torch.from_numpy(pictures(np.arange(16))[:, None]))
        learned = method.head.all_actions(features)[:, 0].T.numpy()
    inside = np.flatnonzero(going_on)
    assert np.abs(exact[:, inside]).max() == 1.0
    assert np.abs(learned - exact)[:, inside].max() < accuracy


@pytest.mark.parametrize(
    "change",
    [{"gamma": 0.5}, {"clip_rewards": False}, {"double": False}, {"huber": True}, {"target_ema": 0.5}],
    ids=str,
)
def test_every_option_changes_the_result(config: RewardConfig, tmp_path: Path, change: dict[str, Any]) -> None:
    short = replace(config, steps=20)
    pretrain(short, quiet=True)
    pretrain(replace(short, out=tmp_path / "other", **change), quiet=True)
    first, second = ((path / "encoder" / "model.safetensors").read_bytes() for path in (short.out, tmp_path / "other"))
    assert first != second


def test_clipped_rewards_are_not_refused(data: Dataset, config: RewardConfig, tmp_path: Path) -> None:
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
