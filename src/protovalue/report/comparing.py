"""What is compared with what: the units on both sides of a claim, from scores, from features or from a grid."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from protovalue.evaluate.differences import Units
from protovalue.report.cells import CellResult
from protovalue.report.grid import Grid, grids
from protovalue.report.model import FeatureNumbers
from protovalue.report.numbers import TIMES, plural
from protovalue.report.results import EncoderFeatures, Results
from protovalue.report.summary import Scale


@dataclass(frozen=True)
class Subject:
    """What claims are judged by."""

    results: Results
    scale: Scale
    features: Sequence[FeatureNumbers] = ()


@dataclass(frozen=True)
class Compared:
    """The two sides of a comparison: titles, units by game, and the cells that they stand on."""

    titles: tuple[str, str]
    first: Mapping[str, Units]
    second: Mapping[str, Units]
    cells: Sequence[Sequence[CellResult]]
    """One sequence for each method."""

    @property
    def games(self) -> list[str]:
        """Those that both sides have."""
        return [env for env in self.first if env in self.second]

    @property
    def stands_on(self) -> str:
        """Say how many games, data sets, encoders and agents it stands on: of the method that has fewest."""
        counts = []
        for cells in self.cells:
            per_game = [own for env in self.games if (own := [cell for cell in cells if cell.env == env])]
            data = min(len({cell.data_seed for cell in own}) for own in per_game)
            encoders, agents = min(map(len, per_game)), min(len(cell.returns) for own in per_game for cell in own)
            drawn = all(cell.data_seed is None for own in per_game for cell in own)
            counts.append((None if drawn else data, encoders, agents))
        data_sets = [data for data, _, _ in counts if data is not None]
        many = plural(min(encoders for _, encoders, _ in counts), "encoder")
        on = f" on {plural(min(data_sets), 'data set')}" if data_sets else ""
        each = plural(min(agents for _, _, agents in counts), "agent")
        return f" {TIMES} ".join([plural(len(self.games), "game"), f"{many}{on}", each])


Compare = Callable[[Subject], Compared | None]
"""Find the two sides; None where the results do not have both."""


@dataclass(frozen=True)
class Side:
    """One side of a comparison: a method, with what tells its variant from others of the same method."""

    method: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def has(self, cell: CellResult) -> bool:
        """Whether a cell is of this side."""
        own = cell.settings
        return own.get("method") == self.method and all(own.get(f"encoder.{k}") == v for k, v in self.settings.items())

    def title(self, results: Results) -> str | None:
        """Return the method of this side: of several that fit, the first, as the study has them."""
        fit = {cell.method for cell in results.cells if self.has(cell)}
        return next((title for title in results.methods if title in fit), None)


def scores(first: Side, second: Side) -> Compare:
    """Compare the normalised scores of two methods."""
    return lambda subject: _of_titles(subject, first, second, lambda title: _scores_of(subject, title))


def features(first: Side, second: Side, number: Callable[[EncoderFeatures], float]) -> Compare:
    """Compare a number of the features of two methods."""

    def of(subject: Subject, title: str) -> dict[str, Units]:
        own = [one for one in subject.features if one.method == title]
        found = {one.env: grouped((e.data_seed, e.pretraining_seed, number(e)) for e in one.each) for one in own}
        return {env: units for env, units in found.items() if units and all(map(math.isfinite, units.values()))}

    return lambda subject: _of_titles(subject, first, second, lambda title: of(subject, title))


def _of_titles(
    subject: Subject, first: Side, second: Side, of: Callable[[str], Mapping[str, Units]]
) -> Compared | None:
    titles = first.title(subject.results), second.title(subject.results)
    if titles[0] is None or titles[1] is None or grids(subject.results):  # which place of a grid would it be?
        return None
    return _beside(subject, (titles[0], titles[1]), of)


def _beside(subject: Subject, titles: tuple[str, str], of: Callable[[str], Mapping[str, Units]]) -> Compared:
    cells = [[cell for cell in subject.results.cells if cell.method == title] for title in titles]
    return Compared(titles, of(titles[0]), of(titles[1]), cells)


def _scores_of(subject: Subject, title: str) -> dict[str, Units]:
    own = {env: units(subject.results.of(title, env), subject.scale, env) for env in subject.scale.yardsticks}
    return {env: found for env, found in own.items() if found}


def against(subject: Subject, first: str, second: str) -> Compared:
    """Compare the normalised scores of two methods by their titles."""
    return _beside(subject, (first, second), lambda title: _scores_of(subject, title))


def units(cells: Sequence[CellResult], scale: Scale, env: str) -> Units:
    """Return normalised scores of what was drawn independently: data sets where there are several, else encoders."""
    return grouped(
        (cell.data_seed, cell.pretraining_seed, float(np.mean(scale.apply(env, cell.returns)))) for cell in cells
    )


def grouped(encoders: Iterable[tuple[int | None, int | None, float]]) -> Units:
    """Average numbers of encoders, with their seeds of data and pretraining, over what was drawn independently."""
    rows = list(encoders)
    several = len({data for data, _, _ in rows}) > 1
    found: dict[tuple[str, int], list[float]] = {}
    for place, (data, seed, number) in enumerate(rows):
        drawn = ("data", data) if several and data is not None else ("encoder", place if seed is None else seed)
        found.setdefault(drawn, []).append(number)
    return {unit: float(np.mean(numbers)) for unit, numbers in found.items()}


@dataclass(frozen=True)
class OfGrid:
    """The grid of a method, asked for scores of units; unit by unit, as encoders of one seed and data set."""

    subject: Subject
    grid: Grid

    def at(self, width: float, tasks: int) -> dict[str, Units]:
        """Return the scores of one place, by game."""
        cells = self.grid.cells[width, tasks]
        envs = [env for env in self.subject.scale.yardsticks if any(cell.env == env for cell in cells)]
        return {env: units([c for c in cells if c.env == env], self.subject.scale, env) for env in envs}

    def mean(self, places: Sequence[tuple[float, int]]) -> dict[str, Units]:
        """Average places, unit by unit."""
        return self._each(places, np.full(len(places), 1 / len(places)))

    def slope(self, width: float, tasks: Sequence[int]) -> dict[str, Units]:
        """Return what the score gains with every doubling of the number of tasks, by least squares."""
        x = np.log2(tasks) - np.mean(np.log2(tasks))
        return self._each([(width, number) for number in tasks], x / (x @ x))

    def _each(self, places: Sequence[tuple[float, int]], weights: Any) -> dict[str, Units]:
        scores = [self.at(*place) for place in places]
        found: dict[str, Units] = {}
        for env in scores[0]:
            shared = [unit for unit in scores[0][env] if all(unit in one.get(env, {}) for one in scores)]
            if shared:
                found[env] = {u: float(np.dot([one[env][u] for one in scores], weights)) for u in shared}
        return found

    def compared(
        self, titles: tuple[str, str], first: Mapping[str, Units], second: Mapping[str, Units],
        places: Sequence[tuple[float, int]],
    ) -> Compared | None:  # fmt: skip
        """Put two numbers of the grid beside each other, which stand on `places`."""
        cells = [self.grid.cells[place] for place in places]
        return Compared(titles, first, second, cells) if first.keys() & second.keys() else None


def grid(side: Side, sides: Callable[[OfGrid], Compared | None]) -> Compare:
    """Compare numbers of the grid of a method, where the results have one of at least two widths."""

    def found(subject: Subject) -> Compared | None:
        for one in grids(subject.results):
            own = [cells for (_, tasks), cells in one.cells.items() if tasks > 0]
            enough = len(one.widths) > 1 and all(len(one.tasks(width)) >= 3 for width in one.widths)
            if enough and all(side.has(cell) for cells in own for cell in cells):
                return sides(OfGrid(subject, one))
        return None

    return found


def zero(like: Mapping[str, Units]) -> dict[str, Units]:
    """Return zeros for the same units: what a number is compared with that stands alone."""
    return {env: dict.fromkeys(found, 0.0) for env, found in like.items()}
