"""What every import shares: the order of the episodes, parallel work, progress, resuming, and the counts it reports."""

import contextlib
import logging
import multiprocessing
import os
import re
import threading
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from protovalue.data import format as fmt
from protovalue.data.collect import manifest_of
from protovalue.data.config import ImportAtariConfig
from protovalue.data.dataset import Dataset, Folder, open_dataset
from protovalue.data.format import End, Manifest
from protovalue.data.sources import DamagedError, SourceFile
from protovalue.data.splits import Split, check_iterations, check_runs, choose_split, numbers
from protovalue.data.writer import DatasetWriter
from protovalue.envs.atari import game_names
from protovalue.envs.registry import make
from protovalue.errors import UserError
from protovalue.interrupt import stop_on_interrupt
from protovalue.processes import end_with_parent, shielded
from protovalue.progress import ProgressBar
from protovalue.schema import checked, require

log = logging.getLogger(__name__)

STICKY = 0.25  # with which all of the public Atari data was recorded
WAITING_BYTES = 128 << 20  # of sources that wait to be decoded; one that is larger waits alone


@dataclass(frozen=True)
class Encoded:
    """An episode ready to be appended to a data set."""

    chunks: list[bytes]
    actions: NDArray[np.int32]
    rewards: NDArray[np.float32]
    end: End
    iteration: int = -1
    counts: dict[str, int] = field(default_factory=dict)
    """What was found and mended on the way, by name."""


Pending: TypeAlias = "Encoded | Future[Encoded]"


@dataclass
class Tally:
    """What an import counts besides episodes; it ends up in the provenance."""

    counts: Counter[str] = field(default_factory=Counter)
    read: int = 0  # bytes of the sources

    def state(self) -> dict[str, int]:
        """Return the counts that are not zero."""
        return {name: count for name, count in self.counts.items() if count}


@dataclass(frozen=True)
class Position:
    """Where an import starts reading again; kept in the provenance while it is under way."""

    file: int = 0
    """Number of a source file."""
    episodes: int = 0
    """Episodes of the files before it."""
    counts: dict[str, int] = field(default_factory=dict)
    """What was counted in them."""

    def __post_init__(self) -> None:
        require(self.file >= 0, "file", self.file, "0 or more")
        require(self.episodes >= 0, "episodes", self.episodes, "0 or more")


@dataclass(frozen=True)
class ImportPlan:
    """One import: what to read and what the data set is."""

    out: Path
    manifest: Manifest
    source: dict[str, Any]
    """Where it comes from and what was selected. A continued import must have the same."""
    files: Sequence[SourceFile]
    read: Callable[[SourceFile, Tally, "Workers"], Generator[Pending, None, None]]
    """Yields the selected episodes of one file, always the same ones in the same order."""
    workers: int
    skip_damaged: bool = False


class Workers:
    """Processes that encode episodes; with one worker the work is done here, at once."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._held = 0  # bytes that were handed over and are not done
        self._lock = threading.Lock()
        self._pool: ProcessPoolExecutor | None = None
        if count > 1:
            spawn = multiprocessing.get_context("spawn")  # a fork would copy the threads' locks
            self._pool = ProcessPoolExecutor(count, spawn, initializer=_begin_worker)

    @property
    def window(self) -> int:
        """Episodes under way at once: enough to keep every worker busy, few enough to bound the memory."""
        return 2 * self.count

    @property
    def full(self) -> bool:
        """Whether as many bytes are waiting as may."""
        return self._held >= WAITING_BYTES

    def submit(self, work: Callable[..., Encoded], *args: Any) -> Pending:
        """Do the work in a worker."""
        if self._pool is not None:
            size = sum(len(arg) for arg in args if isinstance(arg, bytes))
            with self._lock:
                self._held += size
            with shielded():  # it may start a process
                submitted = self._pool.submit(work, *args)
            submitted.add_done_callback(lambda _: self._release(size))
            return submitted
        future: Future[Encoded] = Future()
        try:
            future.set_result(work(*args))
        except UserError as error:
            future.set_exception(error)
        return future

    def _release(self, size: int) -> None:
        with self._lock:  # a thread of the pool's calls this
            self._held -= size

    def close(self) -> None:
        """End the processes; work that has not begun is dropped."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)


def _begin_worker() -> None:
    """End with the main process, however it ends; Ctrl-C and SIGTERM are left to it."""
    end_with_parent()


