"""The loop over games, compiled around the rules of one: sticky actions, time limit, stacks, the next episode."""

import functools
import hashlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numba
from numpy.typing import NDArray

from protovalue.envs.minatar_games.shared import SIZE, rules_of, uniform

log = logging.getLogger(__name__)

Array = NDArray[Any]


@functools.cache
def compile_step(name: str) -> Callable[..., int]:
    """Compile the loop for one game, or load what an earlier process compiled."""
    rules = rules_of(name)
    begin, act, paint = rules.begin, rules.act, rules.paint
    cells = SIZE * SIZE * rules.CHANNELS

    # Copies are loops and arrays are flat: numba takes seconds to compile an assignment of one slice to another.
    def step(
        games: Array,  # (N,) records
        starting: bool,  # begin an episode in every game instead of playing a step
        actions: Array,  # (N,), indices into the action set
        action_set: Array,
        sticky: float,
        max_steps: int,
        stacks: Array,  # (N, stack * cells), bool, the newest frame last
        rewards: Array,  # (N,) and all below: written
        terminated: Array,
        truncated: Array,
        finals: Array,  # as `stacks`: written where an episode ended
    ) -> int:
        """Return how many episodes ended; -1 and nothing done if an action is not one."""
        if not starting:
            for i in range(len(games)):
                if not 0 <= actions[i] < len(action_set):
                    return -1
        ended = 0
        size = stacks.shape[1]
        for i in range(len(games)):
            game, stack = games[i], stacks[i]
            if not starting:
                action = action_set[actions[i]]
                if uniform(game) < sticky:
                    action = game.last_action
                game.last_action = action
                rewards[i], terminated[i] = act(game, action)
                game.steps += 1
                truncated[i] = game.steps == max_steps and not terminated[i]
                for k in range(size - cells):
                    stack[k] = stack[k + cells]
                stack[size - cells :] = False
                paint(game, stack[size - cells :])
                if not (terminated[i] or truncated[i]):
                    continue
                for k in range(size):
                    finals[i, k] = stack[k]
                ended += 1
            begin(game)
            game.steps = 0
            stack[:] = False
            paint(game, stack[size - cells :])
        return ended

    # To see whether a compiled function is out of date numba looks at this file only: the name stands for the others.
    step.__qualname__ = f"{name}_{_sources()}"
    try:
        compiled = numba.njit(step, cache=True, nogil=True)
    except RuntimeError:  # neither this folder nor the user's cache can be written
        log.warning("compiling minatar/%s in every process: set NUMBA_CACHE_DIR to a folder to keep it in", name)
        compiled = numba.njit(step, nogil=True)
    return cast(Callable[..., int], compiled)


def _sources() -> str:
    """Return a hash of all files that a compiled function is made from."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:16]
