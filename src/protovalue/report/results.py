"""What a report is about: finished runs read back from a study folder, or from loose run folders, as cells."""

import os
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from protovalue.diary import read_diary
from protovalue.errors import UserError
from protovalue.files import read_bytes, read_json
from protovalue.report.cells import DQN, EVALUATION, Array, Cell, read_agents, read_cell, read_evaluation, why_unlike
from protovalue.runs import CONFIG, FORMAT, read_run
from protovalue.schema import checked, parse_json, require

__all__ = ["DQN", "EVALUATION", "Cell", "Missing", "Results", "read_results"]

STUDY = "study.json"
STUDY_FORMAT, STUDY_VERSION = "protovalue study", 1
DATA = "encoder.data checksum"  # a study has data seeds, and says in its cells which data an encoder learned from


@dataclass(frozen=True)
class Missing:
    """A cell that a study names and that has no result."""

    env: str
    method: str
    pretraining_seed: int | None
    reason: str
    seeds: tuple[int, ...] = ()
    """Seeds of the agents that it should have had."""


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
    """Recorded wall-clock time by kind of stage."""
    stages_without_time: int = 0
    """Finished stages of which no time was recorded."""
    attempts_without_time: int = 0
    """Attempts at stages that were begun and whose end was not recorded: they were killed, or still run."""
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


@dataclass(frozen=True)
class _Title:
    """What study.json says of a method."""

    title: str


@dataclass(frozen=True)
class _Entry:
    """What is used of a cell in study.json."""

    env: str
    method: str
    width: int
    tasks: int | None
    data_seed: int | None
    pretraining_seed: int | None
    seeds: list[int]
    data: str | None
    encoder: str | None
    run: str
    stages: list[str]


@dataclass(frozen=True)
class _Expected:
    """What is used of what a stage's result must hold."""

    file: str | None = None
    steps: int | None = None
    episodes: int | None = None
    epsilon: float | None = None
    seed: int | None = None


@dataclass(frozen=True)
class _StageEntry:
    """What is used of a stage in study.json."""

    id: str
    kind: str
    command: list[str]
    expect: _Expected | None = None


@dataclass(frozen=True)
class _Study:
    """What is used of study.json."""

    name: str
    title: str
    normalise: Literal["human", "dqn", "none"]
    methods: dict[str, _Title]
    random_policy: dict[str, str]
    cells: list[_Entry]
    stages: list[_StageEntry]
    file: str | None

    def __post_init__(self) -> None:
        stages = {stage.id for stage in self.stages}
        for number, cell in enumerate(self.cells):
            require(cell.method in self.methods, f"cells[{number}].method", cell.method, "one of `methods`")
            unknown = [name for name in cell.stages if name not in stages]
            require(not unknown, f"cells[{number}].stages", unknown[:1], "ids of `stages`")


def _read_study(folder: Path) -> Results:
    """Read the cells that a study names; what has no result is listed as missing, with the reason."""
    study = read_json(folder / STUDY)
    if study.get("format") != STUDY_FORMAT or study.get("version") != STUDY_VERSION:
        raise UserError(f"{folder / STUDY}: not a study of format version {STUDY_VERSION}")
    checked(_Study, study, folder / STUDY, extra=True)
    log = _read_events(folder)
    stages = {stage["id"]: stage for stage in study["stages"]}
    users = Counter(stage for cell in study["cells"] for stage in cell["stages"])
    titles = {name: about["title"] for name, about in study["methods"].items()}
    grid = {name: _varying([cell for cell in study["cells"] if cell["method"] == name]) for name in titles}
    cells, missing, methods, finished = [], [], [], set(log.finished)
    for entry in study["cells"]:
        title = titles[entry["method"]] + _grid_suffix(entry, grid[entry["method"]])
        methods.append(title)
        own = [stages[name] for name in entry["stages"]]
        try:
            cell = _read_entry(folder, entry, own, log.errors)
        except UserError as error:
            seed, seeds = entry["pretraining_seed"], tuple(entry["seeds"])
            missing.append(Missing(entry["env"], title, seed, str(error), seeds))
            continue
        finished |= set(entry["stages"])
        taken = [log.seconds[stage["id"]] / users[stage["id"]] for stage in own if stage["id"] in log.seconds]
        cells.append(
            replace(
                cell,
                method=title,
                width=entry["width"],
                tasks=entry["tasks"],
                data_seed=entry["data_seed"],
                pretraining_seed=entry["pretraining_seed"],
                data=folder / entry["data"] if entry["data"] else None,
                settings={name: value for name, value in cell.settings.items() if name != DATA},
                commands=tuple(shlex.join(stage["command"]) for stage in own),
                seconds=sum(taken) if taken else None,
            )
        )
    _refuse_mixtures(cells)
    cells, twice = _each_encoder_once(cells)
    by_kind: dict[str, float] = defaultdict(float)
    for name, spent in log.seconds.items():
        if name in stages:
            by_kind[stages[name]["kind"]] += spent
    random_policy, unusable = _random_policy(folder, study)
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
        stages_without_time=len([name for name in finished if name in stages and name not in log.seconds]),
        attempts_without_time=log.unended,
        notes=(*log.notes, *twice, *unusable, *_about_variants(cells), *_about_data(cells)),
        file=study["file"],
    )


