"""Random cumulants: the encoder predicts the optimal values of random rewards s (f(x') - f(x))."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from protovalue.config import require
from protovalue.data.dataset import Dataset
from protovalue.indicators.cumulants import Cumulants, CumulantSpec, cumulants
from protovalue.indicators.precompute import save_indicator
from protovalue.pretrain.base import Sample
from protovalue.pretrain.config import PretrainConfig
from protovalue.pretrain.task_values import TaskValues


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


class RandomCumulants(TaskValues):
    """The m tasks are cumulants: c_j(x, x') = s (f_j(x') - f_j(x)) / sigma_j. psi_j is their optimal value.

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
        self.add_heads(config.tasks, config.gamma, config.backup, config.target_ema)

    def rewards(self, index: NDArray[Any]) -> NDArray[Any]:
        """Return c_j(x, x') of the given transitions (B, m)."""
        return self.tasks.differences(index) * self._factor

    def loss(self, sample: Sample) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the squared TD error of all cumulants."""
        loss, logged = super().loss(sample)
        return loss, {**logged, "cumulant_std": sample["reward"].std()}

    def save_artifacts(self, folder: Path) -> None:
        """Keep the random networks with the run, so that any transition's cumulants can be computed again."""
        save_indicator(self.tasks.indicator, folder / "cumulants", {"deviation": self.tasks.deviation.tolist()})


METHOD = RandomCumulants
