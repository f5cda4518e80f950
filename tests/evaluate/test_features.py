"""Features: known pictures, paths and targets, worked out by hand."""

import inspect
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from scipy.spatial.distance import pdist
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import GroupKFold

from protovalue.envs.registry import make
from protovalue.errors import UserError
from protovalue.evaluate.episodes import load_agent
from protovalue.evaluate.features import (
    effective_rank,
    features_of,
    linear_probe,
    mds,
    random_states,
    state_variables,
    temporal_smoothness,
    trajectory,
)
from protovalue.online.agent import Agent
from protovalue.online.config import OnlineConfig
from protovalue.online.linear_dqn import train_online


def rotation(dimensions: Any, rng: Any) -> np.ndarray:
    return np.linalg.qr(rng.normal(size=(dimensions, dimensions)))[0]


@pytest.mark.parametrize("method", ["classical", "metric"])
def test_a_plane_in_many_dimensions_is_found_again(method: Literal["classical", "metric"]) -> None:
    rng = np.random.default_rng(0)
    flat = rng.normal(size=(30, 2)) * [3.0, 1.0]
    hidden = np.hstack([flat, np.zeros((30, 18))]) @ rotation(20, rng) + 5.0
    found = mds(hidden, method)
    np.testing.assert_allclose(pdist(found.points), pdist(flat), atol=1e-5)
    np.testing.assert_allclose(found.points.mean(axis=0), 0, atol=1e-9)
    assert found.stress < 1e-6


def test_a_triangle_by_hand() -> None:
    """3-4-5, corners on axes of their own: distances again 3, 4 and 5, the long side first, the far corner positive."""
    for method in ("classical", "metric"):
        found = mds(np.array([[0.0, 0.0, 9.0], [3.0, 0.0, 9.0], [0.0, 4.0, 9.0]]), method)
        np.testing.assert_allclose(pdist(found.points), [3, 4, 5])
        # Squares around the middle (1, 4/3): along the larger axis of [[6, -4], [-4, 32/3]] and across it
        along = (6 + 32 / 3 + np.sqrt((6 - 32 / 3) ** 2 + 4 * 16)) / 2
        np.testing.assert_allclose(np.square(found.points).sum(axis=0), [along, 6 + 32 / 3 - along])
        np.testing.assert_allclose(found.points.mean(axis=0), 0, atol=1e-12)
        assert found.points[2, 0] == found.points[:, 0].max()
        assert found.stress == pytest.approx(0, abs=1e-12)


def test_points_on_a_line_stay_on_it() -> None:
    """Their second eigenvalue is 0; for these it is rounded to less, of which there is no root."""
    line = [[-0.6393159419710626, 1.0589866294538408], [0.0, 0.0], [-1.2786318839421251, 2.1179732589076816]]
    for x in (np.array(line), np.array([[0.0], [1.0], [2.0], [7.0]])):
        for method in ("classical", "metric"):
            found = mds(x, method)
            np.testing.assert_allclose(pdist(found.points), pdist(x), rtol=1e-7)
            assert found.points[:, 1] == pytest.approx(0, abs=1e-6)
            assert found.stress == pytest.approx(0, abs=1e-12)


def test_each_direction_has_its_sign() -> None:
    """Corners of a long cross: the largest entry of both coordinates is positive, wherever the features point."""
    cross = np.array([[0.5, 0.0], [-0.4, 0.0], [-0.1, 0.0], [0.0, 0.3], [0.0, -0.2], [0.0, -0.1]])
    for signs in ([1, 1], [-1, 1], [1, -1], [-1, -1]):
        np.testing.assert_allclose(mds(cross * signs).points, cross, atol=1e-12)


def test_metric_scaling_is_where_the_stress_is_lowest() -> None:
    x = np.random.default_rng(3).normal(size=(12, 5))
    found = mds(x, "metric")

    def raw(points: Any) -> Any:
        return np.square(pdist(x) - pdist(points)).sum()

    assert found.stress == pytest.approx(np.sqrt(raw(found.points) / np.square(pdist(x)).sum()))
    rng = np.random.default_rng(0)
    for _ in range(50):
        assert raw(found.points + 0.1 * rng.normal(size=(12, 2))) > raw(found.points)


