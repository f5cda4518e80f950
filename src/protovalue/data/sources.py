"""Where imported data lies: folders, globs and URLs, read as streams that survive a broken connection."""

import logging
import os
import re
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar, cast
from urllib.parse import unquote

from protovalue.errors import UserError

log = logging.getLogger(__name__)

T = TypeVar("T")

BLOCK = 4 << 20  # bytes asked for at once
TRIES = 8  # failures in a row at one place of a file before giving up
PAUSE = 0.5  # seconds before the second try; doubles with every further one, up to LONGEST_PAUSE
LONGEST_PAUSE = 30.0


class DamagedError(UserError):
    """A part of a source that cannot be read but can be left out with --skip-damaged."""


@dataclass(frozen=True)
class SourceFile:
    """One file, on this machine or elsewhere."""

    url: str
    """What messages call it: a path, or a URL with its scheme."""
    path: str
    """Its name inside the file system."""
    size: int
    """Bytes, 0 where the server does not say."""

    @property
    def name(self) -> str:
        """The last part of its path, without URL escapes."""
        return unquote(self.path.rsplit("/", 1)[-1])

    @property
    def parts(self) -> list[str]:
        """All parts of its path, without URL escapes."""
        return [unquote(part) for part in self.path.split("/") if part]

    def open(self, start: int = 0) -> "Stream":
        """Open it for reading from its beginning, or from a byte on."""
        return Stream(self, start)


def find_sources(texts: Iterable[str], pattern: str, such_as: str = "") -> list[SourceFile]:
    """Return the files that `texts` name, each a file, a folder, a glob or a URL of one of these.

    A folder stands for all files under it, at any depth, whose names match the regular expression `pattern`;
    so does a glob for those of its matches. A file that is named itself is taken whatever its name. `such_as` is a
    name that matches, for the error where there is none.
    """
    found: dict[str, SourceFile] = {}
    for text in texts:
        filesystem, path = _filesystem(text)
        try:
            sources = _matches(filesystem, path, text, re.compile(pattern))
        except UserError:
            raise
        except Exception as error:  # every kind of file system has errors of its own
            raise UserError(f"{text}: cannot be read: {_reason(error)}") from error
        if not sources:
            raise UserError(f"{text}: found no file there, expected names such as {such_as or pattern}")
        found.update({source.url: source for source in sources})
    return list(found.values())


def _matches(filesystem: Any, path: str, text: str, pattern: re.Pattern[str]) -> list[SourceFile]:
    """Return the files of one text; `path` is its form inside the file system."""
    if any(sign in path for sign in ("*[" if _is_http(path) else "*?[")):
        found: dict[str, Any] = _retried(lambda: filesystem.glob(path, detail=True), text)
    elif _kind(filesystem, path, text) == "file":
        return [_source(filesystem, path, text)]
    else:
        found = {path: {}}
    files: dict[str, Any] = {}
    for name, info in found.items():
        folder = not pattern.search(_last(name)) and _kind(filesystem, name, text) == "folder"
        files |= _retried(partial(filesystem.find, name, detail=True), text) if folder else {name: info}
    return [_source(filesystem, name, text, info) for name, info in files.items() if pattern.search(_last(name))]


def _kind(filesystem: Any, path: str, text: str) -> str:
    """Return "file" or "folder"; neither is a UserError."""
    try:
        if _is_http(path):  # over HTTP a folder is a page with links, and its address ends with a slash
            info = _retried(lambda: filesystem.info(path), text)
            page = info.get("mimetype") == "text/html" and str(info.get("url", path)).endswith("/")
            return "folder" if page else "file"
        info = _retried(lambda: filesystem.info(path), text)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UserError(f"{text}: not found") from error
    if info["type"] == "file" and text.endswith("/"):
        raise UserError(f"{text}: not found")
    return "file" if info["type"] == "file" else "folder"


def _is_http(path: str) -> bool:
    return path.startswith(("http://", "https://"))


