"""An environment of your own, from its class to agents on features of it.

Anything that is registered with Gymnasium works: discrete actions, frames of uint8 or bool.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

import protovalue

MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))


class Room(gymnasium.Env[np.ndarray, np.int64]):
    """A white agent in a dark room looks for a grey coin, which is in another place each time."""

    observation_space = Box(0, 255, (12, 12), np.uint8)
    action_space: Any = Discrete(4)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Put both somewhere."""
        super().reset(seed=seed)
        self.agent, self.coin = self.np_random.integers(12, size=(2, 2))
        return self.frame(), {}

    def step(self, action: np.int64) -> Any:
        """Move the agent; the coin is worth 1, and ends the episode."""
        self.agent = np.clip(self.agent + MOVES[action], 0, 11)
        found = bool((self.agent == self.coin).all())
        return self.frame(), float(found), found, False, {}

    def frame(self) -> np.ndarray:
        """Draw the room."""
        picture = np.zeros((12, 12), np.uint8)
        picture[tuple(self.coin)], picture[tuple(self.agent)] = 128, 255
        return picture


def main(quick: bool) -> None:
    """Print how often agents on features find the coin, and a line of JSON."""
    gymnasium.register("OwnRoom-v0", Room, max_episode_steps=100)  # type: ignore[arg-type]  # a class without options
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        game, steps = "gym/OwnRoom-v0", 200 if quick else 50_000
        data = protovalue.collect(game, out=folder / "data", steps=steps, quiet=True)
        settings = {"steps": 3, "tasks": 3} if quick else {"steps": 3_000}
        run = protovalue.pretrain(data=data, out=folder / "pvn", cache=folder / "cache", quiet=True, **settings)
        length: dict[str, Any] = {"steps": 60, "replay_min": 40} if quick else {"steps": 30_000}
        agents = protovalue.train_online(
            encoder=run, env=game, out=folder / "agents", seeds="0-2", quiet=True, **length
        )
        result = protovalue.evaluate(agents, episodes=2 if quick else 100, quiet=True)
    print(f"agents find the coin in {result['mean_return']:.0%} of their episodes")
    rows = [{"seed": row["seed"], "return": row["mean_return"]} for row in result["seeds"]]
    print(json.dumps({"example": "own_environment", "rows": rows}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the same in small, whose numbers mean nothing")
    main(parser.parse_args().quick)
