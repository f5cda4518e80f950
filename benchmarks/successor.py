"""Are a proto-value network's predictions the successor measure? Against many rollouts from the same states.

Collects random-policy experience, pretrains with the small preset, saves MinAtar games in random states and lets a
random policy play on from each many times. With one rollout per state even exact predictions correlate weakly, because
a rollout is one noisy sample; with the mean over many, exact predictions would correlate by nearly 1.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from protovalue.data.collect import collect
from protovalue.data.config import CollectConfig
from protovalue.envs.base import Env
from protovalue.envs.registry import make
from protovalue.indicators.precompute import load_indicator
from protovalue.nets.encoders import make_encoder
from protovalue.nets.heads import TaskHeads
from protovalue.pretrain.loop import pretrain
from protovalue.pretrain.method_configs import PvnConfig
from protovalue.runs import read_checkpoint, read_run

GAMMA = 0.99


def network(run: Path, actions: int) -> tuple[torch.nn.Module, TaskHeads]:
    """Rebuild the trained encoder and heads from a run's checkpoint."""
    config, tensors = read_run(run)["config"], read_checkpoint(run).tensors
    indicator = load_indicator(run / "indicator")
    drawn = torch.Generator().manual_seed(0)
    encoder = make_encoder(config["encoder"], indicator.observation_shape, config["width"], drawn)
    heads = TaskHeads(encoder.num_features, indicator.num_tasks, actions, drawn)
    for part, module in (("encoder", encoder), ("heads", heads)):
        prefix = f"method.{part}."
        state = {k.removeprefix(prefix): torch.from_numpy(v) for k, v in tensors.items() if k.startswith(prefix)}
        module.load_state_dict(state)
    return encoder, heads


def random_states(env: Env, count: int, rng: np.random.Generator) -> list[dict[str, Any]]:
    """States that a random policy visits, a few steps apart."""
    env.reset(seed=int(rng.integers(2**31)))
    states: list[dict[str, Any]] = []
    while len(states) < count:
        for _ in range(int(rng.integers(5, 30))):
            env.step(rng.integers(env.num_actions, size=1))
        state = env.save_state()
        assert state is not None
        states.append(state)
    return states


def rollout(env: Env, state: dict[str, Any], first: int, rng: np.random.Generator, horizon: int) -> np.ndarray:
    """Frames of the states visited from `state` on, taking `first` and then random actions."""
    game = {**state["games"][0], "random": int(rng.integers(2**31))}
    obs = env.load_state({**state, "games": [game]})
    frames, action = [], first
    for _ in range(horizon):
        frames.append(obs[0, -1])
        obs, _, terminated, truncated, _ = env.step(np.array([action]))
        if terminated[0] or truncated[0]:
            break
        action = int(rng.integers(env.num_actions))
    return np.stack(frames)


def correlations(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Pearson correlation of each column."""
    x, y = x - x.mean(0), y - y.mean(0)
    found: np.ndarray = (x * y).sum(0) / np.sqrt((x**2).sum(0) * (y**2).sum(0))
    return found


def measure(game: str, folder: Path, states: int, rollouts: int, steps: int) -> dict[str, float]:
    """Pretrain on one game and compare."""
    data = collect(CollectConfig(f"minatar/{game}", folder / game, steps=100_000, seed=0))
    run = pretrain(PvnConfig(out=folder / f"{game}-run", data=(folder / game,), steps=steps, cache=folder / "cache"))
    encoder, heads = network(run, data.num_actions)
    indicator = load_indicator(run / "indicator")
    rng = np.random.default_rng(1)
    predicted, means, singles = [], [], []
    env = make(f"minatar/{game}", 1)
    for state in random_states(env, states, rng):
        first = int(rng.integers(data.num_actions))
        sums = []
        for _ in range(rollouts):
            frames = torch.from_numpy(rollout(env, state, first, rng, 500))[:, None]
            fires = indicator.rewards(frames).numpy()
            sums.append((GAMMA ** np.arange(len(fires))) @ fires)
        obs = torch.from_numpy(env.load_state(state))
        with torch.inference_mode():
            predicted.append(heads.taken(encoder(obs), torch.tensor([first]))[0].numpy())
        means.append(np.mean(sums, axis=0))
        singles.append(sums[0])
    y = np.stack(predicted)
    many, one = correlations(y, np.stack(means)), correlations(y, np.stack(singles))
    return {
        "one rollout, mean over tasks": float(np.nanmean(one)),
        f"{rollouts} rollouts, mean over tasks": float(np.nanmean(many)),
        f"{rollouts} rollouts, lowest task": float(np.nanmin(many)),
        "predicted mean": float(y.mean()),
        "rollout mean": float(np.mean(means)),
    }


def main(quick: bool) -> None:
    """Print the table and a line of JSON."""
    torch.set_num_threads(1)
    result = {}
    with tempfile.TemporaryDirectory() as folder:
        for game in ("space_invaders", "breakout"):
            size = (40, 8, 500) if quick else (150, 64, 5000)
            result[game] = measure(game, Path(folder), *size)
            for name, value in result[game].items():
                print(f"{game:<16}{name:<32}{value:>8.3f}")
    print(json.dumps({"benchmark": "successor", **result}))
