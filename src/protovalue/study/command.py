"""`pvn study run`: everything that a study names and that is not there yet."""

import signal
import sys
import time
from collections import Counter
from collections.abc import Collection
from pathlib import Path

from protovalue.data.importing import cpu_count
from protovalue.errors import UserError
from protovalue.interrupt import Stop, stop_on_interrupt
from protovalue.progress import ProgressBar, duration, say
from protovalue.study.config import StudyRunConfig
from protovalue.study.engines.base import Engine
from protovalue.study.engines.choice import cluster, refuse_others
from protovalue.study.engines.local import LocalProcesses
from protovalue.study.file import load_study
from protovalue.study.folder import STUDY, Events, read_events, study_fields, write_study
from protovalue.study.jobs import JOBS, log_name
from protovalue.study.lease import Lease
from protovalue.study.model import Study
from protovalue.study.plan import Plan, plan
from protovalue.study.rates import estimates, filled, known_rates
from protovalue.study.schedule import Outcome, makespan, run_stages
from protovalue.study.state import is_done
from protovalue.study.worker import WORKERS, wait_for_workers


def study_run(config: StudyRunConfig, engine: Engine | None = None) -> None:
    """Run what is missing, and say what came out; a failed stage makes the command fail, at the end."""
    study, root, laid_out = open_study(config.file, config.out)
    check_folder(root, study.name)
    jobs = config.jobs or 1
    if engine is not None:
        pass  # the caller's own
    elif config.engine == "local":
        if jobs * study.threads > cpu_count():
            print(
                f"--jobs: found {jobs} with {study.threads} thread(s) a stage on {cpu_count()} core(s); "
                "more than there are makes stages wait for each other",
                file=sys.stderr,
            )
        engine = LocalProcesses(jobs, root, study.threads)
    else:
        engine = cluster(config, study, laid_out, root)
        jobs = engine.places
    try:
        root.mkdir(parents=True, exist_ok=True)
        with Lease(root) as lease:
            wait_for_workers(root)
            refuse_others(root, laid_out, config.engine)
            write_study(root, laid_out.fields(study))
            done = {stage.id for stage in laid_out.stages if is_done(stage, root)}
            say(f"{root}: {len(laid_out.stages)} stages, {len(done)} of them done")
            outcome, stop = _run(study, laid_out, root, done, engine, jobs, config.retries, lease)
    finally:
        engine.close()
    _report(root, laid_out, outcome, stop)


def check_folder(root: Path, name: str) -> None:
    """Refuse a folder that holds something else, or another study."""
    check_study_folder(root)
    if not (root / STUDY).exists():
        return
    found = study_fields(root, instead="; choose another folder with --out")
    if found.get("name") != name:
        raise UserError(
            f"{root}: found the study {found.get('name')!r} there, expected {name!r}; choose another folder with --out"
        )


def check_study_folder(root: Path) -> None:
    """Refuse a folder that holds something else; what a kill leaves before the plan is written is nothing."""
    if root.exists() and not root.is_dir():
        raise UserError(f"{root}: found a file, expected a folder; choose another one with --out")
    if not (root / STUDY).exists():
        names = {path.name for path in root.iterdir()} if root.exists() else set()
        if any(name not in ("lock", WORKERS, JOBS) and not name.startswith(".new-") for name in names):
            raise UserError(f"{root}: not empty and not a study; choose another folder with --out")


def _run(
    study: Study, laid_out: Plan, root: Path, done: Collection[str], engine: Engine, jobs: int, retries: int,
    lease: Lease,
) -> tuple[Outcome, Stop]:  # fmt: skip
    progress = _Progress(study, laid_out, root, done, jobs, engine.describe())
    events = Events(root)
    try:
        with progress.bar, stop_on_interrupt() as stop:

            def tick(outcome: Outcome, running: Collection[str]) -> None:
                lease.check()
                if lease.stop_asked and not stop.requested:
                    stop.signal = signal.SIGINT
                progress.update(outcome, running, stop.requested)

            outcome = run_stages(laid_out.stages, done, engine, root, events, stop, tick, retries)
            return outcome, stop
    except KeyboardInterrupt:  # the second one
        engine.cancel(now=True)
        raise
    finally:
        events.close()


