"""What the study's process and its jobs tell each other: small files in jobs/ that every machine sees.

For each stage there are two, with one writer each. NAME.json is the study's: which attempt counts, where it was
submitted, and whether it is asked to stop. NAME.sign.json is the job's: where it runs, and how it ended; the time of
its last change is touched every few seconds, which is its sign of life. Both are replaced by a rename, which is atomic
on NFS too, and nobody needs a lock to read them.
"""

import os
import platform
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from protovalue.errors import UserError
from protovalue.files import make_folder, read_json, reading, write_json
from protovalue.schema import checked
from protovalue.study.folder import warn_once

JOBS = "jobs"
BEAT = 2.0  # seconds between two signs of life
SILENT = 60.0  # seconds without one after which whoever gave it is taken to be gone
T = TypeVar("T")


@dataclass(frozen=True)
class Record:
    """What the study says of the attempt that counts. A job of any other attempt ends itself."""

    stage: str
    attempt: str
    engine: str
    handle: str
    """What the engine calls it; empty while it is submitted."""
    submitted: float
    stop: bool = False
    """Whether it is to write a checkpoint and end."""

    @property
    def title(self) -> str:
        """What the job is called on a cluster: found by this name even if the study was killed while it submitted."""
        return f"pvn-{self.attempt}"


@dataclass(frozen=True)
class Sign:
    """What a job says of itself."""

    attempt: str
    host: str
    machine: str
    pid: int
    started: float
    log_start: int
    """Bytes of its log that are of earlier attempts."""
    code: int | None = None
    """Its exit code; None while it runs."""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    reason: str = ""
    """The last line that it printed."""


def plain_name(stage: str) -> str:
    """Return a stage's name as that of a file: of its log, and of what is said about its job."""
    return stage.replace("/", "-")


def log_name(stage: str) -> str:
    """Return the log of a stage, relative to the study's folder."""
    return f"logs/{plain_name(stage)}.log"


def write_record(root: Path, record: Record) -> None:
    """Say which attempt of a stage counts."""
    _write(root, f"{plain_name(record.stage)}.json", asdict(record))


def read_record(root: Path, stage: str) -> Record | None:
    """Return what the study says of a stage's job; None where nothing was said, or it is damaged, which is named."""
    return _read(Record, root / JOBS / f"{plain_name(stage)}.json")


def write_sign(root: Path, stage: str, sign: Sign) -> None:
    """Say where a job runs, or how it ended."""
    _write(root, f"{plain_name(stage)}.sign.json", asdict(sign))


def read_sign(root: Path, stage: str, attempt: str) -> Sign | None:
    """Return what the job of an attempt says of itself, if it has begun."""
    sign = _read(Sign, sign_path(root, stage))
    return sign if sign is not None and sign.attempt == attempt else None


def sign_path(root: Path, stage: str) -> Path:
    """Return the file whose last change is the sign of life of a stage's job."""
    return root / JOBS / f"{plain_name(stage)}.sign.json"


def beat(path: Path) -> None:
    """Give a sign of life: the file server's time, not that of this machine."""
    os.utime(path)


def silence(path: Path, now: float) -> float:
    """Return the seconds since the last sign of life in a file; `now` is by the clock of the same file server.

    The file is opened, because NFS then asks the server, where a mere look may be a minute old.
    """
    try:
        with reading(path) as file:
            return max(0.0, now - os.fstat(file.fileno()).st_mtime)
    except (FileNotFoundError, UserError):
        return float("inf")


@cache
def machine() -> str:
    """Name this machine so that no other has the name: hosts in containers may be called alike."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return platform.node()


def host() -> str:
    """Name this machine for people."""
    return socket.gethostname()


def last_line(log: Path, start: int = 0) -> str:
    """Return the last line in a log after its first `start` bytes; of a line that was written over, the last text."""
    try:
        with reading(log) as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(start, size - (1 << 16)))
            lines = file.read().decode(errors="replace").splitlines()
    except (FileNotFoundError, UserError):
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _write(root: Path, name: str, fields: Mapping[str, Any]) -> None:
    make_folder(root / JOBS)
    write_json(root / JOBS / name, fields)


def _read(kind: type[T], path: Path) -> T | None:
    try:
        return checked(kind, read_json(path), path)
    except FileNotFoundError:
        return None
    except UserError as error:
        warn_once(f"{error}; it is as if it were not there")
        return None
