"""PPO of Stable-Baselines3 on an encoder: frozen inside of its policy, fine-tuned, and on features from outside."""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from stable_baselines3 import PPO
from stable_baselines3.common.evaluation import evaluate_policy

import protovalue
from protovalue.integrations.sb3 import FrozenFeatures, vec_env

GAME = "minatar/breakout"


def main(quick: bool) -> None:
    """Print the returns, and a line of JSON."""
    settings: dict[str, Any] = {"n_steps": 16, "batch_size": 32, "n_epochs": 1} if quick else {"n_steps": 128}
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = protovalue.collect(GAME, out=folder / "data", steps=300 if quick else 100_000, quiet=True)
        length = {"steps": 3, "tasks": 3} if quick else {"steps": 3_000}
        run = protovalue.pretrain(data=data, out=folder / "pvn", cache=folder / "cache", quiet=True, **length)
        encoder = protovalue.load_encoder(run)
        for way in ("frozen", "fine-tuned", "features from outside"):
            env: Any = protovalue.make(GAME, num_envs=8)
            policy: dict[str, Any] = {"net_arch": []}  # linear on the features
            if way == "features from outside":
                env = protovalue.FeatureEnv(env, encoder, scale="rms")
            else:
                policy["features_extractor_class"] = FrozenFeatures
                policy["features_extractor_kwargs"] = {
                    "encoder": str(run), "frozen": way == "frozen", "scale": "rms",
                }  # fmt: skip
            games = vec_env(env)
            model = PPO("MlpPolicy", games, policy_kwargs=policy, seed=0, device="cpu", **settings)
            model.learn(128 if quick else 200_000)
            mean, _ = evaluate_policy(model, games, n_eval_episodes=2 if quick else 100)
            rows.append({"way": way, "return": mean})
            print(f"{way:<22} {mean:.2f}", flush=True)
    print(json.dumps({"example": "sb3_ppo", "rows": rows}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the same in small, whose numbers mean nothing")
    main(parser.parse_args().quick)