def _last(path: str) -> str:
    """Return the last part of a path, without URL escapes."""
    return unquote(path.rsplit("/", 1)[-1])


def sibling(source: SourceFile, name: str) -> SourceFile:
    """Return the file `name` in the same folder as `source`; one that is not there is a UserError."""
    last = source.path.rsplit("/", 1)[-1]
    quoted = name.replace("$", "%24") if "%24" in last else name
    url = source.url.removesuffix(last) + quoted
    filesystem, path = _filesystem(url)
    try:
        return _source(filesystem, path, url)
    except FileNotFoundError as error:
        raise UserError(f"{url}: missing; it belongs to {source.name}") from error


def facts_of(url: str) -> tuple[SourceFile, dict[str, Any]]:
    """Return the file that a URL names, and all that its server says of it; one that is not there is a UserError."""
    filesystem, path = _filesystem(url)
    try:
        info = dict(_retried(lambda: filesystem.info(path), url))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UserError(f"{url}: not found") from error
    except UserError:
        raise
    except Exception as error:  # every kind of file system has errors of its own
        raise UserError(f"{url}: cannot be read: {_reason(error)}") from error
    if info.get("type") == "directory":
        raise UserError(f"{url}: found a folder, expected a file")
    return _source(filesystem, path, url, info), info


def exists(url: str) -> bool:
    """Whether a URL names a file that can be had; a public bucket may say of one that is missing that it is not."""
    filesystem, path = _filesystem(url)
    try:
        return bool(_retried(lambda: filesystem.info(path), url))
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return False
    except UserError as error:
        if getattr(error.__cause__, "status", None) in (401, 403):
            return False
        raise


def _filesystem(text: str) -> tuple[Any, str]:
    """Return the fsspec file system of a path or URL, and the path inside it."""
    import fsspec

    scheme = text.split("://", 1)[0] if "://" in text else "file"
    options: dict[str, Any] = {}
    if scheme in ("http", "https"):  # the bytes as they lie there, so that sizes and places hold
        options = {"client_kwargs": {"auto_decompress": False}}
    if scheme in ("gs", "gcs"):  # the public buckets need no account; fsspec's own configuration comes first
        options = {"token": "anon", **fsspec.config.conf.get(scheme, {})}
        os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")  # else it asks for what needs an account
    try:
        filesystem, path = fsspec.core.url_to_fs(text, **options)
    except ImportError as error:
        name = {"gs": "gcs", "gcs": "gcs", "hf": "hub"}.get(scheme)
        extra = f"; in the checkout: pip install -e '.[{name}]'" if name else ""
        raise UserError(f"{text}: {scheme}:// needs another package: {error}{extra}") from error
    except ValueError as error:
        raise UserError(f"{text}: {error}") from error
    return filesystem, str(path)


def _source(filesystem: Any, path: str, text: str, info: dict[str, Any] | None = None) -> SourceFile:
    """Describe a file; `info` is what a listing said of it, which may be nothing."""
    if not info or info.get("size") is None:
        info = _retried(lambda: filesystem.info(path), text)
    url = path if "://" in path or "://" not in text else f"{text.split('://', 1)[0]}://{path}"
    return SourceFile(url, path, int(info.get("size") or 0))


class Readable(Protocol):
    """What gives bytes: fewer than asked for only at its end."""

    def read(self, size: int) -> bytes:
        """Return the next bytes, none at the end."""
        ...


