"""The methods by name: `--method NAME` is the file NAME.py in this folder, or a file of the user's."""

from protovalue.pretrain.base import Method
from protovalue.registry import METHODS


def method_names() -> list[str]:
    """Return the names of this package's methods: the files in this folder that define METHOD."""
    return METHODS.names()


def method_class(name: str) -> type[Method]:
    """Return the method that the user named: the one called `name`, or that of the Python file `name`, which is run."""
    method: type[Method] = METHODS.load(name)
    return method
