"""One trajectory per environment, seen through the features of every encoder in a report, and what they measure."""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from protovalue.data.info import picture
from protovalue.envs.base import Env
from protovalue.envs.registry import make
from protovalue.errors import UserError
from protovalue.evaluate.episodes import load_agent
from protovalue.evaluate.features import (
    Scaling,
    Trajectory,
    effective_rank,
    features_of,
    linear_probe,
    mds,
    random_states,
    state_variables,
    temporal_smoothness,
    trajectory,
)
from protovalue.online.agent import Agent
from protovalue.online.linear_dqn import find_encoder
from protovalue.progress import ProgressBar
from protovalue.report.cells import EVALUATION, CellResult, read_evaluation
from protovalue.report.model import Embedding, FeatureNumbers, Gallery, Spread
from protovalue.report.numbers import short
from protovalue.report.results import EncoderFeatures, Results
from protovalue.runs import read_run

STATES = 300  # of a trajectory that are drawn
STEPS = 1_000  # after which a trajectory is cut
SHORT = 50  # steps: an episode that ends before is played again with another seed
TRIES = 5
PROBE_ENVS = 16  # * 640 steps / 10 = 1,024 states of a random policy
Which = Literal["all", "first", "none"]
See = Callable[[NDArray[Any]], Any]


@dataclass(frozen=True)
class _Lens:
    """A trained encoder, or the network of one end-to-end agent."""

    name: str
    see: See


@dataclass(frozen=True)
class Looked:
    """All that was found by looking at features."""

    galleries: tuple[Gallery, ...]
    features: tuple[FeatureNumbers, ...]
    notes: tuple[str, ...]


def look(results: Results, which: Which = "all", quiet: bool = False, scaling: Scaling = "classical") -> Looked:
    """Play one episode in every environment and look at it through the encoders.

    Args:
        results: what the report is about.
        which: measure all encoders, the first of each method (lowest seed), or none.
        quiet: no progress.
        scaling: how a trajectory is placed in the plane.
    """
    galleries, features = [], []
    notes: list[str] = []
    chosen = {(env, m): _chosen(results, env, m, which) for env in results.envs for m in results.methods}
    total = sum(len(cells) for cells in chosen.values())
    if which == "none":
        return Looked((), (), ())
    with ProgressBar("features", total, "encoders", quiet=quiet) as bar:
        for env in results.envs:
            cells = [cell for method in results.methods for cell in chosen[env, method]]
            known = {method: _known(results, env, method, which) for method in results.methods}
            if not cells:
                features += [_numbers(env, method, measured) for method, measured in known.items() if measured]
                continue
            if any(known.values()):
                notes.append(
                    f"features in {env}: those of encoders that are not at hand were measured by another report, "
                    "smoothness along another episode"
                )
            like = next((cell for cell in cells if cell.method != results.end_to_end), cells[0])
            try:
                games = make(env, PROBE_ENVS, **_options(like.run))
            except UserError as error:
                notes.append(f"features in {env} are not measured, because it cannot be played: {error}")
                continue
            played, player = _play(results, env, notes)
            steps = _spread(len(played.observations), STATES)
            states = random_states(games)
            variables = state_variables(states.observations)
            targets = None if variables is None else variables[0]
            if targets is not None and not np.ptp(targets, axis=0).any():
                notes.append(f"no probe in {env}: nothing that could be read out changes in a random policy's states")
            embeddings = []
            for method in results.methods:
                measured: list[EncoderFeatures] = list(known[method])
                for cell in chosen[env, method]:
                    try:
                        lenses = _lenses(cell, games, first=which == "first")
                    except UserError as error:
                        notes.append(f"features of {method} in {env} are not all measured: {error}")
                        lenses = []
                    for lens in lenses:
                        seen = features_of(lens.see, played.observations)
                        if len(measured) == len(known[method]):
                            embeddings.append(_embed(method, lens.name, seen[list(steps)], scaling))
                        wide = features_of(lens.see, states.observations)
                        measured.append(_measure(cell, seen, wide, targets, states.groups))
                    bar.advance(1, env)
                if measured:
                    features.append(_numbers(env, method, measured))
            games.close()
            frames = tuple(_png(played.observations[step, -1]) for step in steps)
            gallery = Gallery(env, player, float(played.rewards.sum()), steps, frames, tuple(embeddings), scaling)
            if embeddings:
                galleries.append(gallery)
    return Looked(tuple(galleries), tuple(features), tuple(dict.fromkeys(notes)))


def _chosen(results: Results, env: str, method: str, which: Which) -> list[CellResult]:
    here = [cell for cell in results.of(method, env) if cell.kept is None]
    cells = sorted(here, key=lambda cell: (cell.pretraining_seed or 0, cell.data_seed or 0))
    return cells[:1] if which == "first" else cells


