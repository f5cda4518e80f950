"""Writing a data set, episode by episode, so that a kill at any instant loses no episode that was complete."""

import contextlib
import hashlib
import os
import struct
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from protovalue.data import format as fmt
from protovalue.data.dataset import Folder, checksum
from protovalue.data.format import End, Manifest
from protovalue.errors import UserError
from protovalue.files import LOCK, FolderLock, check_place, open_file, truncate, write_all

_FILES = (fmt.FRAMES, fmt.CHUNKS, fmt.ACTIONS, fmt.REWARDS, fmt.EPISODES)  # an episode's record is written last
_CHUNK, _EPISODE, _CRC = struct.Struct("<QII"), struct.Struct("<QQQdIIiIIII"), struct.Struct("<I")
"""`fmt.CHUNK`; `fmt.EPISODE` but for its checksum, and that. NumPy's records take several times as long to make."""
COMMIT_EVERY = 10.0  # seconds between fsyncs: what a power failure can cost; a killed process costs nothing complete


class EpisodeBuffer:
    """One episode while it is recorded: frames are compressed as their chunks fill, so that memory stays small."""

    def __init__(self, writer: "DatasetWriter", first_frame: NDArray[Any], iteration: int = -1) -> None:
        self._writer, self._iteration = writer, iteration
        self._codec = writer.codec
        self._chunk = np.empty(writer.chunk_shape, writer.codec.frame_dtype)
        self._filled = 0
        self._chunks: list[bytes] = []
        self._actions: list[int] = []
        self._rewards: list[float] = []
        self._add_frame(first_frame)

    def __len__(self) -> int:
        return len(self._actions)

    def add(self, action: int, reward: float, next_frame: NDArray[Any]) -> None:
        """Record a transition and the frame that it led to."""
        self._actions.append(action)
        self._rewards.append(reward)
        self._add_frame(next_frame)

    def end(self, how: End) -> None:
        """Hand the episode to the data set; one without a transition is dropped."""
        if not self._actions:
            return
        if self._filled:
            self._chunks.append(self._codec.encode(self._chunk[: self._filled]))
        actions, rewards = np.array(self._actions, fmt.ACTION), np.array(self._rewards, fmt.REWARD)
        self._writer.append(self._chunks, actions, rewards, how, self._iteration)

    def state(self) -> dict[str, NDArray[Any]]:
        """Return what was recorded so far as arrays: what a checkpoint needs to go on with the episode."""
        return {
            "chunks": np.frombuffer(b"".join(self._chunks), np.uint8),
            "sizes": np.array([len(chunk) for chunk in self._chunks], np.int64),
            "frames": self._chunk[: self._filled].copy(),
            "actions": np.array(self._actions, fmt.ACTION),
            "rewards": np.array(self._rewards, fmt.REWARD),
            "checkpoint": np.array([self._iteration], np.int64),
        }

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on with the episode that `state` returned."""
        ends = np.cumsum(state["sizes"])
        data = state["chunks"].tobytes()
        self._chunks = [data[end - size : end] for size, end in zip(state["sizes"], ends, strict=True)]
        self._filled = len(state["frames"])
        self._chunk[: self._filled] = state["frames"]
        self._actions, self._rewards = state["actions"].tolist(), state["rewards"].tolist()
        self._iteration = int(state["checkpoint"][0])

    def _add_frame(self, frame: NDArray[Any]) -> None:
        self._chunk[self._filled] = frame
        self._filled += 1
        if self._filled == len(self._chunk):
            self._chunks.append(self._codec.encode(self._chunk))
            self._filled = 0


def check_empty(path: Path) -> None:
    """Refuse a folder that can neither be made nor is empty nor a data set."""
    if (path / fmt.MANIFEST).exists():
        return
    check_place(path)
    if path.exists() and any(entry.stat().st_size for entry in path.iterdir() if entry.name != "lock"):
        raise UserError(f"{path}: not empty and not a data set; choose another folder")


class DatasetWriter:
    """Creates a data set folder, or continues one of the same kind. Use as a context manager; it holds the lock.

    Leaving it marks the data set complete; leaving it by an exception keeps every complete episode without the mark.
    """

    def __init__(
        self,
        path: Path,
        manifest: Manifest,
        source: dict[str, Any],
        keep: int | None = None,
        *,
        discard_empty: bool = False,
    ) -> None:
        """Open `path` for writing; `source` says where the episodes come from and is kept in the provenance.

        Where the last writer had the same source, its entry goes on: what is written in several goes is then what one
        would have written. Only the first `keep` episodes that are already there are kept, all if it is None. With
        `discard_empty`, an exception before the first episode of a new data set leaves nothing behind.
        """
        exists = (path / fmt.MANIFEST).exists()
        self._discards, self._made_folder = discard_empty and not exists, not path.exists()
        check_empty(path)
        path.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._lock = FolderLock(path)
        self._files: dict[str, int] = {}
        self._manifest: Manifest
        self._counts: tuple[int, int, int, int]  # episodes, transitions, chunks, bytes of frames
        self._counted: tuple[int, int, int, int]  # those that the manifest has
        try:
            self.manifest = self._continue(manifest, keep) if exists else manifest
            provenance = self.manifest.provenance
            if not provenance or any(provenance[-1].get(name) != value for name, value in source.items()):
                provenance = [*provenance, {**source, "first_episode": self.manifest.episodes}]
            self.manifest = replace(self.manifest, complete=False, provenance=provenance)
            self.codec = self.manifest.codec
            self.chunk_shape = (self.manifest.chunk_frames, *self.manifest.frame_shape)
            for name in _FILES:
                self._files[name] = open_file(path / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            self._digest = hashlib.sha256((path / fmt.EPISODES).read_bytes())
            self.commit()
        except BaseException:
            self._release()
            raise

    @property
    def manifest(self) -> Manifest:
        """What the data set says about itself, with everything that was written until now."""
        if self._counts != self._counted:  # not in every episode: making one takes as long as writing a short one
            episodes, transitions, chunks, frames_bytes = self._counts
            self._manifest = replace(
                self._manifest, episodes=episodes, transitions=transitions, chunks=chunks, frames_bytes=frames_bytes
            )
            self._counted = self._counts
        return self._manifest

    @manifest.setter
    def manifest(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._counts = (manifest.episodes, manifest.transitions, manifest.chunks, manifest.frames_bytes)
        self._counted = self._counts
        self._source = len(manifest.provenance) - 1

    def begin(self, first_frame: NDArray[Any], iteration: int = -1) -> EpisodeBuffer:
        """Start recording an episode at its first frame."""
        return EpisodeBuffer(self, first_frame, iteration)

    def note(self, **fields: Any) -> None:
        """Add to what the provenance says about this writer, or take back what is None; safe after the next commit."""
        *others, own = self.manifest.provenance
        own = {name: value for name, value in {**own, **fields}.items() if value is not None}
        self.manifest = replace(self.manifest, provenance=[*others, own])

    def commit(self, complete: bool = False) -> None:
        """Make everything until now safe against a power failure and bring the manifest up to date."""
        manifest = replace(self.manifest, complete=complete, checksum=self._digest.hexdigest())
        for name, descriptor in self._files.items():
            try:
                os.fsync(descriptor)
            except OSError as error:
                raise self._cannot_write(name, error) from error
        try:
            manifest.write(self.path)
        except OSError as error:
            raise self._cannot_write(fmt.MANIFEST, error) from error
        self.manifest = manifest
        self._committed = time.monotonic()

    def append(
        self,
        chunks: list[bytes],
        actions: NDArray[np.int32],
        rewards: NDArray[np.float32],
        end: End,
        iteration: int,
    ) -> None:
        """Write one whole episode. Its record goes last: without it, the rest counts as not written."""
        episodes, transitions, first_chunk, offset = self._counts
        index = b""
        for chunk in chunks:
            index += _CHUNK.pack(offset, len(chunk), fmt.crc32(chunk))
            offset += len(chunk)
        parts = {
            fmt.FRAMES: b"".join(chunks),
            fmt.CHUNKS: index,
            fmt.ACTIONS: actions.tobytes(),
            fmt.REWARDS: rewards.tobytes(),
        }
        record = _EPISODE.pack(
            transitions,
            first_chunk,
            offset,
            rewards.sum(dtype=np.float64),
            len(actions),
            self._source,
            iteration,
            end,
            fmt.crc32(parts[fmt.ACTIONS]),
            fmt.crc32(parts[fmt.REWARDS]),
            fmt.crc32(index),
        )
        parts[fmt.EPISODES] = record + _CRC.pack(fmt.crc32(record))
        try:
            for name, data in parts.items():
                write_all(self._files[name], data)
        except OSError as error:
            raise self._cannot_write(name, error) from error
        self._digest.update(parts[fmt.EPISODES])
        self._counts = (episodes + 1, transitions + len(actions), first_chunk + len(chunks), offset)
        if time.monotonic() - self._committed > COMMIT_EVERY:
            self.commit()

    def _continue(self, wanted: Manifest, keep: int | None) -> Manifest:
        """Check that the existing data set is of the same kind and cut off what a killed writer left half-written."""
        folder = Folder(self.path)
        self.manifest = found = folder.manifest
        found.check_same_kind(wanted, self.path)
        if keep is not None and keep < found.episodes:
            sources = [source for source in found.provenance if source["first_episode"] < keep]
            counts, total = folder.counts(keep), checksum(folder.episodes[:keep])
            found = replace(found, **counts, provenance=sources, complete=False, checksum=total)
            try:
                found.write(self.path)  # before the files shrink: a kill in between must leave a data set that opens
            except OSError as error:
                raise self._cannot_write(fmt.MANIFEST, error) from error
        sizes = (
            found.frames_bytes,
            found.chunks * fmt.CHUNK.itemsize,
            found.transitions * fmt.ACTION.itemsize,
            found.transitions * fmt.REWARD.itemsize,
            found.episodes * fmt.EPISODE.itemsize,
        )
        for name, size in zip(_FILES, sizes, strict=True):
            truncate(self.path / name, size)
        return found

    def _cannot_write(self, name: str, error: OSError) -> UserError:
        """Name the file that could not be written, and what is safe all the same."""
        kept = f"{self.manifest.episodes} complete episodes are kept, the same command continues"
        return UserError(f"{self.path / name}: {error.strerror}; {kept}")

    def _remove(self) -> None:
        """Remove a data set without an episode; of a folder that was there before, only its files."""
        for name in (*_FILES, fmt.MANIFEST, LOCK):
            (self.path / name).unlink(missing_ok=True)
        if self._made_folder:
            with contextlib.suppress(OSError):  # somebody put something there meanwhile
                self.path.rmdir()

    def _release(self) -> None:
        for descriptor in self._files.values():
            os.close(descriptor)
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.commit(complete=True)
            elif self._discards and not self._counts[0]:
                self._remove()
        finally:
            self._release()
