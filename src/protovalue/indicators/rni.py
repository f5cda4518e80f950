"""Random network indicators: r(x) = 1[g(x) >= 0] with g(x) = g1(x)^T omega + b and a random network g1."""

from typing import cast

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from protovalue.errors import UserError
from protovalue.indicators.base import Indicator
from protovalue.nets.convolutions import ConvTrunk
from protovalue.nets.layers import (
    Dense,
    ObservationShapeError,
    check_observation_shape,
    check_observations,
    planes,
)
from protovalue.nets.minatar import MINATAR
from protovalue.nets.nature import NATURE
from protovalue.nets.patches import Patches, convolved, find_patches

NATURE_SIZE = 36
"""Frames of at least this height and width get the Nature-DQN network, smaller ones MinAtar's [pixels].

36 is the smallest size at which the original, unpadded Nature-DQN convolutions leave anything.
"""

STD_FLOOR = 0.01
"""Smallest standard deviation that normalisation divides by, on the scale where a pixel lies in [0, 1].

A channel that is never or hardly ever on would otherwise drown all others on the few frames where it is.
"""

SCORE_STEP = 2.0**-18
"""Scores are rounded to multiples of this.

Floating-point sums differ by about 1e-7 with the size of the batch and the machine, and a threshold is itself the score
of some state, often of one that occurs many times: unrounded, that state's reward would differ from one batch to the
next. With thresholds at states' scores, 600 tasks on random 10 x 10 x 4 frames, some bit changed between batches of 48
and of 1 in 263 tasks; with rounding in 5 (2^-16: 1, 2^-20: 28). A coarser step makes ties of different states: scores
spread least on Atari (Pong: standard deviation 0.003 over states), where this step moves a proportion by 0.2% of it.
"""


