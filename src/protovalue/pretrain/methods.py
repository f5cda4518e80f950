"""The methods by name: `--method NAME` is the file NAME.py in this folder, or a file of the user's."""

import importlib
import importlib.util
import pkgutil
from collections.abc import Sequence
from pathlib import Path

import protovalue.pretrain
from protovalue.errors import UserError, unknown
from protovalue.pretrain.base import Method
from protovalue.pretrain.config import PretrainConfig
from protovalue.user_code import run_file


def method_names() -> list[str]:
    """Return the names of this package's methods: the files in this folder that define METHOD."""
    names = [module.name for module in pkgutil.iter_modules(protovalue.pretrain.__path__)]
    return [name for name in names if hasattr(importlib.import_module(f"protovalue.pretrain.{name}"), "METHOD")]


def method_class(name: str) -> type[Method]:
    """Return the method called `name`, or the one that the Python file `name` defines; only its file is imported."""
    if name.endswith(".py"):
        return _from_file(Path(name))
    if importlib.util.find_spec("protovalue.pretrain." + name.replace(".", "_")):
        module = importlib.import_module(f"protovalue.pretrain.{name}")
        if hasattr(module, "METHOD"):
            method: type[Method] = module.METHOD
            return method
    raise unknown("method", name, method_names())


def config_class(args: Sequence[str]) -> type[PretrainConfig]:
    """Choose the config dataclass by the command line's --method, so that only its own flags are accepted."""
    name = "pvn"
    for i, arg in enumerate(args):
        if arg == "--method" and i + 1 < len(args):
            name = args[i + 1]
        elif arg.startswith("--method="):
            name = arg.partition("=")[2]
    return method_class(name).Config


def _from_file(path: Path) -> type[Method]:
    """Run a Python file that the user named on the command line and take its METHOD."""
    module = run_file(path)
    if module is None:
        raise UserError(f"--method: found {path}, expected a Python file")
    found = getattr(module, "METHOD", None)
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise UserError(f"--method: {path} defines no METHOD, expected a class that extends Method")
    return found
