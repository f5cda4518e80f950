"""Temporal-difference learning: the data are the walk, the values are right, and the subspace is found."""

from typing import Any

import numpy as np
import pytest

from protovalue.tabular import gridworlds
from protovalue.tabular.learned import LearnedConfig, learn, walk
from protovalue.tabular.subspaces import mean_angle


@pytest.mark.parametrize("world", [gridworlds.chain(4), gridworlds.random_mdp(5, np.random.default_rng(0))])
def test_walk_follows_the_transition_probabilities(world: Any) -> None:
    data = walk(world, 60_000, np.random.default_rng(1), walkers=50)
    assert len(data.state) == 60_000
    n, A = world.num_states, len(world.actions)
    counts = np.zeros((A, n, n))
    np.add.at(counts, (data.action, data.state, data.next_state), 1)
    for a in range(A):
        visits = counts[a].sum(axis=1, keepdims=True)
        P = world.transitions[a].toarray()
        assert visits.min() > 500
        np.testing.assert_allclose(counts[a] / visits, P, atol=5 * 0.5 / np.sqrt(visits.min()))
        assert counts[a][P == 0].sum() == 0  # impossible transitions never happen
    np.testing.assert_allclose(counts.sum(axis=(1, 2)) / 60_000, 1 / A, atol=0.015)


def test_each_walker_goes_on_from_where_it_is() -> None:
    data = walk(gridworlds.ring(30), 1000, np.random.default_rng(0), walkers=10)
    np.testing.assert_array_equal(data.state[10:], data.next_state[:-10])


def test_enough_features_learn_the_exact_values() -> None:
    # Chain of 2, sets {1} and {0, 1}, gamma = 1/2. Of {1}: psi(x, a) = [[1/4, 3/4], [5/4, 7/4]] (see test_successor);
    # of all states: 1 / (1 - gamma) = 2 everywhere.
    data = walk(gridworlds.chain(2), 2000, np.random.default_rng(0), walkers=4)
    sets = np.array([[False, True], [True, True]])
    phi, heads = learn(data, sets, 2, LearnedConfig(dimensions=2, gamma=0.5, steps=600), seed=0)
    psi = np.einsum("xd,dja->xja", phi, heads)
    np.testing.assert_allclose(psi[:, 0], [[0.25, 0.75], [1.25, 1.75]], atol=1e-3)
    np.testing.assert_allclose(psi[:, 1], 2, atol=1e-3)


def test_one_feature_finds_the_best_direction() -> None:
    # All single states of a ring as tasks and d = 1: by symmetry the best direction is the constant one.
    world = gridworlds.ring(7)
    data = walk(world, 5000, np.random.default_rng(0))
    seen = []
    phi, _ = learn(
        data, np.eye(7, dtype=bool), 2, LearnedConfig(1, 0.9, steps=800), 0, lambda step, phi: seen.append((step, phi))
    )
    assert mean_angle(phi, np.ones((7, 1))) < 1.5
    assert mean_angle(seen[0][1], np.ones((7, 1))) > 20
    steps = [step for step, _ in seen]
    assert steps[0] == 0
    assert steps[-1] == 800
    assert steps == sorted(set(steps))
    np.testing.assert_array_equal(seen[-1][1], phi)


def test_four_rooms_comes_near_the_exact_subspace() -> None:
    world = gridworlds.four_rooms()
    n, gamma = 104, 0.95
    psi = np.linalg.inv(np.eye(n) - gamma * world.random_walk.toarray())
    rooms = np.linalg.eigh(psi)[1][:, ::-1][:, :4]
    data = walk(world, 50_000, np.random.default_rng(0))
    phi, _ = learn(data, np.eye(n, dtype=bool), 4, LearnedConfig(4, gamma), seed=0)
    assert mean_angle(phi, rooms) < 8  # from 80 degrees at random


def test_same_seed_same_features() -> None:
    world = gridworlds.ring(5)
    data = walk(world, 500, np.random.default_rng(0), walkers=5)
    runs = [learn(data, np.eye(5, dtype=bool), 2, LearnedConfig(2, 0.9, steps=20), seed)[0] for seed in (0, 0, 1)]
    np.testing.assert_array_equal(runs[0], runs[1])
    assert (runs[0] != runs[2]).any()


def test_a_target_that_keeps_all_of_itself_never_learns() -> None:
    # The same chain as above. A frozen random target is not the value function, and nothing can bootstrap from it.
    data = walk(gridworlds.chain(2), 2000, np.random.default_rng(0), walkers=4)
    sets = np.array([[True], [True]])
    errors = {}
    for keep in (0.8, 1.0):
        phi, heads = learn(data, sets, 2, LearnedConfig(2, 0.5, steps=600, target_ema=keep), seed=0)
        errors[keep] = np.abs(np.einsum("xd,dja->xja", phi, heads) - 2).max()
    assert errors[0.8] < 1e-3
    assert errors[1.0] > 0.1
