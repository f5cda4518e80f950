"""The tables of a report: an entry for each, and in it an entry for each column; files and page render from them."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from protovalue.evaluate.aggregate import LESS_IS_BETTER, STATISTIC_TITLES, STATISTICS, Estimate
from protovalue.evaluate.scores import PAPER_REFERENCES, PAPER_TITLES, paper_title
from protovalue.report.best import best
from protovalue.report.model import (
    Aggregate,
    Budget,
    Contrast,
    FeatureNumbers,
    GameScore,
    GridCell,
    GridWidth,
    ProbeRow,
    Report,
    Verdict,
)
from protovalue.report.numbers import MINUS, NONE, SCORE_DIGITS, TIMES, fixed, plural, return_digits
from protovalue.report.table import Column, Number, TableEntry, shown

PAPER_NOTE = (
    "The paper's numbers stand on one encoder and three agents; its bold leaves out DQN, whose numbers are means "
    "over the whole of training, and Environment Reward."
)
Runs = tuple[int, int]
"""Encoders, and agents on each."""


def methods_of(report: Report) -> dict[str, dict[str, GameScore]]:
    """Return the scores of every method that has some, by environment."""
    found: dict[str, dict[str, GameScore]] = {method: {} for method in report.results.methods}
    for score in report.per_game:
        found.setdefault(score.method, {})[score.env] = score
    return {method: games for method, games in found.items() if games}


def _envs(report: Report) -> list[str]:
    return list(dict.fromkeys([*report.results.envs, *(score.env for score in report.per_game)]))


def _game_columns(report: Report) -> list[Column[str]]:
    """A column for each method, then the paper's; files have those of the paper that are called as one of ours."""
    digits = return_digits(score.env for score in report.per_game)
    columns = [
        Column(
            method,
            _score_of(games, lambda score: score.mean, digits),
            digits,
            best="highest",
            apart=method in report.references,
        )
        for method, games in methods_of(report).items()
    ]
    ours = {paper_title(column.title) for column in columns}
    names = dict.fromkeys(name for env in _envs(report) for name in report.paper.get(env, {}))
    return columns + [
        Column(
            f"{name}, paper",
            _printed(report, name, digits),
            on_page=f"paper: {name}",
            kind="printed",
            in_files=name in ours,
        )
        for name in names
    ]


def _normalised_columns(report: Report) -> list[Column[str]]:
    return [
        Column(
            method,
            _score_of(games, lambda score: score.normalised, SCORE_DIGITS),
            best="highest",
            apart=method in report.references,
        )
        for method, games in methods_of(report).items()
    ]


def _score_of(
    games: Mapping[str, GameScore], measured: Callable[[GameScore], Estimate | None], digits: int
) -> Callable[[str], Number]:
    """Return the score of a method by environment; it says where it stands on other runs than usual."""
    usual, most = _usual_runs(games.values()), max(score.encoders for score in games.values())

    def value(env: str) -> Number:
        score = games.get(env)
        estimate = measured(score) if score else None
        if score is None or estimate is None:
            return Number(NONE, short="no result" if score is None else "no scale")
        number, runs = shown(estimate, digits), (score.encoders, score.agents)
        return replace(
            number,
            text=number.text if usual == runs else f"{number.text} ({_product(*runs)})",
            encoders=score.encoders,
            agents=score.agents,
            note=plural(score.encoders, "run") if score.encoders < most else "",
        )

    return value


def _printed(report: Report, name: str, digits: int) -> Callable[[str], Number]:
    """Return what the paper printed for a method by environment, with its bold; on the page as it was printed."""

    def value(env: str) -> Number:
        printed = report.paper.get(env, {})
        if name not in printed:
            return Number(NONE)
        number, as_printed = printed[name], fixed(printed[name], 1).replace("-", MINUS)
        first = name in best(printed, [PAPER_TITLES[method] for method in PAPER_REFERENCES])
        return Number(fixed(number, digits), number, is_best=first, short=as_printed)

    return value


def _game_name(report: Report, env: str) -> str:
    """Name a game, without the family where all have the same one."""
    families = {score.env.partition("/")[0] for score in report.per_game}
    return env.partition("/")[2] or env if len(families) == 1 else env


