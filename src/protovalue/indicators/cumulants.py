"""Random cumulants of a whole data set: f_j of every state, computed once; a transition's is s (f_j(x') - f_j(x))."""

import hashlib
import json
import logging
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protovalue.compiling import PATCHES
from protovalue.data.dataset import Dataset
from protovalue.errors import UserError
from protovalue.files import size_and_crc
from protovalue.indicators.precompute import (
    ABOUT,
    Changes,
    IndicatorSpec,
    States,
    StoredFile,
    all_scores,
    announce,
    build_indicator,
    computed_once,
    help_with_scores,
    load_checked,
    save_indicator,
    sums_of,
)
from protovalue.indicators.rni import RandomNetworkIndicator, by_patches

log = logging.getLogger(__name__)

FORMAT = "protovalue cumulants, version 2"
VALUES = "values.bin"


@dataclass(frozen=True)
class CumulantSpec:
    """What determines the values f_j of a data set's states."""

    tasks: int
    """Number of tasks m."""
    seed: int
    """Seed of the random networks."""
    normalize: bool = False
    """Normalise the networks' input per channel over the data set."""
    tasks_per_module: int = 10
    """Tasks that share one random network."""


@dataclass(frozen=True)
class Cumulants:
    """f_j of every state of a data set, and the networks that give it for any other.

    Values are kept in single precision: a cumulant is a small difference of two of them.
    """

    indicator: RandomNetworkIndicator
    """Holds the networks; it has no thresholds. With the same seed they are those of the random network indicators."""
    data: Dataset
    values: NDArray[np.float32]
    """(frames, m): row `transition + episode` is x, the row after it x'; an episode has one row more than actions."""
    deviation: NDArray[np.float32]
    """(m,) standard deviation of f_j over all states."""

    def differences(self, index: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return f_j(x') - f_j(x) of the given transitions, (B, m)."""
        return Changes(self.values, self.data)[index]

    @torch.no_grad()
    def of(self, obs: Tensor) -> Tensor:
        """Return f_j of observations (N, *observation_shape), (N, m)."""
        found: Tensor = self.indicator.networks(obs)
        return found


def cumulants(
    data: Dataset, spec: CumulantSpec, cache: Path | None = None, device: str = "cpu", quiet: bool = False
) -> Cumulants:
    """Return the cumulants of a data set, from the cache or computed now; an interrupted computation continues."""
    fields = {"format": FORMAT, "data": data.checksum, "stack": data.stack, **asdict(spec)}
    if by_patches(data.observation_shape):
        fields["patches"] = PATCHES
    key = hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:32]
    found = computed_once(
        cache,
        key,
        "cumulants",
        lambda folder: _compute(data, spec, folder, device, quiet),
        lambda folder: _load(folder, data, spec),
        lambda: help_with_scores(
            States(data, final=True), lambda: _networks(data, spec, device).networks, spec.tasks, device
        ),
    )
    constant = int((found.deviation == 0).sum())
    if constant:
        log.warning(
            "cumulants: %d of %d networks are constant on the data set: their tasks are empty", constant, spec.tasks
        )
    return found


def _compute(data: Dataset, spec: CumulantSpec, folder: Path, device: str, quiet: bool) -> None:
    """Fill `folder` with the networks and their values on every state, the last one of each episode too."""
    indicator = _networks(data, spec, device)
    states = States(data, final=True)
    kept = announce("cumulants", indicator, states, folder, quiet, 4 * spec.tasks, 0)
    others = kept - 4 * spec.tasks * states.count
    with torch.no_grad():
        values = all_scores(states, indicator.networks, spec.tasks, folder / VALUES, device, quiet, others)
    file = StoredFile(*size_and_crc(folder / VALUES, durable=True))
    save_indicator(indicator, folder, {"spec": asdict(spec), "deviation": _deviation(values).tolist()}, {VALUES: file})
    sums_of(folder / VALUES).unlink()


def _networks(data: Dataset, spec: CumulantSpec, device: str) -> RandomNetworkIndicator:
    """Draw the random networks."""
    # The proportion is for thresholds, of which cumulants have none.
    like = IndicatorSpec(
        "rni", spec.tasks, 0.5, spec.seed, normalize=spec.normalize, tasks_per_module=spec.tasks_per_module
    )
    indicator = build_indicator(data, like).to(device)
    assert isinstance(indicator, RandomNetworkIndicator)
    return indicator


def _deviation(values: NDArray[np.float32], size: int = 16_384) -> NDArray[np.float64]:
    """Return the standard deviation of each column, some rows at a time; sums are taken around the first row."""
    total, square = np.zeros(values.shape[1]), np.zeros(values.shape[1])
    for start in range(0, len(values), size):
        part = values[start : start + size].astype(np.float64) - values[0]
        total += part.sum(axis=0)
        square += (part**2).sum(axis=0)
    return np.asarray(np.sqrt(np.maximum(square / len(values) - (total / len(values)) ** 2, 0)))


def _load(folder: Path, data: Dataset, spec: CumulantSpec) -> Cumulants:
    """Open finished cumulants; damage is a UserError."""
    files = {VALUES: 4 * spec.tasks * data.num_frames}
    indicator, about = load_checked(folder, files, data.observation_shape, spec.tasks)
    if not isinstance(indicator, RandomNetworkIndicator) or len(about.deviation) != spec.tasks:
        found = f"found {indicator.name} with {len(about.deviation)} deviations"
        raise UserError(f"{folder / ABOUT}: {found}, expected rni with {spec.tasks}")
    values = np.memmap(folder / VALUES, "<f4", "r", shape=(data.num_frames, spec.tasks))
    return Cumulants(indicator, data, values, np.array(about.deviation, np.float32))