class _Progress:
    """Progress over the whole study: a stage counts by its estimated time, and estimates get better as stages end."""

    def __init__(self, study: Study, laid_out: Plan, root: Path, done: Collection[str], jobs: int, where: str) -> None:
        self._study, self._stages, self._root, self._jobs = study, laid_out.stages, root, jobs
        self._done, self._ended = set(done), 0
        self._since: dict[str, float] = {}
        self.seconds = self._estimates()
        if len(self._done) < len(self._stages):
            text = f"{len(self._stages) - len(self._done)} stages to run {where}: {self.left([], ())}"
            say(text)
        self._shown = self._percent([])
        self.bar = ProgressBar(f"study {study.name}", 100, "%", self._shown, eta=False)

    def update(self, outcome: Outcome, running: Collection[str], stopping: bool) -> None:
        """Show what has ended and how long the rest will take."""
        self._done.update(outcome.done)
        if len(outcome.done) != self._ended:
            self._ended, self.seconds = len(outcome.done), self._estimates()
        for name in running:
            self._since.setdefault(name, time.monotonic())
        percent = max(self._percent(running), self._shown)
        failed = f", {len(outcome.failed)} failed" if outcome.failed else ""
        left = "stopping: checkpoints are written" if stopping else self.left(running, outcome.failed)
        names = ", ".join(sorted(running)[:2])
        note = f"{len(self._done)}/{len(self._stages)} stages{failed}, {left} {names}"
        self.bar.advance(percent - self._shown, note)
        self._shown = percent

    def left(self, running: Collection[str], failed: Collection[str]) -> str:
        """Return the time until all is done that can be: the clock of the scheduler, run ahead."""
        if not self.seconds:
            return "time left not known before a stage is done"
        lost = set(failed)
        for stage in self._stages:
            if lost.intersection(stage.needs):
                lost.add(stage.id)
        rest = [stage for stage in self._stages if stage.id not in self._done and stage.id not in lost]
        rest.sort(key=lambda stage: stage.id not in running)  # what runs has its place already
        seconds = {stage.id: self.seconds[stage.id] - self._gone(stage.id, running) for stage in rest}
        return f"about {duration(makespan(rest, seconds, self._jobs))} left"

    def _estimates(self) -> dict[str, float]:
        rates = known_rates(self._stages, self._root)
        return filled(self._stages, estimates(self._stages, rates, self._study.environments))

    def _gone(self, name: str, running: Collection[str]) -> float:
        """Return how much of a stage's time is over; one that takes longer than estimated is never quite done."""
        return min(time.monotonic() - self._since[name], 0.95 * self._weight(name)) if name in running else 0.0

    def _weight(self, name: str) -> float:
        return self.seconds.get(name, 1.0)  # all alike while nothing is known

    def _percent(self, running: Collection[str]) -> int:
        total = sum(self._weight(stage.id) for stage in self._stages) or 1.0
        gone = sum(self._weight(name) for name in self._done) + sum(self._gone(name, running) for name in running)
        return int(100 * gone / total + 1e-6)


def _report(root: Path, laid_out: Plan, outcome: Outcome, stop: Stop) -> None:
    """Say what came out, and what was lost on the way to it, now or under an earlier process."""
    ended = {*outcome.done, *outcome.failed, *outcome.lost}
    lost = [event for event in read_events(root) if event["event"] == "lost" and event["stage"] in ended]
    for name, count in Counter(event["stage"] for event in lost).items():
        last = next(event for event in reversed(lost) if event["stage"] == name)
        print(f"lost and tried again: {name}: {count} time(s), the last: {last.get('error')}", file=sys.stderr)
    for name, reason in outcome.failed.items():
        print(f"failed: {name}: {reason} (log: {root / log_name(name)})", file=sys.stderr)
    for name, need in outcome.blocked.items():
        print(f"not run: {name} needs {need}", file=sys.stderr)
    if outcome.interrupted:
        raise stop.error()
    if outcome.failed:
        listed = ", ".join(list(outcome.failed)[:3]) + (", ..." if len(outcome.failed) > 3 else "")
        blocked = f", {len(outcome.blocked)} more need them" if outcome.blocked else ""
        raise UserError(
            f"{root}: {_count(outcome.failed, 'stage')} failed: {listed}{blocked}; the same command tries them again"
        )
    cells, agents = len(laid_out.cells), sum(len(cell.seeds) for cell in laid_out.cells)
    units = "encoder or end-to-end run" if cells == 1 else "encoders or end-to-end runs"
    played = f"{agents} agent{'' if agents == 1 else 's'}"
    print(f"{root}: all {len(laid_out.stages)} stages are done: {cells} {units}, {played}")
    print(f"see what came out: pvn report {root} --out {root / 'report'}")


def open_study(file: Path, out: Path | None) -> tuple[Study, Path, Plan]:
    """Read a study file and lay it out in its folder."""
    study = load_study(file)
    root = out or Path("runs") / study.name
    return study, root, plan(study, root)


def _count(things: Collection[str], what: str) -> str:
    return f"{len(things)} {what}{'' if len(things) == 1 else 's'}"
