"""Looking at a data set: a summary, a contact sheet of frames, and the check of every byte."""

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from protovalue.data.config import DataInfoConfig, DataVerifyConfig
from protovalue.data.dataset import Dataset, Folder, open_distinct
from protovalue.data.format import End
from protovalue.errors import UserError
from protovalue.files import write_atomic
from protovalue.progress import ProgressBar

# Okabe and Ito's colour-blind-safe palette, then four more: enough for MinAtar's ten channels.
_PALETTE = np.array(
    [
        [230, 159, 0], [86, 180, 233], [0, 158, 115], [240, 228, 66], [0, 114, 178],
        [213, 94, 0], [204, 121, 167], [255, 255, 255], [136, 34, 85], [153, 153, 153],
    ],
    np.uint8,
)  # fmt: skip
TILE, GAP, LABEL = 112, 6, 14
"""Of a sheet of pictures: the side of one, what is between them, and the height of the text above [pixels]."""
BACKGROUND = (32, 32, 36)


def info(config: DataInfoConfig) -> None:
    """Print a summary of a data set and draw its picture if asked for."""
    data = open_distinct(config.paths, "PATHS")
    for name, value in summary(data).items():
        print(f"{name:<14}{value}")
    if config.picture:
        image = io.BytesIO()
        contact_sheet(data).save(image, "PNG")
        config.picture.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(config.picture, image.getvalue())
        print(f"{'picture':<14}{config.picture}")


def verify(config: DataVerifyConfig) -> None:
    """Check every byte and decode every frame; the first damage found is a UserError."""
    folder = Folder(config.path)
    count = len(folder.episodes)
    with ProgressBar(f"verify {config.path}", count, "episodes") as bar:
        for index in range(count):
            folder.check_all(index)
            bar.advance(1)
    state = "interrupted while written, all complete episodes good" if folder.interrupted else "good"
    print(f"{config.path}: {state}: {count:,} episodes, {folder.manifest.transitions:,} transitions")


def summary(data: Dataset) -> dict[str, str]:
    """Return what there is to know about a data set, by name."""
    returns = np.concatenate([folder.episodes["episode_return"] for folder in data.folders])
    ends = {end.name.lower(): int((data.ends == end).sum()) for end in End}
    on_disk = sum(path.stat().st_size for folder in data.folders for path in folder.path.iterdir())
    iterations = np.unique(data.iterations[data.iterations >= 0])
    rows = {
        "folder": ", ".join(str(folder.path) for folder in data.folders),
        "environment": f"{data.env_id} ({_listed(data.env_options)})",
        "transitions": f"{data.num_transitions:,}",
        "episodes": f"{data.num_episodes:,} ({_listed(ends)})",
        "frames": f"{data.num_frames:,} of {_shape(data.frame_shape)} {data.frame_dtype}, {data.stack} in a stack",
        "actions": str(data.num_actions),
        "on disk": f"{on_disk / 2**20:,.1f} MiB, {on_disk / max(data.num_frames, 1):,.0f} bytes per frame",
        "rewards": data.rewards_are,
    }
    if data.num_episodes:
        low, middle, high = np.percentile(data.lengths, [0, 50, 100])
        rows["length"] = f"{low:,.0f} to {high:,.0f} steps, median {middle:,.0f}"
        rows["return"] = f"{returns.min():,.1f} to {returns.max():,.1f}, mean {returns.mean():,.2f}"
    if len(iterations):
        rows["iterations"] = f"{len(iterations)}: {iterations.min()} to {iterations.max()}"
    sources = [source for folder in data.folders for source in folder.manifest.provenance]
    for number, source in enumerate(sources):
        shown = {name: value for name, value in source.items() if name != "position"}  # of an import under way
        rows["provenance" if number == 0 else f"  and {number}"] = _listed(shown)
    rows["checksum"] = data.checksum
    if any(folder.interrupted for folder in data.folders):
        rows["state"] = "interrupted while it was written; all complete episodes are here"
    return rows


def contact_sheet(data: Dataset, rows: int = 5, columns: int = 8) -> Image.Image:
    """Draw frames: a row per episode, spread over the data set, and a column per moment, spread over the episode."""
    if data.num_episodes == 0:
        raise UserError(f"{data.folders[0].path}: the data set has no episodes to draw")
    episodes = np.unique(np.linspace(0, data.num_episodes - 1, rows).astype(int))
    sheet = Image.new("RGB", (columns * (TILE + GAP) + GAP, len(episodes) * (TILE + LABEL + GAP) + GAP), BACKGROUND)
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(11)
    for row, index in enumerate(episodes):
        steps = np.unique(np.linspace(0, data.lengths[index], columns).astype(int))
        frames = data.windows(np.full(len(steps), index), steps, 1)[:, 0]
        for column, step in enumerate(steps):
            x, y = GAP + column * (TILE + GAP), GAP + row * (TILE + LABEL + GAP)
            label = f"episode {index}" if not column else f"step {step}"
            draw.text((x, y), label, (220, 220, 220), font)
            sheet.paste(tile_of(picture(frames[column])), (x, y + LABEL))
    return sheet


def tile_of(image: Image.Image) -> Image.Image:
    """Make a picture of one frame as large as a tile; large pixels stay square."""
    smooth = Image.Resampling.BILINEAR if image.width >= 64 else Image.Resampling.NEAREST
    return image.resize((TILE, TILE), smooth)


def picture(frame: NDArray[Any]) -> Image.Image:
    """Draw one frame: grey or colour pixels as they are, other channels in one colour each."""
    if frame.dtype == np.uint8 and frame.ndim == 3 and frame.shape[-1] == 3:
        return Image.fromarray(frame)
    if frame.ndim == 1:
        frame = frame[None]
    scaled = frame if frame.dtype == np.uint8 else frame.astype(np.uint8) * np.uint8(255)
    if scaled.ndim == 2:
        return Image.fromarray(scaled).convert("RGB")
    image = np.zeros((*scaled.shape[:2], 3), np.uint8)
    for channel in range(scaled.shape[2]):  # a later channel covers an earlier one
        on = scaled[:, :, channel] > 0
        image[on] = _PALETTE[channel % len(_PALETTE)]
    return Image.fromarray(image)


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(str(size) for size in shape)


def _listed(fields: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in fields.items())
