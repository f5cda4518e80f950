"""Files that survive a kill at any instant and lead nowhere else: atomic writes, JSON, lines of JSON, folder locks."""

import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
import stat
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from protovalue.errors import UserError
from protovalue.schema import parse_json

LOCK = "lock"
_SUM = "sha256"  # the key under which a JSON file carries the checksum of its other keys
_LINE_SUM = "crc32"  # the same for a line of JSON
_NEW = re.compile(r"\.new-[0-9a-f]{16}(\..*)?")  # what `beside` calls its files
_LARGEST = 1 << 26  # bytes of a JSON file or of a file of lines: far more than any has, little enough for the memory


@contextmanager
def naming(path: Path, instead_of: Path | None = None) -> Iterator[None]:
    """Let an error of the operating system name `path`: one that comes from a descriptor names no file."""
    try:
        yield
    except OSError as error:
        if error.filename in (None, str(instead_of)):
            error.filename, error.filename2 = str(path), None
        raise


def open_file(path: Path, flags: int) -> int:
    """Open a file, made if `flags` say so; where `path` is a link or no regular file, that is a UserError.

    A folder that came from elsewhere could have a link in the place of a file that is to be written.
    """
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise UserError(f"{path}: found a symbolic link, expected a file; links are not followed") from error
        if error.errno in (errno.ENXIO, errno.EISDIR):
            raise UserError(f"{path}: found no regular file, expected one") from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UserError(f"{path}: found no regular file, expected one")
    return descriptor


def truncate(path: Path, size: int) -> None:
    """Cut a file, which must be there, to a size, or let it grow to it by zeros."""
    descriptor = open_file(path, os.O_WRONLY)
    try:
        with naming(path):
            os.ftruncate(descriptor, size)
    finally:
        os.close(descriptor)


def refuse_links(folder: Path) -> None:
    """Refuse a folder of ours that has a link in it: for what is written there by code that would follow it."""
    for entry in folder.iterdir():
        if entry.is_symlink():
            raise UserError(f"{entry}: found a symbolic link, expected a file; links are not followed")


def make_folder(path: Path) -> None:
    """Make a folder inside of one of ours; where there is a link in its place, that is a UserError."""
    if path.is_symlink():
        raise UserError(f"{path}: found a symbolic link, expected a folder; links are not followed")
    path.mkdir(parents=True, exist_ok=True)


def check_place(path: Path) -> None:
    """Refuse a place in which no folder could be made, before anything is computed for it."""
    there = next(place for place in (path.absolute(), *path.absolute().parents) if os.path.lexists(place))
    if not there.is_dir():
        inner = "" if there == path.absolute() else f": {path} is to be there"
        raise UserError(f"{there}: found a file, expected a folder or a free name{inner}")
    if not os.access(there, os.W_OK | os.X_OK):
        raise UserError(f"{there}: found a folder that cannot be written to, expected one that can: for {path}")


def fsync_folder(folder: Path) -> None:
    """Make renames and new names in `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with naming(folder):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """Write all of `data`; os.write alone may write a part."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


@contextmanager
def beside(path: Path) -> Iterator[Path]:
    """Give a new, empty file beside `path`; when all went well it is made durable and renamed to `path`.

    Its name ends as `path`'s does. A lock says that it is being written; one without is what a kill left behind.
    """
    _sweep(path.parent)
    descriptor, new = _fresh(path)
    try:
        with naming(path, new):
            yield new
            os.fsync(descriptor)
            new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)
    fsync_folder(path.parent)


