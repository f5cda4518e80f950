"""Sources that announce, or expand to, far more than their format allows: refused in bounded memory, named."""

import gzip
import json
import os
import struct
import sys
import tracemalloc
import zlib

import gymnasium
import h5py
import numpy as np
import pytest

import protovalue.data.importing as importing
from protovalue.config import ImportDqnReplayConfig, ImportMinariConfig, ImportRluConfig
from protovalue.data.collect import manifest_of
from protovalue.data.format import End
from protovalue.data.import_dqn_replay import import_dqn_replay
from protovalue.data.import_minari import Spaces, encode_episode, import_minari
from protovalue.data.import_rlu import import_rlu
from protovalue.data.importing import Workers
from protovalue.data.sources import Ahead
from protovalue.envs.registry import make
from protovalue.errors import UserError
from tests.data.helpers import bounded
from tests.data.published import Ring, atari_episode, masked, message, rlu_record, tfrecord, write_atari


def run_rlu(path, out, **settings):
    return import_rlu(ImportRluConfig(source=(str(path),), out=out, **{"workers": 1, **settings}), quiet=True)


def run_replay(folder, out):
    return import_dqn_replay(ImportDqnReplayConfig(source=(str(folder),), out=out), quiet=True)


def run_minari(folder, out, **settings):
    config = ImportMinariConfig(source=(str(folder),), out=out, **{"workers": 1, "env": "gym/Counting-v0", **settings})
    return import_minari(config, quiet=True)


def npy(shape, kind="<f8", version=1, content=b""):
    """A NumPy array's head, by hand, with little or nothing behind it."""
    head = f"{{'descr': {kind!r}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    length = struct.pack("<H" if version == 1 else "<I", len(head))
    return b"\x93NUMPY" + bytes([version, 0]) + length + head + content


@pytest.fixture(scope="module")
def episode():
    return atari_episode(5, np.random.default_rng(0))


@pytest.fixture
def ring(tmp_path, episode):
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
def test_what_a_replay_file_announces_is_bounded(ring, tmp_path, name, content, expected):
    path = ring / f"{name}_ckpt.0.gz"
    path.write_bytes(gzip.compress(content))
    with pytest.raises(UserError, match=expected) as raised:
        run_replay(ring, tmp_path / "set")
    assert str(raised.value).startswith(f"{path}: ")
    assert len(str(raised.value)) < 400


def test_a_long_list_of_slots_is_not_listed(ring, tmp_path):
    with gzip.open(ring / "invalid_range_ckpt.0.gz", "wb") as file:
        np.save(file, np.arange(100, 1124))
    with pytest.raises(UserError, match=r"found 100, 101, 102, 103, 104, 105, 106, 107, \.\.\., expected the cursor 8"):
        run_replay(ring, tmp_path / "set")


def peak(call):
    """Return the most bytes that Python and NumPy held during a call."""
    tracemalloc.start()
    try:
        with pytest.raises(UserError) as raised:
            call()
        return tracemalloc.get_traced_memory()[1], str(raised.value)
    finally:
        tracemalloc.stop()


def test_a_length_that_the_file_does_not_have_takes_no_memory(tmp_path):
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
def test_a_record_longer_than_an_episode_can_be(tmp_path, length):
    packed = struct.pack("<Q", length)
    path = tmp_path / "Breakout" / "run_1-00000-of-00001"
    path.parent.mkdir()
    path.write_bytes(packed + masked(packed) + bytes(100))
    with pytest.raises(
        UserError, match=f"record at byte 0: found a length of {length} bytes, expected at most 268435456"
    ):
        run_rlu(path, tmp_path / "set")


def huge_png(width, height):
    """A grey PNG of zeros, by hand: its pixels are compressed a thousandfold."""

    def part(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    pixels = zlib.compress(bytes((width + 1) * height), 9)
    return b"\x89PNG\r\n\x1a\n" + part(b"IHDR", head) + part(b"IDAT", pixels) + part(b"IEND", b"")


def shard(tmp_path, episode, **changes):
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
        ({"checkpoint_idx": np.array([-1])}, "found checkpoint_idx -1, expected the number of a checkpoint"),
        ({"checkpoint_idx": np.array([1 << 31])}, "found checkpoint_idx 2147483648, expected the number of a"),
    ],
)
def test_a_record_of_wrong_kinds_is_one_line(tmp_path, episode, changes, expected):
    with pytest.raises(UserError, match=expected):
        run_rlu(shard(tmp_path, episode, **changes), tmp_path / "set")


