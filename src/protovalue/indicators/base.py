"""The interface of an indicator, and the table of their names."""

from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from protovalue.errors import UserError
from protovalue.nets.layers import check_observation_shape


class Indicator(nn.Module):
    """The indicator functions of m tasks: r_j(x) = 1[score_j(x) >= threshold_j].

    A subclass calls this constructor, draws its parameters from the given generator alone, keeps them as buffers and
    writes `scores`. Its own constructor takes `(observation_shape, num_tasks, proportion, generator, **options)`;
    options are keyword arguments with defaults whose values JSON can hold, and are passed on to this constructor, so
    that `config()` and the state dict together rebuild the indicator.

    Args:
        observation_shape: (stack, H, W) or (stack, H, W, C) of one observation.
        num_tasks: number of tasks m.
        proportion: share p of the data set's states on which each task's reward should be 1.
        options: the subclass's own settings.
    """

    name: ClassVar[str]
    """What the indicator is called in the registry; set by `register`."""
    tuned_on_data: ClassVar[bool] = True
    """Whether the thresholds come from a data set; False if the proportion holds by construction."""
    thresholds: Tensor

    def __init__(self, observation_shape: tuple[int, ...], num_tasks: int, proportion: float, **options: Any) -> None:
        super().__init__()
        check_observation_shape(observation_shape)
        if num_tasks < 1:
            raise UserError(f"number of tasks: found {num_tasks}, expected at least 1")
        if not 0.0 < proportion < 1.0:
            raise UserError(f"proportion: found {proportion}, expected more than 0 and less than 1")
        self.observation_shape = tuple(observation_shape)
        self.num_tasks = num_tasks
        self.proportion = proportion
        self.options = options
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


INDICATORS: dict[str, type[Indicator]] = {}
"""Names of the indicators imported so far."""

IndicatorT = TypeVar("IndicatorT", bound=Indicator)


def register(name: str) -> Callable[[type[IndicatorT]], type[IndicatorT]]:
    """Give the decorated indicator class its name."""

    def add(cls: type[IndicatorT]) -> type[IndicatorT]:
        known = INDICATORS.get(name)
        if known is not None and (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise UserError(f"indicator name {name!r}: found it in {cls.__module__}, but {known.__module__} has it")
        cls.name = name
        INDICATORS[name] = cls
        return cls

    return add
