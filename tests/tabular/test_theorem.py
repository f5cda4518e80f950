"""The theorem: gradient descent finds the singular vectors, a wrong matrix is noticed, more sets come nearer."""

from typing import Any

import numpy as np
import pytest

from protovalue.tabular import gridworlds
from protovalue.tabular.indicators import one_hot
from protovalue.tabular.subspaces import left_singular_vectors, principal_angles
from protovalue.tabular.successor import action_successor_measure, stack_actions, successor_representation
from protovalue.tabular.theorem import angle_by_number_of_sets, descend, monte_carlo_loss


def tasks(world: Any, gamma: float = 0.9) -> np.ndarray:
    """psi(x, a, {y}) with actions side by side, from dense inverses."""
    n = world.num_states
    psi = np.linalg.inv(np.eye(n) - gamma * world.random_walk.toarray())
    return np.concatenate([np.eye(n) + gamma * P.toarray() @ psi for P in world.transitions], axis=1)


def top(matrix: Any, d: Any) -> np.ndarray:
    """Top eigenvectors of the Gram matrix: another way to the left singular vectors."""
    return np.linalg.eigh(matrix @ matrix.T)[1][:, ::-1][:, :d]


FOUR_ROOMS = gridworlds.four_rooms()


def test_loss_is_the_least_squares_error() -> None:
    rng = np.random.default_rng(0)
    Phi, Y, states, sets = rng.standard_normal((6, 2)), rng.standard_normal((6, 4)), rng.random(6), rng.random(4)
    expected = 0.0
    for j in range(4):  # normal equations for each task
        M = Phi.T @ np.diag(states)
        w = np.linalg.solve(M @ Phi, M @ Y[:, j])
        expected += sets[j] * np.sum(states * (Phi @ w - Y[:, j]) ** 2)
    assert monte_carlo_loss(Phi, Y, states, sets) == pytest.approx(expected)
    mixed = Phi @ np.array([[1.0, 2.0], [0.0, -3.0]])
    assert monte_carlo_loss(mixed, Y, states, sets) == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("d", [1, 4, 10])
def test_descent_finds_the_singular_vectors(seed: Any, d: int) -> None:
    Y = tasks(FOUR_ROOMS)
    run = descend(Y, d, np.random.default_rng(seed))
    assert run.converged
    assert principal_angles(run.features, top(Y, d))[0] < 1e-8
    assert run.angles[0] > 0.5  # it did not start there


def test_descent_in_a_weighted_inner_product() -> None:
    world = gridworlds.random_mdp(25, np.random.default_rng(0))
    rng = np.random.default_rng(1)
    Y = tasks(world)
    states, sets = rng.random(25) + 0.1, rng.random(100) + 0.1
    run = descend(Y, 3, rng, states, sets)
    assert run.converged
    root = np.sqrt(states)[:, None]
    expected = top(root * Y * np.sqrt(sets), 3) / root
    assert principal_angles(run.features, expected)[0] < 1e-8
    assert principal_angles(run.features, top(Y, 3))[0] > 1e-3  # the weights matter


def test_descent_lowers_the_loss_to_the_least_possible() -> None:
    Y = tasks(gridworlds.chain(12))
    start = descend(Y, 3, np.random.default_rng(5), max_steps=1).features
    run = descend(Y, 3, np.random.default_rng(5))
    least = np.sum(np.linalg.svd(Y)[1][3:] ** 2)
    assert monte_carlo_loss(run.features, Y) == pytest.approx(least)
    assert monte_carlo_loss(start, Y) > 1.01 * least


def test_a_wrong_psi_is_noticed() -> None:
    Y = tasks(FOUR_ROOMS)
    wrong = Y + 1e-4 * np.random.default_rng(0).standard_normal(Y.shape)
    run = descend(wrong, 4, np.random.default_rng(0))
    assert run.converged
    assert principal_angles(run.features, top(Y, 4))[0] > 1e-6


def test_descent_says_when_it_did_not_arrive() -> None:
    run = descend(tasks(FOUR_ROOMS), 4, np.random.default_rng(0), max_steps=3)
    assert not run.converged
    assert run.steps == [0, 1, 2, 3]


def test_on_a_ring_first_actions_do_not_matter() -> None:
    # The moves of a ring commute with its walk, so that psi(., a, .) has the singular vectors of Psi: Fourier modes.
    n = 11
    Y = stack_actions(action_successor_measure(gridworlds.ring(n), np.eye(n), 0.9))
    U, _ = left_singular_vectors(Y, 5)
    angle = 2 * np.pi * np.arange(n) / n
    modes = np.stack([np.ones(n), *(f(j * angle) for j in (1, 2) for f in (np.cos, np.sin))], axis=1)
    assert principal_angles(U, modes)[0] < 1e-8


def test_at_walls_first_actions_do_matter() -> None:
    U = top(tasks(FOUR_ROOMS), 4)
    V = top(np.linalg.inv(np.eye(104) - 0.9 * FOUR_ROOMS.random_walk.toarray()), 4)
    assert 0.5 < np.degrees(principal_angles(U, V)[0]) < 5


def test_more_sets_come_nearer_and_all_arrive() -> None:
    psi = successor_representation(FOUR_ROOMS.random_walk, 0.9)
    exact = top(psi, 4)
    rng = np.random.default_rng(0)
    angles = angle_by_number_of_sets(exact, lambda m, rng: psi @ one_hot(104, m, rng), [1, 8, 64, 104], 10, rng)
    assert angles.shape == (4, 10)
    means = angles.mean(axis=1)
    assert means[0] >= 90 * np.sqrt(3 / 4)  # one set cannot say more than one of four directions
    assert (np.diff(means) < -5).all()
    assert means[-1] < 1e-6


def test_empty_and_repeated_sets_give_no_direction() -> None:
    exact = np.eye(5)[:, :2]
    rng = np.random.default_rng(0)
    empty = angle_by_number_of_sets(exact, lambda m, rng: np.zeros((5, m)), [3], 1, rng)
    assert empty[0, 0] == 90
    repeated = angle_by_number_of_sets(exact, lambda m, rng: np.tile(exact[:, :1], (1, m)), [3], 1, rng)
    assert repeated[0, 0] == pytest.approx(90 / np.sqrt(2))
