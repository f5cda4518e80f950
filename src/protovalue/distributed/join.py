"""How processes that train together begin and end: started by this one, or by torchrun and its like."""

import json
import logging
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]  # as in group.py

import protovalue
from protovalue.config import PRESET, Settings, default_of, flag_words
from protovalue.distributed import group
from protovalue.distributed.group import Ranks
from protovalue.distributed.watch import AGREEING, First, Other, Peer, Watch
from protovalue.errors import UserError
from protovalue.interrupt import INTERRUPTED

JOIN_SECONDS = "PROTOVALUE_JOIN_SECONDS"
"""Environment variable: how long to wait for the other processes at the beginning."""
FOR_EVER = timedelta(days=30)  # that a process is gone is noticed otherwise; one may wait for hours for a computation
LOCAL = "127.0.0.1"
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
ENDING = 10.0  # seconds for the processes that were started here to end, once they were told


def expected(wanted: int) -> Ranks:
    """Return which of the processes this one will be: as torchrun says in the environment, or the first of `wanted`."""
    if not _started_by_others():
        return Ranks(0, wanted, 0, wanted)
    rank, count = _number("RANK"), _number("WORLD_SIZE")
    local_rank, local_count = _number("LOCAL_RANK", rank), _number("LOCAL_WORLD_SIZE", count)
    if not 0 <= rank < count or not 0 <= local_rank < local_count:
        raise UserError(f"RANK: found {rank} of WORLD_SIZE {count}, expected 0 to {count - 1}")
    if wanted not in (1, count):
        raise UserError(f"--processes: found {wanted}, expected {count} or none: WORLD_SIZE says how many there are")
    return Ranks(rank, count, local_rank, local_count)


def _started_by_others() -> bool:
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def _number(name: str, otherwise: int | None = None) -> int:
    """Read a number from the environment."""
    text = os.environ.get(name)
    if text is None and otherwise is not None:
        return otherwise
    if text is None or not text.isdecimal():
        found = "nothing" if text is None else repr(text)
        raise UserError(f"{name}: found {found} in the environment, expected a number, as torchrun sets it")
    return int(text)


def check(found: Ranks, batch_size: int, device: str) -> None:
    """Refuse a number of processes that the batch cannot be shared out to, or that there are no devices for."""
    if found.count > batch_size:
        raise UserError(f"--processes: found {found.count}, expected at most {batch_size}, the --batch-size")
    if batch_size % found.count:
        raise UserError(
            f"--batch-size: found {batch_size} for {found.count} processes, expected a multiple of {found.count}: each "
            "has an equal part"
        )
    if device == "cuda" and found.several:
        devices = torch.cuda.device_count()
        if found.local_count > devices:
            raise UserError(f"--processes: found {found.local_count}, expected at most {devices}: one for each GPU")
        torch.cuda.set_device(found.local_rank)


