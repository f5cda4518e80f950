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
from protovalue.study.engines.base import Ended, Engine, Job
from protovalue.study.folder import Events, histories, read_events
from protovalue.study.jobs import log_name
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
    lost: dict[str, int] = field(default_factory=dict)
    """How often jobs of stages were lost and tried again."""
    interrupted: bool = False


def run_stages(
    stages: Sequence[Stage],
    done: Collection[str],
    engine: Engine,
    root: Path,
    events: Events,
    stop: Stop,
    tick: Callable[[Outcome, Collection[str]], None],
    retries: int = 0,
) -> Outcome:
    """Run all stages that are not done; those that an earlier process started and that still run are followed.

    Args:
        stages: all stages of the study.
        done: those that are complete.
        engine: where they run.
        root: the study's folder.
        events: where starts and ends are noted.
        stop: whether the user asked to stop; running stages then write a checkpoint.
        tick: called now and then with what has ended and what is running.
        retries: how often a stage is tried again whose job was lost and had written no new checkpoint.
    """
    outcome = Outcome()
    running, asked = _adopted(stages, engine, root), False
    waiting = {stage.id: stage for stage in stages if stage.id not in done and stage.id not in running}
    finished = set(done)
    losses = _Losses(root, retries, running)
    while waiting or running:
        if not stop.requested:
            ready = [stage for stage in waiting.values() if finished.issuperset(stage.needs)]
            for stage in ready[: max(engine.slots - len(running), 0)]:
                losses.begins(stage)
                _start(waiting.pop(stage.id), engine, root, events, outcome.lost.get(stage.id, 0))
                running[stage.id] = stage
        elif not asked:
            engine.cancel()
            asked = outcome.interrupted = True
        if not running:
            break
        for end in engine.poll(TICK):
            stage = running.pop(end.id)
            if end.lost and not asked and not is_done(stage, root):
                outcome.lost[stage.id] = outcome.lost.get(stage.id, 0) + 1
                if losses.may_try_again(stage):
                    events.write(stage.id, "lost", **_times(end), error=end.reason)
                    waiting = {stage.id: stage, **waiting}
                    continue
            if _note(stage, end, root, events, outcome, asked):
                finished.add(stage.id)
        tick(outcome, running)
    for stage in waiting.values():
        culprit = _culprit(stage, outcome, waiting)
        if culprit:
            outcome.blocked[stage.id] = culprit
    return outcome


def _adopted(stages: Sequence[Stage], engine: Engine, root: Path) -> dict[str, Stage]:
    """Return the stages that an earlier process started and never heard the end of, if the engine follows them."""
    known = histories(read_events(root))
    begun = [stage for stage in stages if stage.id in known and known[stage.id].last == "start"]
    return {stage.id: stage for stage in begun if engine.adopt(Job(stage.id, stage.command, root / log_name(stage.id)))}


class _Losses:
    """How often a stage was lost in a row without getting any further."""

    def __init__(self, root: Path, retries: int, running: Mapping[str, Stage]) -> None:
        self._root, self._retries = root, retries
        self._count: dict[str, int] = defaultdict(int)
        self._before: dict[str, set[str]] = {}
        for stage in running.values():
            self.begins(stage)

    def begins(self, stage: Stage) -> None:
        """Remember how far a stage is."""
        self._before[stage.id] = self._checkpoints(stage)

    def may_try_again(self, stage: Stage) -> bool:
        """Count a loss; one after a new checkpoint is the first."""
        further = not stage.fresh and self._checkpoints(stage) != self._before[stage.id]
        self._count[stage.id] = 0 if further else self._count[stage.id] + 1
        return self._count[stage.id] <= self._retries

    def _checkpoints(self, stage: Stage) -> set[str]:
        folder = self._root / stage.folder / "checkpoints"
        return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


def _start(stage: Stage, engine: Engine, root: Path, events: Events, losses: int) -> None:
    if stage.fresh:  # only ever a folder that the study itself made, named by its content
        shutil.rmtree(root / stage.folder, ignore_errors=True)
    events.write(stage.id, "start")
    engine.submit(Job(stage.id, stage.command, root / log_name(stage.id), losses))


def _times(end: Ended) -> dict[str, float]:
    return {"seconds": round(end.seconds, 3), "cpu_seconds": round(end.cpu_seconds, 3)}


def _note(stage: Stage, end: Ended, root: Path, events: Events, outcome: Outcome, asked: bool) -> bool:
    """Write down how a stage ended; return whether what needs it may run."""
    times = _times(end)
    if (end.code == 0 or end.lost) and is_done(stage, root):  # a job can be lost after its result was written
        outcome.done.append(stage.id)
        events.write(stage.id, "done", **times)
        return True
    if asked or (end.code in (INTERRUPTED, TERMINATED) and not end.lost):
        outcome.interrupted = True
        events.write(stage.id, "interrupted", **times)
        return False
    reason = end.reason if end.code else f"the command ended well, but {stage.folder} is not complete"
    if end.lost:
        reason = f"lost {outcome.lost[stage.id]} time(s), the last time: {reason}"
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
