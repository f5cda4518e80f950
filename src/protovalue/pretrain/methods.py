"""The methods by name: `--method NAME` is the file NAME.py in this folder, or a file of the user's."""

from collections.abc import Sequence

from protovalue.pretrain.base import Method
from protovalue.pretrain.config import PretrainConfig
from protovalue.registry import METHODS


def method_names() -> list[str]:
    """Return the names of this package's methods: the files in this folder that define METHOD."""
    return METHODS.names()


def method_class(name: str) -> type[Method]:
    """Return the method that the user named: the one called `name`, or that of the Python file `name`, which is run."""
    method: type[Method] = METHODS.load(name)
    return method


def config_class(args: Sequence[str]) -> type[PretrainConfig]:
    """Choose the config dataclass by the command line's --method, so that only its own flags are accepted."""
    name = "pvn"
    for i, arg in enumerate(args):
        if arg == "--method" and i + 1 < len(args):
            name = args[i + 1]
        elif arg.startswith("--method="):
            name = arg.partition("=")[2]
    return method_class(name).Config