def run_import(plan: ImportPlan, quiet: bool = False) -> Dataset:
    """Import, or continue an import that was interrupted, and return the data set.

    The episodes of a plan always come in the same order, so the number of complete ones in the folder is the place to
    go on from. The provenance holds a file's number and how many episodes came before it: where to start reading.
    """
    position = _position(plan)
    if position is None:
        return open_dataset(plan.out)
    first = position.file
    done = sum(file.size for file in plan.files[:first])
    total = done + sum(file.size for file in plan.files[first:])
    tally = Tally(Counter(position.counts))
    workers = Workers(plan.workers)
    try:
        with (
            DatasetWriter(plan.out, plan.manifest, plan.source) as writer,
            ProgressBar(f"import {plan.out}", _megabytes(total), "MB", _megabytes(done), quiet) as bar,
            stop_on_interrupt() as stop,
        ):
            passed = writer.manifest.episodes - position.episodes  # complete ones that come again
            for number in range(first, len(plan.files)):
                if number > first:
                    here = Position(number, writer.manifest.episodes - passed, tally.state())
                    writer.note(position=asdict(here), **tally.state())
                base, tally.read = done, 0
                for encoded in _in_order(plan, plan.files[number], tally, workers):
                    tally.counts.update(encoded.counts)
                    if not len(encoded.actions):
                        tally.counts["empty"] += 1
                    elif passed:
                        passed -= 1
                    else:
                        writer.append(encoded.chunks, encoded.actions, encoded.rewards, encoded.end, encoded.iteration)
                    now = base + min(tally.read, plan.files[number].size)
                    bar.advance(_megabytes(now) - _megabytes(done), f"{writer.manifest.transitions:,} steps")
                    done = now
                    if stop.requested:
                        raise stop.error()
                now = base + plan.files[number].size
                bar.advance(_megabytes(now) - _megabytes(done), f"{writer.manifest.transitions:,} steps")
                done = now
            if passed:
                raise UserError(f"{plan.out}: holds {passed} more episodes than its sources; they have changed")
            if not writer.manifest.episodes:
                raise UserError(f"{plan.source['source']}: found no episode that was asked for")
            writer.note(position=None, **tally.state())
    except BrokenProcessPool as error:
        raise UserError("an import process was killed, perhaps for lack of memory; --workers 1 needs least") from error
    finally:
        workers.close()
    return open_dataset(plan.out)


