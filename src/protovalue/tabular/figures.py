"""The pictures of `pvn tabular`: functions on the states of a world, spectra, and distance curves."""

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from protovalue.files import beside
from protovalue.tabular.experiments import RUNS, BySize, Exact, Example, Learned
from protovalue.tabular.gridworlds import Floats, World
from protovalue.tabular.theorem import Descent

DIVERGING = matplotlib.colormaps["RdBu_r"]  # white at zero; red and blue are told apart by colour-blind readers
WALL_COLOUR = "#3b3f46"
INK = "#22262b"
# Okabe and Ito's palette, safe for colour-blind readers; line styles differ as well.
STYLES = {
    "one-hot": ("#0072B2", "-", "o"),
    "random sets": ("#E69F00", "--", "s"),
    "hash": ("#CC79A7", ":", "^"),
    "random network": ("#009E73", "-.", "D"),
    "actions side by side": ("#0072B2", "-", "o"),
    "mean over actions": ("#D55E00", "--", "s"),
}
FONT: Any = {"font.size": 9.5, "axes.titlesize": 10.5, "axes.edgecolor": "#8a8f98", "axes.linewidth": 0.8}


def draw_function(axes: Axes, world: World, values: Floats, limit: float) -> None:
    """Draw a function on the states: colours from -limit to limit with white at zero, walls dark."""
    colours, scale = DIVERGING, Normalize(-limit, limit)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_aspect("equal")
    if world.walls is None:
        edges = np.argwhere(np.triu(world.adjacency.toarray()) > 0)
        if len(edges) <= 2 * world.num_states:  # more would hide the states
            lines = [(world.points[x], world.points[y]) for x, y in edges]
            axes.add_collection(LineCollection(lines, colors="#b9bec6", linewidths=0.8, zorder=1))
        size = min(90.0, 6000 / world.num_states)
        x, y = world.points.T
        axes.scatter(x, y, size, values, cmap=colours, norm=scale, edgecolors=INK, linewidths=0.4, zorder=2)
        axes.invert_yaxis()
        axes.margins(0.08)
        axes.axis("off")
        return
    rows, columns = world.walls.shape
    axes.imshow(np.where(world.walls, 1.0, np.nan), cmap=ListedColormap([WALL_COLOUR]), interpolation="nearest")
    picture = np.full((rows, columns), np.nan)
    picture[~world.walls] = values  # states are numbered in reading order
    axes.imshow(picture, cmap=colours, norm=scale, interpolation="nearest")
    if rows * columns <= 900:
        axes.set_xticks(np.arange(columns + 1) - 0.5, minor=True)
        axes.set_yticks(np.arange(rows + 1) - 0.5, minor=True)
        axes.grid(which="minor", color=WALL_COLOUR, linewidth=0.3, alpha=0.5)
        axes.tick_params(which="minor", length=0)
    for side in axes.spines.values():
        side.set(color=WALL_COLOUR, linewidth=1.5)


def proto_values_figure(world: World, exact: Exact) -> Figure:
    """The first four proto-value functions, each a unit vector over states."""
    count = min(4, exact.proto_values.shape[1])
    figure, panels = _grid_panels(world, 1, count)
    limit = float(np.abs(exact.proto_values[:, :count]).max())
    for i, axes in enumerate(panels):
        draw_function(axes, world, exact.proto_values[:, i], limit)
        axes.set_title(f"$v_{{{i + 1}}}$,  $\\lambda_{{{i + 1}}}$ = {max(0.0, round(exact.eigenvalues[i], 12)):.3g}")
    _colour_bar(figure, panels, -limit, limit, limit, "value (unit vector)")
    return figure


def contrast_figure(world: World, examples: tuple[Example, Example], gamma: float) -> Figure:
    """A one-hot indicator and a random network's, each with its reward and its value function."""
    figure, panels = _grid_panels(world, 1, 4)
    for i, (name, example) in enumerate(zip(("one-hot", "random network"), examples, strict=True)):
        members = int(example.reward.sum())
        states = "1 state" if members == 1 else f"{members} states"
        draw_function(panels[2 * i], world, example.reward, 1.0)
        panels[2 * i].set_title(f"{name}\nreward: 1 on {states}")
        limit = float(example.value.max())
        draw_function(panels[2 * i + 1], world, example.value, limit)
        panels[2 * i + 1].set_title(f"{name}\nvalue, $\\gamma$ = {gamma:g}")
        _colour_bar(figure, [panels[2 * i + 1]], 0.0, limit, limit, "discounted visits")
    return figure


