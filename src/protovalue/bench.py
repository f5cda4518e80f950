"""`pvn bench NAME`: runs benchmarks/NAME.py of the source checkout."""

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional

import protovalue
from protovalue.config import RESULT, SUBJECT, Settings
from protovalue.errors import UserError, unknown


def benchmarks() -> dict[str, Path]:
    """Return the benchmarks by name; without a source checkout there are none."""
    folder = Path(protovalue.__file__).parents[2] / "benchmarks"
    return {path.stem: path for path in sorted(folder.glob("*.py"))}


@dataclass(frozen=True)
class BenchConfig(Settings):
    """Run one of the benchmarks in benchmarks/ of a source checkout and print its table and one line of JSON.

    Example: pvn bench data
    """

    name: Annotated[Positional[str], SUBJECT]
    """Which benchmark."""
    quick: Annotated[bool, RESULT] = False
    """A smaller measurement that takes about a minute."""


BenchConfig.__doc__ = f"{BenchConfig.__doc__}\n    Benchmarks: {', '.join(benchmarks()) or 'none in this installation'}"


def bench(config: BenchConfig) -> None:
    """Run one benchmark: it prints its table and one line of JSON."""
    names = benchmarks()
    if not names:
        raise UserError("pvn bench needs a source checkout: this installation has no benchmarks folder")
    if config.name not in names:
        raise unknown("benchmark", config.name, names)
    spec = importlib.util.spec_from_file_location(f"benchmarks.{config.name}", names[config.name])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main(config.quick)
