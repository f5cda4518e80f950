"""Why linear agents fail on proto-value features in Asterix: is it the data, the agent or the representation?

One data set of a random policy; encoders of several methods on it; then
- what a linear readout knows: where the player is, and whether the cell that a move leads to has an enemy in it
  (the next step is then the last one);
- what agents on the frozen features reach: linear, and with one hidden layer.
"""

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import protovalue
from protovalue.data.collect import collect
from protovalue.data.config import CollectConfig
from protovalue.evaluate.features import features_of, linear_probe, random_states
from protovalue.online.config import OnlineConfig
from protovalue.online.linear_dqn import train_online
from protovalue.pretrain.config import PretrainConfig
from protovalue.pretrain.loop import pretrain
from protovalue.pretrain.method_configs import PvnConfig, RandomConfig, RewardConfig
from protovalue.runs import read_run

GAME = "minatar/asterix"
PLAYER, ENEMY = 0, 1  # channels
MOVES = ((0, -1), (-1, 0), (0, 1), (1, 0))  # rows and columns by action: left, up, right, down
METHODS = {"random initialisation": RandomConfig, "PVN": PvnConfig, "environment reward": RewardConfig}
HIDDEN = 256
EPSILON = 1.5e-4  # Adam's in pretraining, as it was in the preset when docs/results.md was written


def places(observations: NDArray[np.bool_]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the player's row and column (N, 2), and whether the cell that each move leads to has an enemy (N, 4)."""
    frames = observations[:, -1]
    player = np.argwhere(frames[..., PLAYER])[:, 1:]
    assert len(player) == len(frames), "one player in every frame"
    danger = []
    for move in MOVES:
        row, column = np.clip(player + move, (1, 0), (8, 9)).T  # the player stays within these
        danger.append(frames[np.arange(len(frames)), row, column, ENEMY])
    return player.astype(np.float64), np.stack(danger, axis=1).astype(np.float64)


def main(quick: bool) -> None:
    """Print the table and a line of JSON."""
    torch.set_num_threads(1)
    seeds, steps, agent_steps = ((0,), 3, 1_020) if quick else ((0, 1, 2), 3_000, 30_000)
    env = protovalue.make(GAME, 50)
    states = random_states(env, steps=500 if quick else 6_000, seed=1_000)
    env.close()
    player, danger = places(states.observations)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        collect(CollectConfig(GAME, folder / "data", steps=500 if quick else 150_000), quiet=True)
        own: dict[type[PretrainConfig], dict[str, Any]] = {
            RandomConfig: {},
            PvnConfig: {"steps": steps, "adam_epsilon": EPSILON, "cache": folder / "cache"},
            RewardConfig: {"steps": steps, "adam_epsilon": EPSILON},
        }
        for seed in seeds:
            for number, (title, kind) in enumerate(METHODS.items()):
                out = folder / f"pretrain-{number}-{seed}"
                pretrain(kind(out=out, data=(folder / "data",), seed=seed, **own[kind]), True)
                encoder = protovalue.load_encoder(out)
                x = features_of(encoder.features, states.observations)
                row = {
                    "method": title,
                    "seed": seed,
                    "player": float(linear_probe(x, player, states.groups).mean()),
                    "danger": float(linear_probe(x, danger, states.groups).mean()),
                }
                for what, hidden in (("linear", ()), ("hidden", (HIDDEN,))):
                    online = OnlineConfig(
                        encoder=str(out), env=GAME, out=folder / f"{what}-{number}-{seed}", seeds="0-2",
                        steps=agent_steps, hidden=hidden,
                    )  # fmt: skip
                    row[f"return_{what}"] = read_run(train_online(online, quiet=True))["done"]["training_return"]
                rows.append(row)
                print(json.dumps(row), flush=True)
    print(f"\n{'':<24}{'player':>9}{'danger':>9}{'return':>9}{'hidden':>9}")
    columns = ("player", "danger", "return_linear", "return_hidden")
    for title in METHODS:
        means = [statistics.mean(row[column] for row in rows if row["method"] == title) for column in columns]
        print(f"{title:<24}" + "".join(f"{mean:>9.2f}" for mean in means))
    print(json.dumps({"example": "asterix", "rows": rows}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the same in small, whose numbers mean nothing")
    main(parser.parse_args().quick)
