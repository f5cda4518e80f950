"""What `pvn report` runs: read the runs, compute, draw, write tables and the page, print the headline numbers."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from protovalue import __version__
from protovalue.envs.registry import import_module_of, same
from protovalue.errors import UserError
from protovalue.evaluate.aggregate import Estimate
from protovalue.evaluate.scores import paper_results
from protovalue.files import make_folder, write_json
from protovalue.processes import one_thread
from protovalue.registry import load_code
from protovalue.report import budget, claims, figures, grid, rendering, summary, tables
from protovalue.report.cells import THEN, CellResult
from protovalue.report.claims_page import CLAIMS, write_claims
from protovalue.report.comparing import Subject
from protovalue.report.config import ReportConfig
from protovalue.report.galleries import look
from protovalue.report.model import STATISTIC_TITLES, STATISTICS, Cost, Gallery, GameScore, Report, TableFiles
from protovalue.report.numbers import SCORE_DIGITS, plural, return_digits
from protovalue.report.page import write_page
from protovalue.report.paper import paper_report
from protovalue.report.pictures import FIGURES, MANY, draw_all
from protovalue.report.probes import read_probes
from protovalue.report.reading import read_results
from protovalue.report.results import Results
from protovalue.report.results_file import RESULTS, write_results
from protovalue.report.table import shown
from protovalue.report.yardstick import with_yardstick

PAGE, MDS = "index.html", "mds.json"
# All that a report may write beside its page: what an earlier one left there and a new one does not have is removed.
FILES = (
    MDS,
    CLAIMS,
    RESULTS,
    *(f"tables/{entry.name}.{end}" for entry in tables.IN_FILES for end in ("md", "csv", "tex")),
    *(f"figures/{entry.pattern}.{end}" for entry in FIGURES for end in ("png", "svg")),
)


def report_command(config: ReportConfig) -> None:
    """Make a report and print what it says."""
    if config.runs:
        if config.out.exists() and not config.out.is_dir():
            raise UserError(f"--out: {config.out} is a file, expected a folder")
        results = read_results(config.runs)
        if config.yardstick is not None:
            results = with_yardstick(results, config.yardstick)
        for env in config.env:
            if not any(same(env, one) for one in results.envs):
                raise UserError(f"--env: found {env}, expected an environment of the runs: {', '.join(results.envs)}")
            import_module_of(env)
        for path in config.code:
            load_code(path)
        report = make_report(results, config)
        page = write_page(report, config.out / PAGE)
        print("\n".join(report.headline))
        for note in report.notes:
            print(f"note: {note}")
        if results.missing:
            print(f"note: {len(results.missing)} missing, named on the page")
        print(f"wrote {page}, {len(report.tables)} tables and {len(report.pictures)} figures beside it")
    if config.paper:
        print(rendering.plain(paper_report()), end="")


def make_report(results: Results, config: ReportConfig, quiet: bool = False) -> Report:
    """Compute all that a report says and write its tables and figures; the same runs give the same bytes."""
    with one_thread():
        report = compute(results, config, quiet)
        config.out.mkdir(parents=True, exist_ok=True)
        pictures = draw_all(report, config.out / "figures", quiet)
    written = [path for picture in pictures for path in (picture.png, picture.svg)]
    written += _write_mds(report.galleries, config.out / MDS)
    written += write_claims(report, config.out / CLAIMS)
    written.append(write_results(results, report.features, config.out / RESULTS))
    listed = tuple(_write_tables(report, config.out / "tables"))
    written += [path for table in listed for path in (table.markdown, table.csv, table.tex)]
    _remove_others(config.out, written)
    return replace(report, pictures=pictures, tables=listed, headline=tuple(_headline(report)))


def compute(results: Results, config: ReportConfig, quiet: bool = False) -> Report:
    """Compute all that a report says; nothing is written."""
    scale = summary.scale_of(results)
    scores, left_out = summary.normalised_scores(results, scale)
    probes, about_probes = read_probes(config.probes, results)
    looked = look(results, config.features, quiet, config.mds)
    subject = Subject(results, scale, looked.features)
    grids, games = grid.grids(results), tuple(next(iter(scores.values()), ()))
    notes = [*results.notes, *scale.notes, *left_out, *_about_versions(results.cells), *looked.notes, *about_probes]
    if len(results.methods) > MANY:
        notes.append(f"figures with a colour per method are left out: there are {len(results.methods)} methods")
    notes += [
        f"no training curves of {env}: the logs of its runs have no episode that ended"
        for env in results.envs
        if env in {cell.env for cell in results.cells} and env not in summary.trained(results)
    ]
    paper = {env: found for env in results.envs if (found := paper_results(env))}
    return Report(
        results=results,
        draws=config.draws,
        colours=figures.colours(results.methods, results.end_to_end),
        scale=scale.text,
        per_game=summary.per_game(results, scale),
        scores=scores,
        aggregates=summary.over_games(scores, config.draws),
        features=looked.features,
        galleries=looked.galleries,
        notes=tuple(dict.fromkeys(notes)),
        costs=tuple(Cost(stage, seconds) for stage, seconds in results.stage_seconds.items()),
        verdicts=claims.verdicts(subject),
        contrasts=claims.contrasts(subject),
        grid=grid.grid_cells(grids, scale, looked.features, games),
        grid_widths=grid.grid_widths(grids, scale, games, config.draws),
        probes=tuple(probes),
        improvements=summary.improvements(scores, config.draws),
        paper=paper,
        budgets=budget.budgets(results, paper),
        references=summary.references(results),
        details={"protovalue": __version__, "bootstrap draws": config.draws, "bootstrap seed": summary.SEED},
    )


def _remove_others(out: Path, written: Sequence[Path]) -> None:
    """Remove what an earlier report of other runs left."""
    for pattern in FILES:
        for path in out.glob(pattern):
            if path not in written:
                path.unlink()


def _write_tables(report: Report, folder: Path) -> Iterator[TableFiles]:
    """Write every table that has rows in its three formats."""
    make_folder(folder)
    for entry in tables.IN_FILES:
        if entry.rows(report):
            table = entry.for_files(report)
            paths = rendering.write_table(table, folder, entry.name)
            yield TableFiles(entry.name, table.title, table.note, paths["md"], paths["csv"], paths["tex"])


def _write_mds(galleries: Sequence[Gallery], path: Path) -> list[Path]:
    """Write the points of the MDS pictures, for plots of one's own; return the file, if there are any."""
    if not galleries:
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
        for gallery in galleries
    ]
    write_json(path, {"format": "protovalue mds", "version": 1, "games": shown})
    return [path]


