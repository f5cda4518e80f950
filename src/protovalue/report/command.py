"""What `pvn report` runs: read the runs, compute, draw, write tables and the page, print the headline numbers."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from protovalue import __version__
from protovalue.envs.registry import import_module_of, same
from protovalue.errors import UserError
from protovalue.evaluate.aggregate import Estimate, Floats
from protovalue.evaluate.scores import paper_results
from protovalue.files import make_folder, write_json
from protovalue.processes import one_thread
from protovalue.progress import ProgressBar
from protovalue.report import figures, summary, tables
from protovalue.report.cells import THEN, CellResult
from protovalue.report.config import ReportConfig
from protovalue.report.galleries import Looked, look
from protovalue.report.model import (
    STATISTIC_TITLES,
    STATISTICS,
    Aggregate,
    Cost,
    FeatureNumbers,
    GameScore,
    Picture,
    Report,
    Spread,
    Table,
)
from protovalue.report.page import write_page
from protovalue.report.paper import paper_report
from protovalue.report.reading import read_results
from protovalue.report.results import Results
from protovalue.report.summary import Scale

MANY = 12  # methods, beyond which figures with a colour for each cannot be read
PAGE, MDS = "index.html", "mds.json"
# All that a report may write beside its page: what an earlier one left there and a new one does not have is removed.
FILES = (
    MDS,
    *(f"tables/{name}.{end}" for name in ("games", "aggregates", "improvement", "features")
      for end in ("md", "csv", "tex")),
    *(f"figures/{name}.{end}"
      for name in ("aggregates", "profile", "scaling", "ablations", "games", "curves-*", "mds-*")
      for end in ("png", "svg")),
)  # fmt: skip


def report_command(config: ReportConfig) -> None:
    """Make a report and print what it says."""
    if config.runs:
        if config.out.exists() and not config.out.is_dir():
            raise UserError(f"--out: {config.out} is a file, expected a folder")
        results = read_results(config.runs)
        for env in config.env:
            if not any(same(env, one) for one in results.envs):
                raise UserError(f"--env: found {env}, expected an environment of the runs: {', '.join(results.envs)}")
            import_module_of(env)
        report = make_report(results, config)
        page = write_page(report, config.out / PAGE)
        print("\n".join(report.headline))
        for note in report.notes:
            print(f"note: {note}")
        if results.missing:
            print(f"note: {len(results.missing)} missing, named on the page")
        print(f"wrote {page}, {len(report.tables)} tables and {len(report.pictures)} figures beside it")
    if config.paper:
        print(tables.plain(paper_report()), end="")


def make_report(results: Results, config: ReportConfig, quiet: bool = False) -> Report:
    """Compute all that a report says and write its tables and figures; the same runs give the same bytes."""
    with one_thread():
        scale = summary.scale_of(results)
        games = summary.per_game(results, scale)
        scores, left_out = summary.normalised_scores(results, scale)
        over = summary.over_games(scores, config.draws)
        better = summary.improvements(scores, config.draws)
        looked = look(results, config.features, quiet, config.mds)
        config.out.mkdir(parents=True, exist_ok=True)
        colours = figures.colours(results.methods, results.end_to_end)
        notes = [*results.notes, *scale.notes, *left_out, *_about_versions(results.cells), *looked.notes]
        if len(results.methods) > MANY:
            notes.append(f"figures with a colour per method are left out: there are {len(results.methods)} methods")
        drawn = _draw(results, scale, games, scores, over, looked, colours, config, quiet)
    written = [path for picture in drawn for path in (picture.png, picture.svg)]
    written += _write_mds(looked, config.out / MDS)
    listed = tuple(_write_tables(results, scale, over, better, looked.features, config.out / "tables"))
    written += [path for table in listed for path in (table.markdown, table.csv, table.tex)]
    _remove_others(config.out, written)
    return Report(
        results=results,
        colours=colours,
        scale=scale.text,
        per_game=games,
        aggregates=over,
        features=looked.features,
        pictures=tuple(drawn),
        tables=listed,
        galleries=looked.galleries,
        notes=tuple(dict.fromkeys(notes)),
        costs=tuple(Cost(stage, seconds) for stage, seconds in results.stage_seconds.items()),
        improvements=better,
        headline=tuple(_headline(results, games, over, scale)),
        paper={env: found for env in results.envs if (found := paper_results(env))},
        references=summary.references(results),
        details={"protovalue": __version__, "bootstrap draws": config.draws, "bootstrap seed": summary.SEED},
    )


def _draw(
    results: Results,
    scale: Scale,
    games: Sequence[GameScore],
    scores: Mapping[str, Mapping[str, Floats]],
    over: Sequence[Aggregate],
    looked: Looked,
    colours: Mapping[str, str],
    config: ReportConfig,
    quiet: bool,
) -> list[Picture]:
    """Draw all figures that the results allow."""
    pictures: list[Picture] = []
    folder, few = config.out / "figures", len(results.methods) <= MANY
    total = 5 + len(results.envs) + len(looked.galleries)

    def add(figure: Figure, name: str, title: str, caption: str, env: str | None = None) -> None:
        png, svg = figures.save(figure, folder, name)
        pictures.append(Picture(name, title, caption, png, svg, env))

    with ProgressBar("figures", total, "figures", quiet=quiet) as bar:
        if over and few:
            runs = figures.stands_on([cell for cell in results.cells if cell.env in scores[cell.method]])
            add(
                figures.aggregates_figure(over, colours, scale.text, runs, config.draws),
                "aggregates",
                "Normalised scores over games",
                f"The line is the value, the bar its 95% interval: resampled encoders, and agents within them. "
                f"{scale.text}. {runs}.",
            )
            add(
                figures.profile_figure(summary.profiles(scores, config.draws), colours, scale.text, runs),
                "profile",
                "Performance profiles",
                "Which share of the runs scores more than the number on the axis; higher is better everywhere. "
                "Bands are pointwise 95% intervals.",
            )
        bar.advance(2)
        points = summary.scaling(results, games, over)
        if points:
            own = [cell for cell in results.cells if cell.method != results.end_to_end]
            ylabel = "optimality gap" if over else "mean return"
            how = "bootstrap of encoders" if over else "Student, over encoders"
            add(
                figures.scaling_figure(points, ylabel, figures.stands_on(own), f"Bands: 95% intervals ({how})."),
                "scaling",
                f"{ylabel.capitalize()} against the number of tasks",
                f"A line for each width of the encoder. {'Lower' if over else 'Higher'} is better; bands are 95% "
                "intervals. No tasks are a random initialisation.",
            )
        bar.advance(1)
        bars = summary.ablations(results, games, over)
        variants = {method for panel in bars.values() for method in panel}
        if bars and few:
            own = [cell for cell in results.cells if cell.method in variants]
            how = "bootstrap of encoders" if over else "Student, over encoders"
            unit, names = ("normalised score", bars) if over else ("mean return", _game_titles(bars))
            add(
                figures.ablation_figure(names, colours, unit, figures.stands_on(own), f"Lines: 95% intervals ({how})."),
                "ablations",
                "Variants of a method",
                f"The same method with other settings and, where there is one, the random initialisation of the same "
                f"network: {unit}, with 95% intervals.",
            )
        bar.advance(1)
        if few:
            add(
                figures.games_figure(results, games, colours),
                "games",
                "Returns per game",
                "Mean evaluation return. Lines are Student's 95% intervals over encoders, dots the means of encoders.",
            )
        bar.advance(1)
        for env in results.envs:
            if few and any(cell.env == env for cell in results.cells):
                add(
                    figures.curves_figure(results, env, colours, summary.cloning(results)),
                    f"curves-{_file(env)}",
                    f"Training in {env}",
                    "Return of the training episodes. Bands are Student's 95% intervals over encoders; horizontal "
                    "lines are evaluation scores.",
                    env,
                )
            bar.advance(1)
        for gallery in looked.galleries:
            smooth = {one.method: one.smoothness.mean for one in looked.features if one.env == gallery.env}
            if few:
                add(
                    figures.mds_figure(gallery, smooth),
                    f"mds-{_file(gallery.env)}",
                    f"Features along one episode of {gallery.env}",
                    "Multidimensional scaling of the features, dark at the start and light at the end. Smoothness is "
                    "the mean over encoders: 1 means that the next state is no nearer than any other.",
                    gallery.env,
                )
            bar.advance(1)
    return pictures


def _remove_others(out: Path, written: Sequence[Path]) -> None:
    """Remove what an earlier report of other runs left."""
    for pattern in FILES:
        for path in out.glob(pattern):
            if path not in written:
                path.unlink()


def _write_tables(
    results: Results,
    scale: Scale,
    over: Sequence[Aggregate],
    better: Mapping[str, Estimate],
    features: Sequence[FeatureNumbers],
    folder: Path,
) -> Iterator[Table]:
    """Write every table in its three formats."""
    make_folder(folder)
    apart = summary.references(results)
    made = {"games": tables.per_game(results.scores(), apart)}
    if over:
        note = f"{scale.text}. {_games(over)}; 95% intervals by a bootstrap of encoders, and agents within them."
        made["aggregates"] = tables.aggregates({row.method: row.statistics for row in over}, apart, note=note)
    if better:
        made["improvement"] = tables.improvement(over[0].method, better, _games(over))
    if features:
        made["features"] = _feature_table(features)
    for name, table in made.items():
        paths = tables.write_table(table, folder, name)
        yield Table(name, table.title, table.note, paths["md"], paths["csv"], paths["tex"])


def _feature_table(features: Sequence[FeatureNumbers]) -> tables.Table:
    def cell(spread: Spread | None, digits: int, encoders: int) -> tables.Cell:
        if spread is None or spread.mean != spread.mean:
            return tables.Cell(tables.NONE)
        text = tables.number(spread.mean, digits)
        if encoders > 1:
            text += f" ({tables.number(spread.low, digits)} to {tables.number(spread.high, digits)})"
        return tables.Cell(text, spread.mean, spread.low, spread.high)

    rows = tuple(
        (
            tables.Cell(f"{one.env}, {one.method}"),
            tables.Cell(f"{one.encoders}", one.encoders),
            tables.Cell(f"{one.num_features}", one.num_features),
            cell(one.effective_rank, 1, one.encoders),
            cell(one.smoothness, 3, one.encoders),
            cell(one.probe, 3, one.encoders),
        )
        for one in features
    )
    note = (
        "Mean over encoders, in brackets their range. Effective rank and probe on 1,024 states of a random policy; the "
        "probe is the held-out R2 of a ridge regression that reads counts and places of objects from the features. "
        "Smoothness on one episode: distance of consecutive states over that of all pairs; 1 is no smoothness."
    )
    columns = ("Game and method", "Encoders", "Features", "Effective rank", "Smoothness", "Linear probe R2")
    return tables.Table("What the features are like", columns, rows, note)


def _write_mds(looked: Looked, path: Path) -> list[Path]:
    """Write the points of the MDS pictures, for plots of one's own; return the file, if there are any."""
    if not looked.galleries:
        return []
    shown = [
        {
            "env": gallery.env,
            "player": gallery.player,
            "episode_return": gallery.episode_return,
            "steps": list(gallery.steps),
            "methods": [
                {
                    "method": one.method,
                    "encoder": one.encoder,
                    "stress": round(one.stress, 6),
                    "points": one.points.round(6).tolist(),
                }
                for one in gallery.embeddings
            ],
        }
        for gallery in looked.galleries
    ]
    write_json(path, {"format": "protovalue mds", "version": 1, "games": shown})
    return [path]


