"""Families of sets of states, as indicator matrices (n, m): one-hot, random sets, hash, random network."""

import numpy as np

from protovalue.tabular.gridworlds import Bools, Ints

HASH_PRIME = 2**13 - 1


def one_hot(n: int, m: int, rng: np.random.Generator) -> Bools:
    """m different single states, drawn without replacement; for m = n each state once, in order."""
    if not 1 <= m <= n:
        raise ValueError(f"m: found {m}, expected 1 to n = {n} single states")
    chosen = np.arange(n) if m == n else rng.choice(n, m, replace=False)
    return np.asarray(np.arange(n)[:, None] == chosen)


def random_sets(n: int, m: int, k: int, rng: np.random.Generator) -> Bools:
    """m sets of exactly k states, each drawn uniformly from all such sets."""
    ranks = rng.random((n, m)).argsort(axis=0).argsort(axis=0)  # each column is a random order of the states
    return np.asarray(ranks < k)


def hash_sets(observations: Ints, m: int, proportion: float, rng: np.random.Generator) -> Bools:
    """m sets by Carter-Wegman hashing of the observations (n, c): x is in the set if h(x) = 0.

        h(x) = ((a_0 + sum over j of a_j x_j) mod p) mod round(1 / proportion),   p = 2^13 - 1

    with a_j drawn from [0, p), not all zero. Each product is reduced mod p before the sum, so 64-bit integers
    cannot overflow for any observation. A set covers the proportion on average over draws of h, not each
    one: on few states some sets are empty.
    """
    n, c = observations.shape
    buckets = max(1, round(1 / proportion))
    offset = rng.integers(HASH_PRIME, size=m)
    factors = rng.integers(HASH_PRIME, size=(c, m))
    while (zero := ~factors.any(axis=0)).any():
        factors[:, zero] = rng.integers(HASH_PRIME, size=(c, int(zero.sum())))
    total = np.broadcast_to(offset, (n, m)).copy()
    for j in range(c):
        total += (observations[:, j : j + 1] % HASH_PRIME) * factors[j] % HASH_PRIME
    return np.asarray(total % HASH_PRIME % buckets == 0)


def random_network_sets(
    observations: Ints, m: int, proportion: float, rng: np.random.Generator, width: int = 32
) -> Bools:
    """m sets by random networks on the observations (n, c): x is in the set if g(x) + b >= 0.

    g has two hidden layers of ReLUs and a linear output; inputs are scaled to mean 0 and variance 1. The threshold
    -b is the exact quantile: the round(proportion n) states of largest g are in the set (more only if g ties).
    """
    n, c = observations.shape
    spread = observations.std(axis=0)
    inputs = (observations - observations.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    members = max(1, round(proportion * n))
    sets = np.empty((n, m), dtype=np.bool_)
    for j in range(m):
        hidden = inputs
        for fan_in in (c, width):
            weights = rng.standard_normal((fan_in, width)) * np.sqrt(2 / fan_in)
            hidden = np.maximum(hidden @ weights + rng.standard_normal(width), 0.0)
        g = hidden @ rng.standard_normal(width)
        sets[:, j] = g >= np.partition(g, n - members)[n - members]
    return sets
