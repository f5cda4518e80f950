"""Importing RL Unplugged's Atari episodes: the raw gzip TFRecord shards, and TFDS's tfrecord and array_record files.

A record is an episode of T steps. Step t has observation t, the action taken there, and the reward and discount that
followed; the observation after the last action is not in the file (docs/data.md has the evidence). So an episode that
terminated keeps its T actions, and its last frame stands in for the one that is missing: nothing is ever bootstrapped
from it. One that was truncated gives up its last action, whose true next frame a learner would bootstrap from.
"""

import io
import re
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from protovalue.data.array_record import read_array_records
from protovalue.data.config import ImportRluConfig
from protovalue.data.dataset import Dataset
from protovalue.data.format import End, Manifest
from protovalue.data.importing import (
    WAITING_BYTES,
    Encoded,
    ImportPlan,
    Pending,
    Tally,
    Workers,
    atari_manifest,
    check_actions,
    clean_rewards,
    cpu_count,
    encode_chunks,
    game_of,
    note_damage,
    report,
    run_import,
    select,
)
from protovalue.data.sources import Ahead, DamagedError, Gunzip, SourceFile, find_sources
from protovalue.data.splits import Split, Thinning
from protovalue.data.tfrecord import Feature, decode_feature, parse_example, read_records
from protovalue.errors import UserError

_SHARD = r"-\d{5}-of-\d{5}$"  # how the names of all of the layouts' files end
_SUCH_AS = "run_1-00000-of-00050"
_PUBLISHED = re.compile(r"run_\d+-(\d{5})-of-000(?:49|50)$")  # one shard per iteration
_TFDS = re.compile(r"-checkpoint_(\d+)\.(?:array_record|tfrecord)-\d{5}-of-\d{5}$")
_RUN = re.compile(r"run_(\d+)")


@dataclass(frozen=True)
class ExampleKeys:
    """The keys of an episode's parts in its Example, in one of the published layouts."""

    observations: str
    actions: str
    rewards: str
    ending: str
    """Discounts, 0 after a terminal step; or flags that are 1 at a terminal one."""
    terminal: float
    """The last value of `ending` in an episode that terminated."""
    iteration: str


RAW = ExampleKeys("observations", "actions", "clipped_rewards", "discounts", 0.0, "checkpoint_idx")
TFDS = ExampleKeys("steps/observation", "steps/action", "steps/reward", "steps/is_terminal", 1.0, "checkpoint_id")


def import_rlu(config: ImportRluConfig, quiet: bool = False) -> Dataset:
    """Import the episodes that `config` selects, or continue; return the data set."""
    files = sorted(find_sources(config.source, _SHARD, _SUCH_AS), key=lambda file: file.url)
    chosen = select(config, "rlu", files, _run_of, _iteration_of)
    manifest = atari_manifest(game_of(files, config.game), config.actions)
    skip = config.skip_damaged
    read = partial(_read_file, manifest=manifest, split=chosen.split, proportion=config.proportion, skip=skip)
    workers = config.workers or cpu_count()
    return run_import(ImportPlan(config.out, manifest, chosen.source, chosen.files, read, workers, skip), quiet)


def import_rlu_command(config: ImportRluConfig) -> None:
    """Import, and say what there is now."""
    report(import_rlu(config), config.out)


def _run_of(file: SourceFile) -> int | None:
    numbers = [int(match.group(1)) for part in file.parts if (match := _RUN.search(part))]
    return numbers[-1] if numbers else None


def _iteration_of(file: SourceFile) -> int | None:
    """Return the iteration that a file of the published layouts holds, by its name; None for any other name."""
    match = _PUBLISHED.search(file.name) or _TFDS.search(file.name)
    return int(match.group(1)) if match else None


def _read_file(
    file: SourceFile, tally: Tally, workers: Workers, manifest: Manifest, split: Split, proportion: float, skip: bool
) -> Generator[Pending, None, None]:
    """Yield the selected episodes of one file; the workers decode them."""
    by_name = _iteration_of(file)
    thinning = Thinning(proportion)
    with Ahead(_records(file, tally, skip), workers.window, lambda item: len(item[1]), WAITING_BYTES) as records:
        for where, record in records:
            iteration = _iteration_in(record, where)
            if split.takes(iteration if by_name is None else by_name) and thinning.take(iteration):
                yield workers.submit(encode_record, record, where, manifest)


def _records(file: SourceFile, tally: Tally, skip: bool) -> Iterator[tuple[str, bytes]]:
    """Yield every good record with the words that name its place."""

    def on_damage(error: DamagedError) -> None:
        note_damage(error, tally, skip)

    if ".array_record-" in file.name:
        try:
            for number, record in read_array_records(file):
                tally.read += len(record)
                yield f"{file.url}: record {number}", record
        except DamagedError as error:
            on_damage(error)
        return
    with file.open() as probe:
        compressed = probe.read(2) == b"\x1f\x8b"
    with file.open() as stream:
        for offset, record in read_records(Gunzip(stream) if compressed else stream, file.url, on_damage):
            tally.read = stream.position
            yield f"{file.url}: record at byte {offset}", record


