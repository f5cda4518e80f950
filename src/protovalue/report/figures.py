"""The figures of a report: every one says what it stands on, has units, and gives a method the same colour."""

import io
import math
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import Normalize, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator

from protovalue.evaluate.aggregate import LESS_IS_BETTER, Profile
from protovalue.files import make_folder, write_atomic
from protovalue.report.cells import CellResult
from protovalue.report.claims import in_order
from protovalue.report.grid import ScalingPoint
from protovalue.report.model import (
    STATISTIC_TITLES,
    STATISTICS,
    Aggregate,
    Estimate,
    Gallery,
    GameScore,
    GridCell,
    Verdict,
)
from protovalue.report.numbers import MINUS, TIMES, fixed
from protovalue.report.results import Results
from protovalue.report.summary import training_curve

# Okabe and Ito's palette, safe for colour-blind readers, without the yellow that white paper swallows.
# Colours of Paul Tol's follow, so that there are as many as methods in a figure.
PALETTE = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#882255", "#999933", "#332288", "#661100",
    "#44AA99", "#BBBBBB",
)  # fmt: skip
END_TO_END_COLOUR = "#3b3f46"
# The colour and the sign of what holds, what does not, and what cannot be told.
VERDICTS = {True: ("#0072B2", "+"), False: ("#D55E00", "x"), None: ("#8a8f98", "?")}
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
LINES: tuple[Any, ...] = ("-", "--", "-.", (0, (5, 1, 1, 1, 1, 1)))
TAU = "\N{GREEK SMALL LETTER TAU}"
INK, GREY, GRID = "#22262b", "#59636e", "#e4e6ea"
STYLE: Any = {
    "font.size": 10.5,
    "axes.titlesize": 11.5,
    "axes.titleweight": "bold",
    "axes.edgecolor": "#8a8f98",
    "axes.linewidth": 0.8,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "axes.unicode_minus": True,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "text.parse_math": False,  # a method may be called anything, "$" included
}
WIDTH = 10.0  # inches; at DPI this is 1,200 pixels
DPI = 120
POINTS = 50  # of a training curve
P = ParamSpec("P")


def colours(methods: Sequence[str], end_to_end: str | None = None) -> dict[str, str]:
    """Return one colour per method, by its place in the report; the end-to-end yardstick is always dark grey."""
    others = [method for method in methods if method != end_to_end]
    found = {method: PALETTE[i % len(PALETTE)] for i, method in enumerate(others)}
    return {method: found.get(method, END_TO_END_COLOUR) for method in methods}


def save(figure: Figure, folder: Path, name: str) -> tuple[Path, Path]:
    """Write NAME.png and NAME.svg; the same figure gives the same bytes."""
    make_folder(folder)
    paths = folder / f"{name}.png", folder / f"{name}.svg"
    figure.draw_without_rendering()  # lays the figure out, once for both files
    figure.set_layout_engine("none")
    with matplotlib.rc_context({"svg.hashsalt": "protovalue"}):
        for path, metadata in zip(paths, ({"Software": None}, {"Date": None, "Creator": None}), strict=True):
            buffer = io.BytesIO()
            kind = path.suffix[1:]
            figure.savefig(buffer, format=kind, dpi=DPI, bbox_inches="tight", pad_inches=0.1, metadata=metadata)
            write_atomic(path, buffer.getvalue())
    return paths


def stands_on(cells: Sequence[CellResult]) -> str:
    """Say how many runs `cells` are, such as "3 encoders x 3 agents per game"; end-to-end agents apart."""
    parts = []
    for end_to_end in (False, True):
        own = [cell for cell in cells if (cell.settings.get("kind") == "dqn") == end_to_end]
        if not own:
            continue
        groups: dict[tuple[str, str], list[CellResult]] = {}
        for cell in own:
            groups.setdefault((cell.method, cell.env), []).append(cell)
        if end_to_end:
            agents = [sum(len(cell.seeds) for cell in group) for group in groups.values()]
            parts.append(f"{_count(agents, 'end-to-end agent')} per game ({own[0].method})")
        else:
            encoders = _count([len(group) for group in groups.values()], "encoder")
            parts.append(f"{encoders} {TIMES} {_count([len(cell.seeds) for cell in own], 'agent')} per game and method")
    return ", ".join(parts)


