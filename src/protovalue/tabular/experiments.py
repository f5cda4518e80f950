"""What `pvn tabular` computes for one world, before anything is drawn: every number of the page."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from protovalue.randomness import numpy_generator
from protovalue.tabular.claim import claim_eigenvalues, constant_weight
from protovalue.tabular.gridworlds import Bools, Floats, World
from protovalue.tabular.indicators import hash_sets, one_hot, random_network_sets, random_sets
from protovalue.tabular.learned import LearnedConfig, learn, walk
from protovalue.tabular.protovalues import proto_value_functions
from protovalue.tabular.subspaces import left_singular_vectors, mean_angle, principal_angles
from protovalue.tabular.successor import (
    action_successor_measure,
    stack_actions,
    successor_measure,
    successor_representation,
)
from protovalue.tabular.theorem import Descent, angle_by_number_of_sets, descend

RUNS = 3  # learned curves for each kind of set
STARTS = 5  # random starts of gradient descent
STEPS = 2000  # gradient steps of each
WALK = 100_000  # transitions of the behaviour policy that are learned from
SETS_BY_SIZE = 64  # sampled sets when their size k varies
DESCENT_STEPS = 6000  # after which a gradient descent gives up


@dataclass(frozen=True)
class Exact:
    """The exact objects of a world for gamma and d features.

    Attributes:
        d: Features; what was asked for, or less if there the subspace would not be unique.
        eigenvalues: Of the Laplacian, (max(d, 4),).
        proto_values: The first proto-value functions, (n, max(d, 4)).
        singular_values: Of Psi, (n,).
        by_state: Top d left singular vectors of Psi (n, d), the minimiser with actions averaged.
        by_action: Top d left singular vectors of psi(x, a, .) with actions side by side (n, d), the paper's loss.
        action_gap: Singular values d and d + 1 of the latter.
    """

    d: int
    eigenvalues: Floats
    proto_values: Floats
    singular_values: Floats
    by_state: Floats
    by_action: Floats
    action_gap: tuple[float, float]


@dataclass(frozen=True)
class Example:
    """One set with its reward and its value function, each (n,)."""

    reward: Floats
    value: Floats


@dataclass(frozen=True)
class BySize:
    """What changes with the size k of the sets: (len(sizes),) or (len(sizes), draws) or (len(sizes), starts)."""

    sizes: list[int]
    weights: list[float]  # of the constant vector against the others
    share: list[float]  # of the constant vector in the sum of squares of all tasks
    num_sets: int
    angles: Floats  # degrees, of the exact minimiser for `num_sets` sampled sets
    descent_steps: Floats  # gradient steps on all k-subsets until the angle is below 1e-6; NaN if not reached


@dataclass(frozen=True)
class Learned:
    """Learned features over time for one kind of set: [degrees] (runs, len(steps))."""

    steps: list[int]
    to_exact: Floats  # to the subspace of all states
    to_own: Floats  # to the minimiser for the same sets, solved exactly


def exact_objects(world: World, gamma: float, d: int) -> Exact:
    """Compute the exact subspaces; d is lowered to where both singular spectra have a gap."""
    n = world.num_states
    psi = successor_representation(world.random_walk, gamma)
    by_state, values = left_singular_vectors(psi, n)
    stacked = stack_actions(action_successor_measure(world, np.eye(n), gamma))
    by_action, action_values = left_singular_vectors(stacked, n)
    while d > 1 and min(_gap(values, d), _gap(action_values, d)) < 1e-6:
        d -= 1
    eigenvalues, vectors = proto_value_functions(world, min(n, max(d, 4)))
    gap = (float(action_values[d - 1]), float(action_values[d]))
    return Exact(d, eigenvalues, vectors, values, by_state[:, :d], by_action[:, :d], gap)


def contrast(world: World, gamma: float, proportion: float, seed: int) -> tuple[Example, Example]:
    """One state against the set of one random network: reward and value function of each (the paper's Figure 1).

    The state is the most secluded one: the walk that starts there returns there most. Of equal ones the first.
    """
    returns = np.diag(successor_representation(world.random_walk, gamma))
    state = int(np.argmax(returns >= returns.max() - 1e-9))
    rewards = np.zeros((world.num_states, 2))
    rewards[state, 0] = 1.0
    rewards[:, 1] = random_network_sets(world.observations, 1, proportion, numpy_generator(seed))[:, 0]
    values = successor_measure(world.random_walk, rewards, gamma)
    return Example(rewards[:, 0], values[:, 0]), Example(rewards[:, 1], values[:, 1])


def families(world: World, proportion: float) -> dict[str, Callable[[int, np.random.Generator], Bools]]:
    """The kinds of sets that are compared: name -> function of (m, rng) that draws indicators (n, m)."""
    n, seen = world.num_states, world.observations
    size = max(1, round(proportion * n))
    return {
        "one-hot": lambda m, rng: one_hot(n, min(m, n), rng),
        "random sets": lambda m, rng: random_sets(n, m, size, rng),
        "hash": lambda m, rng: hash_sets(seen, m, proportion, rng),
        "random network": lambda m, rng: random_network_sets(seen, m, proportion, rng),
    }


def descents(world: World, exact: Exact, gamma: float, seed: int) -> dict[str, list[Descent]]:
    """Gradient descent on the theorem's loss with all single states as tasks, from several random starts."""
    psi = action_successor_measure(world, np.eye(world.num_states), gamma)
    tasks = {"actions side by side": stack_actions(psi), "mean over actions": psi.mean(axis=1)}
    rng = numpy_generator(seed)
    return {
        name: [descend(Y, exact.d, rng, max_steps=DESCENT_STEPS) for _ in range(STARTS)] for name, Y in tasks.items()
    }


def by_number_of_sets(
    world: World, exact: Exact, gamma: float, proportion: float, draws: int, seed: int
) -> tuple[list[int], dict[str, Floats]]:
    """Angle to the exact subspace for m = 1, 2, 4, ..., n sampled sets of each kind, (len(counts), draws)."""
    n = world.num_states
    counts = sorted({*(2**i for i in range(n.bit_length()) if 2**i < n), n})
    psi = action_successor_measure(world, np.eye(n), gamma)  # (n, A, n): psi(., a, S) is a sum of its columns
    angles = {}
    for i, (name, draw) in enumerate(families(world, proportion).items()):

        def measure(m: int, rng: np.random.Generator, draw: Callable[..., Bools] = draw) -> Floats:
            return stack_actions(psi @ draw(m, rng).astype(np.float64))

        rng = numpy_generator(seed, i)
        angles[name] = angle_by_number_of_sets(exact.by_action, measure, counts, draws, rng)
    return counts, angles


def by_size(world: World, exact: Exact, gamma: float, draws: int, seed: int) -> BySize:
    """Vary the size k of the sets: the weight of the constant vector, and whether it matters.

    By the claim the subspace of all k-subsets is the same for every k. Angles are those of the exact minimiser
    for a few sampled sets; steps are those gradient descent needs on all of them: the weight spreads their curvatures.
    """
    n = world.num_states
    sizes = sorted({max(1, min(n - 1, round(share * n))) for share in (0, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5)})
    psi = successor_representation(world.random_walk, gamma)
    rng = numpy_generator(seed)
    num_sets = min(SETS_BY_SIZE, n)
    angles, steps, share = [], [], []
    for k in sizes:

        def measure(m: int, rng: np.random.Generator, k: int = k) -> Floats:
            return psi @ random_sets(n, m, k, rng)

        angles.append(angle_by_number_of_sets(exact.by_state, measure, [num_sets], draws, rng)[0])
        energies = claim_eigenvalues(exact.singular_values, k)
        share.append(float(energies[0] / energies.sum()))
        runs = [
            descend(psi @ _root_of_all_subsets(n, k), exact.d, rng, max_steps=DESCENT_STEPS, tolerance=1e-6)
            for _ in range(3)
        ]
        steps.append([run.steps[-1] if run.converged else np.nan for run in runs])
    weights = [constant_weight(n, k) for k in sizes]
    return BySize(sizes, weights, share, num_sets, np.array(angles), np.array(steps))


def learned(
    world: World,
    exact: Exact,
    gamma: float,
    proportion: float,
    seed: int,
    done: Callable[[], None] = lambda: None,
) -> dict[str, Learned]:
    """Temporal-difference learning with each kind of set, `RUNS` times with other sets, data and start values."""
    n = world.num_states
    config = LearnedConfig(exact.d, gamma, steps=STEPS)
    curves = {}
    for i, (name, draw) in enumerate(families(world, proportion).items()):
        to_exact: list[list[float]] = []
        to_own: list[list[float]] = []
        steps: list[int] = []
        for run in range(RUNS):
            rng = numpy_generator(seed, i, run)
            # A task per state up to a hundred or so: each costs time in every step.
            indicators = draw(min(n, 128), rng)
            Y = stack_actions(action_successor_measure(world, indicators, gamma))
            own, _ = left_singular_vectors(Y, exact.d)
            steps = []
            seen: list[Floats] = []

            def watch(step: int, phi: Floats, steps: list[int] = steps, seen: list[Floats] = seen) -> None:
                steps.append(step)
                seen.append(phi)

            learn(walk(world, WALK, rng), indicators, len(world.actions), config, seed + run, watch)
            to_exact.append([mean_angle(phi, exact.by_action) for phi in seen])
            to_own.append([mean_angle(phi, own) for phi in seen])
            done()
        curves[name] = Learned(steps, np.array(to_exact), np.array(to_own))
    return curves


def largest_angle(A: Floats, B: Floats) -> float:
    """Largest principal angle [degrees]."""
    return float(np.rad2deg(principal_angles(A, B)[0]))


def _gap(values: Floats, d: int) -> float:
    return float((values[d - 1] - values[d]) / values[0])


def _root_of_all_subsets(n: int, k: int) -> Floats:
    """The symmetric root (n, n) of G_k G_k^T / C(n, k): it stands for all k-subsets, too many to enumerate."""
    constant = np.full((n, n), 1 / n)
    common, constant_value = k / n - k * (k - 1) / (n * (n - 1)), k * k / n
    return np.asarray(np.sqrt(common) * (np.eye(n) - constant) + np.sqrt(constant_value) * constant, dtype=np.float64)
