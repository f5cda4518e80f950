"""Families of sets: sizes, distributions, and a hash checked with Python's unbounded integers."""

from typing import Any

import numpy as np
import pytest

from protovalue.tabular import gridworlds
from protovalue.tabular.indicators import HASH_PRIME, hash_sets, one_hot, random_network_sets, random_sets

CELLS = gridworlds.four_rooms().observations


def test_one_hot() -> None:
    np.testing.assert_array_equal(one_hot(5, 5, np.random.default_rng(0)), np.eye(5, dtype=bool))
    some = one_hot(50, 20, np.random.default_rng(0))
    assert (some.sum(axis=0) == 1).all()
    assert some.sum(axis=1).max() == 1  # no state twice
    with pytest.raises(ValueError, match="found 6, expected 1 to n = 5"):
        one_hot(5, 6, np.random.default_rng(0))


def test_random_sets_are_uniform() -> None:
    sets = random_sets(6, 6000, 2, np.random.default_rng(0))
    assert (sets.sum(axis=0) == 2).all()
    together = sets.astype(int) @ sets.T.astype(int)
    # A state is in 6000 / 3 sets, a pair in 6000 / 15: standard deviations 37 and 19.
    np.testing.assert_allclose(np.diag(together), 2000, atol=5 * 37)
    np.testing.assert_allclose(together[~np.eye(6, dtype=bool)], 400, atol=5 * 19)


class Scripted:
    """A stand-in for a generator that hands out prepared integers."""

    def __init__(self, *arrays: Any) -> None:
        self.arrays = list(arrays)

    def integers(self, high: Any, size: Any) -> np.ndarray:
        array = np.asarray(self.arrays.pop(0))
        assert high == HASH_PRIME
        assert array.shape == (size if isinstance(size, tuple) else (size,))
        return array


def test_hash_by_unbounded_integers() -> None:
    rng = np.random.default_rng(0)
    seen = rng.integers(-(2**62), 2**62, size=(40, 3))  # products would overflow 64 bits
    offset, factors = [5, 8190], [[8190, 1], [17, 8190], [3, 4000]]
    sets = hash_sets(seen, 2, 0.25, Scripted(offset, factors))  # type: ignore[arg-type]
    for x in range(40):
        for j in range(2):
            total = offset[j] + sum(int(seen[x, c]) * factors[c][j] for c in range(3))
            assert sets[x, j] == (total % 8191 % 4 == 0)
    assert sets.any()
    assert not sets.all()


def test_hash_redraws_zero_factors() -> None:
    sets = hash_sets(np.array([[0], [1]]), 2, 0.5, Scripted([0, 0], [[0, 3]], [[2]]))  # type: ignore[arg-type]
    # Task 0 uses the second draw, 2: h = 0, 2 -> buckets 0, 0. Task 1: h = 0, 3 -> buckets 0, 1.
    assert sets.tolist() == [[True, True], [True, False]]


def test_hash_covers_the_proportion_on_average() -> None:
    share = hash_sets(CELLS, 4000, 0.1, np.random.default_rng(0)).mean(axis=1)
    np.testing.assert_allclose(share, 0.1, atol=5 * np.sqrt(0.09 / 4000))  # for every state


@pytest.mark.parametrize("proportion", [0.01, 0.1, 0.5])
def test_random_networks_cover_the_proportion_exactly(proportion: float) -> None:
    sets = random_network_sets(CELLS, 30, proportion, np.random.default_rng(0))
    assert (sets.sum(axis=0) == round(104 * proportion)).all()
    assert len(np.unique(sets, axis=1).T) > 5  # networks differ


def test_random_networks_keep_neighbours_together_and_hashes_do_not() -> None:
    world = gridworlds.four_rooms()
    edges = np.argwhere(np.triu(world.adjacency.toarray()))
    rng = np.random.default_rng(0)
    cut = {
        name: np.mean(sets[edges[:, 0]] != sets[edges[:, 1]])
        for name, sets in {
            "network": random_network_sets(CELLS, 200, 0.1, rng),
            "hash": hash_sets(CELLS, 200, 0.1, rng),
        }.items()
    }
    # Independent membership would cut 2 * .1 * .9 = 18% of all edges.
    assert cut["network"] < 0.09
    assert cut["hash"] > 0.12


def test_one_column_that_never_changes_is_harmless() -> None:
    assert random_network_sets(gridworlds.chain(10).observations, 3, 0.2, np.random.default_rng(0)).sum() == 6
