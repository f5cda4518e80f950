"""From results to the numbers of a report: per game, over games, over training and between variants."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from protovalue.evaluate import scores as tables
from protovalue.evaluate.aggregate import (
    Estimate,
    Profile,
    aggregates,
    improvement_with_interval,
    mean_interval,
    profile_with_interval,
)
from protovalue.randomness import numpy_generator
from protovalue.report.cells import CellResult
from protovalue.report.model import STATISTIC_TITLES, Aggregate, GameScore
from protovalue.report.numbers import short
from protovalue.report.results import Results

Array = NDArray[np.float64]
SEED = 0  # of the bootstrap: the same runs give the same report
LEFT_OUT = "left out of the aggregates"  # in the note on a game that is
_GRID = re.compile(r", ([\d.]+x|(\d+|None) tasks|(tasks|width) \w+)")


@dataclass(frozen=True)
class Scale:
    """How returns become scores that games share."""

    text: str
    """What a normalised score is; empty where there are none."""
    yardsticks: Mapping[str, tuple[float, float]]
    """The returns that become 0 and 1, by environment."""
    notes: tuple[str, ...]
    """Which environments have none, and why."""

    def apply(self, env: str, returns: Array) -> Array:
        """Normalise returns of an environment that has yardsticks."""
        return tables.normalised(returns, *self.yardsticks[env], name=env)


@dataclass(frozen=True)
class TrainingCurve:
    """Return over training: mean over encoders and Student's 95% interval (NaN where one encoder alone is left)."""

    steps: Array
    mean: Array
    low: Array
    high: Array
    lowest: float
    """The lowest point of any encoder's curve."""
    highest: float


def scale_of(results: Results) -> Scale:
    """Find the yardsticks of every environment; those that cannot be normalised are named in the notes."""
    if results.normalise == "human":
        return _human_scale(results)
    if results.normalise == "dqn":
        return _dqn_scale(results)
    return Scale("", {}, ())


def _human_scale(results: Results) -> Scale:
    yardsticks, without = {}, []
    for env in results.envs:
        kept, _ = tables.with_human_scores([env]) if env.startswith(tables.PREFIX) else ([], [env])
        if kept:
            yardsticks[env] = tables.random_and_human(env)
        else:
            without.append(env)
    said = f"{LEFT_OUT}, because the package's table has no human score of them"
    notes = (f"{said}: {', '.join(without)}",) if without else ()
    return Scale("Human-normalised scores: 0 is a random policy, 1 a human", yardsticks, notes)


def _dqn_scale(results: Results) -> Scale:
    yardsticks, notes, agents = {}, [], []
    table = results.scores()
    for env in results.envs:
        low = results.random_policy.get(env)
        dqn = table.get(results.end_to_end or "", {}).get(env)
        untrained = _untrained(results, env)
        if low is None:
            notes.append(f"{env} is {LEFT_OUT}: its random policy was not measured")
        elif dqn is None:
            notes.append(f"{env} is {LEFT_OUT}: it has no finished end-to-end DQN")
        elif not dqn.mean() > low:
            notes.append(
                f"{env} is {LEFT_OUT}: DQN's mean return, {short(dqn.mean())}, is not above that of "
                f"random actions, {short(low)}"
            )
        elif untrained is not None and not dqn.mean() > untrained:
            notes.append(
                f"{env} is {LEFT_OUT}: DQN's mean return, {short(dqn.mean())}, is not above that of "
                f"agents on random initialisations, {short(untrained)}: it did not learn there, and is no yardstick"
            )
        else:
            yardsticks[env] = (low, float(dqn.mean()))
            agents.append(len(dqn))
            lost = [one for one in results.missing if (one.method, one.env) == (results.end_to_end, env)]
            if lost:
                planned = len(dqn) + sum(max(len(one.seeds), 1) for one in lost)
                notes.append(f"{env}: the DQN that is 1 stands on {len(dqn)} of {planned} planned agents")
    where = f"of {results.yardstick}" if results.yardstick else "measured in this study"
    text = (
        f"Scores between random policy (0) and end-to-end DQN (1; {_mean_of(agents)}), both {where} and taken as exact"
    )
    return Scale(text, yardsticks, tuple(notes))


