"""A picture of an encoder: its features while random play goes on, and how many directions they fill."""

import io

import matplotlib
import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from numpy.typing import NDArray
from PIL import Image

from protovalue.encoder import FrozenEncoder
from protovalue.envs.base import Env
from protovalue.envs.probe import random_observations
from protovalue.envs.registry import make
from protovalue.nets.statistics import effective_rank
from protovalue.randomness import numpy_generator
from protovalue.report.figures import PALETTE, STYLE

STEPS = 120  # of random play that are shown
DPI = 90
COLOURS = 96  # of the file, which is half as large so


def draw(encoder: FrozenEncoder, env: Env) -> bytes:
    """Return a PNG file; the same encoder gives the same bytes."""
    shown, method = _features_in_play(encoder, env), encoder.about.get("method") or "unknown method"
    spread = encoder.features(random_observations(env))
    values = torch.linalg.svdvals(spread.double())
    share = (values.square().cumsum(0) / values.square().sum().clamp_min(1e-30)).numpy()
    order = np.argsort(-shown.mean(axis=0))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(10, 3.6), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=(2, 1))
        image = left.imshow(shown[:, order].T, aspect="auto", cmap="magma", interpolation="nearest")
        left.set(xlabel="step of random play", ylabel="feature, by its mean", title=f"{env.env_id}: {method}")
        figure.colorbar(image, ax=left, label="value")
        right.plot(np.arange(1, len(share) + 1), share, color=PALETTE[0])
        right.set(xlabel="directions", ylabel="share of the squared norm", ylim=(0, 1.02), xscale="log")
        right.set_title(f"effective rank {effective_rank(spread):.1f} of {encoder.num_features}")
        right.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=DPI)
    small = io.BytesIO()
    Image.open(buffer).convert("RGB").quantize(COLOURS).save(small, "PNG", optimize=True)
    return small.getvalue()


def _features_in_play(encoder: FrozenEncoder, like: Env) -> NDArray[np.float32]:
    """Return the features (STEPS, k) of consecutive observations."""
    env = make(like.env_id, 1, **like.options)
    rng = numpy_generator(0)
    obs, _ = env.reset(seed=0)
    seen = []
    for _ in range(STEPS):
        seen.append(obs[0])
        obs = env.step(rng.integers(env.num_actions, size=1))[0]
    env.close()
    found: NDArray[np.float32] = encoder.features(np.stack(seen)).numpy()
    return found
