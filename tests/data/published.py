"""Writers of the three published formats, made from their descriptions and sharing no code with the importers."""

import gzip
import io
import json
import struct
import zlib
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from PIL import Image

from protovalue.data.dataset import Dataset, Episode, open_dataset
from protovalue.data.format import End, Manifest
from protovalue.data.writer import DatasetWriter
from tests.data.helpers import MadeUp

ATARI_OPTIONS = {
    "actions": "minimal",
    "sticky": 0.25,
    "stack": 4,
    "max_steps": 27_000,
    "frameskip": 4,
    "noop_max": 0,
    "episodic_life": False,
}
CONTENTS = ("frames.bin", "chunks.bin", "actions.bin", "rewards.bin", "episodes.bin")


def atari_episode(length: int, rng: np.random.Generator, end: End = End.TERMINATED, actions: int = 4) -> MadeUp:
    """Sparse noise, with the last frame twice where no format keeps the true one; clipped rewards."""
    frames = rng.integers(1, 256, (length + 1, 84, 84), np.uint8) * (rng.random((length + 1, 84, 84)) < 0.01)
    if end == End.TERMINATED:
        frames[-1] = frames[-2]
    rewards = rng.integers(-1, 2, length).astype(np.float32)
    return MadeUp(frames.astype(np.uint8), rng.integers(actions, size=length).astype(np.int32), rewards, end)


def write_atari(path: Path, episodes: list[MadeUp], iteration: int = 7, **changes: Any) -> Dataset:
    """Write a data set of Breakout, which has 4 actions, as an import should make it."""
    fields = {
        "env_id": "atari/Breakout",
        "env_options": ATARI_OPTIONS,
        "frame_shape": (84, 84),
        "frame_dtype": "uint8",
        "stack": 4,
        "num_actions": 4,
        "chunk_frames": 16,
        "rewards": "clipped",
    }
    with DatasetWriter(path, Manifest(**{**fields, **changes}), {"by": "test"}) as writer:
        for episode in episodes:
            buffer = writer.begin(episode.frames[0], iteration)
            for action, reward, frame in zip(episode.actions, episode.rewards, episode.frames[1:], strict=True):
                buffer.add(int(action), float(reward), frame)
            buffer.end(episode.end)
    return open_dataset(path)


def same_contents(one: Path, other: Path) -> bool:
    return all((one / name).read_bytes() == (other / name).read_bytes() for name in CONTENTS)


# TFRecord and tf.train.Example


def crc32c(data: bytes) -> int:
    """The definition, bit by bit: reversed polynomial 0x82F63B78."""
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def masked(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17 & 0xFFFFFFFF) + 0xA282EAD8) % 2**32)


def tfrecord(records: list[bytes]) -> bytes:
    parts = []
    for data in records:
        length = struct.pack("<Q", len(data))
        parts += [length, masked(length), data, masked(data)]
    return b"".join(parts)


