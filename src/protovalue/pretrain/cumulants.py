"""Random cumulants: the encoder predicts the optimal values of random rewards s (f(x') - f(x))."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from protovalue.config import PretrainConfig, require
from protovalue.data.dataset import Dataset
from protovalue.indicators.cumulants import Cumulants, CumulantSpec, cumulants
from protovalue.indicators.precompute import save_indicator
from protovalue.losses import td_loss
from protovalue.nets.heads import TaskHeads
from protovalue.pretrain.base import Method, Sample, seeded
from protovalue.pretrain.target import TargetNetwork


@dataclass(frozen=True, kw_only=True)
class CumulantsConfig(PretrainConfig):
    """Train an encoder to predict the optimal values of random cumulants, s (f(x') - f(x)) with random networks f.

    Example: pvn pretrain --method cumulants --data data/breakout --out runs/cumulants
    """

    method: str = "cumulants"
    tasks: int | None = None
    """Number of cumulants m [100; small MinAtar 50]."""
    scale: float = 1.0
    """Scale s of the cumulants."""
    unit: Literal["deviation", "none"] = "deviation"
    """What s counts in: each network's standard deviation over the data set, or the networks' own unit."""
    normalize: Literal["yes", "no"] | None = None
    """Normalise the random networks' input per channel over the data set [paper no, small yes]."""
    tasks_per_module: int = 10
    """Cumulants that share one random network."""
    backup: Literal["mean", "max"] = "max"
    """Over next actions: the maximum learns the optimal policy's values, the mean the random one's."""
    gamma: float = 0.99
    """Discount factor."""
    target_ema: float | None = None
    """Share of the target network that is kept in each step [0.99; small MinAtar 0.95]."""
    cumulant_seed: int | None = None
    """Seed of the random networks [--seed]."""
    cache: Path | None = None
    """Folder for the networks' values on a data set, which are computed once; None is the user's cache folder."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.tasks is None or self.tasks >= 1, "--tasks", self.tasks, "at least 1")
        require(self.scale > 0, "--scale", self.scale, "more than 0")
        require(self.tasks_per_module >= 1, "--tasks-per-module", self.tasks_per_module, "at least 1")
        require(0 <= self.gamma < 1, "--gamma", self.gamma, "at least 0 and less than 1")
        good = self.target_ema is None or 0 <= self.target_ema < 1
        require(good, "--target-ema", self.target_ema, "at least 0 and less than 1")


class RandomCumulants(Method):
    """q_j(x, a) = phi(x)^T w_{j,a} + b_{j,a} for m cumulants c_j(x, x') = s (f_j(x') - f_j(x)) / sigma_j.

    The discounted sum of a cumulant telescopes: sum_t gamma^t c_t = s (-f(x_0) + (1 - gamma) sum_{t>=1} gamma^(t-1)
    f(x_t)) / sigma while the episode goes on. So values are as large as s f / sigma, and dividing by the standard
    deviation sigma of f over the data set makes s = 1 mean values of about 1, whatever the networks' outputs are: their
    spread differs by a factor of a hundred between MinAtar and Atari.
    """

    Config: ClassVar[type[PretrainConfig]] = CumulantsConfig
    presets: ClassVar[dict[tuple[str, str], dict[str, Any]]] = {
        # The paper says neither how many nor at what scale: as many as its indicators, and the same target network.
        ("paper", "*"): {"tasks": 100, "target_ema": 0.99, "normalize": "no"},
        ("small", "*"): {"tasks": 100, "target_ema": 0.99, "normalize": "yes"},
        ("small", "minatar"): {"tasks": 50, "target_ema": 0.95, "normalize": "yes"},
    }
    config: CumulantsConfig

    def __init__(
        self, config: CumulantsConfig, data: Dataset | None, observation_shape: tuple[int, ...], device: str
    ) -> None:
        super().__init__(config, data, observation_shape, device)
        assert config.tasks is not None
        seed = config.seed if config.cumulant_seed is None else config.cumulant_seed
        spec = CumulantSpec(config.tasks, seed, config.normalize == "yes", config.tasks_per_module)
        self.tasks: Cumulants = cumulants(self.data, spec, config.cache, device)
        deviation = self.tasks.deviation if config.unit == "deviation" else np.ones(config.tasks, np.float32)
        self._factor = np.float32(config.scale) / np.where(deviation > 0, deviation, np.float32(1))
        self.heads = TaskHeads(self.encoder.num_features, config.tasks, self.data.num_actions, seeded(config.seed, 1))
        self.target = TargetNetwork({"encoder": self.encoder, "heads": self.heads}, config.target_ema)

    def sample(self, step: int) -> Sample:
        """Return transitions and all their cumulants."""
        batch = self.sampler.batch(step)
        return {
            "frames": torch.from_numpy(batch.frames),
            "action": torch.from_numpy(batch.action),
            "terminal": torch.from_numpy(batch.terminal),
            "reward": torch.from_numpy(self.tasks.differences(batch.index) * self._factor),
        }

    def loss(self, sample: Sample) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the squared TD error of all cumulants."""
        obs, next_obs = sample["frames"][:, :-1], sample["frames"][:, 1:]
        prediction = self.heads.taken(self.encoder(obs), sample["action"])  # (B, m)
        with torch.no_grad():
            next_features, heads = self.target["encoder"](next_obs), self.target["heads"]
            best = self.config.backup == "max"
            next_value = heads.all_actions(next_features).amax(dim=2) if best else heads.mean(next_features)
        loss, error = td_loss(prediction, next_value, sample["reward"], sample["terminal"], self.config.gamma)
        logged = {
            "td_error_std": error.detach().std(),
            "prediction_mean": prediction.detach().mean(),
            "cumulant_std": sample["reward"].std(),
        }
        return loss, logged

    def after_step(self) -> None:
        """Let the target follow."""
        self.target.follow()

    def save_artifacts(self, folder: Path) -> None:
        """Keep the random networks with the run, so that any transition's cumulants can be computed again."""
        save_indicator(self.tasks.indicator, folder / "cumulants", {"deviation": self.tasks.deviation.tolist()})


METHOD = RandomCumulants
