"""What runs in a stage's process: one pvn command, with its output in a log, ending when the study's process does."""

import fcntl
import os
import resource
import sys
import traceback
from multiprocessing.connection import Connection
from pathlib import Path

from protovalue.cli import main
from protovalue.files import open_file
from protovalue.interrupt import farewell, raised
from protovalue.processes import end_with_parent, unshielded

WORKERS = "workers"  # a file in the study's folder that every job holds a shared lock on


def run_command(
    arguments: list[str], log: str, environment: dict[str, str], threads: int, answer: Connection, root: str
) -> None:
    """Run `pvn` with `arguments`; send the processor time and exit with its code."""
    os.setpgrp()  # Ctrl-C comes once, from the study's process
    end_with_parent()
    descriptor = open_file(Path(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    held = open_file(Path(root) / WORKERS, os.O_RDWR | os.O_CREAT)
    fcntl.flock(held, fcntl.LOCK_SH)
    os.environ.clear()  # the server was started in the environment of the first study of this process
    os.environ.update(environment)
    code = _run(arguments, threads)
    sys.stdout.flush()
    sys.stderr.flush()
    answer.send(_cpu_seconds())
    answer.close()
    sys.exit(code)


def _run(arguments: list[str], threads: int) -> int:
    import torch

    torch.set_num_threads(threads)  # for what has no --threads of its own
    try:
        with raised():
            unshielded()
            return main(arguments)
    except KeyboardInterrupt as error:
        return farewell(error, "")[1]
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
        return 1


def _cpu_seconds() -> float:
    """Return the processor time of this process and of those that it waited for."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def wait_for_workers(root: Path) -> None:
    """Wait until no job of an earlier run of the study is alive; they end within a moment of it."""
    held = open_file(root / WORKERS, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
    finally:
        os.close(held)
