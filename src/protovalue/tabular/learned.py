"""Tabular proto-value network: temporal-difference learning from sampled transitions, as the deep algorithm does it."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
import torch

from protovalue.losses import successor_measure_loss
from protovalue.randomness import torch_generator
from protovalue.tabular.gridworlds import Bools, Floats, Ints, World


@dataclass(frozen=True)
class Transitions:
    """T transitions (x, a, x') of the random behaviour policy: numbers of states and actions, each (T,)."""

    state: Ints
    action: Ints
    next_state: Ints


@dataclass(frozen=True)
class LearnedConfig:
    """Settings of `learn`; the names are those of Algorithm 1."""

    dimensions: int
    """Features d."""
    gamma: float
    """Discount factor."""
    steps: int = 2000
    """Gradient steps."""
    batch_size: int = 128
    """Transitions per step."""
    learning_rate: float = 0.1
    """Adam's learning rate at the start; it falls linearly to zero."""
    target_ema: float = 0.8
    """Share tau of itself that the target copy keeps in each step."""


def walk(world: World, steps: int, rng: np.random.Generator, walkers: int = 64) -> Transitions:
    """Let `walkers` start at uniformly random states and take about `steps` random actions in all."""
    n, num_actions = world.num_states, len(world.actions)
    stacked = sp.csr_array(sp.vstack(world.transitions))  # row a n + x is the distribution after action a in x
    stacked.sum_duplicates()
    chances = np.cumsum(stacked.data)  # each row adds one, so row i owns the interval from i to i + 1
    state = rng.integers(n, size=walkers)
    visits: list[tuple[Ints, Ints, Ints]] = []
    for _ in range(max(1, steps // walkers)):
        action = rng.integers(num_actions, size=walkers)
        row = action * n + state
        entry = np.searchsorted(chances, row + rng.random(walkers), side="right")
        # Rounding in the sums must not push a draw into a neighbouring row.
        entry = np.clip(entry, stacked.indptr[row], stacked.indptr[row + 1] - 1)
        after = stacked.indices[entry].astype(np.int64)
        visits.append((state, action, after))
        state = after
    columns = [np.concatenate(column) for column in zip(*visits, strict=True)]
    return Transitions(columns[0], columns[1], columns[2])


def learn(
    transitions: Transitions,
    indicators: Bools,
    num_actions: int,
    config: LearnedConfig,
    seed: int,
    watch: Callable[[int, Floats], None] | None = None,
) -> tuple[Floats, Floats]:
    """Learn features Phi and heads W such that psi_j(x, a) = phi(x)^T w_{j,a} predicts the successor measure of m sets.

    Algorithm 1 of the paper with a table in place of the network: minibatches from a fixed set of transitions,
    indicator rewards, the squared TD error against a target copy that follows by an exponential moving average, Adam.

    Args:
        transitions: The experience.
        indicators: The sets, (n, m).
        num_actions: A.
        config: Settings.
        seed: Of the start values and the minibatches.
        watch: Called with the step and Phi before the first step and at steps that grow by a fifth.

    Returns:
        Phi (n, d) and W (d, m, A).
    """
    n, m = indicators.shape
    generator = torch_generator(seed)
    d = config.dimensions
    phi = torch.randn(n, d, generator=generator) / d**0.5
    heads = torch.randn(d, m * num_actions, generator=generator) / d**0.5
    parameters = [phi.requires_grad_(), heads.requires_grad_()]
    targets = [parameter.detach().clone() for parameter in parameters]
    optimiser = torch.optim.Adam(parameters, lr=config.learning_rate, fused=True)
    state, action, after = (
        torch.from_numpy(column) for column in (transitions.state, transitions.action, transitions.next_state)
    )
    rewards = torch.from_numpy(indicators)
    never = torch.zeros(config.batch_size, dtype=torch.bool)  # these worlds have no end
    due = 0
    for step in range(config.steps + 1):
        if watch and (step >= due or step == config.steps):
            watch(step, phi.detach().numpy().astype(np.float64))
            due = max(step + 1, int(step * 1.2))
        if step == config.steps:
            break
        batch = torch.randint(len(state), (config.batch_size,), generator=generator)
        x, following = state[batch], after[batch]
        psi = (phi[x] @ heads).view(-1, m, num_actions)
        with torch.no_grad():
            psi_next = (targets[0][following] @ targets[1]).view(-1, m, num_actions)
        loss = successor_measure_loss(psi, psi_next, rewards[x], action[batch], never, config.gamma)
        optimiser.param_groups[0]["lr"] = config.learning_rate * (1 - step / config.steps)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        with torch.no_grad():
            for target, parameter in zip(targets, parameters, strict=True):
                target.lerp_(parameter, 1 - config.target_ema)
    W = heads.detach().view(d, m, num_actions)
    return np.asarray(phi.detach().numpy(), dtype=np.float64), np.asarray(W.numpy(), dtype=np.float64)
