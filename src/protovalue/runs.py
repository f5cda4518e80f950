"""The run folder: config, versions, metrics and checkpoints of one run, safe against a kill at any instant."""

import json
import logging
import math
import os
import platform
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from protovalue import __version__
from protovalue.compiling import NORMALIZED, PATCHES
from protovalue.compiling import VERSION as COMPILED
from protovalue.envs.minatar_games import VERSION as MINATAR_GAMES
from protovalue.errors import UserError
from protovalue.files import (
    FolderLock,
    Lines,
    check_place,
    fsync_folder,
    json_line,
    make_folder,
    naming,
    open_file,
    read_json,
    read_lines,
    size_and_crc,
    write_all,
    write_atomic,
    write_json,
)
from protovalue.schema import checked, require

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

log = logging.getLogger(__name__)

CONFIG, METRICS, EVENTS, CHECKPOINTS, DONE = "config.json", "metrics.jsonl", "events", "checkpoints", "done.json"
TENSORS, STATE = "tensors.safetensors", "state.json"
FORMAT, VERSION = "protovalue run", 2
_PACKAGES = ("torch", "numpy", "scipy", "gymnasium", "ale-py", "numba", "safetensors", "scikit-learn", "zstandard")

Tensors = Mapping[str, NDArray[Any]]
C = TypeVar("C", bound="DataclassInstance")


def config_fields(config: Any) -> dict[str, Any]:
    """Return a config dataclass as JSON values: paths as text, tuples as lists."""

    def text(value: object) -> str:
        if isinstance(value, Path):
            return str(value)
        raise TypeError(f"a config cannot hold {value!r}")

    fields = asdict(config) if is_dataclass(config) and not isinstance(config, type) else dict(config)
    parsed: dict[str, Any] = json.loads(json.dumps(fields, default=text))
    return parsed


def config_from(cls: type[C], recorded: Mapping[str, Any], **changes: Any) -> C:
    """Make a config of a run's config.json again."""
    known: dict[str, Any] = {field.name: recorded[field.name] for field in fields(cls) if field.name in recorded}
    try:
        return replace(checked(cls, known, "field config"), **changes)
    except UserError as error:
        raise UserError(f"{changes.get('out', Path()) / CONFIG}: {error}") from error


def versions() -> dict[str, str]:
    """Return the exact versions that this process runs with."""
    installed = {name: metadata.version(name) for name in _PACKAGES}
    own = {"minatar": MINATAR_GAMES, "compiled": COMPILED, "normalized": NORMALIZED, "patches": PATCHES}
    return {"python": platform.python_version(), "protovalue": __version__, **own, **installed}


@dataclass(frozen=True)
class Checkpoint:
    """Everything that a run needs to go on from a step."""

    step: int
    tensors: dict[str, NDArray[Any]]
    state: dict[str, Any]
    path: Path = Path()
    """Where it was read from."""
    lines: int = 0
    """Lines of metrics that had been written then."""


@dataclass(frozen=True)
class _Config:
    """config.json."""

    format: str
    version: int
    config: dict[str, Any]
    versions: list[dict[str, str]]

    def __post_init__(self) -> None:
        require(self.format == FORMAT, "format", self.format, repr(FORMAT))
        require(self.version in (1, VERSION), "version", self.version, str(VERSION))
        require(len(self.versions) > 0, "versions", self.versions, "at least one entry")


@dataclass(frozen=True)
class _State:
    """state.json."""

    step: int
    bytes: int
    crc32: int
    state: dict[str, Any]
    lines: int = 0
    """Lines of metrics.jsonl until then; each has a checksum, but nothing else tells that one is gone."""