def _untrained(results: Results, env: str) -> float | None:
    """Return the mean return of agents on random initialisations; None where there are none."""
    own = [cell.score for cell in results.cells if cell.env == env and cell.settings.get("method") == "random"]
    return float(np.mean(own)) if own else None


def _mean_of(agents: Sequence[int]) -> str:
    """Say how many agents the yardstick of a game is the mean of."""
    if not agents or max(agents) == 1:
        return "one agent"
    count = f"{max(agents)}" if min(agents) == max(agents) else f"{min(agents)} to {max(agents)}"
    return f"mean of {count} agents"


def per_game(results: Results, scale: Scale) -> tuple[GameScore, ...]:
    """Return the mean and Student's interval over encoders of every method in every environment."""
    found = []
    table = results.scores()
    for env in results.envs:
        for method in (name for name, games in table.items() if env in games):
            values = table[method][env]
            normal = mean_interval(scale.apply(env, values)) if env in scale.yardsticks else None
            found.append(
                GameScore(
                    env=env,
                    method=method,
                    mean=mean_interval(values),
                    normalised=normal,
                    encoders=values.shape[0],
                    agents=values.shape[1],
                    episodes=min(cell.episodes for cell in results.of(method, env)),
                )
            )
    return tuple(found)


def references(results: Results) -> tuple[str, ...]:
    """Return the methods that saw the reward before the agents did; as in the paper, they do not compete."""
    apart = {cell.method for cell in results.cells if cell.settings.get("method") in ("dqn", "reward")}
    return tuple(method for method in results.methods if method in apart)


def normalised_scores(results: Results, scale: Scale) -> tuple[dict[str, dict[str, Array]], tuple[str, ...]]:
    """Return normalised scores (P, S) by method and environment, and notes.

    Aggregates compare like with like: an environment in which a method has no result is left out for all.
    """
    table = results.scores()
    shared = [env for env in results.envs if env in scale.yardsticks and all(env in games for games in table.values())]
    notes = []
    for env in scale.yardsticks:
        if env not in shared:
            without = ", ".join(method for method, games in table.items() if env not in games)
            notes.append(f"{env} is {LEFT_OUT}: no result of {without}")
    if not shared:
        return {}, tuple(notes)
    return {m: {env: scale.apply(env, games[env]) for env in shared} for m, games in table.items()}, tuple(notes)


def over_games(scores: Mapping[str, Mapping[str, Array]], draws: int) -> tuple[Aggregate, ...]:
    """Return the aggregates of every method, each with a generator of its own: adding a method changes no other."""
    rows = []
    for method, games in scores.items():
        found = aggregates(games, numpy_generator(SEED), draws)
        encoders, agents = (min(array.shape[axis] for array in games.values()) for axis in (0, 1))
        rows.append(Aggregate(method, len(games), encoders, agents, found))
    return tuple(rows)


def profiles(scores: Mapping[str, Mapping[str, Array]], draws: int) -> dict[str, Profile]:
    """Return performance profiles over the scores that matter: 0, 1, and nearly all that the methods have.

    From the 2nd percentile of all scores, but at most 0, to a little above the 98th, but at least 1 and at most 4.
    """
    everything = np.concatenate([array.ravel() for games in scores.values() for array in games.values()])
    low = min(0.0, float(np.quantile(everything, 0.02)))
    high = max(1.0, min(float(np.quantile(everything, 0.98)), 4.0))
    taus = np.linspace(low, 1.05 * high, 121)
    return {m: profile_with_interval(games, taus, numpy_generator(SEED), draws) for m, games in scores.items()}


def improvements(scores: Mapping[str, Mapping[str, Array]], draws: int) -> dict[str, Estimate]:
    """Return the probability that a run of the first method scores higher than one of each other, by that method."""
    first, *others = scores or ("",)
    return {
        other: improvement_with_interval(scores[first], scores[other], numpy_generator(SEED), draws) for other in others
    }


def trained(results: Results) -> list[str]:
    """Return the environments in which some agent ended an episode before a line of its log: those that have curves."""
    return [
        env for env in results.envs if any(cell.env == env and np.isfinite(cell.curve).any() for cell in results.cells)
    ]


