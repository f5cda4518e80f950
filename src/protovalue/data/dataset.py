"""Reading a data set: open at once at any size, frames by random access, several folders as one."""

import hashlib
import logging
import math
import os
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protovalue.data import format as fmt
from protovalue.data.format import End, Manifest
from protovalue.errors import UserError, given_as
from protovalue.files import locked

log = logging.getLogger(__name__)

Array = NDArray[Any]


@dataclass(frozen=True)
class Episode:
    """One whole episode of T transitions."""

    frames: Array
    """(T + 1, *frame_shape)"""
    actions: NDArray[np.int32]
    """(T,)"""
    rewards: NDArray[np.float32]
    """(T,)"""
    end: End
    """How it ended."""
    iteration: int
    """Training stage of the agent that acted, -1 if there was none."""

    def observations(self, stack: int) -> Array:
        """Return the stacked observations (T + 1, stack, *frame_shape), zero before the first frame."""
        padded = np.concatenate([np.zeros_like(self.frames[:1]).repeat(stack - 1, axis=0), self.frames])
        return np.stack([padded[i : i + len(self.frames)] for i in range(stack)], axis=1)


class Folder:
    """One data set folder, opened for reading. Files are memory-mapped or read where needed, never as a whole.

    A folder whose writer was killed, or is still at work, is opened with all of its complete episodes:
    `interrupted` says so, and `manifest` has their counts.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest = Manifest.read(path)
        self.interrupted = not self.manifest.complete
        self._codec = self.manifest.codec
        self._frames = self._open(fmt.FRAMES)
        self.episodes = self._map(fmt.EPISODES, fmt.EPISODE, self.manifest.episodes)
        self._check_sum()
        if self.interrupted:
            self.episodes = self._with_tail(self.manifest.episodes)
        self._check_records()
        counts = self.counts(len(self.episodes))
        if self.interrupted:
            self.manifest = replace(self.manifest, **counts, checksum=checksum(self.episodes))
        for name, count in counts.items():
            if getattr(self.manifest, name) != count:
                raise UserError(f"{path / fmt.EPISODES}: damaged: its last record disagrees with the manifest ({name})")
        self.chunks = self._map(fmt.CHUNKS, fmt.CHUNK, self.manifest.chunks)
        self.actions = self._map(fmt.ACTIONS, fmt.ACTION, self.manifest.transitions)
        self.rewards = self._map(fmt.REWARDS, fmt.REWARD, self.manifest.transitions)
        self._require(fmt.FRAMES, self.manifest.frames_bytes)

    def __del__(self) -> None:
        if hasattr(self, "_frames"):
            os.close(self._frames)

    def read_chunk(self, episode: int, number: int) -> Array:
        """Read the `number`-th chunk of an episode: up to chunk_frames consecutive frames."""
        return self._decode(episode, number, self.chunks[int(self.episodes[episode]["first_chunk"]) + number])

    def _decode(self, episode: int, number: int, chunk: np.void) -> Array:
        """Read the frames of a chunk record, which is the `number`-th of an episode."""
        offset, size = int(chunk["offset"]), int(chunk["size"])
        frames = int(self.episodes[episode]["length"]) + 1
        count = min(self.manifest.chunk_frames, frames - number * self.manifest.chunk_frames)
        data = os.pread(self._frames, min(size, self._codec.most(count)), offset)
        if len(data) != size or fmt.crc32(data) != chunk["crc"]:
            raise self._damaged(fmt.FRAMES, offset, episode)
        try:
            return self._codec.decode(data, count)
        except ValueError as error:
            raise UserError(
                f"{self.path / fmt.FRAMES}: damaged at byte {offset} (episode {episode}): {error}"
            ) from error

    def check(self, index: int) -> Array:
        """Check an episode's record, actions, rewards and chunk records; return the last of these.

        Damage is a UserError.
        """
        record = self.episodes[index]
        if fmt.crc32(record.tobytes()[:-4]) != record["crc"]:
            raise self._damaged(fmt.EPISODES, index * fmt.EPISODE.itemsize, index)
        first, length = int(record["first_transition"]), int(record["length"])
        parts = (
            (fmt.ACTIONS, fmt.ACTION, first, length, "crc_actions"),
            (fmt.REWARDS, fmt.REWARD, first, length, "crc_rewards"),
            (fmt.CHUNKS, fmt.CHUNK, int(record["first_chunk"]), self._chunk_count(length), "crc_chunks"),
        )
        tables: list[Array] = []
        for name, dtype, start, count, crc in parts:
            data = self._read(name, start * dtype.itemsize, count * dtype.itemsize)
            if len(data) != count * dtype.itemsize or fmt.crc32(data) != record[crc]:
                raise self._damaged(name, start * dtype.itemsize, index)
            tables.append(np.frombuffer(data, dtype))
        actions, _, chunks = tables
        wrong = actions[(actions < 0) | (actions >= self.manifest.num_actions)]
        if len(wrong):
            expected = f"expected 0 to {self.manifest.num_actions - 1}"
            raise UserError(f"{self.path / fmt.ACTIONS}: episode {index}: found action {wrong[0]}, {expected}")
        before = int(self.episodes[index - 1]["frames_end"]) if index else 0
        sizes = chunks["size"].astype(np.uint64)
        ends = before + np.cumsum(sizes)
        if (chunks["offset"] != ends - sizes).any() or ends[-1] != record["frames_end"]:
            raise UserError(f"{self.path / fmt.CHUNKS}: episode {index}: its chunks do not follow each other")
        return chunks

    def check_all(self, index: int) -> None:
        """Check all of an episode and decode its frames; damage is a UserError."""
        for number, chunk in enumerate(self.check(index)):
            self._decode(index, number, chunk)

    def _damaged(self, name: str, offset: int, episode: int) -> UserError:
        return UserError(f"{self.path / name}: damaged at byte {offset} or after (episode {episode})")

    def counts(self, episodes: int) -> dict[str, Any]:
        """Count what there is in the first `episodes` episodes, by the record of the last of them."""
        if not episodes:
            return {"episodes": 0, "transitions": 0, "chunks": 0, "frames_bytes": 0}
        last = self.episodes[episodes - 1]
        return {
            "episodes": episodes,
            "transitions": int(last["first_transition"]) + int(last["length"]),
            "chunks": int(last["first_chunk"]) + self._chunk_count(int(last["length"])),
            "frames_bytes": int(last["frames_end"]),
        }

    def _chunk_count(self, length: int) -> int:
        """Chunks of an episode with `length` actions, so `length + 1` frames."""
        return -(-(length + 1) // self.manifest.chunk_frames)

    def _check_sum(self) -> None:
        """Check that the episode records are those that the manifest describes."""
        if checksum(self.episodes) == self.manifest.checksum:
            return
        for index, record in enumerate(self.episodes):
            if fmt.crc32(record.tobytes()[:-4]) != record["crc"]:
                raise self._damaged(fmt.EPISODES, index * fmt.EPISODE.itemsize, index)
        raise UserError(f"{self.path / fmt.EPISODES}: damaged: it is not the one that the manifest describes")

    def _check_records(self) -> None:
        """Check that every record follows from the one before it, and that its values exist."""
        table = self.episodes
        lengths = table["length"].astype(np.uint64)
        chunks = lengths // self.manifest.chunk_frames + 1  # of length + 1 frames
        ends = table["frames_end"]
        expected: dict[str, tuple[NDArray[np.bool_], str]] = {
            "length": (lengths >= 1, "at least 1"),
            "end": (np.isin(table["end"], list(End)), "1, 2 or 3"),
            "source": (table["source"] < len(self.manifest.provenance), "an entry of the manifest's provenance"),
            "first_transition": (table["first_transition"] == np.cumsum(lengths) - lengths, "the sum of the lengths"),
            "first_chunk": (table["first_chunk"] == np.cumsum(chunks) - chunks, "the sum of the chunks"),
            "frames_end": (np.concatenate([[True], ends[1:] >= ends[:-1]])[: len(ends)], "a place further on"),
        }
        for name, (good, words) in expected.items():
            if not good.all():
                index = int(np.argmin(good))
                raise UserError(
                    f"{self.path / fmt.EPISODES}: episode {index}: found {name} {table[name][index]}, expected {words}"
                )

    def _with_tail(self, committed: int) -> Array:
        """Return also the episodes that a killed writer completed after its last commit, each one checked."""
        count = (self.path / fmt.EPISODES).stat().st_size // fmt.EPISODE.itemsize
        self.episodes = self._map(fmt.EPISODES, fmt.EPISODE, count)
        for index in range(committed, count):
            try:
                self.check_all(index)
            except UserError:
                return self.episodes[:index]
        return self.episodes

    def _read(self, name: str, offset: int, size: int) -> bytes:
        """Read a part of a file, which may end before it."""
        with (self.path / name).open("rb", buffering=0) as file:
            end = file.seek(0, os.SEEK_END)
            if offset >= end:
                return b""
            file.seek(offset)
            return file.read(min(size, end - offset))

    def _open(self, name: str) -> int:
        try:
            return os.open(self.path / name, os.O_RDONLY)
        except FileNotFoundError as error:
            raise UserError(f"{self.path / name}: missing") from error

    def _require(self, name: str, size: int) -> None:
        """Check that a file has at least `size` bytes."""
        path = self.path / name
        if not path.is_file():
            raise UserError(f"{path}: missing")
        found = path.stat().st_size
        if found < size or (found > size and not self.interrupted):
            raise UserError(f"{path}: damaged: found {found} bytes, expected {size}")

    def _map(self, name: str, dtype: np.dtype[Any], count: int) -> Array:
        """Map the first `count` records of a file."""
        self._require(name, count * dtype.itemsize)
        if count == 0:  # an empty file cannot be mapped
            return np.zeros(0, dtype)
        return np.memmap(self.path / name, dtype, "r", shape=(count,))


def checksum(episodes: Array) -> str:
    """SHA-256 of episode records; through their CRCs it stands for all of a data set's contents."""
    return hashlib.sha256(episodes.tobytes()).hexdigest()


