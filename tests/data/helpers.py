"""Made-up episodes and a data set written from them."""

import hashlib
import json
import subprocess
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from protovalue.data import format as fmt
from protovalue.data.dataset import Dataset, open_dataset
from protovalue.data.format import End, Manifest
from protovalue.data.writer import DatasetWriter
from protovalue.files import write_json


@dataclass
class MadeUp:
    """An episode as plain arrays."""

    frames: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    end: End


def manifest(**changes: Any) -> Manifest:
    fields = {
        "env_id": "gym/Nothing-v0",
        "env_options": {"stack": 2},
        "frame_shape": (2, 3),
        "frame_dtype": "uint8",
        "stack": 2,
        "num_actions": 4,
        "chunk_frames": 4,
    }
    return Manifest(**{**fields, **changes})


def made_up(length: int, rng: np.random.Generator, end: End = End.TERMINATED, like: Manifest | None = None) -> MadeUp:
    like = like or manifest()
    shape = (length + 1, *like.frame_shape)
    frames = rng.integers(1, 256, shape, np.uint8) if like.frame_dtype == "uint8" else rng.random(shape) < 0.5
    rewards = rng.normal(size=length).astype(np.float32)
    return MadeUp(frames, rng.integers(4, size=length).astype(np.int32), rewards, end)


def record(writer: DatasetWriter, episode: MadeUp) -> None:
    buffer = writer.begin(episode.frames[0])
    for action, reward, frame in zip(episode.actions, episode.rewards, episode.frames[1:], strict=True):
        buffer.add(int(action), float(reward), frame)
    buffer.end(episode.end)


def write(path: Path, episodes: list[MadeUp], **changes: Any) -> Dataset:
    with DatasetWriter(path, manifest(**changes), {"by": "test"}) as writer:
        for episode in episodes:
            record(writer, episode)
    return open_dataset(path)


def reseal(folder: Path, **changes: Any) -> None:
    """Write a manifest with other fields and a right checksum: damage that no checksum finds."""
    path = folder / fmt.MANIFEST
    fields = json.loads(path.read_bytes())
    del fields["sha256"]
    fields |= changes
    write_json(path, {name: value for name, value in fields.items() if value is not ...})


def forge(folder: Path, **tables: np.ndarray) -> None:
    """Replace tables of a data set (episodes, chunks, actions, rewards, frames) and make all checksums right again."""
    names = {"episodes": fmt.EPISODE, "chunks": fmt.CHUNK, "actions": fmt.ACTION, "rewards": fmt.REWARD}
    for name, table in tables.items():
        (folder / f"{name}.bin").write_bytes(table.tobytes())
    old = {name: np.fromfile(folder / f"{name}.bin", dtype) for name, dtype in names.items()}
    frames = (folder / fmt.FRAMES).read_bytes()
    for chunk in old["chunks"]:
        chunk["crc"] = zlib.crc32(frames[int(chunk["offset"]) : int(chunk["offset"]) + int(chunk["size"])])
    old["chunks"].tofile(folder / fmt.CHUNKS)
    chunk_frames = json.loads((folder / fmt.MANIFEST).read_bytes())["chunk_frames"]
    for episode in old["episodes"]:
        first, length, chunk = (int(episode[name]) for name in ("first_transition", "length", "first_chunk"))
        episode["crc_actions"] = zlib.crc32(old["actions"][first : first + length].tobytes())
        episode["crc_rewards"] = zlib.crc32(old["rewards"][first : first + length].tobytes())
        episode["crc_chunks"] = zlib.crc32(old["chunks"][chunk : chunk + length // chunk_frames + 1].tobytes())
        episode["crc"] = zlib.crc32(episode.tobytes()[:-4])
    old["episodes"].tofile(folder / fmt.EPISODES)
    reseal(folder, checksum=hashlib.sha256(old["episodes"].tobytes()).hexdigest(), frames_bytes=len(frames))


def bounded(code: str, room: int = 600 << 20) -> subprocess.CompletedProcess[str]:
    """Run Python code in a process that may have at most `room` bytes of memory more than after its imports."""
    script = (
        "import resource\n"
        "import numpy, zstandard, h5py, PIL.Image\n"
        "import protovalue.data.info, protovalue.data.import_dqn_replay, protovalue.data.import_rlu\n"
        "import protovalue.data.import_minari\n"
        "from protovalue.errors import UserError\n"
        "pages = int(open('/proc/self/statm').read().split()[0])\n"
        f"limit = pages * resource.getpagesize() + {room}\n"
        "resource.setrlimit(resource.RLIMIT_AS, (limit, limit))\n"
    )
    return subprocess.run([sys.executable, "-c", script + code], capture_output=True, text=True)
