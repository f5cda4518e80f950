"""Sources that announce, or expand to, far more than their format allows: refused in bounded memory, named."""

import gzip
import struct
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from protovalue.data.config import ImportDqnReplayConfig, ImportRluConfig
from protovalue.data.dataset import Dataset
from protovalue.data.import_dqn_replay import import_dqn_replay
from protovalue.data.import_rlu import import_rlu
from protovalue.errors import UserError
from tests.data.helpers import MadeUp, bounded
from tests.data.published import (
    Ring,
    atari_episode,
    masked,
    message,
    rlu_record,
    tfrecord,
    write_atari,
    write_inflating,
)


def run_rlu(path: Any, out: Any, **settings: Any) -> Dataset:
    return import_rlu(ImportRluConfig(source=(str(path),), out=out, **{"workers": 1, **settings}), quiet=True)


def run_replay(folder: Any, out: Any) -> Dataset:
    return import_dqn_replay(ImportDqnReplayConfig(source=(str(folder),), out=out), quiet=True)


def npy(shape: str | tuple[int, ...], kind: Any = "<f8", version: int = 1, content: bytes = b"") -> bytes:
    """A NumPy array's head, by hand, with little or nothing behind it."""
    head = f"{{'descr': {kind!r}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    length = struct.pack("<H" if version == 1 else "<I", len(head))
    return b"\x93NUMPY" + bytes([version, 0]) + length + head + content


@pytest.fixture(scope="module")
def episode() -> MadeUp:
    return atari_episode(5, np.random.default_rng(0))


@pytest.fixture
def ring(tmp_path: Path, episode: MadeUp) -> Path:
    memory = Ring(20)
    memory.add_episode(episode)
    return memory.save(tmp_path / "Breakout" / "1" / "replay_logs", 0)


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("invalid_range", npy((1_200_000_000,)), r"found \(1200000000,\), expected a row of at most 1024 numbers"),
        ("invalid_range", npy((1025,)), r"found \(1025,\), expected a row of at most 1024 numbers"),
        ("invalid_range", npy((5, 1)), r"found \(5, 1\), expected a row of at most 1024 numbers"),
        ("add_count", npy((400_000_000,), "<i8"), r"found \(400000000,\) int64, expected \(\) integers"),
        ("$store$_reward", npy((400_000_000,)), r"found \(400000000,\) float64, expected \(20,\) floats"),
        ("$store$_reward", b"\x93NUMPY\2\0" + struct.pack("<I", 3 << 30), "found a head of 3221225472 bytes, expected"),
        ("$store$_reward", b"\x93NUMPY\2\0" + struct.pack("<I", 10_001), "found a head of 10001 bytes, expected"),
        ("$store$_reward", npy("(" * 200 + ")" * 200), "the head of its NumPy array is not one"),
        ("$store$_reward", npy("(20"), "the head of its NumPy array is not one"),
        ("$store$_reward", npy("20"), "the head of its NumPy array: field shape: found 20, expected a list"),
        ("$store$_reward", npy("(20.0,)"), r"field shape\[0\]: found 20.0, expected a whole number"),
        ("$store$_reward", npy("(-20,)"), r"field shape: found \[-20\], expected sizes of 0 or more"),
        ("$store$_reward", npy("(20,), 'more': 1"), "field more: unknown"),
        ("$store$_reward", npy("(20,)", [("a", "<f4")]), "field descr: found a list of 1, expected text"),
        ("$store$_reward", npy("(20,)", "float99"), "found numbers of type 'float99', expected one of NumPy's"),
        ("$store$_reward", npy("(20,)", "|O"), "found an array of objects, expected numbers"),
        ("$store$_reward", b"\x93NUMPY", "not a NumPy array: it begins with b'.x93NUMPY'"),
        ("$store$_observation", npy("(0, 84, 84)", "|u1"), "found 0 slots, expected 1 to 10000000"),
        ("$store$_observation", npy("(10000001, 84, 84)", "|u1"), "found 10000001 slots, expected 1 to 10000000"),
    ],
)  # fmt: skip
def test_what_a_replay_file_announces_is_bounded(
    ring: Path, tmp_path: Path, name: str, content: Any, expected: str
) -> None:
    path = ring / f"{name}_ckpt.0.gz"
    path.write_bytes(gzip.compress(content))
    with pytest.raises(UserError, match=expected) as raised:
        run_replay(ring, tmp_path / "set")
    assert str(raised.value).startswith(f"{path}: ")
    assert len(str(raised.value)) < 400


