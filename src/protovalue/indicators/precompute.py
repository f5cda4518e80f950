"""Indicator rewards of a whole data set, computed once, kept as bits on disk and shared by all later runs."""

import hashlib
import json
import logging
import os
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from protovalue.caches import PARTIAL, default_cache, size_text
from protovalue.compiling import PATCHES
from protovalue.data.dataset import Dataset
from protovalue.distributed.group import from_first, ranks, to_first
from protovalue.errors import UserError
from protovalue.files import (
    FolderLock,
    fsync_folder,
    make_folder,
    read_json,
    refuse_links,
    size_and_crc,
    write_atomic,
    write_json,
)
from protovalue.indicators.base import Indicator
from protovalue.indicators.registry import indicator_from_config, make_indicator
from protovalue.indicators.rni import by_patches
from protovalue.indicators.threshold import exact_thresholds, proportion_warnings, sgd_thresholds
from protovalue.progress import ProgressBar, say
from protovalue.randomness import Purpose, generator_at, torch_generator
from protovalue.registry import INDICATORS, checksum, is_file, name_of
from protovalue.schema import checked, require
from protovalue.user_code import user_code

log = logging.getLogger(__name__)

T = TypeVar("T")

BITS, SCORES, NETWORKS, ABOUT = "bits.bin", "scores.bin", "indicator.safetensors", "indicator.json"
FORMAT = "protovalue indicator rewards, version 2"
PASS_BATCH = 512  # observations evaluated together: also the unit in which an interrupted pass continues
STATISTICS_FROM = 100_000  # transitions, evenly spaced, that the input normalisation is computed from


@dataclass(frozen=True)
class IndicatorSpec:
    """What determines the rewards of a data set's states."""

    indicator: str
    """A name in the registry, or a Python file of the user's."""
    tasks: int
    """Number of tasks m."""
    proportion: float
    """Wanted share p of states on which a task's reward is 1."""
    seed: int
    """Seed of the indicators' parameters."""
    threshold: Literal["exact", "sgd"] = "exact"
    """Exact quantile of the data set, or the paper's quantile regression."""
    burn_in: int = 62_500
    """Steps of quantile regression (sgd only)."""
    normalize: bool = False
    """Normalise the input of random networks per channel over the data set (rni only)."""
    tasks_per_module: int = 10
    """Tasks that share one random network (rni only)."""
    network: Literal["dqn", "convolutions"] = "dqn"
    """What lies below the outputs of a random network: all of a DQN network, or its convolutions (rni only)."""
    output: Literal["linear", "relu"] = "linear"
    """The outputs of a random network: as they are, or through a ReLU (rni only)."""
    options: dict[str, Any] | None = None
    """Options of an indicator of the user's own."""
    arrival: bool = False
    """Rewards of the state x' that a transition arrives at, in place of x; thresholds are of all states then, also of
    those that episodes end in."""
    changes: bool = False
    """Rewards of what a transition changes, score(x') - score(x), in place of x; thresholds are of all transitions."""

    @property
    def final(self) -> bool:
        """Whether the states that episodes end in are scored, too."""
        return self.arrival or self.changes


@dataclass(frozen=True)
class IndicatorRewards:
    """The rewards of every transition's state x, or x', or of its change, and the indicator that scores any state."""

    indicator: Indicator
    bits: NDArray[np.uint8]
    """(states, ceil(m / 8)), the first task in the highest bit."""
    proportions: NDArray[np.float64]
    """(m,) share of the data set's states on which each task's reward is 1."""
    arriving: Dataset | None = None
    """The data set, where rewards are those of x': an episode then has one row more than transitions."""

    def rewards(self, index: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return the rewards of the given transitions, (B, m)."""
        if self.arriving is not None:
            index = index + self.arriving.locate(index)[0] + 1
        return np.unpackbits(self.bits[index], axis=1, count=self.indicator.num_tasks).view(np.bool_)


def cache_key(data: Dataset, spec: IndicatorSpec) -> str:
    """Name the rewards of a data set's contents under a specification."""
    fields: dict[str, Any] = {"format": FORMAT, "data": data.checksum, "stack": data.stack, **asdict(spec)}
    if spec.threshold == "exact":
        del fields["burn_in"]
    # What was computed before there was a choice counts.
    for name, usual in (("network", "dqn"), ("output", "linear"), ("options", None), ("arrival", False),
                        ("changes", False)):  # fmt: skip
        if fields[name] == usual:
            del fields[name]
    if spec.indicator == "rni" and by_patches(data.observation_shape):
        fields["patches"] = PATCHES
    if is_file(spec.indicator):  # a user's indicator: its code counts, not its place
        fields["indicator"] = f"{checksum([spec.indicator])} {name_of(spec.indicator)}"
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:32]


