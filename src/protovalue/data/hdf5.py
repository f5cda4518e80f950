"""HDF5 files from anywhere: what is read of them is in them, and takes no more memory than it should."""

import math
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from protovalue.data.sources import DamagedError
from protovalue.errors import UserError

LARGEST_CHUNK = 64 << 20  # bytes of a chunk, the least that can be read: those that h5py makes have at most 1 MiB
_DEFLATE, _SHUFFLE, _FLETCHER32 = 1, 2, 3  # HDF5's numbers of its filters


@contextmanager
def reading(where: str) -> Iterator[None]:
    """Say where HDF5 found damage: a checksum that does not hold, the end of the file, a type that it does not know."""
    try:
        yield
    except (OSError, KeyError, RuntimeError, ValueError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise DamagedError(f"{where}: damaged: {reason}") from error


@contextmanager
def opened(path: str) -> Iterator[Any]:
    """Open a file for reading; what is not one is a UserError."""
    import h5py

    try:
        file = h5py.File(path, "r")
    except (OSError, RuntimeError, ValueError) as error:
        raise UserError(f"{path}: truncated or not an HDF5 file: {' '.join(str(error).split())}") from error
    with file:
        yield file


def own(group: Any, name: str, where: str) -> Any:
    """Return what a group has under a name, if it is in this file: a link may lead into any other."""
    import h5py

    if not isinstance(group.get(name, getlink=True), h5py.HardLink):
        raise UserError(f"{where}: {name} is a link to another place, expected it here")
    return group[name]


def is_array(found: Any) -> bool:
    """Whether it is an array with a shape: not a group, a type, or an array without any."""
    import h5py

    return isinstance(found, h5py.Dataset) and found.shape is not None


def check_storage(array: Any, where: str) -> None:
    """Check how an array lies in the file, so that reading a part of it takes no more memory than that part should.

    A file of a few bytes may announce any number of values that were never written, chunks of any size, or a stream of
    zlib that expands without end: HDF5 would make room for all of these.
    """
    if array.is_virtual or array.external:
        raise UserError(f"{where}: its values are in other files, expected them here")
    item = array.id.get_type().get_size()  # in the file, where a row of any length is a reference of 16 bytes
    if array.chunks is None:
        stored, expected = array.id.get_storage_size(), math.prod(array.shape) * item
        if stored != expected:
            raise DamagedError(f"{where}: damaged: found {stored} bytes of it, expected {expected}")
        return
    size = math.prod(array.chunks) * item
    if size > LARGEST_CHUNK:
        raise UserError(f"{where}: found chunks of {size} bytes, expected at most {LARGEST_CHUNK}")
    expected = math.prod(-(-length // chunk) for length, chunk in zip(array.shape, array.chunks, strict=True))
    if array.id.get_num_chunks() != expected:
        raise DamagedError(f"{where}: damaged: found {array.id.get_num_chunks()} chunks of it, expected {expected}")
    settings = array.id.get_create_plist()
    filters = [settings.get_filter(number)[0] for number in range(settings.get_nfilters())]
    if set(filters) - {_DEFLATE, _SHUFFLE, _FLETCHER32} or filters.count(_DEFLATE) > 1:
        raise UserError(
            f"{where}: found HDF5's filters {filters}, expected none, or gzip, shuffle and fletcher32 (1 to 3)"
        )
    for number in range(expected if filters else 0):
        chunk = array.id.get_chunk_info(number)
        if chunk.size > size + size // 100 + 1024:  # zlib makes noise a little larger
            raise DamagedError(
                f"{where}: damaged: found chunk {number} of {chunk.size} bytes, expected {size} or fewer"
            )
        if _DEFLATE in filters and not chunk.filter_mask >> filters.index(_DEFLATE) & 1:
            _, data = array.id.read_direct_chunk(chunk.chunk_offset)
            _check_inflated(data, size, f"{where}: chunk {number}")


def _check_inflated(data: bytes, most: int, where: str) -> None:
    """Check that a zlib stream has no more than `most` bytes, and the four of a checksum."""
    try:
        inflate = zlib.decompressobj()
        found = len(inflate.decompress(data, most + 5))
    except zlib.error as error:
        raise DamagedError(f"{where}: damaged: {error}") from error
    if found > most + 4:
        raise DamagedError(f"{where}: damaged: found more than its {most} bytes")
