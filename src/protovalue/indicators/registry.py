"""Building indicators by name: those of this package, of a file of the user's, or of a saved config."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from protovalue.errors import UserError
from protovalue.indicators.base import Indicator
from protovalue.options import resolve_options
from protovalue.randomness import throwaway
from protovalue.registry import INDICATORS, name_of


def make_indicator(
    name: str,
    observation_shape: tuple[int, ...],
    num_tasks: int,
    proportion: float,
    generator: torch.Generator,
    /,
    **options: Any,
) -> Indicator:
    """Build the indicator `name`, drawing its parameters from `generator` (on the CPU) alone.

    The name must be known: nothing is run. One of a file of the user's needs `INDICATORS.load` first.
    One with `tuned_on_data` has no thresholds yet: see `protovalue.indicators.threshold`.
    """
    cls, known = INDICATORS.find(name), name_of(name)
    resolved = resolve_options(cls, options, f"option of indicator {known!r}", f"indicator {known}")
    indicator: Indicator = cls(observation_shape, num_tasks, proportion, generator, **resolved)
    indicator.name, indicator.options = known, resolved
    return indicator


def indicator_from_config(config: Mapping[str, Any], state: Mapping[str, Tensor]) -> Indicator:
    """Rebuild an indicator from its `config()` and its state dict."""
    shape = tuple(config["observation_shape"])
    # What is drawn here is overwritten by the state.
    drawn = throwaway()
    options = config["options"]
    indicator = make_indicator(config["name"], shape, config["num_tasks"], config["proportion"], drawn, **options)
    try:
        indicator.load_state_dict(dict(state))
    except RuntimeError as error:
        what = " ".join(str(error).split())
        raise UserError(f"indicator {config['name']!r}: saved parameters do not fit its config: {what}") from error
    return indicator
