"""Options of a class of its own: the parameters of its constructor that have a default.

On the command line they are words `key=value`, in a study file a table, in a program keyword arguments. A value is
written as in TOML, and text needs no quotes. Everything is checked against the constructor before it is called.
"""

import dataclasses
import inspect
import json
import math
import tomllib
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from protovalue.errors import UserError, unknown
from protovalue.schema import checked


def options_of(cls: type[Any]) -> dict[str, tuple[Any, Any]]:
    """Return type and default of every option of a class; a parameter that says no type has that of its default."""
    hints = typing.get_type_hints(cls.__init__)
    found = {}
    for name, parameter in inspect.signature(cls).parameters.items():
        if parameter.default is not parameter.empty:
            usual = Any if parameter.default is None else type(parameter.default)
            found[name] = (hints.get(name, usual), parameter.default)
    return found


def resolve_options(cls: type[Any], given: Mapping[str, Any] | None, kind: str, where: str) -> dict[str, Any]:
    """Return all options of a class with their values; what it does not have, or of another type, is a UserError.

    Args:
        cls: the class.
        given: what to change from its defaults.
        kind: what an option is called where it is not known.
        where: what is named where a value is of another type.
    """
    known = options_of(cls)
    for name in given or {}:
        if name not in known:
            raise unknown(kind, str(name), known) if known else UserError(f"unknown {kind} {name!r}: it has none")
    fields = [(name, hint, dataclasses.field(default=None)) for name, (hint, _) in known.items()]
    schema = dataclasses.make_dataclass("Options", fields)
    values = {name: default for name, (_, default) in known.items()} | dict(given or {})
    try:
        resolved: Any = checked(schema, values, where)
    except TypeError as error:
        raise UserError(f"{where}: {error}") from error
    return {name: getattr(resolved, name) for name in known}


def parse_options(words: Sequence[str]) -> dict[str, Any]:
    """Read options as the command line has them: words `key=value`."""
    found: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key.isidentifier():
            raise UserError(f"options: found {word!r}, expected key=value")
        if key in found:
            raise UserError(f"options: found {key} twice, expected each once")
        found[key] = _value(text)
        check_plain(key, found[key])
    return found


def option_words(options: Mapping[str, Any]) -> list[str]:
    """Write options as the command line has them, so that `parse_options` gives them back."""
    return [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in options.items()]


def check_plain(key: str, value: Any) -> None:
    """Refuse what JSON cannot hold."""
    parts = value if isinstance(value, list) else [value]
    for part in parts:
        plain = isinstance(part, bool | int | float | str)
        if not plain or (isinstance(part, float) and not math.isfinite(part)):
            raise UserError(
                f"option {key}: found {part}, expected text, true, false, a finite number or a list of them"
            )


def _value(text: str) -> Any:
    try:
        found = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    value = found.get("value")
    return value if len(found) == 1 and isinstance(value, bool | int | float | str | list) else text
