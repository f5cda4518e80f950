"""A study's folder on disk: study.json, which is the plan, and events.jsonl, the diary of how its stages went."""

import logging
import math
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from protovalue.errors import UserError
from protovalue.files import (
    Lines,
    json_line,
    naming,
    open_file,
    read_json,
    read_lines,
    write_all,
    write_atomic,
    write_json,
)
from protovalue.schema import checked, require

STUDY, EVENTS = "study.json", "events.jsonl"
FORMAT, VERSION = "protovalue study", 1
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class MethodRecord:
    """What study.json says of a method."""

    title: str


@dataclass(frozen=True)
class Cell:
    """One pretrained encoder with all its agents, or one end-to-end agent: the unit of statistics."""

    env: str
    method: str
    width: int | float
    tasks: int | None
    data_seed: int | None
    """None for an encoder that does not learn from data."""
    pretraining_seed: int | None
    seeds: tuple[int, ...]
    data: str | None
    encoder: str | None
    run: str
    stages: tuple[str, ...]


@dataclass(frozen=True)
class Expected:
    """What the result of a stage must hold, as far as a reader of results uses it; None is anything."""

    file: str | None = None
    steps: int | None = None
    episodes: int | None = None
    epsilon: float | None = None
    seed: int | None = None
    env_options: dict[str, Any] | None = None


@dataclass(frozen=True)
class StageRecord:
    """What study.json says of a stage."""

    id: str
    kind: str
    command: list[str]
    expect: Expected | None = None


@dataclass(frozen=True)
class StudyRecord:
    """What study.json says, as far as it is used."""

    name: str
    title: str
    normalise: Literal["human", "dqn", "none"]
    methods: dict[str, MethodRecord]
    random_policy: dict[str, str]
    cells: list[Cell]
    stages: list[StageRecord]
    file: str | None

    def __post_init__(self) -> None:
        stages = {stage.id for stage in self.stages}
        for number, cell in enumerate(self.cells):
            require(cell.method in self.methods, f"cells[{number}].method", cell.method, "one of `methods`")
            unknown = [name for name in cell.stages if name not in stages]
            require(not unknown, f"cells[{number}].stages", unknown[:1], "ids of `stages`")


def write_study(root: Path, fields: Mapping[str, Any]) -> None:
    """Write study.json."""
    write_json(root / STUDY, {"format": FORMAT, "version": VERSION, **fields})


def read_study(root: Path) -> StudyRecord:
    """Read study.json; what does not fit is a UserError."""
    return checked(StudyRecord, study_fields(root), root / STUDY, extra=True)


def study_fields(root: Path, instead: str = "") -> dict[str, Any]:
    """Return study.json as it is, if it is one of this format; the error says what to do instead."""
    fields = read_json(root / STUDY)
    if (fields.get("format"), fields.get("version")) != (FORMAT, VERSION):
        raise UserError(f"{root / STUDY}: not a study of format version {VERSION}{instead}")
    return fields


class Events:
    """The diary of the study in a folder, open to write: each line is written at once and has a checksum."""

    def __init__(self, root: Path) -> None:
        """Go on after the last whole line."""
        self._path = root / EVENTS
        lines = read_diary(root)
        if lines.cut_short:
            write_atomic(self._path, lines.whole)
        self._descriptor = open_file(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, stage: str, event: str, **details: Any) -> None:
        """Note what happened to a stage, now."""
        with naming(self._path):
            fields = {"time": round(time.time(), 3), "stage": stage, "event": event, **details}
            write_all(self._descriptor, json_line(fields))

    def close(self) -> None:
        """Stop writing."""
        os.close(self._descriptor)


def read_diary(root: Path) -> Lines:
    """Read all events of the study in `root`; what is damaged, or was cut short by a kill, is left out and named."""
    return read_lines(root / EVENTS, _misfit)


def _misfit(event: Mapping[str, Any]) -> str:
    """Say what is wrong with an event."""
    for name in ("stage", "event"):
        if not isinstance(event.get(name), str):
            return f"no {name}"
    for name in ("time", "seconds", "cpu_seconds"):
        value = event.get(name)
        if value is not None and (type(value) not in (int, float) or not math.isfinite(value) or value < 0):
            return f"{name} is no time"
    return "" if isinstance(event.get("error"), str | None) else "error is no text"


def read_events(root: Path) -> list[dict[str, Any]]:
    """Read all events; a line that is damaged, or that a kill cut short, is left out and named in the log."""
    lines = read_diary(root)
    if lines.damage:
        warn_once(lines.damage)
    return lines.rows


@cache
def warn_once(damage: str) -> None:
    """Say it once: events and results are read again whenever a stage has ended."""
    log.warning("%s", damage)


@dataclass(frozen=True)
class History:
    """What the events say of one stage."""

    last: str
    """Its last event: start, done, failed, lost or interrupted."""
    seconds: float
    """Wall-clock time of all attempts whose end was recorded."""
    cpu_seconds: float
    whole: bool
    """Whether it was done in one attempt, so that its time is that of the whole stage."""
    error: str
    finished: bool
    """Whether any attempt was done."""
    unended: int
    """Attempts without an end."""
    unbegun: int
    """Ends without a start, which only a line that was lost can leave."""


def histories(events: Iterable[Mapping[str, Any]]) -> dict[str, History]:
    """Return the history of every stage that has one."""
    grouped: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for event in events:
        grouped[event["stage"]].append(event)
    return {stage: _history(own) for stage, own in grouped.items()}


def _history(events: list[Mapping[str, Any]]) -> History:
    names = [event["event"] for event in events]
    unended = unbegun = 0
    for name in names:
        if name == "start":
            unended += 1
        elif unended:
            unended -= 1
        else:
            unbegun += 1
    return History(
        last=names[-1],
        seconds=sum((event.get("seconds") or 0.0 for event in events), 0.0),
        cpu_seconds=sum((event.get("cpu_seconds") or 0.0 for event in events), 0.0),
        whole=names == ["start", "done"],
        error=str(events[-1].get("error") or ""),
        finished="done" in names,
        unended=unended,
        unbegun=unbegun,
    )