def test_a_long_list_of_slots_is_not_listed(ring: Path, tmp_path: Path) -> None:
    with gzip.open(ring / "invalid_range_ckpt.0.gz", "wb") as file:
        np.save(file, np.arange(100, 1124))
    with pytest.raises(UserError, match=r"found 100, 101, 102, 103, 104, 105, 106, 107, \.\.\., expected the cursor 8"):
        run_replay(ring, tmp_path / "set")


def peak(call: Any) -> tuple[int, str]:
    """Return the most bytes that Python and NumPy held during a call."""
    tracemalloc.start()
    try:
        with pytest.raises(UserError) as raised:
            call()
        return tracemalloc.get_traced_memory()[1], str(raised.value)
    finally:
        tracemalloc.stop()


def test_a_length_that_the_file_does_not_have_takes_no_memory(tmp_path: Path) -> None:
    """A record of 200 MB, of which the file has 1,000 bytes: plain and compressed."""
    length = struct.pack("<Q", 200_000_000)
    content = length + masked(length) + bytes(1000)
    for data in (content, gzip.compress(content)):
        path = tmp_path / "Breakout" / "run_1-00000-of-00001"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        used, text = peak(lambda path=path: run_rlu(path, tmp_path / "set"))
        assert "truncated in the record at byte 0" in text
        assert used < 20 << 20


@pytest.mark.parametrize("length", [(256 << 20) + 1, (4 << 30) - 1, (1 << 64) - 1])
def test_a_record_longer_than_an_episode_can_be(tmp_path: Path, length: int) -> None:
    packed = struct.pack("<Q", length)
    path = tmp_path / "Breakout" / "run_1-00000-of-00001"
    path.parent.mkdir()
    path.write_bytes(packed + masked(packed) + bytes(100))
    with pytest.raises(
        UserError, match=f"record at byte 0: found a length of {length} bytes, expected at most 268435456"
    ):
        run_rlu(path, tmp_path / "set")


def huge_png(width: Any, height: Any) -> Any:
    """A grey PNG of zeros, by hand: its pixels are compressed a thousandfold."""

    def part(kind: Any, data: Any) -> Any:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    pixels = zlib.compress(bytes((width + 1) * height), 9)
    return b"\x89PNG\r\n\x1a\n" + part(b"IHDR", head) + part(b"IDAT", pixels) + part(b"IEND", b"")


def shard(tmp_path: Path, episode: Any, **changes: Any) -> Path:
    data = write_atari(tmp_path / "source", [episode])
    path = tmp_path / "Breakout" / "run_1-00000-of-00001"
    path.parent.mkdir()
    path.write_bytes(gzip.compress(tfrecord([rlu_record(data.episode(0), 0, **changes)])))
    return path


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"observations": np.arange(5)}, "the key 'observations' holds numbers, expected images"),
        ({"actions": np.zeros(5, np.float32)}, "the key 'actions' holds float32 numbers, expected whole ones"),
        ({"actions": []}, "the key 'actions' holds nothing, expected numbers"),
        ({"checkpoint_idx": np.zeros(1, np.float32)}, "the key 'checkpoint_idx' holds float32 numbers, expected whole"),
        ({"checkpoint_idx": np.array([-1])}, "found checkpoint_idx -1, expected the number of an iteration"),
        ({"checkpoint_idx": np.array([1 << 31])}, "found checkpoint_idx 2147483648, expected the number of a"),
    ],
)
def test_a_record_of_wrong_kinds_is_one_line(
    tmp_path: Path, episode: MadeUp, changes: dict[str, Any], expected: str
) -> None:
    with pytest.raises(UserError, match=expected):
        run_rlu(shard(tmp_path, episode, **changes), tmp_path / "set")


