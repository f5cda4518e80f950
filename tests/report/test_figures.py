"""Figures: the numbers are where they belong, colours stay, runs are counted, and files repeat byte for byte."""

import io
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.colors
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from PIL import Image

from protovalue.evaluate.aggregate import Estimate
from protovalue.report import figures, summary
from protovalue.report.cells import CellResult
from protovalue.report.grid import ScalingPoint
from protovalue.report.model import Embedding, Gallery, GridCell, Verdict
from protovalue.report.results import Results

ENVS = ("minatar/breakout", "minatar/space_invaders")
METHODS = (
    "PVN (random network indicators)", "PVN (hash indicators)", "PVN (maximum over the next actions)",
    "Random cumulants", "Self-predictive representations", "Behaviour cloning", "Random initialisation", "DQN",
)  # fmt: skip
FAMILIES = ("pvn", "pvn", "pvn", "cumulants", "spr", "bc", "random", "dqn")


def results(encoders: int = 3, envs: Any = ENVS) -> Results:
    cells = []
    for e, env in enumerate(envs):
        for m, (method, family) in enumerate(zip(METHODS, FAMILIES, strict=True)):
            end = family == "dqn"
            for p in range(1 if end else encoders):
                returns = np.array([1.0, 2.0]) + p + m - 1e-9 * (family == "random") + 10 * e  # DQN is a yardstick
                steps = np.linspace(1_000, 30_000 if not end else 90_000, 30)
                cells.append(
                    CellResult(
                        env,
                        method,
                        1,
                        None,
                        0,
                        None if end else p,
                        (0, 1),
                        returns,
                        10,
                        int(steps[-1]),
                        steps,
                        returns[:, None] * steps / steps[-1],
                        Path("r"),
                        None,
                        None,
                        {"kind": "dqn" if end else "online", "method": family},
                    )
                )
    random_policy = dict.fromkeys(envs, 0.5)
    return Results("r", "R", "dqn", METHODS, tuple(envs), tuple(cells), random_policy=random_policy)


@pytest.fixture(scope="module")
def made() -> Any:
    return results()


@pytest.fixture(scope="module")
def scores(made: Any) -> Any:
    return summary.normalised_scores(made, summary.scale_of(made))[0]


def texts(figure: Any) -> str:
    return " ".join(text.get_text() for text in figure.findobj(matplotlib.text.Text)).replace("\n", " ")


def overlaps(boxes: Any) -> list[Any]:
    """Return pairs of boxes that share an area."""
    return [
        (i, j)
        for i, one in enumerate(boxes)
        for j, other in enumerate(boxes[:i])
        if one.x0 < other.x1 and other.x0 < one.x1 and one.y0 < other.y1 and other.y0 < one.y1
    ]


def test_a_method_keeps_its_colour_and_the_yardstick_is_grey() -> None:
    colours = figures.colours(METHODS, "DQN")
    assert len(set(colours.values())) == len(METHODS)
    assert colours["DQN"] == figures.END_TO_END_COLOUR
    assert figures.colours(METHODS[:3])[METHODS[1]] == colours[METHODS[1]]
    assert all(matplotlib.colors.is_color_like(colour) for colour in colours.values())
    assert set(figures.colours([str(i) for i in range(20)])) == {str(i) for i in range(20)}
    twelve = [f"method {i}" for i in range(12)]
    assert len(set(figures.colours([*twelve, "DQN"], "DQN").values())) == 13


def test_the_bands_of_curves_are_in_the_panel_or_said_to_be_cut() -> None:
    assert figures._with_bands(0.0, 10.0, []) == (0.0, 10.0, False)
    assert figures._with_bands(0.0, 10.0, [-2.0, 14.0]) == (-2.0, 14.0, False)
    assert figures._with_bands(0.0, 10.0, [-2.0, 400.0]) == (-2.0, 15.0, True)
    made = results()
    whole = figures.curves_figure(made, ENVS[0], figures.colours(METHODS, "DQN"))
    # Encoders of a method end at 1.5 + p + m, p = 0, 1, 2: the band is 2 sd / sqrt(3) * 4.303 wide, 2.48 to each side.
    # The highest curve is m = 6, whose band ends at 8.5 + 2.48.
    assert whole.axes[0].get_ylim()[1] > 8.5 + 2.48
    assert "cut" not in texts(whole)
    two = figures.curves_figure(results(encoders=2), ENVS[0], figures.colours(METHODS, "DQN"))
    assert "some are wider than the panel and cut" in texts(two)