def indicator_rewards(
    data: Dataset, spec: IndicatorSpec, cache: Path | None = None, device: str = "cpu", quiet: bool = False
) -> IndicatorRewards:
    """Return the rewards of a data set, from the cache or computed now; an interrupted computation continues.

    Several processes share it out: each scores some of the states, the first writes, and all read what it wrote.
    """
    _import_indicator(spec)
    with user_code():
        found = computed_once(
            cache,
            cache_key(data, spec),
            "indicator rewards",
            lambda folder: _compute(data, spec, folder, device, quiet),
            lambda folder: _load(folder, data, spec),
            lambda: help_with_scores(
                States(data, spec.final), lambda: build_indicator(data, spec).to(device).scores, spec.tasks, device
            ),
        )
    lines = proportion_warnings(found.proportions.tolist(), spec.proportion)
    if not ((found.proportions > 0) & (found.proportions < 1)).any():
        lines = [*lines, "NOTHING CAN BE LEARNED FROM THEM: no task tells any two states of this data set apart"]
    for line in lines:
        log.warning("indicators: %s", line)
    return found


def computed_once(
    cache: Path | None,
    key: str,
    what: str,
    compute: Callable[[Path], None],
    load: Callable[[Path], T],
    help_with: Callable[[], None],
) -> T:
    """Return what `load` finds in the cache's folder `key`, which `compute` fills if it is not there yet or damaged.

    What `compute` leaves behind when it is killed, it finds again the next time; a full disk leaves nothing behind.
    Of several processes the first computes, and the others do what it asks for (`help_with`) until it is there.
    """
    cache = default_cache() if cache is None else cache
    if ranks().first:
        found = _computed_once(cache, key, what, compute, load)
        from_first({"score": None})
        return found
    help_with()
    try:
        return load(cache / key)
    except UserError as error:
        raise UserError(f"{error}; expected --cache to be a folder that all processes see") from error


def _computed_once(cache: Path, key: str, what: str, compute: Callable[[Path], None], load: Callable[[Path], T]) -> T:
    final = cache / key
    if (found := _loaded(final, load)) is not None:
        return found
    beside = final.with_name(f"{final.name}{PARTIAL}")
    try:
        cache.mkdir(parents=True, exist_ok=True)
        while True:
            make_folder(beside)
            refuse_links(beside)
            with FolderLock(beside, wait=True):
                # While this one waited, another process may have finished it, or failed and removed the folder.
                if (found := _loaded(final, load, what)) is not None:
                    return found
                if beside.is_dir():
                    _fill(beside, compute)
                    beside.rename(final)
                    fsync_folder(cache)
                    return load(final)
    except OSError as error:
        shutil.rmtree(beside, ignore_errors=True)
        raise UserError(f"{error.filename or final}: cannot write the {what}: {error.strerror}") from error


def _loaded(folder: Path, load: Callable[[Path], T], what: str | None = None) -> T | None:
    """Load what is in a folder; None if there is nothing, or damage. With `what`, damage is told and removed."""
    if not folder.is_dir():
        return None
    try:
        return load(folder)
    except UserError as error:
        if what is not None:
            log.warning("%s; removed %s, to compute the %s again", error, folder, what)
            shutil.rmtree(folder)
        return None


def _fill(folder: Path, compute: Callable[[Path], None]) -> None:
    """Compute; what was refused before anything was computed leaves no folder behind."""
    try:
        compute(folder)
    except Exception:
        if all(path.name == "lock" for path in folder.iterdir()):
            shutil.rmtree(folder)
        raise


