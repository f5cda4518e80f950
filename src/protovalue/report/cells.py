"""One finished, evaluated run read back as a cell: its scores, its curve, and the settings that it depends on."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from protovalue.config import Settings, names_where
from protovalue.data.dataset import Folder
from protovalue.encoder import CONFIG as ENCODER_CONFIG
from protovalue.envs.options import check_recorded
from protovalue.errors import UserError
from protovalue.files import read_json
from protovalue.online.config import DqnConfig, OnlineConfig
from protovalue.online.linear_dqn import parse_random
from protovalue.pretrain.config import PretrainConfig
from protovalue.pretrain.methods import method_class, method_names
from protovalue.runs import CONFIG, METRICS, read_metrics, read_run, renamed
from protovalue.schema import checked
from protovalue.study.folder import Expected

EVALUATION = "evaluation.json"
DQN = "dqn"
# What is recorded beside the settings. The options of the environment are those that the evaluation records, with the
# defaults of the environment filled in.
_BESIDE = {"data_checksum", "encoder_checksum", "kind", "feature_divisor"}
THEN = " then "  # between the versions that one run was continued with
_EMULATORS = {"atari": "ale-py", "minatar": "minatar", "gym": "gymnasium"}

Array = NDArray[np.float64]


@dataclass(frozen=True)
class CellResult:
    """One pretrained encoder with its linear agents, or one run of end-to-end agents: the unit of statistics."""

    env: str
    method: str
    """Title of the method, as in tables and legends."""
    width: float
    tasks: int | None
    """Number of auxiliary tasks; None where the method has no such number."""
    data_seed: int | None
    pretraining_seed: int | None
    """Seed of the encoder; None end to end."""
    seeds: tuple[int, ...]
    """Seeds of the S agents."""
    returns: Array
    """Mean evaluation return of each agent (S,)."""
    episodes: int
    """Evaluation episodes of each agent."""
    steps: int
    """Agent steps of each agent."""
    curve_steps: Array
    """Agent steps (T,) of the training curve."""
    curve: Array
    """Mean return of the training episodes since the point before (S, T); NaN where none ended."""
    run: Path
    encoder: Path | None
    data: Path | None
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What must be equal for two cells to be compared as one method."""
    commands: tuple[str, ...] = ()
    seconds: float | None = None
    """Wall-clock time of pretraining, agents and evaluation together, where it was recorded."""
    checksum: str | None = None
    """Of the encoder's parameters; None end to end."""
    parts: tuple[tuple[Path, int], ...] = ()
    """The runs that the agents come from, each with its number of agents; empty where all are of `run`."""
    loss: float | None = None
    """Of the last tenth of pretraining; only where `kept` is set, else it is in the encoder's log."""
    transitions: int | None = None
    """Of the data that the encoder learned from; None where that is not known."""
    kept: Path | None = None
    """The file of results that it was read from; its run, encoder and data are not at hand then."""

    @property
    def score(self) -> float:
        """Mean over the agents."""
        return float(self.returns.mean())

    @property
    def runs(self) -> tuple[Path, ...]:
        """The runs that the agents come from."""
        return tuple(run for run, _ in self.parts) or (self.run,)

    def place(self, agent: int) -> tuple[Path, int]:
        """Return the run that the agent of an index is in, and its index there."""
        for run, count in self.parts:
            if agent < count:
                return run, agent
            agent -= count
        return self.run, agent


