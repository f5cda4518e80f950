"""One process at a time decides what runs in a study's folder, also where machines share it and locks do not hold.

A lock of the operating system (`protovalue.files.FolderLock`) is exact between processes of one machine, and ends with
its process. Between machines it depends on how the file system is mounted. So there is a lease besides: the file
driver-N.json with the highest N is of the process that decides. Who takes over makes the next number, with a
hard link that fails if it is there: one of two succeeds, on NFS too. It may do so when the holder has said that it
ended, when it was on this machine (whose lock is then free), or when it gave no sign of life for a minute.
"""

import os
import secrets
import threading
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from protovalue.errors import UserError
from protovalue.files import FolderLock, locked, make_folder, open_file, read_json, write_json
from protovalue.schema import checked
from protovalue.study.jobs import BEAT, JOBS, SILENT, beat, host, machine, silence

STOP = "stop"  # a file in jobs/: whoever decides is to let all jobs write a checkpoint and end


@dataclass(frozen=True)
class Holder:
    """Who decides."""

    host: str
    machine: str
    pid: int
    ended: bool = False


class Lease:
    """The right to decide, for as long as this context lasts."""

    def __init__(self, root: Path) -> None:
        """Take it; a UserError says who has it."""
        self._lock = FolderLock(root)
        try:
            self._folder = root / JOBS
            make_folder(self._folder)
            self._path = self._take(root)
        except BaseException:
            self._lock.release()
            raise
        self._ended = threading.Event()
        self._lost = False
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()

    def _take(self, root: Path) -> Path:
        self._me = Holder(host(), machine(), os.getpid())
        number, holder = latest(root)
        if holder is not None and not holder.ended and holder.machine != machine():
            quiet = silence(_path(root, number), file_time(root))
            if quiet < SILENT:
                raise UserError(
                    f"{root}: in use by process {holder.pid} on {holder.host}, seen {quiet:.0f} s ago; if it is gone, "
                    f"try again in {SILENT - quiet:.0f} s"
                )
        path = _path(root, number + 1)
        claim = self._folder / f".claim-{secrets.token_hex(8)}.json"
        write_json(claim, asdict(self._me))
        try:
            os.link(claim, path)
        except FileExistsError:
            raise UserError(f"{root}: in use by another process, which began at the same moment") from None
        finally:
            claim.unlink()
        if latest(root)[0] != number + 1:  # it was taken and given back since we looked
            path.unlink(missing_ok=True)
            raise UserError(f"{root}: in use by another process, which began at the same moment")
        for old in _numbers(root):
            if old <= number:
                _path(root, old).unlink(missing_ok=True)
        (self._folder / STOP).unlink(missing_ok=True)
        return path

    def _beat(self) -> None:
        root = self._folder.parent
        while not self._ended.wait(BEAT):
            try:
                if max(_numbers(root), default=0) != int(self._path.stem.rpartition("-")[2]):
                    self._lost = True
                    return
                beat(self._path)
            except OSError:
                continue  # a file server that does not answer for a while

    def check(self) -> None:
        """Refuse to go on where another process has taken over, because this one was silent for too long."""
        if self._lost:
            _, holder = latest(self._folder.parent)
            who = f" by process {holder.pid} on {holder.host}" if holder else ""
            raise UserError(f"{self._folder.parent}: taken over{who}; this process was not heard of for {SILENT:.0f} s")

    @property
    def stop_asked(self) -> bool:
        """Whether `pvn study stop` was called meanwhile."""
        return (self._folder / STOP).exists()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        try:
            if not self._lost:
                write_json(self._path, asdict(replace(self._me, ended=True)))
        finally:
            self._lock.release()


def deciding(root: Path) -> Holder | None:
    """Return who decides in a folder now; None where nobody does."""
    if not (root / JOBS).is_dir():
        return None
    number, holder = latest(root)
    if holder is None or holder.ended:
        return None
    if holder.machine == machine():
        return holder if locked(root) else None
    return holder if silence(_path(root, number), file_time(root)) < SILENT else None


def file_time(root: Path) -> float:
    """Return the time by the clock of the file server; by this machine's, where nothing may be written."""
    path = root / JOBS / f".clock-{secrets.token_hex(8)}"
    try:
        descriptor = open_file(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    except OSError:
        return time.time()
    try:
        os.utime(descriptor)
        return os.fstat(descriptor).st_mtime
    finally:
        os.close(descriptor)
        path.unlink(missing_ok=True)


def latest(root: Path) -> tuple[int, Holder | None]:
    """Return the highest number of a lease, and whose it is; of a damaged one only its signs of life count."""
    number = max(_numbers(root), default=0)
    if not number:
        return 0, None
    path = _path(root, number)
    try:
        return number, checked(Holder, read_json(path), path)
    except FileNotFoundError:
        return latest(root)  # there is a higher one since
    except UserError:
        return number, Holder("a machine that is not known", "", 0)


def _numbers(root: Path) -> list[int]:
    texts = [path.stem.rpartition("-")[2] for path in (root / JOBS).glob("driver-*.json")]
    return [int(text) for text in texts if text.isascii() and text.isdigit()]


def _path(root: Path, number: int) -> Path:
    return root / JOBS / f"driver-{number:06d}.json"
