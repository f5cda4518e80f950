"""What a report is about: finished runs read back from a study folder, or from loose run folders, as cells."""

import json
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protovalue.encoder import CONFIG as ENCODER_CONFIG
from protovalue.errors import UserError
from protovalue.files import read_json
from protovalue.runs import CONFIG, FORMAT, read_metrics, read_run

STUDY, EVENTS, EVALUATION = "study.json", "events.jsonl", "evaluation.json"
STUDY_FORMAT, STUDY_VERSION = "protovalue study", 1
DQN = "dqn"
# What may differ between runs that are compared: where things lie, what is drawn, and how often something is written.
_NOT_SETTINGS = {
    "out", "env", "data", "encoder", "seed", "seeds", "cache", "device", "threads", "memory", "log_every", "holdout",
    "checkpoint_every", "replay_dir", "keep_replay", "data_checksum", "encoder_checksum", "kind", "method", "stages",
    "other_game", "options", "feature_divisor",
}  # fmt: skip

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Cell:
    """One pretrained encoder with its linear agents, or one run of end-to-end agents: the unit of statistics."""

    env: str
    method: str
    """Title of the method, as in tables and legends."""
    width: int
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

    @property
    def score(self) -> float:
        """Mean over the agents."""
        return float(self.returns.mean())


@dataclass(frozen=True)
class Missing:
    """A cell that a study names and that has no result."""

    env: str
    method: str
    pretraining_seed: int | None
    reason: str


@dataclass(frozen=True)
class Results:
    """All cells of a report, in the order of their methods and environments."""

    name: str
    title: str
    normalise: str
    """What scores are measured on: "human", "dqn" (random policy 0, DQN 1) or "none"."""
    methods: tuple[str, ...]
    envs: tuple[str, ...]
    cells: tuple[Cell, ...]
    missing: tuple[Missing, ...] = ()
    random_policy: Mapping[str, float] = field(default_factory=dict)
    """Mean return of uniformly random actions, by environment."""
    stage_seconds: Mapping[str, float] = field(default_factory=dict)
    """Wall-clock time by kind of stage."""
    notes: tuple[str, ...] = ()
    """What a reader must know, such as that runs of different settings were told apart."""
    file: str | None = None
    """The text of the study file."""

    def of(self, method: str, env: str) -> tuple[Cell, ...]:
        """Return the cells of a method in an environment."""
        return tuple(cell for cell in self.cells if cell.method == method and cell.env == env)

    def scores(self) -> dict[str, dict[str, Array]]:
        """Return mean evaluation returns (P, S) by method and environment: P encoders with S agents each.

        Where cells have different numbers of agents, the first ones of each are taken, as many as all have.
        """
        table: dict[str, dict[str, Array]] = {}
        for method in self.methods:
            for env in self.envs:
                rows = [cell.returns for cell in self.of(method, env)]
                if method == self.end_to_end and rows:  # every end-to-end agent has a network of its own
                    table.setdefault(method, {})[env] = np.concatenate(rows)[:, None]
                elif rows:
                    common = min(len(row) for row in rows)
                    table.setdefault(method, {})[env] = np.stack([row[:common] for row in rows])
        return table

    @property
    def end_to_end(self) -> str | None:
        """Title of the end-to-end method, if there is one."""
        return next((cell.method for cell in self.cells if cell.settings.get("kind") == DQN), None)


def read_results(paths: Sequence[Path]) -> Results:
    """Read one study folder, or any run folders (or folders of them) of `pvn online` and `pvn dqn`."""
    studies = [path for path in paths if (path / STUDY).is_file()]
    if studies and len(paths) > 1:
        raise UserError(f"{studies[0]}: found a study among other runs, expected one study or loose runs")
    results = _read_study(studies[0]) if studies else _read_runs(paths)
    if not results.cells:
        listed = "; ".join(f"{one.method} in {one.env}: {one.reason}" for one in results.missing[:3])
        more = f" ({listed}{', ...' if len(results.missing) > 3 else ''})" if listed else ""
        raise UserError(f"{', '.join(map(str, paths))}: no finished, evaluated run to report on{more}")
    return results


