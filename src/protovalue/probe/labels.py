"""States to probe, with what is true in each: of a random policy's play, or of a player's data set."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protovalue.data.dataset import Dataset
from protovalue.envs.base import Env
from protovalue.errors import UserError
from protovalue.evaluate.probe_file import Variable
from protovalue.randomness import numpy_generator

SHORTEST = 64
"""Steps that an episode of Atari must have to be used, as in the benchmark."""
NEARLY_CONSTANT = 0.02
"""Nats below which a variable has hardly anything to tell."""
PLACES, BESIDE, PLAYER = "places", "beside the player", "player"


@dataclass(frozen=True)
class Labelled:
    """States with labels."""

    observations: NDArray[Any]
    """(N, stack, *frame_shape)."""
    episodes: NDArray[np.int64]
    """(N,): states of one episode share a number."""
    labels: NDArray[np.int64]
    """(N, J), classes from 0 on."""
    variables: tuple[Variable, ...]
    least_entropy: float
    """In nats: a variable that tells less is left out."""


def cells_states(env: Env, states: int, seed: int) -> Labelled:
    """Let uniformly random actions play in an environment whose frames are bits, and label what is seen."""
    rng = numpy_generator(seed)
    env.reset(seed=seed)
    numbers, following = np.arange(env.num_envs), env.num_envs
    observations, episodes = [], []
    for _ in range(-(-states // env.num_envs)):
        obs, _, terminated, truncated, _ = env.step(rng.integers(env.num_actions, size=env.num_envs))
        ended = np.flatnonzero(terminated | truncated)  # there, obs is the first of the next episode
        numbers = numbers.copy()
        numbers[ended] = following + np.arange(len(ended))
        following += len(ended)
        observations.append(obs.copy())
        episodes.append(numbers)
    seen = np.concatenate(observations)
    labels, variables = cells_labels(seen)
    return Labelled(seen, np.concatenate(episodes), labels, variables, NEARLY_CONSTANT)


def cells_labels(observations: NDArray[Any]) -> tuple[NDArray[np.int64], tuple[Variable, ...]]:
    """Label observations of bits, such as MinAtar's: what is beside the player, and where things are.

    The player is channel 0, as in all games of MinAtar. For each of the eight cells around it: 0 for nothing, else the
    number of the first other channel that is on there; outside of the grid is nothing. For every channel of the newest
    frame: how many cells are on, and the rounded mean row and column of these, or one more than the largest where none
    is.
    """
    frames = observations[:, -1]  # (N, rows, columns, channels)
    count, rows, columns, channels = frames.shape
    padded = np.zeros((count, rows + 2, columns + 2, channels), np.bool_)
    padded[:, 1:-1, 1:-1] = frames
    first = frames[..., 0].reshape(count, -1).argmax(axis=1)
    row, column = first // columns + 1, first % columns + 1
    found, variables = [], []
    for down in (-1, 0, 1):
        for right in (-1, 0, 1):
            if (down, right) != (0, 0):
                there = padded[np.arange(count), row + down, column + right, 1:]  # (N, channels - 1)
                found.append(np.where(there.any(axis=1), there.argmax(axis=1) + 1, 0))
                variables.append(Variable(f"cell {down:+d}, {right:+d}", BESIDE))
    on = frames.sum(axis=(1, 2))  # (N, channels)
    some = np.maximum(on, 1)
    for name, axis, size in (("row", 2, rows), ("column", 1, columns)):
        along = frames.sum(axis=axis)  # (N, size, channels)
        mean = np.einsum("nsc,s->nc", along, np.arange(size)) / some
        where = np.where(on > 0, np.floor(mean + 0.5), size).astype(np.int64)
        found += list(where.T)
        variables += [Variable(f"{name} of channel {c}", PLACES) for c in range(channels)]
    found += list(on.T)
    variables += [Variable(f"count of channel {c}", PLACES) for c in range(channels)]
    return np.stack(found, axis=1).astype(np.int64), tuple(variables)


def player_labels(data: Dataset, states: int, stack: int) -> Labelled:
    """Take the last states of a player's data set: the action that it took in each, and the sign of what it got."""
    chosen = list(_last_episodes(data, states))
    if not chosen:
        raise UserError("--player: found no transition, expected a data set with some")
    observations, episodes, labels = [], [], []
    for number, index in enumerate(reversed(chosen)):
        episode = data.episode(index)
        observations.append(episode.observations(stack)[: len(episode.actions)])
        episodes.append(np.full(len(episode.actions), number))
        signs = np.sign(episode.rewards).astype(np.int64) + 1
        labels.append(np.stack([episode.actions.astype(np.int64), signs], axis=1))
    variables = (Variable("action", PLAYER), Variable("sign of the reward", PLAYER))
    return Labelled(
        np.concatenate(observations), np.concatenate(episodes), np.concatenate(labels), variables, NEARLY_CONSTANT
    )


def _last_episodes(data: Dataset, states: int) -> Iterator[int]:
    """Yield episodes from the last one back, until they have enough states."""
    left = states
    for index in range(data.num_episodes - 1, -1, -1):
        if left <= 0:
            return
        length = int(data.lengths[index])
        if length:
            yield index
            left -= length
