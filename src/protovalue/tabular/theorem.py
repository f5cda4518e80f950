"""The theorem: what minimises the Monte Carlo successor-measure loss, found by gradient descent and checked."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from protovalue.tabular.gridworlds import Floats
from protovalue.tabular.subspaces import left_singular_vectors, mean_angle, orthonormal, principal_angles


def monte_carlo_loss(
    Phi: Floats, Y: Floats, state_weights: Floats | None = None, task_weights: Floats | None = None
) -> float:
    """Compute the loss of the theorem for features Phi (n, d) and tasks Y (n, m), with the best W.

        min over W of || Xi^(1/2) (Phi W - Y) Omega^(1/2) ||_F^2

    A column of Y is psi(., a, S) for one action and one set. Xi = diag(state_weights) weighs states,
    Omega = diag(task_weights) sets; None is all ones. It depends on Phi only through its column space.
    """
    scaled, basis = _scaled(Y, state_weights, task_weights), orthonormal(_scaled(Phi, state_weights, None))
    residual = scaled - basis @ (basis.T @ scaled)
    return float(np.sum(residual**2))


@dataclass(frozen=True)
class Descent:
    """How a gradient descent went: at each recorded step the largest principal angle to the exact subspace."""

    steps: list[int]
    angles: list[float]  # radians
    features: Floats  # (n, d), the last
    converged: bool


def descend(
    Y: Floats,
    d: int,
    rng: np.random.Generator,
    state_weights: Floats | None = None,
    task_weights: Floats | None = None,
    max_steps: int = 20_000,
    tolerance: float = 1e-10,
) -> Descent:
    """Minimise `monte_carlo_loss` over Phi by plain gradient descent from a random start.

    With W = Phi^+ Y solved for in every step, the gradient in Phi (for orthonormal columns, all in scaled
    coordinates Y <- Xi^(1/2) Y Omega^(1/2)) is

        grad = 2 (Phi W - Y) W^T = -2 (I - Phi Phi^T) C Phi,   C = Y Y^T,

    and the step size 1 / (2 sigma_1^2), the inverse of the greatest curvature. After a step the columns are made
    orthonormal again, which leaves their space and so the loss as it was. The gradient is proportional to the
    angle that is left, the loss only to its square: following the gradient reaches angles of 1e-10, which a line search
    on the loss could not see.

    Stops when the largest principal angle to the exact subspace is below `tolerance` [radians].
    """
    exact, values = left_singular_vectors(Y, d, state_weights, task_weights)
    exact = _scaled(exact, state_weights, None)
    scaled = _scaled(Y, state_weights, task_weights)
    C = scaled @ scaled.T
    rate = 1 / float(values[0]) ** 2  # times half of the gradient
    Phi = orthonormal(rng.standard_normal((len(Y), d)))
    steps, angles = [0], [float(principal_angles(Phi, exact)[0])]
    # Angles are measured at steps 1, 2, 3, ... growing by a tenth: the curve is drawn on logarithmic axes.
    for step in range(1, max_steps + 1):
        pull = C @ Phi  # (n, d)
        Phi = orthonormal(Phi + rate * (pull - Phi @ (Phi.T @ pull)))
        if step >= 1.1 * steps[-1] or step == max_steps:
            steps.append(step)
            angles.append(float(principal_angles(Phi, exact)[0]))
            if angles[-1] < tolerance:
                break
    root = np.ones(len(Y)) if state_weights is None else np.sqrt(state_weights)
    return Descent(steps, angles, Phi / root[:, None], angles[-1] < tolerance)


def angle_by_number_of_sets(
    exact: Floats,
    measure: Callable[[int, np.random.Generator], Floats],
    counts: list[int],
    draws: int,
    rng: np.random.Generator,
) -> Floats:
    """How far the minimiser for m sampled sets is from the subspace of all: [degrees] (len(counts), draws).

    Args:
        exact: Basis (n, d) of the subspace to be found.
        measure: Draws m sets and returns the task matrix of their successor measure, (n, columns).
        counts: The numbers of sets m. With fewer columns than d a right angle is counted for each that is missing.
        draws: Independent draws for each m.
        rng: Source of the draws.
    """
    d = exact.shape[1]
    angles = np.empty((len(counts), draws))
    for i, m in enumerate(counts):
        for draw in range(draws):
            Y = measure(m, rng)
            vectors, values = left_singular_vectors(Y, d)
            # Sets that repeat or are empty give no new direction; rounding noise is not one either.
            rank = int(np.sum(values[:d] > 1e-10 * values[0])) if values[0] > 0 else 0
            angles[i, draw] = mean_angle(vectors[:, :rank], exact) if rank else 90.0
    return angles


def _scaled(matrix: Floats, state_weights: Floats | None, task_weights: Floats | None) -> Floats:
    if state_weights is not None:
        matrix = np.sqrt(state_weights)[:, None] * matrix
    return matrix if task_weights is None else matrix * np.sqrt(task_weights)
