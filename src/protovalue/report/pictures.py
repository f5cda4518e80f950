"""The figures of a report: an entry for each, with its title, what it is drawn of, and how."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from matplotlib.figure import Figure

from protovalue.progress import ProgressBar
from protovalue.report import figures, summary
from protovalue.report.grid import ScalingPoint, scaling
from protovalue.report.model import Aggregate, Array, Estimate, Gallery, GridCell, Picture, Report, Verdict

MANY = 12  # methods, beyond which figures with a colour for each cannot be read
T = TypeVar("T")
Scores = dict[str, dict[str, Array]]
Bars = dict[str, dict[str, Estimate]]


@dataclass(frozen=True)
class FigureEntry(Generic[T]):
    """A figure of the report: what it is called, what it shows and how it is drawn."""

    name: str
    """Of its files; what is drawn game by game has the game behind it."""
    of: Callable[[Report], Sequence[T]]
    """What it is drawn of: one figure for each, and none where there is nothing to show."""
    title: Callable[[Report, T], str]
    caption: Callable[[Report, T], str]
    """How to read it and what it stands on, in one or two sentences."""
    draw: Callable[[Report, T], Figure]
    env: Callable[[T], str] | None = None
    """The game that it is about, where there is one figure for each."""
    coloured: bool = True
    """Whether every method has a colour in it."""

    @property
    def pattern(self) -> str:
        """What its files match, without their endings."""
        return f"{self.name}-*" if self.env else self.name


def draw_all(report: Report, folder: Path, quiet: bool) -> tuple[Picture, ...]:
    """Draw all figures that a report allows, and write them into a folder."""
    few = len(report.results.methods) <= MANY
    tasks = [(entry, one) for entry in FIGURES if few or not entry.coloured for one in entry.of(report)]
    pictures = []
    with ProgressBar("figures", len(tasks), "figures", quiet=quiet) as bar:
        for entry, one in tasks:
            env = entry.env(one) if entry.env else None
            name = entry.name if env is None else f"{entry.name}-{_file(env)}"
            png, svg = figures.save(entry.draw(report, one), folder, name)
            title, caption = entry.title(report, one), entry.caption(report, one)
            pictures.append(Picture(entry.name, name, title, caption, png, svg, env))
            bar.advance(1)
    return tuple(pictures)


def _file(env: str) -> str:
    """Name an environment in the name of a file."""
    return "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in env)


def _normalised_runs(report: Report) -> str:
    return figures.stands_on([cell for cell in report.results.cells if cell.env in report.scores[cell.method]])


def _how(report: Report) -> str:
    """Say which intervals are shown: over games, or of single ones."""
    return "bootstrap of encoders" if report.aggregates else "Student, over encoders"


def _scaling_label(report: Report) -> str:
    return "optimality gap" if report.aggregates else "mean return"


def _draw_scaling(report: Report, points: Sequence[ScalingPoint]) -> Figure:
    own = [cell for cell in report.results.cells if cell.method != report.results.end_to_end]
    note = f"Bands: 95% intervals ({_how(report)})."
    return figures.scaling_figure(points, _scaling_label(report), figures.stands_on(own), note)


def _ablation_unit(report: Report) -> str:
    return "normalised score" if report.aggregates else "mean return"


def _draw_ablations(report: Report, bars: Bars) -> Figure:
    variants = {method for panel in bars.values() for method in panel}
    own = [cell for cell in report.results.cells if cell.method in variants]
    named = bars if report.aggregates else {figures.game_title(env): panel for env, panel in bars.items()}
    note = f"Lines: 95% intervals ({_how(report)})."
    return figures.ablation_figure(named, report.colours, _ablation_unit(report), figures.stands_on(own), note)


def _draw_mds(report: Report, gallery: Gallery) -> Figure:
    smooth = {one.method: one.smoothness.mean for one in report.features if one.env == gallery.env}
    return figures.mds_figure(gallery, smooth)


AGGREGATES: FigureEntry[tuple[Aggregate, ...]] = FigureEntry(
    name="aggregates",
    of=lambda report: [report.aggregates] if report.aggregates else [],
    title=lambda report, rows: "Normalised scores over games",
    caption=lambda report, rows: (
        "The line is the value, the bar its 95% interval: resampled encoders, and agents within them. "
        f"{report.scale}. {_normalised_runs(report)}."
    ),
    draw=lambda report, rows: figures.aggregates_figure(
        rows, report.colours, report.scale, _normalised_runs(report), report.draws
    ),
)

PROFILE: FigureEntry[Scores] = FigureEntry(
    name="profile",
    of=lambda report: [{m: dict(games) for m, games in report.scores.items()}] if report.aggregates else [],
    title=lambda report, scores: "Performance profiles",
    caption=lambda report, scores: (
        "Which share of the runs scores more than the number on the axis; higher is better everywhere. "
        "Bands are pointwise 95% intervals."
    ),
    draw=lambda report, scores: figures.profile_figure(
        summary.profiles(scores, report.draws), report.colours, report.scale, _normalised_runs(report)
    ),
)

SCALING: FigureEntry[tuple[ScalingPoint, ...]] = FigureEntry(
    name="scaling",
    of=lambda report: [points for points in [scaling(report.results, report.per_game, report.aggregates)] if points],
    title=lambda report, points: f"{_scaling_label(report).capitalize()} against the number of tasks",
    caption=lambda report, points: (
        f"A line for each width of the encoder. {'Lower' if report.aggregates else 'Higher'} is better; bands are 95% "
        "intervals. No tasks are a random initialisation."
    ),
    draw=_draw_scaling,
    coloured=False,
)

GRID: FigureEntry[tuple[GridCell, ...]] = FigureEntry(
    name="grid",
    of=lambda report: [report.grid] if report.grid else [],
    title=lambda report, rows: "Loss and rank against the number of tasks",
    caption=lambda report, rows: (
        "Loss per task at the end of pretraining and effective rank of the features, means over games and encoders, "
        "a line for each width of the encoder."
    ),
    draw=lambda report, rows: figures.grid_figure(rows),
    coloured=False,
)

CLAIMS: FigureEntry[tuple[Verdict, ...]] = FigureEntry(
    name="claims",
    of=lambda report: [report.verdicts] if report.verdicts else [],
    title=lambda report, rows: "The paper's claims at a glance",
    caption=lambda report, rows: (
        "Differences with 95% intervals: blue holds here, orange does not, grey cannot be told."
    ),
    draw=lambda report, rows: figures.verdicts_figure({report.results.name: rows}),
    coloured=False,
)

ABLATIONS: FigureEntry[Bars] = FigureEntry(
    name="ablations",
    of=lambda report: [
        bars for bars in [summary.ablations(report.results, report.per_game, report.aggregates)] if bars
    ],
    title=lambda report, bars: "Variants of a method",
    caption=lambda report, bars: (
        "The same method with other settings and, where there is one, the random initialisation of the same "
        f"network: {_ablation_unit(report)}, with 95% intervals."
    ),
    draw=_draw_ablations,
)

GAMES: FigureEntry[Report] = FigureEntry(
    name="games",
    of=lambda report: [report],
    title=lambda report, _: "Returns per game",
    caption=lambda report, _: (
        "Mean evaluation return. Lines are Student's 95% intervals over encoders, dots the means of encoders."
    ),
    draw=lambda report, _: figures.games_figure(report.results, report.per_game, report.colours),
)

CURVES: FigureEntry[str] = FigureEntry(
    name="curves",
    of=lambda report: summary.trained(report.results),
    title=lambda report, env: f"Training in {env}",
    caption=lambda report, env: (
        "Return of the training episodes. Bands are Student's 95% intervals over encoders; horizontal lines are "
        "evaluation scores."
    ),
    draw=lambda report, env: figures.curves_figure(
        report.results, env, report.colours, summary.cloning(report.results)
    ),
    env=lambda env: env,
)

MDS: FigureEntry[Gallery] = FigureEntry(
    name="mds",
    of=lambda report: report.galleries,
    title=lambda report, gallery: f"Features along one episode of {gallery.env}",
    caption=lambda report, gallery: (
        "Multidimensional scaling of the features, dark at the start and light at the end. Smoothness is the mean over "
        "encoders: 1 means that the next state is no nearer than any other."
    ),
    draw=_draw_mds,
    env=lambda gallery: gallery.env,
)

FIGURES: tuple[FigureEntry[Any], ...] = (
    AGGREGATES, PROFILE, CLAIMS, SCALING, GRID, ABLATIONS, GAMES, CURVES, MDS,
)  # fmt: skip
"""All figures, in the order of the page."""