def _known(results: Results, env: str, method: str, which: Which) -> tuple[EncoderFeatures, ...]:
    """Return what another report measured of encoders that are not at hand."""
    found = results.features.get((env, method), ())
    return found[:1] if which == "first" else found


def _options(run: Path) -> dict[str, Any]:
    """Return the options of the environment that a run's agents play in."""
    return dict(read_evaluation(run / EVALUATION)["env_options"])


def _play(results: Results, env: str, notes: list[str]) -> tuple[Trajectory, str]:
    """Play an episode with the end-to-end agent of the best score, or else with the best agent of all; as it plays."""
    cells = [cell for cell in results.cells if cell.env == env and cell.kept is None]
    yardstick = [cell for cell in cells if cell.method == results.end_to_end]
    best = max(yardstick or cells, key=lambda cell: (float(cell.returns.max()), str(cell.run)))
    agent: Agent | None = None
    run, which = best.place(int(best.returns.argmax()))
    player = f"the best agent of {best.method} (mean return {short(best.returns.max())})"
    try:
        game, agent, _, _ = load_agent(run, 1)
        game.close()
    except UserError as error:
        notes.append(f"the trajectory of {env} is that of random actions, because its best agent is not there: {error}")
        player = "random actions"
    tries: list[Trajectory] = []
    for seed in range(TRIES):
        tries.append(trajectory(env, _options(run), seed, agent, which, max_steps=STEPS))
        if len(tries[-1].rewards) >= SHORT:
            break
    longest = max(tries, key=lambda one: len(one.rewards))
    return longest, player if longest.complete else f"{player}, cut after {STEPS:,} steps"


def _lenses(cell: CellResult, env: Env, first: bool) -> list[_Lens]:
    """Return what sees: the cell's encoder, or the networks of its end-to-end agents."""
    if cell.settings.get("kind") == "dqn":
        game, agent, seeds, _ = load_agent(cell.run, 1)
        game.close()
        names = [f"{cell.run.name}, seed {seed}" for seed in seeds]
        all_ = [_Lens(name, _eyes(agent, s)) for s, name in enumerate(names)]
        return all_[:1] if first else all_
    name = str(cell.encoder) if cell.encoder is not None else str(read_run(cell.run)["config"]["encoder"])
    encoder = find_encoder(name, env, other_game=True)
    return [_Lens(Path(name).name, encoder.features)]


def _eyes(agent: Agent, s: int) -> See:
    """Return what maps observations (N, ...) to the features (N, k) of the s-th agent's own network."""

    def see(observations: NDArray[Any]) -> Any:
        return agent.see(np.concatenate([observations] * agent.num_seeds))[s]

    return see


def _embed(method: str, encoder: str, features: NDArray[np.float32], scaling: Scaling) -> Embedding:
    plane = mds(features, scaling)
    furthest = float(np.linalg.norm(plane.points, axis=1).max())
    return Embedding(method, encoder, plane.points / (furthest or 1.0), plane.stress)


def _measure(
    cell: CellResult,
    along: NDArray[np.float32],
    wide: NDArray[np.float32],
    targets: NDArray[np.float64] | None,
    groups: NDArray[np.int64],
) -> EncoderFeatures:
    """Measure features along a trajectory and over a random policy's states, of which `targets` are to be read."""
    probe = None
    if targets is not None:
        found = linear_probe(wide, targets, groups)
        probe = float(np.nanmean(found)) if np.isfinite(found).any() else None
    rank = effective_rank(torch.from_numpy(wide))
    seeds = cell.data_seed, cell.pretraining_seed
    return EncoderFeatures(*seeds, wide.shape[1], rank, temporal_smoothness(along), probe)


def _numbers(env: str, method: str, measured: Sequence[EncoderFeatures]) -> FeatureNumbers:
    probes = [one.probe for one in measured if one.probe is not None]
    return FeatureNumbers(
        env=env,
        method=method,
        encoders=len(measured),
        num_features=measured[0].num_features,
        effective_rank=_range([one.rank for one in measured]),
        smoothness=_range([one.smoothness for one in measured]),
        probe=_range(probes) if probes else None,
        each=tuple(measured),
    )


def _range(values: Sequence[float]) -> Spread:
    known = [value for value in values if np.isfinite(value)] or [float("nan")]
    return Spread(float(np.mean(known)), min(known), max(known))


def _spread(count: int, most: int) -> tuple[int, ...]:
    """Return at most `most` of range(count), evenly, with the first and the last."""
    return tuple(int(i) for i in np.unique(np.linspace(0, count - 1, min(count, most)).round()))


def _png(frame: NDArray[Any]) -> bytes:
    """Draw a frame as a PNG with few colours: small, because a page holds hundreds."""
    image = picture(frame)
    buffer = io.BytesIO()
    image.quantize(64).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()
