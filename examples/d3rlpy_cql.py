"""Offline learning with d3rlpy: CQL on features of a data set, and with the encoder inside of its network."""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import d3rlpy
import numpy as np

import protovalue
from protovalue.integrations.d3rlpy import FrozenEncoderFactory, mdp_dataset

GAME = "minatar/breakout"


def play(algorithm: Any, env: Any, episodes: int) -> float:
    """Return the mean return of an algorithm in a vector environment."""
    obs, _ = env.reset(seed=0)
    returns: list[float] = []
    total = np.zeros(env.num_envs)
    while len(returns) < episodes:
        obs, rewards, terminated, truncated, _ = env.step(algorithm.predict(obs))
        total += rewards
        over = terminated | truncated
        returns += total[over].tolist()
        total[over] = 0
    return float(np.mean(returns))


def main(quick: bool) -> None:
    """Print the returns, and a line of JSON."""
    steps, rows = 3 if quick else 20_000, []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = protovalue.collect(GAME, out=folder / "data", steps=300 if quick else 50_000, quiet=True)
        length = {"steps": 3, "tasks": 3} if quick else {"steps": 3_000}
        run = protovalue.pretrain(data=data, out=folder / "pvn", cache=folder / "cache", quiet=True, **length)
        encoder, games = protovalue.load_encoder(run), protovalue.make(GAME, num_envs=8)
        inside = FrozenEncoderFactory(str(run), scale="rms")
        layer = d3rlpy.models.VectorEncoderFactory(hidden_units=[128])
        ways: dict[str, tuple[Any, Any, Any]] = {
            "on features": (
                mdp_dataset(data, encoder, scale="rms"), layer, protovalue.FeatureEnv(games, encoder, scale="rms"),
            ),
            "on observations": (mdp_dataset(data), inside, games),
        }  # fmt: skip
        for way, (transitions, factory, env) in ways.items():
            cql = d3rlpy.algos.DiscreteCQLConfig(batch_size=32, encoder_factory=factory).create(device="cpu:0")
            quiet = {"show_progress": False, "logger_adapter": d3rlpy.logging.NoopAdapterFactory()}
            cql.fit(transitions, n_steps=steps, n_steps_per_epoch=steps, **quiet)
            rows.append({"way": way, "return": play(cql, env, 2 if quick else 100)})
            print(f"{way:<16} {rows[-1]['return']:.2f}", flush=True)
    print(json.dumps({"example": "d3rlpy_cql", "rows": rows}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the same in small, whose numbers mean nothing")
    main(parser.parse_args().quick)
