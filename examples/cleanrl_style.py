"""An agent in thirty lines of PyTorch, in the style of CleanRL: linear Q-learning on features."""

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812

import protovalue

GAME = "minatar/breakout"


def train(env: protovalue.FeatureEnv, actions: int, steps: int) -> list[float]:
    """Return the returns of the episodes that ended."""
    q = torch.nn.Linear(int(env.single_observation_space.shape[0]), actions)  # type: ignore[index]
    adam, rng, returns = torch.optim.Adam(q.parameters(), lr=3e-4), np.random.default_rng(0), list[float]()
    obs, _ = env.reset(seed=0)
    total = np.zeros(env.num_envs)
    for step in range(steps):
        x = torch.from_numpy(obs)
        action = q(x).argmax(1).numpy()
        explore = rng.random(env.num_envs) < max(0.05, 1 - 2 * step / steps)
        action[explore] = rng.integers(actions, size=env.num_envs)[explore]
        obs, reward, terminated, truncated, info = env.step(action)
        after = np.where((terminated | truncated)[:, None], info.get("final_obs", obs), obs)  # of the same episode
        with torch.no_grad():
            bootstrap = q(torch.from_numpy(after)).max(1).values * torch.from_numpy(~terminated)
        target = torch.from_numpy(np.clip(reward, -1, 1)).float() + 0.99 * bootstrap
        loss = F.huber_loss(q(x)[torch.arange(len(x)), torch.from_numpy(action)], target)
        adam.zero_grad()
        loss.backward()
        adam.step()
        total += reward
        returns += total[terminated | truncated].tolist()
        total[terminated | truncated] = 0
    return returns


def main(quick: bool) -> None:
    """Print returns at the start and at the end, and a line of JSON."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = protovalue.collect(GAME, out=folder / "data", steps=300 if quick else 100_000, quiet=True)
        length = {"steps": 3, "tasks": 3} if quick else {"steps": 3_000}
        run = protovalue.pretrain(data=data, out=folder / "pvn", cache=folder / "cache", quiet=True, **length)
        encoder, games = protovalue.load_encoder(run), protovalue.make(GAME, num_envs=16)
    returns = train(protovalue.FeatureEnv(games, encoder, scale="rms"), games.num_actions, 60 if quick else 20_000)
    tenth = max(1, len(returns) // 10)
    rows = [{"part": part, "return": float(np.mean(some))} for part, some in
            (("first tenth", returns[:tenth]), ("last tenth", returns[-tenth:]))]  # fmt: skip
    print(rows)
    print(json.dumps({"example": "cleanrl_style", "rows": rows}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the same in small, whose numbers mean nothing")
    main(parser.parse_args().quick)