def training_curve(cells: Sequence[CellResult], points: int, separate: bool = False) -> TrainingCurve | None:
    """Average the training curves of cells: over time into `points` parts, over agents, then over encoders.

    Args:
        cells: of one method in one environment.
        points: most points of the curve.
        separate: take every agent as a unit of its own, as end-to-end agents are.
    """
    cells = [cell for cell in cells if len(cell.curve_steps)]
    if not cells:
        return None
    end = max(float(cell.curve_steps[-1]) for cell in cells)
    count = min(points, min(len(cell.curve_steps) for cell in cells))
    edges = np.linspace(0, end, count + 1)
    rows: list[Array] = []
    for cell in cells:
        part = np.clip(np.searchsorted(edges, cell.curve_steps, side="left") - 1, 0, count - 1)  # (T,)
        own = np.stack([_mean(cell.curve[:, part == i], axis=1) for i in range(count)], axis=1)  # (S, count)
        rows += list(own) if separate else [_mean(own, axis=0)]
    units = np.stack(rows)  # (P, count)
    known = np.isfinite(units)
    used = known.any(axis=0)
    units, known, steps = units[:, used], known[:, used], edges[1:][used]
    if not used.any():
        return None
    n = known.sum(axis=0)
    mean = _mean(units, axis=0)
    deviations = np.where(known, units - mean, 0.0)
    several = n > 1
    with_two = np.maximum(n, 2)
    half = special.stdtrit(with_two - 1, 0.975) * np.sqrt(np.square(deviations).sum(axis=0) / (with_two - 1) / with_two)
    half = np.where(several, half, np.nan)
    return TrainingCurve(
        steps, mean, mean - half, mean + half, float(np.nanmin(units)), float(np.nanmax(units))
    )  # fmt: skip


def _mean(values: Array, axis: int) -> Array:
    """Mean of what is not NaN; NaN where nothing is."""
    known = np.isfinite(values)
    count = known.sum(axis=axis)
    total = np.where(known, values, 0.0).sum(axis=axis)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def base_title(method: str) -> str:
    """Return a method's title without its place in a grid of widths and numbers of tasks."""
    return _GRID.sub("", method)


def variants(results: Results) -> list[list[str]]:
    """Return the titles of methods that were pretrained by the same method, where their settings differ.

    A width or a number of tasks makes no variant.
    """
    families: dict[str, dict[str, str]] = {}
    for cell in results.cells:
        if cell.method != results.end_to_end and not _is_random(cell):
            families.setdefault(str(cell.settings.get("method")), {})[cell.method] = base_title(cell.method)
    several = [titles for titles in families.values() if len(set(titles.values())) > 1]
    return [[method for method in results.methods if method in titles] for titles in several]


def ablations(
    results: Results, games: Sequence[GameScore], over: Sequence[Aggregate]
) -> dict[str, dict[str, Estimate]]:
    """Return median and IQM, or the mean returns per game, of methods of which the report has variants.

    Variants are methods that were pretrained by the same method with other settings than width and number of tasks.
    Last comes, as in the paper, the random initialisation of the same network.
    """
    several = variants(results)
    variant = [method for method in results.methods if any(method in titles for titles in several)]
    networks = {_network(cell) for cell in results.cells if cell.method in variant}
    drawn = {cell.method for cell in results.cells if _is_random(cell) and _network(cell) in networks}
    variant += [method for method in results.methods if method in drawn]
    if over:
        rows = {row.method: row.statistics for row in over}
        return {
            STATISTIC_TITLES[name]: {method: rows[method][name] for method in variant if method in rows}
            for name in ("median", "iqm")
            if any(method in rows for method in variant)
        }
    means = {(score.env, score.method): score.mean for score in games}
    return {
        env: {method: means[env, method] for method in variant if (env, method) in means}
        for env in results.envs
        if any((env, method) in means for method in variant)
    }


def _is_random(cell: CellResult) -> bool:
    return cell.settings.get("method") == "random"


def _network(cell: CellResult) -> tuple[object, float]:
    return cell.settings.get("encoder.architecture"), cell.width


def cloning(results: Results) -> tuple[str, ...]:
    """Return the methods that were pretrained by behaviour cloning."""
    return tuple(dict.fromkeys(cell.method for cell in results.cells if cell.settings.get("method") == "bc"))
