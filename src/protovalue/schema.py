"""What is read from a file, checked against a dataclass: one place per format, one line that names the field."""

import dataclasses
import json
import types
import typing
from collections.abc import Mapping
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, Union

from protovalue.errors import UserError

DEEPEST = 64  # nested lists and objects: far more than any format has, far less than Python's recursion takes
_LOWEST, _BEYOND = -(1 << 63), 1 << 64  # whole numbers: what 64 bits hold, signed or not
_SHOWN = 60  # characters of a found value in a message

T = TypeVar("T")


class FieldError(ValueError):
    """A value that does not fit: the path of its field, and what is wrong there."""

    def __init__(self, field: str, wrong: str) -> None:
        super().__init__(f"field {field}: {wrong}" if field else wrong)
        self.field, self.wrong = field, wrong


def _misfit(field: str, found: object, expected: str) -> FieldError:
    return FieldError(field, f"found {shown(found)}, expected {expected}")


def require(good: bool, field: str, found: object, expected: str) -> None:
    """Check a condition that a type cannot say; for `__post_init__`."""
    if not good:
        raise _misfit(field, found, expected)


def parse_json(data: bytes, where: Path | str) -> Any:
    """Parse JSON text that came from anywhere; what is not JSON, or too deep, is a UserError."""
    try:
        value = json.loads(data)
        _check_depth(value)
    except RecursionError as error:
        raise UserError(f"{where}: damaged: found lists or objects nested more than {DEEPEST} deep") from error
    except ValueError as error:  # also text that is no UTF-8
        raise UserError(f"{where}: damaged: not JSON ({error})") from error
    return value


def checked(kind: type[T], value: object, where: Path | str, extra: bool = False) -> T:
    """Return parsed JSON as a `kind`, or raise a UserError that names the file and the field.

    A kind is a dataclass (fields without a default must be there; its `__post_init__` may call `require` or raise a
    ValueError), list[T], tuple[T, ...], tuple[A, B], dict[str, T], Literal, a union, an Enum (by value), int, float,
    bool, str, None or Any. A whole number counts as a float; nothing else is converted. Keys that the dataclass does
    not have are refused, or passed over with `extra`. Text becomes a Path where one is expected.
    """
    try:
        result: T = _convert(kind, value, "", extra, 0)
    except FieldError as error:
        raise UserError(f"{where}: {error}") from error
    return result


