"""Data of your own: episodes that you have as arrays become a data set, and everything works with it."""

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np

import protovalue
from protovalue.data.collect import manifest_of
from protovalue.data.format import End
from protovalue.data.writer import DatasetWriter


def write(folder: Path, episodes: int) -> None:
    """Write episodes of MinAtar's Breakout; yours come from wherever they are."""
    env = protovalue.make("minatar/breakout", num_envs=1)  # what the frames and actions are
    rng = np.random.default_rng(0)
    with DatasetWriter(folder, manifest_of(env), {"by": "examples/own_data.py"}, 0) as writer:
        for number in range(episodes):
            obs, _ = env.reset(seed=number)
            episode, over = writer.begin(obs[0, -1], iteration=-1), False  # the newest frame of the stack
            while not over:
                action = int(rng.integers(env.num_actions))
                obs, rewards, terminated, truncated, info = env.step(np.array([action]))
                over = bool(terminated[0] or truncated[0])
                last = info["final_obs"][0] if over else obs[0]
                episode.add(action, float(rewards[0]), last[-1])
            episode.end(End.TERMINATED if terminated[0] else End.TRUNCATED)


def main(quick: bool) -> None:
    """Print what an encoder learned from them, and a line of JSON."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder / "data", 10 if quick else 2_000)
        data = protovalue.open_dataset(folder / "data")
        print(data)
        settings = {"steps": 3, "tasks": 3} if quick else {"steps": 3_000}
        run = protovalue.pretrain(data=data, out=folder / "pvn", cache=folder / "cache", quiet=True, **settings)
        encoder = protovalue.load_encoder(run)
        print(encoder)
        rows = [{"transitions": data.num_transitions, "rank": encoder.about["summary"]["effective_rank"]}]
    print(json.dumps({"example": "own_data", "rows": rows}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the same in small, whose numbers mean nothing")
    main(parser.parse_args().quick)
