"""The data set folder's layout: names, records and the encoding of frames. docs/formats.md describes it in full."""

import math
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
from protovalue.schema import checked, require

MANIFEST, FRAMES, CHUNKS = "manifest.json", "frames.bin", "chunks.bin"
ACTIONS, REWARDS, EPISODES = "actions.bin", "rewards.bin", "episodes.bin"
FORMAT, VERSION = "protovalue data set", 1

# What a data set may ask a reader to hold at once, whatever its files say.
CHUNK_BYTES = 256 << 20  # one decoded chunk, or one observation: Atari's are 16 and 4 frames of 7,056 bytes
LONGEST_STACK = 1024  # frames of an observation
_COMPRESSED_MORE = 1 << 10  # bytes by which a chunk of noise may grow in zstd, beside 1 in 128

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
        ("checkpoint", "<i4"),  # iteration of the training of the agent that acted, -1 if there was none
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

    def __post_init__(self) -> None:
        require(min(self.frame_shape, default=1) >= 1, "frame_shape", self.frame_shape, "sizes of 1 or more")
        require(1 <= self.stack <= LONGEST_STACK, "stack", self.stack, f"1 to {LONGEST_STACK}")
        require(1 <= self.num_actions < 1 << 31, "num_actions", self.num_actions, "1 or more")
        frame = math.prod(self.frame_shape)
        room = f"with frames of {frame} bytes at most {CHUNK_BYTES} bytes"
        require(self.stack * frame <= CHUNK_BYTES, "stack", self.stack, room)
        require(self.chunk_frames >= 1, "chunk_frames", self.chunk_frames, "1 or more")
        require(self.chunk_frames * frame <= CHUNK_BYTES, "chunk_frames", self.chunk_frames, room)
        for name in ("episodes", "transitions", "chunks", "frames_bytes"):
            require(0 <= getattr(self, name) < 1 << 62, name, getattr(self, name), "0 or more")
        for number, source in enumerate(self.provenance):
            first = source.get("first_episode")
            good = type(first) is int and first >= 0
            require(good, f"provenance[{number}].first_episode", first, "the number of an episode")

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
        manifest = checked(cls, fields, path)
        from protovalue.envs.options import check_recorded  # here: it needs the command line's packages

        check_recorded(manifest.env_id, manifest.env_options, f"{path}: field env_options")
        return manifest

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
    return 64 if frame_bytes < 2048 else max(1, min(16, CHUNK_BYTES // frame_bytes))


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

    def size(self, count: int) -> int:
        """Bytes of `count` frames before they are compressed."""
        values = count * math.prod(self.frame_shape)
        return -(-values // 8) if self.frame_dtype == "bool" else values

    def most(self, count: int) -> int:
        """Bytes that `count` frames may take at most when compressed, however noisy they are."""
        size = self.size(count)
        return size + size // 128 + _COMPRESSED_MORE

    def decode(self, data: bytes, count: int) -> NDArray[Any]:
        """Decompress `count` frames; raises ValueError where the data does not hold just them."""
        if not hasattr(_local, "decompressor"):
            _local.decompressor = zstandard.ZstdDecompressor()
        expected = self.size(count)
        try:
            # A frame may say how large its content is, and is then decoded to that size whatever was asked for.
            announced = zstandard.frame_content_size(data)
            if announced not in (expected, -1):
                raise ValueError(f"found {announced} bytes announced, expected {expected}")
            plain = _local.decompressor.decompress(data, max_output_size=expected, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise ValueError(str(error)) from error
        if len(plain) != expected:
            raise ValueError(f"found {len(plain)} bytes, expected {expected}")
        values = np.frombuffer(plain, np.uint8)
        if self.frame_dtype == "bool":
            values = np.unpackbits(values, count=count * math.prod(self.frame_shape)).view(np.bool_)
        return values.reshape(count, *self.frame_shape)