@pytest.mark.parametrize("key", ["observations", "actions", "checkpoint_idx"])
def test_a_feature_that_cannot_be_decoded_is_one_line(tmp_path, episode, key):
    """A field that announces more bytes than there are, inside a record whose checksums hold."""
    data = write_atari(tmp_path / "source", [episode])
    good = rlu_record(data.episode(0), 0, **{key: None})
    entry = message(1, key.encode()) + message(2, b"\x0a\xff\xff\xff\x7f")
    path = tmp_path / "Breakout" / "run_1-00000-of-00001"
    path.parent.mkdir()
    path.write_bytes(tfrecord([good + message(1, message(1, entry))]))
    with pytest.raises(UserError, match=f"the key '{key}' is damaged: a protobuf field is longer than its message"):
        run_rlu(path, tmp_path / "set")


def metadata(folder, **changes):
    """Write a Minari data set's description: the counting environment's spaces."""
    folder.mkdir(parents=True, exist_ok=True)
    box = {"type": "Box", "dtype": "uint8", "shape": [3], "low": [0, 0, 0], "high": [255, 255, 255]}
    fields = {
        "observation_space": json.dumps(box),
        "action_space": json.dumps({"type": "Discrete", "n": 3, "start": 5}),
        "env_spec": json.dumps({"id": "Counting-v0"}),
        "total_steps": 9,
    }
    (folder / "metadata.json").write_text(json.dumps({**fields, **changes}))
    return folder


def counting(folder, steps=4, **settings):
    """Write a Minari data set of one episode; `settings` are those of its arrays, by name."""
    metadata(folder)
    arrays = {
        "observations": np.arange(3 * (steps + 1), dtype=np.uint8).reshape(-1, 3),
        "actions": np.arange(steps) % 3 + 5,
        "rewards": np.arange(steps, dtype=np.float64),
        "terminations": np.arange(steps) == steps - 1,
        "truncations": np.zeros(steps, np.bool_),
    }
    with h5py.File(folder / "main_data.hdf5", "w") as file:
        for name, values in arrays.items():
            chosen = {"data": values, **settings.get(name, {})}
            if chosen:
                file.create_dataset(
                    f"episode_0/{name}", **{key: value for key, value in chosen.items() if value is not ...}
                )
    return folder


def test_the_small_data_set_is_good(tmp_path):
    gzipped = {"compression": "gzip", "shuffle": True, "fletcher32": True, "chunks": True}
    for number, settings in enumerate(({}, {"chunks": True}, {"chunks": (2,)}, gzipped)):
        folder = counting(tmp_path / str(number), rewards=settings, actions=settings)
        found = run_minari(folder, tmp_path / f"out-{number}", env=None).episode(0)
        assert found.rewards.tolist() == [0, 1, 2, 3]
        assert found.actions.tolist() == [0, 1, 2, 0]
        assert found.end == End.TERMINATED


