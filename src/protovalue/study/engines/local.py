"""The engine of this machine: processes forked from a server that has imported PyTorch once."""

import multiprocessing
import os
import secrets
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import ModuleType

from protovalue.errors import UserError
from protovalue.files import make_folder
from protovalue.processes import shielded
from protovalue.study.engines.base import Ended, Job
from protovalue.study.jobs import Record, last_line, read_sign, write_record
from protovalue.study.worker import ONE_THREAD, Order, run_forked

LOCAL = "local"
# What most stages import, by the server that they are forked from; none of it starts a thread. The optimisers bring
# torch._dynamo and MinAtar's games numba: seconds in every stage, if they were not here.
_IMPORTED_ONCE = [
    "numba.np.arraymath",
    "protovalue.cli",
    "protovalue.collecting",
    "protovalue.evaluate.episodes",
    "protovalue.pretrain.loop",
    "protovalue.study.worker",
    "tensorboard.compat.proto.event_pb2",
    "tensorboard.summary.writer.record_writer",
    "torch._dynamo",
    "tyro",
]


@dataclass
class _Running:
    process: ForkServerProcess
    attempt: str
    started: float
    log: Path
    log_start: int


class LocalProcesses:
    """Processes on this machine, so that a stage starts fast; all of them end when the study's process does.

    A job's --threads decides its threads; one without it, such as an evaluation, gets the study's. So what comes out
    does not depend on how many jobs run.
    """

    def __init__(self, jobs: int, root: Path, threads: int) -> None:
        """Run up to `jobs` commands at a time for the study in `root`, each with `threads` threads."""
        self.slots = jobs
        self._root, self._threads = root.absolute(), threads
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(_IMPORTED_ONCE)
        self._running: dict[str, _Running] = {}

    def submit(self, job: Job) -> None:
        """Start a job in a process of its own."""
        make_folder(job.log.parent)
        log_start = job.log.stat().st_size if job.log.exists() else 0
        attempt = secrets.token_hex(8)
        write_record(self._root, Record(job.id, attempt, LOCAL, "", round(time.time(), 3)))
        order = Order(self._root, job.id, attempt, job.log.absolute(), self._threads, Path.cwd(), job.command[1:])
        process = self._context.Process(target=run_forked, args=(order, dict(os.environ)), name=job.id)
        with _environment(ONE_THREAD), shielded():  # libraries that start no threads can be forked safely
            forkserver.ensure_running()
        with _no_main_module():
            process.start()
        self._running[job.id] = _Running(process, attempt, time.monotonic(), job.log, log_start)

    def adopt(self, job: Job) -> bool:
        """Take nothing over: no job outlives the process that submitted it."""
        return False

    def poll(self, timeout: float) -> list[Ended]:
        """Return the jobs that have ended."""
        by_sentinel = {running.process.sentinel: name for name, running in self._running.items()}
        ended = wait(list(by_sentinel), timeout) if by_sentinel else []
        return [self._end(by_sentinel[sentinel]) for sentinel in ended if isinstance(sentinel, int)]

    def cancel(self, now: bool = False) -> None:
        """End every job; jobs are in process groups of their own, so the signal comes from here alone.

        Not by Ctrl-C, which is ignored by all that a script starts in the background.
        """
        for running in self._running.values():
            if running.process.pid is not None and running.process.is_alive():
                os.kill(running.process.pid, signal.SIGKILL if now else signal.SIGTERM)

    def describe(self) -> str:
        """Say how many at a time."""
        return f"with --jobs {self.slots}"

    def close(self) -> None:
        """End what still runs."""
        self.cancel(now=True)
        for name in list(self._running):
            self._end(name)

    def _end(self, name: str) -> Ended:
        running = self._running.pop(name)
        running.process.join()
        seconds = time.monotonic() - running.started
        code = running.process.exitcode
        running.process.close()
        try:
            sign = read_sign(self._root, name, running.attempt)
        except (UserError, OSError):
            sign = None  # its end is known from its process
        cpu = sign.cpu_seconds if sign else 0.0
        return Ended(name, 1 if code is None else code, seconds, cpu, _reason(running, code))


def _reason(running: _Running, code: int | None) -> str:
    """Return the last line that a job printed, and the signal that killed it."""
    text = last_line(running.log, running.log_start)
    if code is not None and code < 0:
        killed = f"killed by signal {-code} ({signal.Signals(-code).name})"
        return f"{killed}; last line: {text}" if text else killed
    return text.removeprefix("pvn: ") or f"exit code {code}, nothing printed"


@contextmanager
def _no_main_module() -> Iterator[None]:
    """Start processes that do not run the main module again: a job needs nothing of it, and it may be a user's script.

    `multiprocessing` reads the name and the file of that module when a process starts; for a moment it has neither.
    """
    before = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = before


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Set environment variables for a moment."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