@contextmanager
def restoring(checkpoint: Checkpoint) -> Iterator[None]:
    """Say that a checkpoint is not one of this run where what it holds does not fit."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        what = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise UserError(f"{checkpoint.path}: damaged: it does not hold the state of such a run ({what})") from error


class Run:
    """A run folder that this process holds. `Run.open` looks at it; `begin` creates it, or goes on in it.

    Use as a context manager. Nothing is written before `begin`, so that whoever finds something wrong until then
    leaves the folder as it was, or not there. `resumed_from` is the newest good checkpoint, or None at the beginning;
    `done` is the summary of a run that was finished before.
    """

    _lock: FolderLock | None = None
    _metrics: int | None = None
    _events: "_Events"

    def __init__(self, path: Path, fields: dict[str, Any], keep: int) -> None:
        self.path, self._fields, self._keep, self._lines = path, fields, keep, 0
        self.resumed_from: Checkpoint | None = None
        self.done: dict[str, Any] | None = None
        self.finished = False
        """Whether there is nothing left to do: the run was finished with as many steps as are asked for."""
        self.standing = ""
        """A line that says where a run goes on, or that it is finished; nothing for one that begins."""

    @classmethod
    def open(cls, path: Path, config: Any, may_change: Iterable[str] = (), keep: int = 2) -> Self:
        """Look at the folder: it is not there yet, or it holds this run.

        Args:
            path: the run folder.
            config: a config dataclass; a folder with another config is refused, naming the fields that differ.
            may_change: fields that do not alter what was computed so far, such as the number of steps.
            keep: how many checkpoints to keep, at least 1.
        """
        run = cls(path, config_fields(config), max(keep, 1))
        if (path / CONFIG).exists():
            run._lock = FolderLock(path)
            try:
                run._look(set(may_change))
            except BaseException:
                run._lock.release()
                raise
        else:
            check_place(path)
            if path.exists() and any(not entry.name.startswith((".", "lock")) for entry in path.iterdir()):
                raise UserError(f"{path}: not empty and not a run; choose another folder")
        return run

    def _look(self, may_change: set[str]) -> None:
        """Read what is there; refuse another config, and fewer steps than were taken."""
        _check_config(self.path, self._fields, may_change)
        recorded = read_run(self.path)
        self.done = recorded["done"]
        self.resumed_from = _newest(self.path / CHECKPOINTS)
        taken = self.resumed_from.step if self.resumed_from else 0
        before, steps = recorded["config"].get("steps"), self._fields.get("steps")
        if steps is not None and steps < taken:
            raise UserError(
                f"--steps: found {steps:,}, expected at least {taken:,}, which {self.path} has taken already; "
                "a shorter run needs another folder"
            )
        self.finished = self.done is not None and before == steps
        self.standing = f"{self.path}: continuing at step {taken:,}" + ("" if steps is None else f" of {steps:,}")
        if self.finished:
            self.standing = f"{self.path}: finished before, with the same settings; it is left as it is"

    def begin(self) -> None:
        """Write down the config, drop what came after the checkpoint, open the files: what the first write would do."""
        if self._metrics is not None:
            return
        self.path.mkdir(parents=True, exist_ok=True)
        if self._lock is None:
            self._lock = FolderLock(self.path)
            if (self.path / CONFIG).exists():
                raise UserError(f"{self.path}: another process has begun a run there meanwhile")
        (self.path / DONE).unlink(missing_ok=True)  # first: a run with more steps is not done
        _record_config(self.path, self._fields)
        make_folder(self.path / CHECKPOINTS)
        make_folder(self.path / EVENTS)
        _sweep(self.path / CHECKPOINTS)
        self._lines = _forget_metrics_after(self.path, self.resumed_from)
        metrics = open_file(self.path / METRICS, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            self._events = _Events(self.path / EVENTS, None if self.resumed_from is None else self.resumed_from.step)
        except BaseException:
            os.close(metrics)
            raise
        self._metrics = metrics

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append metrics of a step to metrics.jsonl and to the TensorBoard events; non-finite values become null."""
        self.begin()
        assert self._metrics is not None
        values = {name: float(value) for name, value in metrics.items()}
        finite = {name: value if math.isfinite(value) else None for name, value in values.items()}
        with naming(self.path / METRICS):
            write_all(self._metrics, json_line({"step": step, "time": round(time.time(), 3), **finite}))
        self._lines += 1
        self._events.add(step, values)

    def save(self, step: int, tensors: Tensors, state: Mapping[str, Any]) -> None:
        """Write a checkpoint beside the others, make it durable, then name it; drop the oldest beyond `keep`."""
        self.begin()
        assert self._metrics is not None
        folder = self.path / CHECKPOINTS
        beside, final = folder / f".new-{step:012d}", folder / f"step-{step:012d}"
        try:
            shutil.rmtree(beside, ignore_errors=True)
            beside.mkdir()
            save_file({name: np.ascontiguousarray(array) for name, array in tensors.items()}, beside / TENSORS)
            size, crc = size_and_crc(beside / TENSORS, durable=True)
            fields = {"step": step, "bytes": size, "crc32": crc, "state": dict(state), "lines": self._lines}
            write_json(beside / STATE, fields)
            with naming(self.path / METRICS):
                os.fsync(self._metrics)  # what was logged before the checkpoint is not logged again after it
            if final.exists():
                _discard(final)
            beside.rename(final)
            fsync_folder(folder)
        except (OSError, SafetensorError) as error:
            shutil.rmtree(beside, ignore_errors=True)
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            good = max(_steps(folder), default=None)
            kept = "no checkpoint yet" if good is None else f"the checkpoint of step {good} is kept"
            raise UserError(f"{final}: cannot write the checkpoint: {reason}; {kept}") from error
        for old in sorted(_steps(folder))[: -self._keep]:
            _discard(folder / f"step-{old:012d}")

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Mark the run as done, with its final numbers."""
        self.begin()
        write_json(self.path / DONE, dict(summary))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._metrics is not None:
                self._events.close()
        finally:
            if self._metrics is not None:
                os.close(self._metrics)
            if self._lock is not None:
                self._lock.release()


def read_run(path: Path) -> dict[str, Any]:
    """Read the config that a run was made with, its versions, and its summary if it is done."""
    if not (path / CONFIG).is_file():
        raise UserError(f"{path}: not a run: {CONFIG} is missing")
    recorded = asdict(checked(_Config, read_json(path / CONFIG), path / CONFIG))
    if recorded["version"] == 1:
        recorded |= {"config": renamed(recorded["config"]), "version": VERSION}
    recorded["done"] = read_json(path / DONE) if (path / DONE).is_file() else None
    return recorded


def renamed(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config of a run of version 1 under today's names, without what did not apply to it."""
    kind = config.get("kind")
    recorded = {"data": "record", "stages": "iterations"}
    names = {} if kind == "online" else {"encoder": "architecture", **(recorded if kind == "dqn" else {})}
    found = {names.get(name, name): value for name, value in config.items()}
    unused = {
        "atoms": found.get("head") != "c51",
        "value_range": found.get("head") != "c51",
        "replay_dtype": bool(found.get("finetune")),
        "iterations": found.get("record") is None,
    }
    return found | {name: None for name, not_used in unused.items() if not_used and name in found}