def _game_note(report: Report) -> str:
    runs = _runs(report)
    parts = [f"Mean over runs, {runs_text(runs)}."]
    encoders = {found[0] for own in runs.values() for found in own}
    if any(count >= 2 for count in encoders):
        parts.append("In brackets the 95% interval of Student's t over encoders.")
    if 1 in encoders:
        parts.append("One encoder alone gives no interval.")
    apart = " and ".join(method for method in runs if method in report.references)
    parts.append(f"Bold: the best, apart from {apart}." if apart else "Bold: the best.")
    if any(column.kind == "printed" and column.in_files for column in _game_columns(report)):
        parts.append(PAPER_NOTE)
    return " ".join(parts)


def _runs(report: Report) -> dict[str, list[Runs]]:
    return {
        method: [(score.encoders, score.agents) for score in games.values()]
        for method, games in methods_of(report).items()
    }


def runs_text(runs: Mapping[str, Sequence[Runs]]) -> str:
    """Say how many runs scores stand on: "encoders × agents on each: PVN (RNI) 3 × 3, DQN 5 × 1"."""
    found = {method: _product(_span(P for P, _ in own), _span(S for _, S in own)) for method, own in runs.items()}
    kind = f"encoders {TIMES} agents on each (an agent trained end to end is its own encoder)"
    if len(set(found.values())) == 1:
        return f"{kind}: {next(iter(found.values()))}"
    return f"{kind}: " + ", ".join(f"{method} {text}" for method, text in found.items())


def _span(values: Iterable[int]) -> str:
    """Write whole numbers as "3", or "2 to 3" where they differ."""
    found = sorted(set(values))
    return str(found[0]) if len(found) == 1 else f"{found[0]} to {found[-1]}"


def _product(encoders: object, agents: object) -> str:
    return f"{encoders} {TIMES} {agents}"


def _usual_runs(scores: Iterable[GameScore]) -> Runs:
    return Counter((score.encoders, score.agents) for score in scores).most_common(1)[0][0]


GAMES: TableEntry[str] = TableEntry(
    name="games",
    title="Mean evaluation return per game",
    head="Game",
    rows=_envs,
    row_name=_game_name,
    columns=_game_columns,
    note=_game_note,
    rivals="columns",
    in_files=lambda report, env: any(score.env == env for score in report.per_game),
)


def _counted(values: Sequence[int]) -> Number:
    text = " to ".join(f"{value:,}" for value in dict.fromkeys((values[0], values[-1]))) if values else NONE
    return Number(text, values[0] if len(values) == 1 else None, short=text)


def _networks(row: Budget) -> Number:
    text = ", ".join(row.networks)
    return Number(text, short=text)


BUDGET_COLUMNS: tuple[Column[Budget], ...] = (
    Column("Network", _networks),
    Column("Transitions", lambda row: _counted(row.transitions)),
    Column("Gradient steps", lambda row: _counted(row.steps)),
    Column("Batch", lambda row: _counted(row.batch_size)),
    Column("Agent steps", lambda row: _counted(row.agent_steps)),
    Column("Evaluation episodes", lambda row: _counted(row.episodes)),
)

BUDGETS: TableEntry[Budget] = TableEntry(
    name="budgets",
    title="What the returns stand on, here and in the paper",
    head="Returns",
    rows=lambda report: report.budgets,
    row_name=lambda report, row: row.method,
    columns=lambda report: BUDGET_COLUMNS,
    note=lambda report: (
        "Transitions, gradient steps and batch: of the pretraining of one encoder; agent steps and episodes: of one "
        "agent. The paper's are those of its proto-value networks and linear agents."
    ),
)

NORMALISED_GAMES: TableEntry[str] = TableEntry(
    name="normalised",
    title="Normalised score per game",
    head="Game",
    rows=lambda report: _envs(report) if any(score.normalised is not None for score in report.per_game) else [],
    row_name=_game_name,
    columns=_normalised_columns,
    rivals="columns",
)


def _statistic(name: str) -> Column[Aggregate]:
    return Column(
        STATISTIC_TITLES[name],
        lambda row: row.statistics[name],
        SCORE_DIGITS,
        best="lowest" if name in LESS_IS_BETTER else "highest",
    )


AGGREGATE_COLUMNS: tuple[Column[Aggregate], ...] = tuple(_statistic(name) for name in STATISTICS)


def _aggregate_runs(row: Aggregate) -> str:
    runs = [plural(row.encoders, "run")]
    if row.agents > 1:
        runs = [plural(row.encoders, "encoder"), plural(row.agents, "agent")]
    return f" {TIMES} ".join([plural(row.envs, "game"), *runs])


