"""Angles between subspaces, weighted singular vectors, signs and bases, against geometry and brute force."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protovalue.tabular.subspaces import (
    canonical_basis,
    eigenspaces,
    fix_signs,
    grassmann_distance,
    left_singular_vectors,
    mean_angle,
    principal_angles,
)


@pytest.mark.parametrize("angle", [0.0, 1e-12, 1e-9, 0.3, np.pi / 2 - 1e-9, np.pi / 2])
def test_angles_of_tilted_planes(angle: Any) -> None:
    e = np.eye(5)
    plane = e[:, :2]
    tilted = np.stack([e[:, 0], np.cos(angle) * e[:, 1] + np.sin(angle) * e[:, 3]], axis=1)
    # Any basis of the same planes gives the same angles.
    angles = principal_angles(plane @ [[2.0, 1], [1, 1]], tilted @ [[1.0, -1], [3, 1]])
    np.testing.assert_allclose(angles, [angle, 0], atol=1e-14)
    assert grassmann_distance(plane, tilted) == pytest.approx(angle, abs=1e-14)
    assert mean_angle(plane, tilted) == pytest.approx(np.degrees(angle) / np.sqrt(2), abs=1e-12)


def test_missing_dimensions_count_as_right_angles() -> None:
    e = np.eye(4)
    assert grassmann_distance(e[:, :3], e[:, :1]) == pytest.approx(np.pi / 2 * np.sqrt(2))
    assert mean_angle(e[:, :1], e[:, :4]) == pytest.approx(90 * np.sqrt(3 / 4))


def test_weighted_angle_by_hand() -> None:
    # In (x, y) = x1 y1 + 3 x2 y2 the vectors (1, 0) and (1, 1) have cosine 1 / sqrt(1 * 4): 60 degrees, not 45.
    angle = principal_angles(np.array([[1.0], [0.0]]), np.array([[1.0], [1.0]]), np.array([1.0, 3.0]))
    assert np.degrees(angle) == pytest.approx(60)


@given(st.integers(0, 10_000))
@settings(max_examples=20, deadline=None)
def test_weighted_singular_vectors_beat_all_other_subspaces(seed: Any) -> None:
    rng = np.random.default_rng(seed)
    Y, states, tasks = rng.standard_normal((8, 6)), rng.random(8) + 0.1, rng.random(6) + 0.1
    U, values = left_singular_vectors(Y, 3, states, tasks)
    np.testing.assert_allclose(U.T @ np.diag(states) @ U, np.eye(3), atol=1e-12)

    def loss(Phi: Any) -> float:  # weighted least squares, one task after the other, straight from the definition
        total = 0.0
        for j in range(6):
            A = np.sqrt(states)[:, None] * Phi
            b = np.sqrt(states) * Y[:, j]
            w = np.linalg.lstsq(A, b, rcond=None)[0]
            total += tasks[j] * np.sum((A @ w - b) ** 2)
        return total

    best = loss(U)
    assert best == pytest.approx(np.sum(values[3:] ** 2))  # Eckart and Young
    assert all(loss(U + 0.1 * rng.standard_normal(U.shape)) > best for _ in range(5))


def test_weights_change_the_subspace() -> None:
    Y = np.random.default_rng(0).standard_normal((6, 6))
    plain, _ = left_singular_vectors(Y, 2)
    weighted, _ = left_singular_vectors(Y, 2, np.arange(1.0, 7.0))
    assert principal_angles(plain, weighted)[0] > 0.1


def test_signs() -> None:
    V = np.array([[0.1, 0.5, -1.0], [-0.9, 0.5, 1.0 + 1e-9], [0.2, -0.6, 0.0]])
    # Column 0: -0.9 decides; column 1: -0.6; column 2: equal up to rounding, so the first decides.
    np.testing.assert_allclose(fix_signs(V), V * [-1, -1, -1])
    np.testing.assert_allclose(fix_signs(-V), fix_signs(V))


def test_eigenspaces() -> None:
    values = np.array([0.0, 1.0, 1.0 + 1e-12, 2.0, 2.0, 2.0])
    assert eigenspaces(values) == [slice(0, 1), slice(1, 3), slice(3, 6)]
    assert eigenspaces(np.zeros(2)) == [slice(0, 2)]


def test_canonical_basis_forgets_the_solver() -> None:
    rng = np.random.default_rng(0)
    Q = np.linalg.qr(rng.standard_normal((7, 4)))[0]
    values = np.array([0.0, 1.0, 1.0, 1.0])
    turn = np.linalg.qr(rng.standard_normal((3, 3)))[0]
    turned = np.concatenate([-Q[:, :1], Q[:, 1:] @ turn], axis=1)
    weights = np.arange(7.0)
    basis = canonical_basis(values, Q, weights)
    np.testing.assert_allclose(canonical_basis(values, turned, weights), basis, atol=1e-12)
    np.testing.assert_allclose(basis.T @ basis, np.eye(4), atol=1e-12)
    assert principal_angles(basis[:, 1:], Q[:, 1:])[0] < 1e-12
