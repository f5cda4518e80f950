"""ArrayRecord files, the container of newer TFDS data sets, through the `array_record` package."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from protovalue.data.sources import BLOCK, DamagedError, Source
from protovalue.errors import UserError


def read_array_records(source: Source) -> Iterator[tuple[int, bytes]]:
    """Yield (number, data) of every record. A remote file is first copied to a temporary one: the index is at its end.

    The package checks a hash of every block that it reads.
    """
    try:
        from array_record.python.array_record_module import ArrayRecordReader
    except ImportError as error:
        raise UserError(f"{source.url}: needs another package; pip install 'protovalue[array-record]'") from error
    if "://" not in source.url:
        yield from _read(ArrayRecordReader, source.path, source.url)
        return
    with tempfile.TemporaryDirectory(prefix="pvn-import-") as folder:
        path = Path(folder) / "records"
        with source.open() as stream, path.open("wb") as file:
            while block := stream.read(BLOCK):
                file.write(block)
        yield from _read(ArrayRecordReader, str(path), source.url)


def _read(reader_class: Any, path: str, name: str) -> Iterator[tuple[int, bytes]]:
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
        reader.close()
