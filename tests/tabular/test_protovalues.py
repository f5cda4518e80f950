"""Proto-value functions: closed-form spectra, and equality with eigenvectors of the successor representation."""

import tracemalloc
from typing import Any

import numpy as np
import pytest

from protovalue.tabular import gridworlds
from protovalue.tabular.protovalues import laplacian, proto_value_functions
from protovalue.tabular.subspaces import eigenspaces, principal_angles
from protovalue.tabular.successor import successor_representation


def path_spectrum(n: Any) -> Any:
    """A path of n states has the eigenvalues 2 - 2 cos(pi j / n), j = 0..n-1, with vectors cos(pi j (i + 1/2) / n)."""
    return 2 - 2 * np.cos(np.pi * np.arange(n) / n)


def path_vectors(n: Any) -> Any:
    i, j = np.arange(n)[:, None], np.arange(n)
    V = np.cos(np.pi * j * (i + 0.5) / n)
    return V / np.linalg.norm(V, axis=0)


def test_laplacians_by_hand() -> None:
    A = gridworlds.chain(3).adjacency
    np.testing.assert_array_equal(laplacian(A).toarray(), [[1, -1, 0], [-1, 2, -1], [0, -1, 1]])
    h = 1 / np.sqrt(2)
    np.testing.assert_allclose(laplacian(A, normalised=True).toarray(), [[1, -h, 0], [-h, 1, -h], [0, -h, 1]])


@pytest.mark.parametrize("n", [2, 9, 30, 1200])
def test_chain(n: int) -> None:
    k = min(n, 12)
    values, vectors = proto_value_functions(gridworlds.chain(n), k)
    np.testing.assert_allclose(values, path_spectrum(n)[:k], atol=1e-12)
    # Simple eigenvalues: each vector is a cosine, up to its sign.
    np.testing.assert_allclose(np.abs(np.sum(vectors * path_vectors(n)[:, :k], axis=0)), 1, atol=1e-9)
    assert (
        vectors[np.argmax(np.abs(vectors) > 0.999999 * np.abs(vectors).max(axis=0), axis=0), np.arange(k)] > 0
    ).all()


