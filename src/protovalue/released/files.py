"""The files of a SavedModel: those of a folder as they lie there, those of a URL after a download that can go on."""

import base64
import hashlib
import mmap
import os
import shutil
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import google_crc32c

from protovalue.data.sources import BLOCK, SourceFile, exists, facts_of
from protovalue.errors import UserError
from protovalue.files import make_folder, open_file, read_json, reading, write_json
from protovalue.interrupt import stop_on_interrupt
from protovalue.progress import ProgressBar


class TransferError(UserError):
    """A download that broke, of which what has arrived is kept."""


LARGEST = 1 << 31  # bytes of a file: more than protobuf allows for a message
GRAPH, INDEX = "saved_model.pb", "variables/variables.index"


@dataclass(frozen=True)
class Mapped:
    """A file whose bytes are in memory only as far as they are looked at."""

    url: str
    data: memoryview

    @contextmanager
    def damaged(self, what: str = "") -> Iterator[None]:
        """Say of which file something was wrong."""
        try:
            yield
        except (ValueError, struct.error) as error:
            raise UserError(f"{self.url}: damaged: {what}{error}") from error

    def facts(self, name: str) -> dict[str, Any]:
        """Return what provenance says of it."""
        digest = hashlib.sha256()
        for at in range(0, len(self.data), BLOCK):
            digest.update(self.data[at : at + BLOCK])
        return {"name": name, "bytes": len(self.data), "sha256": digest.hexdigest()}


def shard_name(number: int, count: int) -> str:
    """Return the name of a shard of variables."""
    return f"variables/variables.data-{number:05d}-of-{count:05d}"


class Folder:
    """A SavedModel somewhere, whose files are asked for by name. Use as a context manager."""

    def __init__(self, source: str, downloads: Path, quiet: bool = False) -> None:
        """Name a folder or a URL; what is downloaded lies in the folder `downloads`."""
        self.source = source.removesuffix(GRAPH).rstrip("/") or source
        self._downloads, self._quiet = downloads, quiet
        self.used: dict[str, Mapped] = {}

    @property
    def remote(self) -> bool:
        """Whether it is a URL."""
        return "://" in self.source

    def has(self, name: str) -> bool:
        """Whether there is such a file."""
        url = f"{self.source}/{name}"
        if not self.remote:
            return Path(url).is_file()
        with _transferring():
            return exists(url)

    def file(self, name: str) -> Mapped:
        """Return a file of it; one that is not there is a UserError."""
        url = f"{self.source}/{name}"
        path = Path(url)
        if self.remote:
            path = self._downloads / name.replace("/", "-")
            download(url, path, self._quiet)
        elif not path.is_file():
            if name == GRAPH:
                raise UserError(f"{self.source}: not a SavedModel: found no {GRAPH}, expected a folder with one")
            raise UserError(f"{url}: missing; it belongs to {GRAPH}")
        self.used[name] = Mapped(url, _mapped(path, url))
        return self.used[name]

    def forget(self) -> None:
        """Remove what was downloaded."""
        if self.remote:
            shutil.rmtree(self._downloads, ignore_errors=True)


def _mapped(path: Path, url: str) -> memoryview:
    with reading(path) as file:
        size = file.seek(0, 2)
        if size > LARGEST:
            raise UserError(f"{url}: found {size:,} bytes, expected at most {LARGEST:,}")
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b"")


@dataclass(frozen=True)
class _Part:
    """What is noted beside a download, so that it goes on with the same file only."""

    url: str
    size: int
    version: str


def download(url: str, path: Path, quiet: bool = False) -> None:
    """Download a file, or go on with it; its size, and a checksum where the server tells one, must be right."""
    with _transferring():
        source, facts = facts_of(url)
    if source.size > LARGEST:
        raise UserError(f"{url}: found {source.size:,} bytes, expected at most {LARGEST:,}")
    make_folder(path.parent)
    note, part = path.with_name(f"{path.name}.json"), _Part(url, source.size, _version(facts))
    have = path.stat().st_size if path.exists() else 0
    if _noted(note) != asdict(part) or (source.size and have > source.size):
        path.unlink(missing_ok=True)
        write_json(note, asdict(part))
        have = 0
    if not (source.size and have == source.size):
        with _transferring():
            _transfer(source, path, have, quiet)
    found = path.stat().st_size
    wrong = ""
    if source.size and found != source.size:
        wrong = f"found {found:,} bytes, expected {source.size:,}"
    elif not _same_crc(path, facts.get("crc32c")):
        wrong = "its checksum is not the one that the server tells"
    if wrong:
        path.unlink()
        raise UserError(f"{url}: {wrong}; it was downloaded damaged, the same command downloads it again")


@contextmanager
def _transferring() -> Iterator[None]:
    """Tell what goes wrong on the way from what is wrong with what came."""
    try:
        yield
    except UserError as error:
        raise TransferError(str(error)) from error


def _noted(path: Path) -> dict[str, Any] | None:
    """Return what was noted beside a download, if that can be read."""
    try:
        return read_json(path)
    except (FileNotFoundError, UserError):
        return None


def _transfer(source: SourceFile, path: Path, have: int, quiet: bool) -> None:
    total = max(source.size, have)
    with (
        source.open(have) as stream,
        os.fdopen(open_file(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab") as file,
        ProgressBar(f"download {source.name}", -(-total // 1_000_000), "MB", have // 1_000_000, quiet) as bar,
        stop_on_interrupt() as stop,
    ):
        while block := stream.read(BLOCK):
            if stream.position > LARGEST:
                raise UserError(f"{source.url}: found more than {LARGEST:,} bytes")
            file.write(block)
            bar.advance(stream.position // 1_000_000 - (stream.position - len(block)) // 1_000_000)
            if stop.requested:
                raise stop.error()


def _version(facts: dict[str, Any]) -> str:
    """Return what tells one version of a file from another, as far as its server says."""
    names = ("etag", "ETag", "generation", "md5Hash", "crc32c", "mtime", "LastModified", "Last-Modified", "Digest")
    return " ".join(f"{name}={facts[name]}" for name in names if facts.get(name) is not None)


def _same_crc(path: Path, expected: object) -> bool:
    """Whether a file has the CRC-32C that a server tells, if it does: Google's tells it in base64."""
    if not isinstance(expected, str):
        return True
    crc = 0
    with reading(path) as file:
        while block := file.read(BLOCK):
            crc = int(google_crc32c.extend(crc, block))
    return base64.b64encode(struct.pack(">I", crc)).decode() == expected