def _import_indicator(spec: IndicatorSpec) -> None:
    """Make the indicator's class known; a user's file is run. What does not apply to it is refused."""
    cls = INDICATORS.load(spec.indicator)
    ours = {
        "--normalize": spec.normalize,
        "--rni-network": spec.network != "dqn",
        "--rni-output": spec.output != "linear",
    }
    for flag, given in ours.items():
        if given and spec.indicator != "rni":
            raise UserError(f"{flag}: only random network indicators have it, found indicator {spec.indicator}")
    if spec.changes and not cls.tuned_on_data:
        raise UserError(
            f"--changes: found yes with indicator {spec.indicator}, expected one that is tuned on data: how much its "
            "scores change says nothing"
        )
    if spec.threshold == "sgd" and not cls.tuned_on_data:
        raise UserError(
            f"--threshold: found sgd with indicator {spec.indicator}, expected exact: its sets have their share as "
            "they are drawn, and there is no threshold to learn"
        )


def build_indicator(data: Dataset, spec: IndicatorSpec) -> Indicator:
    """Draw the indicator's parameters."""
    options = dict(spec.options or {})
    if spec.indicator == "rni":
        options["tasks_per_module"] = spec.tasks_per_module
        options["hidden"], options["relu"] = spec.network == "dqn", spec.output == "relu"
        if spec.normalize:
            options["channel_mean"], options["channel_std"] = channel_statistics(data)
    generator = torch_generator(spec.seed)
    return make_indicator(spec.indicator, data.observation_shape, spec.tasks, spec.proportion, generator, **options)