def _headline(results: Results, games: Sequence[GameScore], over: Sequence[Aggregate], scale: Scale) -> Iterator[str]:
    """The numbers as lines of text: per game, then over games."""
    width = max(len(method) for method in results.methods)
    for env in results.envs:
        own = [score for score in games if score.env == env]
        if own:
            yield f"{env}: mean return [95% interval over encoders]"
        for score in own:
            what = f"{score.encoders} agents" if score.method == results.end_to_end else _runs(score)
            yield f"  {score.method:<{width}}  {_text(score.mean, 2)}  {what}"
    if over:
        yield f"over {_games(over)}: {', '.join(STATISTIC_TITLES[name] for name in STATISTICS)}. {scale.text}."
        for row in over:
            numbers = ", ".join(_text(row.statistics[name], 3) for name in STATISTICS)
            yield f"  {row.method:<{width}}  {numbers}"


def _games(over: Sequence[Aggregate]) -> str:
    return "1 game" if over[0].envs == 1 else f"{over[0].envs} games"


def _text(estimate: Estimate, digits: int) -> str:
    point, low, high = (tables.number(value, digits) for value in (estimate.point, estimate.low, estimate.high))
    return f"{point} [{low}, {high}]" if estimate.has_interval else f"{point} (no interval)"


def _runs(score: GameScore) -> str:
    encoders = "1 encoder" if score.encoders == 1 else f"{score.encoders} encoders"
    return f"{encoders} x {score.agents} agents" if score.agents > 1 else f"{encoders} x 1 agent"


def _about_versions(cells: Sequence[CellResult]) -> Iterator[str]:
    """Say which versions made the runs, if there are several."""
    for name in ("protovalue", "torch", "ale-py", "minatar", "gymnasium"):
        keys = (f"version.{name}", f"encoder.pretrained with {name}")
        texts = {str(cell.settings[key]) for cell in cells for key in keys if key in cell.settings}
        found = sorted({version for text in texts for version in text.split(THEN)})
        if len(found) > 1:
            yield f"the runs were made with several versions of {name}: {', '.join(found)}"


def _game_titles(bars: Mapping[str, Mapping[str, Estimate]]) -> dict[str, Mapping[str, Estimate]]:
    return {figures.game_title(env): panel for env, panel in bars.items()}


def _file(env: str) -> str:
    """Name an environment in the name of a file."""
    return "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in env)
