"""What `pvn sets` runs: the sets of a pretraining run on its data, in numbers and as a picture."""

import io
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from protovalue.config import before_choices
from protovalue.data.dataset import Dataset, open_distinct
from protovalue.data.info import BACKGROUND, GAP, LABEL, TILE, picture, tile_of
from protovalue.errors import UserError
from protovalue.files import check_place, write_atomic
from protovalue.nets.statistics import effective_rank
from protovalue.pretrain.method_configs import PvnConfig
from protovalue.pretrain.pvn import ProtoValueNetwork
from protovalue.runs import CONFIG, config_from, read_run
from protovalue.sets.config import SetsConfig

COLUMNS = 8  # states of a set that are drawn
MOST = 200_000  # transitions that are looked at
SEEN = 512  # states of a set, and of all, whose mean is drawn


@dataclass(frozen=True)
class SetNumbers:
    """What there is to know of the sets on a data set, an array (m,) each."""

    share: NDArray[np.float64]
    """Share of the transitions that count."""
    stay: NDArray[np.float64]
    """Mean number of steps from entering a set to leaving it; NaN where it is never entered."""
    episodes: NDArray[np.float64]
    """Share of the episodes that enter it."""
    spread: NDArray[np.float64]
    """Standard deviation of the discounted sum that is predicted, over the data."""


def sets_command(config: SetsConfig) -> None:
    """Print the numbers and draw the picture."""
    if config.picture is not None:
        check_place(config.picture.parent)
    method = open_method(config)
    data, (index, starts) = method.data, some_episodes(method.data)
    rewards = method.rewards(index)
    found = numbers(rewards, starts, method.spreads())
    part = f" of {data.num_transitions:,}" if len(index) < data.num_transitions else ""
    print(f"{config.run}: {rewards.shape[1]} sets on {len(index):,}{part} transitions of {data.env_id}")
    print(f"{'':<34}{'least':>9}{'median':>9}{'most':>9}")
    names = {
        "share": "share of the states",
        "stay": "steps from entering to leaving",
        "episodes": "share of the episodes that enter",
        "spread": "spread of the discounted sums",
    }
    for one in fields(found):
        values = getattr(found, one.name)
        row = np.nanpercentile(values, [0, 50, 100]) if np.isfinite(values).any() else np.full(3, np.nan)
        print(f"{names[one.name]:<34}" + "".join(f"{value:>9.3f}" for value in row))
    print(f"{'different sets (effective rank)':<34}{different(rewards):>9.1f}")
    if config.picture is not None:
        image = io.BytesIO()
        sheet(data, index, rewards, found, config.rows).save(image, "PNG")
        config.picture.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(config.picture, image.getvalue())
        print(f"picture: {config.picture}")


def open_method(config: SetsConfig) -> ProtoValueNetwork:
    """Make the method of a run again, with its sets on its data; computed ones come from the cache."""
    recorded = read_run(config.run)["config"]
    if recorded.get("method") != "pvn" or not recorded.get("tasks"):
        raise UserError(f"{config.run}: found a run without sets, expected one of pvn pretrain --method pvn with tasks")
    given = {"data": config.data} if config.data else {}
    before = {name: value for name, value in before_choices(PvnConfig).items() if name not in recorded}
    made = config_from(PvnConfig, recorded, out=config.run, holdout=(), **before, **given)
    data = open_distinct(made.data, "--data")
    if data.checksum != recorded.get("data_checksum"):
        raise UserError(
            f"--data: found a data set with checksum {data.checksum}, expected {recorded.get('data_checksum')}, on "
            f"which {config.run / CONFIG} says that it was trained"
        )
    return ProtoValueNetwork(made, data, data.observation_shape, "cpu")