ANNOUNCED = {"shape": (10**12,), "dtype": "i8", "data": ..., "chunks": (1024,)}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"actions": ANNOUNCED}, "found 1000000000000 actions, expected at most 4194304"),
        ({"actions": {**ANNOUNCED, "shape": (4194305,)}}, "found 4194305 actions, expected at most 4194304"),
        ({"rewards": {**ANNOUNCED, "dtype": "f8"}}, r"found rewards \(1000000000000,\), expected \(4,\), one per"),
        ({"rewards": {**ANNOUNCED, "shape": (4,), "dtype": "f8", "chunks": (2,)}},
         "rewards: damaged: found 0 chunks of it, expected 2"),
        ({"rewards": {"shape": (4,), "dtype": "f8", "data": ...}}, "rewards: damaged: found 0 bytes of it, expected 3"),
        ({"rewards": {"chunks": (1 << 23,), "maxshape": (None,)}}, None),
        ({"rewards": {"chunks": ((1 << 23) + 1,), "maxshape": (None,)}}, "found chunks of 67108872 bytes, expected at"),
        ({"rewards": {"compression": "lzf"}}, r"rewards: found HDF5's filters \[32000\], expected none, or gzip"),
        ({"rewards": {"data": np.zeros(4, "V100000000")}}, "found rewards of type .*, expected numbers"),
        ({"rewards": {"data": np.array([b"text"] * 4)}}, "found rewards of type .S4, expected numbers"),
        ({"actions": {"data": np.zeros(4)}}, "found actions of type float64, expected whole numbers"),
        ({"actions": {"data": np.zeros((4, 1), np.int64)}}, r"found actions \(4, 1\), expected \(4,\)"),
        ({"terminations": {"data": np.zeros(4)}}, "found terminations of type float64, expected flags"),
        ({"observations": {"data": np.zeros((5, 3))}}, "found observations of type float64, expected bytes or flags"),
        ({"observations": {"data": np.zeros((5, 3), np.bool_)}}, r"found observations \(3,\) bool, expected \(3,\) ui"),
        ({"observations": {"data": np.uint8(3)}}, "found no observations, expected 5 for 4 actions"),
        ({"observations": {"data": np.zeros((6, 3), np.uint8)}}, "found 6 observations, expected 5 for 4 actions"),
        ({"observations": {**ANNOUNCED, "shape": (5, 10**9), "dtype": "u1", "chunks": (1, 4096)}},
         r"found observations \(1000000000,\) uint8, expected \(3,\) uint8"),
        ({"observations": {**ANNOUNCED, "shape": (5, 3), "dtype": "u1", "chunks": (1, 3)}},
         "observations: damaged: found 0 chunks of it, expected 5"),
    ],
)  # fmt: skip
def test_what_an_hdf5_file_announces_is_bounded(tmp_path, settings, expected):
    folder = counting(tmp_path / "data", **settings)
    if expected is None:
        assert run_minari(folder, tmp_path / "set").num_transitions == 4
        return
    with pytest.raises(UserError, match=expected) as raised:
        run_minari(folder, tmp_path / "set")
    assert f"{folder / 'main_data.hdf5'}: episode_0" in str(raised.value)
    assert "\n" not in str(raised.value)


def inflating(folder, size, mask=0):
    """Rewards in one chunk of 32 bytes, whose zlib stream has `size`."""
    counting(folder, rewards={"compression": "gzip", "chunks": (4,)})
    with h5py.File(folder / "main_data.hdf5", "a") as file:
        file["episode_0/rewards"].id.write_direct_chunk((0,), zlib.compress(bytes(size), 9), mask)
    return folder


def test_a_chunk_of_hdf5_that_expands_without_end(tmp_path):
    """HDF5 itself would inflate all of it."""
    assert run_minari(inflating(tmp_path / "good", 32), tmp_path / "one").episode(0).rewards.tolist() == [0] * 4
    with pytest.raises(UserError, match="rewards: chunk 0: damaged: found more than its 32 bytes"):
        run_minari(inflating(tmp_path / "bad", 37), tmp_path / "two")
    with pytest.raises(UserError, match="rewards: damaged: found chunk 0 of .* bytes, expected 32 or fewer"):
        run_minari(inflating(tmp_path / "long", 2 << 20), tmp_path / "three")
    folder = counting(tmp_path / "text", rewards={"compression": "gzip", "chunks": (4,)})
    with h5py.File(folder / "main_data.hdf5", "a") as file:
        file["episode_0/rewards"].id.write_direct_chunk((0,), b"no zlib at all")
    with pytest.raises(UserError, match="rewards: chunk 0: damaged: Error -3"):
        run_minari(folder, tmp_path / "four")
    with pytest.raises(UserError, match="--skip-damaged leaves it out"):
        run_minari(folder, tmp_path / "four")


