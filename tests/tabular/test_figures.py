"""Pictures: every value in its cell, walls apart, zero in the middle of the palette."""

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from protovalue.tabular import figures, gridworlds
from protovalue.tabular.experiments import BySize


def drawn(world: Any, values: Any, limit: float = 2.0) -> Axes:
    axes = Figure().subplots()
    figures.draw_function(axes, world, np.asarray(values, dtype=float), limit)
    return axes


def numbers_of(image: AxesImage) -> np.ndarray:
    found = image.get_array()
    assert isinstance(found, np.ma.MaskedArray)
    return found.filled(np.nan)


def test_grid_values_are_where_their_states_are() -> None:
    world = gridworlds.grid_world(gridworlds.parse_map("..\n.#\n", "corner"), "corner")
    walls, picture = drawn(world, [1.0, -2.0, 0.5]).images
    np.testing.assert_array_equal(numbers_of(picture), [[1.0, -2.0], [0.5, np.nan]])
    np.testing.assert_array_equal(numbers_of(walls), [[np.nan, np.nan], [np.nan, 1.0]])


def test_zero_is_white_and_the_palette_is_symmetric() -> None:
    world = gridworlds.chain(3)
    picture = drawn(world, [-2.0, 0.0, 2.0]).images[1]
    blue, white, red = np.asarray(picture.cmap(picture.norm(np.array([-2.0, 0.0, 2.0]))))[:, :3]
    assert white.min() > 0.95
    assert blue[2] > 2 * blue[0]
    assert red[0] > 2 * red[2]


def test_points_are_drawn_with_their_values() -> None:
    (edges, points) = drawn(gridworlds.ring(6), np.arange(6.0)).collections
    np.testing.assert_array_equal(points.get_array(), np.arange(6.0))
    assert isinstance(edges, LineCollection)
    assert len(edges.get_segments()) == 6
    assert (points.norm.vmin, points.norm.vmax) == (-2.0, 2.0)


def test_a_hairball_of_edges_is_left_out() -> None:
    assert len(drawn(gridworlds.random_mdp(40, np.random.default_rng(0)), np.zeros(40)).collections) == 1


@pytest.mark.parametrize("text", ["..........\n", ".\n" * 10, "...\n...\n"])
def test_any_shape_of_world_can_be_saved(tmp_path: Path, text: str) -> None:
    world = gridworlds.grid_world(gridworlds.parse_map(text, "shape"), "shape")
    figure, panels = figures._grid_panels(world, 1, 4)
    for axes in panels:
        figures.draw_function(axes, world, np.zeros(world.num_states), 1.0)
    figures.save(figure, tmp_path / "picture.png")
    height, width = matplotlib.image.imread(tmp_path / "picture.png").shape[:2]
    assert 0.1 < height / width < 4


@pytest.mark.parametrize(("steps", "said"), [(np.nan, "not reached"), (40.0, None)])
def test_descents_that_never_arrive_are_said_so(steps: Any, said: str | None) -> None:
    sizes = BySize([1, 2], [1.0, 2.0], [0.1, 0.2], 4, np.ones((2, 5)), np.full((2, 3), steps))
    figure = figures.claim_figure(sizes)
    right = figure.axes[2]
    assert [text.get_text() for text in right.texts] == ([said] if said else [])
    figure.canvas.draw()  # an empty logarithmic axis would fail here