def spectrum_figure(exact: Exact, gamma: float) -> Figure:
    """Singular values of the successor representation and the gap after the d-th."""
    figure, (axes,) = _panels(1)
    values = exact.singular_values
    index = np.arange(1, len(values) + 1)
    axes.plot(index, values, "o", color="#56B4E9", markersize=3, label="all states")
    axes.plot(index[: exact.d], values[: exact.d], "o", color="#0072B2", markersize=6, label=f"first d = {exact.d}")
    axes.axhline(1 / (1 - gamma), color="#8a8f98", linestyle=":", linewidth=1, label=r"$1/(1-\gamma)$")
    axes.set(xscale="log", yscale="log", xlabel="index $i$", ylabel=r"singular value of $\Psi$ [discounted visits]")
    axes.set_title("Spectrum of the successor representation")
    axes.legend(frameon=False)
    _plain_ticks(axes)
    return figure


def claim_figure(by_size: BySize) -> Figure:
    """The weight of the constant vector, and what it does to the exact minimiser and to gradient descent."""
    figure, panels = _panels(3)
    left, middle, right = panels
    left.plot(by_size.sizes, by_size.weights, "o-", color="#0072B2", markersize=4)
    left.set(xscale="log", yscale="log", xlabel="size of the sets $k$ [states]", ylabel="weight (ratio)")
    left.set_title("Weight of the constant vector")
    _band(middle, by_size.sizes, by_size.angles, "#009E73", "-", "o", f"mean of {by_size.angles.shape[1]} draws")
    middle.set(xscale="log", xlabel="size of the sets $k$ [states]", ylabel="RMS principal angle [degrees]")
    middle.set_ylim(0, None)
    middle.set_title(f"Exact minimiser, {by_size.num_sets} sampled sets")
    middle.legend(frameon=False, loc="lower left")
    starts = by_size.descent_steps.shape[1]
    missing = "; gaps: not reached" if np.isnan(by_size.descent_steps).any() else ""
    for j in range(starts):
        label = f"{starts} random starts{missing}" if j == 0 else None
        right.plot(by_size.sizes, by_size.descent_steps[:, j], "o", color="#D55E00", markersize=4, label=label)
    right.set(xscale="log", xlabel="size of the sets $k$ [states]", ylabel="gradient steps")
    if np.isfinite(by_size.descent_steps).any():
        right.set_yscale("log")
    else:
        right.text(0.5, 0.5, "not reached", transform=right.transAxes, ha="center", color="#59636e")
    right.set_title("Descent to $10^{-6}$ rad, all $k$-subsets")
    right.legend(frameon=False)
    for axes in panels:
        _plain_ticks(axes, y=axes is not middle)
        axes.set_xticks(by_size.sizes, [str(k) for k in by_size.sizes])
    return figure


def theorem_figure(runs: dict[str, list[Descent]], counts: list[int], angles: dict[str, Floats]) -> Figure:
    """Left: gradient descent reaches the singular vectors. Right: what m sampled sets tell of them."""
    figure, (left, right) = _panels(2)
    for name, several in runs.items():
        colour, line, _ = STYLES[name]
        for j, run in enumerate(several):
            label = f"{name} ({len(several)} starts)" if j == 0 else None
            left.plot(run.steps, np.rad2deg(run.angles), line, color=colour, linewidth=1.1, alpha=0.8, label=label)
    left.set(yscale="log", xlabel="gradient step", ylabel="largest principal angle [degrees]")
    left.set_title("Gradient descent on the loss")
    left.legend(frameon=False, loc="lower left")
    for name, values in angles.items():
        _band(right, counts, values, *STYLES[name], name)
    draws = next(iter(angles.values())).shape[1]
    right.set(xscale="log", xlabel="sampled sets $m$", ylabel="RMS principal angle [degrees]", ylim=(0, 90))
    # A power of two just below n would print its number over that of n.
    shown = [str(m) if m <= 0.8 * counts[-1] or m == counts[-1] else "" for m in counts]
    right.set_xticks(counts, shown, rotation=45)
    right.xaxis.set_minor_formatter(NullFormatter())
    right.set_title(f"Exact minimiser for $m$ sets ({draws} draws)")
    right.legend(frameon=False)
    return figure


