"""A method of your own in one file: here, features should tell how much will change in the next frame.

`pvn pretrain --method examples/own_method.py --data data/breakout --out runs/change` runs it, too.
"""

import argparse
import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

import protovalue
from protovalue.config import POSITIVE, RESULT
from protovalue.data.dataset import Dataset
from protovalue.nets.layers import Dense
from protovalue.pretrain.base import Method
from protovalue.pretrain.config import PretrainConfig
from protovalue.randomness import Purpose, seeded


@dataclass(frozen=True, kw_only=True)
class ChangeConfig(PretrainConfig):
    """Train an encoder to tell how many pixels the next frame changes."""

    unit: Annotated[float, RESULT, POSITIVE] = 10.0
    """Pixels that count as one."""


class Change(Method):
    """Regress the number of changed pixels on the features."""

    Config = ChangeConfig

    def __init__(self, config: ChangeConfig, data: Dataset, shape: tuple[int, ...], device: str) -> None:
        super().__init__(config, data, shape, device)
        self.amount = Dense(self.encoder.num_features, 1, seeded(config.seed, Purpose.METHOD))
        self.unit = config.unit

    def sample(self, step: int) -> dict[str, Tensor]:
        """Return a batch, a function of the seed and the step alone."""
        frames = self.sampler.batch(step).frames  # one more than an observation has
        changed = (frames[:, -1] != frames[:, -2]).reshape(len(frames), -1).sum(1) / self.unit
        return {"obs": torch.from_numpy(frames[:, :-1].copy()), "changed": torch.from_numpy(changed).float()}

    def loss(self, sample: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the squared error, and its root to be logged."""
        error = F.mse_loss(self.amount(self.encoder(sample["obs"]))[:, 0], sample["changed"])
        return error, {"root_error": error.detach().sqrt()}


METHOD = Change


def main(quick: bool) -> None:
    """Print what agents on its features reach, beside random ones, and a line of JSON."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder, game = Path(name), "minatar/breakout"
        data = protovalue.collect(game, out=folder / "data", steps=300 if quick else 100_000, quiet=True)
        length: dict[str, Any] = {"steps": 60, "replay_min": 40} if quick else {"steps": 20_000}
        for method in (__file__, "random"):
            steps = {} if method == "random" else {"steps": 3 if quick else 3_000}
            out = folder / Path(method).stem
            run = protovalue.pretrain(method=method, data=data, out=out, quiet=True, **steps)
            agents = protovalue.train_online(
                encoder=run, out=folder / f"{out.name}-agents", seeds="0-2", code=__file__, quiet=True, **length
            )
            found = protovalue.evaluate(agents, episodes=2 if quick else 100, quiet=True)
            rows.append({"method": out.name, "return": found["mean_return"]})
            print(f"{out.name:<12} {found['mean_return']:.2f}")
    print(json.dumps({"example": "own_method", "rows": rows}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the same in small, whose numbers mean nothing")
    main(parser.parse_args().quick)
