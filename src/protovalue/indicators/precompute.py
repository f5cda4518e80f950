"""Indicator rewards of a whole data set, computed once, kept as bits on disk and shared by all later runs."""

import hashlib
import json
import logging
import os
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save
from torch import Tensor

from protovalue.data.dataset import Dataset
from protovalue.data.sampler import generator_at
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
from protovalue.indicators.registry import (
    indicator_class,
    indicator_from_config,
    load_indicator_file,
    make_indicator,
    module_of,
)
from protovalue.indicators.threshold import exact_thresholds, proportion_warnings, sgd_thresholds
from protovalue.progress import ProgressBar

log = logging.getLogger(__name__)

BITS, SCORES, NETWORKS, ABOUT = "bits.bin", "scores.bin", "indicator.safetensors", "indicator.json"
FORMAT = "protovalue indicator rewards, version 1"
PASS_BATCH = 512  # observations evaluated together: also the unit in which an interrupted pass continues
STATISTICS_FROM = 100_000  # transitions, evenly spaced, that the input normalisation is computed from


@dataclass(frozen=True)
class IndicatorSpec:
    """What determines the rewards of a data set's states."""

    indicator: str
    """A name in the registry, or the path of a Python file that registers one indicator."""
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


@dataclass(frozen=True)
class IndicatorRewards:
    """The rewards of every transition's state x, and the indicator that gives them for any other."""

    indicator: Indicator
    bits: NDArray[np.uint8]
    """(transitions, ceil(m / 8)), the first task in the highest bit."""
    proportions: NDArray[np.float64]
    """(m,) share of the data set's states on which each task's reward is 1."""

    def rewards(self, index: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return the rewards of the given transitions, (B, m)."""
        return np.unpackbits(self.bits[index], axis=1, count=self.indicator.num_tasks).view(np.bool_)


def default_cache() -> Path:
    """Return the folder for what is computed once per data set: PROTOVALUE_CACHE, or the user's cache folder."""
    base = os.environ.get("PROTOVALUE_CACHE") or Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")) / "protovalue"
    return Path(base).expanduser() / "indicators"


def cache_key(data: Dataset, spec: IndicatorSpec) -> str:
    """Name the rewards of a data set's contents under a specification."""
    fields: dict[str, Any] = {"format": FORMAT, "data": data.checksum, "stack": data.stack, **asdict(spec)}
    if spec.threshold == "exact":
        del fields["burn_in"]
    path = Path(spec.indicator)
    if path.suffix == ".py" and path.is_file():  # a user's indicator: its code counts, not its place
        fields["indicator"] = hashlib.sha256(path.read_bytes()).hexdigest()
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:32]


def indicator_rewards(
    data: Dataset, spec: IndicatorSpec, cache: Path | None = None, device: str = "cpu", quiet: bool = False
) -> IndicatorRewards:
    """Return the rewards of a data set, from the cache or computed now; an interrupted computation continues."""
    _import_indicator(spec)
    final = computed_once(
        cache, cache_key(data, spec), "indicator rewards", lambda folder: _compute(data, spec, folder, device, quiet)
    )
    found = _load(final, data)
    for line in proportion_warnings(found.proportions.tolist(), spec.proportion):
        log.warning("indicators: %s", line)
    return found


def computed_once(cache: Path | None, key: str, what: str, compute: Callable[[Path], None]) -> Path:
    """Return the cache's folder `key`, which `compute` fills if it is not there yet.

    What `compute` leaves behind when it is killed, it finds again the next time; a full disk leaves nothing behind.
    """
    cache = default_cache() if cache is None else cache
    cache.mkdir(parents=True, exist_ok=True)
    final = cache / key
    if not final.is_dir():
        beside = final.with_name(f"{final.name}.partial")
        make_folder(beside)
        refuse_links(beside)
        with FolderLock(beside, wait=True):
            if not final.is_dir():  # another process may have finished it while this one waited
                try:
                    compute(beside)
                except OSError as error:
                    shutil.rmtree(beside, ignore_errors=True)
                    raise UserError(f"{final}: cannot write the {what}: {error.strerror}") from error
                beside.rename(final)
                fsync_folder(cache)
    return final


def _import_indicator(spec: IndicatorSpec) -> None:
    """Make the indicator's class known; a user's file is run."""
    if spec.indicator.endswith(".py"):
        load_indicator_file(Path(spec.indicator))


