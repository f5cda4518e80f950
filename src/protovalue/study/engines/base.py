"""What the scheduler knows of an engine: commands go in, ends come out."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True)
class Job:
    """A command to run."""

    id: str
    command: tuple[str, ...]
    """Beginning with "pvn"."""
    log: Path
    """File for all that it prints."""
    losses: int = 0
    """How often it was lost since the study's process began."""


@dataclass(frozen=True)
class Ended:
    """How a job ended."""

    id: str
    code: int
    """Exit code; minus the signal's number if one killed it."""
    seconds: float
    cpu_seconds: float
    reason: str
    """The last line that it printed, or what became of it."""
    lost: bool = False
    """Whether it ended through no fault of its own and nobody's wish here: its node is gone, it was preempted."""


class Engine(Protocol):
    """Runs commands somewhere, several at a time. What depends on what is the scheduler's business, not its own.

    Every job must see the study's folder under the same path.
    """

    slots: int
    """Jobs that it takes at the same time."""

    def submit(self, job: Job) -> None:
        """Take a job and return at once; called only while it has fewer than `slots`."""
        ...

    def adopt(self, job: Job) -> bool:
        """Take a job that an earlier process of the study submitted, if it still runs or its end was not heard of."""
        ...

    def poll(self, timeout: float) -> list[Ended]:
        """Return the jobs that have ended since the last call, after at most `timeout` seconds."""
        ...

    def cancel(self, now: bool = False) -> None:
        """Ask every job to write a checkpoint and end with code 130 or 143; `now` ends them at once."""
        ...

    def describe(self) -> str:
        """Say where stages run, as a line about the study shows it."""
        ...

    def close(self) -> None:
        """Release what the engine holds; jobs end if they cannot live without it."""
        ...
