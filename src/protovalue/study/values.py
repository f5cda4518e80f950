"""Single values of a study file: texts, axes of numbers and seeds."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from protovalue.config import WIDTH, whole
from protovalue.study.lines import Source

T = TypeVar("T")

NAME, NAME_TEXT = r"[A-Za-z0-9][A-Za-z0-9._-]*", "letters, digits and -._, with a letter or digit first"


def read_text(source: Source, path: Sequence[str], values: Mapping[str, Any], key: str, default: str) -> str:
    """Read a text that is not empty."""
    found = values.get(key, default)
    if not isinstance(found, str) or not found:
        raise source.error([*path, key], f"{key}: found {found!r}, expected text")
    return found


def read_numbers(source: Source, values: Mapping[str, Any], key: str, least: int) -> tuple[int | None, ...]:
    """Read one axis of the grid in whole numbers; an axis that is not there has the preset's value."""

    def check(number: Any) -> int:
        if not isinstance(number, int) or isinstance(number, bool) or number < least:
            raise source.error([key], f"{key}: found {number!r}, expected whole numbers from {least} on", number)
        return number

    return _read_axis(source, values, key, check)


def read_widths(source: Source, values: Mapping[str, Any], key: str) -> tuple[int | float | None, ...]:
    """Read the axis of widths, which may be fractions."""

    def check(number: Any) -> int | float:
        if not isinstance(number, int | float) or isinstance(number, bool) or number not in WIDTH:
            raise source.error([key], f"{key}: found {number!r}, expected numbers {WIDTH}", number)
        return whole(number)

    return _read_axis(source, values, key, check)


def _read_axis(source: Source, values: Mapping[str, Any], key: str, check: Callable[[Any], T]) -> tuple[T | None, ...]:
    if key not in values:
        return (None,)
    found = values[key]
    if not isinstance(found, list) or not found:
        raise source.error([key], f"{key}: found {found!r}, expected a list of at least one number")
    axis = [check(number) for number in found]
    for number in axis:
        if axis.count(number) > 1:
            raise source.error([key], f"{key}: found {number} twice, expected each once", number)
    return tuple(axis)


def read_seeds(source: Source, path: Sequence[str], found: Any) -> tuple[int, ...]:
    """Read seeds: a list of them, or how many, counted from 0."""
    number = isinstance(found, int) and not isinstance(found, bool)
    seeds = list(range(found)) if number else found
    good = isinstance(seeds, list) and all(isinstance(s, int) and not isinstance(s, bool) and s >= 0 for s in seeds)
    if not good or not seeds:
        raise source.error(path, f"{path[-1]}: found {found!r}, expected how many seeds, or a list such as [0, 1, 2]")
    if len(set(seeds)) < len(seeds):
        raise source.error(path, f"{path[-1]}: found {found!r}, expected each seed once")
    return tuple(seeds)
