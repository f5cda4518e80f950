"""What a table of a report is: columns that say how they are computed and shown, filled once for files and page."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, TypeVar

from protovalue.evaluate.aggregate import Estimate
from protovalue.report.best import best
from protovalue.report.model import Report, Spread
from protovalue.report.numbers import NONE, fixed, short, span

Row = TypeVar("Row")
Kind = Literal["measured", "printed", "count"]


@dataclass(frozen=True)
class Number:
    """A place in a table: a number with its interval or range and what it stands on, or a text alone."""

    text: str
    """What a reader of the files sees, without markup."""
    value: float | None = None
    low: float | None = None
    high: float | None = None
    encoders: int | None = None
    agents: int | None = None
    """Agents on each encoder."""
    is_best: bool = False
    """Whether it is the best of its row (per game) or column (aggregates); shown in bold."""
    short: str = ""
    """What a reader of the page sees."""
    below: str = ""
    """The interval or range that the page has below it."""
    note: str = ""
    """What the page says beside it."""


Measure = Number | Estimate | Spread | float | None
"""What a column computes of a row; None is nothing, and a whole number has no decimals."""


@dataclass(frozen=True)
class Column(Generic[Row]):
    """A column: its title, how its numbers are computed, and how they are shown."""

    title: str
    value: Callable[[Row], Measure]
    digits: int = 3
    """Decimals in files; the page has about three digits."""
    best: Literal["highest", "lowest"] | None = None
    on_page: str = ""
    """Its title on the page, where that is another."""
    kind: Kind = "measured"
    """What was measured, what the paper printed, or a count that the others stand on."""
    in_files: bool = True
    """Whether files have it; the page always does."""
    apart: bool = False
    """Whether it does not compete with the other columns of a row."""

    @property
    def page_title(self) -> str:
        """Its title on the page."""
        return self.on_page or self.title


@dataclass(frozen=True)
class Table:
    """A table as files and the terminal show it; the first column holds the names of the rows."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Number, ...], ...]
    note: str = ""


@dataclass(frozen=True)
class PageLine:
    """A row on the page: what it is of, and its numbers by kind of column."""

    of: Any
    name: str
    numbers: Mapping[Kind, Sequence[Number]]
    stands_on: str


@dataclass(frozen=True)
class PageTable:
    """A table as the page shows it: what was measured, then what the paper printed, and counts last."""

    columns: Mapping[Kind, Sequence[Column[Any]]]
    lines: tuple[PageLine, ...]


@dataclass(frozen=True)
class TableEntry(Generic[Row]):
    """A table of the report: its title, its rows and its columns."""

    name: str
    """Of its files, and of it among the tables of the page."""
    title: str
    head: str
    """What the rows are."""
    rows: Callable[[Report], Sequence[Row]]
    """Where there is none, there is no table."""
    row_name: Callable[[Report, Row], str]
    """A row that is named as a method in `Report.references` does not compete."""
    columns: Callable[[Report], Sequence[Column[Row]]]
    note: Callable[[Report], str] = lambda report: ""
    rivals: Literal["rows", "columns"] = "rows"
    """Whether the rows of a column compete for the best, or the columns of a row."""
    in_files: Callable[[Report, Row], bool] = lambda report, row: True
    """Whether files have a row; the page has them all."""
    stands_on: Callable[[Row], str] = lambda row: ""
    """What a row stands on, in words, for the page."""

    def for_files(self, report: Report) -> Table:
        """Make the table of the files: counts first."""
        columns = [column for column in self.columns(report) if column.in_files]
        columns.sort(key=lambda column: ("count", "measured", "printed").index(column.kind))
        rows = [row for row in self.rows(report) if self.in_files(report, row)]
        names = [self.row_name(report, row) for row in rows]
        numbers = filled(columns, rows, names, report.references, self.rivals)
        return as_table(self.title, self.head, columns, names, numbers, self.note(report))

    def for_page(self, report: Report) -> PageTable:
        """Make the table of the page: counts last, in the reverse of the files' order."""
        rows = self.rows(report)
        columns = list(self.columns(report)) if rows else []
        names = [self.row_name(report, row) for row in rows]
        numbers = filled(columns, rows, names, report.references, self.rivals)
        lines = tuple(
            PageLine(row, name, _by_kind(columns, own), self.stands_on(row))
            for row, name, own in zip(rows, names, numbers, strict=True)
        )
        return PageTable(_by_kind(columns, columns), lines)


Thing = TypeVar("Thing")


def _by_kind(columns: Sequence[Column[Any]], things: Sequence[Thing]) -> dict[Kind, list[Thing]]:
    kinds: dict[Kind, list[Thing]] = {"measured": [], "printed": [], "count": []}
    for column, thing in zip(columns, things, strict=True):
        kinds[column.kind].append(thing)
    kinds["count"].reverse()
    return kinds


def as_table(
    title: str,
    head: str,
    columns: Sequence[Column[Any]],
    names: Sequence[str],
    numbers: Sequence[Sequence[Number]],
    note: str,
) -> Table:
    """Put the names of the rows before their numbers."""
    rows = tuple((Number(name), *own) for name, own in zip(names, numbers, strict=True))
    return Table(title, (head, *(column.title for column in columns)), rows, note)


def filled(
    columns: Sequence[Column[Row]],
    rows: Sequence[Row],
    names: Sequence[str],
    references: Collection[str],
    rivals: Literal["rows", "columns"] = "rows",
) -> list[list[Number]]:
    """Compute the numbers of every row, the best marked."""
    grid = [[shown(column.value(row), column.digits) for column in columns] for row in rows]
    comparable = [j for j, column in enumerate(columns) if column.best]
    if rivals == "rows":
        apart = [i for i, name in enumerate(names) if name in references]
        groups = [([(i, j) for i in range(len(rows))], [(i, j) for i in apart]) for j in comparable]
    else:
        out = [j for j in comparable if columns[j].apart]
        groups = [([(i, j) for j in comparable], [(i, j) for j in out]) for i in range(len(rows))]
    for places, apart_places in groups:
        points = {(i, j): value for i, j in places if (value := grid[i][j].value) is not None}
        lowest = any(columns[j].best == "lowest" for _, j in points)
        for i, j in best(points, apart_places, lowest):
            grid[i][j] = replace(grid[i][j], is_best=True)
    return grid


def shown(value: Measure, digits: int) -> Number:
    """Write what a column computed: for files with `digits` decimals, for the page with about three digits."""
    if isinstance(value, Number):
        return value
    if isinstance(value, int):
        return Number(f"{value}", value, short=f"{value}")
    if isinstance(value, float):
        value = Estimate(value)
    point = value.point if isinstance(value, Estimate) else value.mean if isinstance(value, Spread) else math.nan
    if value is None or not math.isfinite(point):
        return Number(NONE)
    number = Number(fixed(point, digits), point, short=short(point))
    if isinstance(value, Estimate) and not value.has_interval:
        return number
    number = replace(number, low=value.low, high=value.high)
    low, high, below = fixed(value.low, digits), fixed(value.high, digits), span(point, value.low, value.high)
    if isinstance(value, Estimate):
        return replace(number, text=f"{number.text} [{low}, {high}]", below=below)
    if value.low == value.high:
        return number
    return replace(number, text=f"{number.text} ({low} to {high})", below=below)
