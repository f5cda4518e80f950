"""ArrayRecord files, the container of newer TFDS data sets, through the `array_record` package."""

import contextlib
import os
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from protovalue.data.sources import BLOCK, DamagedError, SourceFile
from protovalue.data.tfrecord import LARGEST
from protovalue.errors import UserError

# The container is Riegeli's: chunks, whose heads say how large they become, in blocks with heads of their own.
_BLOCK, _BLOCK_HEAD = 1 << 16, 24
_CHUNK_HEAD = struct.Struct("<QQQQQ")  # hash, bytes, hash of these, kind (8 bits) and records (56), bytes when decoded


def read_array_records(source: SourceFile) -> Iterator[tuple[int, bytes]]:
    """Yield (number, data) of every record. A remote file is first copied to a temporary one: the index is at its end.

    The package checks a hash of every block that it reads.
    """
    try:
        from array_record.python.array_record_module import ArrayRecordReader
    except ImportError as error:
        raise UserError(
            f"{source.url}: needs another package; in the checkout: pip install -e '.[array-record]'"
        ) from error
    if "://" not in source.url:
        yield from _read(ArrayRecordReader, source.path, source.url)
        return
    with tempfile.TemporaryDirectory(prefix="pvn-import-") as folder:
        path = Path(folder) / "records"
        with source.open() as stream, path.open("wb") as file:
            while block := stream.read(BLOCK):
                try:
                    file.write(block)
                except OSError as error:
                    raise UserError(f"{path}: {error.strerror}; it holds {source.url} while that is read") from error
        yield from _read(ArrayRecordReader, str(path), source.url)


def _check_chunks(path: str, name: str) -> None:
    """Refuse a chunk that would be larger than a record may be, before the package decodes it.

    Only the heads of the chunks are read. What is not a file of chunks is left to the package to refuse.
    """
    with Path(path).open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        place = 0
        while place < size:
            first = place
            head, place = _read_on(file, place, _CHUNK_HEAD.size)
            if len(head) < _CHUNK_HEAD.size:
                return
            _, stored, _, kind_and_records, decoded = _CHUNK_HEAD.unpack(head)
            if kind_and_records & 0xFF not in b"smrtp":
                return
            if decoded > LARGEST:
                found = f"found a chunk at byte {first} that announces {decoded} bytes"
                raise DamagedError(f"{name}: damaged: {found}, expected at most {LARGEST}")
            beyond = max(stored - -place % _BLOCK, 0)  # bytes in further blocks
            heads = -(-beyond // (_BLOCK - _BLOCK_HEAD))
            place = max(place + stored + heads * _BLOCK_HEAD, first + (kind_and_records >> 8))


def _read_on(file: BinaryIO, place: int, count: int) -> tuple[bytes, int]:
    """Read bytes of a chunk, passing over the heads of blocks; return them and the place after them."""
    parts = []
    while count:
        if place % _BLOCK == 0:
            place += _BLOCK_HEAD
        file.seek(place)
        part = file.read(min(count, _BLOCK - place % _BLOCK))
        if not part:
            break
        parts.append(part)
        place, count = place + len(part), count - len(part)
    return b"".join(parts), place


def _read(reader_class: Any, path: str, name: str) -> Iterator[tuple[int, bytes]]:
    _check_chunks(path, name)
    try:
        reader = reader_class(path, "readahead_buffer_size:0")
        count = reader.num_records()
    except Exception as error:  # the package raises what its C++ code found
        raise DamagedError(f"{name}: damaged or not an array_record file: {' '.join(str(error).split())}") from error
    try:
        if not reader.ok() or count == 0:
            raise DamagedError(f"{name}: truncated or not an array_record file: it has no index of records at its end")
        for number in range(count):
            try:
                data = reader.read([number])[0]
            except Exception as error:
                raise DamagedError(f"{name}: damaged record {number}: {' '.join(str(error).split())}") from error
            yield number, data
    finally:
        with contextlib.suppress(Exception):  # a damaged file, of which more was said above, is damaged at closing, too
            reader.close()
