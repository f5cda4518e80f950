"""`pvn list`: what there is by name, one line each, and what a file of the user's must define."""

import sys
import typing
from dataclasses import MISSING, dataclass, fields
from typing import Any, Literal

from tyro.conf import Positional

from protovalue.config import require
from protovalue.options import options_of
from protovalue.registry import ENVIRONMENTS, METHODS, REGISTRIES, Registry

USE = {"environments": "FILE.py/NAME", "encoders": "FILE.py", "methods": "FILE.py", "indicators": "FILE.py"}


@dataclass(frozen=True)
class ListConfig:
    """List environments, encoders, methods and indicators, one line each, and how a file of yours adds one.

    Example: pvn list indicators

    With a name or a Python file of yours, list its options: pvn list environments minatar
    """

    kind: Positional[Literal["environments", "encoders", "methods", "indicators", "all"]] = "all"
    """What to list."""
    name: Positional[str] = ""
    """One of them, or a Python file of yours, to list its options."""

    def __post_init__(self) -> None:
        require(not self.name or self.kind != "all", "NAME", self.name, "it after environments, encoders, ...")


def list_command(config: ListConfig) -> None:
    """Print the lists that are asked for."""
    wanted = [one for one in REGISTRIES if config.kind in (one.plural, "all")]
    if config.name:
        print("\n".join(describe(wanted[0], config.name)))
    else:
        print("\n\n".join("\n".join(lines_of(one)) for one in wanted))


def lines_of(registry: Registry) -> list[str]:
    """Return the list of one kind; nothing is imported for it."""
    found = registry.summaries()
    width = max(map(len, found))
    base = registry.base.partition(":")[2]
    return [
        f"{registry.plural} ({registry.flag} {'FAMILY/NAME' if registry is ENVIRONMENTS else 'NAME'})",
        *(f"  {name:<{width}}  {line}" for name, line in found.items()),
        f"  yours: {registry.flag} {USE[registry.plural]}, a Python file with `{registry.constant} = ` a class that "
        f"extends {base} ({registry.page})",
    ]


def describe(registry: Registry, name: str) -> list[str]:
    """Return what one of them is, and its options with types and defaults; a file of the user's is run."""
    cls = registry.load(name)
    options = _settings(cls) if registry is METHODS else options_of(cls)
    games = list(getattr(cls, "games", ()))
    return [
        f"{name}: {(sys.modules[cls.__module__].__doc__ or 'no docstring').partition(chr(10))[0]}",
        *([f"  names: {', '.join(games)}"] if games else []),
        *(f"  {key}: {_words(kind)} [{default}]" for key, (kind, default) in options.items()),
    ]


def _settings(method: Any) -> dict[str, tuple[Any, Any]]:
    """Return type and default of the settings that a method has beside those of all."""
    config, shared = method.Config, METHODS.base_class().Config
    hints = typing.get_type_hints(config)
    own = [one for one in fields(config) if one.name not in shared.__dataclass_fields__]
    return {one.name: (hints[one.name], None if one.default is MISSING else one.default) for one in own}


def _words(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) else str(kind).replace("typing.", "")