def _keys_of(features: dict[str, memoryview], where: str) -> ExampleKeys:
    """Return the keys that a record uses; one with other keys is a UserError."""
    keys = TFDS if any(name.startswith("steps/") for name in features) else RAW
    for key in (keys.observations, keys.actions, keys.rewards, keys.ending, keys.iteration):
        if key not in features:
            found = ", ".join(sorted(features)) or "none"
            raise UserError(f"{where}: the key {key!r} is missing; found {found}")
    return keys


def _parse(record: bytes, where: str) -> tuple[ExampleKeys, dict[str, memoryview]]:
    try:
        features = parse_example(record)
    except (ValueError, UnicodeDecodeError) as error:
        raise UserError(f"{where}: not a tf.train.Example: {error}") from error
    return _keys_of(features, where), features


def _values(features: dict[str, memoryview], key: str, where: str) -> Feature:
    try:
        return decode_feature(features[key])
    except ValueError as error:
        raise UserError(f"{where}: the key {key!r} is damaged: {error}") from error


def _numbers(features: dict[str, memoryview], key: str, where: str, kinds: str = "if") -> NDArray[Any]:
    """Return a feature's numbers, of a kind in `kinds`: i for whole ones, f for others."""
    values = _values(features, key, where)
    if isinstance(values, list):
        found = "text" if values else "nothing"
        raise UserError(f"{where}: the key {key!r} holds {found}, expected numbers")
    if values.dtype.kind not in kinds:
        raise UserError(f"{where}: the key {key!r} holds {values.dtype} numbers, expected whole ones")
    return values


def _iteration_in(record: bytes, where: str) -> int:
    keys, features = _parse(record, where)
    values = _numbers(features, keys.iteration, where, "i")
    if len(values) != 1:
        raise UserError(f"{where}: the key {keys.iteration!r} holds {len(values)} numbers, expected 1")
    number = int(values[0])
    if not 0 <= number < 1 << 31:
        raise UserError(f"{where}: found {keys.iteration} {number}, expected the number of an iteration")
    return number


def encode_record(record: bytes, where: str, manifest: Manifest) -> Encoded:
    """Turn one record into an episode of the data set; runs in a worker."""
    keys, features = _parse(record, where)
    pngs = _values(features, keys.observations, where)
    actions = _numbers(features, keys.actions, where, "i")
    rewards = _numbers(features, keys.rewards, where)
    ending = _numbers(features, keys.ending, where)
    if not isinstance(pngs, list):
        raise UserError(f"{where}: the key {keys.observations!r} holds numbers, expected images")
    steps = len(pngs)
    for name, values in ((keys.actions, actions), (keys.rewards, rewards), (keys.ending, ending)):
        if len(values) != steps:
            raise UserError(f"{where}: found {len(values)} {name}, expected {steps}, one per observation")
    terminated = steps > 0 and ending[-1] == keys.terminal
    kept = steps if terminated else max(steps - 1, 0)
    stored, counts = clean_rewards(rewards[:kept], clip=True)
    return Encoded(
        encode_chunks(manifest, _frames(pngs, terminated, where, manifest)),
        check_actions(actions[:kept], manifest.num_actions, where),
        stored,
        End.TERMINATED if terminated else End.TRUNCATED,
        _iteration_in(record, where),
        counts,
    )


def _frames(pngs: list[bytes], terminated: bool, where: str, manifest: Manifest) -> Iterator[NDArray[np.uint8]]:
    """Yield the episode's frames in groups of a chunk's size; only one group is decoded at a time."""
    order = [*range(len(pngs)), len(pngs) - 1] if terminated else list(range(len(pngs)))
    shape = manifest.frame_shape
    for first in range(0, len(order), manifest.chunk_frames):
        pixels = [_decode(pngs[i], i, where, shape) for i in order[first : first + manifest.chunk_frames]]
        yield np.frombuffer(b"".join(pixels), np.uint8).reshape(-1, *shape)


def _decode(png: bytes, number: int, where: str, shape: tuple[int, ...]) -> bytes:
    """Return the pixels of a grey image, row by row."""
    try:
        with Image.open(io.BytesIO(png), formats=["PNG"]) as image:  # reads the head only
            found = (image.mode, image.height, image.width)
            pixels = image.tobytes() if found == ("L", *shape) else None  # cheaper than by way of an array
    except Exception as error:  # Pillow raises many kinds for a damaged image
        reason = " ".join(str(error).split())
        raise DamagedError(f"{where}: observation {number} is not a PNG image: {reason}") from error
    if pixels is None:
        mode, height, width = found
        expected = f"expected {shape[0]}x{shape[1]} L (8-bit grey)"
        raise UserError(f"{where}: observation {number}: found {height}x{width} {mode}, {expected}")
    return pixels