def _read_study(folder: Path) -> Results:
    """Read the cells that a study names; what has no result is listed as missing, with the reason."""
    study = read_json(folder / STUDY)
    if study.get("format") != STUDY_FORMAT or study.get("version") != STUDY_VERSION:
        raise UserError(f"{folder / STUDY}: not a study of format version {STUDY_VERSION}")
    seconds, errors = _read_events(folder / EVENTS)
    stages = {stage["id"]: stage for stage in study["stages"]}
    users = Counter(stage for cell in study["cells"] for stage in cell["stages"])
    titles = {name: about["title"] for name, about in study["methods"].items()}
    grid = {name: _varying([cell for cell in study["cells"] if cell["method"] == name]) for name in titles}
    cells, missing, methods = [], [], []
    for entry in study["cells"]:
        title = titles[entry["method"]] + _grid_suffix(entry, grid[entry["method"]])
        methods.append(title)
        run = folder / entry["run"]
        own = [stages[name] for name in entry["stages"]]
        reason = _why_missing(run, own, errors)
        if reason:
            missing.append(Missing(entry["env"], title, entry["pretraining_seed"], reason))
            continue
        cell = _read_cell(run, folder / entry["encoder"] if entry["encoder"] else None)
        taken = [seconds[stage["id"]] / users[stage["id"]] for stage in own if stage["id"] in seconds]
        cells.append(
            replace(
                cell,
                method=title,
                width=entry["width"],
                tasks=entry["tasks"],
                data_seed=entry["data_seed"],
                pretraining_seed=entry["pretraining_seed"],
                data=folder / entry["data"] if entry["data"] else None,
                commands=tuple(shlex.join(stage["command"]) for stage in own),
                seconds=sum(taken) if taken else None,
            )
        )
    _refuse_mixtures(cells)
    by_kind: dict[str, float] = defaultdict(float)
    for name, spent in seconds.items():
        if name in stages:
            by_kind[stages[name]["kind"]] += spent
    random_policy = {
        env: float(read_json(folder / where)["mean_return"])
        for env, where in study["random_policy"].items()
        if (folder / where).is_file()
    }
    return Results(
        name=study["name"],
        title=study["title"],
        normalise=study["normalise"],
        methods=tuple(dict.fromkeys(methods)),
        envs=tuple(dict.fromkeys(entry["env"] for entry in study["cells"])),
        cells=tuple(cells),
        missing=tuple(missing),
        random_policy=random_policy,
        stage_seconds=dict(by_kind),
        notes=(),
        file=study["file"],
    )


def _read_runs(paths: Sequence[Path]) -> Results:
    """Read loose runs; those of one method with different settings become different methods, named by what differs."""
    folders = sorted({config.parent for path in paths for config in _run_configs(path)})
    cells, missing = [], []
    for folder in folders:
        recorded = read_run(folder)["config"]
        if recorded.get("kind") not in ("online", DQN):
            continue
        encoder = Path(recorded["encoder"]) if recorded["kind"] == "online" else None
        reason = _why_missing(folder, (), {})
        if reason:
            name = DQN if encoder is None else "online"
            missing.append(Missing(recorded["env"], name, None, f"{folder}: {reason}"))
        else:
            cells.append(_read_cell(folder, encoder))
    cells, notes = _told_apart(cells)
    envs = tuple(sorted({cell.env for cell in cells}))
    atari = envs and all(env.startswith("atari/") for env in envs)
    return Results(
        name="runs",
        title="Runs",
        normalise="human" if atari else "none",
        methods=tuple(sorted({cell.method for cell in cells})),
        envs=envs,
        cells=tuple(cells),
        missing=tuple(missing),
        notes=notes,
    )


def _run_configs(path: Path) -> Iterable[Path]:
    if not path.is_dir():
        raise UserError(f"{path}: found no folder, expected a study, a run, or a folder of runs")
    if (path / CONFIG).is_file():
        return [path / CONFIG]
    return [found for found in path.rglob(CONFIG) if read_json(found).get("format") == FORMAT]  # encoders have one too


def _why_missing(run: Path, stages: Sequence[Mapping[str, Any]], errors: Mapping[str, str]) -> str | None:
    """Say why a cell has no result, or None if it has one."""
    for stage in stages:
        if stage["id"] in errors:
            return f"{stage['kind']} failed: {errors[stage['id']]}"
    if not (run / CONFIG).is_file():
        return "not begun"
    if not (run / "done.json").is_file():
        return "not finished"
    if not (run / EVALUATION).is_file():
        return f"not evaluated (pvn evaluate {run})"
    return None


def _read_cell(run: Path, encoder: Path | None) -> Cell:
    """Read a finished, evaluated run and the encoder that it stands on."""
    recorded = read_run(run)
    config, evaluation = recorded["config"], read_json(run / EVALUATION)
    seeds = tuple(row["seed"] for row in evaluation["seeds"])
    online = {f"agent.{name}": value for name, value in config.items() if name not in _NOT_SETTINGS}
    versions = {f"version.{name}": recorded["versions"][-1][name] for name in ("protovalue", "torch")}
    settings = {"kind": config["kind"], **online, **versions, "agent.episodes": evaluation["episodes"]}
    method, width, tasks, seed = DQN, config.get("width", 1), None, None
    if encoder is not None:
        about = _about(str(encoder))
        own = about["config"]
        method, width, seed = about["method"], own.get("width", 1), own.get("seed")
        tasks = own.get("tasks")
        settings |= {f"encoder.{name}": value for name, value in own.items() if name not in _NOT_SETTINGS}
    settings["method"] = method
    rows = read_metrics(run)
    steps, curve = _curve(rows, seeds)
    return Cell(
        env=evaluation["env"],
        method=method,
        width=width,
        tasks=tasks,
        data_seed=None,
        pretraining_seed=seed,
        seeds=seeds,
        returns=np.array([row["mean_return"] for row in evaluation["seeds"]], np.float64),
        episodes=evaluation["episodes"],
        steps=evaluation["steps"],
        curve_steps=steps,
        curve=curve,
        run=run,
        encoder=encoder if encoder is not None and encoder.exists() else None,
        data=None,
        settings=settings,
    )


