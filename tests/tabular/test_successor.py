"""The successor representation and measure: sums of powers, hand-solved chains, extremes of gamma."""

from typing import Any

import numpy as np
import pytest

from protovalue.tabular import gridworlds
from protovalue.tabular.successor import (
    action_successor_measure,
    stack_actions,
    successor_measure,
    successor_representation,
)

WORLDS = [
    gridworlds.four_rooms(),
    gridworlds.four_rooms("renormalise"),
    gridworlds.random_mdp(30, np.random.default_rng(0)),
]


def test_two_states_by_hand() -> None:
    # From either of two states a step stays or moves, each with 1/2. With gamma = 1/2, the value of the other state is
    # z = (x + z) / 4 and of the same one x = 1 + (x + z) / 4, so x - z = 1, z = 1/2 and x = 3/2.
    P = gridworlds.chain(2).random_walk
    np.testing.assert_allclose(successor_representation(P, 0.5), [[1.5, 0.5], [0.5, 1.5]])


@pytest.mark.parametrize("world", WORLDS)
def test_sum_over_time(world: Any) -> None:
    P = world.random_walk.toarray()
    total, power = np.zeros_like(P), np.eye(len(P))
    for _ in range(400):  # the rest is below .9^400 / .1 = 5e-18
        total += power
        power = 0.9 * power @ P
    np.testing.assert_allclose(successor_representation(world.random_walk, 0.9), total, atol=1e-12)


def test_gamma_zero_sees_only_the_present() -> None:
    world = WORLDS[0]
    np.testing.assert_array_equal(successor_representation(world.random_walk, 0.0), np.eye(104))


@pytest.mark.parametrize("world", WORLDS)
def test_gamma_near_one(world: Any) -> None:
    gamma = 1 - 1e-7
    psi = successor_representation(world.random_walk, gamma)
    np.testing.assert_allclose(psi.sum(axis=1) * (1 - gamma), 1, rtol=1e-7)
    # Long discounted visits approach the stationary distribution: uniform if P is symmetric, else p = p P.
    P = world.random_walk.toarray()
    if world.symmetric:
        stationary = np.full(len(P), 1 / len(P))
    else:
        values, vectors = np.linalg.eig(P.T)
        stationary = np.real(vectors[:, np.argmax(values.real)])
        stationary = stationary / stationary.sum()
    np.testing.assert_allclose(psi * (1 - gamma), np.tile(stationary, (len(P), 1)), atol=1e-4)


@pytest.mark.parametrize("world", WORLDS)
def test_measure_of_sets_adds_up_states(world: Any) -> None:
    sets = np.random.default_rng(1).random((world.num_states, 7)) < 0.3
    expected = np.linalg.inv(np.eye(world.num_states) - 0.95 * world.random_walk.toarray()) @ sets
    np.testing.assert_allclose(successor_measure(world.random_walk, sets, 0.95), expected, atol=1e-10)


def test_first_action_by_hand() -> None:
    # Chain of 2, set {1}, gamma = 1/2, psi = (1/2, 3/2): from state 0, left stays, .5 * .5; right moves, .5 * 1.5.
    # From state 1 the reward 1 comes first.
    psi = action_successor_measure(gridworlds.chain(2), np.array([[False], [True]]), 0.5)
    np.testing.assert_allclose(psi[:, :, 0], [[0.25, 0.75], [1.25, 1.75]])


@pytest.mark.parametrize("world", WORLDS)
def test_mean_over_first_actions_is_the_measure(world: Any) -> None:
    sets = np.eye(world.num_states)[:, :5]
    psi = action_successor_measure(world, sets, 0.9)
    assert psi.shape == (world.num_states, len(world.actions), 5)
    np.testing.assert_allclose(psi.mean(axis=1), successor_measure(world.random_walk, sets, 0.9), atol=1e-12)
    np.testing.assert_array_equal(stack_actions(psi)[:, 5:10], psi[:, 1])
