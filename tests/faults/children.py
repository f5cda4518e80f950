"""A command in a process of its own, forked so that nothing is imported again: bounded in memory, time and disk."""

import contextlib
import io
import logging
import os
import random
import resource
import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from protovalue.cli import main
from protovalue.errors import UserError

LONGEST = 120.0  # seconds until a command counts as hanging; each takes well under two
ROOM = 1 << 30  # bytes of memory beyond those at the fork that count as too much; each takes well under 300 MiB
_ADDRESSES = 3 << 30  # the same for addresses, of which threads take many and use few: what protects the machine


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    """Exit code; minus the number of a signal."""
    said: str
    """What it wrote to stderr."""
    printed: str
    grown: int
    """Bytes of memory beyond those at the fork, at most."""
    seconds: float
    hung: bool = False


def import_everything() -> None:
    """Import what all commands need, once."""
    import importlib

    from protovalue.cli import COMMANDS

    for command in COMMANDS.values():
        for where in (command.config, command.run):
            importlib.import_module(where.split(":")[0])
    for name in ("torch._dynamo", "tensorboard.summary.writer.record_writer", "numba.np.arraymath", "tyro"):
        importlib.import_module(name)


def run(
    words: str | Callable[[], object],
    folder: Path,
    kill_after: float | None = None,
    largest_file: int | None = None,
    longest: float = LONGEST,
) -> Ended:
    """Run a command in a folder.

    Args:
        words: the command without `pvn`, or what to call in its place.
        folder: where.
        kill_after: seconds after which it is killed with -9, if it still runs then.
        largest_file: bytes that a file may have: a disk that is full.
        longest: seconds after which it counts as hanging.
    """
    before = _memory()
    readers, writers = zip(*(os.pipe() for _ in range(2)), strict=True)
    sys.stdout.flush()
    sys.stderr.flush()
    start = time.monotonic()
    child = os.fork()
    if child == 0:
        _be_child(words, folder, writers, largest_file)
    for writer in writers:
        os.close(writer)
    for reader in readers:
        os.set_blocking(reader, False)
    texts = [bytearray(), bytearray()]
    ended, hung, pause = 0, False, 0.001
    while not ended:
        for reader, text in zip(readers, texts, strict=True):
            _drain(reader, text)
        ended, status, usage = os.wait4(child, os.WNOHANG)
        if ended:
            break
        passed = time.monotonic() - start
        if passed > longest or (kill_after is not None and passed >= kill_after):
            hung = kill_after is None
            os.kill(child, signal.SIGKILL)
            kill_after = None if hung else longest * 2
        left = longest if kill_after is None else max(kill_after - passed, 0.0)
        time.sleep(min(pause, left))
        pause = min(pause * 1.3, 0.02)
    seconds = time.monotonic() - start
    for reader, text in zip(readers, texts, strict=True):
        _drain(reader, text)
        os.close(reader)
    printed, said = (text.decode(errors="replace") for text in texts)
    grown = usage.ru_maxrss * 1024 - before
    return Ended(os.waitstatus_to_exitcode(status), said, printed, grown, seconds, hung)


def _drain(reader: int, text: bytearray) -> None:
    with contextlib.suppress(BlockingIOError):
        while data := os.read(reader, 1 << 16):
            text += data


def _memory() -> int:
    """Bytes of memory that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def _be_child(
    words: str | Callable[[], object], folder: Path, writers: tuple[int, ...], largest_file: int | None
) -> None:
    """Run and end: never returns."""
    code = 99
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        os.dup2(writers[0], 1)
        os.dup2(writers[1], 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1)
        sys.__stderr__ = sys.stderr  # type: ignore[misc]
        os.chdir(folder)
        warnings.resetwarnings()  # as a user has them, not as a test
        warnings.simplefilter("default")
        logging.getLogger().handlers.clear()
        logging.disable(logging.NOTSET)
        random.seed(os.getpid())
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + _ADDRESSES
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if largest_file is not None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        try:
            code = main(words.split()) if isinstance(words, str) else _called(words)
        except BaseException:
            traceback.print_exc()
            code = 1
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def here(words: str, folder: Path) -> Ended:
    """Run a command in this process, so that what it imports and compiles is there for all that are forked later."""
    printed, said, start = io.StringIO(), io.StringIO(), time.monotonic()
    with contextlib.chdir(folder), contextlib.redirect_stdout(printed), contextlib.redirect_stderr(said):
        code = main(words.split())
    return Ended(code, said.getvalue(), printed.getvalue(), 0, time.monotonic() - start)


def _called(action: Callable[[], object]) -> int:
    """Do what no command does alone; an error ends as it does in a command."""
    try:
        action()
    except UserError as error:
        print(f"pvn: {error}", file=sys.stderr)
        return 2
    return 0


def run_anew(words: str, folder: Path, kill_after: float) -> int:
    """Start Python for a command and kill it with -9 after a while, mostly before it has imported everything."""
    process = subprocess.Popen(
        [sys.executable, "-m", "protovalue.cli", *words.split()], cwd=folder, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(kill_after)
    process.kill()
    return process.wait()