def read_metrics(path: Path, whole: bool = False) -> list[dict[str, Any]]:
    """Read a run's metrics, one dict a line.

    A line that is damaged, or that a kill cut short, is left out and named; where all are needed it is a UserError, and
    so are lines that are gone.
    """
    lines = read_lines(path / METRICS, _misfit) if whole else _metrics(path)
    if whole and lines.damage:
        raise UserError(lines.damage)
    gone = _gone(lines, _newest_state(path / CHECKPOINTS)) if whole else ""
    if gone:
        raise UserError(gone)
    return lines.rows


def _gone(lines: Lines, state: _State | Checkpoint | None) -> str:
    """Say that there are fewer lines than when a checkpoint was written, or nothing."""
    found = sum(row["step"] <= state.step for row in lines.rows) if state else 0
    if state is None or found >= state.lines:
        return ""
    return f"{lines.path}: damaged: found {found} lines until step {state.step}, expected {state.lines}"


def _newest_state(folder: Path) -> _State | None:
    """Return what the newest checkpoint says of itself, if there is one whose state can be read."""
    for step in sorted(_steps(folder), reverse=True) if folder.is_dir() else []:
        path = folder / f"step-{step:012d}" / STATE
        with suppress(UserError, OSError):
            return checked(_State, read_json(path), path)
    return None


def _metrics(path: Path) -> Lines:
    """Read the lines of metrics.jsonl."""
    lines = read_lines(path / METRICS, _misfit)
    if lines.damage:
        log.warning("%s", lines.damage)
    return lines


def _misfit(row: Mapping[str, Any]) -> str:
    """Say what is wrong with a line of metrics: it has a step, and numbers by name."""
    if type(row.get("step")) is not int or row["step"] < 0:
        return "no step"
    wrong = [name for name, value in row.items() if value is not None and type(value) not in (int, float)]
    return f"{wrong[0][:40]!r} is no number" if wrong else ""


def read_checkpoint(path: Path) -> Checkpoint:
    """Read the newest good checkpoint of a run."""
    checkpoint = _newest(path / CHECKPOINTS)
    if checkpoint is None:
        raise UserError(f"{path}: the run has no checkpoint")
    return checkpoint