def test_hdf5_reads_no_other_file(tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(range(32)))
    folder = counting(tmp_path / "external")
    with h5py.File(folder / "main_data.hdf5", "a") as file:
        del file["episode_0/rewards"]
        file.create_dataset("episode_0/rewards", (4,), "f8", external=[(str(secret), 0, 32)])
    with pytest.raises(UserError, match="episode_0: rewards: its values are in other files"):
        run_minari(folder, tmp_path / "one")
    other = counting(tmp_path / "other")
    for number, link in enumerate((h5py.ExternalLink(str(other / "main_data.hdf5"), "episode_0/rewards"),
                                   h5py.SoftLink("/episode_0/actions"))):  # fmt: skip
        folder = counting(tmp_path / f"link-{number}")
        with h5py.File(folder / "main_data.hdf5", "a") as file:
            del file["episode_0/rewards"]
            file["episode_0/rewards"] = link
        with pytest.raises(UserError, match="rewards is a link to another place, expected it here"):
            run_minari(folder, tmp_path / f"two-{number}")
    folder = counting(tmp_path / "virtual")
    with h5py.File(folder / "main_data.hdf5", "a") as file:
        del file["episode_0/rewards"]
        layout = h5py.VirtualLayout((4,), "f8")
        layout[:] = h5py.VirtualSource(str(other / "main_data.hdf5"), "episode_0/rewards", (4,))
        file.create_virtual_dataset("episode_0/rewards", layout)
    with pytest.raises(UserError, match="rewards: its values are in other files"):
        run_minari(folder, tmp_path / "three")
    folder = metadata(tmp_path / "whole")
    with h5py.File(folder / "main_data.hdf5", "w") as file:
        file["episode_0"] = h5py.ExternalLink(str(other / "main_data.hdf5"), "episode_0")
    with pytest.raises(UserError, match="episode_0 is a link to another place"):
        run_minari(folder, tmp_path / "four")


def test_names_of_episodes_that_are_no_numbers(tmp_path):
    folder = counting(tmp_path / "data")
    with h5py.File(folder / "main_data.hdf5", "a") as file:
        for name in ("episode_" + "9" * 5000, "episode_007", "episode_\u0663", "episode_-1", "notes"):
            file.create_group(name)
    assert run_minari(folder, tmp_path / "set").num_episodes == 1


def test_damage_inside_hdf5_is_named(tmp_path):
    """Bytes flipped all over the file: a line that names it, or an episode."""
    folder = counting(tmp_path / "data", rewards={"chunks": True}, observations={"chunks": (2, 3)})
    path = folder / "main_data.hdf5"
    good = path.read_bytes()
    like = manifest_of(make("gym/Counting-v0", 1))
    spaces = Spaces((3,), "uint8", 3, 5, False)
    said = []
    for place in range(8, len(good), 37):
        raw = bytearray(good)
        raw[place] ^= 0xFF
        path.write_bytes(raw)
        try:
            assert len(encode_episode(str(path), 0, like, spaces).actions) == 4
        except UserError as error:
            said.append(str(error))
    assert len(said) > 10
    assert all(line.startswith(f"{path}: ") and "\n" not in line for line in said)