def _styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Draw in the report's style without touching anybody else's."""

    @wraps(draw)
    def styled(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with matplotlib.rc_context(STYLE):
            return draw(*args, **kwargs)

    return styled


@_styled
def aggregates_figure(
    aggregates: Sequence[Aggregate], colour: Mapping[str, str], score: str, runs: str, draws: int
) -> Figure:
    """Median, IQM, mean and optimality gap of every method with 95% bootstrap intervals, best method at the top."""
    rows = sorted(aggregates, key=lambda row: row.statistics["iqm"].point)
    figure, panels = _panels(1, len(STATISTICS), 1.5 + 0.46 * max(len(rows), 2), sharey=True)
    for axes, name in zip(panels, STATISTICS, strict=True):
        for y, row in enumerate(rows):
            estimate, shade = row.statistics[name], colour[row.method]
            if np.isfinite(estimate.low):
                axes.barh(y, estimate.high - estimate.low, 0.62, estimate.low, color=_tint(shade, 0.4), linewidth=0)
            axes.plot([estimate.point] * 2, [y - 0.31, y + 0.31], color=shade, linewidth=2.4, solid_capstyle="butt")
        better = "lower is better" if name in LESS_IS_BETTER else "higher is better"
        axes.set_title(STATISTIC_TITLES[name])
        axes.set_xlabel(better, color=GREY, fontsize=9.5)
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.grid(axis="y", visible=False)
        axes.tick_params(axis="y", length=0)
        axes.use_sticky_edges = False
        axes.margins(x=0.06)
    _name_rows(panels[0], [row.method for row in rows])
    envs = {row.envs for row in rows}
    games = _count(list(envs), "game")
    _foot(figure, f"{score}. {games}; {runs}. Bars: 95% intervals, bootstrap of encoders ({draws:,} draws).")
    return figure


@_styled
def profile_figure(profiles: Mapping[str, Profile], colour: Mapping[str, str], score: str, runs: str) -> Figure:
    """Performance profiles: the share of runs above a normalised score, for every score."""
    figure, (axes,) = _panels(1, 1, 4.4, width=8.0)
    for i, (method, profile) in enumerate(profiles.items()):
        axes.plot(profile.taus, profile.share, color=colour[method], linestyle=LINES[i % len(LINES)], linewidth=1.9)
        axes.fill_between(profile.taus, profile.low, profile.high, color=colour[method], alpha=0.16, linewidth=0)
    axes.set(xlabel=f"normalised score {TAU}", ylabel=f"share of runs with score > {TAU}", ylim=(-0.02, 1.02))
    axes.margins(x=0)
    axes.set_title("Performance profiles")
    handles = [
        Line2D([], [], color=colour[method], linestyle=LINES[i % len(LINES)], linewidth=1.9, label=_wrapped(method, 32))
        for i, method in enumerate(profiles)
    ]
    _legend(figure, handles)
    _foot(figure, f"{score}. {runs}. Bands: 95%, bootstrap of encoders.")
    return figure


@_styled
def games_figure(results: Results, per_game: Sequence[GameScore], colour: Mapping[str, str]) -> Figure:
    """Mean return of every method in every game, with the encoders it stands on."""
    envs, methods = results.envs, results.methods
    columns = min(len(envs), 3 if len(envs) <= 9 else 6)
    rows = -(-len(envs) // columns)
    named = len(envs) <= 9  # otherwise colours alone say which bar is whose
    tall = (0.9 + 0.42 * len(methods)) if named else 2.0
    figure, panels = _panels(rows, columns, rows * tall + 0.7, sharey=True)
    table, returns = {(score.env, score.method): score for score in per_game}, results.scores()
    shown = list(reversed(methods))
    for axes, env in zip(panels, envs, strict=False):
        for y, method in enumerate(shown):
            score = table.get((env, method))
            if score is None:
                axes.annotate("no run", (0, y), (3, 0), textcoords="offset points", va="center", color=GREY, fontsize=9)
                continue
            axes.barh(y, score.mean.point, 0.64, color=_tint(colour[method], 0.75), linewidth=0)
            if np.isfinite(score.mean.low):
                axes.plot([score.mean.low, score.mean.high], [y, y], color=INK, linewidth=1.5, zorder=3)
            each = returns[method][env].mean(axis=1)
            axes.plot(each, np.full(len(each), y + 0.2), "o", color=INK, markersize=2.6, alpha=0.6, zorder=4)
        axes.axvline(0, color="#8a8f98", linewidth=0.8)
        if env in results.random_policy:
            axes.axvline(results.random_policy[env], color=GREY, linestyle=":", linewidth=1.3)
        axes.set_title(game_title(env))
        axes.set_xlabel("mean return" if len(envs) <= 9 else "", fontsize=9.5)
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.grid(axis="y", visible=False)
        axes.tick_params(axis="y", length=0)
    for axes in panels[len(envs) :]:
        axes.set_visible(False)
    if named:
        for axes in panels[::columns]:
            _name_rows(axes, shown)
    else:
        for axes in panels:
            axes.set_yticks([])
        patches = [Line2D([], [], color=colour[m], linewidth=7, label=_wrapped(m, 32)) for m in methods]
        _legend(figure, patches)
    dotted = " Dotted: uniformly random actions." if results.random_policy else ""
    _foot(
        figure,
        f"{_sentence(stands_on(results.cells))}. Lines: 95% Student intervals over encoders; dots: encoders.{dotted}",
    )
    return figure


@_styled
def curves_figure(results: Results, env: str, colour: Mapping[str, str], cloning: Sequence[str] = ()) -> Figure:
    """Return over training in one game; methods in `cloning`, and agents trained longer, are horizontal lines."""
    cells = [cell for cell in results.cells if cell.env == env]
    end = results.end_to_end
    frozen = [cell.steps for cell in cells if cell.method != end]
    longest = max(frozen or [cell.steps for cell in cells])
    figure, (axes,) = _panels(1, 1, 4.6, width=8.6)
    handles, extent, bands = [], [0.0], []
    for i, method in enumerate(results.methods):
        own = results.of(method, env)
        if not own:
            continue
        shade = colour[method]
        level = float(np.concatenate([cell.returns for cell in own]).mean())
        if method in cloning or (method == end and own[0].steps > longest):
            dashes = (0, (6, 3)) if method in cloning else (0, (1.5, 1.8))
            said = f"{method}: evaluation after {own[0].steps:,} steps"
            axes.axhline(level, color=shade, linestyle=dashes, linewidth=1.8)
            handles.append(Line2D([], [], color=shade, linestyle=dashes, linewidth=1.8, label=_wrapped(said, 34)))
            extent.append(level)
            continue
        curve = training_curve(own, POINTS, separate=method == end)
        if curve is None:
            continue
        line = LINES[(i // len(PALETTE)) % len(LINES)]
        label = _wrapped(method, 34)
        if len(curve.steps) == 1:  # a line of one point would be nothing; intervals would lie on each other
            marker = MARKERS[i % len(MARKERS)]
            axes.plot(curve.steps, curve.mean, color=shade, marker=marker, markersize=7, clip_on=False, zorder=3)
            handles.append(Line2D([], [], color=shade, linestyle="", marker=marker, markersize=7, label=label))
        else:
            axes.plot(curve.steps, curve.mean, color=shade, linestyle=line, linewidth=1.9)
            axes.fill_between(curve.steps, curve.low, curve.high, color=shade, alpha=0.16, linewidth=0)
            handles.append(Line2D([], [], color=shade, linestyle=line, linewidth=1.9, label=label))
            bands += [float(edge) for edge in (*curve.low, *curve.high) if np.isfinite(edge)]
        extent += [curve.lowest, curve.highest]
    axes.set_xlim(0, longest)
    low, high, cut = _with_bands(min(extent), max(extent), bands)
    axes.set_ylim(low - 0.04 * (high - low), high + 0.06 * (high - low) or 1.0)
    axes.xaxis.set_major_formatter(FuncFormatter(_thousands))
    axes.set(xlabel="agent steps", ylabel="return per episode, in training")
    axes.set_title(game_title(env))
    _legend(figure, handles)
    _foot(
        figure,
        f"{_sentence(stands_on(cells))}. Points: means over the episodes since the point before. "
        f"Bands: 95% Student intervals over encoders{'; some are wider than the panel and cut' if cut else ''}.",
    )
    return figure


def _with_bands(low: float, high: float, bands: Sequence[float]) -> tuple[float, float, bool]:
    """Widen the range of lines to that of their bands, but not so far that the lines have less than half of it."""
    room = 0.5 * (high - low)
    lowest, highest = min([low, *bands]), max([high, *bands])
    return max(lowest, low - room), min(highest, high + room), lowest < low - room or highest > high + room


@_styled
def scaling_figure(points: Sequence[ScalingPoint], ylabel: str, runs: str, note: str) -> Figure:
    """A number against the number of tasks, a line per width; one panel per environment that the points name."""
    panels_of = list(dict.fromkeys(point.panel for point in points))
    columns = min(len(panels_of), 3)
    rows = -(-len(panels_of) // columns)
    figure, panels = _panels(rows, columns, 0.9 + 3.2 * rows, width=8.0 if columns == 1 else WIDTH)
    widths = sorted({point.width for point in points})
    shades = _shades(widths)
    for axes, panel in zip(panels, panels_of, strict=False):
        for i, width in enumerate(widths):
            own = sorted((p for p in points if p.panel == panel and p.width == width), key=lambda p: p.tasks)
            tasks = [point.tasks for point in own]
            axes.plot(
                tasks, [p.estimate.point for p in own], color=shades[width], marker=MARKERS[i % len(MARKERS)],
                markersize=5.5, linewidth=1.9,
            )  # fmt: skip
            low, high = ([getattr(p.estimate, side) for p in own] for side in ("low", "high"))
            axes.fill_between(tasks, low, high, color=shades[width], alpha=0.16, linewidth=0)
        levels = [p.estimate.point for p in points if p.panel == panel]
        room = 0.3 * (max(levels) - min(levels)) or 0.1
        axes.set_ylim(min(levels) - room, max(levels) + room)  # wider bands are cut: lines are what is compared
        axes.set(ylabel=ylabel, title=game_title(panel))
        _tasks_axis(axes, {point.tasks for point in points})
    for axes in panels[len(panels_of) :]:
        axes.set_visible(False)
    _width_legend(figure, widths, shades)
    _foot(figure, f"{note} {runs}.")
    return figure


def _tasks_axis(axes: Axes, tasks: Collection[int]) -> None:
    """Draw numbers of tasks by their logarithm, none beside one, with a mark at each that was run."""
    axes.set_xscale("symlog", base=2, linthresh=1)
    axes.set_xticks(sorted(tasks))
    axes.set_xlim(-0.3 if 0 in tasks else 0.8 * min(tasks), 1.25 * max(tasks))
    axes.minorticks_off()
    axes.xaxis.set_major_formatter(FuncFormatter(_thousands))
    axes.set_xlabel("number of tasks m")


def _shades(widths: Sequence[float]) -> dict[float, Any]:
    """Return a colour for each width, dark for the narrowest."""
    last = max(len(widths) - 1, 1)
    return {width: matplotlib.colormaps["viridis"](0.85 * i / last) for i, width in enumerate(widths)}


def _width_legend(figure: Figure, widths: Sequence[float], shades: Mapping[float, Any]) -> None:
    handles = [
        Line2D([], [], color=shades[w], marker=MARKERS[i % len(MARKERS)], linewidth=1.9, label=f"width {w}{TIMES}")
        for i, w in enumerate(widths)
    ]
    _legend(figure, handles)


@_styled
def grid_figure(rows: Sequence[GridCell]) -> Figure:
    """What the paper does not show of its scaling study: loss and effective rank against the number of tasks."""
    figure, panels = _panels(1, 2, 4.0)
    widths = sorted({row.width for row in rows})
    shades = _shades(widths)
    measured: tuple[tuple[str, Callable[[GridCell], float]], ...] = (
        ("loss per task", lambda row: row.loss), ("effective rank", lambda row: row.effective_rank),
    )  # fmt: skip
    for axes, (name, number) in zip(panels, measured, strict=True):
        for i, width in enumerate(widths):
            own = [row for row in rows if row.width == width and math.isfinite(number(row))]
            axes.plot(
                [row.tasks for row in own], [number(row) for row in own], color=shades[width],
                marker=MARKERS[i % len(MARKERS)], markersize=5.5, linewidth=1.9,
            )  # fmt: skip
        axes.set(title=name)
        _tasks_axis(axes, {row.tasks for row in rows})
    _width_legend(figure, widths, shades)
    _foot(figure, "Means over games and encoders. The loss is that of the last tenth of pretraining.")
    return figure


@_styled
def verdicts_figure(columns: Mapping[str, Sequence[Verdict]]) -> Figure:
    """All verdicts at a glance: a row for each claim, a column for each study, with the difference and its interval."""
    claims = in_order(one for verdicts in columns.values() for one in verdicts)
    wide = WIDTH * max(1.0, 0.36 + 0.18 * len(columns))  # so that no interval is wider than its column
    figure = Figure(figsize=(wide, 0.9 + 0.44 * len(claims)), layout="constrained")
    axes = figure.subplots()
    for x, verdicts in enumerate(columns.values()):
        for one in verdicts:
            y = claims.index(one.claim)
            shade, sign = VERDICTS[one.holds]
            axes.add_patch(Rectangle((x - 0.48, y - 0.44), 0.96, 0.88, facecolor=_tint(shade, 0.5), linewidth=0))
            found = one.difference
            text = f"{sign} {fixed(found.point, 2)}"
            if found.has_interval:
                text += f" [{fixed(found.low, 2)}, {fixed(found.high, 2)}]"
            axes.text(x, y, text.replace("-", MINUS), ha="center", va="center", fontsize=9.5)
    axes.set_yticks(range(len(claims)), [_wrapped(claim, 44) for claim in claims], color=INK)
    axes.set_xticks(range(len(columns)), [_wrapped(title, 26) for title in columns], color=INK)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.set(xlim=(-0.5, len(columns) - 0.5), ylim=(len(claims) - 0.5, -0.5))
    axes.spines[:].set_visible(False)
    _foot(
        figure,
        "Blue (+): holds here; orange (x): does not hold here; grey (?): cannot be told. Differences with 95% "
        "intervals, in the units of the table.",
    )
    return figure


@_styled
def ablation_figure(
    bars: Mapping[str, Mapping[str, Estimate]], colour: Mapping[str, str], unit: str, runs: str, note: str
) -> Figure:
    """Bars with intervals for variants of a method: one panel per name in `bars`, one bar per method."""
    columns = min(len(bars), 3)
    rows = -(-len(bars) // columns)
    methods = list(dict.fromkeys(method for panel in bars.values() for method in panel))
    figure, panels = _panels(rows, columns, rows * (1.1 + 0.46 * len(methods)) + 0.4, sharey=True)
    shown = list(reversed(methods))
    for axes, (title, panel) in zip(panels, bars.items(), strict=False):
        for y, method in enumerate(shown):
            if method not in panel:
                continue
            estimate = panel[method]
            axes.barh(y, estimate.point, 0.64, color=_tint(colour[method], 0.75), linewidth=0)
            if np.isfinite(estimate.low):
                axes.plot([estimate.low, estimate.high], [y, y], color=INK, linewidth=1.6, zorder=3)
        axes.axvline(0, color="#8a8f98", linewidth=0.8)
        axes.set_title(title)
        axes.set_xlabel(unit)
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.grid(axis="y", visible=False)
        axes.tick_params(axis="y", length=0)
    for axes in panels[len(bars) :]:
        axes.set_visible(False)
    for axes in panels[::columns]:
        _name_rows(axes, shown)
    _foot(figure, f"{note} {runs}.")
    return figure


@_styled
def mds_figure(gallery: Gallery, smoothness: Mapping[str, float]) -> Figure:
    """One trajectory through the features of every method, dark at its start and light at its end."""
    count = len(gallery.embeddings)
    columns = min(count, 4) if count != 6 else 3
    rows = -(-count // columns)
    side = WIDTH / 4
    figure, panels = _panels(rows, columns, rows * (side + 0.62) + 0.5, width=max(columns * side + 0.9, 6.0))
    scale, shades = Normalize(0, max(gallery.steps[-1], 1)), matplotlib.colormaps["viridis"]
    for axes, embedding in zip(panels, gallery.embeddings, strict=False):
        x, y = embedding.points.T
        segments = np.stack([embedding.points[:-1], embedding.points[1:]], axis=1)
        axes.add_collection(LineCollection(list(segments), colors="#b9bec6", linewidths=0.5, zorder=1))
        axes.scatter(x, y, 16, gallery.steps, cmap=shades, norm=scale, linewidths=0, zorder=2)
        middle, size = (
            (embedding.points.max(axis=0) + embedding.points.min(axis=0)) / 2,
            np.ptp(embedding.points, axis=0),
        )
        reach = 0.56 * (size.max() or 1.0)
        left, low = middle - reach
        axes.set(xlim=(left, left + 2 * reach), ylim=(low, low + 2 * reach), xticks=[], yticks=[], aspect="equal")
        axes.grid(visible=False)
        for spine in axes.spines.values():
            spine.set(visible=True, color="#d0d4da")
        axes.set_title(_wrapped(embedding.method, 24), fontsize=10.5)
        measured = smoothness.get(embedding.method)
        said = [f"stress {fixed(embedding.stress, 2)}"]
        if measured is not None and np.isfinite(measured):
            said.append(f"smoothness {fixed(measured, 2)}")
        axes.set_xlabel(", ".join(said), fontsize=9, color=GREY)
    for axes in panels[count:]:
        axes.set_visible(False)
    bar = figure.colorbar(ScalarMappable(scale, shades), ax=panels, shrink=0.75, aspect=30, pad=0.02)
    bar.set_label("step of the episode")
    bar.outline.set_linewidth(0.5)
    _foot(
        figure,
        f"{game_title(gallery.env)}: one episode of {gallery.player}, {len(gallery.steps)} states; one encoder of each "
        f"method, the one with the lowest seed. {gallery.scaling.capitalize()} MDS; each picture has its own scale.",
    )
    return figure


def _panels(
    rows: int, columns: int, height: float, width: float = WIDTH, sharey: bool = False
) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(width, height), layout="constrained")
    panels = list(np.ravel(figure.subplots(rows, columns, sharey=sharey)))
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color=GRID, linewidth=0.7)
        axes.set_axisbelow(True)
    return figure, panels


def _name_rows(axes: Axes, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), [_wrapped(name, 26) for name in names], color=INK)
    axes.set_ylim(-0.6, len(names) - 0.4)


def _legend(figure: Figure, handles: Sequence[Line2D]) -> None:
    """A legend above the panels, in as many columns as its longest name allows; the figure grows by its height."""
    if not handles:
        return
    longest = max(max(len(line) for line in str(handle.get_label()).splitlines()) for handle in handles)
    columns = max(1, int(figure.get_figwidth() / (0.095 * longest + 0.6)))
    columns = min(columns, len(handles))
    columns = -(-len(handles) // -(-len(handles) // columns))  # even rows
    figure.legend(handles=list(handles), loc="outside upper center", ncols=columns, frameon=False, fontsize=10)
    lines = sum(str(handle.get_label()).count("\n") + 1 for handle in handles)
    figure.set_figheight(figure.get_figheight() + 0.21 * -(-lines // columns))


def _foot(figure: Figure, text: str) -> None:
    """What the figure stands on, small, below the panels."""
    wide = int(figure.get_figwidth() * 13.5)
    figure.supxlabel(textwrap.fill(text, wide), x=0.01, ha="left", fontsize=9, color=GREY)


def _tint(colour: str, share: float) -> tuple[float, float, float]:
    """Return a colour mixed with white, opaque, so that no grid line shines through."""
    red, green, blue = (1 - share * (1 - part) for part in to_rgb(colour))
    return red, green, blue


def _wrapped(name: str, width: int) -> str:
    return textwrap.fill(name, width)


def game_title(env: str) -> str:
    """Name a game as people do: minatar/space_invaders is Space Invaders."""
    name = env.partition("/")[2] or env
    return name.replace("_", " ").title() if name.islower() else name


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _count(numbers: Sequence[int], noun: str) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low if low == high else f'{low} to {high}'} {noun}{'' if high == 1 else 's'}"


def _thousands(value: float, _: int) -> str:
    if value >= 1e6:
        return f"{value / 1e6:g}M"
    return f"{value / 1e3:g}k" if value >= 1e3 else f"{value:g}"
