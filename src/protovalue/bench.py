"""`pvn bench NAME`: runs benchmarks/NAME.py of the source checkout."""

import importlib.util
import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional

import protovalue
from protovalue.config import INPUT, RESULT, SUBJECT, Settings
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
    code: Annotated[Path | None, INPUT] = None
    """Of `reference`: a checkout of google-research, whose own step is measured instead of our text of it."""


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
    if config.code is None:
        module.main(config.quick)
    elif "code" in inspect.signature(module.main).parameters:
        module.main(config.quick, code=config.code.resolve())
    else:
        raise UserError(f"--code: found it for {config.name}, expected it for no benchmark but reference")
