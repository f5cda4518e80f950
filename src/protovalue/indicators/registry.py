"""Finding and building indicators by name: those of this package, of a file of the user's, or of a saved config."""

import importlib
import importlib.util
import inspect
import pkgutil
import sys
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import protovalue.indicators
from protovalue.errors import UserError, unknown
from protovalue.indicators.base import INDICATORS, Indicator


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
    drawn = torch.Generator().manual_seed(0)
    options = config["options"]
    indicator = make_indicator(config["name"], shape, config["num_tasks"], config["proportion"], drawn, **options)
    try:
        indicator.load_state_dict(dict(state))
    except RuntimeError as error:
        what = " ".join(str(error).split())
        raise UserError(f"indicator {config['name']!r}: saved parameters do not fit its config: {what}") from error
    return indicator


def module_of(path: Path) -> str:
    """Name the module of a file of the user's; files of the same name may lie in different folders."""
    return f"protovalue_user_{path.stem}_{zlib.crc32(str(path.resolve()).encode()):08x}"


def load_indicator_file(path: Path) -> None:
    """Run a Python file of the user's that registers an indicator; only ever for a path that the user gave."""
    if not path.is_file():
        raise UserError(f"{path}: found no such file, expected Python code that registers an indicator")
    module_name = module_of(path)
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise UserError(f"{path}: found a file that is no Python code, expected one that registers an indicator")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    spec.loader.exec_module(module)
    if not any(cls.__module__ == module_name for cls in INDICATORS.values()):
        raise UserError(f"{path}: found no indicator in it, expected a class with @register(NAME)")
