"""In which order stages run: as in the plan, as soon as what they need is there; a failure stops only its own.

The plan goes game by game, from an encoder to its agents to their evaluation: a study that is cut short has results.
"""

import heapq
import shutil
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from protovalue.interrupt import INTERRUPTED, TERMINATED, Stop
from protovalue.study.engine import Ended, Engine, Job
from protovalue.study.folder import Events
from protovalue.study.plan import Stage
from protovalue.study.state import is_done

TICK = 0.5  # seconds between two looks at the clock and at Ctrl-C


@dataclass
class Outcome:
    """What became of the stages that were to run."""

    done: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    """Reasons by stage."""
    blocked: dict[str, str] = field(default_factory=dict)
    """Stages that did not run, with the failed one that they need."""
    interrupted: bool = False


def run_stages(
    stages: Sequence[Stage],
    done: Collection[str],
    engine: Engine,
    root: Path,
    events: Events,
    stop: Stop,
    tick: Callable[[Outcome, Collection[str]], None],
) -> Outcome:
    """Run all stages that are not done.

    Args:
        stages: all stages of the study.
        done: those that are complete.
        engine: where they run.
        root: the study's folder.
        events: where starts and ends are noted.
        stop: whether the user asked to stop; running stages then write a checkpoint.
        tick: called now and then with what has ended and what is running.
    """
    outcome = Outcome()
    waiting = {stage.id: stage for stage in stages if stage.id not in done}
    finished, running, asked = set(done), dict[str, Stage](), False
    while waiting or running:
        if not stop.requested:
            ready = [stage for stage in waiting.values() if finished.issuperset(stage.needs)]
            for stage in ready[: engine.slots - len(running)]:
                _start(waiting.pop(stage.id), engine, root, events)
                running[stage.id] = stage
        elif not asked:
            engine.interrupt()
            asked = outcome.interrupted = True
        if not running:
            break
        for end in engine.wait(TICK):
            stage = running.pop(end.id)
            if _note(stage, end, root, events, outcome, asked):
                finished.add(stage.id)
        tick(outcome, running)
    for stage in waiting.values():
        culprit = _culprit(stage, outcome, waiting)
        if culprit:
            outcome.blocked[stage.id] = culprit
    return outcome


def _start(stage: Stage, engine: Engine, root: Path, events: Events) -> None:
    if stage.fresh:  # only ever a folder that the study itself made, named by its content
        shutil.rmtree(root / stage.folder, ignore_errors=True)
    events.write(stage.id, "start")
    engine.start(Job(stage.id, stage.command, root / log_name(stage.id)))


def _note(stage: Stage, end: Ended, root: Path, events: Events, outcome: Outcome, asked: bool) -> bool:
    """Write down how a stage ended; return whether what needs it may run."""
    times = {"seconds": round(end.seconds, 3), "cpu_seconds": round(end.cpu_seconds, 3)}
    if end.code == 0 and is_done(stage, root):
        outcome.done.append(stage.id)
        events.write(stage.id, "done", **times)
        return True
    if asked or end.code in (INTERRUPTED, TERMINATED):
        outcome.interrupted = True
        events.write(stage.id, "interrupted", **times)
        return False
    reason = end.reason if end.code else f"the command ended well, but {stage.folder} is not complete"
    outcome.failed[stage.id] = reason
    events.write(stage.id, "failed", **times, error=reason)
    return False


def _culprit(stage: Stage, outcome: Outcome, waiting: Mapping[str, Stage]) -> str | None:
    """Return the failed stage that a stage needs, directly or not."""
    for need in stage.needs:
        if need in outcome.failed:
            return need
        if need in waiting and (found := _culprit(waiting[need], outcome, waiting)):
            return found
    return None


def log_name(stage: str) -> str:
    """Return the log of a stage, relative to the study's folder."""
    return f"logs/{stage.replace('/', '-')}.log"


def makespan(stages: Sequence[Stage], seconds: Mapping[str, float], jobs: int) -> float:
    """Return how long the stages take with `jobs` at a time, in the order in which `run_stages` starts them."""
    here = {stage.id for stage in stages}
    missing = {stage.id: len(here.intersection(stage.needs)) for stage in stages}
    dependents: dict[str, list[int]] = defaultdict(list)
    for number, stage in enumerate(stages):
        for need in stage.needs:
            dependents[need].append(number)
    ready = [number for number, stage in enumerate(stages) if not missing[stage.id]]
    heapq.heapify(ready)
    running: list[tuple[float, int]] = []
    now = 0.0
    while ready or running:
        while ready and len(running) < jobs:
            number = heapq.heappop(ready)
            heapq.heappush(running, (now + seconds.get(stages[number].id, 0.0), number))
        now, number = heapq.heappop(running)
        for other in dependents[stages[number].id]:
            missing[stages[other].id] -= 1
            if not missing[stages[other].id]:
                heapq.heappush(ready, other)
    return now