class Stream:
    """A file read from a byte to its end. A failed request is repeated from the first missing byte."""

    def __init__(self, source: SourceFile, start: int = 0) -> None:
        self.source = source
        self.position = start  # after the bytes that were handed out
        self._buffer, self._used = b"", 0
        self._fetched = start  # after the bytes that arrived
        self._ended = False
        self._local: Any = None
        if "://" not in source.url:
            self._local = Path(source.path).open("rb", buffering=0)  # noqa: SIM115
            self._local.seek(start)
        else:
            self._filesystem, _ = _filesystem(source.url)
            self._in_ranges = source.size > 0
            self._whole: Any = None  # the one long transfer from a server that sends no ranges

    def read(self, size: int) -> bytes:
        """Return the next `size` bytes, fewer only at the end of the file."""
        if self._local is not None:
            parts = []
            while size and (part := self._local.read(min(size, BLOCK))):  # room is made only for what is there
                parts.append(part)
                size -= len(part)
            data = b"".join(parts)
        else:
            data = self._take(size)
        self.position += len(data)
        return data

    def close(self) -> None:
        """Release the file or the connection."""
        if self._local is not None:
            self._local.close()
        elif self._whole is not None:
            self._whole.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _take(self, size: int) -> bytes:
        parts = []
        while size:
            if self._used == len(self._buffer):
                self._buffer, self._used = self._next_block(), 0
                if not self._buffer:
                    break
            part = self._buffer[self._used : self._used + size]
            self._used += len(part)
            size -= len(part)
            parts.append(part)
        return b"".join(parts)

    def _next_block(self) -> bytes:
        if self._ended:
            return b""
        block = _retried(self._request, self.source.url)
        self._fetched += len(block)
        return block

    def _request(self) -> bytes:
        """Ask for the next block by its place in the file, or read on where the server does not do that."""
        if not self._in_ranges:
            return self._read_on()
        start = self._fetched
        size = min(BLOCK, self.source.size - start)
        if size <= 0:
            return b""
        if _is_http(self.source.path):
            block = _http_range(self._filesystem, self.source.path, start, size)
            if block is None:
                self._in_ranges = False
                return self._read_on()
        else:
            block = bytes(self._filesystem.cat_file(self.source.path, start=start, end=start + size))
        if len(block) != size:
            raise OSError(f"found {len(block)} bytes at {start}, expected {size}")
        return block

    def _read_on(self) -> bytes:
        """Read on in one long transfer; a new one passes over what had arrived."""
        try:
            if self._whole is None:
                self._whole = self._filesystem.open(self.source.path, "rb", block_size=0)
                left = self._fetched
                while left:
                    passed = self._whole.read(min(left, BLOCK))
                    if not passed:
                        raise OSError(f"the file ends {left} bytes before the place where the last transfer broke")
                    left -= len(passed)
            block = bytes(self._whole.read(BLOCK))
        except BaseException:
            self._whole = None
            raise
        if not block:
            if self.source.size and self._fetched != self.source.size:
                self._whole = None
                raise OSError(f"the connection ended at byte {self._fetched} of {self.source.size}")
            self._ended = True
        return block


def _http_range(filesystem: Any, url: str, start: int, size: int) -> bytes | None:
    """Return a part of a file, or None from a server that would send all of it."""
    import fsspec.asyn

    async def fetch() -> bytes | None:
        session = await filesystem.set_session()
        headers = {"Range": f"bytes={start}-{start + size - 1}", "Accept-Encoding": "identity"}
        async with session.get(filesystem.encode_url(url), headers=headers) as response:
            response.raise_for_status()
            return bytes(await response.read()) if response.status == 206 else None

    result: bytes | None = fsspec.asyn.sync(filesystem.loop, fetch)
    return result


def _retried(call: Callable[[], T], what: str) -> T:
    """Call until it succeeds; give up after TRIES failures, or at once where another try cannot help."""
    for attempt in range(1, TRIES + 1):
        try:
            return call()
        except (UserError, PermissionError, NotADirectoryError, ImportError):
            raise
        except Exception as raised:  # every kind of file system has errors of its own
            error = raised
            if isinstance(raised, FileNotFoundError):
                status = _status(raised.__cause__)
                if not isinstance(raised.__cause__, Exception) or status in (404, 410):
                    raise
                error = raised.__cause__  # fsspec says so of every failure over HTTP
            status = _status(error)
            final = isinstance(status, int) and 400 <= status < 500 and status not in (408, 429)
            if attempt == TRIES or final:
                raise UserError(f"{what}: {_reason(error)} (tried {attempt} times)") from error
            pause = min(PAUSE * 2 ** (attempt - 1), LONGEST_PAUSE)
            log.info("%s: %s; trying again in %.1f s", what, _reason(error), pause)
            time.sleep(pause)
    raise AssertionError


