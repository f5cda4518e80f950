"""Finding and building indicators by name: those of this package, of a file of the user's, or of a saved config."""

import importlib
import inspect
import pkgutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import protovalue.indicators
from protovalue.errors import UserError, unknown
from protovalue.indicators.base import INDICATORS, Indicator
from protovalue.randomness import throwaway
from protovalue.user_code import run_file


def indicator_class(name: str) -> type[Indicator]:
    """Return the indicator called `name`; any file in this folder may define it."""
    if name not in INDICATORS:
        for module in pkgutil.iter_modules(protovalue.indicators.__path__, "protovalue.indicators."):
            importlib.import_module(module.name)
    if name not in INDICATORS:
        raise unknown("indicator", name, INDICATORS)
    return INDICATORS[name]


def make_indicator(
    name: str,
    observation_shape: tuple[int, ...],
    num_tasks: int,
    proportion: float,
    generator: torch.Generator,
    **options: Any,
) -> Indicator:
    """Build the indicator `name`, drawing its parameters from `generator` (on the CPU) alone.

    One with `tuned_on_data` has no thresholds yet: see `protovalue.indicators.threshold`.
    """
    cls = indicator_class(name)
    parameters = inspect.signature(cls).parameters
    known = set(parameters) - {"observation_shape", "num_tasks", "proportion", "generator"}
    for option in options:
        if option not in known:
            raise unknown(f"option of indicator {name!r}", option, known or {"(none)"})
    build: Any = cls  # constructors of subclasses take a generator, the base class does not
    indicator: Indicator = build(observation_shape, num_tasks, proportion, generator, **options)
    return indicator


def indicator_from_config(config: Mapping[str, Any], state: Mapping[str, Tensor]) -> Indicator:
    """Rebuild an indicator from its `config()` and its state dict.

    The name must be known already: nothing that is loaded can name code to run. An indicator from a file of the user's
    needs `load_indicator_file` first.
    """
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


def load_indicator_file(path: Path) -> str:
    """Run a Python file of the user's that registers an indicator, and return its name."""
    if not path.is_file():
        raise UserError(f"{path}: found no such file, expected Python code that registers an indicator")
    module = run_file(path)
    if module is None:
        raise UserError(f"{path}: found a file that is no Python code, expected one that registers an indicator")
    for name, cls in INDICATORS.items():
        if cls.__module__ == module.__name__:
            return name
    raise UserError(f"{path}: found no indicator in it, expected a class with @register(NAME)")
