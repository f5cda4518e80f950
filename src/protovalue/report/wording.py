"""The headline of a report, in words that claim no more than the runs show."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TypeVar

from protovalue.report.best import competing
from protovalue.report.model import Aggregate, Estimate, GameScore, Report
from protovalue.report.numbers import interval, plural, short

FEW = 3  # games that a headline tells one by one
Row = TypeVar("Row", Aggregate, GameScore)


def listed(names: Sequence[str]) -> str:
    """Write names as one reads them out."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _name(method: str) -> str:
    """Quote the name of a method that would fall apart in a sentence."""
    return f"\N{LEFT DOUBLE QUOTATION MARK}{method}\N{RIGHT DOUBLE QUOTATION MARK}" if "," in method else method


def headline(report: Report) -> str:
    """Say which method came out best, with its interval and what it stands on, and whether that is settled."""
    if report.aggregates:
        return _over_games(report)
    games = {env: [score for score in report.per_game if score.env == env] for env in report.results.envs}
    games = {env: scores for env, scores in games.items() if scores}
    if not games:
        return "No method has a result yet."
    if len(games) <= FEW:
        return " ".join(_in_one_game(report, env, scores) for env, scores in games.items())
    return _game_by_game(report, games)


def _over_games(report: Report) -> str:
    points = {row.method: row.statistics["iqm"] for row in report.aggregates}
    row = max(competing(report.aggregates, report.references), key=lambda row: points[row.method].point)
    total = len(report.results.envs)
    games = plural(total, "game") if row.envs == total else f"{row.envs} of {plural(total, 'game')}"
    runs = f"{_runs(row)} in each game"
    return f"Over {games}, {_best(report, row.method, points, 'interquartile mean (IQM) of normalised scores', runs)}"


def _in_one_game(report: Report, env: str, scores: Sequence[GameScore]) -> str:
    points = {score.method: score.mean for score in scores}
    score = max(competing(scores, report.references), key=lambda score: score.mean.point)
    return f"In {env}, {_best(report, score.method, points, 'mean return', _runs(score))}"


def _best(report: Report, method: str, points: Mapping[str, Estimate], what: str, runs: str) -> str:
    """Say that `method` is best, whom its interval meets, and what the references have."""
    apart = [name for name in points if name in report.references and name != method]
    others = {name: estimate for name, estimate in points.items() if name != method and name not in apart}
    among = " among features learned without reward" if apart else ""
    said = f"{_name(method)} has the highest {what}{among}: {_with_interval(points[method])}, from {runs}."
    if apart:
        beside = listed([f"{_name(name)} has {_with_interval(points[name])}" for name in apart])
        return f"{said} {_verdict(points[method], others)} For reference, {beside}."
    return f"{said} {_verdict(points[method], others)}"


def _runs(row: Row) -> str:
    if row.agents == 1:
        return plural(row.encoders, "run")
    return f"{plural(row.encoders, 'encoder')} with {plural(row.agents, 'agent')} on each"


def _with_interval(estimate: Estimate) -> str:
    found = interval(estimate)
    return f"{short(estimate.point)} (95% interval {found})" if found else f"{short(estimate.point)} (no interval)"


def _overlap(one: Estimate, other: Estimate) -> bool:
    return one.low <= other.high and other.low <= one.high


def _verdict(best: Estimate, others: Mapping[str, Estimate]) -> str:
    """Say which of the others' intervals meet that of the best."""
    if not others:
        return "There is nothing to compare it with."
    if not all(estimate.has_interval for estimate in (best, *others.values())):
        return "Not every method has enough runs for an interval, so which is best is not settled."
    close = [_name(name) for name, estimate in others.items() if _overlap(best, estimate)]
    if not close:
        return "Its interval meets no other's."
    if len(close) == len(others) and len(close) > 1:
        return "Its interval overlaps that of every other method, so which is best is not settled."
    if len(close) > 3:
        return f"Its interval overlaps those of {len(close)} other methods, so which is best is not settled."
    those = "that" if len(close) == 1 else "those"
    return f"Its interval overlaps {those} of {listed(close)}, so which is best is not settled."


def _game_by_game(report: Report, games: Mapping[str, Sequence[GameScore]]) -> str:
    """Count who is best where, and where that is settled."""
    wins, clear = Counter[str](), Counter[str]()
    for scores in games.values():
        best, *others = sorted(competing(scores, report.references), key=lambda score: score.mean.point, reverse=True)
        wins[best.method] += 1
        known = all(score.mean.has_interval for score in (best, *others))
        if others and known and not any(_overlap(best.mean, score.mean) for score in others):
            clear[best.method] += 1
    counts = [f"{_name(name)} in {count}" for name, count in wins.most_common()]
    settled = [f"{_name(name)} in {clear[name]}" for name, _ in wins.most_common() if name in clear]
    among = " among features learned without reward" if report.references else ""
    said = f"Of {plural(len(games), 'game')}, the highest mean return{among} is that of {listed(counts)}."
    if not settled:
        return f"{said} Nowhere is the best method's interval clear of every other, so which is best is not settled."
    return f"{said} The best method's interval is clear of every other method's for {listed(settled)}."
