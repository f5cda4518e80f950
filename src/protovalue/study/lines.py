"""Where a key of a TOML file stands: tomllib gives no line numbers, and an error without one costs a search."""

import tomllib
from collections.abc import Sequence
from typing import Any

from protovalue.errors import UserError


class Source:
    """A TOML file's text, its values, and the lines of its keys."""

    def __init__(self, name: str, text: str) -> None:
        """Parse; a syntax error names its line."""
        self.name, self.text = name, text
        try:
            self.values: dict[str, Any] = tomllib.loads(text)
            self._rows = text.replace("\r\n", "\n").split("\n")  # TOML has no other ends of lines
            self._spans = _spans(self._rows)
        except RecursionError:
            raise UserError(f"{name}: not TOML: lists or tables are nested too deep") from None
        except ValueError as error:  # also whole numbers with too many digits
            what, _, where = str(error).rpartition(" (at ")
            line = where.removeprefix("line ").partition(",")[0]
            place = line if line.isdigit() else "end" if "end of document" in where else "?"
            raise UserError(f"{name}:{place}: not TOML: {what or error}") from None

    def line(self, path: Sequence[str], value: object = None) -> int:
        """Return the line of a key, or of `value` in its list; of the nearest table above it if it is not there."""
        for length in range(len(path), 0, -1):
            span = self._spans.get(tuple(path[:length]))
            if span:
                first, last = span
                quoted = (f'"{value}"', f"'{value}'", str(value))
                for wanted in quoted if value is not None else ():
                    found = [n for n in range(first, last) if wanted in self._rows[n]]
                    if found:
                        return found[0] + 1
                return first + 1
        return 1

    def error(self, path: Sequence[str], message: str | UserError, value: object = None) -> UserError:
        """Say what is wrong with a key, and where it stands."""
        return UserError(f"{self.name}:{self.line(path, value)}: {message}")


def _spans(rows: Sequence[str]) -> dict[tuple[str, ...], tuple[int, int]]:
    """Return the rows first .. last - 1 of every table and key, by its path.

    A statement begins on a row and ends on the first one up to which it is TOML by itself, so that strings and lists
    over several rows are one statement, whatever is written in them.
    """
    spans: dict[tuple[str, ...], tuple[int, int]] = {}
    table: tuple[str, ...] = ()
    first = 0
    while first < len(rows):
        last = first + 1
        while (parsed := _parse(rows[first:last])) is None and last < len(rows):
            last += 1
        header = rows[first].lstrip().startswith("[")
        paths = _paths(parsed or {})
        for path in paths:
            full = path if header else (*table, *path)
            for length in range(1, len(full) + 1):
                spans.setdefault(full[:length], (first, last))
        if header and paths:
            table = paths[-1]
        first = last
    return spans


def _parse(rows: Sequence[str]) -> dict[str, Any] | None:
    try:
        return tomllib.loads("\n".join(rows))
    except ValueError:
        return None


def _paths(values: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return the paths of all keys, outer ones first."""
    found: list[tuple[str, ...]] = []
    for key, value in values.items():
        found.append((key,))
        inner = value if isinstance(value, dict) else {}
        found += [(key, *path) for path in _paths(inner)]
    return found
