"""The data set folder's layout: names, records and the encoding of frames. docs/formats.md describes it in full."""

import threading
import zlib
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import zstandard
from numpy.typing import NDArray

from protovalue.errors import UserError
from protovalue.files import read_json, write_json

MANIFEST, FRAMES, CHUNKS = "manifest.json", "frames.bin", "chunks.bin"
ACTIONS, REWARDS, EPISODES = "actions.bin", "rewards.bin", "episodes.bin"
FORMAT, VERSION = "protovalue data set", 1

ACTION = np.dtype("<i4")
REWARD = np.dtype("<f4")
CHUNK = np.dtype([("offset", "<u8"), ("size", "<u4"), ("crc", "<u4")])
EPISODE = np.dtype(
    [
        ("first_transition", "<u8"),
        ("first_chunk", "<u8"),
        ("frames_end", "<u8"),  # bytes of frames.bin up to the end of this episode
        ("episode_return", "<f8"),  # sum of the stored rewards
        ("length", "<u4"),  # actions; frames are one more
        ("source", "<u4"),  # which entry of the manifest's provenance it came from
        ("checkpoint", "<i4"),  # training stage of the agent that acted, -1 if there was none
        ("end", "<u4"),  # how it ended, see End
        ("crc_actions", "<u4"),
        ("crc_rewards", "<u4"),
        ("crc_chunks", "<u4"),  # of its records in chunks.bin
        ("crc", "<u4"),  # of this record up to here
    ]
)


class End(IntEnum):
    """How an episode ended. Only TERMINATED stops the bootstrap."""

    TERMINATED = 1  # the environment ended it
    TRUNCATED = 2  # a time limit ended it
    CUT = 3  # whoever recorded it stopped recording


@dataclass(frozen=True)
class Manifest:
    """What a data set says about itself. Counts are what was committed last; `complete` means that nothing follows."""

    env_id: str
    env_options: dict[str, Any]
    frame_shape: tuple[int, ...]
    frame_dtype: Literal["uint8", "bool"]
    stack: int
    num_actions: int
    chunk_frames: int
    rewards: Literal["raw", "clipped"] = "raw"
    complete: bool = False
    episodes: int = 0
    transitions: int = 0
    chunks: int = 0
    frames_bytes: int = 0
    checksum: str = ""  # SHA-256 of the committed part of episodes.bin, and through its CRCs of everything else
    provenance: list[dict[str, Any]] = field(default_factory=list)

    def write(self, folder: Path) -> None:
        """Replace the folder's manifest."""
        write_json(folder / MANIFEST, {"format": FORMAT, "version": VERSION, **asdict(self)})

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read a folder's manifest; anything that is not one is a UserError."""
        path = folder / MANIFEST
        if not path.is_file():
            raise UserError(f"{folder}: not a data set: {MANIFEST} is missing")
        fields = read_json(path)
        if fields.pop("format", None) != FORMAT:
            raise UserError(f"{path}: not a data set's manifest")
        version = fields.pop("version", None)
        if version != VERSION:
            raise UserError(f"{path}: format version {version}, this program reads version {VERSION}")
        try:
            return cls(**{**fields, "frame_shape": tuple(fields["frame_shape"])})
        except (TypeError, KeyError) as error:
            raise UserError(f"{path}: damaged: {error}") from error

    def check_same_kind(self, wanted: Self, folder: Path) -> None:
        """Refuse to add to the data set of `folder`, or to take it for done, if it is of another kind than `wanted`."""
        for name in ("env_id", "env_options", "frame_shape", "frame_dtype", "stack", "num_actions", "rewards"):
            here, expected = getattr(self, name), getattr(wanted, name)
            if here != expected:
                raise UserError(f"{folder}: holds a data set with {name} {here}, expected {expected}")

    @property
    def codec(self) -> "FrameCodec":
        """The codec of this data set's frames."""
        return FrameCodec(self.frame_shape, self.frame_dtype)


def default_chunk_frames(frame_bytes: int) -> int:
    """Frames per chunk: 16 for Atari's 7,056 bytes (docs/decisions.md); small frames share larger chunks."""
    return 16 if frame_bytes >= 2048 else 64


def crc32(data: bytes | memoryview) -> int:
    """CRC-32 as in zlib and gzip."""
    return zlib.crc32(data)


_local = threading.local()  # compression contexts are costly to make and not thread-safe


@dataclass(frozen=True)
class FrameCodec:
    """Consecutive frames to bytes and back: zstd over the plain pixels, over packed bits where they are bool."""

    frame_shape: tuple[int, ...]
    frame_dtype: str

    def encode(self, frames: NDArray[Any]) -> bytes:
        """Compress frames (n, *frame_shape)."""
        if not hasattr(_local, "compressor"):
            _local.compressor = zstandard.ZstdCompressor(level=3)
        plain = np.packbits(frames) if self.frame_dtype == "bool" else frames
        return bytes(_local.compressor.compress(plain.tobytes()))

    def decode(self, data: bytes, count: int) -> NDArray[Any]:
        """Decompress `count` frames; raises ValueError where the data does not hold just them."""
        if not hasattr(_local, "decompressor"):
            _local.decompressor = zstandard.ZstdDecompressor()
        values = count * int(np.prod(self.frame_shape))
        expected = -(-values // 8) if self.frame_dtype == "bool" else values
        try:
            plain = np.frombuffer(_local.decompressor.decompress(data, max_output_size=expected), np.uint8)
        except zstandard.ZstdError as error:
            raise ValueError(str(error)) from error
        if len(plain) != expected:
            raise ValueError(f"found {len(plain)} bytes, expected {expected}")
        if self.frame_dtype == "bool":
            plain = np.unpackbits(plain, count=values).view(np.bool_)
        return plain.reshape(count, *self.frame_shape)
