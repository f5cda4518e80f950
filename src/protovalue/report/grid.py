"""A method over widths of the encoder and numbers of tasks: its cells, what they cost and where they stop gaining."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from protovalue.evaluate.aggregate import Estimate, mean_interval
from protovalue.evaluate.saturation import saturation
from protovalue.randomness import numpy_generator
from protovalue.report.cells import CellResult
from protovalue.report.model import Aggregate, FeatureNumbers, GameScore, GridCell, GridWidth
from protovalue.report.results import Results
from protovalue.report.summary import SEED, Scale, base_title
from protovalue.runs import METRICS, read_metrics

LAST = 0.1  # of the steps of pretraining, over which the final loss is averaged


@dataclass(frozen=True)
class ScalingPoint:
    """A number for one width and one number of tasks."""

    panel: str
    width: float
    tasks: int
    estimate: Estimate


@dataclass(frozen=True)
class Grid:
    """The cells of a method by width and number of tasks; none is the random initialisation."""

    title: str
    cells: Mapping[tuple[float, int], tuple[CellResult, ...]]

    @property
    def widths(self) -> list[float]:
        """From the narrowest on."""
        return sorted({width for width, _ in self.cells})

    def tasks(self, width: float) -> list[int]:
        """Return the numbers of tasks at a width, from the fewest on, without none."""
        return sorted(tasks for own, tasks in self.cells if own == width and tasks > 0)

    def methods(self) -> dict[tuple[float, int], str]:
        """Return the title of every place."""
        return {place: cells[0].method for place, cells in self.cells.items()}


def grids(results: Results) -> tuple[Grid, ...]:
    """Return the methods that were run with several numbers of tasks.

    Where two methods have the same place, as variants do, the first one has it.
    """
    titles: dict[str, dict[tuple[float, int], str]] = {}
    drawn: dict[tuple[float, int], str] = {}
    for cell in results.cells:
        if cell.settings.get("method") == "random":
            drawn.setdefault((cell.width, 0), cell.method)
        elif cell.tasks is not None:
            titles.setdefault(base_title(cell.method), {}).setdefault((cell.width, cell.tasks), cell.method)
    found = []
    for base, places in titles.items():
        if len({tasks for _, tasks in places}) > 1:
            widths = {width for width, _ in places}
            own = places | {place: title for place, title in drawn.items() if place[0] in widths}
            cells = {p: tuple(c for c in results.cells if c.method == title) for p, title in sorted(own.items())}
            found.append(Grid(base, cells))
    return tuple(found)


def scaling(results: Results, games: Sequence[GameScore], over: Sequence[Aggregate]) -> tuple[ScalingPoint, ...]:
    """Return optimality gaps by width and number of tasks, or mean returns per game where nothing is normalised.

    Empty unless a method was run with several numbers of tasks. A random initialisation is a method with no tasks.
    """
    aggregated = {row.method: row.statistics["optimality_gap"] for row in over}
    points, found = [], grids(results)
    for grid in found:
        for (width, tasks), method in grid.methods().items():
            if aggregated and method in aggregated:
                points.append(ScalingPoint(grid.title, width, tasks, aggregated[method]))
            elif not aggregated:
                for score in (score for score in games if score.method == method):
                    panel = score.env if len(found) == 1 else f"{grid.title}, {score.env}"
                    points.append(ScalingPoint(panel, width, tasks, score.mean))
    return tuple(points)


def grid_cells(
    found: Sequence[Grid], scale: Scale, features: Sequence[FeatureNumbers], games: Sequence[str]
) -> tuple[GridCell, ...]:
    """Return score, loss per task, effective rank and cost of every place of the grids."""
    rows = []
    for grid in found:
        for (width, tasks), cells in grid.cells.items():
            ranks = [one.effective_rank.mean for one in features if one.method == cells[0].method]
            losses = [loss for cell in cells if (loss := final_loss(cell)) is not None]
            seconds = [cell.seconds for cell in cells if cell.seconds is not None]
            rows.append(
                GridCell(
                    method=grid.title,
                    width=width,
                    tasks=tasks,
                    encoders=len(cells),
                    agents=min(len(cell.returns) for cell in cells),
                    score=_score(cells, scale, games),
                    loss=float(np.mean(losses)) if losses else math.nan,
                    effective_rank=float(np.mean(ranks)) if ranks else math.nan,
                    seconds=sum(seconds) / len(seconds) if seconds else math.nan,
                )
            )
    return tuple(rows)


def grid_widths(found: Sequence[Grid], scale: Scale, games: Sequence[str], draws: int) -> tuple[GridWidth, ...]:
    """Return of every width where it stops gaining from tasks; of those with three numbers of tasks, in all games."""
    rows = []
    for grid in found:
        for width in grid.widths:
            cells = {n: _encoders(grid.cells[width, n], scale, games) for n in grid.tasks(width)}
            whole = {number: own for number, own in cells.items() if games and own.keys() == set(games)}
            if len(whole) >= 3:
                stop = saturation(whole, numpy_generator(SEED), draws)
                rows.append(GridWidth(grid.title, width, stop.tasks, stop.gain, stop.beyond, len(games)))
    return tuple(rows)


def _encoders(cells: Sequence[CellResult], scale: Scale, games: Sequence[str]) -> dict[str, NDArray[np.float64]]:
    """Return the normalised scores of encoders by game."""
    own = {env: [float(scale.apply(env, c.returns).mean()) for c in cells if c.env == env] for env in games}
    return {env: np.array(scores) for env, scores in own.items() if scores}


def _score(cells: Sequence[CellResult], scale: Scale, games: Sequence[str]) -> Estimate:
    """Return the mean over games with Student's interval over what encoders of the same seed reach together."""
    scores = _encoders(cells, scale, games)
    if not scores or scores.keys() != set(games):
        return Estimate(math.nan)
    least = min(map(len, scores.values()))
    return mean_interval(np.mean([own[:least] for own in scores.values()], axis=0))


def final_loss(cell: CellResult) -> float | None:
    """Return the mean loss over the last tenth of pretraining, which is a mean over tasks; None where there is none."""
    if cell.kept is not None:
        return cell.loss
    if cell.encoder is None or not Path(cell.encoder, METRICS).is_file():
        return None
    rows = [row for row in read_metrics(Path(cell.encoder)) if "loss" in row]
    if not rows:
        return None
    late = [row["loss"] for row in rows if row["step"] > (1 - LAST) * rows[-1]["step"]]
    return float(np.mean(late))