def some_episodes(data: Dataset, most: int = MOST) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the transitions of whole episodes, evenly spaced, of at most `most` or one episode; and where each starts.

    Starts are counted in what is returned.
    """
    mean = data.num_transitions / data.num_episodes
    chosen = np.unique(np.linspace(0, data.num_episodes - 1, max(1, int(most / mean))).astype(np.int64))
    chosen = chosen[: max(1, int(np.searchsorted(np.cumsum(data.lengths[chosen]), most, side="right")))]
    lengths = data.lengths[chosen]
    index = np.concatenate([data.starts[one] + np.arange(data.lengths[one]) for one in chosen])
    return index, np.cumsum(lengths) - lengths


def numbers(rewards: NDArray[np.bool_], starts: NDArray[np.int64], spread: NDArray[np.float64]) -> SetNumbers:
    """Count how episodes, which start at `starts`, enter and leave sets, given their rewards (transitions, m)."""
    entered = rewards.copy()
    entered[1:] &= ~rewards[:-1]
    entered[starts] = rewards[starts]  # an episode that begins in a set enters it
    visits = entered.sum(axis=0)
    with np.errstate(invalid="ignore"):
        stay = rewards.sum(axis=0) / np.where(visits > 0, visits, np.nan)
    met = np.logical_or.reduceat(rewards, starts, axis=0)
    return SetNumbers(rewards.mean(axis=0), stay, met.mean(axis=0), spread)


def different(rewards: NDArray[np.bool_]) -> float:
    """Return the effective rank of the sets' centred, equally scaled rewards: how many different tasks they are."""
    centred = rewards - rewards.mean(axis=0)
    scale = centred.std(axis=0)
    useful = scale > 0
    return effective_rank(torch.from_numpy(centred[:, useful] / scale[useful])) if useful.any() else 0.0


def sheet(
    data: Dataset, index: NDArray[np.int64], rewards: NDArray[np.bool_], found: SetNumbers, rows: int
) -> Image.Image:
    """Draw a row for each of some sets: its mean frame less that of all, then some of its states.

    `rewards` are those of the transitions in `index`.
    """
    tasks = np.unique(np.linspace(0, rewards.shape[1] - 1, rows).astype(int))
    size = ((COLUMNS + 1) * (TILE + GAP) + GAP, len(tasks) * (TILE + LABEL + GAP) + GAP)
    image = Image.new("RGB", size, BACKGROUND)
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(11)
    usual = _mean(data, index)
    for row, task in enumerate(tasks):
        y = GAP + row * (TILE + LABEL + GAP)
        text = f"set {task + 1}: {found.share[task]:.1%} of the states, {found.stay[task]:.1f} steps a stay, in "
        draw.text((GAP, y), f"{text}{found.episodes[task]:.0%} of the episodes", (220, 220, 220), font)
        members = index[rewards[:, task]]
        if not len(members):
            continue
        image.paste(tile_of(_difference(_mean(data, members), usual)), (GAP, y + LABEL))
        chosen = members[np.unique(np.linspace(0, len(members) - 1, COLUMNS).astype(int))]
        for column, frame in enumerate(_frames(data, chosen), 1):
            image.paste(tile_of(picture(frame)), (GAP + column * (TILE + GAP), y + LABEL))
    return image


def _frames(data: Dataset, index: NDArray[np.int64]) -> NDArray[Any]:
    """Return the newest frame of the state of each transition."""
    episode, step = data.locate(index)
    return data.windows(episode, step, 1)[:, 0]


def _mean(data: Dataset, index: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the mean frame of evenly spaced ones of the given transitions, from 0 to 1."""
    some = index[np.unique(np.linspace(0, len(index) - 1, SEEN).astype(int))]
    frames = _frames(data, some)
    mean: NDArray[np.float64] = frames.mean(axis=0) / (255 if frames.dtype == np.uint8 else 1)
    return mean


def _difference(mean: NDArray[np.float64], usual: NDArray[np.float64]) -> Image.Image:
    """Draw where a mean frame is above (orange) and below (blue) the usual one; of channels the one that differs most.

    The largest difference has the full colour.
    """
    change = mean - usual
    if change.ndim == 3:
        most = np.abs(change).argmax(axis=2)
        change = np.take_along_axis(change, most[..., None], axis=2)[..., 0]
    change = change / max(float(np.abs(change).max()), 1e-9)
    colours = np.where(change[..., None] > 0, (230, 159, 0), (86, 180, 233))
    return Image.fromarray((colours * np.abs(change)[..., None]).astype(np.uint8))
