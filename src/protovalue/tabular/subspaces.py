"""Subspaces: singular vectors in a weighted inner product, principal angles, and bases with nothing left to chance."""

from itertools import pairwise

import numpy as np
from scipy.linalg import svd

from protovalue.tabular.gridworlds import Floats


def left_singular_vectors(
    Y: Floats, d: int, state_weights: Floats | None = None, task_weights: Floats | None = None
) -> tuple[Floats, Floats]:
    """Find the best d-dimensional features for the task matrix Y (n, m), in the inner product (x, y)_Xi = y^T Xi x.

    With Xi = diag(state_weights) and Omega = diag(task_weights), the loss

        min over W of || Xi^(1/2) (Phi W - Y) Omega^(1/2) ||_F^2

    is least when Phi spans Xi^(-1/2) U_d, where U_d are the top d left singular vectors of Xi^(1/2) Y Omega^(1/2)
    (Eckart and Young). Weights of None are ones. The paper's theorem speaks of one Xi; its statement puts it on states,
    its proof (B^T Xi B = I) on tasks. Both are here.

    Returns:
        The vectors (n, d), orthonormal in (., .)_Xi, and all singular values in decreasing order. The
        subspace is unique exactly if value d is greater than value d + 1.
    """
    root = np.ones(len(Y)) if state_weights is None else np.sqrt(state_weights)
    scaled = root[:, None] * Y
    if task_weights is not None:
        scaled = scaled * np.sqrt(task_weights)
    U, values, _ = svd(scaled, full_matrices=False)
    return U[:, :d] / root[:, None], values


def principal_angles(A: Floats, B: Floats, state_weights: Floats | None = None) -> Floats:
    """Angles [radians] between the column spaces of A (n, p) and B (n, q), largest first, min(p, q) of them.

    Cosines are the singular values of Q_A^T Q_B, sines those of (I - Q_A Q_A^T) Q_B, for orthonormal bases Q. An arc
    cosine cannot see an angle below 1e-8, so small angles are taken from their sines and large ones from their
    cosines: all are then exact to machine precision. Columns must be linearly independent.
    """
    if A.shape[1] < B.shape[1]:
        A, B = B, A
    if state_weights is not None:
        root = np.sqrt(state_weights)[:, None]
        A, B = root * A, root * B
    A, B = orthonormal(A), orthonormal(B)
    overlap = A.T @ B
    cosines = np.clip(np.linalg.svd(overlap, compute_uv=False), 0, 1)[::-1]  # both from the largest angle down
    sines = np.clip(np.linalg.svd(B - A @ overlap, compute_uv=False), 0, 1)
    return np.asarray(np.where(cosines**2 > 0.5, np.arcsin(sines), np.arccos(cosines)), dtype=np.float64)


def grassmann_distance(A: Floats, B: Floats, state_weights: Floats | None = None) -> float:
    """Geodesic distance [radians] between column spaces: the root of the sum of squared principal angles.

    If the dimensions differ, each missing direction counts as a right angle.
    """
    angles = principal_angles(A, B, state_weights)
    missing = abs(A.shape[1] - B.shape[1])
    return float(np.sqrt(np.sum(angles**2) + missing * (np.pi / 2) ** 2))


def mean_angle(A: Floats, B: Floats) -> float:
    """Root mean square of the principal angles [degrees]: 0 for the same space, 90 for orthogonal ones.

    It is the Grassmann distance, divided by its number of angles so that it does not grow with the dimension.
    """
    return float(np.rad2deg(grassmann_distance(A, B) / np.sqrt(max(A.shape[1], B.shape[1]))))


def orthonormal(A: Floats) -> Floats:
    """Return an orthonormal basis (n, p) of the column space of A (n, p)."""
    return np.linalg.qr(A)[0]


def fix_signs(vectors: Floats) -> Floats:
    """Flip each column so that its entry of largest magnitude is positive; of equal ones the first decides.

    Magnitudes within one part in a million are equal: rounding must not choose between v and -v on a
    symmetric world, where a vector has its extremes of both signs.
    """
    magnitude = np.abs(vectors)
    first = np.argmax(magnitude >= (1 - 1e-6) * magnitude.max(axis=0), axis=0)
    signs = np.where(vectors[first, np.arange(vectors.shape[1])] < 0, -1.0, 1.0)
    return np.asarray(vectors * signs, dtype=np.float64)


def eigenspaces(eigenvalues: Floats, tolerance: float = 1e-8) -> list[slice]:
    """Group sorted eigenvalues into runs whose neighbours differ by less than `tolerance` times the largest."""
    scale = max(1e-300, float(np.abs(eigenvalues).max()))
    breaks = np.flatnonzero(np.abs(np.diff(eigenvalues)) > tolerance * scale) + 1
    edges = [0, *breaks.tolist(), len(eigenvalues)]
    return [slice(start, stop) for start, stop in pairwise(edges)]


def canonical_basis(eigenvalues: Floats, vectors: Floats, weights: Floats) -> Floats:
    """Rotate each eigenspace to a basis that does not depend on the solver, then fix signs.

    In an eigenspace of several dimensions any rotation is as good; a solver returns an arbitrary one. The basis
    chosen here is the one in which the quadratic form v^T diag(weights) v is diagonal, its values increasing.

    Args:
        eigenvalues: (k,), sorted.
        vectors: (n, k), orthonormal columns.
        weights: (n,), a number for each state; they must differ enough to tell the eigenvectors apart.
    """
    rotated = vectors.copy()
    for space in eigenspaces(eigenvalues):
        if space.stop - space.start > 1:
            V = vectors[:, space]
            rotated[:, space] = V @ np.linalg.eigh(V.T @ (weights[:, None] * V))[1]
    return fix_signs(rotated)