def test_a_name_with_dollars_is_drawn_as_it_is(tmp_path: Path) -> None:
    named = Results("r", "R", "none", (r"a $\foo$ b",), ENVS[:1], tuple(
        replace(cell, method=r"a $\foo$ b") for cell in results(envs=ENVS[:1]).cells if cell.method == METHODS[0]
    ))  # fmt: skip
    figure = figures.curves_figure(named, ENVS[0], figures.colours(named.methods))
    figures.save(figure, tmp_path, "curves")
    assert r"a $\foo$ b" in texts(figure)


def test_runs_are_counted(made: Any) -> None:
    assert figures.stands_on(made.cells) == (
        "3 encoders \N{MULTIPLICATION SIGN} 2 agents per game and method, 2 end-to-end agents per game (DQN)"
    )
    fewer = [cell for cell in made.cells if cell.env == ENVS[0] or cell.pretraining_seed == 0]
    assert figures.stands_on(fewer).startswith("1 to 3 encoders")
    assert figures.stands_on(made.cells[:1]).startswith("1 encoder \N{MULTIPLICATION SIGN} 2 agents")


def bars_of(axes: Axes) -> list[Rectangle]:
    bars = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    assert len(bars) == len(axes.patches)
    return bars


def test_aggregates_are_drawn_at_their_values(made: Any, scores: Any) -> None:
    over = summary.over_games(scores, 100)
    figure = figures.aggregates_figure(over, figures.colours(METHODS, "DQN"), "The scale", "3 encoders", 100)
    assert [axes.get_title() for axes in figure.axes] == ["Median", "IQM", "Mean", "Optimality gap"]
    drawn = sorted(np.asarray(line.get_xdata())[0] for line in figure.axes[1].lines)
    assert drawn == sorted(row.statistics["iqm"].point for row in over)
    bars = sorted((bar.get_x(), bar.get_x() + bar.get_width()) for bar in bars_of(figure.axes[1]))
    expected = sorted((row.statistics["iqm"].low, row.statistics["iqm"].high) for row in over)
    np.testing.assert_allclose(bars, expected)
    names = [label.get_text().replace("\n", " ") for label in figure.axes[0].get_yticklabels()]
    ordered = [row.method for row in sorted(over, key=lambda row: row.statistics["iqm"].point)]
    assert names == ordered
    assert "The scale. 2 games; 3 encoders" in texts(figure)


def test_eight_long_names_do_not_overlap(made: Any, scores: Any) -> None:
    over = summary.over_games(scores, 100)
    figure = figures.aggregates_figure(over, figures.colours(METHODS, "DQN"), "The scale", "3 encoders", 100)
    figure.draw_without_rendering()
    axes = figure.axes[0]
    names = [label.get_window_extent() for label in axes.get_yticklabels()]
    assert len(names) == 8
    assert overlaps(names) == []
    assert min(box.x0 for box in names) >= 0
    assert max(box.x1 for box in names) <= axes.get_window_extent().x0
    for panel in figure.axes:
        low, high = panel.get_xlim()
        shown = [tick for tick in panel.xaxis.get_major_ticks() if low <= tick.get_loc() <= high]
        assert len(shown) >= 2
        assert overlaps([tick.label1.get_window_extent() for tick in shown]) == []


def test_one_encoder_has_no_interval_and_is_still_drawn() -> None:
    made = results(encoders=1)
    scores = summary.normalised_scores(made, summary.scale_of(made))[0]
    over = summary.over_games(scores, 100)
    figure = figures.aggregates_figure(over, figures.colours(METHODS, "DQN"), "", "1 encoder", 100)
    assert len(figure.axes[0].lines) == 8
    assert len(figure.axes[0].patches) == 1  # DQN's two agents


def test_games_show_means_intervals_and_encoders(made: Any) -> None:
    games = summary.per_game(made, summary.scale_of(made))
    figure = figures.games_figure(made, games, figures.colours(METHODS, "DQN"))
    first = figure.axes[0]
    assert first.get_title() == "Breakout"
    widths = [bar.get_width() for bar in bars_of(first)]
    assert widths == [score.mean.point for score in reversed(games) if score.env == ENVS[0]]
    dots = [np.asarray(line.get_xdata()) for line in first.lines if line.get_marker() == "o"]
    np.testing.assert_allclose(dots[-1], [1.5, 2.5, 3.5])  # the first method's three encoders
    assert "3 encoders" in texts(figure)


def test_a_method_without_a_run_is_said_so(made: Any) -> None:
    kept = tuple(cell for cell in made.cells if (cell.method, cell.env) != (METHODS[0], ENVS[1]))
    fewer = Results("r", "R", "none", METHODS, ENVS, kept)
    games = summary.per_game(fewer, summary.scale_of(fewer))
    assert "no run" in texts(figures.games_figure(fewer, games, figures.colours(METHODS, "DQN")))