@pytest.mark.parametrize("key", ["observations", "actions", "checkpoint_idx"])
def test_a_feature_that_cannot_be_decoded_is_one_line(tmp_path: Path, episode: MadeUp, key: str) -> None:
    """A field that announces more bytes than there are, inside a record whose checksums hold."""
    data = write_atari(tmp_path / "source", [episode])
    good = rlu_record(data.episode(0), 0, **dict[str, Any]({key: None}))
    entry = message(1, key.encode()) + message(2, b"\x0a\xff\xff\xff\x7f")
    path = tmp_path / "Breakout" / "run_1-00000-of-00001"
    path.parent.mkdir()
    path.write_bytes(tfrecord([good + message(1, message(1, entry))]))
    with pytest.raises(UserError, match=f"the key '{key}' is damaged: a protobuf field is longer than its message"):
        run_rlu(path, tmp_path / "set")


def test_bombs_of_all_formats_are_refused_in_bounded_memory(tmp_path: Path, episode: MadeUp) -> None:
    """Each would take 100 MB or more; the process has room for 80 MiB beside what it takes to start."""
    png = shard(tmp_path / "png", episode, observations=[huge_png(9000, 9000)] * 5)
    ring = Ring(20)
    ring.add_episode(episode)
    replay = ring.save(tmp_path / "Breakout" / "1" / "replay_logs", 0)
    (replay / "invalid_range_ckpt.0.gz").write_bytes(gzip.compress(npy((20_000_000,), content=bytes(100_000_000)), 1))
    values = write_inflating(tmp_path / "minari", 32)
    with h5py.File(values / "main_data.hdf5", "a") as file:
        del file["episode_0/rewards"]
        array = file.create_dataset(
            "episode_0/rewards", (4,), "f8", maxshape=(None,), chunks=(1 << 17,), compression="gzip"
        )
        array[:] = 0
        array.id.write_direct_chunk((0,), zlib.compress(bytes(100_000_000), 1))
    done = bounded(
        "from protovalue.data.config import ImportDqnReplayConfig, ImportRluConfig, ImportMinariConfig\n"
        "from protovalue.data.import_minari import Manifest, Spaces, encode_episode\n"
        "def expect(call):\n"
        "    try:\n"
        "        call()\n"
        "    except UserError as error:\n"
        "        print(str(error).split(': ', 1)[1])\n"
        "rlu, replay = protovalue.data.import_rlu, protovalue.data.import_dqn_replay\n"
        "manifest = Manifest('gym/X', {}, (84, 84), 'uint8', 1, 4, 16)\n"
        "split = rlu.Split(None)\n"
        "class Here:\n"
        "    window, full = 2, False\n"
        "    def submit(self, work, *args):\n"
        "        return work(*args)\n"
        "tally = rlu.Tally()\n"
        f"(png,) = rlu.find_sources([{str(png)!r}], '.')\n"
        "expect(lambda: list(rlu._read_file(png, tally, Here(), manifest, split, 1.0, False)))\n"
        f"(ring,) = replay.find_sources([{str(replay)!r}], 'observation')\n"
        "expect(lambda: list(replay._read_iteration(ring, tally, Here(), manifest, 1.0)))\n"
        "spaces = Spaces((3,), 'uint8', 3, 5, False)\n"
        f"expect(lambda: encode_episode({str(values / 'main_data.hdf5')!r}, 0, manifest, spaces))\n",
        80 << 20,
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 3, done.stderr
    assert "observation 0: found 9000x9000 L, expected 84x84 L" in lines[0]
    assert "found (20000000,), expected a row of at most 1024 numbers" in lines[1]
    assert "chunk 0: damaged: found more than its 1048576 bytes" in lines[2]
