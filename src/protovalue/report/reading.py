"""How results are read: from studies' folders, cell by cell, from files of results, or from loose run folders."""

import os
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from protovalue.encoder import encoder_folder
from protovalue.errors import UserError
from protovalue.files import Lines, read_bytes
from protovalue.report.cells import (
    DQN,
    EVALUATION,
    CellResult,
    read_agents,
    read_cell,
    read_evaluation,
    transitions_of,
    why_unlike,
)
from protovalue.report.checking import (
    about_data,
    about_variants,
    each_encoder_once,
    joined,
    refuse_mixtures,
    told_apart,
    uneven,
)
from protovalue.report.results import Missing, Results
from protovalue.report.results_file import join, read_file, results_file
from protovalue.runs import CONFIG, DONE, FORMAT, read_run
from protovalue.schema import parse_json
from protovalue.study.folder import FORMAT as STUDY_FORMAT
from protovalue.study.folder import (
    STUDY,
    Expected,
    History,
    StageRecord,
    StudyRecord,
    histories,
    read_diary,
    read_study,
)
from protovalue.study.model import RANDOM

DATA = "encoder.data checksum"  # a study has data seeds, and says in its cells which data an encoder learned from


def read_results(paths: Sequence[Path]) -> Results:
    """Read folders of studies and files of results side by side, or any run folders of `pvn online` and `pvn dqn`."""
    whole = [path for path in paths if (path / STUDY).is_file() or results_file(path) is not None]
    if whole and len(whole) < len(paths):
        what = "a study" if (whole[0] / STUDY).is_file() else "results of a report"
        raise UserError(f"{whole[0]}: found {what} among other runs, expected studies and results, or loose runs")
    results = join([(path, read_whole(path)) for path in whole]) if whole else _read_runs(paths)
    if not results.cells:
        listed = "; ".join(f"{one.method} in {one.env}: {one.reason}" for one in results.missing[:3])
        more = f" ({listed}{', ...' if len(results.missing) > 3 else ''})" if listed else ""
        raise UserError(f"{', '.join(map(str, paths))}: no finished, evaluated run to report on{more}")
    return results


def read_whole(path: Path) -> Results:
    """Read a study's folder, or a file of results."""
    if (path / STUDY).is_file():
        return _read_study(path)
    file = results_file(path)
    if file is None:
        raise UserError(f"{path}: found neither a study nor results of a report, expected one of them")
    return read_file(file)


@dataclass(frozen=True)
class _StudyReader:
    """A study that is being read: what it says, and how its stages went."""

    root: Path
    study: StudyRecord
    history: Mapping[str, History]
    stages: Mapping[str, StageRecord]
    seconds: Mapping[str, float]
    """By stage, over all attempts of which a time was recorded; in the order in which the first of them ended."""
    users: Mapping[str, int]
    """By stage, the cells that share it."""
    titles: Sequence[str]
    """By the number of the cell: its method, and its place in the method's grid."""

    def cell(self, number: int) -> CellResult:
        """Read the cell of a number; a UserError says why it has no result."""
        entry = self.study.cells[number]
        own = [self.stages[name] for name in entry.stages]
        for stage in own:
            history = self.history.get(stage.id)
            if history and history.last == "failed":
                raise UserError(f"{stage.kind} failed: {history.error or 'no reason was recorded'}")
        run = self.root / entry.run
        reason = _why_unfinished(run)
        if reason:
            raise UserError(reason)
        expect = next((stage.expect for stage in own if stage.kind == "evaluate"), None)
        found = read_cell(run, self.root / entry.encoder if entry.encoder else None, expect, entry.seeds)
        taken = [self.seconds[stage.id] / self.users[stage.id] for stage in own if stage.id in self.seconds]
        return replace(
            found,
            method=self.titles[number],
            width=entry.width,
            tasks=entry.tasks,
            data_seed=entry.data_seed,
            pretraining_seed=entry.pretraining_seed,
            data=self.root / entry.data if entry.data else None,
            transitions=found.transitions or _transitions(found, self.root / entry.data if entry.data else None),
            settings={name: value for name, value in found.settings.items() if name != DATA},
            commands=tuple(shlex.join(stage.command) for stage in own),
            seconds=sum(taken) if taken else None,
        )

    def seconds_by_kind(self) -> dict[str, float]:
        """Return the recorded time of all stages of each kind."""
        found: dict[str, float] = defaultdict(float)
        for name, seconds in self.seconds.items():
            if name in self.stages:
                found[self.stages[name].kind] += seconds
        return dict(found)


