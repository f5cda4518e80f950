"""Made-up episodes and a data set written from them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from protovalue.data.dataset import Dataset, open_dataset
from protovalue.data.format import End, Manifest
from protovalue.data.writer import DatasetWriter


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