def test_curves_have_lines_bands_and_levels(made: Any) -> None:
    figure = figures.curves_figure(made, ENVS[0], figures.colours(METHODS, "DQN"), ("Behaviour cloning",))
    (axes,) = figure.axes
    level = {"Behaviour cloning": 7.5, "DQN": 8.5}  # means of 1.5 + p + m over encoders p, and over DQN's agents
    flat = [line for line in axes.lines if len(np.asarray(line.get_xdata())) == 2]
    assert sorted(np.asarray(line.get_ydata())[0] for line in flat) == sorted(level.values())
    assert len(axes.lines) == 8
    assert len(axes.collections) == 6
    assert axes.get_xlim() == (0, 30_000)  # not the 90,000 of the end-to-end agents
    shown = texts(figure)
    assert "Behaviour cloning: evaluation after 30,000 steps" in shown
    assert "DQN: evaluation after 90,000 steps" in shown
    assert "3 encoders" in shown
    assert "Student" in shown


def test_a_curve_of_one_point_is_a_mark() -> None:
    """Runs that wrote one line into their logs: a line of one point would be empty axes."""
    many = results(envs=ENVS[:1])
    cells = tuple(replace(cell, curve_steps=cell.curve_steps[-1:], curve=cell.curve[:, -1:]) for cell in many.cells)
    one = replace(many, cells=cells)
    figure = figures.curves_figure(one, ENVS[0], figures.colours(METHODS, "DQN"), ("Behaviour cloning",))
    (axes,) = figure.axes
    marks = [line for line in axes.lines if line.get_marker() in figures.MARKERS]
    # The last point of a method's curve is as high as its encoders' evaluation: 1.5 + p + m, p = 0, 1, 2.
    heights = [np.asarray(mark.get_ydata()).item() for mark in marks]
    assert heights == pytest.approx([2.5 + m for m in (0, 1, 2, 3, 4, 6)])
    assert {np.asarray(mark.get_xdata()).item() for mark in marks} == {30_000}
    legend = [handle.get_marker() for handle in figure.legends[0].legend_handles if isinstance(handle, Line2D)]
    assert [marker for marker in legend if marker in figures.MARKERS] == [mark.get_marker() for mark in marks]


def test_profiles_and_ablations_and_scaling_say_their_runs(made: Any, scores: Any) -> None:
    colours = figures.colours(METHODS, "DQN")
    profile = figures.profile_figure(summary.profiles(scores, 100), colours, "The scale", "3 encoders")
    assert len(profile.axes[0].lines) == 8
    games = summary.per_game(made, summary.scale_of(made))
    bars = summary.ablations(made, games, summary.over_games(scores, 100))
    ablation = figures.ablation_figure(bars, colours, "normalised score", "3 encoders", "Note.")
    assert [axes.get_title() for axes in ablation.axes] == ["Median", "IQM"]
    # the three kinds of PVN and, below them, the random initialisation
    assert [label.get_text() for label in ablation.axes[0].get_yticklabels()] == [
        textwrap.fill(METHODS[i], 26) for i in (6, 2, 1, 0)
    ]
    assert [bar.get_width() for bar in bars_of(ablation.axes[0])] == [
        bars["Median"][METHODS[i]].point for i in (6, 2, 1, 0)
    ]
    # mean return 2.5 + 6 and 12.5 + 6; random actions 0.5, DQN 8.5 and 18.5: scores of 1 in both games
    assert bars["Median"]["Random initialisation"].point == pytest.approx(1.0)
    points = [
        ScalingPoint("PVN", width, tasks, Estimate(1 / (width * tasks), 0.0, 1.0))
        for width in (1, 2)
        for tasks in (50, 10)
    ]
    scaling = figures.scaling_figure(points, "optimality gap", "3 encoders", "Note.")
    np.testing.assert_allclose(np.asarray(scaling.axes[0].lines[1].get_xydata()), [[10, 1 / 20], [50, 1 / 100]])
    axis = scaling.axes[0].xaxis
    assert (axis.get_scale(), axis.get_ticklocs().tolist()) == ("symlog", sorted({point.tasks for point in points}))
    for figure in (profile, ablation, scaling):
        assert "3 encoders" in texts(figure)