def read_cell(
    run: Path, encoder: Path | None, expect: Expected | None = None, seeds: Sequence[int] | None = None
) -> CellResult:
    """Read a finished, evaluated run and the encoder that it stands on; what cannot be used is a UserError.

    Args:
        run: folder of the run.
        encoder: what its agents stand on; None end to end.
        expect: how it should have been evaluated, where that is known.
        seeds: the agents that it should have, where that is known.
    """
    recorded = read_agents(run)
    config, evaluation = recorded["config"], read_evaluation(run / EVALUATION)
    found = tuple(row["seed"] for row in evaluation["seeds"])
    wanted = expect or Expected()
    steps_wanted = config.get("steps") if wanted.steps is None else wanted.steps
    reason = why_unlike(evaluation, replace(wanted, steps=steps_wanted))
    if reason is None and seeds is not None and sorted(found) != sorted(seeds):
        reason = f"evaluated agents of seeds {_listed(found)}, the study says {_listed(seeds)}"
    if reason:
        raise UserError(reason)
    own = _compared(config, OnlineConfig if encoder else DqnConfig)
    method, width, tasks, seed = DQN, config.get("width", 1), None, None
    settings: dict[str, Any] = {}
    made: dict[str, Any] = {}
    if encoder is not None:
        about = _about(str(encoder))
        made = about["config"]
        method, width, seed, tasks = about["method"], made.get("width", 1), made.get("seed"), made.get("tasks")
        settings = _encoder_settings(about, evaluation["env"])
    versions = _versions(recorded, evaluation["env"], normalized=bool(settings.get("encoder.layer_norm")))
    settings |= {
        "kind": config["kind"],
        "method": method,
        **{f"agent.{name}": value for name, value in own.items()},
        **{f"version.{name}": text for name, text in versions.items()},
        **{f"evaluation.{name}": evaluation.get(name) for name in ("episodes", "epsilon", "seed")},
        **{f"env.{name}": value for name, value in evaluation.get("env_options", {}).items()},
    }
    steps, curve = _curve(run, found)
    return CellResult(
        env=evaluation["env"],
        method=method,
        width=width,
        tasks=tasks,
        data_seed=None,
        pretraining_seed=seed,
        seeds=found,
        returns=np.array([row["mean_return"] for row in evaluation["seeds"]], np.float64),
        episodes=evaluation["episodes"],
        steps=evaluation["steps"],
        curve_steps=steps,
        curve=curve,
        run=run,
        encoder=encoder if encoder is not None and encoder.exists() else None,
        data=None,
        settings=settings,
        checksum=config.get("encoder_checksum"),
        transitions=None if method == "random" else transitions_of([Path(one) for one in made.get("data") or ()]),
    )


def transitions_of(data: Sequence[Path]) -> int | None:
    """Count the transitions of data sets; None where there is none, or one is not at hand."""
    try:
        return sum(Folder(path).manifest.transitions for path in data) or None
    except UserError:
        return None


@dataclass(frozen=True)
class _Agent:
    """What is used of an agent's entry in evaluation.json."""

    seed: int
    mean_return: float


@dataclass(frozen=True)
class _Evaluation:
    """What is used of evaluation.json."""

    env: str
    steps: int
    episodes: int
    mean_return: float
    seeds: list[_Agent]
    epsilon: float | None = None
    seed: int | None = None
    env_options: dict[str, Any] = field(default_factory=dict)


def read_evaluation(path: Path) -> dict[str, Any]:
    """Read what `pvn evaluate` wrote; what has no usable numbers is a UserError."""
    evaluation = read_json(path)
    try:
        found = checked(_Evaluation, evaluation, path, extra=True)
    except UserError as error:
        raise UserError(f"{path}: not an evaluation: {str(error).removeprefix(f'{path}: ')}") from error
    if not found.seeds:
        raise UserError(f"{path}: not an evaluation: it has no returns of seeds")
    numbers = [("mean return", found.mean_return)]
    numbers += [(f"mean return of seed {agent.seed}", agent.mean_return) for agent in found.seeds]
    wrong = [f"{what} is {value}" for what, value in numbers if not math.isfinite(value)]
    if wrong:
        raise UserError(f"{path}: the {wrong[0]}, expected a finite number")
    check_recorded(found.env, found.env_options, f"{path}: field env_options")
    return {"env_options": {}, **evaluation}


@dataclass(frozen=True)
class _Agents:
    """What is used of the config of a run of agents; the rest is only compared."""

    kind: Literal["online", "dqn"]
    env: str
    steps: int | None = None
    width: int | float = 1
    encoder: str | None = None
    encoder_checksum: str | None = None


@dataclass(frozen=True)
class _Made:
    """What is used of the config of an encoder; the rest is only compared."""

    width: int | float | None = 1
    seed: int | None = None
    tasks: int | None = None
    architecture: str | None = None
    data_checksum: str | None = None


@dataclass(frozen=True)
class _About:
    """What is used of what an encoder says of itself."""

    method: str
    config: dict[str, Any]
    env_id: str | None = None


def read_agents(run: Path) -> dict[str, Any]:
    """Read the record of a run of agents, as `read_run` does; any other run is a UserError."""
    recorded = read_run(run)
    found = checked(_Agents, recorded["config"], f"{run / CONFIG}: field config", extra=True)
    if found.kind == "online" and found.encoder is None:
        raise UserError(f"{run / CONFIG}: field config.encoder: missing, expected that of the agents")
    return recorded


def why_unlike(evaluation: Mapping[str, Any], expect: Expected) -> str | None:
    """Say in what an evaluation is not the one that is expected, or None."""
    if expect.steps not in (None, evaluation["steps"]):
        return f"evaluated at step {evaluation['steps']:,} of {expect.steps:,}"
    for name in ("episodes", "epsilon", "seed", "env_options"):
        wanted = getattr(expect, name)
        if wanted is not None and evaluation.get(name) != wanted:
            return f"evaluated with {name} {evaluation.get(name)}, the study says {wanted}"
    return None


