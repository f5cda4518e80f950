"""The claim of the tabular appendix, against enumeration of all subsets."""

from collections.abc import Iterator
from itertools import combinations
from math import comb
from typing import Any

import numpy as np
import pytest
from numpy import float64

from protovalue.tabular import gridworlds
from protovalue.tabular.claim import claim_eigenvalues, constant_weight, gram_constants, subset_indicators
from protovalue.tabular.gridworlds import World
from protovalue.tabular.subspaces import eigenspaces, principal_angles

PAPER_G2 = [[1, 1, 1, 0, 0, 0], [1, 0, 0, 1, 1, 0], [0, 1, 0, 1, 0, 1], [0, 0, 1, 0, 1, 1]]


def test_the_papers_example() -> None:
    np.testing.assert_array_equal(subset_indicators(4, 2), PAPER_G2)


@pytest.mark.parametrize("n", range(2, 9))
def test_gram_matrix_of_all_subsets(n: Any) -> None:
    for k in range(1, n):
        counted = np.zeros((n, n), dtype=int)
        for members in combinations(range(n), k):
            for x in members:
                for y in members:
                    counted[x, y] += 1
        a, t = gram_constants(n, k)
        np.testing.assert_array_equal(counted, (a - t) * np.eye(n) + t)
        G = subset_indicators(n, k)
        np.testing.assert_array_equal(G @ G.T, counted)


def small_worlds() -> Iterator[World]:
    for n in range(3, 9):
        yield gridworlds.ring(n)
        yield gridworlds.chain(n)
    yield gridworlds.open_grid(2, 4)


def claim_errors(psi: Any, mu: Any, V: Any, k: Any) -> tuple[float64, Any]:
    """Compare the eigenpairs of (psi G_k)(psi G_k)^T, by enumeration, with the claim: relative error and angle."""
    Y = psi @ subset_indicators(len(psi), k)
    found, U = np.linalg.eigh(Y @ Y.T)
    found, U = found[::-1], U[:, ::-1]
    expected = claim_eigenvalues(mu, k) * comb(len(psi), k)
    value_error = np.max(np.abs(found - expected) / expected)
    angle = max(principal_angles(U[:, space], V[:, space])[0] for space in eigenspaces(expected))
    return value_error, angle


@pytest.mark.parametrize("world", list(small_worlds()), ids=lambda world: world.name)
@pytest.mark.parametrize("gamma", [0.0, 0.5, 0.95])
def test_claim_by_enumeration(world: Any, gamma: float) -> None:
    P = world.random_walk.toarray()
    lam, V = np.linalg.eigh(P)
    mu, V = 1 / (1 - gamma * lam[::-1]), V[:, ::-1]
    psi = np.linalg.inv(np.eye(len(P)) - gamma * P)
    for k in range(1, len(P)):
        value_error, angle = claim_errors(psi, mu, V, k)
        assert value_error < 1e-10
        if gamma > 0:  # for gamma = 0 all vectors but the constant one are equally good
            assert angle < 1e-7


def test_a_perturbed_psi_is_noticed() -> None:
    P = gridworlds.chain(6).random_walk.toarray()
    lam, V = np.linalg.eigh(P)
    mu, V = 1 / (1 - 0.9 * lam[::-1]), V[:, ::-1]
    psi = np.linalg.inv(np.eye(6) - 0.9 * P)
    psi[0, 3] += 1e-3
    value_error, angle = claim_errors(psi, mu, V, 3)
    assert value_error > 1e-6
    assert angle > 1e-5


def test_claim_fails_for_an_asymmetric_walk() -> None:
    # The proof needs 1 to be an eigenvector of Psi^T too: for a walk that prefers some states, directions move with k.
    P = gridworlds.chain(6, "renormalise").random_walk.toarray()
    psi = np.linalg.inv(np.eye(6) - 0.9 * P)
    tops = [np.linalg.svd(psi @ subset_indicators(6, k))[0][:, :2] for k in (1, 3)]
    assert principal_angles(*tops)[0] > 1e-3


def test_closed_form_for_many_states() -> None:
    # C(5000, 2500) overflows a float; per set the eigenvalues are k/n - k(k-1)/(n(n-1)) = 2500/9998 and k^2/n = 1250.
    mu = np.linspace(2.0, 1.0, 5000)
    values = claim_eigenvalues(mu, 2500)
    assert values[0] == pytest.approx(4 * 1250)
    np.testing.assert_allclose(values[1:], mu[1:] ** 2 * 2500 / 9998)


@pytest.mark.parametrize(("n", "k"), [(2, 1), (8, 1), (8, 3), (8, 7), (40, 20), (104, 10)])
def test_weight_of_the_constant_vector(n: int, k: int) -> None:
    a, t = gram_constants(n, k)
    assert constant_weight(n, k) == pytest.approx((a - t + n * t) / (a - t))


def test_weight_by_hand() -> None:
    assert constant_weight(104, 1) == 1
    assert constant_weight(104, 52) == 1 + 104 * 51 / 52  # = 103
    assert constant_weight(10, 9) == 81  # n (n - 2) + 1


@pytest.mark.parametrize("k", [0, 5])
def test_k_outside_the_claim(k: int) -> None:
    with pytest.raises(ValueError, match=f"found {k}, expected 1 to n - 1 = 4"):
        gram_constants(5, k)
