"""Importing the DQN replay data: Dopamine's replay memory, saved once per million steps as gzip of NumPy arrays.

The memory is a ring of single frames: slot i has an observation, the action taken there, and the reward and terminal
flag that followed. Three all-zero slots come before every episode. Where the ring was being written when it was saved,
what lies on the two sides does not belong together; `add_count` says where that is, `invalid_range` must agree.

What a file does not hold is left out rather than made up: the first piece of an episode that began before the file
(its first stacks would lack their history), and the last action of an episode that goes on after it (its next frame).
"""

import ast
import math
import re
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protovalue.data.config import ImportDqnReplayConfig
from protovalue.data.dataset import Dataset
from protovalue.data.format import End, Manifest
from protovalue.data.importing import (
    Encoded,
    ImportPlan,
    Pending,
    Tally,
    Workers,
    atari_manifest,
    check_actions,
    clean_rewards,
    encode_chunks,
    game_of,
    report,
    run_import,
    select,
)
from protovalue.data.sources import Ahead, DamagedError, Gunzip, SourceFile, find_sources, sibling
from protovalue.data.splits import Thinning
from protovalue.errors import UserError
from protovalue.schema import checked, require

_OBSERVATION = re.compile(r"^\$store\$_observation_ckpt\.(\d+)\.gz$")
PADDING = 3  # all-zero slots before an episode: Dopamine's stack of 4 less one
TIME_LIMIT = 27_000  # agent steps after which Dopamine ends an episode, without a mark of its own
_BLOCK_FRAMES = 256  # decompressed at a time: 1.8 MB

# What the files may announce; they are compressed, so that their sizes say nothing.
LARGEST_RING = 10_000_000  # slots: the published memories have a million, and 16 bytes a slot are held at once
MOST_INVALID = 1_024  # slots around the cursor: Dopamine writes the stack and the steps of a return, 5
_HEAD_BYTES = 10_000  # of a NumPy array's head: NumPy's own limit


@dataclass(frozen=True)
class Piece:
    """Consecutive slots of one episode, from its first frame on."""

    first: int
    slots: int
    end: End
    padded: bool
    """Whether the all-zero slots come before it; not after a time-out that the memory did not notice."""

    @property
    def transitions(self) -> int:
        """Transitions with a next frame; a terminal one needs none."""
        return self.slots if self.end == End.TERMINATED else self.slots - 1


def find_pieces(terminal: NDArray[Any], add_count: int, limit: int = TIME_LIMIT) -> tuple[list[Piece], int]:
    """Return the episodes of a ring with these terminal flags, in the order of the slots, and the slots left out.

    Until the ring is full, slot 0 is the beginning of the run. Later each side of the cursor begins in the middle of
    some episode, and everything up to the side's first terminal flag is left out. An episode of `limit` steps ended
    by the time limit, whether it carries a terminal flag or runs on into the next one.
    """
    capacity = len(terminal)
    cursor = add_count % capacity
    sides = [(0, add_count, True)] if add_count <= capacity else [(0, cursor, False), (cursor, capacity, False)]
    pieces: list[Piece] = []
    left_out = 0
    ends = np.flatnonzero(terminal)
    for start, stop, from_beginning in sides:
        inside = ends[(ends >= start) & (ends < stop)]
        if from_beginning:
            first = start
        else:
            first = int(inside[0]) + 1 if len(inside) else stop
            inside = inside[1:]
            left_out += first - start
        for last in [*inside.tolist(), None]:
            first += PADDING
            until = stop if last is None else last + 1
            padded = True
            while until - first > limit:
                pieces.append(Piece(first, limit, End.TRUNCATED, padded))
                first, padded = first + limit, False
            slots = until - first
            if slots > 0:
                end = End.CUT if last is None else End.TRUNCATED if slots == limit else End.TERMINATED
                pieces.append(Piece(first, slots, end, padded))
            first = until
    return pieces, left_out


def import_dqn_replay(config: ImportDqnReplayConfig, quiet: bool = False) -> Dataset:
    """Import the episodes that `config` selects, or continue; return the data set."""
    found = find_sources(config.source, _OBSERVATION.pattern, "$store$_observation_ckpt.0.gz")
    files = sorted(found, key=lambda file: (_run_name(file), _number(file)))
    chosen = select(config, "dqn-replay", files, _run_of, _number)
    manifest = atari_manifest(game_of(files, config.game), config.actions)
    read = partial(_read_iteration, manifest=manifest, proportion=config.proportion)
    return run_import(
        ImportPlan(config.out, manifest, chosen.source, chosen.files, read, 1, config.skip_damaged), quiet
    )


def import_dqn_replay_command(config: ImportDqnReplayConfig) -> None:
    """Import, and say what there is now."""
    report(import_dqn_replay(config), config.out)


