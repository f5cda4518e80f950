"""TensorBundle: a SavedModel's variables, by name, in a LevelDB table and shards; every checksum is compared."""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import google_crc32c

from protovalue.data.protobuf import fields, message, varint
from protovalue.data.tfrecord import mask, masked_crc
from protovalue.errors import UserError
from protovalue.released.files import Mapped
from protovalue.released.snappy import decompress
from protovalue.released.tensors import STRING, Array, as_array, read_shape

MAGIC = bytes.fromhex("57fb808b247547db")
_FOOT = 48  # bytes at the end of a table
_LARGEST = 1 << 26  # bytes of an index, and of a block of it
_MOST_ENTRIES, _MOST_SHARDS = 100_000, 1_000
_STEP = 1 << 22  # bytes of a shard that are copied at once
OBJECTS = "_CHECKPOINTABLE_OBJECT_GRAPH"


@dataclass(frozen=True)
class Entry:
    """A tensor's place."""

    name: str
    kind: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    crc: int


class Bundle:
    """The variables of a SavedModel.

    The names in it are keys and nothing else: the files that are read are told by numbers.
    """

    def __init__(self, index: Mapped, shard: Callable[[int, int], Mapped]) -> None:
        """Read the index and check all that it names; `shard` gives the file of a number, of so many."""
        self._index = index
        with index.damaged():
            self._count, self.entries = _read_index(index.data)
        self._shards = [shard(number, self._count) for number in range(self._count)]
        for entry in self.entries.values():
            self._check(entry)

    def tensor(self, name: str) -> Array:
        """Return a variable, as an array over the file."""
        if name not in self.entries:
            raise UserError(
                f"{self._index.url}: found no variable {name[:200]!r}, expected one, for the graph reads it"
            )
        entry = self.entries[name]
        with self._shards[entry.shard].damaged(f"variable {name[:200]!r}: "):
            return as_array(self._bytes(entry), entry.kind, entry.shape)

    def objects(self) -> memoryview:
        """Return the message that says which object each variable is; empty where there is none."""
        entry = self.entries.get(OBJECTS)
        if entry is None or entry.kind != STRING or entry.shape != ():
            return memoryview(b"")
        data = self._bytes(entry)
        with self._shards[entry.shard].damaged():
            length, at = varint(data, 0)
            return data[at + 4 :][:length]

    def _bytes(self, entry: Entry) -> memoryview:
        return self._shards[entry.shard].data[entry.offset : entry.offset + entry.size]

    def _check(self, entry: Entry) -> None:
        """Refuse a tensor that is not in its shard, or not as it was written."""
        what = f"variable {entry.name[:200]!r}"
        if not 0 <= entry.shard < self._count:
            raise UserError(f"{self._index.url}: damaged: {what}: found shard {entry.shard} of {self._count}")
        file = self._shards[entry.shard]
        if entry.offset + entry.size > len(file.data):
            found = f"found {len(file.data):,} bytes, expected {entry.offset + entry.size:,} for {what}"
            raise UserError(f"{file.url}: truncated: {found}")
        data = self._bytes(entry)
        with file.damaged(f"{what}: "):
            crc = _text_crc(data, entry) if entry.kind == STRING else extended(0, data)
        if mask(crc) != entry.crc:
            raise UserError(f"{file.url}: damaged: {what}: its checksum does not match")


def extended(crc: int, data: memoryview) -> int:
    """Go on with a CRC-32C; what is mapped is copied piece by piece."""
    for at in range(0, len(data), _STEP):
        crc = int(google_crc32c.extend(crc, bytes(data[at : at + _STEP])))
    return crc


def _text_crc(data: memoryview, entry: Entry) -> int:
    """Return the checksum of texts: of their lengths, of the checksum of these that is stored, and of the texts."""
    count = 1
    for size in entry.shape:
        count *= size
    if not 0 <= count <= _MOST_ENTRIES:
        raise ValueError(f"found {count} texts, expected at most {_MOST_ENTRIES}")
    at, crc = 0, 0
    for _ in range(count):
        length, at = varint(data, at)
        crc = int(google_crc32c.extend(crc, struct.pack("<I" if length < 1 << 32 else "<Q", length)))
    stored = bytes(data[at : at + 4])
    if struct.pack("<I", mask(crc)) != stored:
        raise ValueError("the checksum of its lengths does not match")
    return extended(extended(crc, memoryview(stored)), data[at + 4 :])


