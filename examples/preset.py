"""The search behind the small preset for MinAtar: one setting changed at a time, on seeds that no result uses.

What counts is the return of linear agents on the frozen features; beside it stand the effective rank of the features,
the share of dead units and the correlation of the predictions with rollouts that were not learned from.
"""

import argparse
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from protovalue.data.collect import collect
from protovalue.data.config import CollectConfig
from protovalue.online.config import OnlineConfig
from protovalue.online.linear_dqn import train_online
from protovalue.pretrain.loop import pretrain
from protovalue.pretrain.method_configs import PvnConfig
from protovalue.runs import read_run

SETTINGS: dict[str, dict[str, Any]] = {
    "small preset": {},
    "random initialisation": {"tasks": 0},
    "p = 0.01": {"proportion": 0.01},
    "input not normalised": {"normalize": "no"},
    "m = 10": {"tasks": 10},
    "lr = 1e-4": {"learning_rate": 1e-4},
    "ema = 0.99": {"target_ema": 0.99},
    "the paper's p, m, lr, ema": {
        "proportion": 0.01, "tasks": 100, "learning_rate": 1e-4, "target_ema": 0.99, "normalize": "no",
    },
}  # fmt: skip


def main(quick: bool) -> None:
    """Print the table and a line of JSON."""
    torch.set_num_threads(1)
    rows = []
    game = "minatar/space_invaders"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        collect(CollectConfig(game, folder / "data", steps=500 if quick else 100_000, seed=100), quiet=True)
        collect(CollectConfig(game, folder / "held-out", steps=500 if quick else 5_000, seed=101), quiet=True)
        for number, (setting, changes) in enumerate(SETTINGS.items()):
            config = PvnConfig(out=folder / f"pretrain-{number}", data=(folder / "data",), seed=100, **changes)
            if config.tasks != 0:
                config = replace(
                    config,
                    holdout=(folder / "held-out",),
                    cache=folder / "cache",
                    steps=3 if quick else 3_000,
                    adam_epsilon=1.5e-4,  # as it was in the preset at that time
                )
            done = read_run(pretrain(config, quiet=True))["done"]
            online = OnlineConfig(
                encoder=str(config.out),
                env=game,
                out=folder / f"online-{number}",
                seeds="100-101",
                steps=1_020 if quick else 20_000,
            )
            returns = read_run(train_online(online, quiet=True))["done"]["training_return_by_seed"]
            row = {
                "setting": setting,
                "returns": list(returns.values()),
                "rank": done["effective_rank"],
                "dead": done["dead_units"],
                "correlation": done.get("holdout_correlation_mean"),
            }
            rows.append(row)
            print(
                f"{setting:<28} return {' '.join(f'{value:6.2f}' for value in row['returns'])}  rank {row['rank']:5.1f}"
                f"  dead {row['dead']:.2f}  correlation {row['correlation'] or float('nan'):.3f}",
                flush=True,
            )
    print(json.dumps({"example": "preset", "rows": rows}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the same in small, whose numbers mean nothing")
    main(parser.parse_args().quick)