def _listed(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds))


def _encoder_settings(about: Mapping[str, Any], env: str) -> dict[str, Any]:
    """Return what an encoder's features depend on beside its seed."""
    made = about["config"]
    if about["method"] == "random":  # drawn, not trained
        normed = {"encoder.layer_norm": True} if made.get("layer_norm") else {}
        return {"encoder.architecture": made["architecture"], "encoder.width": made.get("width", 1), **normed}
    settings = _compared(made, _config_of(about["method"]))
    if about.get("env_id") not in (None, env):
        settings["trained on"] = about["env_id"]
    if made.get("data_checksum"):
        settings["data checksum"] = made["data_checksum"][:8]
    if "run" in about:
        settings |= {f"pretrained with {name}": text for name, text in _versions(about["run"], env).items()}
    return {f"encoder.{name}": value for name, value in settings.items()}


def _compared(recorded: Mapping[str, Any], config: type[Settings]) -> dict[str, Any]:
    """Return what must be equal for two runs to be of one method; a name that is not known here counts."""
    beside = names_where(config, lambda role: not role.compared) | _BESIDE
    return {name: value for name, value in recorded.items() if name not in beside}


def _config_of(method: str) -> type[Settings]:
    """Return the settings of a method; of a user's own, whose file is not run here, what all methods share."""
    return method_class(method).Config if method in method_names() else PretrainConfig


def _versions(recorded: Mapping[str, Any], env: str, normalized: bool = False) -> dict[str, str]:
    """Return every version that a run was continued with, of the packages that decide its result.

    Agents on `normalized` features, those with layer norm, once had them from PyTorch alone.
    """
    names = ("protovalue", "torch", _EMULATORS.get(env.partition("/")[0], ""))
    found = {name: dict.fromkeys(one[name] for one in recorded["versions"] if name in one) for name in names}
    if recorded["config"].get("kind") in ("online", DQN):  # agents, once computed by PyTorch alone
        found["compiled"] = dict.fromkeys(one.get("compiled", "none") for one in recorded["versions"])
    if normalized:
        found["normalized"] = dict.fromkeys(one.get("normalized", "none") for one in recorded["versions"])
    if _has_random_networks(recorded["config"]):  # once convolved by PyTorch alone
        found["patches"] = dict.fromkeys(one.get("patches", "none") for one in recorded["versions"])
    return {name: THEN.join(versions) for name, versions in found.items() if versions}


def _has_random_networks(config: Mapping[str, Any]) -> bool:
    """Say whether a run learned from random networks on frames that may be large: not from those of MinAtar."""
    learned = config.get("indicator") == "rni" if config.get("method") == "pvn" else config.get("method") == "cumulants"
    return learned and config.get("architecture") != "minatar"


def _about(encoder: str) -> dict[str, Any]:
    """Return what is known of an encoder: its card and its run, or what random:ARCHITECTURE:WIDTH[:SEED] says."""
    if encoder.startswith("random:"):
        architecture, width, seed = parse_random(encoder)
        return {"method": "random", "config": {"architecture": architecture, "width": width, "seed": seed}}
    folder = Path(encoder)
    for candidate, run in ((folder / "encoder", folder), (folder, folder.parent)):
        if (candidate / ENCODER_CONFIG).is_file():
            found = read_json(candidate / ENCODER_CONFIG).get("about")
            where = f"{candidate / ENCODER_CONFIG}: field about"
            if isinstance(found, dict) and "method" in found:
                made = renamed(checked(_About, found, where, extra=True).config)
                checked(_Made, made, f"{where}.config", extra=True)
                found = {**found, "config": {"architecture": None, **made}}
                beside = {"run": read_run(run)} if candidate.name == "encoder" and (run / CONFIG).is_file() else {}
                return {**found, **beside}
    raise UserError(f"{encoder}: found no encoder there, expected the one that a run was trained on")


def _curve(run: Path, seeds: Sequence[int]) -> tuple[Array, Array]:
    """Return the training curve of each seed: steps (T,) and returns (S, T)."""
    try:
        rows = read_metrics(run, whole=True)
        points = [row for row in rows if "return" in row or any(f"return/seed-{seed}" in row for seed in seeds)]
        values = [[row.get(f"return/seed-{seed}") for row in points] for seed in seeds]
        steps = np.array([row["step"] for row in points], np.float64)
        return steps, np.array(values, np.float64).reshape(len(seeds), len(points))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{run / METRICS}: damaged: not the metrics of a run ({error!r})") from error
