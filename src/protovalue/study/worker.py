"""What runs in a stage's process, on whatever machine: one pvn command, its output in a log, and signs of life.

`python -m protovalue.study.worker ROOT STAGE ATTEMPT LOG THREADS PLACE -- WORDS` is what an engine runs elsewhere;
on this machine the same is called in a process that has imported PyTorch already. Only words cross, never objects.
"""

import fcntl
import os
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

from protovalue.cli import main
from protovalue.files import make_folder, open_file
from protovalue.interrupt import INTERRUPTED, farewell, raised
from protovalue.processes import end_with_parent, unshielded
from protovalue.study.jobs import (
    BEAT,
    Sign,
    beat,
    host,
    last_line,
    machine,
    read_record,
    sign_path,
    write_sign,
)

WORKERS = "workers"  # a file in the study's folder that every job of this machine's engine holds a shared lock on
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
SUPERSEDED = 75  # exit code of a job that does not count any more
FOLLOW = "--end-with-stdin"


@dataclass(frozen=True)
class Order:
    """A stage to run."""

    root: Path
    """The study's folder."""
    stage: str
    attempt: str
    log: Path
    threads: int
    place: Path
    """The folder that relative paths of the command start from."""
    words: tuple[str, ...]
    """Of the command, without the "pvn"."""

    def command(self) -> list[str]:
        """Return it as a command line of this module."""
        own = (self.root.absolute(), self.stage, self.attempt, self.log.absolute(), self.threads, self.place.absolute())
        return [sys.executable, "-u", "-m", "protovalue.study.worker", *map(str, own), "--", *self.words]


def run_forked(order: Order, environment: dict[str, str]) -> None:
    """Run a stage in a process that the engine of this machine forked; it ends when the study's process does."""
    os.setpgrp()  # Ctrl-C comes once, from the study's process
    end_with_parent()
    held = open_file(order.root / WORKERS, os.O_RDWR | os.O_CREAT)
    fcntl.flock(held, fcntl.LOCK_SH)
    os.environ.clear()  # the server was started in the environment of the first study of this process
    os.environ.update(environment)
    sys.exit(run_stage(order))


def run_stage(order: Order) -> int:
    """Run a stage and return its exit code; what it says of itself is in its log and in its sign."""
    start = time.monotonic()
    make_folder(order.log.parent)
    descriptor = open_file(order.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    log_start = os.fstat(descriptor).st_size
    os.close(descriptor)
    record = read_record(order.root, order.stage)
    if record is None or record.attempt != order.attempt:
        print(f"pvn: {order.stage}: another attempt counts now; this one does nothing", file=sys.stderr)
        return SUPERSEDED
    sign = Sign(order.attempt, host(), machine(), os.getpid(), round(time.time(), 3), log_start)
    write_sign(order.root, order.stage, sign)
    ended = threading.Event()
    watching = threading.Thread(target=_watch, args=(order, ended), daemon=True)
    watching.start()
    signal.signal(signal.SIGUSR2, _time_is_up)
    code = INTERRUPTED if record.stop else _run(order)
    sys.stdout.flush()
    sys.stderr.flush()
    ended.set()
    watching.join()
    text = last_line(order.log, log_start).removeprefix("pvn: ")
    seconds, cpu = round(time.monotonic() - start, 3), round(_cpu_seconds(), 3)
    write_sign(order.root, order.stage, replace(sign, code=code, seconds=seconds, cpu_seconds=cpu, reason=text))
    return code


def _run(order: Order) -> int:
    import torch

    torch.set_num_threads(order.threads)  # for what has no --threads of its own
    os.chdir(order.place)
    try:
        with raised():
            unshielded()
            return main(order.words)
    except KeyboardInterrupt as error:
        return farewell(error, "")[1]
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
        return 1


def _watch(order: Order, ended: threading.Event) -> None:
    """Give signs of life, hear that the stage is to stop, and end at once if another attempt counts."""
    told = False
    while not ended.wait(BEAT):
        try:
            beat(sign_path(order.root, order.stage))
            record = read_record(order.root, order.stage)
        except OSError:
            continue  # a file server that does not answer for a while; the study waits for it too
        if record is not None and record.attempt != order.attempt:
            os.write(2, b"pvn: another attempt counts now; this one ends\n")
            os._exit(SUPERSEDED)
        if record is not None and record.stop and not told:
            told = True
            os.kill(os.getpid(), signal.SIGINT)


def _time_is_up(number: int, frame: FrameType | None) -> None:
    """Stop as on SIGTERM: a cluster sends this signal a while before it ends a job."""
    os.kill(os.getpid(), signal.SIGTERM)


def _cpu_seconds() -> float:
    """Return the processor time of this process and of those that it waited for."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def wait_for_workers(root: Path) -> None:
    """Wait until no job of an earlier run of the study is alive on this machine; they end within a moment of it."""
    held = open_file(root / WORKERS, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
    finally:
        os.close(held)


def _end_with_stdin() -> None:
    """End at once when the other end of the standard input is closed, which it is when its holder ends, however."""

    def follow() -> None:
        while os.read(0, 1):
            pass
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def run_words(words: Sequence[str]) -> int:
    """Run what `Order.command` wrote."""
    follow = words[0] == FOLLOW
    split = words.index("--")
    root, stage, attempt, log, threads, place = words[follow:split]
    if follow:
        _end_with_stdin()
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ.update(ONE_THREAD)  # as the server on one machine imports it: libraries read these once
    import torch  # noqa: F401

    for name, value in before.items():
        os.environ.pop(name)
        if value is not None:
            os.environ[name] = value
    order = Order(Path(root), stage, attempt, Path(log), int(threads), Path(place), tuple(words[split + 1 :]))
    return run_stage(order)


if __name__ == "__main__":
    sys.exit(run_words(sys.argv[1:]))