def _about(encoder: str) -> dict[str, Any]:
    """Return what is known of an encoder: its card's config, or what random:ARCHITECTURE:WIDTH[:SEED] says."""
    if encoder.startswith("random:"):
        parts = encoder.split(":")[1:]
        seed = int(parts[2]) if len(parts) > 2 else 0
        return {"method": "random", "config": {"width": int(parts[1]), "seed": seed}}
    folder = Path(encoder)
    for candidate in (folder / "encoder" / ENCODER_CONFIG, folder / ENCODER_CONFIG):
        if candidate.is_file():
            found = read_json(candidate).get("about", {})
            if "method" in found:
                return dict(found)
    raise UserError(f"{encoder}: found no encoder there, expected the one that a run was trained on")


def _curve(rows: Sequence[Mapping[str, Any]], seeds: Sequence[int]) -> tuple[Array, Array]:
    """Return the training curve of each seed: steps (T,) and returns (S, T)."""
    points = [row for row in rows if "return" in row or any(f"return/seed-{seed}" in row for seed in seeds)]
    values = [[row.get(f"return/seed-{seed}") for row in points] for seed in seeds]
    steps = np.array([row["step"] for row in points], np.float64)
    return steps, np.array(values, np.float64).reshape(len(seeds), len(points))


def _read_events(path: Path) -> tuple[dict[str, float], dict[str, str]]:
    """Return the seconds that each stage took, over all its attempts, and the errors of those that failed last."""
    seconds: dict[str, float] = defaultdict(float)
    errors: dict[str, str] = {}
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    for line in lines:
        if not line.endswith("\n"):
            continue  # a kill cut it short
        event = json.loads(line)
        seconds[event["stage"]] += event.get("seconds") or 0.0
        if event["event"] == "failed":
            errors[event["stage"]] = event.get("error") or "no reason was recorded"
        elif event["event"] in ("start", "done"):
            errors.pop(event["stage"], None)
    return dict(seconds), errors


def _varying(entries: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return what takes several values within one method of a study: width, number of tasks."""
    return tuple(name for name in ("width", "tasks") if len({entry[name] for entry in entries}) > 1)


def _grid_suffix(entry: Mapping[str, Any], grid: Sequence[str]) -> str:
    parts = [f"{entry['width']}x" if name == "width" else f"{entry['tasks']} tasks" for name in grid]
    return f", {', '.join(parts)}" if parts else ""


def _varies_within_an_environment(name: str, cells: Sequence[Cell]) -> bool:
    values: dict[str, set[str]] = defaultdict(set)
    for cell in cells:
        values[cell.env].add(repr(cell.settings.get(name)))
    return any(len(found) > 1 for found in values.values())


def _refuse_mixtures(cells: Sequence[Cell]) -> None:
    """Refuse cells of one method that were made with different settings or versions."""
    first: dict[tuple[str, str], Cell] = {}
    for cell in cells:
        other = first.setdefault((cell.method, cell.env), cell)
        differ = _differences(cell.settings, other.settings)
        if differ:
            name = differ[0]
            raise UserError(
                f"{cell.run}: {name} is {cell.settings.get(name)}, but {other.settings.get(name)} in {other.run}; "
                f"both are {cell.method}: a report does not mix them"
            )


def _differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


def _told_apart(cells: Sequence[Cell]) -> tuple[list[Cell], tuple[str, ...]]:
    """Name loose cells by their method and by the settings in which cells that would share a name differ.

    Settings of the agents and versions are compared over all methods, those of an encoder within its method, both
    within an environment: two games may well have different budgets.
    """
    groups: dict[tuple[str, str], list[Cell]] = defaultdict(list)
    for cell in cells:
        kind = str(cell.settings["kind"])
        groups["kind", kind].append(cell)
        groups["method", cell.method].append(cell)
    varying: dict[tuple[str, str], list[str]] = {}
    for key, group in groups.items():
        prefixes = ("agent.", "version.") if key[0] == "kind" else ("encoder.",)
        names = sorted({name for cell in group for name in cell.settings if name.startswith(prefixes)})
        varying[key] = [name for name in names if _varies_within_an_environment(name, group)]
    renamed = []
    for cell in cells:
        names = [*varying["method", cell.method], *varying["kind", str(cell.settings["kind"])]]
        parts = [f"{name.partition('.')[2].replace('_', ' ')} {cell.settings.get(name)}" for name in names]
        renamed.append(replace(cell, method=", ".join([cell.method, *parts])))
    differing = sorted({name for names in varying.values() for name in names})
    if not differing:
        return renamed, ()
    said = f"runs with different settings are shown as different methods; what differs: {', '.join(differing)}"
    return renamed, (said,)
