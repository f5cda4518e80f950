"""ArrayRecord files by value: records in order, chunks that are too large, damage, the copy of a remote file."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import protovalue.data.array_record as array_record
from protovalue.data.sources import DamagedError, find_sources
from protovalue.errors import UserError


def riegeli(path: Any) -> list[bytes]:
    """Two records of 3 MB and 7 of few bytes, by the package itself."""
    from array_record.python.array_record_module import ArrayRecordWriter

    rng = np.random.default_rng(0)
    records = [
        bytes(3_000_000),
        rng.bytes(200_000),
        *[rng.bytes(n) for n in (0, 1, 30, 5_000, 70_000, 65_400, 131_000)],
    ]
    writer = ArrayRecordWriter(str(path), "group_size:1")
    for record in records:
        writer.write(record)
    writer.close()
    return records


def test_array_records_are_read_and_their_chunks_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.array_record-00000-of-00001"
    records = riegeli(path)
    (source,) = find_sources([str(path)], ".")
    assert [record for _, record in array_record.read_array_records(source)] == records
    monkeypatch.setattr(array_record, "LARGEST", 3_000_000)
    assert len(list(array_record.read_array_records(source))) == 9
    monkeypatch.setattr(array_record, "LARGEST", 2_999_999)
    with pytest.raises(
        DamagedError, match="found a chunk at byte 64 that announces 3000000 bytes, expected at most 2999"
    ):
        list(array_record.read_array_records(source))
    path.write_bytes(bytes(1 << 20))
    with pytest.raises(DamagedError, match="not an array_record file"):
        list(array_record.read_array_records(source))


def test_every_chunk_of_an_array_record_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest is found wherever it is: its head, and those before it, may lie across the blocks of 64 KiB."""
    from array_record.python.array_record_module import ArrayRecordWriter

    rng = np.random.default_rng(1)
    (tmp_path / "x").touch()
    (source,) = find_sources([str(tmp_path / "x")], ".")
    for attempt in range(12):
        sizes = [196_440 + 2 * attempt, 65_472 - 7 * attempt, *rng.integers(0, 200_000, 5).tolist(), 250_000]
        writer = ArrayRecordWriter(str(tmp_path / "x"), "group_size:1,uncompressed")
        for size in sizes:
            writer.write(rng.bytes(size))
        writer.close()
        monkeypatch.setattr(array_record, "LARGEST", 250_000)
        assert [len(record) for _, record in array_record.read_array_records(source)] == sizes
        monkeypatch.setattr(array_record, "LARGEST", 249_999)
        with pytest.raises(DamagedError, match="announces 250000 bytes"):
            list(array_record.read_array_records(source))


def test_a_chunk_is_at_least_as_long_as_it_has_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """60,000 records of no bytes take a few when stored; the next chunk begins 60,000 bytes on all the same."""
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(str(tmp_path / "x"), "group_size:60000")
    for _ in range(60_000):
        writer.write(b"")
    writer.write(bytes(250_000))
    writer.close()
    (source,) = find_sources([str(tmp_path / "x")], ".")
    monkeypatch.setattr(array_record, "LARGEST", 249_999)
    with pytest.raises(DamagedError, match="announces 250000 bytes"):
        next(array_record.read_array_records(source))


@pytest.mark.parametrize("count", [0, 1])
def test_few_records(tmp_path: Path, count: int) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(str(tmp_path / "x"), "group_size:1")
    for _ in range(count):
        writer.write(b"one")
    writer.close()
    (source,) = find_sources([str(tmp_path / "x")], ".")
    if count:
        assert list(array_record.read_array_records(source)) == [(0, b"one")]
    else:
        with pytest.raises(DamagedError, match="it has no index of records at its end"):
            list(array_record.read_array_records(source))


def test_a_full_disk_names_the_copy_of_a_remote_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The remote file is one of fsspec's in memory; there is no room for its copy."""
    import fsspec

    path = tmp_path / "x.array_record-00000-of-00001"
    riegeli(path)
    fsspec.filesystem("memory").pipe("/x.array_record-00000-of-00001", path.read_bytes())
    (source,) = find_sources(["memory://x.array_record-00000-of-00001"], ".")
    assert len(list(array_record.read_array_records(source))) == 9

    class Full:
        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: Any) -> None:
            pass

        def write(self, _: Any) -> None:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "open", lambda self, *_: Full())
    with pytest.raises(UserError, match="records: No space left on device; it holds memory:///x.array_record"):
        list(array_record.read_array_records(source))


def test_damage_is_named_with_its_record(tmp_path: Path) -> None:
    """The last of nine records, of 131,000 bytes: a byte in its middle is flipped."""
    path = tmp_path / "x"
    records = riegeli(path)
    raw = bytearray(path.read_bytes())
    place = raw.index(records[-1][1000:1010])
    raw[place] ^= 1
    path.write_bytes(raw)
    (source,) = find_sources([str(path)], ".")
    found = []
    with pytest.raises(DamagedError, match=rf"^{path}: damaged record 8: "):
        for number, record in array_record.read_array_records(source):
            found.append((number, record))
    assert found == list(enumerate(records[:8]))


def test_a_file_that_was_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "x"
    riegeli(path)
    whole = path.read_bytes()
    (source,) = find_sources([str(path)], ".")
    for size in (len(whole) - 65_536, 65_536, 100, 30, 1):
        path.write_bytes(whole[:size])
        with pytest.raises(DamagedError, match=r"(truncated|damaged) or not an array_record file"):
            list(array_record.read_array_records(source))


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    path = tmp_path / "x"
    path.touch()
    (source,) = find_sources([str(path)], ".")
    monkeypatch.setitem(sys.modules, "array_record.python.array_record_module", None)
    with pytest.raises(UserError, match=r"x: needs another package; in the checkout: pip install -e '\.\[array-rec"):
        list(array_record.read_array_records(source))
