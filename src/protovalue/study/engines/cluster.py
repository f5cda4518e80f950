"""What engines on other machines share: they submit a command line, and read in the study's folder what became of it.

A job outlives the process that submitted it. The next one finds it by what is written in jobs/, so nothing runs twice.
"""

import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from protovalue.errors import UserError
from protovalue.files import make_folder
from protovalue.interrupt import INTERRUPTED, TERMINATED
from protovalue.study.engines.base import Ended, Job
from protovalue.study.jobs import SILENT, Record, Sign, read_record, read_sign, sign_path, silence, write_record
from protovalue.study.lease import file_time
from protovalue.study.resources import Ask, Node, ask_text, misfit
from protovalue.study.worker import Order

LOOK = 1.0  # seconds between two looks at what the jobs say of themselves
QUESTION = 5.0  # seconds between two questions to the cluster
GRACE = 5.0  # seconds for a job's last words to arrive after the cluster says that it is gone


@dataclass(frozen=True)
class Gone:
    """A job that the cluster says is over."""

    reason: str
    lost: bool = True
    """Whether to try again; else it would only happen again."""


@dataclass
class _Followed:
    record: Record
    submitted: float
    """When, by the clock of this process."""
    gone_since: float | None = None


class Cluster(ABC):
    """An engine that runs stages as jobs elsewhere; a subclass knows one kind of cluster."""

    name: str

    def __init__(self, root: Path, threads: int, asks: Mapping[str, Ask], jobs: int | None) -> None:
        """Run the stages of the study in `root`, of which each asks for something; at most `jobs` at a time."""
        self._root, self._threads, self._asks = root.absolute(), threads, asks
        self._nodes = self.nodes()
        self._check()
        places = sum(min(node.room(ask) for ask in asks.values()) for node in self._nodes) if asks else 1
        self.slots = jobs or max(len(asks), 1)
        self.places = max(1, min(self.slots, places))
        self._followed: dict[str, _Followed] = {}
        self._asked = False
        self._looked = self._questioned = float("-inf")
        self._states: Mapping[str, Gone | None] | None = None

    def _check(self) -> None:
        """Refuse, before anything starts, stages that no node has room for."""
        for stage, ask in self._asks.items():
            lacks = misfit(ask, self._nodes)
            if lacks:
                raise UserError(
                    f"--engine {self.name}: {stage} asks for {ask_text(ask)}, and {lacks}; "
                    "[resources] of the study file says what stages ask for"
                )

    @abstractmethod
    def nodes(self) -> Sequence[Node]:
        """Return the nodes that could take a stage."""

    @abstractmethod
    def launch(self, title: str, order: Order, ask: Ask, losses: int) -> str:
        """Submit a command under a name, and return what the cluster calls it."""

    @abstractmethod
    def find(self, title: str) -> str | None:
        """Return what the cluster calls the job of a name, if it has one."""

    @abstractmethod
    def states(self, handles: Sequence[str]) -> Mapping[str, Gone | None] | None:
        """Return for each job that the cluster knows whether it is over (else None); None if it does not answer."""

    @abstractmethod
    def end(self, handle: str) -> None:
        """End a job at once, or take it out of the queue."""

    @abstractmethod
    def describe(self) -> str:
        """Say which cluster it is."""

    @abstractmethod
    def close(self) -> None:
        """Leave the jobs as they are."""

    def submit(self, job: Job) -> None:
        """Submit a job; what is written first lets a later process find it, even if this one is killed here."""
        make_folder(job.log.parent)
        record = Record(job.id, secrets.token_hex(8), self.name, "", round(time.time(), 3))
        write_record(self._root, record)
        order = Order(
            self._root, job.id, record.attempt, job.log.absolute(), self._threads, Path.cwd(), job.command[1:]
        )
        handle = self.launch(record.title, order, self._asks[job.id], job.losses)
        record = replace(record, handle=handle)
        write_record(self._root, record)
        self._followed[job.id] = _Followed(record, time.monotonic())

    def adopt(self, job: Job) -> bool:
        """Follow a job that an earlier process submitted, whatever became of it since."""
        record = read_record(self._root, job.id)
        if record is None or record.engine != self.name:
            return False
        if not record.handle:
            record = replace(record, handle=self.find(record.title) or "")
        self._followed[job.id] = _Followed(record, time.monotonic())
        return True

    def poll(self, timeout: float) -> list[Ended]:
        """Return the jobs that have ended: by their own words, or by those of the cluster."""
        time.sleep(timeout)
        now = time.monotonic()
        if now - self._looked < LOOK:
            return []
        self._looked = now
        if now - self._questioned >= QUESTION:
            self._states = self.states([one.record.handle for one in self._followed.values() if one.record.handle])
            self._questioned = now
        ended = [self._end(name, one, now) for name, one in self._followed.items()]
        found = [one for one in ended if one is not None]
        for one in found:
            self.forget(self._followed.pop(one.id).record.handle)
        return found

    @abstractmethod
    def forget(self, handle: str) -> None:
        """Release what is held for a job that has ended."""

    def cancel(self, now: bool = False) -> None:
        """Ask the jobs to stop, in what they read every few seconds; those that have not begun leave the queue."""
        self._asked = True
        for name, one in self._followed.items():
            one.record = replace(one.record, stop=True)
            write_record(self._root, one.record)
            waits = read_sign(self._root, name, one.record.attempt) is None
            if one.record.handle and (now or waits):
                self.end(one.record.handle)
        self._questioned = float("-inf")

    def _end(self, name: str, one: _Followed, now: float) -> Ended | None:
        sign = read_sign(self._root, name, one.record.attempt)
        if sign is not None and sign.code is not None:
            return self._said(name, sign, one)
        gone = self._gone(name, one, now)
        if gone is None:
            one.gone_since = None
            return None
        if one.gone_since is None:
            one.gone_since = now
        if now - one.gone_since < GRACE and not self._asked:
            return None
        seconds = max(0.0, time.time() - sign.started) if sign else 0.0
        if self._asked:
            return Ended(name, INTERRUPTED, seconds, 0.0, gone.reason)
        where = f" on {sign.host}" if sign else ""
        return Ended(name, 1, seconds, 0.0, f"{self._called(one)}{where}: {gone.reason}", gone.lost)

    def _said(self, name: str, sign: Sign, one: _Followed) -> Ended:
        """Return an end by the job's own words; one that was asked to stop by others than us is lost."""
        assert sign.code is not None
        lost = sign.code in (INTERRUPTED, TERMINATED) and not self._asked
        reason = sign.reason or f"exit code {sign.code}, nothing printed"
        if lost:
            state = (self._states or {}).get(one.record.handle)
            reason = f"{self._called(one)} on {sign.host}: {state.reason if state else 'it was asked to end'}"
        return Ended(name, sign.code, sign.seconds, sign.cpu_seconds, reason, lost)

    def _gone(self, name: str, one: _Followed, now: float) -> Gone | None:
        """Return why a job that has not said its end is over, if it is."""
        if self._states is None or one.submitted > self._questioned:
            return None  # the cluster has not answered since
        if one.record.handle in self._states:
            return self._states[one.record.handle]
        if silence(sign_path(self._root, name), file_time(self._root)) < SILENT:
            return None  # another cluster's, or forgotten there: it lives
        return Gone("no sign of it, and the cluster does not know it")

    def _called(self, one: _Followed) -> str:
        return f"{self.name} job {one.record.handle or one.record.title}"
