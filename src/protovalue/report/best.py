"""Who competes in a report, and who is best: methods that saw the reward first are shown apart."""

from collections.abc import Collection, Hashable, Iterable, Mapping
from typing import Protocol, TypeVar


class OfMethod(Protocol):
    """Anything that belongs to a method."""

    @property
    def method(self) -> str:
        """Title of the method."""
        ...


Key = TypeVar("Key", bound=Hashable)
Row = TypeVar("Row", bound=OfMethod)


def best(points: Mapping[Key, float], apart: Collection[Key] = (), lowest: bool = False) -> frozenset[Key]:
    """Return which are best of those that compete, all of them if they are equal; one alone is not."""
    rivals = {key: point for key, point in points.items() if key not in apart}
    if len(rivals) < 2:
        return frozenset()
    record = min(rivals.values()) if lowest else max(rivals.values())
    return frozenset(key for key, point in rivals.items() if point == record)


def competing(rows: Iterable[Row], apart: Collection[str]) -> list[Row]:
    """Return the rows of methods that compete; where there are only others, those."""
    rows = list(rows)
    return [row for row in rows if row.method not in apart] or rows