def most_threads(found: Ranks) -> int | None:
    """Return how many CPU threads this process may have: its part of the cores, unless OMP_NUM_THREADS says it."""
    if not found.several or "OMP_NUM_THREADS" in os.environ:
        return None
    return max(1, torch.get_num_threads() // found.local_count)


class Together:
    """The processes of a run, as a context: it ends in all of them at once, with what one of them raised.

    Processes that others started come together at its beginning. Those that this one starts come at `start`, once
    there is nothing left to refuse.
    """

    def __init__(self, found: Ranks, config: Settings, device: str) -> None:
        self.ranks, self._config, self._cuda = found, config, device == "cuda"
        self._watch: Watch | None = None
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._store: Store | None = None

    def __enter__(self) -> Self:
        if self.ranks.several and _started_by_others():
            with self._ending():
                self._meet(*self._environments_store())
        return self

    def start(self) -> None:
        """Start the other processes, if there are to be some and nobody has."""
        if not self.ranks.several or self._watch is not None:
            return
        store = TCPStore(LOCAL, 0, None, True, _patience(), wait_for_workers=False)
        named = {
            "WORLD_SIZE": str(self.ranks.count),
            "LOCAL_WORLD_SIZE": str(self.ranks.count),
            "MASTER_ADDR": LOCAL,
            "MASTER_PORT": str(store.port),
        }
        environment = {"TORCH_CPP_LOG_LEVEL": "ERROR", **os.environ, **named, "GLOO_SOCKET_IFNAME": LOOPBACK}
        environment["PYTHONPATH"] = os.pathsep.join(
            [str(Path(protovalue.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
        )
        command = [sys.executable, "-P", "-m", "protovalue", "pretrain", *words_of(self._config)]
        for rank in range(1, self.ranks.count):
            self._children[rank] = subprocess.Popen(
                command,
                env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C reaches this process alone, which tells them
            )
        before = os.environ.get("GLOO_SOCKET_IFNAME")
        os.environ["GLOO_SOCKET_IFNAME"] = LOOPBACK
        try:
            self._meet(store, LOCAL)
        finally:
            del os.environ["GLOO_SOCKET_IFNAME"]
            if before is not None:
                os.environ["GLOO_SOCKET_IFNAME"] = before

    def _environments_store(self) -> tuple[Store, str]:
        """Return where processes find each other that were started by torchrun, or by hand."""
        host, port, first = os.environ.get("MASTER_ADDR", ""), _number("MASTER_PORT"), self.ranks.first
        if not host:
            raise UserError("MASTER_ADDR: found nothing in the environment, expected the host of rank 0")
        serves = first and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        try:
            store = _within(
                _patience().total_seconds() + 1,
                lambda: TCPStore(host, port, None, serves, _patience(), wait_for_workers=False),
            )
        except (dist.DistError, RuntimeError, ValueError) as error:
            if serves:
                why = "another program uses it" if "EADDRINUSE" in str(error) else _short(error)
                raise UserError(f"MASTER_PORT: found {port}, expected a port that is free on {host}: {why}") from error
            raise UserError(
                f"rank {self.ranks.rank} of {self.ranks.count}: no answer from rank 0 at {host}, port {port} "
                f"(MASTER_ADDR, MASTER_PORT), within {_patience().total_seconds():.0f} s: {_short(error)}"
            ) from error
        return store, host

    def _meet(self, store: Store, host: str) -> None:
        """Connect with all others, or say who is missing."""
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")  # torchrun's store outlives those it starts
        found, self._store = self.ranks, PrefixStore(f"protovalue {attempt}", store)
        store = self._store
        own = Peer(found.rank, found.count, socket.gethostname(), os.getpid())
        if store.add(f"rank {found.rank}", 1) > 1:
            raise UserError(f"RANK: found {found.rank}, which another process has already, expected one of each")
        if found.first:
            watch = self._watch = First(LOCAL if host == LOCAL else "")
            token = secrets.token_hex(16)
            store.set("watch", json.dumps({"port": watch.port, "token": token, "host": own.host, "pid": own.pid}))
            missing = watch.admit(token, found.count, _patience().total_seconds(), self._alive)
            if missing:
                named = f"rank{'s' * (len(missing) > 1)} {', '.join(map(str, missing))} of {found.count}"
                raise UserError(
                    f"{named} did not come within {_patience().total_seconds():.0f} s, expected all to be started with "
                    f"the same MASTER_ADDR and MASTER_PORT ({JOIN_SECONDS} is how long to wait)"
                )
        else:
            try:
                about = json.loads(store.get("watch"))
                first = Peer(0, found.count, about["host"], about["pid"])
                self._watch = Other(host, about["port"], about["token"], own, first)
            except (dist.DistError, RuntimeError, OSError, ValueError) as error:
                raise UserError(
                    f"rank {found.rank} of {found.count}: no answer from rank 0: {_short(error)}"
                ) from error
            logging.disable(logging.WARNING)  # the first process says it
        group.begin(found, store, self._cuda, FOR_EVER)

    def _alive(self) -> None:
        """Raise if a process that was started here has ended before it came."""
        for rank, child in self._children.items():
            if child.poll() is not None:
                raise UserError(
                    f"rank {rank} of {self.ranks.count} (process {child.pid}) ended before it began, "
                    f"{_how(child.returncode)}; the others ended"
                )

    @contextmanager
    def _ending(self) -> Iterator[None]:
        """End together where coming together fails."""
        try:
            yield
        except BaseException as error:
            self._end(error)
            raise

    def same(self, settings: Mapping[str, Any]) -> None:
        """Refuse processes that were started with other settings than the first."""
        if not self.ranks.several:
            return
        first = group.from_first(dict(settings) if self.ranks.first else None)
        mine = json.loads(json.dumps(settings))
        differ = [f"{name} {mine.get(name)!r} (rank 0 has {first.get(name)!r})" for name in sorted(first.keys() | mine)
                  if first.get(name) != mine.get(name)]  # fmt: skip
        if differ:
            raise UserError(f"found other settings than those of rank 0: {', '.join(differ[:4])}, expected the same")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(error)

    def _end(self, error: BaseException | None) -> None:
        """Tell the others, and raise what this process is to end with."""
        watch, self._watch = self._watch, None
        try:
            if watch is not None:
                self._say(watch, error)
        finally:
            logging.disable(logging.NOTSET)
            self._wait()
            with suppress(RuntimeError):  # of connections that are gone
                group.end()
            self._store = None

    def _say(self, watch: Watch, error: BaseException | None) -> None:
        if error is None:
            watch.over(0)
        elif self.ranks.first:
            failure = watch.failed() if isinstance(error, RuntimeError) else watch.failure
            watch.over(INTERRUPTED if isinstance(error, KeyboardInterrupt) else 2)
            if failure is not None and not isinstance(error, KeyboardInterrupt):
                raise UserError(failure) from error
        elif isinstance(error, UserError | KeyboardInterrupt):
            interrupted = isinstance(error, KeyboardInterrupt)
            watch.say("interrupted" if interrupted else str(error), INTERRUPTED if interrupted else 2)
            raise SystemExit(INTERRUPTED if interrupted else 2) from error  # the first process prints it
        else:
            if isinstance(error, RuntimeError):
                time.sleep(2 * AGREEING)  # an exchange fails where another process has ended: then this one is told
            watch.say(_short(error), 1)

    def _wait(self) -> None:
        """Let no process that was started here outlive this one."""
        end = time.monotonic() + ENDING
        for child in self._children.values():
            try:
                child.wait(max(end - time.monotonic(), 0.0))
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        self._children = {}


def _within(seconds: float, call: Callable[[], Any]) -> Any:
    """Return what a call returns, or raise a RuntimeError if it takes longer.

    A store's constructor waits for ever where another program listens at its port and says nothing.
    """
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(call())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if not found:
        raise RuntimeError("something listens there that is no process of this run")
    if isinstance(found[0], Exception):
        raise found[0]
    return found[0]


def _patience() -> timedelta:
    """Return how long to wait for others at the beginning."""
    return timedelta(seconds=_number(JOIN_SECONDS, 300))


def _short(error: BaseException) -> str:
    """Say an error in a line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}{' ...' * (len(text) > 200)}"


def _how(code: int) -> str:
    return f"killed by signal {-code}" if code < 0 else f"with code {code}"


def words_of(config: Settings) -> list[str]:
    """Return the command line of another process of the same run."""
    found = []
    for one in fields(config):
        value = getattr(config, one.name)
        given = value is not None and value is not PRESET and (one.name == "method" or value != default_of(one))
        if given and one.name != "processes":
            found += flag_words(one.name, value)
    return found