def test_stress_of_a_regular_tetrahedron_by_hand() -> None:
    # All six distances are 1, and the three directions are worth the same: any plane keeps two thirds of the squares.
    corners = np.eye(4) / np.sqrt(2)
    found = mds(corners)
    kept = np.square(pdist(found.points)).sum()
    assert kept == pytest.approx(6 * 2 / 3)
    by_hand = np.sqrt(np.square(1 - pdist(found.points)).sum() / 6)
    assert found.stress == pytest.approx(by_hand)
    assert mds(corners, "metric").stress < found.stress


def test_points_that_are_all_the_same_and_two_points() -> None:
    assert mds(np.full((5, 3), 2.0)).points.tolist() == [[0.0, 0.0]] * 5
    np.testing.assert_allclose(mds(np.array([[0.0, 0.0], [3.0, 4.0]])).points, [[2.5, 0], [-2.5, 0]])


def test_the_picture_is_the_same_each_time() -> None:
    x = np.random.default_rng(1).normal(size=(40, 10))
    for method in ("classical", "metric"):
        np.testing.assert_array_equal(mds(x, method).points, mds(x, method).points)
    points = mds(x).points
    assert (points[np.abs(points).argmax(axis=0), [0, 1]] > 0).all()


def test_smoothness_by_hand() -> None:
    line = np.arange(4.0)[:, None]  # neighbours 1 apart; pairs 1, 2, 3, 1, 2, 1: mean 10 / 6
    assert temporal_smoothness(line) == pytest.approx(0.6)
    assert temporal_smoothness(line[[0, 3, 1, 2]]) == pytest.approx((3 + 2 + 1) / 3 / (10 / 6))
    assert temporal_smoothness(np.eye(6)) == pytest.approx(1.0)  # all as far from each other as neighbours
    assert temporal_smoothness(line[[1, 3]]) == 1.0
    assert np.isnan(temporal_smoothness(np.ones((4, 2))))
    assert np.isnan(temporal_smoothness(np.ones((1, 2))))


def test_smoothness_does_not_depend_on_scale_or_rotation() -> None:
    rng = np.random.default_rng(0)
    walk = rng.normal(size=(50, 6)).cumsum(axis=0)
    assert temporal_smoothness(3 * walk @ rotation(6, rng) + 1) == pytest.approx(temporal_smoothness(walk))
    assert temporal_smoothness(walk) < 0.5 < temporal_smoothness(rng.permutation(walk))


def test_a_probe_reads_what_is_linear_and_nothing_from_noise() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 8))
    targets = np.column_stack([x @ rng.normal(size=8) + 7.0, rng.normal(size=300), np.full(300, 2.0)])
    linear, noise, constant = linear_probe(x, targets)
    assert linear > 0.9999
    assert -0.2 < noise < 0.05
    assert np.isnan(constant)


def ridge_by_hand(x: Any, y: Any) -> Any:
    """Leave-one-out picks the strength, 10^-4 to 10^3, by the hat matrix; return how to predict, and the strength."""
    centre, middle = x.mean(axis=0), y.mean()
    z = x - centre
    errors, weights = [], []
    for power in range(-4, 4):
        inverse = np.linalg.inv(z.T @ z + 10.0**power * np.eye(z.shape[1]))
        hat = 1 / len(z) + np.diag(z @ inverse @ z.T)
        weights.append(inverse @ z.T @ (y - middle))
        errors.append(np.square((y - middle - z @ weights[-1]) / (1 - hat)).mean())
    best = int(np.argmin(errors))
    return (lambda other: (other - centre) @ weights[best] + middle), 10.0 ** (best - 4)


