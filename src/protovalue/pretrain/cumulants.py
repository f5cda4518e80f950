"""Random cumulants: the encoder predicts the optimal values of random rewards s (f(x') - f(x))."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from protovalue.config import COUNT, DISCOUNT, PLACE, POSITIVE, PRESET, RESULT, SUBJECT
from protovalue.data.dataset import Dataset
from protovalue.indicators.cumulants import Cumulants, CumulantSpec, cumulants
from protovalue.indicators.precompute import save_indicator
from protovalue.presets import METHODS, PRETRAIN, Presets
from protovalue.pretrain.base import Sample
from protovalue.pretrain.config import PretrainConfig
from protovalue.pretrain.task_values import HeadStart, TaskValues


@dataclass(frozen=True, kw_only=True)
class CumulantsConfig(PretrainConfig):
    """Train an encoder to predict the optimal values of random cumulants, s (f(x') - f(x)) with random networks f.

    Example: pvn pretrain --method cumulants --data data/breakout --out runs/cumulants
    """

    presets: ClassVar[tuple[Presets, ...]] = (PRETRAIN, METHODS["cumulants"])

    method: Annotated[str, SUBJECT] = "cumulants"
    tasks: Annotated[int, RESULT, COUNT] = PRESET
    """Number of cumulants m."""
    scale: Annotated[float, RESULT, POSITIVE] = 1.0
    """Scale s of the cumulants."""
    unit: Annotated[Literal["deviation", "none"], RESULT] = "deviation"
    """What s counts in: each network's standard deviation over the data set, or the networks' own unit."""
    normalize: Annotated[Literal["yes", "no"], RESULT] = PRESET
    """Normalise the random networks' input per channel over the data set."""
    tasks_per_module: Annotated[int, RESULT, COUNT] = 10
    """Cumulants that share one random network."""
    backup: Annotated[Literal["mean", "max"], RESULT] = "max"
    """Over next actions: the maximum learns the optimal policy's values, the mean the random one's."""
    gamma: Annotated[float, RESULT, DISCOUNT] = 0.99
    """Discount factor."""
    target_ema: Annotated[float, RESULT, DISCOUNT] = PRESET
    """Share of the target network that is kept in each step."""
    head_start: Annotated[HeadStart, RESULT] = "zero"
    """Where the heads' biases start: at zero, or at the mean value of each task on the data."""
    cumulant_seed: Annotated[int | None, RESULT] = None
    """Seed of the random networks [--seed]."""
    cache: Annotated[Path | None, PLACE] = None
    """Folder for the networks' values on a data set, which are computed once; None is the user's cache folder."""


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
        self.add_heads(config.tasks, config.gamma, config.backup, config.target_ema, start=config.head_start)

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
