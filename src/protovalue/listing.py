"""`pvn list`: what there is by name, one line each, and what a file of the user's must define."""

import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from tyro.conf import Positional

from protovalue.config import PRESET, RESULT, Settings, default_of, require
from protovalue.options import options_of
from protovalue.presets import in_brackets, listed
from protovalue.registry import ENVIRONMENTS, METHODS, REGISTRIES, Registry
from protovalue.schema import hints_of

USE = {"environments": "FILE.py/NAME", "encoders": "FILE.py", "methods": "FILE.py", "indicators": "FILE.py"}


@dataclass(frozen=True, kw_only=True)
class ListConfig(Settings):
    """List environments, encoders, methods and indicators, one line each, and how a file of yours adds one; or presets.

    Example: pvn list indicators

    With a name or a Python file of yours, list its options: pvn list environments minatar
    """

    kind: Annotated[
        Positional[Literal["environments", "encoders", "methods", "indicators", "presets", "all"]], RESULT
    ] = "all"
    """What to list."""
    name: Annotated[Positional[str], RESULT] = ""
    """One of them, or a Python file of yours, to list its options."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            not self.name or self.kind not in ("presets", "all"),
            "NAME",
            self.name,
            "it after environments, encoders, ...",
        )


def list_command(config: ListConfig) -> None:
    """Print the lists that are asked for."""
    if config.kind == "presets":
        print("\n".join(listed()))
        return
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
    games = list(getattr(cls, "games", ()))
    own = {key: (kind, _default(default)) for key, (kind, default) in options_of(cls).items()}
    return [
        f"{name}: {(sys.modules[cls.__module__].__doc__ or 'no docstring').partition(chr(10))[0]}",
        *([f"  names: {', '.join(games)}"] if games else []),
        *(f"  {key}: {_words(kind)}{usual}" for key, (kind, usual) in (_settings(cls) or own).items()),
    ]


def _settings(cls: Any) -> dict[str, tuple[Any, str]]:
    """Return type and default of the settings that a method has beside those of all; others have none."""
    if not hasattr(cls, "Config"):
        return {}
    config, shared = cls.Config, METHODS.base_class().Config
    hints = hints_of(config)
    own = [one for one in fields(config) if one.name not in shared.__dataclass_fields__]
    usual = {one.name: default_of(one) for one in own}
    return {
        name: (hints[name], f" {in_brackets(name, config.presets)}" if default is PRESET else _default(default))
        for name, default in usual.items()
    }


def _default(value: Any) -> str:
    """Write a default; one that is nothing is not written."""
    return "" if value is None or value == () or value == "" else f" [{value}]"


def _words(kind: Any) -> str:
    """Write a type as it is given on a command line: int, exact or sgd, path ..."""
    parts = [part for part in get_args(kind) if part not in (type(None), ...)]
    if get_origin(kind) is Literal:
        return " or ".join(map(str, parts))
    if get_origin(kind) is dict:
        return "KEY=VALUE ..."
    if get_origin(kind) in (tuple, list):
        return f"{' '.join(map(_words, parts))} ..."
    if parts:
        return " or ".join(map(_words, parts))
    return "path" if kind is Path else kind.__name__ if isinstance(kind, type) else str(kind).replace("typing.", "")