def _number(file: SourceFile) -> int:
    match = _OBSERVATION.match(file.name)
    if match is None:
        raise UserError(f"{file.url}: found {file.name}, expected $store$_observation_ckpt.N.gz or a folder of them")
    return int(match.group(1))


def _run_name(file: SourceFile) -> str:
    """Return the folder above `replay_logs`: the number of the run in the published layout."""
    folders = [part for part in file.parts[:-1] if part != "replay_logs"]
    return folders[-1] if folders else ""


def _run_of(file: SourceFile) -> int | None:
    name = _run_name(file)
    return int(name) if name.isdecimal() else None


def _read_iteration(
    file: SourceFile, tally: Tally, workers: Workers, manifest: Manifest, proportion: float
) -> Generator[Pending, None, None]:
    """Yield the episodes of one iteration. Decompression runs in a thread, compression here: both free the lock."""
    number = _number(file)
    with file.open() as stream:
        header = _Header(Gunzip(stream), file.url)
        capacity = header.shape[0] if header.shape else 0
        header.require((capacity, *manifest.frame_shape), "uint8")
        if not 1 <= capacity <= LARGEST_RING:
            raise UserError(f"{file.url}: found {capacity} slots, expected 1 to {LARGEST_RING}")
        stores = {
            name: _load(sibling(file, f"$store$_{name}_ckpt.{number}.gz"), (capacity,), kinds)
            for name, kinds in (("action", "iu"), ("reward", "f"), ("terminal", "iub"))
        }
        add_count = _load_add_count(file, number, capacity)
        pieces, left_out = find_pieces(stores["terminal"], add_count)
        tally.counts["headless_steps"] += left_out
        thinning = Thinning(proportion)

        def blocks() -> Iterator[bytes]:
            while block := header.data.read(_BLOCK_FRAMES * header.row_bytes):
                tally.read = stream.position
                yield block

        with Ahead(blocks()) as ahead:
            frames = _Frames(ahead, capacity, manifest.frame_shape, file.url)
            for piece in pieces:
                if not thinning.take(number):
                    continue
                where = f"{file.url}: episode at slot {piece.first}"
                _check_padding(frames, piece, stores, where)
                actions = check_actions(_rows(stores["action"], piece), manifest.num_actions, where)
                rewards, counts = clean_rewards(_rows(stores["reward"], piece), clip=True)
                chunks = encode_chunks(manifest, _groups(frames, piece, manifest.chunk_frames))
                yield Encoded(chunks, actions, rewards, piece.end, number, counts)
            frames.finish()


def _rows(store: NDArray[Any], piece: Piece) -> NDArray[Any]:
    return store[piece.first : piece.first + piece.transitions]


def _check_padding(frames: "_Frames", piece: Piece, stores: dict[str, NDArray[Any]], where: str) -> None:
    """Check that the slots before an episode are the all-zero ones that do not belong to it."""
    if not piece.padded:
        return
    first = piece.first - PADDING
    frames.skip_to(first)
    pixels = frames.take(PADDING)
    rows = slice(first, piece.first)
    if pixels.any() or any(np.any(store[rows] != 0) for store in stores.values()):
        raise UserError(f"{where}: found no {PADDING} all-zero slots before it, expected them in Dopamine's replay")


def _groups(frames: "_Frames", piece: Piece, size: int) -> Iterator[NDArray[np.uint8]]:
    """Yield an episode's frames in groups of a chunk's size; a terminal episode's last frame comes twice."""
    frames.skip_to(piece.first)
    twice = piece.end == End.TERMINATED
    for first in range(0, piece.slots, size):
        group = frames.take(min(size, piece.slots - first))
        if twice and len(group) < size:
            group, twice = np.concatenate([group, group[-1:]]), False
        yield group
    if twice:
        yield group[-1:]


class _Frames:
    """The observations of an iteration, taken in the order of their slots."""

    def __init__(self, blocks: Iterator[bytes] | Ahead[bytes], capacity: int, shape: tuple[int, ...], name: str):
        self._blocks, self._capacity, self._shape, self._name = iter(blocks), capacity, shape, name
        self._bytes = math.prod(shape)
        self._block = np.zeros((0, *shape), np.uint8)
        self._used = 0
        self.slot = 0

    def skip_to(self, slot: int) -> None:
        """Pass over frames up to a slot."""
        while self.slot < slot:
            self._advance(slot - self.slot)

    def finish(self) -> None:
        """Pass over what is left, up to the end, where gzip has its checksum."""
        self.skip_to(self._capacity)
        if next(self._blocks, None) is not None:
            raise UserError(f"{self._name}: found more than the {self._capacity} frames that it announces")

    def take(self, count: int) -> NDArray[np.uint8]:
        """Return the next frames."""
        parts = []
        while count:
            part = self._advance(count)
            parts.append(part)
            count -= len(part)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _advance(self, most: int) -> NDArray[np.uint8]:
        if self._used == len(self._block):
            data = next(self._blocks, b"")
            if len(data) % self._bytes or not data:
                raise DamagedError(
                    f"{self._name}: truncated: found {self.slot + len(data) // self._bytes} frames, "
                    f"expected {self._capacity}"
                )
            self._block = np.frombuffer(data, np.uint8).reshape(-1, *self._shape)
            self._used = 0
        part = self._block[self._used : self._used + most]
        self._used += len(part)
        self.slot += len(part)
        return part


