"""Results of evaluated runs as an encoder's folder has them: with the commands that repeat them."""

import shlex
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from protovalue.card import Result, Row
from protovalue.encoder import FrozenEncoder
from protovalue.errors import UserError
from protovalue.evaluate.aggregate import Estimate, mean_interval
from protovalue.evaluate.config import EvaluateConfig
from protovalue.online.config import OnlineConfig
from protovalue.online.linear_dqn import encoder_checksum
from protovalue.report.cells import EVALUATION, CellResult, read_agents, read_cell, read_evaluation
from protovalue.report.results import Results
from protovalue.runs import config_from
from protovalue.study.settings import words


def of_run(run: Path, encoder: FrozenEncoder, folder: Path, name: str) -> Result:
    """Return what an evaluated run of agents on an encoder found; another encoder's is a UserError.

    Args:
        run: folder of the run.
        encoder: what its agents must stand on.
        folder: where that encoder lies.
        name: what the commands call the encoder.
    """
    recorded = read_agents(run)["config"]
    if recorded.get("encoder_checksum") != encoder_checksum(encoder):
        raise UserError(f"--runs: {run}: found agents on another encoder, expected those of pvn online on this one")
    if not (run / EVALUATION).is_file():
        raise UserError(f"--runs: {run}: not evaluated, expected it after `pvn evaluate {run}`")
    cell, evaluation = read_cell(run, folder), read_evaluation(run / EVALUATION)
    settings = {key: value for key, value in recorded.items() if value is not None and key != "threads"}
    online = config_from(OnlineConfig, {**settings, "encoder": name}, out=Path(run.name))
    played = EvaluateConfig(
        run=Path(run.name), **{key: evaluation[key] for key in ("episodes", "epsilon", "seed") if key in evaluation}
    )
    return Result(
        env=cell.env,
        steps=cell.steps,
        episodes=cell.episodes,
        seeds=cell.seeds,
        returns=tuple(map(float, cell.returns)),
        commands=(
            f"pvn online {shlex.join(words(online, always=('encoder', 'env', 'out')))}",
            f"pvn evaluate {shlex.join(words(played, positional=('run',), always=('episodes',)))}",
        ),
    )


def of_cell(cell: CellResult, results: Results) -> Result:
    """Return what a study found with one encoder, beside all of its methods in that game."""
    return Result(
        env=cell.env,
        steps=cell.steps,
        episodes=cell.episodes,
        seeds=cell.seeds,
        returns=tuple(map(float, cell.returns)),
        commands=tuple(shlex.join(map(without_places, shlex.split(one))) for one in cell.commands),
        study=results.title or results.name,
        table=tuple(_table(results, cell.env)),
    )


def _table(results: Results, env: str) -> list[Row]:
    rows = []
    if env in results.random_policy:
        rows.append(Row("random play", results.random_policy[env], None, None, 0))
    for method in results.methods:
        own = [cell for cell in results.cells if (cell.env, cell.method) == (env, method)]
        if own:
            rows.append(_row(method, mean_interval(np.array([cell.score for cell in own])), len(own)))
    return rows


def _row(name: str, found: Estimate, runs: int) -> Row:
    low, high = (None if np.isnan(one) else float(one) for one in (found.low, found.high))
    return Row(name, float(found.point), low, high, runs)


def without_places(value: Any) -> Any:
    """Return settings whose paths have no folders of this machine: of an absolute path the last part is left."""
    if isinstance(value, dict):
        return {name: without_places(one) for name, one in value.items()}
    if isinstance(value, list):
        return [without_places(one) for one in value]
    return PurePosixPath(value).name if isinstance(value, str) and value.startswith("/") else value


def without_places_in(text: str, about: object) -> str:
    """Take the folders of this machine out of a card, as out of the settings that it shows."""
    found: list[str] = []

    def collect(value: object) -> None:
        if isinstance(value, dict | list):
            for one in value.values() if isinstance(value, dict) else value:
                collect(one)
        elif isinstance(value, str) and value.startswith("/"):
            found.append(value)

    collect(about)
    for place in sorted(found, key=len, reverse=True):
        text = text.replace(place, str(without_places(place)))
    return text
