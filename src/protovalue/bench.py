"""`pvn bench NAME`: runs benchmarks/NAME.py of the source checkout."""

import importlib.util
from pathlib import Path

import protovalue
from protovalue.config import BenchConfig
from protovalue.errors import UserError, unknown


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