@dataclass(frozen=True)
class _Fields:
    """What a NumPy array's head says."""

    descr: str
    fortran_order: bool
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        require(all(0 <= size < 1 << 62 for size in self.shape), "shape", self.shape, "sizes of 0 or more")


class _Header:
    """The head of a .npy stream: what `np.save` wrote, without reading the array. No pickles, no objects."""

    def __init__(self, data: Gunzip, name: str) -> None:
        self.data, self._name = data, name
        magic = data.read(8)
        if len(magic) < 8 or magic[:6] != b"\x93NUMPY" or magic[6] not in (1, 2, 3):
            raise UserError(f"{name}: not a NumPy array: it begins with {magic[:6]!r}")
        length = int.from_bytes(data.read(2 if magic[6] == 1 else 4), "little")
        if length > _HEAD_BYTES:
            found = f"found a head of {length} bytes, expected at most {_HEAD_BYTES}"
            raise UserError(f"{name}: damaged NumPy array: {found}")
        try:
            fields = ast.literal_eval(data.read(length).decode("latin-1").strip())
        except (ValueError, SyntaxError, MemoryError, RecursionError) as error:  # the last two: nested too deep
            raise UserError(f"{name}: damaged: the head of its NumPy array is not one") from error
        head = checked(_Fields, fields, f"{name}: the head of its NumPy array")
        if "O" in head.descr:
            raise UserError(f"{name}: found an array of objects, expected numbers")
        try:
            self.shape, self.dtype = head.shape, np.dtype(head.descr)
        except (TypeError, ValueError) as error:
            raise UserError(f"{name}: found numbers of type {head.descr[:20]!r}, expected one of NumPy's") from error
        if head.fortran_order and len(self.shape) > 1:
            raise UserError(f"{name}: found an array in Fortran order, expected C order")

    def require(self, shape: tuple[int, ...], kinds: str) -> None:
        """Check the shape, and the type by its name or by the letter of its kind."""
        good = self.dtype.name == kinds if len(kinds) > 3 else self.dtype.kind in kinds
        if self.shape != shape or not good:
            words = {"iu": "integers", "f": "floats", "iub": "flags", "iuf": "numbers"}.get(kinds, kinds)
            raise UserError(f"{self._name}: found {self.shape} {self.dtype.name}, expected {shape} {words}")

    @property
    def row_bytes(self) -> int:
        """Bytes of one entry along the first axis."""
        return math.prod(self.shape[1:]) * int(self.dtype.itemsize)


def _load(source: SourceFile, shape: tuple[int, ...] | None, kinds: str) -> NDArray[Any]:
    """Read a small array whole: of the given shape, or a row of at most `MOST_INVALID`."""
    with source.open() as stream:
        data = Gunzip(stream)
        header = _Header(data, source.url)
        if shape is None:
            shape = header.shape
            if len(shape) != 1 or shape[0] > MOST_INVALID:
                raise UserError(f"{source.url}: found {shape}, expected a row of at most {MOST_INVALID} numbers")
        header.require(shape, kinds)
        expected = math.prod(shape) * header.dtype.itemsize
        raw = data.read(expected)
        if len(raw) != expected:
            raise DamagedError(f"{source.url}: truncated: found {len(raw)} bytes of its array, expected {expected}")
        if data.read(1):
            raise UserError(f"{source.url}: found more bytes than its array's {expected}")
    return np.frombuffer(raw, header.dtype).reshape(header.shape)


def _load_add_count(file: SourceFile, number: int, capacity: int) -> int:
    """Read how many slots were ever written; the invalid range must have the cursor that follows from it."""
    source = sibling(file, f"add_count_ckpt.{number}.gz")
    add_count: int = _load(source, (), "iu").item()
    if add_count < 1:
        raise UserError(f"{source.url}: found {add_count}, expected the number of slots written")
    source = sibling(file, f"invalid_range_ckpt.{number}.gz")
    invalid = _load(source, None, "iuf")
    if add_count % capacity not in invalid:
        listed = ", ".join([f"{value:g}" for value in invalid[:8]] + ["..."] * (len(invalid) > 8))
        raise UserError(
            f"{source.url}: found {listed}, expected the cursor {add_count % capacity} of add_count {add_count} in it"
        )
    return add_count
