"""Observations of an environment to look at features with, where there is no data set to take them from."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from protovalue.envs.base import Env
from protovalue.envs.registry import make
from protovalue.randomness import numpy_generator

PROBE_ENVS, PROBE_STEPS, PROBE_EVERY = 16, 320, 10  # 16 * 320 / 10 = 512 observations, as many as a data set's probe


def random_observations(like: Env) -> NDArray[Any]:
    """Return observations of a random policy in an environment such as `like`, spread over 320 steps."""
    env = make(like.env_id, PROBE_ENVS, **like.options)
    rng = numpy_generator(0)
    obs, _ = env.reset(seed=0)
    kept = []
    for step in range(PROBE_STEPS):
        if step % PROBE_EVERY == 0:
            kept.append(obs)
        obs = env.step(rng.integers(env.num_actions, size=PROBE_ENVS))[0]
    env.close()
    return np.concatenate(kept)
