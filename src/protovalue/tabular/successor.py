"""The successor representation and the successor measure of sets, exact: linear solves with I - gamma P."""

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import splu

from protovalue.tabular.gridworlds import Bools, Floats, Sparse, World


def successor_representation(P: Sparse, gamma: float) -> Floats:
    """Psi = (I - gamma P)^-1 = sum over t >= 0 of gamma^t P^t, dense (n, n).

    Psi[x, y] is the expected discounted number of visits to y from x. For large n, take `successor_measure`
    of the sets of interest instead.
    """
    return successor_measure(P, np.eye(P.shape[0]), gamma)


def successor_measure(P: Sparse, indicators: Bools | Floats, gamma: float) -> Floats:
    """Psi G (n, m) for the indicator matrix G (n, m) of m sets, by one sparse factorisation.

    Column j is the value function of the reward 1{x in S_j} under P, and the fixed point of
    psi = G + gamma P psi.
    """
    n = P.shape[0]
    system = sp.csc_array(sp.eye_array(n) - gamma * P)
    # The pattern of P is (nearly) symmetric: minimum degree on A + A^T fills in far less than the default order.
    return splu(system, permc_spec="MMD_AT_PLUS_A").solve(np.ascontiguousarray(indicators, dtype=np.float64))


def action_successor_measure(world: World, indicators: Bools | Floats, gamma: float) -> Floats:
    """psi(x, a, S_j) (n, A, m), what the paper's losses ask a network for.

    psi(x, a, S) = 1{x in S} + gamma sum over x' of P_a(x, x') psi(x', S): the first action is a, the policy
    follows. Its mean over actions is `successor_measure`.
    """
    psi = successor_measure(world.random_walk, indicators, gamma)
    return np.stack([indicators + gamma * (matrix @ psi) for matrix in world.transitions], axis=1)


def stack_actions(psi: Floats) -> Floats:
    """Lay the actions of psi (n, A, m) side by side as columns (n, A m).

    The Monte Carlo loss sums over states, actions and sets with a weight vector w_{S,a} for each set and action,
    so each pair (a, S) is one column to be fitted by Phi.
    """
    return psi.reshape(len(psi), -1)
