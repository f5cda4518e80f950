"""Files that survive a kill at any instant: atomic JSON, complete writes, folder locks."""

import fcntl
import hashlib
import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from protovalue.errors import UserError
from protovalue.schema import parse_json

_SUM = "sha256"  # the key under which a JSON file carries the checksum of its other keys


def fsync_folder(folder: Path) -> None:
    """Make renames and new names in `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """Write all of `data`; os.write alone may write a part."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def write_atomic(path: Path, data: bytes) -> None:
    """Replace `path` by `data` at once: beside it, fsync, rename."""
    beside = path.with_name(f".{path.name}.tmp")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        write_all(descriptor, data)
        os.fsync(descriptor)
    except OSError:
        beside.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)
    beside.replace(path)
    fsync_folder(path.parent)


def _digest(fields: Mapping[str, Any]) -> str:
    """SHA-256 of the canonical JSON text: sorted keys, no spaces, ASCII."""
    return hashlib.sha256(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def write_json(path: Path, fields: Mapping[str, Any]) -> None:
    """Write a JSON object atomically, with a checksum of its own fields."""
    write_atomic(path, (json.dumps({**fields, _SUM: _digest(fields)}, indent=1) + "\n").encode())


def read_json(path: Path) -> dict[str, Any]:
    """Read what `write_json` wrote; a damaged file is a UserError."""
    fields = parse_json(path.read_bytes(), path)
    if not isinstance(fields, dict):
        raise UserError(f"{path}: damaged: found a JSON {type(fields).__name__}, expected an object")
    found = fields.pop(_SUM, None)
    if found != _digest(fields):
        raise UserError(f"{path}: damaged: its checksum does not match its contents")
    return fields


def size_and_crc(path: Path, durable: bool = False) -> tuple[int, int]:
    """Return a file's size and CRC-32; `durable` also makes it safe against a power failure."""
    crc, size = 0, 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            crc, size = zlib.crc32(block, crc), size + len(block)
        if durable:
            os.fsync(file.fileno())
    return size, crc


class FolderLock:
    """A lock on a folder that the operating system releases when its process ends, however it ends."""

    def __init__(self, folder: Path, wait: bool = False) -> None:
        """Take the lock; if another process has it, wait for it or refuse."""
        self._descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            holder = os.read(self._descriptor, 32).decode(errors="replace").strip()
            os.close(self._descriptor)
            raise UserError(f"{folder}: in use by another process (pid {holder or 'unknown'})") from None
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, str(os.getpid()).encode(), 0)

    def release(self) -> None:
        """Let others have the folder."""
        os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def locked(folder: Path) -> bool:
    """Whether a process holds the lock of `folder`."""
    try:
        descriptor = os.open(folder / "lock", os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