@pytest.fixture
def pictures(monkeypatch):
    """An environment with images of 40 x 48, as Minari stores them."""

    class Pictures(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(0, 255, (40, 48, 3), np.uint8)
        action_space = gymnasium.spaces.Discrete(3, start=5)

    gymnasium.register("Jpegs-v0", Pictures)
    yield
    del gymnasium.registry["Jpegs-v0"]


def jpeg(height, width, mode="RGB"):
    import io

    from PIL import Image

    buffer = io.BytesIO()
    Image.new(mode, (width, height)).save(buffer, "JPEG")
    return np.frombuffer(buffer.getvalue(), np.uint8)


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (jpeg(40, 48), None),
        (jpeg(2000, 2000), "found an image of 2000x2000 RGB, expected 40x48 RGB"),
        (jpeg(40, 48, "L"), "found an image of 40x48 L, expected 40x48 RGB"),
        (jpeg(48, 40), "found an image of 48x40 RGB, expected 40x48 RGB"),
        (np.zeros(100, np.uint8), "an observation is not a JPEG image"),
        (np.zeros(4 * 40 * 48 * 3 + (64 << 10) + 1, np.uint8), "found an image of 88577 bytes, expected at most 88576"),
    ],
)
@pytest.mark.parametrize("rows", [True, False])
def test_images_of_another_size_are_not_decoded(tmp_path, pictures, image, expected, rows):
    folder = counting(tmp_path / "data")
    low, high = np.zeros((40, 48, 3), int).tolist(), np.full((40, 48, 3), 255).tolist()
    box = {"type": "Box", "dtype": "uint8", "shape": [40, 48, 3], "low": low, "high": high}
    metadata(folder, observation_space=json.dumps(box))
    with h5py.File(folder / "main_data.hdf5", "a") as file:
        del file["episode_0/observations"]
        if rows:
            array = file.create_dataset("episode_0/observations", (5,), h5py.vlen_dtype(np.uint8), chunks=True)
            for number in range(5):
                array[number] = image
        else:
            file.create_dataset("episode_0/observations", data=np.stack([image] * 5), chunks=True)
    if expected is None:
        assert run_minari(folder, tmp_path / "set", env="gym/Jpegs-v0").frame_shape == (40, 48, 3)
        return
    if not rows:
        expected = expected.replace("an image of 88577", "images of 88577")
    with pytest.raises(UserError, match=expected):
        run_minari(folder, tmp_path / "set", env="gym/Jpegs-v0")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"observation_space": None}, "field observation_space: found null, expected text"),
        ({"observation_space": "{"}, "field observation_space: damaged: not JSON"),
        ({"observation_space": "[" * 100_000}, "field observation_space: damaged: found lists or objects nested more"),
        ({"observation_space": "[]"}, "field observation_space: found [], expected an object"),
        ({"observation_space": "{}"}, "field observation_space: field type: missing, expected text"),
        ({"observation_space": '{"type": "Box"}'}, "field observation_space: field shape: missing, expected a list"),
        (
            {"action_space": '{"type": "Discrete", "n": "3"}'},
            "field action_space: field n: found '3', expected a whole",
        ),
        ({"action_space": '{"type": "Discrete", "n": 3, "start": 0.5}'}, "field start: found 0.5, expected a whole"),
        ({"env_spec": 3}, "field env_spec: found 3, expected text or null"),
        ({"env_spec": "nothing"}, "field env_spec: damaged: not JSON"),
        ({"env_spec": "{}"}, "field env_spec: field id: missing, expected text"),
        ({"env_spec": '{"id": ["Counting-v0"]}'}, "field env_spec: field id: found a list of 1, expected text"),
        ({"data_format": 3}, "field data_format: found 3, expected text"),
        ({"dataset_id": {}}, "field dataset_id: found an object with 0 fields, expected text or null"),
    ],
)
def test_a_description_of_wrong_types_is_one_line(tmp_path, changes, expected):
    folder = counting(tmp_path / "data")
    metadata(folder, **changes)
    with pytest.raises(UserError) as raised:
        run_minari(folder, tmp_path / "set", env=None)
    assert str(raised.value).startswith(f"{folder / 'metadata.json'}: ")
    assert expected.removesuffix(" or null") in str(raised.value)


def test_a_description_that_is_too_long(tmp_path):
    folder = counting(tmp_path / "data")
    os.truncate(folder / "metadata.json", (64 << 20) + 1)
    with pytest.raises(UserError, match=r"metadata.json: found 67108865 bytes, expected at most 67108864"):
        run_minari(folder, tmp_path / "set")