def _transitions(cell: CellResult, data: Path | None) -> int | None:
    """Count the data of a study that was moved: its encoders name a place where it no longer is."""
    return transitions_of([data]) if data and cell.settings.get("method") not in (RANDOM, DQN) else None


def _read_study(root: Path) -> Results:
    """Read the cells that a study names; what has no result is listed as missing, with the reason."""
    study = read_study(root)
    diary = read_diary(root)
    history = histories(diary.rows)
    timed = dict.fromkeys(event["stage"] for event in diary.rows if event.get("seconds") is not None)
    titles = tuple(_titles(study))
    reader = _StudyReader(
        root=root,
        study=study,
        history=history,
        stages={stage.id: stage for stage in study.stages},
        seconds={name: history[name].seconds for name in timed},
        users=Counter(stage for cell in study.cells for stage in cell.stages),
        titles=titles,
    )
    cells, missing = [], []
    finished = {name for name, own in history.items() if own.finished}
    for number, entry in enumerate(study.cells):
        try:
            cells.append(reader.cell(number))
            finished |= set(entry.stages)
        except UserError as error:
            missing.append(Missing(entry.env, titles[number], entry.pretraining_seed, str(error), entry.seeds))
    refuse_mixtures(cells)
    cells, twice = each_encoder_once(cells)
    random_policy, unusable = _random_policy(root, study)
    return Results(
        name=study.name,
        title=study.title,
        normalise=study.normalise,
        methods=tuple(dict.fromkeys(titles)),
        envs=tuple(dict.fromkeys(entry.env for entry in study.cells)),
        cells=tuple(cells),
        missing=tuple(missing),
        random_policy=random_policy,
        stage_seconds=reader.seconds_by_kind(),
        stages_without_time=sum(name in reader.stages and name not in reader.seconds for name in finished),
        attempts_without_time=sum(own.unended for own in history.values()),
        notes=(*_about_diary(diary), *twice, *unusable, *about_variants(cells), *about_data(cells)),
        file=study.file,
    )


def _titles(study: StudyRecord) -> Iterator[str]:
    """Name the method of every cell, with its width and number of tasks where the method has several."""
    varying: dict[str, list[str]] = {}
    for name in study.methods:
        own = [cell for cell in study.cells if cell.method == name]
        varying[name] = [one for one in ("width", "tasks") if len({getattr(cell, one) for cell in own}) > 1]
    for cell in study.cells:
        grid = {"width": f"{cell.width}x", "tasks": f"{cell.tasks} tasks"}
        yield ", ".join([study.methods[cell.method].title, *(grid[name] for name in varying[cell.method])])


def _about_diary(diary: Lines) -> Iterator[str]:
    """Count the events that cannot be read, and name the first; a kill cuts the last one short."""
    unread = len(diary.wrong) - diary.cut_short
    if unread:
        count = "1 line" if unread == 1 else f"{unread} lines"
        yield f"{diary.path}: {count} cannot be read and are passed over: times may be missing ({diary.damage})"


def _random_policy(root: Path, study: StudyRecord) -> tuple[dict[str, float], list[str]]:
    """Return the mean return of random actions by environment, and why some of them cannot be used."""
    expect = {
        stage.expect.file: stage.expect
        for stage in study.stages
        if stage.kind == "random-policy" and stage.expect is not None
    }
    found, notes = {}, []
    for env, where in study.random_policy.items():
        if not (root / where).is_file():
            continue
        try:
            evaluation = read_evaluation(root / where)
            reason = why_unlike(evaluation, expect.get(where, Expected()))
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
        online = recorded["kind"] == "online"
        reason = _why_unfinished(folder)
        try:
            if reason is None:
                cells.append(read_cell(folder, encoder_folder(recorded["encoder"]) if online else None))
        except UserError as error:
            reason = str(error)
        if reason:
            named = reason if reason.startswith(str(folder)) else f"{folder}: {reason}"
            missing.append(Missing(recorded["env"], "online" if online else DQN, None, named))
    cells, notes = told_apart(cells)
    cells = joined(cells)
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
        notes=(*notes, *uneven(cells)),
    )


def _run_configs(path: Path) -> Iterator[Path]:
    """Find runs in a folder; what is not ours is passed over, unless it was named itself."""
    if not path.is_dir():
        raise UserError(f"{path}: found no folder, expected a study, a run, a folder of runs, or a results.jsonl")
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
    if not (run / DONE).is_file():
        return "not finished"
    if not (run / EVALUATION).is_file():
        return f"not evaluated (pvn evaluate {run})"
    return None
