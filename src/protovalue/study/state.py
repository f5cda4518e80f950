"""What a study folder says: which stages are complete, and what happened when."""

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from protovalue.data.format import MANIFEST, Manifest
from protovalue.diary import Events as Events
from protovalue.diary import read_diary
from protovalue.errors import UserError
from protovalue.files import read_json
from protovalue.runs import DONE
from protovalue.study.plan import Stage

STUDY = "study.json"
log = logging.getLogger(__name__)


def is_done(stage: Stage, root: Path) -> bool:
    """Whether a stage's result is complete. A damaged one is not, and is named."""
    try:
        return _CHECKS[stage.kind](stage, root)
    except FileNotFoundError:
        return False
    except (UserError, OSError) as error:
        warn_once(f"{stage.id} is not done: {error}")
        return False


def _data(stage: Stage, root: Path) -> bool:
    folder = root / stage.expect.get("data", stage.folder)
    if not (folder / MANIFEST).exists():
        return False
    manifest = Manifest.read(folder)
    return manifest.complete and manifest.transitions >= stage.expect.get("transitions", 0)


def _run(stage: Stage, root: Path) -> bool:
    return (root / stage.folder / DONE).is_file() and bool(read_json(root / stage.folder / DONE))


def _end_to_end(stage: Stage, root: Path) -> bool:
    """Whether a DQN is trained and, where it is to be recorded, its data set is whole."""
    return _run(stage, root) and ("data" not in stage.expect or _data(stage, root))


def _evaluation(stage: Stage, root: Path) -> bool:
    found = read_json(root / stage.expect["file"])
    return all(found.get(name) == expected for name, expected in stage.expect.items() if name != "file")


_CHECKS = {
    "collect": _data,
    "import": _data,
    "pretrain": _run,
    "online": _run,
    "dqn": _end_to_end,
    "evaluate": _evaluation,
    "random-policy": _evaluation,
}


@dataclass(frozen=True)
class History:
    """What the events say of one stage."""

    last: str
    """Its last event: start, done, failed or interrupted."""
    seconds: float
    """Wall-clock time of all attempts whose end was recorded."""
    cpu_seconds: float
    whole: bool
    """Whether it was done in one attempt, so that its time is that of the whole stage."""
    error: str


def read_events(root: Path) -> list[dict[str, Any]]:
    """Read all events; a line that is damaged, or that a kill cut short, is left out and named."""
    lines = read_diary(root)
    if lines.damage:
        warn_once(lines.damage)
    return lines.rows


@cache
def warn_once(damage: str) -> None:
    """Say it once: events and results are read again whenever a stage has ended."""
    log.warning("%s", damage)


def histories(events: Iterable[Mapping[str, Any]]) -> dict[str, History]:
    """Return the history of every stage that has one."""
    grouped: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for event in events:
        grouped[event["stage"]].append(event)
    found = {}
    for stage, own in grouped.items():
        names = [event["event"] for event in own]
        total = sum(event.get("seconds") or 0.0 for event in own)
        cpu = sum(event.get("cpu_seconds") or 0.0 for event in own)
        error = str(own[-1].get("error") or "")
        found[stage] = History(names[-1], total, cpu, names == ["start", "done"], error)
    return found