def test_a_probe_by_its_normal_equations() -> None:
    """Five blocks in time, each predicted from the other four: features over their largest deviation, R^2 at the end.

    A target that is linear wants the weakest ridge, one of noise the strongest, one between them another one.
    """
    rng = np.random.default_rng(2)
    x = rng.normal(size=(43, 3)) * [5.0, 1.0, 0.1] + [0.0, 7.0, 3.0]
    noise = rng.normal(size=43)
    targets = np.column_stack([x @ [1.0, 2.0, 3.0], noise, x @ [0.1, 0.5, 0.0] + noise])
    starts = [0, 9, 18, 26, 35, 43]  # 43 rows in five: the first rows where 5 i // 43 is 1, 2, 3, 4
    wrong, total, strengths = np.zeros(3), np.zeros(3), []
    for first, last in itertools.pairwise(starts):
        test = np.arange(first, last)
        train = np.setdiff1d(np.arange(43), test)
        scale = np.std(x[train], axis=0).max()
        for j in range(3):
            predict, strength = ridge_by_hand(x[train] / scale, targets[train, j])
            strengths.append(strength)
            wrong[j] += np.square(targets[test, j] - predict(x[test] / scale)).sum()
            total[j] += np.square(targets[test, j] - targets[train, j].mean()).sum()
    assert {1e-4, 1e3} < set(strengths)
    np.testing.assert_allclose(linear_probe(x, targets), 1 - wrong / total, rtol=1e-6)
    np.testing.assert_allclose(linear_probe(x, 0.01 * targets), 1 - wrong / total, rtol=1e-6)