class _Events:
    """TensorBoard events; a resumed run tells TensorBoard to forget what came after its checkpoint.

    Written here and now: TensorBoard's own writer has a thread, from which an error comes late or not at all.
    """

    def __init__(self, folder: Path, resumed_at: int | None) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.record_writer import RecordWriter

        now = time.time()
        # TensorBoard looks for this name, and reads in the order of names: two openings may come within a second.
        name = f"events.out.tfevents.{time.time_ns():020d}.{platform.node()}.{os.getpid()}"
        self._event, self._path = Event, folder / name
        self._file = os.fdopen(open_file(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb")
        self._records = RecordWriter(self._file)
        self._write(Event(wall_time=now, file_version="brain.Event:2"))
        if resumed_at is not None:
            start = SessionLog(status=SessionLog.START)
            self._write(Event(step=resumed_at + 1, wall_time=now, session_log=start))

    def add(self, step: int, values: Mapping[str, float]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        summary = Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()])
        self._write(self._event(step=step, wall_time=time.time(), summary=summary))

    def close(self) -> None:
        with naming(self._path):
            self._file.close()

    def _write(self, event: Any) -> None:
        with naming(self._path):
            self._records.write(event.SerializeToString())
            self._file.flush()


def _check_config(path: Path, fields: dict[str, Any], may_change: set[str]) -> None:
    """Refuse to resume with another config."""
    before = read_run(path)["config"]
    commands = [f"pvn {one.get('kind') or 'pretrain'}" for one in (before, fields)]
    if commands[0] != commands[1]:
        raise UserError(f"{path}: found a run of {commands[0]}, expected another folder for {commands[1]}")
    names = (before.keys() | fields.keys()) - may_change
    # One that was not there when the run began was not given then.
    differ = sorted(name for name in names if before.get(name) != fields.get(name))
    if differ:
        differ.sort(key=lambda name: name not in ("method", "env"))  # most of what differs follows from these
        shown = [f"{name} {_short(fields.get(name))} (the run has {_short(before.get(name))})" for name in differ]
        listed = ", ".join(shown[:4]) + (f" and {len(shown) - 4} more" if len(shown) > 4 else "")
        raise UserError(f"{path}: holds a run with another config: {listed}; choose another folder or the same config")


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:36]} ..."


def _record_config(path: Path, fields: dict[str, Any]) -> None:
    """Write the config with the versions that run it, newest last."""
    history = read_run(path)["versions"] if (path / CONFIG).exists() else []
    now = versions()
    if fields.get("processes", 1) != 1:  # how many share out a batch decides the order of sums, as a version may
        now["processes"] = str(fields["processes"])
    if history and history[-1] != now:
        before = {"processes": "1"} | history[-1]
        after = {"processes": "1"} | now
        changed = ", ".join(f"{k} {before.get(k)} -> {v}" for k, v in after.items() if before.get(k) != v)
        log.warning("%s: resumed with other versions (%s): the result may differ in the last bits", path, changed)
    if not history or history[-1] != now:
        history = [*history, now]
    write_json(path / CONFIG, {"format": FORMAT, "version": VERSION, "config": fields, "versions": history})


def _steps(folder: Path) -> list[int]:
    """List the steps that have a checkpoint."""
    names = (re.fullmatch(r"step-(\d{12})", entry.name) for entry in folder.iterdir())
    return [int(match[1]) for match in names if match]


def _newest(folder: Path) -> Checkpoint | None:
    """Load the newest checkpoint that is good; a damaged one is reported and passed over."""
    for step in sorted(_steps(folder), reverse=True) if folder.is_dir() else []:
        path = folder / f"step-{step:012d}"
        try:
            recorded = checked(_State, read_json(path / STATE), path / STATE)
            if recorded.step != step:
                raise UserError(f"{path / STATE}: field step: found {recorded.step}, expected {step}")
            if size_and_crc(path / TENSORS) != (recorded.bytes, recorded.crc32):
                raise UserError(f"{path / TENSORS}: damaged: its checksum does not match")
            return Checkpoint(step, load_file(path / TENSORS), recorded.state, path, recorded.lines)
        except (UserError, OSError, SafetensorError, AttributeError, LookupError, TypeError, ValueError) as error:
            log.warning("%s: passed over: %s", path, error)
    return None


def _discard(path: Path) -> None:
    """Remove a checkpoint; the rename makes sure that a half-removed one is never taken for a good one."""
    doomed = path.with_name(f".old-{path.name}")
    shutil.rmtree(doomed, ignore_errors=True)
    path.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def _sweep(folder: Path) -> None:
    """Remove what a kill left half-written or half-removed."""
    for entry in folder.iterdir():
        if entry.name.startswith("."):
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink()


def _forget_metrics_after(path: Path, checkpoint: Checkpoint | None) -> int:
    """Drop the metrics that the resumed run will write again, and lines that are damaged; return how many are left."""
    lines = _metrics(path)
    step = -1 if checkpoint is None else checkpoint.step
    kept = [raw for row, raw in zip(lines.rows, lines.raw, strict=True) if row["step"] <= step]
    gone = _gone(lines, checkpoint)
    if gone and not lines.damage:
        log.warning("%s: the run goes on without them", gone)
    if len(kept) < len(lines.raw) or lines.damage:
        write_atomic(path / METRICS, b"".join(kept))
    return len(kept)
