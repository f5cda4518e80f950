"""The MDS explorer of the page: one trajectory as points in the plane for every method, and the frame of each state."""

import base64
from dataclasses import dataclass

import matplotlib
import numpy as np
from matplotlib.colors import to_hex

from protovalue.report.model import Embedding, Gallery
from protovalue.report.numbers import fixed

TIME = matplotlib.colormaps["viridis"]  # dark to light; lightness alone says the order to colour-blind readers
HALF, RADIUS = 100, 90  # of a plot's view box, and of the circle that holds its points


@dataclass(frozen=True)
class Plot:
    """One method's picture of the trajectory, as SVG attributes."""

    method: str
    encoder: str
    stress: str
    trail: str
    """The path through the states in their order."""
    circles: tuple[tuple[str, str, str], ...]
    """x, y and colour of each state."""


@dataclass(frozen=True)
class Explorer:
    """All plots of one environment and the frames that they share."""

    env: str
    player: str
    episode_return: float
    steps: tuple[int, ...]
    frames: tuple[str, ...]
    """PNG pictures as base64 text."""
    plots: tuple[Plot, ...]
    size: int
    """Bytes on the page, about."""


def explorer(gallery: Gallery) -> Explorer:
    """Return what the template draws of a gallery."""
    frames = tuple(base64.b64encode(frame).decode("ascii") for frame in gallery.frames)
    plots = tuple(_plot(embedding) for embedding in gallery.embeddings)
    drawn = sum(len(plot.trail) + 52 * len(plot.circles) + 900 for plot in plots)
    size = sum(len(frame) + 3 for frame in frames) + drawn + 2_000
    return Explorer(gallery.env, gallery.player, gallery.episode_return, gallery.steps, frames, plots, size)


def time_colours(count: int) -> list[str]:
    """Return the colours of `count` states in their order, dark to light."""
    return [to_hex(TIME(place)) for place in np.linspace(0.0, 1.0, count)]


def _plot(embedding: Embedding) -> Plot:
    # The plane's second axis points up, that of SVG down.
    places = [(f"{RADIUS * x:.1f}", f"{-RADIUS * y:.1f}") for x, y in embedding.points]
    colours = time_colours(len(places))
    return Plot(
        method=embedding.method,
        encoder=embedding.encoder,
        stress=fixed(embedding.stress, 2),
        trail="M" + " ".join(f"{x},{y}" for x, y in places),
        circles=tuple((x, y, colour) for (x, y), colour in zip(places, colours, strict=True)),
    )