@pytest.mark.parametrize("n", [3, 8, 21, 1000])
def test_ring(n: int) -> None:
    k = min(n, 9)
    values, vectors = proto_value_functions(gridworlds.ring(n), k)
    np.testing.assert_allclose(values, np.sort(2 - 2 * np.cos(2 * np.pi * np.arange(n) / n))[:k], atol=1e-12)
    # Frequencies come in pairs of cosine and sine; only the plane they span is determined.
    for frequency in range(1, (k + 1) // 2):
        angle = 2 * np.pi * frequency * np.arange(n) / n
        plane = np.stack([np.cos(angle), np.sin(angle)], axis=1)
        assert principal_angles(vectors[:, 2 * frequency - 1 : 2 * frequency + 1], plane)[0] < 1e-8


def test_normalised_ring_and_chain() -> None:
    # All degrees of a ring are 2: halves of the eigenvalues. The bouncing chain of n has 1 - cos(pi j / (n - 1)).
    values, _ = proto_value_functions(gridworlds.ring(12), 12, normalised=True)
    np.testing.assert_allclose(values, np.sort(1 - np.cos(2 * np.pi * np.arange(12) / 12)), atol=1e-12)
    values, _ = proto_value_functions(gridworlds.chain(12), 12, normalised=True)
    np.testing.assert_allclose(values, 1 - np.cos(np.pi * np.arange(12) / 11), atol=1e-12)


@pytest.mark.parametrize("shape", [(4, 4), (7, 3), (25, 25), (60, 41)])
def test_open_grid(shape: tuple[Any, ...]) -> None:
    rows, columns = shape
    n, k = rows * columns, 12
    values, vectors = proto_value_functions(gridworlds.open_grid(rows, columns), k)
    every = np.add.outer(path_spectrum(rows), path_spectrum(columns)).ravel()
    order = np.argsort(every)
    np.testing.assert_allclose(values, every[order[:k]], atol=1e-12)
    products = np.kron(path_vectors(rows), path_vectors(columns))[:, order]
    for space in eigenspaces(every[order]):  # repeated ones as subspaces
        if space.stop <= k:
            assert principal_angles(vectors[:, space], products[:, space])[0] < 1e-8
    assert abs(vectors.T @ vectors - np.eye(k)).max() < 1e-10
    assert vectors.shape == (n, k)


def test_square_room_shows_pure_waves() -> None:
    # The second and third eigenvalue are equal. The first of the two to be returned varies along columns only.
    _, vectors = proto_value_functions(gridworlds.open_grid(20, 20), 3)
    along, down = vectors[:, 1].reshape(20, 20), vectors[:, 2].reshape(20, 20)
    assert np.ptp(along, axis=0).max() < 1e-6
    assert np.ptp(down, axis=1).max() < 1e-6


@pytest.mark.parametrize("size", [(12, 12), (30, 30)])
def test_dense_and_sparse_solvers_agree_to_the_sign(size: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    world = gridworlds.open_grid(*size)
    monkeypatch.setattr("protovalue.tabular.protovalues.DENSE_STATES", 10_000)
    dense = proto_value_functions(world, 10)
    monkeypatch.setattr("protovalue.tabular.protovalues.DENSE_STATES", 0)
    sparse = proto_value_functions(world, 10)
    np.testing.assert_allclose(sparse[0], dense[0], atol=1e-12)
    np.testing.assert_allclose(sparse[1], dense[1], atol=1e-6)


@pytest.mark.parametrize("k", [0, 105])
def test_number_of_functions(k: int) -> None:
    with pytest.raises(ValueError, match=f"1 to 104 proto-value functions, not {k}"):
        proto_value_functions(gridworlds.four_rooms(), k)


def eigenspace_errors(L: Any, psi: Any, gamma: Any, moves: Any) -> tuple[Any, Any, Any]:
    """Sine of the angle between each eigenspace of L and that of psi, and the error of the eigenvalues.

    Under both assumptions P = I - L / moves, so mu = 1 / (1 - gamma (1 - lambda / moves)).
    """
    lam, V = np.linalg.eigh(L)
    mu, U = np.linalg.eigh((psi + psi.T) / 2)
    mu, U = mu[::-1], U[:, ::-1]
    expected = 1 / (1 - gamma * (1 - lam / moves))
    angles = [principal_angles(V[:, space], U[:, space])[0] for space in eigenspaces(lam)]
    return max(angles), np.max(np.abs(mu - expected) / expected), np.max(np.abs(psi - psi.T))


SYMMETRIC = [
    (gridworlds.four_rooms(), 4),
    (gridworlds.open_grid(6, 6), 4),
    (gridworlds.ring(15), 2),
    (gridworlds.chain(20), 2),
]


@pytest.mark.parametrize(("world", "moves"), SYMMETRIC)
@pytest.mark.parametrize("gamma", [0.5, 0.9, 0.99, 0.9999])
def test_proto_value_functions_are_eigenvectors_of_the_successor_representation(
    world: Any, moves: Any, gamma: float
) -> None:
    psi = successor_representation(world.random_walk, gamma)
    angle, value_error, asymmetry = eigenspace_errors(laplacian(world.adjacency).toarray(), psi, gamma, moves)
    assert angle < 1e-8
    assert value_error < 1e-9
    assert asymmetry < 1e-8 / (1 - gamma)


def test_a_perturbed_successor_representation_is_noticed() -> None:
    world = gridworlds.four_rooms()
    psi = successor_representation(world.random_walk, 0.9)
    noise = np.random.default_rng(0).standard_normal(psi.shape)
    angle, _, _ = eigenspace_errors(laplacian(world.adjacency).toarray(), psi + 1e-5 * (noise + noise.T), 0.9, 4)
    assert angle > 1e-6


def test_without_symmetry_the_two_differ() -> None:
    world = gridworlds.four_rooms("renormalise")
    psi = successor_representation(world.random_walk, 0.9)
    _, V = proto_value_functions(world, 4)
    U = np.linalg.svd(psi)[0][:, :4]
    assert np.degrees(principal_angles(U, V)[0]) > 1


def test_normalised_laplacian_gives_the_eigenvectors_of_the_renormalised_walk() -> None:
    # P = D^-1 A has the right eigenvectors D^(-1/2) u for L_norm u = lambda u, with eigenvalues 1 - lambda.
    world = gridworlds.four_rooms("renormalise")
    lam, U = proto_value_functions(world, 6, normalised=True)
    right = U / np.sqrt(world.adjacency.sum(axis=1))[:, None]
    np.testing.assert_allclose(world.random_walk.toarray() @ right, right * (1 - lam), atol=1e-12)


def test_large_worlds_stay_sparse() -> None:
    # 14,400 states: a dense matrix would take 1.6 GB. What NumPy allocates must stay near a few n x k arrays.
    tracemalloc.start()
    values, _ = proto_value_functions(gridworlds.open_grid(120, 120), 8)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    np.testing.assert_allclose(
        values, np.sort(np.add.outer(path_spectrum(120), path_spectrum(120)).ravel())[:8], atol=1e-12
    )
    assert peak < 100e6
