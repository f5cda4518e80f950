"""Random cumulants: the encoder predicts the optimal values of random rewards s (f(x') - f(x))."""

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from protovalue.data.dataset import Dataset
from protovalue.indicators.cumulants import Cumulants, CumulantSpec, cumulants
from protovalue.indicators.precompute import save_indicator
from protovalue.pretrain.config import PretrainConfig
from protovalue.pretrain.method_configs import CumulantsConfig
from protovalue.pretrain.task_values import TaskValues


class RandomCumulants(TaskValues):
    """The m tasks are cumulants: c_j(x, x') = s (f_j(x') - f_j(x)) / sigma_j. psi_j is their optimal value.

    The discounted sum of a cumulant telescopes: sum_t gamma^t c_t = s (-f(x_0) + (1 - gamma) sum_{t>=1} gamma^(t-1)
    f(x_t)) / sigma while the episode goes on. So values are as large as s f / sigma, and dividing by the standard
    deviation sigma of f over the data set makes s = 1 mean values of about 1, whatever the networks' outputs are: their
    spread differs by a factor of a hundred between MinAtar and Atari.
    """

    Config: ClassVar[type[PretrainConfig]] = CumulantsConfig
    config: CumulantsConfig

    def __init__(
        self, config: CumulantsConfig, data: Dataset | None, observation_shape: tuple[int, ...], device: str
    ) -> None:
        super().__init__(config, data, observation_shape, device)
        seed = config.seed if config.cumulant_seed is None else config.cumulant_seed
        spec = CumulantSpec(config.tasks, seed, config.normalize == "yes", config.tasks_per_module)
        self.tasks: Cumulants = cumulants(self.data, spec, config.cache, device)
        deviation = self.tasks.deviation if config.unit == "deviation" else np.ones(config.tasks, np.float32)
        self._factor = np.float32(config.scale) / np.where(deviation > 0, deviation, np.float32(1))
        spreads = self.spreads if config.scale_errors == "spread" else None
        self.add_heads(config, config.target_ema, start=config.head_start, scale=spreads)

    def rewards(self, index: NDArray[Any]) -> NDArray[Any]:
        """Return c_j(x, x') of the given transitions (B, m)."""
        return self.tasks.differences(index) * self._factor

    def noted(self, reward: Tensor) -> dict[str, Tensor]:
        """Return the standard deviation of the cumulants."""
        return {"cumulant_std": reward.std()}

    def save_artifacts(self, folder: Path) -> None:
        """Keep the random networks with the run, so that any transition's cumulants can be computed again."""
        save_indicator(self.tasks.indicator, folder / "cumulants", {"deviation": self.tasks.deviation.tolist()})


METHOD = RandomCumulants
