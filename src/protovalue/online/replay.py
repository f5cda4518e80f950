"""Replay memory of many seeds: each observation stored once, in a ring per seed, on memory or on a mapped folder."""

import itertools
import os
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protovalue.errors import UserError
from protovalue.files import make_folder, naming, open_file, reading, write_all
from protovalue.online.slots import GOING_ON, LAST, TERMINATED, TRUNCATED

Array = NDArray[Any]
Index = NDArray[np.int64]

BLOCK = 256  # slots under one checksum: few enough that those at both ends of the window cost little at a checkpoint


@dataclass(frozen=True)
class ReplayBatch:
    """n-step transitions of S seeds, B each."""

    obs: Array
    """(S, B, *item_shape), or (S, B, stack, *item_shape) where there is a stack."""
    action: Index
    """(S, B)"""
    reward: NDArray[np.float32]
    """(S, B) sum over the steps of gamma^j r_j."""
    discount: NDArray[np.float32]
    """(S, B) gamma^steps, 0 where the episode terminated within them."""
    next_obs: Array
    """As `obs`: n steps later, or at the episode's end if that comes first."""
    slot: Index
    """(S, B) the slot that the transition starts in."""


@dataclass(frozen=True)
class Layout:
    """What one slot of a replay holds."""

    item_shape: tuple[int, ...]
    dtype: Any
    num_actions: int
    stack: int | None = None
    """Items in an observation; None where an item is a whole one."""
    reward_dtype: Any = np.float32

    @property
    def arrays(self) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
        """Return type and shape by name."""
        action = np.uint8 if self.num_actions <= 64 else np.uint16  # times 4, plus the kind of the slot
        arrays: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {
            "items": (np.dtype(self.dtype), self.item_shape),
            "codes": (np.dtype(action), ()),
            "rewards": (np.dtype(self.reward_dtype), ()),
        }
        if self.stack is not None:
            arrays["ages"] = (np.dtype(np.uint8), ())  # frames before this one in its episode, at most 255
        return arrays

    @property
    def step_bytes(self) -> int:
        """Memory of one slot."""
        return sum(dtype.itemsize * int(np.prod(shape, dtype=int)) for dtype, shape in self.arrays.values())


