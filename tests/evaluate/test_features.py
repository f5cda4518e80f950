"""Features: known pictures, paths and targets, worked out by hand."""

import numpy as np
import pytest
import torch
from scipy.spatial.distance import pdist

from protovalue.config import OnlineConfig
from protovalue.envs.registry import make
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
from protovalue.online.linear_dqn import train_online


def rotation(dimensions, rng):
    return np.linalg.qr(rng.normal(size=(dimensions, dimensions)))[0]


@pytest.mark.parametrize("method", ["classical", "metric"])
def test_a_plane_in_many_dimensions_is_found_again(method):
    rng = np.random.default_rng(0)
    flat = rng.normal(size=(30, 2)) * [3.0, 1.0]
    hidden = np.hstack([flat, np.zeros((30, 18))]) @ rotation(20, rng) + 5.0
    found = mds(hidden, method)
    np.testing.assert_allclose(pdist(found.points), pdist(flat), atol=1e-5)
    np.testing.assert_allclose(found.points.mean(axis=0), 0, atol=1e-9)
    assert found.stress < 1e-6


def test_stress_of_a_regular_tetrahedron_by_hand():
    # All six distances are 1, and the three directions are worth the same: any plane keeps two thirds of the squares.
    corners = np.eye(4) / np.sqrt(2)
    found = mds(corners)
    kept = np.square(pdist(found.points)).sum()
    assert kept == pytest.approx(6 * 2 / 3)
    by_hand = np.sqrt(np.square(1 - pdist(found.points)).sum() / 6)
    assert found.stress == pytest.approx(by_hand)
    assert mds(corners, "metric").stress < found.stress


def test_points_that_are_all_the_same_and_two_points():
    assert mds(np.full((5, 3), 2.0)).points.tolist() == [[0.0, 0.0]] * 5
    np.testing.assert_allclose(mds(np.array([[0.0, 0.0], [3.0, 4.0]])).points, [[2.5, 0], [-2.5, 0]])


def test_the_picture_is_the_same_each_time():
    x = np.random.default_rng(1).normal(size=(40, 10))
    for method in ("classical", "metric"):
        np.testing.assert_array_equal(mds(x, method).points, mds(x, method).points)
    points = mds(x).points
    assert (points[np.abs(points).argmax(axis=0), [0, 1]] > 0).all()


def test_smoothness_by_hand():
    line = np.arange(4.0)[:, None]  # neighbours 1 apart; pairs 1, 2, 3, 1, 2, 1: mean 10 / 6
    assert temporal_smoothness(line) == pytest.approx(0.6)
    assert temporal_smoothness(line[[0, 3, 1, 2]]) == pytest.approx((3 + 2 + 1) / 3 / (10 / 6))
    assert temporal_smoothness(np.eye(6)) == pytest.approx(1.0)  # all as far from each other as neighbours
    assert np.isnan(temporal_smoothness(np.ones((4, 2))))
    assert np.isnan(temporal_smoothness(np.ones((1, 2))))


def test_smoothness_does_not_depend_on_scale_or_rotation():
    rng = np.random.default_rng(0)
    walk = rng.normal(size=(50, 6)).cumsum(axis=0)
    assert temporal_smoothness(3 * walk @ rotation(6, rng) + 1) == pytest.approx(temporal_smoothness(walk))
    assert temporal_smoothness(walk) < 0.5 < temporal_smoothness(rng.permutation(walk))


def test_a_probe_reads_what_is_linear_and_nothing_from_noise():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 8))
    targets = np.column_stack([x @ rng.normal(size=8) + 7.0, rng.normal(size=300), np.full(300, 2.0)])
    linear, noise, constant = linear_probe(x, targets)
    assert linear > 0.9999
    assert -0.2 < noise < 0.05
    assert np.isnan(constant)


def test_a_probe_is_judged_on_groups_that_it_has_not_seen():
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(10), 20)
    names = np.eye(10)[groups]  # features that tell the groups apart and nothing else
    level = rng.normal(size=10)[groups][:, None]
    assert linear_probe(names, level, groups)[0] < 0.05
    shuffled = rng.permutation(200)
    assert linear_probe(names[shuffled], level[shuffled])[0] > 0.99  # with every group in every fold it is easy


def test_a_probe_with_more_features_than_rows():
    rng = np.random.default_rng(0)
    z = rng.normal(size=(100, 3))
    x = z @ rng.normal(size=(3, 400))
    assert linear_probe(x, z).min() > 0.99


def test_state_variables_by_hand():
    frame = np.zeros((1, 1, 4, 5, 2), np.bool_)
    frame[0, 0, 1, 2, 0] = frame[0, 0, 3, 4, 0] = True  # channel 1 is empty
    values, names = state_variables(frame)
    assert dict(zip(names, values[0], strict=True)) == {
        "count of channel 0": 2,
        "count of channel 1": 0,
        "row of channel 0": 2,
        "row of channel 1": 1.5,
        "column of channel 0": 3,
        "column of channel 1": 2,
    }
    assert state_variables(np.zeros((2, 4, 84, 84), np.uint8)) is None


def test_only_the_newest_frame_counts():
    frames = np.zeros((1, 2, 3, 3, 1), np.bool_)
    frames[0, 0] = True
    assert state_variables(frames)[0][0, 0] == 0


def test_effective_rank_is_that_of_training():
    assert effective_rank(torch.eye(7)) == pytest.approx(7)


def test_features_come_in_order_whatever_the_chunks():
    obs = np.arange(1000, dtype=np.float32)[:, None]
    got = features_of(lambda part: torch.from_numpy(part) * 2, obs)
    np.testing.assert_array_equal(got, 2 * obs)


def test_a_random_trajectory_is_one_complete_episode():
    # Episode 0 of Counting-v0 lasts one step; frame t is [episode, t, last action] and the reward t.
    played = trajectory("gym/Counting-v0", {})
    assert played.complete
    assert played.rewards.tolist() == [1.0]
    assert played.observations.shape == (2, 1, 3)
    assert played.observations[:, 0, :2].tolist() == [[0, 0], [0, 1]]


def test_trajectories_repeat_and_can_be_cut():
    long = trajectory("minatar/space_invaders", {"sticky": 0.0}, seed=3)
    again = trajectory("minatar/space_invaders", {"sticky": 0.0}, seed=3)
    np.testing.assert_array_equal(long.observations, again.observations)
    cut = trajectory("minatar/space_invaders", {"sticky": 0.0}, seed=3, max_steps=5)
    assert not cut.complete
    np.testing.assert_array_equal(cut.observations, long.observations[:6])
    other = trajectory("minatar/space_invaders", {"sticky": 0.0}, seed=4)
    assert len(other.observations) != len(long.observations) or (other.observations != long.observations).any()


def test_an_agent_plays_with_the_chosen_seed(tmp_path):
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


def test_random_states_know_their_environment():
    states = random_states(make("minatar/breakout", 3), steps=20, every=10)
    assert states.observations.shape == (6, 1, 10, 10, 4)
    assert states.groups.tolist() == [0, 1, 2, 0, 1, 2]
