"""Random numbers: every generator is made here, of a seed and of what its numbers are for."""

from enum import Enum, unique
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:  # importing torch takes a second, which what draws with NumPy alone need not wait for
    import torch

RETRY = 1_000  # how far the numbers of another attempt lie from those of the one before; purposes of steps are below


class Drawn(Enum):
    """How a purpose's number and the seed become a generator. Numbers are unique within each of these."""

    STEP = "generator_at"
    ONCE = "seeded"
    ENVIRONMENT = "environment_seed"


@unique
class Purpose(Enum):
    """What random numbers are for. A result depends on these numbers: they stay, and a new purpose takes a new one."""

    BATCH = Drawn.STEP, 0  # which transitions of a data set are in a batch
    AUGMENTATION = Drawn.STEP, 1  # how self-prediction shifts, lightens and drops what it sees
    AHEAD = Drawn.STEP, 2  # how far ahead the second state of the Laplacian lies
    QUANTILES = Drawn.STEP, 3  # which states quantile regression looks at
    OWN = Drawn.STEP, 4  # what a method in a file of the user's draws in a step
    EXPLORE = Drawn.STEP, 101  # when an agent in training acts at random, and how
    REPLAY = Drawn.STEP, 102  # which transitions of a replay are learned from
    REDRAW = Drawn.STEP, 103  # those in place of a slot without a transition, by attempt
    PLAY = Drawn.STEP, 104  # when an agent in evaluation acts at random, and how

    ENCODER = Drawn.ONCE, 0  # an encoder's weights: the same for all methods
    METHOD = Drawn.ONCE, 1  # what a method draws besides its encoder: heads, a latent model
    INVERSE = Drawn.ONCE, 2  # the head of inverse dynamics, whatever the method draws
    HEAD = Drawn.ONCE, 1_000  # the values of an agent on top of its encoder

    TRAINING = Drawn.ENVIRONMENT, 1  # the environment that an agent is trained in
    EVALUATION = Drawn.ENVIRONMENT, 2  # an environment that it is evaluated in, and the key of its exploration there

    def number_in(self, family: Drawn) -> int:
        """Return the number, for the family that the purpose must be of."""
        own, number = self.value
        if own is not family:
            raise ValueError(f"{self}: its numbers come from {own.value}, not from {family.value}")
        return number


def generator_at(seed: int, purpose: Purpose, step: int, attempt: int = 0) -> np.random.Generator:
    """Return the generator of one step: Philox keyed by the seed, with the step and the purpose as its counter."""
    stream = purpose.number_in(Drawn.STEP) + RETRY * attempt
    return np.random.Generator(np.random.Philox(key=seed, counter=[0, step, stream, 0]))


def seeded(seed: int, purpose: Purpose) -> "torch.Generator":
    """Return the generator of what is drawn once in a run."""
    state = np.random.SeedSequence([seed, purpose.number_in(Drawn.ONCE)]).generate_state(1, np.uint64)[0]
    return torch_generator(int(state >> np.uint64(1)))


def environment_seed(seed: int, purpose: Purpose, *which: int) -> int:
    """Return a seed for an environment of an agent's, told apart by `which`; 31 bits, what every environment takes."""
    sequence = np.random.SeedSequence([seed, purpose.number_in(Drawn.ENVIRONMENT), *which])
    return int(sequence.generate_state(1)[0] >> 1)


def collection_seeds(seed: int, part: int, num_envs: int) -> tuple[list[int], np.random.Generator]:
    """Return the environments' seeds and the policy's generator for one part of a data set."""
    environments, policy = np.random.SeedSequence(seed, spawn_key=(part,)).spawn(2)
    return [int(one) >> 1 for one in environments.generate_state(num_envs)], np.random.default_rng(policy)


def numpy_generator(seed: int, *which: int) -> np.random.Generator:
    """Return the generator of what has a seed to itself, such as a bootstrap, or of one of its parts by `which`."""
    return np.random.default_rng([seed, *which])


def torch_generator(seed: int) -> "torch.Generator":
    """Return the generator of what has a seed to itself, such as the indicators of a data set."""
    import torch

    return torch.Generator().manual_seed(seed)


def part_seed(seed: int, part: int) -> int:
    """Return the seed of one of several parts that are drawn alike; the first has the seed itself."""
    return int(np.random.SeedSequence([seed, part]).generate_state(1, np.uint64)[0] >> np.uint64(1)) if part else seed


def throwaway() -> "torch.Generator":
    """Return a generator for parameters that are overwritten, or whose values nobody looks at."""
    return torch_generator(0)


def entropy(count: int) -> NDArray[np.uint64]:
    """Return numbers that nobody can foresee, for environments that were given no seed."""
    return np.random.SeedSequence().generate_state(count, np.uint64).astype(np.uint64)