class Dataset:
    """One or several data set folders as one. A transition is addressed by its episode and its step in it.

    Attributes:
        env_id, env_options, frame_shape, frame_dtype, stack, num_actions: what the data was made with.
        rewards_are: "raw" or "clipped".
        lengths: (episodes,) number of transitions of each episode.
        starts: (episodes,) index of the first transition of each episode.
        ends, iterations: (episodes,) as in `End` and `Episode.iteration`.
        checksum: identifies the contents.
    """

    def __init__(self, folders: Sequence[Folder]) -> None:
        self.folders = tuple(folders)
        first = self.folders[0].manifest
        for folder in self.folders[1:]:
            for name in ("env_id", "frame_shape", "frame_dtype", "stack", "num_actions", "rewards"):
                found, expected = getattr(folder.manifest, name), getattr(first, name)
                if found != expected:
                    raise UserError(f"{folder.path}: found {name} {found}, expected {expected} as in the others")
        self.env_id, self.env_options = first.env_id, first.env_options
        self.frame_shape, self.frame_dtype = first.frame_shape, np.dtype(first.frame_dtype)
        self.stack, self.num_actions, self.rewards_are = first.stack, first.num_actions, first.rewards
        tables = [folder.episodes for folder in self.folders]
        self.lengths = np.concatenate([table["length"] for table in tables]).astype(np.int64)
        self.starts = np.cumsum(self.lengths) - self.lengths
        self.ends = np.concatenate([table["end"] for table in tables]).astype(np.int64)
        self.iterations = np.concatenate([table["checkpoint"] for table in tables])
        self._folder_of = np.repeat(np.arange(len(tables)), [len(table) for table in tables])
        self._record_of = np.concatenate([np.arange(len(table)) for table in tables])
        self._first_of = np.concatenate([table["first_transition"] for table in tables]).astype(np.int64)
        self._cache: Array | None = None
        self._unchecked = np.ones(len(self.lengths), np.bool_)
        sums = [folder.manifest.checksum for folder in self.folders]
        self.checksum = sums[0] if len(sums) == 1 else hashlib.sha256("".join(sums).encode()).hexdigest()

    def __repr__(self) -> str:
        """Say what it is in one line."""
        where = ", ".join(str(folder.path) for folder in self.folders)
        return (
            f"Dataset({where}: {self.num_transitions:,} transitions of {self.env_id} in {self.num_episodes:,} "
            f"episodes, observations {self.observation_shape} {self.frame_dtype}, {self.num_actions} actions)"
        )

    @property
    def num_episodes(self) -> int:
        """Number of episodes."""
        return len(self.lengths)

    @property
    def num_transitions(self) -> int:
        """Number of transitions."""
        return int(self.lengths.sum())

    @property
    def num_frames(self) -> int:
        """Number of frames: one more than transitions in each episode."""
        return self.num_transitions + self.num_episodes

    @property
    def frame_bytes(self) -> int:
        """Bytes of one decoded frame."""
        return math.prod(self.frame_shape)  # a byte per value, uint8 or bool

    @property
    def observation_shape(self) -> tuple[int, ...]:
        """Shape of a stacked observation."""
        return (self.stack, *self.frame_shape)

    def load(self, budget: int) -> bool:
        """Decode all frames into memory if they fit into `budget` bytes: sampling gets faster, not different."""
        if self._cache is None and self.num_frames * self.frame_bytes <= budget:
            cache = np.empty((self.num_frames, *self.frame_shape), self.frame_dtype)
            first = self.starts + np.arange(self.num_episodes)
            self.check_episodes(np.arange(self.num_episodes))
            for episode in range(self.num_episodes):
                self._copy_frames(episode, 0, cache[first[episode] : first[episode] + self.lengths[episode] + 1], {})
            self._cache = cache
        return self._cache is not None

    def locate(self, transitions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the episode and the step in it of each transition index."""
        episode = np.searchsorted(self.starts, transitions, side="right") - 1
        return episode, transitions - self.starts[episode]

    def windows(self, episode: NDArray[np.int64], first: NDArray[np.int64], length: int) -> Array:
        """Gather frames `first` .. `first + length - 1` of each episode, (B, length, *frame_shape).

        Frames before an episode's first and after its last are zero.
        """
        last = self.lengths[episode]  # index of the last frame
        if self._cache is not None:
            steps = first[:, None] + np.arange(length)
            inside = (steps >= 0) & (steps <= last[:, None])
            frame = np.where(inside, (self.starts[episode] + episode)[:, None] + steps, 0)
            out = self._cache[frame]
            if not inside.all():
                out[~inside] = 0
            return out
        self.check_episodes(episode)
        out = np.zeros((len(episode), length, *self.frame_shape), self.frame_dtype)
        chunks: dict[tuple[int, int], Array] = {}  # a batch may meet a chunk more than once
        for row in range(len(episode)):
            begin, stop = max(int(first[row]), 0), min(int(first[row]) + length, int(last[row]) + 1)
            if begin < stop:
                offset = begin - int(first[row])
                self._copy_frames(int(episode[row]), begin, out[row, offset : offset + stop - begin], chunks)
        return out

    def actions(self, episode: NDArray[np.int64], step: NDArray[np.int64]) -> NDArray[np.int64]:
        """Gather the action of each (episode, step)."""
        return self._gather("actions", episode, step).astype(np.int64)

    def rewards(self, episode: NDArray[np.int64], step: NDArray[np.int64]) -> NDArray[np.float32]:
        """Gather the stored reward of each (episode, step)."""
        return self._gather("rewards", episode, step).astype(np.float32)

    def terminal(self, episode: NDArray[np.int64], step: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether each (episode, step) is the last of an episode that terminated; a truncated one bootstraps."""
        return np.asarray((step == self.lengths[episode] - 1) & (self.ends[episode] == End.TERMINATED))

    def episode(self, index: int) -> Episode:
        """Read a whole episode."""
        if not 0 <= index < self.num_episodes:
            raise IndexError(f"episode {index} of {self.num_episodes}")
        self.check_episodes(np.array([index]))
        frames = np.empty((self.lengths[index] + 1, *self.frame_shape), self.frame_dtype)
        self._copy_frames(index, 0, frames, {})
        folder = self.folders[self._folder_of[index]]
        steps = slice(int(self._first_of[index]), int(self._first_of[index] + self.lengths[index]))
        actions, rewards = np.array(folder.actions[steps]), np.array(folder.rewards[steps])
        return Episode(frames, actions, rewards, End(self.ends[index]), int(self.iterations[index]))

    def check_episodes(self, episode: NDArray[np.int64]) -> None:
        """Check the actions, rewards and chunk records of episodes the first time that they are read."""
        new = self._unchecked[episode]
        if new.any():
            for number in np.unique(episode[new]):
                self.folders[self._folder_of[number]].check(int(self._record_of[number]))
                self._unchecked[number] = False

    def _gather(self, name: str, episode: NDArray[np.int64], step: NDArray[np.int64]) -> Array:
        self.check_episodes(episode)
        index = self._first_of[episode] + step
        if len(self.folders) == 1:
            return np.asarray(getattr(self.folders[0], name)[index])
        folder_of = self._folder_of[episode]
        out = np.empty(index.shape, fmt.ACTION if name == "actions" else fmt.REWARD)
        for number, folder in enumerate(self.folders):
            here = folder_of == number
            out[here] = getattr(folder, name)[index[here]]
        return out

    def _copy_frames(self, episode: int, begin: int, out: Array, chunks: dict[tuple[int, int], Array]) -> None:
        """Fill `out` with consecutive frames of an episode from frame `begin` on; `chunks` holds decoded ones."""
        folder, record = self.folders[self._folder_of[episode]], int(self._record_of[episode])
        size = folder.manifest.chunk_frames
        done = 0
        while done < len(out):
            number, offset = divmod(begin + done, size)
            chunk = chunks.get((episode, number))
            if chunk is None:
                chunk = chunks[episode, number] = folder.read_chunk(record, number)
            part = chunk[offset : offset + len(out) - done]
            out[done : done + len(part)] = part
            done += len(part)


def open_distinct(paths: Sequence[Path], flag: str) -> Dataset:
    """Open the folders that a flag names; two with the same episodes are refused: they would count twice."""
    with given_as(flag) if flag.startswith("--") else nullcontext():  # what stands alone needs no name
        data = open_dataset(*paths)
    seen: dict[str, Path] = {}
    for folder in data.folders:
        same = seen.get(folder.manifest.checksum)
        if same is not None:
            raise UserError(f"{flag}: {folder.path} holds the same episodes as {same}, expected others")
        seen[folder.manifest.checksum] = folder.path
    return data


def open_dataset(*paths: Path | str) -> Dataset:
    """Open one or several data set folders as one data set. Takes no time and little memory at any size."""
    if not paths:
        raise UserError("no data set given")
    folders = [Folder(Path(path)) for path in paths]
    for folder in folders:
        if folder.interrupted:
            state = "is being written" if locked(folder.path) else "was interrupted while it was written"
            log.warning("%s: %s; it has %d complete episodes", folder.path, state, folder.manifest.episodes)
    return Dataset(folders)
