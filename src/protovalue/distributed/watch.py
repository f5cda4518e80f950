"""How processes that train together learn that one of them has ended: each holds a connection to the first.

The operating system closes it however its process ends, so that nobody waits for one that is gone: collectives would,
with nccl for many minutes, and they do not know who is missing.
"""

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

GONE = "it was killed, perhaps for lack of memory, or its machine is gone; the others ended; the same command continues"
UNWINDING = 5.0  # seconds for the main thread of the first process to end by itself: what it waits for has failed, too
AGREEING = 2.0  # seconds in which another's mistake may turn out to be the first one's, too, which then tells it
PRINTING = 0.5  # seconds for the first process to print why: torchrun ends it as soon as another has failed


@dataclass(frozen=True)
class Peer:
    """One of the processes, as a line names it."""

    rank: int
    count: int
    host: str
    pid: int

    def __str__(self) -> str:
        """Name it."""
        return f"rank {self.rank} of {self.count} (process {self.pid} on {self.host})"


class Watch:
    """What both ends have: `failure` is why all must end, once it is known."""

    failure: str | None = None

    def failed(self, within: float = AGREEING) -> str | None:
        """Return why all must end: an exchange that fails is noticed at about the same time as the reason."""
        end = time.monotonic() + within
        while self.failure is None and time.monotonic() < end:
            time.sleep(0.01)
        return self.failure

    def over(self, code: int) -> None:
        """Say that this process ends: by `code`, of which 0 is that all is done."""
        raise NotImplementedError

    def say(self, line: str, code: int) -> None:
        """Say why this process ends early."""
        raise NotImplementedError


class First(Watch):
    """The first process's end: it hears from all others, decides, and tells all."""

    def __init__(self, host: str) -> None:
        """Listen on `host`, at a port that is free."""
        self._listening = socket.create_server((host, 0))
        self.port: int = self._listening.getsockname()[1]
        self._others: dict[int, socket.socket] = {}
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._ended = False

    def admit(self, token: str, count: int, patience: float, check: Callable[[], None]) -> list[int]:
        """Wait for all others, whom the token tells from strangers, and return those that did not come.

        `check` is called now and then, to raise where waiting is in vain.
        """
        end = time.monotonic() + patience
        while len(self._others) < count - 1 and time.monotonic() < end:
            check()
            self._listening.settimeout(0.1)
            try:
                connection, _ = self._listening.accept()
            except TimeoutError:
                continue
            hello = _hello(connection, token)
            if hello is None:
                connection.close()
                continue
            peer = Peer(hello["rank"], count, hello["host"], hello["pid"])
            self._others[peer.rank] = connection
            self._threads.append(threading.Thread(target=self._listen, args=(peer, connection), daemon=True))
            self._threads[-1].start()
        return [rank for rank in range(1, count) if rank not in self._others]

    def _listen(self, peer: Peer, connection: socket.socket) -> None:
        """Hear what another process says at its end."""
        told = _heard(connection)
        if told is None:
            self._fail(f"{peer} is gone: {GONE}", 0.0)
        elif told["code"]:
            self._fail(f"{peer}: {told['line']}", AGREEING)

    def _fail(self, line: str, patience: float) -> None:
        """End all: this process by an error that its main thread raises or, where it waits for ever, at once."""
        time.sleep(patience)
        with self._lock:
            if self._ended or self.failure is not None:
                return
            self.failure = line
            self._tell_all(2)
        time.sleep(UNWINDING)
        with self._lock:
            if not self._ended:
                _leave(line, 2)

    def _tell_all(self, code: int) -> None:
        for connection in self._others.values():
            _tell(connection, {"code": code, "line": ""})

    def over(self, code: int) -> None:
        """Tell all that it is over."""
        with self._lock:
            self._ended = True
            self._tell_all(code)
            self._listening.close()
            for connection in self._others.values():
                with suppress(OSError):  # of one that is gone
                    connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(1.0)
        for connection in self._others.values():
            connection.close()

    def say(self, line: str, code: int) -> None:
        """Do nothing: whoever started this process prints what it raises."""


class Other(Watch):
    """Any other process's end: it has nothing to save, so it ends at once when it is told to."""

    def __init__(self, host: str, port: int, token: str, own: Peer, first: Peer) -> None:
        self._own, self._first = own, first
        self._connection = socket.create_connection((host, port), timeout=30.0)
        self._connection.settimeout(None)
        _keep_alive(self._connection)
        _tell(self._connection, {"token": token, "rank": own.rank, "host": own.host, "pid": own.pid})
        self._done, self._over = False, threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        told = _heard(self._connection)
        if told is None:
            # Of those that are left one speaks.
            _leave(f"{self._first} is gone: {GONE}" if self._own.rank == 1 else None, 2)
        if told["code"]:
            time.sleep(PRINTING)
        elif self._done:
            self._over.set()
            return
        os._exit(told["code"])  # with 0: the first one found that nothing is left to do

    def over(self, code: int) -> None:
        """Say that this process has done its part, and wait until the first one has.

        A process that goes on to its end at once may end in an abort: gloo's threads need the interpreter to let go of
        what was exchanged last.
        """
        self._done = True
        _tell(self._connection, {"code": code, "line": ""})
        self._over.wait()
        self._connection.close()

    def say(self, line: str, code: int) -> None:
        """Say why this process ends; the first one prints it, or what it found wrong itself, and tells all to end."""
        _tell(self._connection, {"code": code, "line": line})
        self._over.wait(AGREEING + UNWINDING)


def _hello(connection: socket.socket, token: str) -> dict[str, Any] | None:
    """Return what another process says of itself; None for a stranger."""
    connection.settimeout(5.0)
    told = _heard(connection)
    if told is None or told.get("token") != token:
        return None
    connection.settimeout(None)
    _keep_alive(connection)
    return told


def _keep_alive(connection: socket.socket) -> None:
    """Notice within half a minute a machine that is gone without a word."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _tell(connection: socket.socket, message: Mapping[str, Any]) -> None:
    with suppress(OSError):  # of one that is gone, which its end of the connection says
        connection.sendall(json.dumps(message).encode() + b"\n")


def _heard(connection: socket.socket) -> dict[str, Any] | None:
    """Return what the other end says, or None once it is gone."""
    try:
        with connection.makefile("rb", buffering=0) as file:  # what comes after the line stays where it is
            line = file.readline(1 << 20)
        told = json.loads(line) if line.endswith(b"\n") else None
    except (OSError, ValueError):
        return None
    return told if isinstance(told, dict) else None


def _leave(line: str | None, code: int) -> NoReturn:
    """End this process at once, wherever its other threads are."""
    if line is not None:
        os.write(2, f"pvn: {line}\n".encode())
    os._exit(code)