def learned_figure(curves: dict[str, Learned]) -> Figure:
    """Distance of the learned features over time to the exact subspace and to the minimiser for the same sets."""
    figure, (left, right) = _panels(2, sharey=True)
    for name, curve in curves.items():
        colour, line, marker = STYLES[name]
        steps = [step + 1 for step in curve.steps]
        for axes, values in ((left, curve.to_exact), (right, curve.to_own)):
            _band(axes, steps, values.T, colour, line, "", name, low=0, high=100)
            axes.plot(steps[-1], values[:, -1].mean(), marker, color=colour, markersize=5)
    for axes in (left, right):
        axes.set(xscale="log", xlabel="gradient step + 1", ylim=(0, 90))
    left.set_ylabel("RMS principal angle [degrees]")
    left.set_title("To the exact subspace of all states")
    right.set_title("To the minimiser for the same sets")
    left.legend(frameon=False, loc="lower left", title=f"mean and range of {RUNS} runs")
    return figure


def save(figure: Figure, path: Path) -> None:
    """Write a PNG, trimmed to what is drawn."""
    with beside(path) as new:
        figure.savefig(new, dpi=120, bbox_inches="tight", pad_inches=0.08)


def _grid_panels(world: World, rows: int, columns: int) -> tuple[Figure, list[Axes]]:
    height, width = (1, 1) if world.walls is None else world.walls.shape
    if width > 3 * height:  # a corridor: panels below each other
        rows, columns = columns, rows
    size = 2.5
    tall = size * min(1.6, max(0.3, height / width))
    with matplotlib.rc_context(FONT):
        figure = Figure(figsize=(max(6.0, columns * size + 0.6), rows * (tall + 0.75)), layout="constrained")
        return figure, list(np.ravel(figure.subplots(rows, columns)))


def _panels(count: int, sharey: bool = False) -> tuple[Figure, list[Axes]]:
    with matplotlib.rc_context(FONT):
        figure = Figure(figsize=({1: 5.2, 2: 9.6, 3: 11.4}[count], 3.6), layout="constrained")
        panels = list(np.ravel(figure.subplots(1, count, sharey=sharey)))
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="#e4e6ea", linewidth=0.7)
        axes.set_axisbelow(True)
    return figure, panels


def _colour_bar(figure: Figure, panels: list[Axes], low: float, high: float, limit: float, label: str) -> None:
    """A colour bar for the part of the palette that the values use."""
    mappable = matplotlib.cm.ScalarMappable(Normalize(-limit, limit), DIVERGING)
    bar = figure.colorbar(mappable, ax=panels, shrink=0.8, aspect=18, pad=0.02)
    bar.ax.set_ylim(low, high)
    bar.set_label(label)
    bar.outline.set_linewidth(0.5)


def _band(
    axes: Axes,
    x: list[int],
    values: Floats,
    colour: str,
    line: str,
    marker: str,
    label: str,
    low: float = 10,
    high: float = 90,
) -> None:
    """The mean over the last axis of values (len(x), draws), and a band between two percentiles."""
    axes.plot(x, values.mean(axis=1), line, color=colour, marker=marker, markersize=4, label=label)
    axes.fill_between(x, *np.percentile(values, [low, high], axis=1), color=colour, alpha=0.15, linewidth=0)


def _plain_ticks(axes: Axes, y: bool = True) -> None:
    """Numbers such as 1, 10, 100 on logarithmic axes instead of powers."""
    for axis in (axes.xaxis, axes.yaxis) if y else (axes.xaxis,):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
