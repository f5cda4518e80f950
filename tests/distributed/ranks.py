"""Processes of a run, forked from the test: what they need is imported already, so that each begins at once."""

import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch._dynamo  # noqa: F401  # DistributedDataParallel imports it, which takes seconds: here, once for all
from torch.distributed import FileStore  # type: ignore[attr-defined]  # it exports what it has not named

from protovalue.distributed import group
from protovalue.distributed.group import Ranks
from protovalue.distributed.join import FOR_EVER, LOOPBACK
from tests.test_interrupt import wait_until

Arrays = Mapping[str, Any]


class Forked:
    """A process that does something, says it in a file, and ends with the code that is returned."""

    def __init__(self, log: Path, do: Callable[[], int]) -> None:
        self.log = log
        self.pid = os.fork()
        if self.pid == 0:
            code = 99
            try:
                signal.signal(signal.SIGINT, signal.default_int_handler)
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                with log.open("w") as file:
                    os.dup2(file.fileno(), 1)
                    os.dup2(file.fileno(), 2)
                    sys.stdout = sys.stderr = file
                    try:
                        code = do()
                    except SystemExit as error:
                        code = int(str(error.code))
                    except BaseException:
                        traceback.print_exc()
            finally:
                os._exit(code)

    def alive(self) -> bool:
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    def ended(self) -> tuple[int, str]:
        """Wait for the end; return the exit code, negative for a signal, and what was said."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]), self.log.read_text()

    def when(self, true: Callable[[], bool]) -> None:
        """Wait until something is true."""
        wait_until(true, self.alive)


def in_ranks(folder: Path, count: int, found: Callable[[], Arrays]) -> list[dict[str, np.ndarray]]:
    """Call a function in `count` processes that are together, and return what each found."""
    folder.mkdir(parents=True, exist_ok=True)

    def do(rank: int) -> int:
        os.environ["GLOO_SOCKET_IFNAME"] = LOOPBACK
        if count > 1:
            store = FileStore(str(folder / "store"), count)
            group.begin(Ranks(rank, count, rank, count), store, False, FOR_EVER)
        np.savez(folder / f"{rank}.npz", **found())
        return 0

    processes = [Forked(folder / f"log-{rank}", lambda rank=rank: do(rank)) for rank in range(count)]  # type: ignore[misc]
    for process in processes:
        code, said = process.ended()
        assert code == 0, said
    return [dict(np.load(folder / f"{rank}.npz")) for rank in range(count)]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def as_rank(rank: int, count: int, port: int, **more: str) -> None:
    """Set what torchrun sets."""
    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(count),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": LOOPBACK,
        **more,
    }


def started(folder: Path, count: int, do: Callable[[], int], **more: str) -> list[Forked]:
    """Start the processes of a run as torchrun would."""
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()

    def own(rank: int) -> int:
        as_rank(rank, count, port, **more)
        return do()

    return [Forked(folder / f"log-{rank}-{time.time_ns()}", lambda rank=rank: own(rank)) for rank in range(count)]  # type: ignore[misc]