def _read_entry(
    folder: Path, entry: Mapping[str, Any], stages: Sequence[Mapping[str, Any]], errors: Mapping[str, str]
) -> Cell:
    """Read a cell of a study; a UserError says why it has no result."""
    run = folder / entry["run"]
    for stage in stages:
        if stage["id"] in errors:
            raise UserError(f"{stage['kind']} failed: {errors[stage['id']]}")
    reason = _why_unfinished(run)
    if reason:
        raise UserError(reason)
    expect = next((stage.get("expect") for stage in stages if stage["kind"] == "evaluate"), None)
    return read_cell(run, folder / entry["encoder"] if entry["encoder"] else None, expect, entry["seeds"])


def _random_policy(folder: Path, study: Mapping[str, Any]) -> tuple[dict[str, float], list[str]]:
    """Return the mean return of random actions by environment, and why some of them cannot be used."""
    expect = {
        stage["expect"]["file"]: stage["expect"]
        for stage in study["stages"]
        if stage["kind"] == "random-policy" and "file" in (stage.get("expect") or {})
    }
    found, notes = {}, []
    for env, where in study["random_policy"].items():
        if not (folder / where).is_file():
            continue
        try:
            evaluation = read_evaluation(folder / where)
            reason = why_unlike(evaluation, expect.get(where, {}))
        except UserError as error:
            reason = str(error)
        if reason:
            notes.append(f"the random policy of {env} is not used: {reason}")
        else:
            found[env] = float(evaluation["mean_return"])
    return found, notes


def _read_runs(paths: Sequence[Path]) -> Results:
    """Read loose runs; those of one method with different settings become different methods, named by what differs."""
    folders = {config.parent.resolve(): config.parent for path in paths for config in _run_configs(path)}
    cells, missing = [], []
    for folder in sorted(folders.values()):
        if read_run(folder)["config"].get("kind") not in ("online", DQN):
            continue
        recorded = read_agents(folder)["config"]
        encoder = Path(str(recorded["encoder"])) if recorded["kind"] == "online" else None
        reason = _why_unfinished(folder)
        try:
            if reason is None:
                cells.append(read_cell(folder, encoder))
        except UserError as error:
            reason = str(error)
        if reason:
            named = reason if reason.startswith(str(folder)) else f"{folder}: {reason}"
            missing.append(Missing(recorded["env"], DQN if encoder is None else "online", None, named))
    cells, notes = _told_apart(cells)
    cells = _joined(cells)
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
        notes=(*notes, *_uneven(cells)),
    )


def _run_configs(path: Path) -> Iterator[Path]:
    """Find runs in a folder; what is not ours is passed over, unless it was named itself."""
    if not path.is_dir():
        raise UserError(f"{path}: found no folder, expected a study, a run, or a folder of runs")
    if (path / CONFIG).is_file():
        yield path / CONFIG
        return
    for root, _, names in os.walk(path):
        if STUDY in names and _format(Path(root, STUDY)) == STUDY_FORMAT:
            raise UserError(f"{root}: found a study among loose runs, expected `pvn report {root}` alone")
        if CONFIG in names and _format(Path(root, CONFIG)) == FORMAT:  # encoders have a config too
            yield Path(root, CONFIG)


def _format(path: Path) -> object:
    """Return what a JSON file says that it is; None where it says nothing, or is no JSON."""
    try:
        fields = parse_json(read_bytes(path), path)
    except (OSError, UserError):
        return None
    return fields.get("format") if isinstance(fields, dict) else None


def _why_unfinished(run: Path) -> str | None:
    """Say why a run has no result, or None if it has one."""
    if not (run / CONFIG).is_file():
        return "not begun"
    if not (run / "done.json").is_file():
        return "not finished"
    if not (run / EVALUATION).is_file():
        return f"not evaluated (pvn evaluate {run})"
    return None