def build_indicator(data: Dataset, spec: IndicatorSpec) -> Indicator:
    """Draw the indicator's parameters."""
    name = spec.indicator
    if name.endswith(".py"):
        from protovalue.indicators.base import INDICATORS

        module = module_of(Path(name))
        name = next(known for known, cls in INDICATORS.items() if cls.__module__ == module)
    options: dict[str, Any] = {}
    if indicator_class(name).name == "rni":
        options["tasks_per_module"] = spec.tasks_per_module
        if spec.normalize:
            options["channel_mean"], options["channel_std"] = channel_statistics(data)
    elif spec.normalize:
        raise UserError(f"--normalize: only random network indicators have it, found indicator {spec.indicator}")
    generator = torch.Generator().manual_seed(spec.seed)
    return make_indicator(name, data.observation_shape, spec.tasks, spec.proportion, generator, **options)


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
    states = States(data, final=False)
    if indicator.tuned_on_data:
        scores = all_scores(states, indicator.scores, spec.tasks, folder / SCORES, device, quiet)
        if spec.threshold == "exact":
            thresholds = exact_thresholds(lambda: _chunks(scores), spec.proportion).thresholds
        else:
            thresholds = sgd_thresholds(_random_batches(scores, spec.seed), spec.proportion, steps=spec.burn_in)
        indicator.set_thresholds(thresholds.to(device))
        limits = indicator.thresholds.cpu()
        parts: Iterator[Tensor] = (chunk >= limits for chunk in _chunks(scores))
    else:
        batches = _score_batches(states, indicator.scores, 0, device, quiet)
        parts = (scores >= indicator.thresholds.cpu() for scores in batches)
    counts, crc = np.zeros(spec.tasks, np.int64), 0
    with (folder / BITS).open("wb") as file:
        for part in parts:
            fires = part.numpy()
            counts += fires.sum(axis=0)
            packed = np.packbits(fires, axis=1).tobytes()
            crc = zlib.crc32(packed, crc)
            file.write(packed)
        file.flush()
        os.fsync(file.fileno())
    about = {"spec": asdict(spec), "transitions": data.num_transitions, "counts": counts.tolist(), "crc32": crc}
    save_indicator(indicator, folder, about)
    (folder / SCORES).unlink(missing_ok=True)


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


def _score_batches(states: States, function: Scores, first: int, device: str, quiet: bool) -> Iterator[Tensor]:
    """Evaluate a function on every state from `first` on, in order, in batches."""
    with ProgressBar("indicators", states.count, "states", first, quiet) as bar:
        for start in range(first, states.count, PASS_BATCH):
            obs = states.observations(start, min(start + PASS_BATCH, states.count))
            yield function(obs.to(device)).cpu()
            bar.advance(len(obs))


def all_scores(
    states: States, function: Scores, tasks: int, path: Path, device: str, quiet: bool
) -> NDArray[np.float32]:
    """Write a function's values on all states to a file and map it, (states, m); an interrupted pass goes on."""
    row = 4 * tasks
    needed = states.count * row
    done = (path.stat().st_size if path.exists() else 0) // (row * PASS_BATCH) * PASS_BATCH
    free = shutil.disk_usage(path.parent).free
    if free < needed - done * row:
        raise UserError(
            f"{path.parent}: no room for {path.name}, a value per state and task: found {free >> 20} MiB, "
            f"expected {needed >> 20} MiB; choose another place with --cache"
        )
    with path.open("ab") as file:
        file.truncate(done * row)
        for scores in _score_batches(states, function, done, device, quiet):
            file.write(scores.numpy().astype("<f4").tobytes())
    return np.memmap(path, "<f4", "r", shape=(states.count, tasks))


def _chunks(scores: NDArray[np.float32], size: int = 16_384) -> Iterator[Tensor]:
    """Give scores in order, some rows at a time."""
    for start in range(0, len(scores), size):
        yield torch.from_numpy(np.array(scores[start : start + size]))


def _random_batches(scores: NDArray[np.float32], seed: int, size: int = 256) -> Iterator[Tensor]:
    """Give scores of random states for ever, as quantile regression draws them."""
    step = 0
    while True:
        index = generator_at(seed, step, stream=3).integers(len(scores), size=size)
        yield torch.from_numpy(np.array(scores[index]))
        step += 1


def save_indicator(indicator: Indicator, folder: Path, about: Mapping[str, Any] | None = None) -> None:
    """Write an indicator with its thresholds as JSON and safetensors."""
    make_folder(folder)
    tensors = save({name: tensor.cpu().contiguous() for name, tensor in indicator.state_dict().items()})
    write_atomic(folder / NETWORKS, tensors)
    write_json(folder / ABOUT, {"format": FORMAT, "indicator": indicator.config(), **(about or {})})


def load_indicator(folder: Path) -> Indicator:
    """Read what `save_indicator` wrote; `rewards(obs)` then gives the rewards of any observation."""
    return indicator_from_config(read_json(folder / ABOUT)["indicator"], load_file(folder / NETWORKS))


def _load(folder: Path, data: Dataset) -> IndicatorRewards:
    """Open finished rewards; damage is a UserError that says what to remove."""
    try:
        about = read_json(folder / ABOUT)
        indicator = load_indicator(folder)
        rows = -(-indicator.num_tasks // 8)
        if size_and_crc(folder / BITS) != (rows * data.num_transitions, about["crc32"]):
            raise UserError(f"{folder / BITS}: damaged: its checksum does not match")
    except (UserError, OSError, KeyError, ValueError) as error:
        raise UserError(f"{error} (remove {folder} to compute the indicator rewards again)") from error
    bits = np.memmap(folder / BITS, np.uint8, "r", shape=(data.num_transitions, rows))
    proportions = np.array(about["counts"]) / data.num_transitions
    return IndicatorRewards(indicator, bits, proportions)