def games_counted(report: Report) -> str:
    """Say over how many games the aggregates are."""
    return plural(report.aggregates[0].envs, "game")


AGGREGATES: TableEntry[Aggregate] = TableEntry(
    name="aggregates",
    title="Normalised scores over games",
    head="Method",
    rows=lambda report: report.aggregates,
    row_name=lambda report, row: row.method,
    columns=lambda report: AGGREGATE_COLUMNS,
    note=lambda report: (
        f"{report.scale}. {games_counted(report)}; 95% intervals by a bootstrap of encoders, and agents within them."
    ),
    stands_on=_aggregate_runs,
)

IMPROVEMENT: TableEntry[tuple[str, Estimate]] = TableEntry(
    name="improvement",
    title="Probability of improvement",
    head="Method",
    rows=lambda report: list(report.improvements.items()),
    row_name=lambda report, row: row[0],
    columns=lambda report: (
        Column(f"{report.aggregates[0].method} is better", lambda row: row[1], SCORE_DIGITS, on_page="Probability"),
    ),
    note=lambda report: (
        f"Probability that a run of {report.aggregates[0].method} scores higher than one of the other method in the "
        f"same game, ties counting half; mean over {games_counted(report)}. 0.5 is no difference. 95% intervals by a "
        "bootstrap of encoders, and agents within them."
    ),
)

FEATURE_COLUMNS: tuple[Column[FeatureNumbers], ...] = (
    Column("Encoders", lambda row: row.encoders, kind="count"),
    Column("Features", lambda row: row.num_features, kind="count"),
    Column("Effective rank", lambda row: row.effective_rank, digits=1),
    Column("Smoothness", lambda row: row.smoothness),
    Column("Linear probe R2", lambda row: row.probe, on_page="Probe R\N{SUPERSCRIPT TWO}"),
)

FEATURES: TableEntry[FeatureNumbers] = TableEntry(
    name="features",
    title="What the features are like",
    head="Game and method",
    rows=lambda report: report.features,
    row_name=lambda report, row: f"{row.env}, {row.method}",
    columns=lambda report: FEATURE_COLUMNS,
    note=lambda report: (
        "Mean over encoders, in brackets their range. Effective rank and probe on 1,024 states of a random policy; the "
        "probe is the held-out R2 of a ridge regression that reads counts and places of objects from the features. "
        "Smoothness on one episode: distance of consecutive states over that of all pairs; 1 is no smoothness."
    ),
)

_UNITS = (
    "In brackets Student's 95% interval over data sets, or over encoders where all share one data set; methods on the "
    "same data sets are compared pair by pair."
)
_NEEDED = (
    "What would tell: the data sets, or encoders, that each game would need to tell four times out of five, by the "
    "variance seen."
)

CLAIM_COLUMNS: tuple[Column[Verdict], ...] = (
    Column("Verdict", lambda row: Number(row.verdict, short=row.verdict)),
    Column("Difference", lambda row: row.difference, SCORE_DIGITS),
    Column("In", lambda row: Number(row.unit, short=row.unit)),
    Column("Stands on", lambda row: Number(row.stands_on, short=row.stands_on)),
    Column("Paper's evidence", lambda row: Number(row.evidence, short=row.evidence)),
    Column("Place in the paper", lambda row: Number(row.place, short=row.place)),
)

CLAIMS: TableEntry[Verdict] = TableEntry(
    name="claims",
    title="The paper's claims",
    head="Claim",
    rows=lambda report: report.verdicts,
    row_name=lambda report, row: row.claim,
    columns=lambda report: CLAIM_COLUMNS,
    note=lambda report: (
        "Difference: how much higher the side is that a claim says is higher, mean over games. "
        f"{report.scale}. {_UNITS} A claim holds here if its whole interval is above 0, or above -0.1 where it says "
        f"near, or above -1 halving where it says half. {_NEEDED}"
    ),
)

VARIANT_COLUMNS: tuple[Column[Contrast], ...] = (
    Column("Verdict", lambda row: Number(row.verdict, short=row.verdict)),
    Column("Difference", lambda row: row.difference, SCORE_DIGITS),
    Column("Compared with", lambda row: Number(row.base, short=row.base)),
    Column("Stands on", lambda row: Number(row.stands_on, short=row.stands_on)),
)

