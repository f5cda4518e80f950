"""The claim of the paper's tabular appendix: all k-subsets as tasks give the same eigenvectors for every k."""

from itertools import combinations
from math import comb

import numpy as np

from protovalue.tabular.gridworlds import Floats


def subset_indicators(n: int, k: int) -> Floats:
    """G_k (n, C(n, k)): one column for each set of k of the n states. For small n only."""
    columns = list(combinations(range(n), k))
    G = np.zeros((n, len(columns)))
    for j, members in enumerate(columns):
        G[list(members), j] = 1.0
    return G


def gram_constants(n: int, k: int) -> tuple[int, int]:
    """a and t of G_k G_k^T, which has a on its diagonal and t everywhere else; exact integers.

    A state is in a = C(n-1, k-1) of the sets; two states are together in t = C(n-2, k-2), none if k = 1.
    """
    if not 1 <= k <= n - 1:
        raise ValueError(f"k: found {k}, expected 1 to n - 1 = {n - 1}")
    return comb(n - 1, k - 1), comb(n - 2, k - 2) if k > 1 else 0


def claim_eigenvalues(mu: Floats, k: int) -> Floats:
    """Eigenvalues (n,) of (Psi G_k)(Psi G_k)^T / C(n, k), in closed form, for any n.

    The claim: mu_1^2 (a - t + n t) for the constant vector and mu_i^2 (a - t) for the others, with the
    eigenvalues mu of Psi. The mean over sets (division by C(n, k)) is what a uniformly drawn
    set gives in expectation, and keeps numbers finite where C(n, k) is not:

        a / C(n, k) = k / n,   t / C(n, k) = k (k - 1) / (n (n - 1)).

    Args:
        mu: Eigenvalues of Psi in decreasing order; the first belongs to the constant vector.
        k: Size of the sets, 1 to n - 1.
    """
    n = len(mu)
    a = k / n
    t = k * (k - 1) / (n * (n - 1))
    values = mu**2 * (a - t)
    values[0] = mu[0] ** 2 * (a - t + n * t)
    return values


def constant_weight(n: int, k: int) -> float:
    """How much more the constant vector counts than with k = 1: (a - t + n t) / (a - t).

    With a - t = C(n-2, k-1) and t / (a - t) = (k - 1) / (n - k) this is 1 + n (k - 1) / (n - k): 1 for single
    states, about n for half of the states, n (n - 2) + 1 for all states but one.
    """
    return 1 + n * (k - 1) / (n - k)
