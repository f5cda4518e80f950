"""The search behind the small preset for MinAtar: one setting changed at a time, on seeds that no result uses.

For each setting: effective rank and dead units of the features, correlation of the predictions with held-out rollouts,
and a linear probe: the share of variance (R^2, held-out episodes) of the random policy's discounted game reward that is
linear in the features. The probe is what the method promises: values of the random policy, for a reward it never saw.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from protovalue.config import CollectConfig
from protovalue.data.collect import collect
from protovalue.data.dataset import Dataset
from protovalue.data.format import End
from protovalue.encoder import load_encoder
from protovalue.pretrain.holdout import discounted_sums
from protovalue.pretrain.loop import pretrain
from protovalue.pretrain.pvn import PvnConfig
from protovalue.runs import read_run

SETTINGS: dict[str, dict[str, Any]] = {
    "small preset": {},
    "random initialisation": {"tasks": 0},
    "p = 0.01": {"proportion": 0.01},
    "p = 0.1": {"proportion": 0.1},
    "m = 10": {"tasks": 10},
    "input not normalised": {"normalize": "no"},
    "hash": {"indicator": "hash"},
    "lr = 1e-4": {"learning_rate": 1e-4},
    "ema = 0.99": {"target_ema": 0.99},
    "the paper's p, m, lr, ema": {
        "proportion": 0.01, "tasks": 100, "learning_rate": 1e-4, "target_ema": 0.99, "normalize": "no",
    },
}  # fmt: skip


def value_probe(run: Path, data: Dataset, gamma: float = 0.99) -> float:
    """R^2 of a ridge regression from features to discounted rewards, fitted on even episodes, judged on odd ones."""
    encoder = load_encoder(run)
    parts: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {0: [], 1: []}
    for number, index in enumerate(np.flatnonzero(data.ends == End.TERMINATED)):
        episode = data.episode(int(index))
        features = encoder.features(episode.observations(data.stack)[:-1]).numpy().astype(np.float64)
        sums = discounted_sums(episode.rewards.astype(np.float64)[:, None], gamma)[:, 0]
        parts[number % 2].append((features, sums))
    (x, y), (x_test, y_test) = (tuple(np.concatenate(column) for column in zip(*parts[k], strict=True)) for k in (0, 1))
    scale = x.std(axis=0) + 1e-8
    x, x_test = ((part - x.mean(axis=0)) / scale for part in (x, x_test))
    weights = np.linalg.solve(x.T @ x + 10.0 * np.eye(x.shape[1]), x.T @ (y - y.mean()))
    residual = y_test - y.mean() - x_test @ weights
    return float(1 - residual.var() / y_test.var())


def main(quick: bool) -> None:
    """Print the table and a line of JSON."""
    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for game in ("space_invaders", "breakout"):
            steps = 5_000 if quick else 100_000
            collect(CollectConfig(f"minatar/{game}", folder / game, steps=steps, seed=100), quiet=True)
            held_out = CollectConfig(f"minatar/{game}", folder / f"{game}-held-out", steps=30_000, seed=101)
            other = collect(held_out, quiet=True)
            for number, (setting, changes) in enumerate(SETTINGS.items()):
                config = PvnConfig(
                    out=folder / f"{game}-{number}",
                    data=(folder / game,),
                    holdout=(held_out.out,),
                    cache=folder / "cache",
                    seed=100,
                    **{"steps": 100 if quick else 3_000, **changes},
                )
                run = pretrain(config, quiet=True)
                done = read_run(run)["done"]
                row = {
                    "game": game,
                    "setting": setting,
                    "rank": done["effective_rank"],
                    "dead": done["dead_units"],
                    "correlation": done.get("holdout_correlation_mean", float("nan")),
                    "probe": value_probe(run, other),
                }
                rows.append(row)
                print(
                    f"{game:<15} {setting:<26} rank {row['rank']:6.1f}  dead {row['dead']:.2f}  "
                    f"correlation {row['correlation']:.3f}  probe R2 {row['probe']:.3f}",
                    flush=True,
                )
    print(json.dumps({"benchmark": "preset", "rows": rows}))
