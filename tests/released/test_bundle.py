"""TensorBundles made from their description, and blocks that Snappy's own library compressed."""

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protovalue.errors import UserError
from protovalue.released.bundle import Bundle
from protovalue.released.files import INDEX, Folder, shard_name
from protovalue.released.snappy import decompress
from tests.released import saved

PLAIN = b"params/Conv_0/kernel/.ATTRIBUTES/VARIABLE_VALUE" * 3 + bytes(range(64)) + b"a" * 200 + bytes(range(0, 128, 3))
PRESSED = base64.b85decode(  # by cramjam 2.11
    "zyr8&VRB(@b1y@0ZgyWVFKcCTZe?sQE<sdOQb|HpR7F!SRzXrpK|)MLUsgd(RYm?U0Cq0`@IwFr0s{mE1_uZU3JVMk4i69!5)%{^78e*98XFuP9"
    "v>hfA|oUvCMPH<Dl054E-x@KGBY$aHa9pqIy*c)K0je$VPXCQ0R962{sRC31E>H41_=xg5)~L59w8(rDlITGHaR>$LPbbRPEk}>T3ujcW@&71a&>"
    "rneg"
)


def test_snappy_blocks_of_its_own_library_are_read() -> None:
    assert decompress(PRESSED, 1000) == PLAIN


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (PRESSED[:-3], "too early|expected 448"),
        (b"\xff\xff\xff\xff\x0f" + PRESSED[2:], "expected at most"),
        (b"\x04\x05\x10", "found a copy from 16 bytes back"),
        (b"\x02\x08abc", "found more than the 2 bytes"),
        (b"\x05\x08abc", "found 3 bytes, expected 5"),
        (b"\xff" * 12, "does not end"),
    ],
)
def test_a_damaged_snappy_block_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decompress(data, 1000)


def opened(folder: Path) -> Bundle:
    files = Folder(str(folder), folder / "downloads")
    return Bundle(files.file(INDEX), lambda number, count: files.file(shard_name(number, count)))


def written(folder: Path, entries: dict[str, Any], shard: bytes, shards: int = 1, **kind: Any) -> Path:
    (folder / "variables").mkdir(parents=True)
    rows = [(name.encode(), value) for name, value in entries.items()]
    (folder / INDEX).write_bytes(saved.table([(b"", saved.count(1, shards)), *rows], **kind))
    (folder / shard_name(0, 1)).write_bytes(shard)
    return folder


ONE = np.arange(6, dtype=np.float32).reshape(2, 3)
TWO = np.ones(4, np.float32)
SHARD = ONE.tobytes() + TWO.tobytes()


def literal(data: bytes) -> bytes:
    """The same as a Snappy block that copies nothing."""
    return saved.varint(len(data)) + b"\xf4" + (len(data) - 1).to_bytes(2, "little") + data


@pytest.mark.parametrize("compress", [None, literal])
def test_variables_come_out_as_they_went_in(tmp_path: Path, compress: Any) -> None:
    entries = {"../../../etc/passwd": saved.variable(ONE, 0), "/dev/zero": saved.variable(TWO, 24)}
    bundle = opened(written(tmp_path / "model", entries, SHARD, compress=compress))
    np.testing.assert_array_equal(bundle.tensor("../../../etc/passwd"), ONE)  # a name, and nothing but a name
    np.testing.assert_array_equal(bundle.tensor("/dev/zero"), TWO)
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == [
        "variables.data-00000-of-00001",
        "variables.index",
    ]


def test_what_is_wrong_with_a_bundle_is_said(tmp_path: Path) -> None:
    good = {"a": saved.variable(ONE, 0), "b": saved.variable(TWO, 24)}

    def refused(name: str, message: str, change: dict[str, Any], shard: bytes = SHARD, **kind: Any) -> None:
        folder = written(tmp_path / name, {**good, **change}, shard, **kind)
        with pytest.raises(UserError, match=message):
            opened(folder).tensor("a")

    refused("cut", "data-00000-of-00001: truncated: found 39 bytes, expected 40 for variable 'b'", {}, SHARD[:-1])
    refused("bit", "variable 'b': its checksum does not match", {}, SHARD[:-1] + b"\x01")
    refused("far", "truncated", {"b": saved.variable(TWO, 1 << 40)})
    refused("shard", "found shard 7 of 1", {"b": saved.variable(TWO, 24, shard=7)})
    refused("many", "found 5000 shards, expected 1 to 1000", {}, shards=5000)
    refused("sliced", "'b': found one in slices", {"b": saved.variable(TWO, 24) + saved.part(7, b"")})
    huge = saved.count(1, 1) + saved.part(2, saved.shape((1 << 40, 1 << 20))) + saved.count(5, 24)
    huge += saved.varint(6 << 3 | 5) + saved.masked(ONE.tobytes())
    refused("huge", "expected at most 268,435,456 values", {"a": huge})
    refused("type", "found type 14", {"a": saved.count(1, 14) + saved.variable(ONE, 0)[2:]})
    refused("pressed", "found a copy from 16 bytes back", {}, compress=lambda data: b"\x04\x05\x10")
    refused("bomb", "expected at most 67,108,864", {}, compress=lambda data: b"\xff\xff\xff\xff\x7f" + data)
    with pytest.raises(UserError, match="found no variable 'c'"):
        opened(written(tmp_path / "other", good, SHARD)).tensor("c")


def test_no_byte_of_an_index_can_change_unseen(tmp_path: Path) -> None:
    folder = written(tmp_path / "model", {"a": saved.variable(ONE, 0), "b": saved.variable(TWO, 24)}, SHARD)
    good = (folder / INDEX).read_bytes()
    for at in range(len(good) - 48):  # after them comes the end mark, most of which is zeros without a meaning
        data = bytearray(good)
        data[at] ^= 0x10
        (folder / INDEX).write_bytes(data)
        with pytest.raises(UserError, match="damaged"):
            opened(folder)