def varint(value: int) -> bytes:
    value %= 2**64
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def message(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def feature(values: Any, packed: bool = True) -> bytes:
    """A Feature: bytes_list 1, float_list 2, int64_list 3; numbers packed or one by one."""
    if isinstance(values, list):
        return message(1, b"".join(message(1, value) for value in values))
    if values.dtype.kind == "f":
        raw = [struct.pack("<f", value) for value in values]
        return message(2, message(1, b"".join(raw)) if packed else b"".join(b"\x0d" + value for value in raw))
    raw = [varint(int(value)) for value in values]
    return message(3, message(1, b"".join(raw)) if packed else b"".join(b"\x08" + value for value in raw))


def example(features: dict[str, Any], packed: bool = True) -> bytes:
    entries = (message(1, name.encode()) + message(2, feature(value, packed)) for name, value in features.items())
    return message(1, b"".join(message(1, entry) for entry in entries))


def png(frame: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(frame).save(buffer, "PNG")
    return buffer.getvalue()


def steps_of(episode: Episode) -> tuple[list[bytes], np.ndarray, np.ndarray, np.ndarray]:
    """Return T observations, actions, rewards and discounts: the last step of a truncated episode leads nowhere."""
    terminated = episode.end == End.TERMINATED
    frames = episode.frames[:-1] if terminated else episode.frames
    more = 0 if terminated else 1
    actions = np.concatenate([episode.actions, np.zeros(more, np.int32)]).astype(np.int64)
    rewards = np.concatenate([episode.rewards, np.full(more, 0.5, np.float32)])
    discounts = np.ones(len(frames), np.float32)
    discounts[-1] = 0 if terminated else 1
    return [png(frame) for frame in frames], actions, rewards, discounts


def rlu_record(episode: Episode, number: int, packed: bool = True, **changes: Any) -> bytes:
    observations, actions, rewards, discounts = steps_of(episode)
    total = np.array([rewards.sum()], np.float32)
    features = {
        "checkpoint_idx": np.array([episode.iteration]),
        "episode_idx": np.array([number]),
        "episode_return": total,
        "clipped_episode_return": total,
        "observations": observations,
        "actions": actions,
        "unclipped_rewards": rewards,
        "clipped_rewards": rewards,
        "discounts": discounts,
    }
    return example({name: value for name, value in {**features, **changes}.items() if value is not None}, packed)


def tfds_record(episode: Episode, number: int) -> bytes:
    observations, actions, rewards, discounts = steps_of(episode)
    first, last = np.zeros(len(actions), np.int64), np.zeros(len(actions), np.int64)
    first[0] = last[-1] = 1
    features = {
        "steps/observation": observations,
        "steps/action": actions,
        "steps/reward": rewards,
        "steps/discount": np.append(discounts[1:], discounts[-1]),
        "steps/is_first": first,
        "steps/is_last": last,
        "steps/is_terminal": last * (discounts[-1] == 0),
        "checkpoint_id": np.array([episode.iteration]),
        "episode_id": np.array([number]),
        "episode_return": np.array([rewards.sum()], np.float32),
    }
    return example(features)


def write_rlu(path: Path, data: Dataset, first: int = 0, until: int | None = None, packed: bool = True) -> Path:
    """Write a raw shard of some of a data set's episodes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    stop = data.num_episodes if until is None else until
    records = [rlu_record(data.episode(i), i, packed) for i in range(first, stop)]
    path.write_bytes(gzip.compress(tfrecord(records), 6))
    return path


# Dopamine's replay memory


class Ring:
    """A replay memory as Dopamine's: three zero slots before each episode, then one slot per step."""

    def __init__(self, capacity: int) -> None:
        rng = np.random.default_rng(0)  # memory that was never written holds anything
        self.store = {
            "observation": rng.integers(0, 256, (capacity, 84, 84), np.uint8),
            "action": rng.integers(0, 4, capacity).astype(np.int32),
            "reward": rng.random(capacity).astype(np.float32),
            "terminal": rng.integers(0, 2, capacity).astype(np.uint8),
        }
        self.capacity, self.add_count = capacity, 0

    def add(self, observation: np.ndarray, action: int, reward: float, terminal: bool) -> None:
        if self.add_count == 0 or self.store["terminal"][(self.add_count - 1) % self.capacity]:
            for _ in range(3):
                self._add(np.zeros((84, 84), np.uint8), 0, 0.0, False)
        self._add(observation, action, reward, terminal)

    def _add(self, *values: Any) -> None:
        for name, value in zip(("observation", "action", "reward", "terminal"), values, strict=True):
            self.store[name][self.add_count % self.capacity] = value
        self.add_count += 1

    def add_episode(self, episode: Any) -> None:
        """Add an episode's steps; one that was cut has a further action whose next frame is not known yet."""
        steps = len(episode.actions)
        for t in range(steps):
            terminal = episode.end == End.TERMINATED and t == steps - 1
            self.add(episode.frames[t], int(episode.actions[t]), float(episode.rewards[t]), terminal)
        if episode.end == End.CUT:
            self.add(episode.frames[-1], 1, 1.0, False)

    def save(self, folder: Path, number: int) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        cursor = self.add_count % self.capacity
        arrays = {f"$store$_{name}": array for name, array in self.store.items()}
        arrays["add_count"] = np.array(self.add_count)
        arrays["invalid_range"] = np.array([(cursor - 1 + i) % self.capacity for i in range(5)])
        for name, array in arrays.items():
            with gzip.open(folder / f"{name}_ckpt.{number}.gz", "wb", compresslevel=1) as file:
                np.save(file, array, allow_pickle=False)
        return folder


# Minari's files, by hand


def write_metadata(folder: Path, **changes: Any) -> Path:
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


def write_counting(folder: Path, steps: int = 4, **settings: Any) -> Path:
    """Write a Minari data set of one episode; `settings` are those of its arrays, by name."""
    write_metadata(folder)
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


def write_inflating(folder: Path, size: int, mask: int = 0) -> Path:
    """Rewards in one chunk of 32 bytes, whose zlib stream has `size`."""
    write_counting(folder, rewards={"compression": "gzip", "chunks": (4,)})
    with h5py.File(folder / "main_data.hdf5", "a") as file:
        file["episode_0/rewards"].id.write_direct_chunk((0,), zlib.compress(bytes(size), 9), mask)
    return folder
