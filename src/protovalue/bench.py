"""`pvn bench NAME`: runs benchmarks/NAME.py of the source checkout."""

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional

import protovalue
from protovalue.config import RESULT, SUBJECT, Settings
from protovalue.errors import UserError, unknown


@dataclass(frozen=True)
class BenchConfig(Settings):
    """Run one of the benchmarks in benchmarks/ and print its table and one line of JSON.

    Example: pvn bench data
    """

    name: Annotated[Positional[str], SUBJECT]
    """Which benchmark."""
    quick: Annotated[bool, RESULT] = False
    """A smaller measurement that takes about a minute."""


def bench(config: BenchConfig) -> None:
    """Run one benchmark: it prints its table and one line of JSON."""
    folder = Path(protovalue.__file__).parents[2] / "benchmarks"
    if not folder.is_dir():
        raise UserError("pvn bench needs a source checkout: this installation has no benchmarks folder")
    names = {path.stem: path for path in folder.glob("*.py")}
    if config.name not in names:
        raise unknown("benchmark", config.name, names)
    spec = importlib.util.spec_from_file_location(f"benchmarks.{config.name}", names[config.name])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main(config.quick)