class Replay:
    """A ring of slots for each of S seeds. All seeds add one transition at a time, together.

    A slot has an observation ("item": features, or the newest frame of a stack), and the action, the reward and the
    kind of the transition that starts there. Its next observation is the next slot's. A truncated episode's final
    observation takes a slot of its own that no transition starts in; a terminated one's is never needed, so not stored.
    The newest slot is open: it has its item but no action yet.

    Slots are numbered from 0 for ever; slot i lies at i mod `slots`. The newest `capacity` are sampled from. There are
    `slack` more of them than that, so that what was there at a checkpoint is still there when the process is killed.
    """

    def __init__(
        self,
        seeds: int,
        capacity: int,
        layout: Layout,
        slack: int = 0,
        folder: Path | None = None,
        reserve: int = 0,
    ) -> None:
        """Make an empty replay: in memory, or mapped to files in `folder` with room on the disk for `reserve` slots."""
        from protovalue.online import compiled  # here and not above, because it imports numba

        self.seeds, self.capacity, self.stack, self.slack = seeds, capacity, layout.stack, slack
        self.slots = capacity + slack + 1
        self._types, self._reserve = layout.arrays, min(reserve, self.slots)
        self._num_actions = layout.num_actions
        self._mapped = folder is not None
        self.arrays = {name: self._allocate(name, folder) for name in self._types}
        self.written = np.zeros(seeds, np.int64)  # closed slots; the open one has this number
        self._saved = np.zeros(seeds, np.int64)  # slots before this one are on disk
        self._sums: dict[tuple[str, int, int], int] = {}  # of whole blocks, by array, seed and first slot
        self._rows = np.arange(seeds)
        self._first_at = self._rows[:, None] * self.slots  # (S, 1) where a seed's ring begins in the flat arrays
        self._flat = {name: array.reshape(seeds * self.slots, *array.shape[2:]) for name, array in self.arrays.items()}
        self._compiled = compiled
        self.plain = {name: compiled.bits(array) for name, array in self.arrays.items()}  # for compiled functions
        self._bytes = self.plain["items"].reshape(seeds, self.slots, -1).view(np.uint8)
        self._ages = self.plain.get("ages", np.zeros((seeds, 0), np.uint8))

    def begin(self, items: Array) -> None:
        """Open a slot with the first observation of an episode, for every seed."""
        at = self.written % self.slots
        self.arrays["items"][self._rows, at] = items
        if self.stack is not None:
            self.arrays["ages"][self._rows, at] = 0

    def add(
        self,
        actions: Array,
        rewards: Array,
        terminated: NDArray[np.bool_],
        truncated: NDArray[np.bool_],
        next_items: Array,
        final_items: Array,
    ) -> None:
        """Close the open slots with a transition each and open the next ones.

        Args:
            actions: (S,).
            rewards: (S,).
            terminated: (S,).
            truncated: (S,), never together with terminated.
            next_items: (S, *item_shape) of the observations to act on next, the first of a new episode at an end.
            final_items: (S, *item_shape); row s is the final observation where seed s was truncated, else anything.
        """
        following = self._as_bytes(next_items)
        final = following if final_items is next_items else self._as_bytes(final_items)
        learned = self._compiled.bits(np.asarray(rewards, self._types["rewards"][0]))
        self._compiled.store(
            self._bytes, self.plain["codes"], self.plain["rewards"], self._ages, self.written,
            actions, learned, terminated, truncated, following, final,
        )  # fmt: skip

    def _as_bytes(self, items: Array) -> Array:
        return np.ascontiguousarray(items, self._types["items"][0]).reshape(self.seeds, -1).view(np.uint8)

    def cut(self) -> None:
        """Call the episodes under way truncated here; `begin` must follow. For environments that had to start anew."""
        for s in range(self.seeds):
            last = int(self.written[s]) - 1
            code = int(self.arrays["codes"][s, last % self.slots])
            if last >= 0 and code % 4 == GOING_ON:
                self.arrays["codes"][s, last % self.slots] = code // 4 * 4 + TRUNCATED
                self.arrays["codes"][s, (last + 1) % self.slots] = LAST
                self._saved[s] = min(self._saved[s], last)
                self._sums.pop(("codes", s, last // BLOCK * BLOCK), None)
                self.written[s] += 1

    def window(self, n_step: int) -> tuple[Index, Index]:
        """Return first and end (S,) of the slots that n-step transitions can start in.

        All n steps must have been taken, and the frames before the first must still be there for its stack.
        """
        first = np.maximum(self.written - self.capacity, 0)
        if self.stack is not None:
            first = np.where(first > 0, first + self.stack - 1, 0)
        return first, self.written - n_step + 1

    @property
    def unsaved(self) -> int:
        """Slots written since the last `save`, of the seed with most of them."""
        return int((self.written - self._saved).max())

    def kind(self, slot: Index) -> Array:
        """Return what the slots (S, ...) of the seeds are: one of GOING_ON, TERMINATED, TRUNCATED, LAST."""
        return self._take("codes", slot) % 4

    def sample(self, uniform: NDArray[np.float64], n_step: int, redraw: Callable[[int, int], Array]) -> Index:
        """Choose slots (S, B) uniformly among those that transitions start in.

        Args:
            uniform: numbers in [0, 1) (S, B).
            n_step: steps of a transition.
            redraw: gives new numbers (S, B) for (attempt, B), for the few that met a slot without a transition.
        """
        first, end = self.window(n_step)
        slot: Index = np.empty(uniform.shape, np.int64)
        if self._compiled.choose(self.plain["codes"], first, end, uniform, slot) == 0:
            return slot
        fresh, attempt = np.empty_like(slot), 0
        while (wrong := self.kind(slot) == LAST).any():
            self._compiled.choose(self.plain["codes"], first, end, redraw(attempt, slot.shape[1]), fresh)
            slot = np.where(wrong, fresh, slot)
            attempt += 1
        return slot

    def batch(self, slot: Index, n_step: int, gamma: float) -> ReplayBatch:
        """Return the n-step transitions that start in the slots (S, B); sums stop at the end of an episode."""
        code = self._take("codes", slot)
        kind, action = code % 4, (code // 4).astype(np.int64)
        reward = self._take("rewards", slot).astype(np.float32)
        steps = np.ones_like(slot)
        terminal = kind == TERMINATED
        going_on = kind == GOING_ON
        for j in range(1, n_step):
            kind = self._take("codes", slot + j) % 4
            reward += np.where(going_on, np.float32(gamma**j) * self._take("rewards", slot + j), np.float32(0))
            steps += going_on
            terminal |= going_on & (kind == TERMINATED)
            going_on &= kind == GOING_ON
        discount = np.where(terminal, 0.0, np.power(gamma, steps)).astype(np.float32)
        size = slot.shape[1]
        # A terminated episode has no next observation here: any will do, as its discount is 0.
        items = self._items(np.concatenate([slot, slot + np.where(terminal, 0, steps)], axis=1))  # (S, 2 B, ...)
        return ReplayBatch(items[:, :size], action, reward, discount, items[:, size:], slot)

    def save(self, folder: Path) -> None:
        """Bring the files in `folder` up to date: only what is new is written. Durable when it returns."""
        for name, array in self.arrays.items():
            if isinstance(array, np.memmap):
                with naming(folder / f"{name}.bin"):
                    array.flush()
                continue
            with _growing(folder / f"{name}.bin") as file, naming(folder / f"{name}.bin"):
                size = array[0, 0].nbytes
                for s in range(self.seeds):
                    for start, end in self._spans(self._saved[s], self.written[s] + 1):
                        os.lseek(file, (s * self.slots + start) * size, os.SEEK_SET)
                        write_all(file, memoryview(array[s, start:end].tobytes()))
                os.fsync(file)
        self._saved = self.written.copy()

    def sums(self) -> dict[str, Array]:
        """Return checksums of all that `load` will read, for the checkpoint that goes with what `save` wrote.

        (arrays, S, parts) CRC-32: the open slot, then the window's slots from one multiple of BLOCK to the next. Those
        of whole blocks are remembered, so that only what is new is summed.
        """
        table = np.zeros((len(self.arrays), self.seeds, self.capacity // BLOCK + 4), np.uint32)
        known, self._sums = self._sums, {}
        for i, name in enumerate(self.arrays):
            for s in range(self.seeds):
                for j, (first, end) in enumerate(self._parts(s)):
                    key = name, s, first
                    crc = known[key] if key in known and j else self._sum(name, s, first, end)
                    if end - first == BLOCK and j:
                        self._sums[key] = crc
                    table[i, s, j] = crc
        return {"replay.sums": table, "replay.block": np.array([BLOCK])}

    def _parts(self, s: int) -> list[tuple[int, int]]:
        """Split what a checkpoint needs of a seed's ring into slots first .. end - 1: the open one, then the window."""
        written = int(self.written[s])
        oldest = max(0, written - self.capacity)
        bounds = [oldest, *range((oldest // BLOCK + 1) * BLOCK, written, BLOCK), written]
        return [(written, written + 1), *(part for part in itertools.pairwise(bounds) if part[0] < part[1])]

    def _sum(self, name: str, s: int, first: int, end: int) -> int:
        """Return the CRC-32 of slots first .. end - 1; what an open slot has of a transition is nothing yet."""
        if first == self.written[s] and name in ("codes", "rewards"):
            return 0
        crc = 0
        for start, stop in self._spans(first, end):
            crc = zlib.crc32(self.arrays[name][s, start:stop].data, crc)
        return crc

    def _check(self, folder: Path, sums: Array) -> None:
        """Compare what was read with the checksums of its checkpoint."""
        for i, name in enumerate(self.arrays):
            for s in range(self.seeds):
                for j, (first, end) in enumerate(self._parts(s)):
                    crc = self._sum(name, s, first, end)
                    if crc != int(sums[i, s, j]):
                        raise UserError(
                            f"{folder / f'{name}.bin'}: damaged: the slots {first:,} to {end - 1:,} of the seed "
                            f"number {s} do not match their checksum; the run cannot go on from here"
                        )
                    if end - first == BLOCK and j:
                        self._sums[name, s, first] = crc

    def _check_actions(self, folder: Path) -> None:
        """Refuse actions that there are not, whatever the checksums say: the networks have no value for them."""
        for s in range(self.seeds):
            for first, end in self._parts(s)[1:]:
                for start, stop in self._spans(first, end):
                    action = int(self.arrays["codes"][s, start:stop].max()) // 4
                    if action >= self._num_actions:
                        raise UserError(
                            f"{folder / 'codes.bin'}: damaged: found action {action} among the slots of the seed "
                            f"number {s}, expected 0 to {self._num_actions - 1}"
                        )

    def _undo_cut(self) -> None:
        """Take back what `cut` did in a process that was then killed: it may have reached the files."""
        last = self.written - 1
        rows = self._rows[last >= 0]
        at = rows, last[rows] % self.slots
        codes = self.arrays["codes"][at]
        self.arrays["codes"][at] = np.where(codes % 4 == TRUNCATED, codes // 4 * 4 + GOING_ON, codes)

    def load(self, folder: Path, written: list[int], saved: Mapping[str, Array] | None = None) -> None:
        """Take back what `save` wrote when `written` was the count of closed slots.

        `saved` has what `sums` returned then, in a checkpoint of a version that wrote it.
        """
        self.written[:] = written
        self._saved = self.written.copy()
        for name, array in self.arrays.items():
            path, size = folder / f"{name}.bin", array[0, 0].nbytes
            if not path.is_file():
                raise UserError(f"{path}: missing: the run cannot go on without its replay")
            needed = max((self._end(s) + s * self.slots) * size for s in range(self.seeds))
            if path.stat().st_size < needed:
                raise UserError(f"{path}: damaged: found {path.stat().st_size:,} bytes, expected {needed:,} or more")
            if self._mapped:
                continue
            with reading(path) as file:
                for s in range(self.seeds):
                    oldest = max(0, self.written[s] - self.capacity)
                    for start, end in self._spans(oldest, self.written[s] + 1):
                        file.seek((s * self.slots + start) * size)
                        data = file.read((end - start) * size)
                        array[s, start:end] = np.frombuffer(data, array.dtype).reshape(array[s, start:end].shape)
        self._undo_cut()
        if saved is not None and "replay.sums" in saved:
            if saved["replay.block"].tolist() != [BLOCK]:
                raise UserError(f"{folder}: found checksums of {saved['replay.block']} slots, expected {BLOCK}")
            self._check(folder, saved["replay.sums"])
        self._check_actions(folder)

    def _end(self, s: int) -> int:
        """One more than the highest place of a seed's ring that holds anything."""
        return int(min(self.written[s] + 1, self.slots))

    def _spans(self, first: int, end: int) -> Iterator[tuple[int, int]]:
        """Split the slots first .. end - 1, at least one, into at most two runs of places in the ring."""
        first = max(first, end - self.slots)
        start, stop = int(first % self.slots), int((end - 1) % self.slots) + 1
        if start < stop:
            yield start, stop
        else:
            yield start, self.slots
            yield 0, stop

    def _take(self, name: str, slot: Index) -> Array:
        return self._flat[name].take(self._first_at + slot % self.slots, axis=0)

    def _items(self, slot: Index) -> Array:
        """Return items (S, B, ...), or stacks of them (S, B, stack, ...), zero before an episode's first."""
        if self.stack is None:
            return self._take("items", slot)
        back = np.arange(self.stack - 1, -1, -1)  # oldest first
        seeds, size = slot.shape
        at = (slot[..., None] - back).reshape(seeds, size * self.stack)
        stacks = self._take("items", at).reshape(seeds, size, self.stack, *self._types["items"][1])
        before = back > self._take("ages", slot)[..., None]  # (S, B, stack) frames before the episode's first
        if before.any():
            stacks[before] = 0
        return stacks

    def _allocate(self, name: str, folder: Path | None) -> Array:
        dtype, shape = self._types[name]
        full = (self.seeds, self.slots, *shape)
        if folder is None:
            try:
                return np.zeros(full, dtype)
            except MemoryError:
                raise UserError(
                    f"--replay-size: no memory for {self.capacity:,} steps of {self.seeds} seeds; "
                    "choose a smaller one, or --replay-dir to map it to files"
                ) from None
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{name}.bin"
        size = int(np.prod(full)) * dtype.itemsize
        with os.fdopen(open_file(path, os.O_RDWR | os.O_CREAT), "r+b") as file, naming(path):
            if os.fstat(file.fileno()).st_size < size:
                file.truncate(size)
            if self._reserve and hasattr(os, "posix_fallocate"):  # a mapped page that finds no room kills the process
                row = size // (self.seeds * self.slots)
                for s in range(self.seeds):
                    os.posix_fallocate(file.fileno(), s * self.slots * row, self._reserve * row)
            return np.memmap(file, dtype, "r+", shape=full)


class _growing:  # noqa: N801
    """A file open for writing anywhere in it, without truncating it."""

    def __init__(self, path: Path) -> None:
        make_folder(path.parent)
        self._descriptor = open_file(path, os.O_WRONLY | os.O_CREAT)

    def __enter__(self) -> int:
        return self._descriptor

    def __exit__(self, *error: object) -> None:
        os.close(self._descriptor)


def check_room(needed: int, folder: Path | None, what: str) -> None:
    """Refuse a replay that cannot fit into the memory, or on the disk of `folder`, that is available."""
    if folder is None:
        available, where, other = available_memory(), "memory", ", or --replay-dir to map it to files"
    else:
        existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        available, where, other = shutil.disk_usage(existing).free, f"free space of {folder}", ""
    if needed > available:
        raise UserError(
            f"--replay-size: {what} needs {gibibytes(needed)}, found {gibibytes(available)} of {where}; "
            f"choose a smaller one or fewer seeds{other}"
        )


def available_memory() -> int:
    """Return the memory that can be used without swapping, in bytes."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def gibibytes(size: int) -> str:
    """Return a size as text."""
    return f"{size / 2**30:.2f} GiB" if size >= 2**28 else f"{size / 2**20:.1f} MiB"