def _read_index(data: memoryview) -> tuple[int, dict[str, Entry]]:
    """Return the number of shards, and the entries by name."""
    if len(data) > _LARGEST:
        raise ValueError(f"found {len(data):,} bytes, expected at most {_LARGEST:,}")
    if len(data) < _FOOT or bytes(data[-8:]) != MAGIC:
        raise ValueError("found no LevelDB table: its end mark is missing")
    foot = data[-_FOOT:]
    _, at = varint(foot, 0)  # the metaindex, which is empty
    _, at = varint(foot, at)
    offset, at = varint(foot, at)
    size, at = varint(foot, at)
    found: dict[str, Entry] = {}
    shards = 0
    for _, place in _entries(_block(data, offset, size)):
        handle = memoryview(place)
        first, after = varint(handle, 0)
        length, _ = varint(handle, after)
        for name, value in _entries(_block(data, first, length)):
            if not name:
                shards = _header(memoryview(value))
                continue
            entry = _entry(name.decode("utf-8"), memoryview(value))
            if len(found) == _MOST_ENTRIES:
                raise ValueError(f"found more than {_MOST_ENTRIES:,} variables")
            found[entry.name] = entry
    if not 0 < shards <= _MOST_SHARDS:
        raise ValueError(f"found {shards} shards, expected 1 to {_MOST_SHARDS}")
    return shards, found


def _block(data: memoryview, offset: int, size: int) -> bytes:
    """Return a block of the table whose checksum holds, decompressed."""
    end = offset + size
    if end + 5 > len(data) - _FOOT:
        raise ValueError(f"found a block of {size:,} bytes at {offset:,}, expected it before the end of the file")
    raw = bytes(data[offset : end + 1])
    if struct.unpack("<I", data[end + 1 : end + 5])[0] != masked_crc(raw):
        raise ValueError(f"the checksum of the block at byte {offset} does not match")
    if raw[-1] == 0:
        return raw[:-1]
    if raw[-1] == 1:
        return decompress(raw[:-1], _LARGEST)
    raise ValueError(f"found a block of compression {raw[-1]}, expected none (0) or Snappy (1)")


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys and values of a block."""
    view = memoryview(block)
    if len(view) < 4:
        raise ValueError("found a block without its end")
    (restarts,) = struct.unpack("<I", view[-4:])
    end = len(view) - 4 - 4 * restarts
    if end < 0:
        raise ValueError(f"found a block with {restarts} restarts, which do not fit in it")
    at, key = 0, b""
    while at < end:
        shared, at = varint(view, at)
        unshared, at = varint(view, at)
        length, at = varint(view, at)
        if shared > len(key) or at + unshared + length > end:
            raise ValueError("found an entry that is longer than its block")
        key = key[:shared] + bytes(view[at : at + unshared])
        at += unshared
        yield key, bytes(view[at : at + length])
        at += length


def _header(data: memoryview) -> int:
    """Return the number of shards that a BundleHeaderProto says."""
    shards = 1
    for number, value in fields(data):
        if number == 1 and isinstance(value, int):
            shards = value
        elif number == 2 and value:
            raise ValueError("found big-endian numbers, expected little-endian ones")
    return shards


def _entry(name: str, data: memoryview) -> Entry:
    """Read a BundleEntryProto."""
    numbers, crc = dict.fromkeys((1, 3, 4, 5), 0), 0
    shape: tuple[int, ...] = ()
    for number, value in fields(data):
        if number in numbers and isinstance(value, int):
            numbers[number] = value
        elif number == 2:
            shape = read_shape(message(value))
        elif number == 6:
            (crc,) = struct.unpack("<I", message(value))
        elif number == 7:
            raise ValueError(f"variable {name[:200]!r}: found one in slices, expected it in one piece")
    return Entry(name, numbers[1], shape, numbers[3], numbers[4], numbers[5], crc)
