"""The engine: where stages run. The seam for a cluster is `Engine`; here is the one for this machine."""

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import ModuleType
from typing import Protocol

from protovalue.files import make_folder
from protovalue.processes import shielded
from protovalue.study.worker import run_command

# What most stages import, by the server that they are forked from; none of it starts a thread. The optimisers bring
# torch._dynamo and MinAtar's games numba: seconds in every stage, if they were not here.
_IMPORTED_ONCE = [
    "numba.np.arraymath",
    "protovalue.cli",
    "protovalue.collecting",
    "protovalue.evaluate.episodes",
    "protovalue.pretrain.loop",
    "tensorboard.compat.proto.event_pb2",
    "tensorboard.summary.writer.record_writer",
    "torch._dynamo",
    "tyro",
]
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


@dataclass(frozen=True)
class Job:
    """A command to run."""

    id: str
    command: tuple[str, ...]
    """Beginning with "pvn"."""
    log: Path
    """File for all that it prints."""


@dataclass(frozen=True)
class Ended:
    """How a job ended."""

    id: str
    code: int
    """Exit code; minus the signal's number if one killed it."""
    seconds: float
    cpu_seconds: float
    reason: str
    """The last line that it printed."""


class Engine(Protocol):
    """Runs commands somewhere, several at a time. What depends on what is the scheduler's business, not its own.

    Every job must see the study's folder under the same path, and must end when the engine's process does.
    """

    slots: int
    """Jobs that can run at the same time."""

    def start(self, job: Job) -> None:
        """Start a job and return at once; called only while fewer than `slots` are running."""
        ...

    def wait(self, timeout: float) -> list[Ended]:
        """Return the jobs that have ended since the last call, after at most `timeout` seconds."""
        ...

    def interrupt(self) -> None:
        """Ask every running job to write a checkpoint and end with code 130; a second time, to end at once."""
        ...

    def close(self) -> None:
        """Release what the engine holds; jobs that still run are ended."""
        ...


@dataclass
class _Running:
    process: ForkServerProcess
    answer: Connection
    started: float
    log: Path
    log_start: int


class LocalProcesses:
    """Processes on this machine. They are forked from a server that has imported PyTorch once, so a stage starts fast.

    A job's --threads decides its threads; one without it, such as an evaluation, gets the study's. So what comes out
    does not depend on how many jobs run.
    """

    def __init__(self, jobs: int, root: Path, threads: int) -> None:
        """Run up to `jobs` commands at a time for the study in `root`, each with `threads` threads."""
        self.slots = jobs
        self._root, self._threads = root, threads
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(_IMPORTED_ONCE)
        self._running: dict[str, _Running] = {}

    def start(self, job: Job) -> None:
        """Start a job in a process of its own."""
        make_folder(job.log.parent)
        log_start = job.log.stat().st_size if job.log.exists() else 0
        receive, send = self._context.Pipe(duplex=False)
        arguments = (list(job.command[1:]), str(job.log), dict(os.environ), self._threads, send, str(self._root))
        process = self._context.Process(target=run_command, args=arguments, name=job.id)
        with _environment(_ONE_THREAD), shielded():  # libraries that start no threads can be forked safely
            forkserver.ensure_running()
        with _no_main_module():
            process.start()
        send.close()
        self._running[job.id] = _Running(process, receive, time.monotonic(), job.log, log_start)

    def wait(self, timeout: float) -> list[Ended]:
        """Return the jobs that have ended."""
        by_sentinel = {running.process.sentinel: name for name, running in self._running.items()}
        ended = wait(list(by_sentinel), timeout) if by_sentinel else []
        return [self._end(by_sentinel[sentinel]) for sentinel in ended if isinstance(sentinel, int)]

    def interrupt(self) -> None:
        """Send every job a Ctrl-C; jobs are in process groups of their own, so it comes from here alone."""
        for running in self._running.values():
            if running.process.pid is not None and running.process.is_alive():
                os.kill(running.process.pid, signal.SIGINT)

    def close(self) -> None:
        """End what still runs."""
        for running in self._running.values():
            running.process.kill()
        for name in list(self._running):
            self._end(name)

    def _end(self, name: str) -> Ended:
        running = self._running.pop(name)
        running.process.join()
        seconds = time.monotonic() - running.started
        cpu = 0.0
        try:
            if running.answer.poll():
                cpu = float(running.answer.recv())
        except (EOFError, OSError):
            pass  # it was killed before it could say
        running.answer.close()
        code = running.process.exitcode
        running.process.close()
        return Ended(name, 1 if code is None else code, seconds, cpu, _reason(running, code))


def _reason(running: _Running, code: int | None) -> str:
    """Return the last line that a job printed, and the signal that killed it."""
    text = ""
    if running.log.exists():
        with running.log.open("rb") as file:
            file.seek(running.log_start)
            lines = file.read().decode(errors="replace").splitlines()
        text = next((line.strip() for line in reversed(lines) if line.strip()), "")
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