def gallery(count: Any) -> Gallery:
    points = np.column_stack([np.linspace(-1, 1, 9), np.linspace(0, 0.5, 9) ** 2])
    embeddings = tuple(Embedding(method, "e", points, 0.25) for method in METHODS[:count])
    return Gallery(ENVS[0], "random actions", 3.0, tuple(range(0, 18, 2)), (b"",) * 9, embeddings)


@pytest.mark.parametrize("count", [1, 3, 8])
def test_mds_pictures_go_from_dark_to_light(count: int) -> None:
    figure = figures.mds_figure(gallery(count), {METHODS[0]: 0.5})
    panels = [axes for axes in figure.axes if axes.get_title() and axes.get_visible()]
    assert len(panels) == count
    dots = panels[0].collections[1]
    np.testing.assert_array_equal(dots.get_array(), range(0, 18, 2))
    figure.draw_without_rendering()
    dark, light = (colour[:3].sum() for colour in np.asarray(dots.get_facecolor())[[0, -1]])
    assert dark < light
    assert panels[0].get_xlabel() == "stress 0.25, smoothness 0.50"
    assert "one episode of random actions, 9 states" in texts(figure)


def test_states_that_are_all_the_same_can_be_drawn() -> None:
    still = Gallery(ENVS[0], "x", 0.0, (0, 1), (b"", b""), (Embedding("PVN", "e", np.zeros((2, 2)), 0.0),))
    figures.mds_figure(still, {"PVN": float("nan")}).draw_without_rendering()


def test_files_repeat_byte_for_byte_and_are_wide_enough(made: Any, tmp_path: Path) -> None:
    for folder in ("a", "b"):
        figure = figures.curves_figure(made, ENVS[0], figures.colours(METHODS, "DQN"), ("Behaviour cloning",))
        png, svg = figures.save(figure, tmp_path / folder, "curves")
        assert (png.name, svg.name) == ("curves.png", "curves.svg")
    for name in ("curves.png", "curves.svg"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    with Image.open(io.BytesIO((tmp_path / "a/curves.png").read_bytes())) as image:
        assert image.width >= 900
    assert b"<svg" in (tmp_path / "a/curves.svg").read_bytes()


def test_drawing_leaves_no_trace_in_global_settings(made: Any) -> None:
    before = dict(matplotlib.rcParams)
    figures.games_figure(made, summary.per_game(made, summary.scale_of(made)), figures.colours(METHODS, "DQN"))
    assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize(
    ("env", "title"), [("minatar/space_invaders", "Space Invaders"), ("atari/MsPacman", "MsPacman"), ("x", "X")]
)
def test_games_are_named_as_people_do(env: str, title: str) -> None:
    assert figures.game_title(env) == title


def test_loss_and_rank_against_tasks() -> None:
    """A line for each width in each panel; what was not measured has no point."""
    nan = float("nan")
    places = ((1, 0, nan, 20.0), (1, 10, 0.5, 10.0), (2, 0, nan, 40.0), (2, 10, 0.25, 30.0))
    rows = [GridCell("PVN", w, tasks, 3, 2, Estimate(0.5), loss, rank, 60.0) for w, tasks, loss, rank in places]
    losses, ranks = figures.grid_figure(rows).axes
    assert [np.array(line.get_ydata()).tolist() for line in losses.get_lines()] == [[0.5], [0.25]]
    assert [np.array(line.get_ydata()).tolist() for line in ranks.get_lines()] == [[20.0, 10.0], [40.0, 30.0]]
    assert [np.array(line.get_xdata()).tolist() for line in ranks.get_lines()] == [[0, 10], [0, 10]]
    assert (losses.get_title(), ranks.get_title()) == ("loss per task", "effective rank")


def test_verdicts_at_a_glance() -> None:
    def verdict(claim: str, low: float, high: float) -> Verdict:
        return Verdict(claim, "", "", ("a", "b"), Estimate((low + high) / 2, low, high), 0, "", None)

    columns = {
        "one": [verdict("A", 0.1, 0.3), verdict("B", -0.5, 0.5)],
        "two": [verdict("A", -0.3, -0.1)],
    }
    (axes,) = figures.verdicts_figure(columns).axes
    texts = [text.get_text().replace("\N{MINUS SIGN}", "-") for text in axes.texts]
    assert texts == ["+ 0.20 [0.10, 0.30]", "? 0.00 [-0.50, 0.50]", "x -0.20 [-0.30, -0.10]"]
    assert [text.get_position() for text in axes.texts] == [(0, 0), (0, 1), (1, 0)]
    boxes = [patch.get_facecolor()[:3] for patch in axes.patches]
    assert len(set(boxes)) == 3
    assert [label.get_text() for label in axes.get_yticklabels()] == ["A", "B"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["one", "two"]
