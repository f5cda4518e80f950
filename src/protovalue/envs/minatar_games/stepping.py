"""The loop over games, compiled around the rules of one: sticky actions, time limit, stacks, the next episode."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from protovalue.compiling import compiled
from protovalue.envs.minatar_games.shared import SIZE, rules_of, uniform

Array = NDArray[Any]


@functools.cache
def compile_step(name: str) -> Callable[..., int]:
    """Compile the loop for one game, or load what an earlier process compiled."""
    rules = rules_of(name)
    begin, act, paint = rules.begin, rules.act, rules.paint
    cells = SIZE * SIZE * rules.CHANNELS

    # Copies are loops and arrays are flat: see `compiled`.
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

    step.__qualname__ = name
    return compiled(step, sorted(Path(__file__).parent.glob("*.py")))