class _Module(nn.Module):
    """One randomly initialised DQN network with several outputs in place of action values."""

    def __init__(
        self,
        in_channels: int,
        frame_size: tuple[int, int],
        outputs: int,
        hidden: bool,
        relu: bool,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.relu = relu
        spec = NATURE if min(frame_size) >= NATURE_SIZE else MINATAR
        self.trunk = ConvTrunk(spec, in_channels, frame_size, 1, generator)
        units = self.trunk.flat_features
        self.hidden = Dense(units, spec.features, generator) if hidden else None
        self.omega = Dense(spec.features if hidden else units, outputs, generator)

    def forward(self, x: Tensor) -> Tensor:
        return self._outputs(self.trunk(x))

    def of_patches(self, patches: Patches, x: Tensor) -> Tensor:
        """Return the outputs on the different ones of some images, given their different patches as input."""
        return self._outputs(convolved(self.trunk, patches, x))

    def _outputs(self, g1: Tensor) -> Tensor:
        if self.hidden is not None:
            g1 = F.relu_(self.hidden(g1))
        outputs = cast("Tensor", self.omega(g1))
        return F.relu_(outputs) if self.relu else outputs


def by_patches(observation_shape: tuple[int, ...], device: str = "cpu") -> bool:
    """Say whether the convolutions of such observations are computed patch by patch, as `nets.patches` does."""
    _, height, width, _ = check_observation_shape(observation_shape)
    return min(height, width) >= NATURE_SIZE and device == "cpu"


class RandomNetworks(nn.Module):
    """m real-valued random functions g1(x)^T omega of an observation, several to a network.

    Each module is the DQN network of the domain (Nature-DQN for images, MinAtar's for small frames) with Glorot-uniform
    kernels, zero biases and up to `tasks_per_module` outputs; the last module has fewer if m asks for it.

    Modules are evaluated one after another: on a CPU grouped convolutions over all of them were slower at 84 x 84, and
    one shared first convolution slower at 10 x 10. What they share on large frames is which patches are the same.

    Args:
        observation_shape: (stack, H, W) or (stack, H, W, C).
        num_tasks: number of functions m.
        generator: source of all parameters.
        tasks_per_module: outputs of one network.
        hidden: keep the DQN network's dense layer, as in the paper's text; the reference code has none. Without it the
            parameters of 100 tasks on 84 x 84 x 4 take 6 MB instead of 162 MB.
        relu: put the outputs through a ReLU, as the reference code does; the paper's text has linear ones. Where an
            output is negative on more than 1 - p of the states, its task then has nothing but ties to choose from.
        channel_mean: mean of each channel of a frame over the data set, pixels in [0, 1]; with `channel_std`
            the networks' input is normalised. The paper does not.
        channel_std: standard deviation of each channel of a frame; not less than `STD_FLOOR` is divided by.
    """

    channel_mean: Tensor
    channel_std: Tensor

    def __init__(
        self,
        observation_shape: tuple[int, ...],
        num_tasks: int,
        generator: torch.Generator,
        tasks_per_module: int = 10,
        hidden: bool = True,
        relu: bool = False,
        channel_mean: list[float] | None = None,
        channel_std: list[float] | None = None,
    ) -> None:
        super().__init__()
        stack, height, width, channels = check_observation_shape(observation_shape)
        if min(height, width) < 3:
            raise ObservationShapeError(
                f"observation shape: found {tuple(observation_shape)}, expected frames of at least 3 x 3"
            )
        if tasks_per_module < 1:
            raise UserError(f"tasks per module: found {tasks_per_module}, expected at least 1")
        self.observation_shape = tuple(observation_shape)
        self.modules_ = nn.ModuleList(
            _Module(
                stack * channels, (height, width), min(tasks_per_module, num_tasks - first), hidden, relu, generator
            )
            for first in range(0, num_tasks, tasks_per_module)
        )
        self.requires_grad_(False)
        self.normalized = channel_mean is not None
        if (channel_mean is None) != (channel_std is None):
            raise UserError("normalisation: found only one of channel_mean and channel_std, expected both or neither")
        if channel_mean is not None and channel_std is not None:
            for name, values in (("channel_mean", channel_mean), ("channel_std", channel_std)):
                if len(values) != channels:
                    raise UserError(f"normalisation: found {len(values)} values of {name}, expected {channels}")
            # A frame's channels repeat over the stack: channel s * C + c of the input is channel c.
            self.register_buffer("channel_mean", torch.tensor(channel_mean, dtype=torch.float32).repeat(stack))
            std = torch.tensor(channel_std, dtype=torch.float32).clamp_min(STD_FLOOR)
            self.register_buffer("channel_std", std.repeat(stack))

    def forward(self, obs: Tensor) -> Tensor:
        """Map observations (N, *observation_shape), uint8 or bool, to (N, m), float32."""
        check_observations(obs, self.observation_shape)
        if by_patches(self.observation_shape, obs.device.type):
            patches = find_patches(obs, NATURE)
            if patches.repeated:
                x = self._input(patches.pixels) * patches.inside
                rows = [cast("_Module", module).of_patches(patches, x) for module in self.modules_]
                return torch.cat(rows, dim=1)[patches.image]
        x = self._input(obs)
        return torch.cat([module(x) for module in self.modules_], dim=1)

    def _input(self, obs: Tensor) -> Tensor:
        x = planes(obs, tuple(obs.shape[1:]))
        if self.normalized:
            x.sub_(self.channel_mean[:, None, None]).div_(self.channel_std[:, None, None])
        return x


class RandomNetworkIndicator(Indicator):
    """Random network indicators; the bias b of the paper is minus the threshold.

    Options: `tasks_per_module`, `hidden`, `relu`, `channel_mean` and `channel_std`, as in `RandomNetworks`.
    """

    def __init__(
        self,
        observation_shape: tuple[int, ...],
        num_tasks: int,
        proportion: float,
        generator: torch.Generator,
        tasks_per_module: int = 10,
        hidden: bool = True,
        relu: bool = False,
        channel_mean: list[float] | None = None,
        channel_std: list[float] | None = None,
    ) -> None:
        super().__init__(observation_shape, num_tasks, proportion)
        self.networks = RandomNetworks(
            observation_shape, num_tasks, generator, tasks_per_module, hidden, relu, channel_mean, channel_std
        )

    @torch.no_grad()
    def scores(self, obs: Tensor) -> Tensor:
        """Return g1(x)^T omega, rounded to `SCORE_STEP`: observations (N, *observation_shape) to (N, m)."""
        scores = cast("Tensor", self.networks(obs))
        return scores.div_(SCORE_STEP).round_().mul_(SCORE_STEP)


INDICATOR = RandomNetworkIndicator