def _megabytes(size: int) -> int:
    return -(-size // 1_000_000)


def _in_order(plan: ImportPlan, file: SourceFile, tally: Tally, workers: Workers) -> Iterator[Encoded]:
    """Yield a file's episodes in their order while later ones are worked on; damage is counted where that is wanted."""
    pending: deque[Pending] = deque()
    with contextlib.closing(plan.read(file, tally, workers)) as episodes:
        while True:
            try:
                while len(pending) < workers.window and not (pending and workers.full):
                    item = next(episodes, None)
                    if item is None:
                        break
                    pending.append(item)
            except DamagedError as error:  # nothing more comes out of this file
                note_damage(error, tally, plan.skip_damaged)
            if not pending:
                return
            first = pending.popleft()
            try:
                encoded = first if isinstance(first, Encoded) else first.result()
            except DamagedError as error:
                note_damage(error, tally, plan.skip_damaged)
            else:
                yield encoded


def note_damage(error: DamagedError, tally: Tally, skip: bool) -> None:
    """Count damage and say where it is, or raise it where it is not to be passed over."""
    if not skip:
        raise UserError(f"{error}; --skip-damaged leaves it out") from error
    tally.counts["damaged"] += 1
    log.warning("%s; left out", error)


def _position(plan: ImportPlan) -> Position | None:
    """Return where to start reading, or None if all is done."""
    if not (plan.out / fmt.MANIFEST).exists():
        return Position()
    manifest = Folder(plan.out).manifest
    for entry in manifest.provenance:
        for name, wanted in plan.source.items():
            if entry.get(name) != wanted:
                raise UserError(
                    f"{plan.out}: was imported with {name} {entry.get(name)}, found {wanted}; "
                    "another import needs another folder"
                )
    manifest.check_same_kind(plan.manifest, plan.out)
    if manifest.complete:
        return None
    where = f"{plan.out / fmt.MANIFEST}: field provenance.position"
    entry = manifest.provenance[-1] if manifest.provenance else {}
    position = checked(Position, entry.get("position", {}), where)
    if position.file >= len(plan.files) or position.episodes > manifest.episodes:
        raise UserError(
            f"{where}: found file {position.file} after {position.episodes} episodes, expected one of "
            f"{len(plan.files)} after at most {manifest.episodes}"
        )
    return position


def encode_chunks(manifest: Manifest, frames: Iterator[NDArray[Any]]) -> list[bytes]:
    """Compress frames that come in groups of `chunk_frames`, the last one perhaps smaller."""
    codec = manifest.codec
    return [codec.encode(group) for group in frames]


def clean_rewards(rewards: NDArray[Any], clip: bool) -> tuple[NDArray[np.float32], dict[str, int]]:
    """Return rewards in the stored type with NaN as 0, and how many there were; `clip` holds them to [-1, 1]."""
    values = np.asarray(rewards, fmt.REWARD)
    missing = np.isnan(values)
    values = np.where(missing, np.float32(0), values)
    if clip:
        values = np.clip(values, np.float32(-1), np.float32(1))
    return values.astype(fmt.REWARD), {"nan_rewards": int(missing.sum())} if missing.any() else {}


def check_actions(actions: NDArray[Any], num_actions: int, where: str) -> NDArray[np.int32]:
    """Return actions in the stored type; one outside the environment's set is a UserError."""
    if len(actions) and not 0 <= actions.min() <= actions.max() < num_actions:
        found = f"{actions.min()} to {actions.max()}"
        hint = "; --actions full reads them as the console's 18" if actions.max() < 18 and num_actions < 18 else ""
        raise UserError(f"{where}: found actions {found}, expected 0 to {num_actions - 1}{hint}")
    return actions.astype(fmt.ACTION)


def atari_manifest(game: str, actions: Literal["minimal", "full"]) -> Manifest:
    """Return the manifest of public Atari data: sticky actions, clipped rewards, the game's own action set."""
    env = make(f"atari/{game}", 1, sticky=STICKY, actions=actions)
    manifest = replace(manifest_of(env), rewards="clipped")
    env.close()
    return manifest


@dataclass(frozen=True)
class Selection:
    """What an Atari import takes of its source, and how the provenance says so."""

    files: list[SourceFile]
    split: Split
    source: dict[str, Any]


def select(
    config: ImportAtariConfig,
    by: str,
    files: Sequence[SourceFile],
    run_of: Callable[[SourceFile], int | None],
    iteration_of: Callable[[SourceFile], int | None],
) -> Selection:
    """Choose files by run and iteration; a file whose name does not tell its iteration stays, for its records do."""
    split = choose_split(config.split, config.iterations)
    if config.runs is not None:
        wanted = numbers(config.runs, "--runs")
        missing = sorted(set(wanted) - {run_of(file) for file in files})
        if missing:
            raise UserError(f"--runs: found no run {missing[0]} in the paths of {' '.join(config.source)}")
        files = [file for file in files if run_of(file) in wanted]
    runs = sorted({run for file in files if (run := run_of(file)) is not None})
    check_runs(split, config.split, runs)
    known = [iteration for file in files if (iteration := iteration_of(file)) is not None]
    if len(known) == len(files):
        flag = f"--iterations {config.iterations}" if config.iterations else f"--split {config.split}"
        check_iterations(split, known, flag)
    chosen = [file for file in files if (number := iteration_of(file)) is None or split.takes(number)]
    source = {
        "by": f"pvn import {by}",
        "source": " ".join(config.source),
        "files": len(chosen),
        "runs": runs,
        "split": "iterations" if config.iterations else config.split,
        "iterations": sorted(split.iterations) if split.iterations is not None else "all",
        "proportion": config.proportion,
    }
    return Selection(chosen, split, source)


def game_of(files: Sequence[SourceFile], given: str | None) -> str:
    """Return the game: the given one, or the one that the files' paths name."""
    known = {name.lower(): name for name in game_names()}
    if given is not None:
        return given  # the environment registry checks it
    found = set()
    for file in files:
        for part in reversed(file.parts):
            words = [part, *re.findall(r"(?:^|_)([A-Za-z]+)_run_\d", part)]
            games = [known[word.lower()] for word in words if word.lower() in known]
            if games:
                found.add(games[0])
                break
    if len(found) != 1:
        shown = "several games: " + ", ".join(sorted(found)) if found else "none"
        raise UserError(f"--game: found {shown} in the path of {files[0].url}, expected a name such as Asterix")
    return found.pop()


def cpu_count() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def report(data: Dataset, out: Path) -> None:
    """Say what an import gave."""
    entry = data.folders[0].manifest.provenance[-1]
    notes = {
        "empty": "episodes without a complete transition left out",
        "damaged": "damaged parts left out",
        "nan_rewards": "NaN rewards set to 0",
        "headless_steps": "steps of episodes whose beginning is not in their file left out",
    }
    print(f"{out}: {data.num_transitions:,} transitions of {data.env_id} in {data.num_episodes:,} episodes")
    for name, text in notes.items():
        if type(entry.get(name)) is int:  # only those that are not 0 are noted
            print(f"{entry[name]:,} {text}")
    print(f"look at it: pvn data info {out} --picture frames.png")