@pytest.mark.parametrize("features", [40, 700])
@pytest.mark.parametrize("groups", [np.arange(500) // 400, np.arange(500) * 7 % 9 // 2])
def test_a_probe_is_scikit_learns_ridge(groups: Any, features: int) -> None:
    """Some targets are nearly linear in the features and others hardly, so that they take different strengths."""
    rng = np.random.default_rng(96)
    x = rng.normal(size=(500, features)).astype(np.float32)
    targets = x @ rng.normal(size=(features, 12)) + rng.normal(size=(500, 12)) * np.repeat([0.1, 10.0, 100.0], 4)
    predicted, baseline = np.zeros_like(targets), np.zeros_like(targets)
    for train, test in GroupKFold(len(np.unique(groups))).split(x, targets, groups):
        known = x[train].astype(np.float64)
        scale = known.std(axis=0).max()
        model = RidgeCV([10.0**power for power in range(-4, 4)], alpha_per_target=True)
        predicted[test] = model.fit(known / scale, targets[train]).predict(x[test] / scale)
        baseline[test] = targets[train].mean(axis=0)
        assert len(np.unique(model.alpha_)) > 1
    share = 1 - np.square(targets - predicted).sum(axis=0) / np.square(targets - baseline).sum(axis=0)
    np.testing.assert_allclose(linear_probe(x, targets, groups), share, rtol=1e-6)


def test_features_that_are_all_the_same_tell_no_more_than_the_mean() -> None:
    targets = np.random.default_rng(0).normal(size=(20, 1))
    assert linear_probe(np.full((20, 3), 0.7), targets)[0] == pytest.approx(0)


def test_a_target_that_is_the_same_everywhere_has_no_share() -> None:
    """Also where the mean of equal numbers is rounded, as that of 300 times 0.1 is."""
    x = np.random.default_rng(0).normal(size=(300, 2))
    assert np.std(np.full(300, 0.1)) > 0
    assert np.isnan(linear_probe(x, np.full((300, 1), 0.1))[0])


def test_a_probe_is_judged_on_groups_that_it_has_not_seen() -> None:
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(10), 20)
    names = np.eye(10)[groups]  # features that tell the groups apart and nothing else
    level = rng.normal(size=10)[groups][:, None]
    assert linear_probe(names, level, groups)[0] < 0.05
    shuffled = rng.permutation(200)
    assert linear_probe(names[shuffled], level[shuffled])[0] > 0.99  # with every group in every fold it is easy


def test_a_probe_with_more_features_than_rows() -> None:
    rng = np.random.default_rng(0)
    z = rng.normal(size=(100, 3))
    x = z @ rng.normal(size=(3, 400))
    assert linear_probe(x, z).min() > 0.99


def test_state_variables_by_hand() -> None:
    frame = np.zeros((1, 1, 4, 5, 2), np.bool_)
    frame[0, 0, 1, 2, 0] = frame[0, 0, 3, 4, 0] = True  # channel 1 is empty
    found = state_variables(frame)
    assert found is not None
    values, names = found
    assert dict(zip(names, values[0], strict=True)) == {
        "count of channel 0": 2,
        "count of channel 1": 0,
        "row of channel 0": 2,
        "row of channel 1": 1.5,
        "column of channel 0": 3,
        "column of channel 1": 2,
    }
    assert state_variables(np.zeros((2, 4, 84, 84), np.uint8)) is None
    assert state_variables(np.zeros((2, 4, 84, 84, 3), np.uint8)) is None
    assert state_variables(np.zeros((2, 4, 84, 84), np.bool_)) is None


def test_state_variables_of_one_cell_and_of_three() -> None:
    frames = np.zeros((2, 1, 3, 4, 1), np.bool_)
    frames[0, 0, 0, 3] = True
    frames[1, 0, [0, 2, 2], [1, 0, 1]] = True
    found = state_variables(frames)
    assert found is not None
    assert found[0].tolist() == pytest.approx(np.array([[1, 0, 3], [3, 4 / 3, 2 / 3]]))


def test_only_the_newest_frame_counts() -> None:
    frames = np.zeros((1, 2, 3, 3, 1), np.bool_)
    frames[0, 0] = True
    found = state_variables(frames)
    assert found is not None
    assert found[0][0, 0] == 0


def test_effective_rank_is_that_of_training() -> None:
    assert effective_rank(torch.eye(7)) == pytest.approx(7)


def test_features_come_in_order_whatever_the_chunks() -> None:
    obs = np.arange(1000, dtype=np.float32)[:, None]
    got = features_of(lambda part: torch.from_numpy(part) * 2, obs)
    np.testing.assert_array_equal(got, 2 * obs)


def test_features_are_computed_in_chunks_of_256() -> None:
    sizes = []

    def see(part: Any) -> torch.Tensor:
        sizes.append(len(part))
        return torch.from_numpy(part).double()

    got = features_of(see, np.arange(600.0)[:, None])
    assert sizes == [256, 256, 88]
    assert got.dtype == np.float32


class Endless(gymnasium.Env[np.ndarray, np.int64]):
    """Never ends; frame t is [t mod 256, last action] and the reward the action."""

    closed = 0

    def __init__(self) -> None:
        self.observation_space = Box(0, 255, (1, 2), np.uint8)
        self.action_space = Discrete(4)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return np.zeros((1, 2), np.uint8), {}

    def step(self, action: np.int64) -> Any:
        self.t += 1
        return np.array([[self.t % 256, action]], np.uint8), float(action), False, False, {}

    def close(self) -> None:
        Endless.closed += 1


@pytest.fixture
def endless() -> Iterator[Any]:
    gymnasium.register("Endless-v0", Endless)  # type: ignore[arg-type]  # a class that takes no options
    yield "gym/Endless-v0"
    del gymnasium.registry["Endless-v0"]


class Fixed(Agent):
    """Two agents: the first always wants action 2, the second action 1."""

    def __init__(self) -> None:
        super(Agent, self).__init__()  # it has nothing to learn
        self.num_seeds, self.num_actions = 2, 4

    def see(self, obs: Any) -> torch.Tensor:
        assert len(obs) == 2
        assert (obs[0] == obs[1]).all()
        return torch.zeros(2, 1, 1)

    def values(self, features: Any) -> torch.Tensor:
        return torch.tensor([[[0.0, 1, 2, 0]], [[0.0, 2, 1, 0]]])


def test_a_trajectory_without_an_end_is_cut_after_1000_steps(endless: Any) -> None:
    before = Endless.closed
    played = trajectory(endless, {}, agent=Fixed(), epsilon=0.0)
    assert Endless.closed == before + 1
    assert not played.complete
    assert played.rewards.tolist() == [2.0] * 1000
    assert played.observations.shape == (1001, 1, 1, 2)
    assert played.observations[:, 0, 0, 0].tolist() == [t % 256 for t in range(1001)]
    assert played.observations[1:, 0, 0, 1].tolist() == [2] * 1000
    second = trajectory(endless, {}, agent=Fixed(), which=1, epsilon=0.0, max_steps=3)
    assert second.rewards.tolist() == [1.0] * 3


def test_some_actions_of_a_trajectory_are_random(endless: Any) -> None:
    """A random action is any of four: of 1,000 steps at epsilon 0.4 a tenth is each of the other three."""
    actions = trajectory(endless, {}, agent=Fixed(), epsilon=0.4).rewards
    for other in (0, 1, 3):
        assert abs((actions == other).mean() - 0.1) < 4 * np.sqrt(0.1 * 0.9 / 1000)
    every = trajectory(endless, {}, agent=Fixed(), epsilon=1.0).rewards
    np.testing.assert_array_equal(every, trajectory(endless, {}).rewards)  # as without an agent
    for action in range(4):
        assert abs((every == action).mean() - 0.25) < 4 * np.sqrt(0.25 * 0.75 / 1000)
    assert (trajectory(endless, {}, seed=1).rewards != every).any()
    # As in evaluation, one action in a thousand.
    assert inspect.signature(trajectory).parameters["epsilon"].default == 0.001


def test_a_random_trajectory_is_one_complete_episode() -> None:
    # Episode 0 of Counting-v0 lasts one step; frame t is [episode, t, last action] and the reward t.
    played = trajectory("gym/Counting-v0", {})
    assert played.complete
    assert played.rewards.tolist() == [1.0]
    assert played.observations.shape == (2, 1, 3)
    assert played.observations[:, 0, :2].tolist() == [[0, 0], [0, 1]]


def test_trajectories_repeat_and_can_be_cut() -> None:
    long = trajectory("minatar/space_invaders", {"sticky": 0.0}, seed=3)
    again = trajectory("minatar/space_invaders", {"sticky": 0.0}, seed=3)
    np.testing.assert_array_equal(long.observations, again.observations)
    cut = trajectory("minatar/space_invaders", {"sticky": 0.0}, seed=3, max_steps=5)
    assert not cut.complete
    np.testing.assert_array_equal(cut.observations, long.observations[:6])
    other = trajectory("minatar/space_invaders", {"sticky": 0.0}, seed=4)
    assert len(other.observations) != len(long.observations) or (other.observations != long.observations).any()


def test_an_agent_plays_with_the_chosen_seed(tmp_path: Path) -> None:
    config = OnlineConfig(
        env="minatar/breakout", out=tmp_path / "r", encoder="random:minatar:1", seeds="0,5", steps=60, replay_min=20,
        replay_size=50,
    )  # fmt: skip
    env, agent, seeds, _ = load_agent(train_online(config, quiet=True), 1)
    assert seeds == (0, 5)
    played = trajectory(env.env_id, env.options, agent=agent, which=1, epsilon=0.0, max_steps=30)
    game = make(env.env_id, 1, **env.options)
    obs, _ = game.reset(seed=0)
    for expected in played.observations[1:-1]:
        both = agent.values(agent.see(np.concatenate([obs, obs])))
        obs = game.step(np.array([int(both[1, 0].argmax())]))[0]
        np.testing.assert_array_equal(obs[0], expected)


def test_random_states_know_their_environment() -> None:
    states = random_states(make("minatar/breakout", 3), steps=20, every=10)
    assert states.observations.shape == (6, 1, 10, 10, 4)
    assert states.groups.tolist() == [0, 1, 2, 0, 1, 2]


def test_random_states_are_every_tenth_of_640(endless: Any) -> None:
    """Also the first; of both environments; actions are those of the seed."""
    states = random_states(make(endless, 2))
    assert states.groups.tolist() == [0, 1] * 64
    assert states.observations[:, 0, 0, 0].tolist() == [t % 256 for t in range(0, 640, 10) for _ in range(2)]
    same, other = (random_states(make(endless, 2), seed=seed).observations for seed in (0, 1))
    np.testing.assert_array_equal(same, states.observations)
    assert (other != states.observations).any()
    actions = random_states(make(endless, 2), steps=2000, every=1).observations[2:, 0, 0, 1]
    for action in range(4):
        assert abs((actions == action).mean() - 0.25) < 4 * np.sqrt(0.25 * 0.75 / 3998)


def test_a_probe_with_nothing_to_hold_out_is_refused() -> None:
    with pytest.raises(UserError, match="linear_probe: found rows of one group, expected two or more"):
        linear_probe(np.eye(4), np.arange(4.0)[:, None], np.zeros(4, np.int64))