@dataclass(frozen=True)
class _Log:
    """What events.jsonl says."""

    seconds: Mapping[str, float]
    """By stage, over all attempts of which a time was recorded."""
    errors: Mapping[str, str]
    """Of the stages that failed last."""
    finished: frozenset[str]
    unended: int
    """Attempts without an end."""
    notes: tuple[str, ...]


def _read_events(folder: Path) -> _Log:
    """Read how the stages of a study went; lines that cannot be read are counted in a note, and the first are named."""
    seconds: dict[str, float] = defaultdict(float)
    errors: dict[str, str] = {}
    finished: set[str] = set()
    running: Counter[str] = Counter()
    lines = read_diary(folder)
    for event in lines.rows:
        stage, what, spent = event["stage"], event["event"], event.get("seconds")
        if what == "start":
            running[stage] += 1
        elif running[stage]:
            running[stage] -= 1
        if spent is not None:
            seconds[stage] += float(spent)
        if what == "done":
            finished.add(stage)
        if what == "failed":
            errors[stage] = event.get("error") or "no reason was recorded"
        elif what in ("start", "done"):
            errors.pop(stage, None)
    unread = len(lines.wrong) - lines.cut_short  # a kill cuts the last one short
    count = "1 line" if unread == 1 else f"{unread} lines"
    note = f"{lines.path}: {count} cannot be read and are passed over: times may be missing ({lines.damage})"
    return _Log(dict(seconds), errors, frozenset(finished), sum(running.values()), (note,) if unread else ())


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
    """Refuse cells of one method made with different settings or versions, and any that were evaluated differently.

    Methods may play in variants of a game: a study says so where it wants it, and the report in a note.
    """
    first: dict[tuple[str, str], Cell] = {}
    for cell in cells:
        for key, what in (((cell.method, cell.env), f"both are {cell.method}"), (("", cell.env), "one game")):
            other = first.setdefault(key, cell)
            differ = [name for name in _differences(cell.settings, other.settings) if key[0] or _is_shared(name)]
            if differ:
                name = differ[0]
                raise UserError(
                    f"{cell.run}: {name} is {cell.settings.get(name)}, but {other.settings.get(name)} in {other.run}; "
                    f"{what}: a report does not mix them"
                )


def _is_shared(name: str) -> bool:
    """Whether a setting must be the same for all methods that are compared in an environment."""
    return name.startswith("evaluation.")


def _about_variants(cells: Sequence[Cell]) -> Iterator[str]:
    """Say in what the games differ that methods play."""
    envs = dict.fromkeys(cell.env for cell in cells)
    for name in sorted({name for cell in cells for name in cell.settings if name.startswith("env.")}):
        groups: dict[str, list[str]] = defaultdict(list)
        for env in envs:
            methods: dict[str, dict[str, None]] = defaultdict(dict)  # by the value of the option, in order
            for cell in cells:
                if cell.env == env:
                    methods[str(cell.settings.get(name))][cell.method] = None
            if len(methods) > 1:
                most = max(methods, key=lambda value: len(methods[value]))
                rare = [f"{value} for {', '.join(of)}" for value, of in methods.items() if value != most]
                groups[f"{', '.join(rare)} and {most} for the others"].append(env)
        for text, found in groups.items():
            where = "all games" if len(found) == len(envs) else ", ".join(found)
            yield f"methods play different variants of {where}: {_spoken(name)} is {text}"


def _about_data(cells: Sequence[Cell]) -> Iterator[str]:
    """Say what intervals over encoders hold, where there are several: data sets vary too, if each has its own."""
    learned: dict[tuple[str, str], list[int]] = defaultdict(list)
    for cell in cells:
        if cell.data_seed is not None:
            learned[cell.method, cell.env].append(cell.data_seed)
    counts = {(len(set(seeds)), len(seeds)) for seeds in learned.values() if len(seeds) > 1}
    if any(sets == 1 for sets, _ in counts):
        yield "encoders of a game learned from one data set: intervals hold for that one, and say nothing of others"
    if any(1 < sets < encoders for sets, encoders in counts):
        yield (
            "encoders that learned from one data set count as independent of each other: where data sets differ much, "
            "intervals are too narrow"
        )
    if any(sets == encoders for sets, encoders in counts):
        yield "every encoder of a game learned from a data set of its own: intervals hold their differences too"


def _differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