VARIANTS: TableEntry[Contrast] = TableEntry(
    name="variants",
    title="What a variant changes",
    head="Variant",
    rows=lambda report: report.contrasts,
    row_name=lambda report, row: row.method,
    columns=lambda report: VARIANT_COLUMNS,
    note=lambda report: (
        f"Difference: how much higher a variant scores, mean over games. {report.scale}. {_UNITS} {_NEEDED}"
    ),
)

GRID_COLUMNS: tuple[Column[GridCell], ...] = (
    Column("Encoders", lambda row: row.encoders, kind="count"),
    Column("Score", lambda row: row.score, SCORE_DIGITS),
    Column("Loss per task", lambda row: row.loss, digits=4),
    Column("Effective rank", lambda row: row.effective_rank, digits=1),
    Column("Seconds", lambda row: row.seconds, digits=0),
)

GRID: TableEntry[GridCell] = TableEntry(
    name="grid",
    title="Widths and numbers of tasks",
    head="Method, width and tasks",
    rows=lambda report: report.grid,
    row_name=lambda report, row: f"{row.method}, {row.width}x, {plural(row.tasks, 'task')}",
    columns=lambda report: GRID_COLUMNS,
    note=lambda report: (
        f"Score: mean over games, with Student's 95% interval over seeds of encoders. {report.scale}. Loss: mean over "
        "tasks and over the last tenth of pretraining. Effective rank: mean over encoders. Seconds: recorded time of "
        "one encoder, its agents and their evaluation."
    ),
)

SATURATION_COLUMNS: tuple[Column[GridWidth], ...] = (
    Column("Games", lambda row: row.games, kind="count"),
    Column("Best number of tasks", lambda row: row.tasks, digits=0),
    Column("Gain per doubling up to it", lambda row: row.gain, digits=3),
    Column("Beyond it", lambda row: row.beyond, digits=3),
)

SATURATION: TableEntry[GridWidth] = TableEntry(
    name="saturation",
    title="Where a width stops gaining from tasks",
    head="Method and width",
    rows=lambda report: report.grid_widths,
    row_name=lambda report, row: f"{row.method}, {row.width}x",
    columns=lambda report: SATURATION_COLUMNS,
    note=lambda report: (
        "The number with the highest mean score, and slopes of least squares over the numbers up to it and from it on. "
        "In brackets 95% intervals, encoders drawn again. A best number is chosen by its score, so that the slopes "
        "beside it are a little too steep."
    ),
)


def _probe_columns(report: Report) -> list[Column[ProbeRow]]:
    """A column for each method that was probed, and the correlation with returns."""
    methods = dict.fromkeys(method for row in report.probes for method in row.scores)
    return [
        *(Column(method, _probed(method), best="highest", apart=method in report.references) for method in methods),
        Column("Rank correlation with the return", lambda row: row.correlation, digits=2, on_page="With the return"),
        Column("Encoders", lambda row: row.encoders, kind="count"),
    ]


def _probed(method: str) -> Callable[[ProbeRow], Estimate | None]:
    return lambda row: row.scores.get(method)


PROBES: TableEntry[ProbeRow] = TableEntry(
    name="probes",
    title="What can be read from the features",
    head="Game, category, score and scale",
    rows=lambda report: report.probes,
    row_name=lambda report, row: f"{row.env}, {row.category}, {row.kind}, {row.feature_scale}",
    columns=_probe_columns,
    rivals="columns",
    note=lambda report: (
        "Linear readouts (pvn probe), with Student's 95% interval over encoders. F1 is of answers, weighted by how "
        "often a class occurs; the area under the curve is of the order in which states are put, 0.5 by chance. "
        "Before they are read, features are whitened, or divided by one number, their root mean square (rms). Rank "
        "correlation: Spearman's, of the score and the agents' mean return, over all encoders of the game; its 95% "
        "interval takes them as independent, though methods share data sets. A probe that does not go with the return "
        "does not tell what an encoder is worth."
    ),
)

IN_FILES: tuple[TableEntry[Any], ...] = (
    GAMES, BUDGETS, AGGREGATES, IMPROVEMENT, CLAIMS, VARIANTS, SATURATION, GRID, FEATURES, PROBES,
)  # fmt: skip
"""The tables that are files, in their order."""
ON_PAGE: tuple[TableEntry[Any], ...] = (*IN_FILES, NORMALISED_GAMES)
"""The tables of the page."""