def _status(error: BaseException | None) -> int | None:
    """Return what a server answered: aiohttp's errors have it themselves, those of the Hub with the whole response."""
    found = getattr(error, "status", None) or getattr(getattr(error, "response", None), "status_code", None)
    return found if isinstance(found, int) else None


def _reason(error: Exception) -> str:
    status, message = _status(error), getattr(error, "message", None)
    if status is not None:
        return f"the server answered {status} {message or ''}".rstrip()
    return " ".join(str(error).split()) or type(error).__name__


class Gunzip:
    """The contents of a gzip stream. Damage and a missing end are reported with the place in the file."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._inflate = zlib.decompressobj(wbits=31)
        self._buffer = bytearray()
        self._begun = False

    def read(self, size: int) -> bytes:
        """Return the next `size` bytes, fewer only at the end."""
        while len(self._buffer) < size and self._more(size - len(self._buffer)):
            pass
        with memoryview(self._buffer) as view:
            data = bytes(view[:size])
        del self._buffer[:size]
        return data

    def _more(self, wanted: int) -> bool:
        """Decompress a little more; False at the end."""
        waiting = self._inflate.unconsumed_tail
        if self._inflate.eof:  # one member ended; another may follow
            waiting = self._inflate.unused_data
            self._inflate = zlib.decompressobj(wbits=31)
            self._begun = False
        if not waiting:
            waiting = self._stream.read(1 << 18)
            if not waiting:
                if self._begun or self._stream.position == 0:
                    raise DamagedError(
                        f"{self._stream.source.url}: truncated: the gzip stream ends at byte {self._stream.position} "
                        "without its end mark"
                    )
                return False
        self._begun = True
        try:
            self._buffer += self._inflate.decompress(waiting, max(wanted, 1 << 16))
        except zlib.error as error:
            reason = str(error).split(": ", 1)[-1]
            place = f"at or before byte {self._stream.position}"
            raise DamagedError(f"{self._stream.source.url}: damaged gzip {place}: {reason}") from error
        return True


class Ahead(Generic[T]):
    """An iterable run in a thread of its own, a few items ahead of who takes them. Use as a context manager.

    With `weigh`, which tells an item's bytes, no more are waiting than weigh `budget` in all, or one that weighs more.
    """

    _END = object()

    def __init__(
        self, items: Iterable[T], depth: int = 4, weigh: Callable[[T], int] | None = None, budget: int = 0
    ) -> None:
        self._items, self._depth, self._weigh, self._budget = items, depth, weigh, budget
        self._waiting: deque[tuple[Any, int]] = deque()
        self._weight = 0
        self._stopped = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="ahead", daemon=True)

    def _run(self) -> None:
        last: Any = Ahead._END
        try:
            for item in self._items:
                if not self._put(item, self._weigh(item) if self._weigh else 0):
                    return
        except BaseException as error:  # handed over to who takes the items
            last = error
        self._put(last, 0)

    def _put(self, item: Any, weight: int) -> bool:
        with self._changed:
            while not self._stopped and not self._has_room(weight):
                self._changed.wait()
            if self._stopped:
                return False
            self._waiting.append((item, weight))
            self._weight += weight
            self._changed.notify_all()
            return True

    def _has_room(self, weight: int) -> bool:
        if not self._waiting:
            return True
        return len(self._waiting) < self._depth and (not weight or self._weight + weight <= self._budget)

    def _take(self) -> Any:
        with self._changed:
            while not self._waiting:
                self._changed.wait()
            item, weight = self._waiting.popleft()
            self._weight -= weight
            self._changed.notify_all()
            return item

    def __iter__(self) -> Iterator[T]:
        while (item := self._take()) is not Ahead._END:
            if isinstance(item, BaseException):
                raise item
            yield cast(T, item)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self._thread.join()