def _each_encoder_once(cells: Sequence[Cell]) -> tuple[list[Cell], list[str]]:
    """Keep one of the cells of a method that have the same encoder and agents, as a random one of two data sets has."""
    first: dict[tuple[str, str, str, tuple[int, ...]], Cell] = {}
    notes = []
    for cell in cells:
        key = (cell.method, cell.env, cell.checksum or str(cell.run), cell.seeds)
        if key in first:
            notes.append(
                f"{cell.method} in {cell.env}: {cell.run.name} has the same encoder and agents as "
                f"{first[key].run.name} and does not count again"
            )
        first.setdefault(key, cell)
    return list(first.values()), notes


def _joined(cells: Sequence[Cell]) -> list[Cell]:
    """Join loose cells that stand on one encoder; the same agents twice are refused."""
    groups: dict[tuple[str, str, str], list[Cell]] = defaultdict(list)
    trained: dict[tuple[str, str, str, int], Cell] = {}
    for cell in cells:
        end_to_end = cell.settings["kind"] == DQN
        encoder = cell.checksum or (DQN if end_to_end else str(cell.run))
        for seed in cell.seeds:
            other = trained.setdefault((cell.method, cell.env, encoder, seed), cell)
            if other is not cell:
                what = "environment" if end_to_end else "encoder"
                raise UserError(
                    f"{cell.run}: has the same {what}, settings and agent seed {seed} as {other.run}, "
                    "expected every agent once; leave one of the two out"
                )
        groups[cell.method, cell.env, str(cell.run) if end_to_end else encoder].append(cell)
    return [group[0] if len(group) == 1 else _join(group) for group in groups.values()]


def _join(cells: Sequence[Cell]) -> Cell:
    """Make one cell of several with different agents on the same encoder."""
    steps = np.unique(np.concatenate([cell.curve_steps for cell in cells]))
    curves = []
    for cell in cells:
        curve: Array = np.full((len(cell.seeds), len(steps)), np.nan)
        curve[:, np.searchsorted(steps, cell.curve_steps)] = cell.curve
        curves.append(curve)
    return replace(
        cells[0],
        seeds=tuple(seed for cell in cells for seed in cell.seeds),
        returns=np.concatenate([cell.returns for cell in cells]),
        curve_steps=steps,
        curve=np.concatenate(curves),
        parts=tuple((cell.run, len(cell.seeds)) for cell in cells),
    )


def _uneven(cells: Sequence[Cell]) -> Iterator[str]:
    """Say where encoders of one method have different numbers of agents: `Results.scores` takes what all have."""
    counts: dict[tuple[str, str], list[int]] = defaultdict(list)
    for cell in cells:
        if cell.settings["kind"] != DQN:
            counts[cell.method, cell.env].append(len(cell.seeds))
    for (method, env), found in counts.items():
        if min(found) < max(found):
            yield (
                f"{method} in {env}: its encoders have {min(found)} to {max(found)} agents; "
                f"the first {min(found)} of each count"
            )


def _told_apart(cells: Sequence[Cell]) -> tuple[list[Cell], tuple[str, ...]]:
    """Name loose cells by their method and by the settings in which cells that would share a name differ.

    How agents were evaluated, and in what variant of the game, is compared over all cells; settings of the agents and
    versions over those of one kind, linear or end to end; those of an encoder within its method. All of it within an
    environment: two games may well have different budgets.
    """
    groups: dict[tuple[str, str], list[Cell]] = defaultdict(list)
    for cell in cells:
        for key in _groups(cell):
            groups[key].append(cell)
    varying: dict[tuple[str, str], list[str]] = {}
    for key, group in groups.items():
        names = sorted({name for cell in group for name in cell.settings if name.startswith(_COMPARED[key[0]])})
        varying[key] = [name for name in names if _varies_within_an_environment(name, group)]
    renamed = []
    for cell in cells:
        names = [name for key in _groups(cell) for name in varying[key]]
        parts = [f"{_spoken(name)} {cell.settings.get(name)}" for name in names]
        renamed.append(replace(cell, method=", ".join([cell.method, *parts])))
    differing = sorted({name for names in varying.values() for name in names})
    if not differing:
        return renamed, ()
    said = f"runs with different settings are shown as different methods; what differs: {', '.join(differing)}"
    return renamed, (said,)


_COMPARED = {"method": ("encoder.",), "kind": ("agent.", "version."), "all": ("env.", "evaluation.")}


def _groups(cell: Cell) -> tuple[tuple[str, str], ...]:
    return ("method", cell.method), ("kind", str(cell.settings["kind"])), ("all", "")


def _spoken(name: str) -> str:
    prefix, _, rest = name.partition(".")
    return ("evaluation " if prefix == "evaluation" else "") + rest.replace("_", " ")
