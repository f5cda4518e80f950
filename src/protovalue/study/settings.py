"""Settings between a study file, the config dataclasses and the command line."""

import math
import types
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from protovalue.config import default_of, flag, flag_words, names_where, texts
from protovalue.envs.options import EnvOptions
from protovalue.errors import UserError, unknown
from protovalue.options import check_plain
from protovalue.registry import ENCODERS, INDICATORS, Registry
from protovalue.schema import hints_of
from protovalue.study.lines import Source

C = TypeVar("C")
NAMED: Mapping[str, Registry] = {"architecture": ENCODERS, "indicator": INDICATORS}
"""Settings whose values are names in a registry, or the user's files."""


def field_names(config: type[Any]) -> set[str]:
    """Return the fields of a config dataclass that a study file may set: all but those that the study fills in."""
    return names_where(config, lambda role: not role.filled_in)


def check_keys(source: Source, path: Sequence[str], found: Mapping[str, Any], known: Collection[str]) -> None:
    """Refuse a key that is not known, naming its line and the nearest one that is."""
    for key in found:
        if key not in known:
            raise source.error([*path, key], unknown("key", key, known))


def check_names(source: Source, path: Sequence[str], table: Mapping[str, Any]) -> None:
    """Look up what a table's settings name, in this package or in the user's files."""
    for key, registry in NAMED.items():
        if key in table:
            try:
                registry.load(table[key])
            except UserError as error:
                raise source.error([*path, key], error) from None


def settings(
    source: Source, path: Sequence[str], found: Mapping[str, Any], config: type[Any], also: Collection[str] = ()
) -> dict[str, Any]:
    """Check a table's keys and types against a config dataclass; return the values as its constructor takes them.

    `also` are fields that the study fills in elsewhere but not in this table.
    """
    for key in found:
        if flag(key) in getattr(config, "old_flags", ()):
            new = config.old_flags[flag(key)].removeprefix("--").replace("-", "_")
            raise source.error([*path, key], f"{key}: found a name that it had before, expected {new}")
    check_keys(source, path, found, field_names(config).union(also))
    hints = hints_of(config)
    values = {}
    for key, value in found.items():
        try:
            values[key] = _convert(value, hints[key])
        except ValueError as error:
            raise source.error([*path, key], f"{key}: found {value!r}, expected {error}") from None
        except UserError as error:
            raise source.error([*path, key], error) from None
    return values


def build(source: Source, paths: Mapping[str, Sequence[str]], config: type[C], values: Mapping[str, Any]) -> C:
    """Make a config; what it refuses is an error of the file, at the key whose flag its message begins with.

    Args:
        source: the study file.
        paths: where each of the values stands in it.
        config: the dataclass.
        values: for its constructor.
    """
    try:
        return config(**values)
    except UserError as error:
        key = str(error).partition(":")[0].removeprefix("--").replace("-", "_")
        where = paths.get(key) or next(iter(paths.values()), ())
        raise source.error(where, error) from error


def _convert(value: Any, hint: Any) -> Any:
    """Return a TOML value as a field of type `hint`; ValueError says what was expected."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        inner = [one for one in get_args(hint) if one is not type(None)]
        expected = []
        for one in inner:
            try:
                return _convert(value, one)
            except ValueError as error:
                expected.append(str(error))
        raise ValueError(expected[-1] if {int, float} <= set(inner) else " or ".join(dict.fromkeys(expected)))
    if origin is Literal:
        if value not in get_args(hint):
            raise ValueError(" or ".join(str(one) for one in get_args(hint)))
        return value
    if origin is dict:
        if not isinstance(value, dict):
            raise ValueError("a table")
        for key, one in value.items():
            check_plain(key, one)
        return value
    if origin is tuple:
        if not isinstance(value, list):
            raise ValueError("a list")
        return tuple(_convert(one, get_args(hint)[0]) for one in value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    plain = {int: "a whole number", float: "a number", str: "text", bool: "true or false", Path: "a path as text"}
    wanted = str if hint is Path else hint
    if not isinstance(value, wanted) or (isinstance(value, bool) and hint is not bool):
        raise ValueError(plain[hint])
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("a finite number")
    return Path(value) if hint is Path else value


def words(config: Any, positional: Sequence[str] = (), always: Sequence[str] = ()) -> list[str]:
    """Write a config as the words of a command line: what differs from the defaults, and `always` those fields."""
    found: list[str] = []
    for name in positional:
        found += texts(getattr(config, name))
    for field in sorted(fields(config), key=lambda field: (field.name not in always, field.name != "out")):
        value = getattr(config, field.name)
        if field.name in positional or (field.name not in always and value == default_of(field)):
            continue
        if isinstance(value, EnvOptions):
            for name, option in value.flags().items():
                found += flag_words(name, option) if option is not False else []  # off is every environment's default
        else:
            found += flag_words(field.name, value)
    return found