def channel_statistics(data: Dataset) -> tuple[list[float], list[float]]:
    """Return mean and standard deviation of each channel of a frame, pixels in [0, 1], over evenly spaced frames."""
    count = min(data.num_transitions, STATISTICS_FROM)
    index = np.linspace(0, data.num_transitions - 1, count).astype(np.int64)
    total: NDArray[np.float64] | float = 0.0
    square: NDArray[np.float64] | float = 0.0
    for part in np.array_split(index, -(-count // 4096)):
        episode, step = data.locate(part)
        frames = data.windows(episode, step, 1)[:, 0]
        pixels = frames if frames.ndim == 4 else frames[..., None]  # (n, H, W, C)
        scaled = pixels.astype(np.float64) / (255 if pixels.dtype == np.uint8 else 1)
        total = total + scaled.mean(axis=(1, 2)).sum(axis=0)
        square = square + (scaled**2).mean(axis=(1, 2)).sum(axis=0)
    mean = np.asarray(total) / count
    deviation = np.sqrt(np.maximum(np.asarray(square) / count - mean**2, 0))
    return mean.tolist(), deviation.tolist()


def _compute(data: Dataset, spec: IndicatorSpec, folder: Path, device: str, quiet: bool) -> None:
    """Fill `folder` with the indicator, its thresholds and the bits of every transition."""
    indicator = build_indicator(data, spec).to(device)
    states = States(data, final=spec.final)
    kept = announce("indicators", indicator, states, folder, quiet, -(-spec.tasks // 8), 4 * indicator.tuned_on_data)
    if indicator.tuned_on_data:
        scores: Rows = all_scores(states, indicator.scores, spec.tasks, folder / SCORES, device, quiet, kept)
        scores = Changes(scores, data) if spec.changes else scores
        if spec.threshold == "exact":
            thresholds = exact_thresholds(lambda: _chunks(scores), spec.proportion).thresholds
        else:
            thresholds = sgd_thresholds(_random_batches(scores, spec.seed), spec.proportion, steps=spec.burn_in)
        indicator.set_thresholds(thresholds.to(device))
        limits = indicator.thresholds.cpu()
        parts: Iterator[Tensor] = (chunk >= limits for chunk in _chunks(scores))
    else:
        batches = _score_batches(states, indicator.scores, spec.tasks, 0, device, quiet)
        parts = (scores >= indicator.thresholds.cpu() for scores in batches)
    counts, rows, crc = np.zeros(spec.tasks, np.int64), 0, 0
    with (folder / BITS).open("wb") as file:
        for part in parts:
            fires = part.numpy()
            counts += fires.sum(axis=0)
            rows += len(fires)
            packed = np.packbits(fires, axis=1).tobytes()
            crc = zlib.crc32(packed, crc)
            file.write(packed)
        file.flush()
        os.fsync(file.fileno())
    size = (folder / BITS).stat().st_size
    about = {"spec": asdict(spec), "transitions": rows, "counts": counts.tolist()}
    save_indicator(indicator, folder, about, {BITS: StoredFile(size, crc)})
    for left in (folder / SCORES, sums_of(folder / SCORES)):
        left.unlink(missing_ok=True)


def announce(
    what: str, indicator: Indicator, states: "States", folder: Path, quiet: bool, row: int, passing: int
) -> int:
    """Say how much is about to be written; return the bytes that stay.

    Args:
        what: is computed.
        indicator: whose tensors are kept, here and in the folder of the run.
        states: of which something is kept.
        folder: where.
        quiet: say nothing.
        row: bytes that are kept of each state.
        passing: bytes for each state and task that are needed while it is computed.
    """
    networks = sum(int(tensor.nbytes) for tensor in indicator.state_dict().values())
    kept, meanwhile = networks + states.count * row, states.count * indicator.num_tasks * passing
    if not quiet:
        also = f", and {size_text(meanwhile)} while they are computed" if passing else ""
        say(
            f"{what}: {indicator.num_tasks} tasks on {states.count:,} states: {size_text(kept)}{also}, in "
            f"{folder.parent} (pvn cache list); {size_text(networks)} of networks in the run, too"
        )
    return kept


class States:
    """The states of a data set in order: x of every transition or, with `final`, also the one each episode ends in."""

    def __init__(self, data: Dataset, final: bool) -> None:
        self._data = data
        self._starts = data.starts + np.arange(data.num_episodes) if final else data.starts
        self.count = data.num_frames if final else data.num_transitions

    def observations(self, first: int, last: int) -> Tensor:
        """Return the observations of states `first` .. `last` - 1."""
        index = np.arange(first, last)
        episode = np.searchsorted(self._starts, index, side="right") - 1
        step = index - self._starts[episode]
        return torch.from_numpy(self._data.windows(episode, step - self._data.stack + 1, self._data.stack))


Scores = Callable[[Tensor], Tensor]
"""A function of observations (N, *observation_shape) with one value per task, (N, m)."""


def _score_batches(
    states: States, function: Scores, tasks: int, first: int, device: str, quiet: bool
) -> Iterator[Tensor]:
    """Evaluate a function on every state from `first` on, in order, in batches; other processes take their turns."""
    if ranks().several:
        from_first({"score": first})
    with ProgressBar("indicators", states.count, "states", first, quiet) as bar:
        for start in range(first, states.count, PASS_BATCH * ranks().count):
            for scores in _turns(states, function, tasks, start, device):
                yield scores
                bar.advance(len(scores))


def help_with_scores(states: States, function: Callable[[], Scores], tasks: int, device: str) -> None:
    """Score the batches of this process in every pass that the first one makes, until it makes no more."""
    score: Scores | None = None
    while (first := from_first(None)["score"]) is not None:
        score = score or function()
        with torch.no_grad():
            for start in range(first, states.count, PASS_BATCH * ranks().count):
                _turns(states, score, tasks, start, device)


def _turns(states: States, function: Scores, tasks: int, start: int, device: str) -> list[Tensor]:
    """Score as many batches from `start` on as there are processes, one each; the first process gets all of them."""
    own = start + PASS_BATCH * ranks().rank
    last = min(own + PASS_BATCH, states.count)
    scores = torch.empty(0, tasks)
    if own < last:
        scores = function(states.observations(own, last).to(device)).cpu()
        if scores.shape != (last - own, tasks):
            raise UserError(
                f"indicator: its scores are of shape {tuple(scores.shape)}, expected ({last - own}, {tasks})"
            )
    if not ranks().several:
        return [scores]
    sent = torch.zeros(PASS_BATCH, tasks)
    sent[: len(scores)] = scores
    found = to_first(sent)
    sizes = [states.count - start - PASS_BATCH * rank for rank in range(ranks().count)]
    return [rows[:size] for rows, size in zip(found or (), sizes, strict=False) if size > 0]


def all_scores(
    states: States, function: Scores, tasks: int, path: Path, device: str, quiet: bool, others: int = 0
) -> NDArray[np.float32]:
    """Write a function's values on all states to a file and map it, (states, m); an interrupted pass goes on.

    There must be room for it, and for `others`: bytes that will be written beside it.
    """
    row = 4 * tasks
    needed = states.count * row
    done = _whole_batches(path, row * PASS_BATCH) * PASS_BATCH
    free = shutil.disk_usage(path.parent).free
    if free < needed - done * row + others:
        beside = f", and {size_text(others)} beside it" if others else ""
        raise UserError(
            f"{path.parent}: no room for {path.name}, a value per state and task{beside}: found {free >> 20} MiB, "
            f"expected {needed + others >> 20} MiB; choose another place with --cache"
        )
    with path.open("ab") as file, sums_of(path).open("ab") as sums:
        file.truncate(done * row)
        sums.truncate(done // PASS_BATCH * 4)
        for scores in _score_batches(states, function, tasks, done, device, quiet):
            batch = scores.numpy().astype("<f4").tobytes()
            file.write(batch)
            sums.write(zlib.crc32(batch).to_bytes(4, "little"))
    return np.memmap(path, "<f4", "r", shape=(states.count, tasks))


def sums_of(path: Path) -> Path:
    """Return the file beside `path` with the CRC-32 of each of its batches: which of them an interrupted pass keeps."""
    return path.with_name(f"{path.name}.crc")


def _whole_batches(path: Path, size: int) -> int:
    """Count the batches of `size` bytes that a pass left behind, up to the first that is not whole."""
    if not path.exists() or not sums_of(path).exists():
        return 0
    count = 0
    with path.open("rb") as file, sums_of(path).open("rb") as sums:
        while len(batch := file.read(size)) == size and zlib.crc32(batch).to_bytes(4, "little") == sums.read(4):
            count += 1
    return count


class Rows(Protocol):
    """Rows of numbers (N, m), of which some are taken at a time."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: Any, /) -> NDArray[np.float32]: ...


class Changes:
    """f(x') - f(x) of every transition, as rows, given f of all states (frames, m), those that episodes end in too."""

    def __init__(self, values: Rows, data: Dataset) -> None:
        self._values, self._data = values, data

    def __len__(self) -> int:
        return self._data.num_transitions

    def __getitem__(self, part: slice | NDArray[np.int64]) -> NDArray[np.float32]:
        index = np.arange(*part.indices(len(self))) if isinstance(part, slice) else part
        row = index + self._data.locate(index)[0]  # an episode has one row more than transitions
        return np.asarray(self._values[row + 1] - self._values[row])


def _chunks(scores: Rows, size: int = 16_384) -> Iterator[Tensor]:
    """Give scores in order, some rows at a time."""
    for start in range(0, len(scores), size):
        yield torch.from_numpy(np.array(scores[start : start + size]))


def _random_batches(scores: Rows, seed: int, size: int = 256) -> Iterator[Tensor]:
    """Give random rows of scores for ever, as quantile regression draws them."""
    step = 0
    while True:
        index = generator_at(seed, Purpose.QUANTILES, step).integers(len(scores), size=size)
        yield torch.from_numpy(np.array(scores[index]))
        step += 1


@dataclass(frozen=True)
class StoredFile:
    """Size and checksum of a file beside indicator.json."""

    bytes: int
    crc32: int


@dataclass(frozen=True)
class IndicatorConfig:
    """What `Indicator.config` returns."""

    name: str
    observation_shape: tuple[int, ...]
    num_tasks: int
    proportion: float
    options: dict[str, Any]


@dataclass(frozen=True)
class About:
    """What indicator.json holds; what follows `files` depends on what was computed."""

    format: str
    indicator: IndicatorConfig
    files: dict[str, StoredFile]
    spec: dict[str, Any] = field(default_factory=dict)
    transitions: int = 0
    counts: list[int] = field(default_factory=list)
    """States on which each task's reward is 1."""
    deviation: list[float] = field(default_factory=list)
    """Standard deviation of each network's output."""

    def __post_init__(self) -> None:
        require(self.format == FORMAT, "format", self.format, repr(FORMAT))


def save_indicator(
    indicator: Indicator,
    folder: Path,
    about: Mapping[str, Any] | None = None,
    files: Mapping[str, StoredFile] | None = None,
) -> None:
    """Write an indicator with its thresholds as JSON and safetensors; `files` are others that lie there already."""
    make_folder(folder)
    refuse_links(folder)
    tensors = save({name: tensor.cpu().contiguous() for name, tensor in indicator.state_dict().items()})
    write_atomic(folder / NETWORKS, tensors)
    stored = {NETWORKS: StoredFile(len(tensors), zlib.crc32(tensors)), **(files or {})}
    listed = {name: asdict(file) for name, file in stored.items()}
    write_json(folder / ABOUT, {"format": FORMAT, "indicator": indicator.config(), "files": listed, **(about or {})})


def load_indicator(folder: Path) -> Indicator:
    """Read what `save_indicator` wrote; `rewards(obs)` then gives the rewards of any observation."""
    return load_checked(folder)[0]


def load_checked(
    folder: Path,
    files: Mapping[str, int] | None = None,
    shape: tuple[int, ...] | None = None,
    tasks: int | None = None,
    known: str | None = None,
) -> tuple[Indicator, About]:
    """Read an indicator and what is said about it; whatever is wrong is a UserError.

    Args:
        folder: where `save_indicator` wrote it.
        files: sizes of other files there, which must be whole, too.
        shape: what the observations must be; None takes any.
        tasks: how many tasks there must be; None takes any.
        known: the name or the user's file that it must be of, of several files of the same name; None takes any.
    """
    if not (folder / ABOUT).is_file():
        raise UserError(f"{folder / ABOUT}: missing")
    about = checked(About, read_json(folder / ABOUT), folder / ABOUT)
    found = (about.indicator.observation_shape, about.indicator.num_tasks)
    wanted = (found[0] if shape is None else shape, found[1] if tasks is None else tasks)
    if found != wanted:
        raise UserError(f"{folder / ABOUT}: found observations and tasks {found}, expected {wanted}")
    for name, size in {NETWORKS: None, **(files or {})}.items():
        path, expected = folder / name, about.files.get(name)
        if not path.is_file():
            raise UserError(f"{path}: missing")
        if expected is None or size_and_crc(path) != (expected.bytes, expected.crc32):
            raise UserError(f"{path}: damaged: its checksum does not match")
        if size not in (None, expected.bytes):
            raise UserError(f"{path}: found {expected.bytes} bytes, expected {size}")
    try:
        if known is not None and about.indicator.name != name_of(known):
            raise UserError(f"{folder / ABOUT}: found {about.indicator.name}, expected {name_of(known)}")
        config = {**asdict(about.indicator), "name": known or about.indicator.name}
        tensors = load((folder / NETWORKS).read_bytes())
        with user_code():  # so that it is not taken for damage
            return indicator_from_config(config, tensors), about
    except (SafetensorError, TypeError, ValueError, RuntimeError, OverflowError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{folder / ABOUT}: the indicator cannot be made from it: {reason}") from error


def _load(folder: Path, data: Dataset, spec: IndicatorSpec) -> IndicatorRewards:
    """Open finished rewards; damage is a UserError."""
    shape = (data.num_frames if spec.arrival else data.num_transitions, -(-spec.tasks // 8))
    files = {BITS: shape[0] * shape[1]}
    indicator, about = load_checked(folder, files, data.observation_shape, spec.tasks, spec.indicator)
    if len(about.counts) != spec.tasks:
        raise UserError(f"{folder / ABOUT}: field counts: found {len(about.counts)} numbers, expected {spec.tasks}")
    bits = np.memmap(folder / BITS, np.uint8, "r", shape=shape)
    return IndicatorRewards(indicator, bits, np.array(about.counts) / len(bits), data if spec.arrival else None)