def _headline(report: Report) -> Iterator[str]:
    """The numbers as lines of text: per game, then over games."""
    results = report.results
    width = max(len(method) for method in results.methods)
    digits = return_digits(score.env for score in report.per_game)
    for env in results.envs:
        own = [score for score in report.per_game if score.env == env]
        if own:
            yield f"{env}: mean return [95% interval over encoders]"
        for score in own:
            what = plural(score.encoders, "agent") if score.method == results.end_to_end else _runs(score)
            yield f"  {score.method:<{width}}  {_text(score.mean, digits)}  {what}"
    if report.aggregates:
        titles = ", ".join(STATISTIC_TITLES[name] for name in STATISTICS)
        yield f"over {tables.games_counted(report)}: {titles}. {report.scale}."
        for row in report.aggregates:
            numbers = ", ".join(_text(row.statistics[name], SCORE_DIGITS) for name in STATISTICS)
            yield f"  {row.method:<{width}}  {numbers}"


def _text(estimate: Estimate, digits: int) -> str:
    text = shown(estimate, digits).text
    return text if estimate.has_interval else f"{text} (no interval)"


def _runs(score: GameScore) -> str:
    return f"{plural(score.encoders, 'encoder')} x {plural(score.agents, 'agent')}"


def _about_versions(cells: Sequence[CellResult]) -> Iterator[str]:
    """Say which versions made the runs, if there are several."""
    for name in ("protovalue", "torch", "ale-py", "minatar", "gymnasium"):
        keys = (f"version.{name}", f"encoder.pretrained with {name}")
        texts = {str(cell.settings[key]) for cell in cells for key in keys if key in cell.settings}
        found = sorted({version for text in texts for version in text.split(THEN)})
        if len(found) > 1:
            yield f"the runs were made with several versions of {name}: {', '.join(found)}"
