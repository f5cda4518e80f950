"""The interface of an indicator."""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from protovalue.errors import UserError
from protovalue.nets.layers import check_observation_shape


class Indicator(nn.Module):
    """The indicator functions of m tasks: r_j(x) = 1[score_j(x) >= threshold_j].

    A subclass is one file that ends with `INDICATOR = TheClass`: in this folder, or a user's own. It calls this
    constructor, draws its parameters from the given generator alone, keeps them as buffers and writes `scores`. Its own
    constructor takes `(observation_shape, num_tasks, proportion, generator)`; parameters with a default are its
    options: values that JSON can hold. With them `config()` and the state dict rebuild the indicator.

    Args:
        observation_shape: (stack, H, W) or (stack, H, W, C) of one observation.
        num_tasks: number of tasks m.
        proportion: share p of the data set's states on which each task's reward should be 1.
    """

    tuned_on_data: ClassVar[bool] = True
    """Whether the thresholds come from a data set; False if the proportion holds by construction."""
    thresholds: Tensor

    def __init__(self, observation_shape: tuple[int, ...], num_tasks: int, proportion: float) -> None:
        super().__init__()
        check_observation_shape(observation_shape)
        if num_tasks < 1:
            raise UserError(f"number of tasks: found {num_tasks}, expected at least 1")
        if not 0.0 < proportion < 1.0:
            raise UserError(f"proportion: found {proportion}, expected more than 0 and less than 1")
        self.observation_shape = tuple(observation_shape)
        self.num_tasks = num_tasks
        self.proportion = proportion
        self.name, self.options = type(self).__name__, dict[str, Any]()  # set by `make_indicator`
        self.register_buffer("thresholds", torch.full((num_tasks,), torch.nan))  # NaN: not tuned yet

    @property
    def expected_proportion(self) -> float:
        """Return the proportion that can be had, where that is known without data."""
        return self.proportion

    def scores(self, obs: Tensor) -> Tensor:
        """Map observations (N, *observation_shape), uint8 or bool, to scores (N, m), float32, without gradient."""
        raise NotImplementedError

    def rewards(self, obs: Tensor) -> Tensor:
        """Return the tasks' rewards (N, m), bool: scores >= thresholds."""
        if bool(self.thresholds.isnan().any()):
            raise RuntimeError(f"indicator {self.name!r} has no thresholds yet: tune it on a data set first")
        return self.scores(obs) >= self.thresholds

    def set_thresholds(self, thresholds: Tensor) -> None:
        """Fix the thresholds (m,)."""
        if thresholds.shape != self.thresholds.shape:
            raise ValueError(f"thresholds: found shape {tuple(thresholds.shape)}, expected ({self.num_tasks},)")
        self.thresholds.copy_(thresholds)

    def config(self) -> dict[str, Any]:
        """Return what JSON can hold: with the state dict, enough for `registry.indicator_from_config`."""
        return {
            "name": self.name,
            "observation_shape": list(self.observation_shape),
            "num_tasks": self.num_tasks,
            "proportion": self.proportion,
            "options": dict(self.options),
        }