def shown(value: object) -> str:
    """Say in a few words what a value is; never long, never two lines."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return f"an object with {len(value)} fields"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}" if len(value) > 8 or any(map(_nested, value)) else _cut(repr(list(value)))
    if isinstance(value, int) and not isinstance(value, Enum) and not _LOWEST <= value < _BEYOND:
        return f"a whole number of {value.bit_length()} bits"  # its digits may be too many to write
    return _cut(repr(value[:_SHOWN]) if isinstance(value, str) else repr(value))


def _nested(value: object) -> bool:
    return isinstance(value, list | tuple | Mapping | str)


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def _check_depth(value: object) -> None:
    """Refuse what is nested too deep; without recursion of its own."""
    level = [value]
    for _ in range(DEEPEST):
        level = [
            inner
            for outer in level
            if isinstance(outer, list | dict)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return
    raise RecursionError


def _convert(kind: Any, value: Any, path: str, extra: bool, depth: int) -> Any:
    if depth > DEEPEST:
        raise FieldError(path, f"found more than {DEEPEST} nested levels")
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return value
    if origin in (Union, types.UnionType):
        return _union(args, value, path, extra, depth)
    if origin is Literal:
        for known in args:
            if type(known) is type(value) and known == value:
                return value
        raise _misfit(path, value, _words(kind))
    if dataclasses.is_dataclass(kind):
        return _dataclass(kind, value, path, extra, depth)
    if origin in (list, tuple, dict) or kind in (list, tuple, dict):
        return _container(origin or kind, args, value, path, extra, depth)
    if kind is Path:
        if type(value) is not str or "\0" in value:
            raise _misfit(path, value, "a path")
        return Path(value)
    if isinstance(kind, type) and issubclass(kind, Enum):
        for member in kind:
            if type(member.value) is type(value) and member.value == value:
                return member
        raise _misfit(path, value, _words(kind))
    good = {
        int: type(value) is int and _LOWEST <= value < _BEYOND,
        float: type(value) is float or (type(value) is int and _LOWEST <= value < _BEYOND),
        bool: type(value) is bool,
        str: type(value) is str,
        type(None): value is None,
    }
    if kind not in good:
        raise TypeError(f"{kind}: not a kind that a schema may have")
    if not good[kind]:
        raise _misfit(path, value, _words(kind))
    return float(value) if kind is float else value


def _union(kinds: tuple[Any, ...], value: Any, path: str, extra: bool, depth: int) -> Any:
    left = [kind for kind in kinds if kind is not type(None)]
    if value is None and len(left) < len(kinds):
        return None
    if len(left) == 1:  # an optional value: the message of what it should be
        return _convert(left[0], value, path, extra, depth)
    for kind in left:
        try:
            return _convert(kind, value, path, extra, depth + 1)
        except FieldError:
            continue
    raise _misfit(path, value, " or ".join(_words(kind) for kind in kinds))


def _container(origin: Any, args: tuple[Any, ...], value: Any, path: str, extra: bool, depth: int) -> Any:
    if origin is dict:
        if not isinstance(value, Mapping) or not all(type(key) is str for key in value):
            raise _misfit(path, value, "an object")
        inner = args[1] if args else Any
        return {key: _convert(inner, item, _join(path, key), extra, depth + 1) for key, item in value.items()}
    if not isinstance(value, list | tuple):
        raise _misfit(path, value, "a list")
    kinds: typing.Iterable[Any]
    if origin is tuple and args and args[-1] is not Ellipsis:
        if len(value) != len(args):
            raise FieldError(path, f"found a list of {len(value)}, expected one of {len(args)}")
        kinds = args
    else:
        kinds = [args[0] if args else Any] * len(value)
    items = (
        _convert(kind, item, f"{path}[{number}]", extra, depth + 1)
        for number, (kind, item) in enumerate(zip(kinds, value, strict=True))
    )
    return tuple(items) if origin is tuple else list(items)


def _dataclass(kind: Any, value: Any, path: str, extra: bool, depth: int) -> Any:
    if not isinstance(value, Mapping):
        raise _misfit(path, value, "an object")
    hints = hints_of(kind)
    found: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        at = _join(path, field.name)
        if not field.init:
            continue
        if field.name in value:
            found[field.name] = _convert(hints[field.name], value[field.name], at, extra, depth + 1)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise FieldError(at, f"missing, expected {_words(hints[field.name])}")
    unknown = [] if extra else [str(key) for key in value if key not in found]
    if unknown:
        raise FieldError(_join(path, min(unknown)), "unknown, expected no such field")
    try:
        return kind(**found)
    except FieldError as error:
        raise FieldError(_join(path, error.field), error.wrong) from error
    except ValueError as error:
        raise FieldError(path, " ".join(str(error).split())) from error


def hints_of(kind: Any, extras: bool = False) -> Mapping[str, Any]:
    """Return the types of a class's fields, with their annotations or without; evaluated once."""
    return _hints(kind, extras)


@cache
def _hints(kind: Any, extras: bool) -> Mapping[str, Any]:
    return types.MappingProxyType(typing.get_type_hints(kind, include_extras=extras))


def _join(path: str, name: str) -> str:
    return f"{path}.{_cut(name)}" if path else _cut(name)


def _words(kind: Any) -> str:
    """Name a kind as a user would."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return " or ".join(repr(value) for value in args)
    if origin in (Union, types.UnionType):
        return " or ".join(_words(inner) for inner in args)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return " or ".join(repr(member.value) for member in kind)
    names: dict[Any, str] = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    names |= {type(None): "null", Any: "a value", Path: "a path"}
    if kind in names:
        return names[kind]
    return "a list" if origin in (list, tuple) or kind in (list, tuple) else "an object"
