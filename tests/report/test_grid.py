"""A method over widths and numbers of tasks: what every place costs and loses, and where a width stops gaining."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from protovalue.files import json_line
from protovalue.report import grid, summary
from protovalue.report.model import FeatureNumbers, Spread
from protovalue.report.page import write_page
from tests.report import fake
from tests.report.test_claims import GAMES, GRID, NARROW, WIDE, grid_cells, results
from tests.report.test_page import Page


def rank(method: str, env: str, mean: float) -> FeatureNumbers:
    return FeatureNumbers(env, method, 3, 64, Spread(mean, mean, mean), Spread(0, 0, 0), None)


def test_every_place_has_its_numbers(tmp_path: Path) -> None:
    """Losses 4, 3, 2, ... per 100 steps: the last tenth of 1,000 steps is step 1,000 alone."""
    rows = [json_line({"step": 100 * i, "time": 0.0, "loss": float(11 - i)}) for i in range(1, 11)]
    (tmp_path / "metrics.jsonl").write_bytes(b"".join(rows))
    cells = [replace(one, encoder=tmp_path if one.tasks else None, seconds=30.0) for one in grid_cells()]
    made = results(cells)
    scale = summary.scale_of(made)
    ranks = [rank(f"PVN, {WIDE}x, 8 tasks", env, mean) for env, mean in zip(GAMES, (10, 20), strict=True)]
    found = {(one.width, one.tasks): one for one in grid.grid_cells(grid.grids(made), scale, ranks, GAMES)}
    assert list(found) == sorted(GRID)
    last = found[WIDE, 8]
    assert (last.encoders, last.agents, last.loss, last.effective_rank, last.seconds) == (6, 2, 1.0, 15, 30)
    assert last.score.point == pytest.approx(0.7)
    assert last.score.has_interval
    none = found[NARROW, 0]
    assert math.isnan(none.loss)
    assert math.isnan(none.effective_rank)
    assert none.score.point == 0


def test_where_a_width_stops() -> None:
    """The wide network rises by two tenths a doubling to the end; the narrow one by one to 2, then 2, 2, 0.5."""
    made = results(grid_cells())
    rows = {row.width: row for row in grid.grid_widths(grid.grids(made), summary.scale_of(made), GAMES, 200)}
    wide, narrow = rows[WIDE], rows[NARROW]
    assert (wide.tasks.point, wide.games, wide.beyond) == (8, 2, None)
    assert wide.gain is not None
    assert wide.gain.point == pytest.approx(0.2)
    assert narrow.tasks.point == 2
    assert narrow.gain is not None
    assert narrow.beyond is not None
    assert (narrow.gain.point, narrow.beyond.point) == pytest.approx((0.1, -0.075))
    few = results(grid_cells([(WIDE, 1), (WIDE, 2), (NARROW, 1), (NARROW, 2)]))
    assert grid.grid_widths(grid.grids(few), summary.scale_of(few), GAMES, 200) == ()
    assert grid.grid_widths(grid.grids(made), summary.scale_of(made), (), 200) == ()


def test_a_place_belongs_to_the_first_of_two_variants() -> None:
    variant = [replace(one, method=f"Max, {one.width}x, {one.tasks} tasks") for one in grid_cells() if one.tasks]
    (first, second) = grid.grids(results([*grid_cells(), *variant]))
    assert (first.title, second.title) == ("PVN", "Max")
    assert {cell.method for cell in first.cells[WIDE, 8]} == {f"PVN, {WIDE}x, 8 tasks"}
    assert first.cells[WIDE, 0] == second.cells[WIDE, 0]  # both start from the random initialisation


def test_the_tables_are_on_the_page(tmp_path: Path) -> None:
    made = results(grid_cells())
    scale = summary.scale_of(made)
    found = grid.grids(made)
    report = replace(
        fake.report(tmp_path),
        grid=grid.grid_cells(found, scale, (), GAMES),
        grid_widths=grid.grid_widths(found, scale, GAMES, 100),
    )
    tables = Page(write_page(report, tmp_path / "page.html")).tables
    assert len(tables["grid-table"]) == 1 + len(GRID)
    assert tables["saturation-table"][2][0]["text"] == f"PVN, {WIDE}x"
    assert [row[-1]["text"] for row in tables["saturation-table"][1:]] != ["", ""]


def test_an_encoder_without_metrics_has_no_loss(tmp_path: Path) -> None:
    cell = replace(grid_cells()[0], encoder=tmp_path)
    assert grid.final_loss(cell) is None
    (tmp_path / "metrics.jsonl").write_bytes(json_line({"step": 1, "time": 0.0, "accuracy": 0.5}))
    assert grid.final_loss(cell) is None
    assert grid.final_loss(replace(cell, encoder=None)) is None
