"""The methods by name. To add one, write its file and put its class here: docs/adding-a-method.md."""

from collections.abc import Sequence
from importlib import import_module

from protovalue.config import PretrainConfig
from protovalue.errors import unknown
from protovalue.pretrain.base import Method

METHODS = {
    "pvn": "protovalue.pretrain.pvn:ProtoValueNetwork",
    "random": "protovalue.pretrain.random_init:RandomInitialization",
}


def method_class(name: str) -> type[Method]:
    """Return the method called `name`; only its own file is imported."""
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    module, cls = METHODS[name].split(":")
    method: type[Method] = getattr(import_module(module), cls)
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