@pytest.mark.parametrize(
    "spec",
    [
        {"id": "booby_trap:Counting-v0"},
        {"id": "Counting-v9", "entry_point": "booby_trap:Env"},
        {"id": "Trapped-v0", "entry_point": "booby_trap.envs:Env"},
        {"id": "Trapped-v0", "entry_point": "booby trap"},
    ],
)
def test_a_file_names_no_module(tmp_path, monkeypatch, spec):
    """The module would leave a mark if it were imported."""
    (tmp_path / "booby_trap.py").write_text(f"open({str(tmp_path / 'sprung')!r}, 'w')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    folder = counting(tmp_path / "data")
    metadata(folder, env_spec=json.dumps(spec))
    with pytest.raises(UserError, match=r"--env gym/(MODULE:ID|booby_trap:(Trapped-v0|Counting-v9))"):
        run_minari(folder, tmp_path / "set", env=None)
    assert not (tmp_path / "sprung").exists()
    assert "booby_trap" not in sys.modules
    assert not (tmp_path / "set").exists()


def test_reading_ahead_stops_at_its_budget():
    """Items of 40 bytes with a budget of 100: two wait; one of 1,000 waits alone."""
    made = []

    def items():
        for number, size in enumerate([40] * 6 + [1000] * 3):
            made.append(number)
            yield bytes(size)

    with Ahead(items(), 10, len, 100) as ahead:
        iterator = iter(ahead)
        sizes, most = [], 0
        for taken, item in enumerate(iterator, 1):
            with ahead._changed:
                waiting = [weight for _, weight in ahead._waiting]
            assert sum(waiting) <= 100 or len(waiting) == 1
            assert len(made) <= taken + 3
            most = max(most, len(waiting))
            sizes.append(len(item))
    assert sizes == [40] * 6 + [1000] * 3
    assert not ahead._thread.is_alive()


def test_reading_ahead_fills_its_budget_exactly():
    ready = []
    with Ahead(iter([b"a" * 50] * 9), 10, len, 150) as ahead:
        with ahead._changed:
            ahead._changed.wait_for(lambda: len(ahead._waiting) == 3, timeout=10)
            ready = [weight for _, weight in ahead._waiting]
    assert ready == [50, 50, 50]


def test_workers_are_full_while_too_many_bytes_are_under_way(monkeypatch):
    monkeypatch.setattr(importing, "WAITING_BYTES", 1000)
    workers = Workers(2)
    try:
        assert not workers.full
        under_way = [workers.submit(bytes.hex, bytes(999)), workers.submit(bytes.hex, b"1")]
        assert workers._held in (1000, 1, 0)  # as far as it is not done yet
        assert workers.full == (workers._held == 1000) or workers._held < 1000
        assert [len(work.result()) for work in under_way] == [1998, 2]
    finally:
        workers.close()
    assert workers._held == 0
    assert not workers.full


def test_bombs_of_all_formats_are_refused_in_bounded_memory(tmp_path, episode):
    """Each would take 100 MB or more; the process has room for 80 MiB beside what it takes to start."""
    png = shard(tmp_path / "png", episode, observations=[huge_png(9000, 9000)] * 5)
    ring = Ring(20)
    ring.add_episode(episode)
    replay = ring.save(tmp_path / "Breakout" / "1" / "replay_logs", 0)
    (replay / "invalid_range_ckpt.0.gz").write_bytes(gzip.compress(npy((20_000_000,), content=bytes(100_000_000)), 1))
    values = inflating(tmp_path / "minari", 32)
    with h5py.File(values / "main_data.hdf5", "a") as file:
        del file["episode_0/rewards"]
        array = file.create_dataset(
            "episode_0/rewards", (4,), "f8", maxshape=(None,), chunks=(1 << 17,), compression="gzip"
        )
        array[:] = 0
        array.id.write_direct_chunk((0,), zlib.compress(bytes(100_000_000), 1))
    done = bounded(
        "from protovalue.config import ImportDqnReplayConfig, ImportRluConfig, ImportMinariConfig\n"
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
        "expect(lambda: list(replay._read_checkpoint(ring, tally, Here(), manifest, 1.0)))\n"
        "spaces = Spaces((3,), 'uint8', 3, 5, False)\n"
        f"expect(lambda: encode_episode({str(values / 'main_data.hdf5')!r}, 0, manifest, spaces))\n",
        80 << 20,
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 3, done.stderr
    assert "observation 0: found 9000x9000 L, expected 84x84 L" in lines[0]
    assert "found (20000000,), expected a row of at most 1024 numbers" in lines[1]
    assert "chunk 0: damaged: found more than its 1048576 bytes" in lines[2]