def _fresh(path: Path) -> tuple[int, Path]:
    """Create and lock a file beside `path`."""
    while True:
        new = path.with_name(f".new-{secrets.token_hex(8)}{path.suffix}")
        descriptor = open_file(new, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:  # else another process swept it away before it was locked
            return descriptor, new
        os.close(descriptor)


def _sweep(folder: Path) -> None:
    """Remove what killed processes left half-written in a folder."""
    for entry in folder.iterdir():
        if not _NEW.fullmatch(entry.name):
            continue
        with suppress(OSError, UserError):  # still being written, renamed meanwhile, another user's, or no file
            descriptor = open_file(entry, os.O_RDWR)  # NFS locks only what may be written to
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                entry.unlink()
            finally:
                os.close(descriptor)


def write_atomic(path: Path, data: bytes) -> None:
    """Replace `path` by `data` at once: beside it, fsync, rename."""
    with beside(path) as new:
        descriptor = open_file(new, os.O_WRONLY)
        try:
            write_all(descriptor, data)
        finally:
            os.close(descriptor)


@contextmanager
def reading(path: Path) -> Iterator[BinaryIO]:
    """Open a file to read; anything else in its place, such as a pipe that never ends, is a UserError."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file, naming(path):
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise UserError(f"{path}: found no regular file, expected one")
        yield file


def read_bytes(path: Path) -> bytes:
    """Read a small file whole; a large one is a UserError."""
    with reading(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > _LARGEST:
            raise UserError(f"{path}: damaged: found {size:,} bytes, expected at most {_LARGEST:,}")
        return file.read(size)


def _digest(fields: Mapping[str, Any]) -> str:
    """SHA-256 of the canonical JSON text: sorted keys, no spaces, ASCII."""
    return hashlib.sha256(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def write_json(path: Path, fields: Mapping[str, Any]) -> None:
    """Write a JSON object atomically, with a checksum of its own fields."""
    write_atomic(path, (json.dumps({**fields, _SUM: _digest(fields)}, indent=1) + "\n").encode())


def read_json(path: Path) -> dict[str, Any]:
    """Read what `write_json` wrote; a damaged file is a UserError."""
    fields = parse_json(read_bytes(path), path)
    if not isinstance(fields, dict):
        raise UserError(f"{path}: damaged: found a JSON {type(fields).__name__}, expected an object")
    found = fields.pop(_SUM, None)
    if found != _digest(fields):
        raise UserError(f"{path}: damaged: its checksum does not match its contents")
    return fields


def json_line(fields: Mapping[str, Any]) -> bytes:
    """Return a line of JSON that ends in a checksum of what comes before it."""
    text = json.dumps(fields)
    return f'{text[:-1]}, "{_LINE_SUM}": {zlib.crc32(text.encode())}}}\n'.encode()


@dataclass(frozen=True)
class Lines:
    """What a file of lines of JSON says."""

    path: Path
    rows: list[dict[str, Any]]
    """The good lines, without their checksums."""
    raw: list[bytes]
    """The same as they stand in the file."""
    wrong: list[tuple[int, str]]
    """Numbers of the others, with what is wrong."""
    cut_short: bool
    """Whether the last of them has no end."""
    whole: bytes
    """All lines that have an end, good or not."""

    @property
    def damage(self) -> str:
        """Say which lines are left out and why, or nothing."""
        if not self.wrong:
            return ""
        named = ", ".join(f"line {number} ({reason})" for number, reason in self.wrong[:3])
        more = f" and {len(self.wrong) - 3} more" if len(self.wrong) > 3 else ""
        return f"{self.path}: damaged: {named}{more}: left out"


def read_lines(path: Path, misfit: Callable[[dict[str, Any]], str]) -> Lines:
    """Read lines of JSON objects; what is not one, or does not match its checksum, is left out and named.

    The last line may have been cut short by a kill. Lines without a checksum are taken as they are.

    Args:
        path: of the file; one that is not there has no lines.
        misfit: says what is wrong with an object, or nothing.
    """
    try:
        *lines, rest = read_bytes(path).split(b"\n")
    except FileNotFoundError:
        lines, rest = [], b""
    rows, raw, wrong = [], [], list[tuple[int, str]]()
    for number, line in enumerate(lines, 1):
        row = _row(line, path)
        reason = row if isinstance(row, str) else misfit(row)
        if isinstance(row, str) or reason:
            wrong.append((number, reason))
        else:
            rows.append(row)
            raw.append(line + b"\n")
    if rest:
        wrong.append((len(lines) + 1, "cut short"))
    return Lines(path, rows, raw, wrong, bool(rest), b"".join(line + b"\n" for line in lines))


def _row(line: bytes, path: Path) -> dict[str, Any] | str:
    """Return what a line says, without its checksum, or what is wrong with it."""
    try:
        row = parse_json(line, path)
    except UserError:
        return "not JSON"
    if not isinstance(row, dict):
        return "not an object"
    if _LINE_SUM in row and row.pop(_LINE_SUM) != zlib.crc32(json.dumps(row).encode()):
        return "its checksum does not match"
    return row


def size_and_crc(path: Path, durable: bool = False) -> tuple[int, int]:
    """Return a file's size and CRC-32; `durable` also makes it safe against a power failure."""
    crc, size = 0, 0
    with reading(path) as file:
        while block := file.read(1 << 20):
            crc, size = zlib.crc32(block, crc), size + len(block)
        if durable:
            os.fsync(file.fileno())
    return size, crc


class FolderLock:
    """A lock on a folder that the operating system releases when its process ends, however it ends."""

    def __init__(self, folder: Path, wait: bool = False) -> None:
        """Take the lock; if another process has it, wait for it or refuse."""
        self._descriptor = open_file(folder / LOCK, os.O_RDWR | os.O_CREAT)
        try:
            with naming(folder / LOCK):
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
                self._sign(folder)
        except BlockingIOError:
            holder = os.read(self._descriptor, 32).decode(errors="replace").strip()
            os.close(self._descriptor)
            raise UserError(f"{folder}: in use by another process (pid {holder or 'unknown'})") from None
        except BaseException:
            os.close(self._descriptor)
            raise

    def _sign(self, folder: Path) -> None:
        """Write who holds it, in place of who did; anything else there, such as a hard link's content, is refused."""
        found = os.pread(self._descriptor, 32, 0)
        if found and not found.isdigit():
            raise UserError(f"{folder / LOCK}: found something else, expected an empty file or a process number")
        self._found = found
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, str(os.getpid()).encode(), 0)

    def release(self) -> None:
        """Let others have the folder, and the file be as it was: what is refused leaves no trace."""
        with suppress(OSError):  # a full disk: the number of a process that is gone harms nobody
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, self._found, 0)
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
        descriptor = open_file(folder / LOCK, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
