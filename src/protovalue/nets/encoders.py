"""Encoders: networks that map stored observations to features (Impala-CNN, Nature-DQN, MinAtar), each with a width."""

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import ClassVar, Literal, cast

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from protovalue.errors import UserError, unknown
from protovalue.nets.layers import (
    Conv,
    Dense,
    ObservationShapeError,
    Padding,
    check_observation_shape,
    flatten,
    max_pool,
    output_size,
    planes,
    renormalize,
)
from protovalue.precision import Precision

Readout = Literal["relu", "projection"]
"""How an encoder's last, dense layer gives features of the latents: dense(z) cut off at 0 or, as self-predictive
representations have it, dense(z') of latents z' scaled to [0, 1]."""


class Encoder(nn.Module):
    """What every encoder has: `observation_shape`, `num_features`, and a forward pass from stored observations.

    A subclass says which convolutions it has (`convolve`) and how many features its last, dense layer gives.
    """

    minimum_size: ClassVar[int] = 1
    """Smallest height and width of a frame [pixels]."""
    # These three are set by the subclass.
    num_features: int
    latent_shape: tuple[int, int, int]
    """Channels, height and width of what the convolutions give."""
    dense: Dense

    def __init__(self, observation_shape: tuple[int, ...]) -> None:
        super().__init__()
        stack, height, width, channels = check_observation_shape(observation_shape)
        if min(height, width) < self.minimum_size:
            raise ObservationShapeError(
                f"observation shape: found {tuple(observation_shape)}, expected frames of at least "
                f"{self.minimum_size} x {self.minimum_size} for this encoder"
            )
        self.observation_shape = tuple(observation_shape)
        self.frame_size = (height, width)
        self.in_channels = stack * channels
        self.readout: Readout = "relu"
        self.precision: Precision = "float32"  # that of its arithmetic; a method changes it while it computes its loss

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context in which this network, and what else belongs to it, computes."""
        device = next(self.parameters()).device.type
        return torch.autocast(device, torch.bfloat16) if self.precision == "bfloat16" else nullcontext()

    def forward(self, obs: Tensor) -> Tensor:
        """Map observations (N, stack, H, W[, C]), uint8 or bool, to features (N, num_features), float32.

        They are >= 0, but for the readout "projection".
        """
        with self.autocast():
            latents = self.convolve(planes(obs, self.observation_shape))
            projection = self.readout == "projection"
            features = self.dense(renormalize(latents)) if projection else F.relu_(self.dense(latents))
        return cast("Tensor", features).to(torch.float32)

    def convolve(self, x: Tensor) -> Tensor:
        """Map (N, stack * C, H, W) in [0, 1] to the input of the dense layer, flattened."""
        raise NotImplementedError


class _ResidualBlock(nn.Module):
    """x + conv(relu(conv(relu(x))))."""

    def __init__(self, channels: int, generator: torch.Generator) -> None:
        super().__init__()
        self.first = Conv(channels, channels, 3, 1, generator)
        self.second = Conv(channels, channels, 3, 1, generator)

    def forward(self, x: Tensor) -> Tensor:
        # The first ReLU cannot be in place: x is also the shortcut. The rest overwrites what no gradient needs.
        return cast("Tensor", self.second(F.relu_(self.first(F.relu(x))))).add_(x)


class _ResidualStack(nn.Module):
    """One stack of the Impala-CNN: convolution, max-pool, two residual blocks."""

    def __init__(self, in_channels: int, out_channels: int, generator: torch.Generator) -> None:
        super().__init__()
        self.conv = Conv(in_channels, out_channels, 3, 1, generator)
        self.blocks = nn.Sequential(*(_ResidualBlock(out_channels, generator) for _ in range(2)))

    def forward(self, x: Tensor) -> Tensor:
        return cast("Tensor", self.blocks(max_pool(self.conv(x))))


class ImpalaEncoder(Encoder):
    """Impala-CNN: stacks of 16, 32 and 32 x width channels, ReLU, dense 512 x width, ReLU."""

    def __init__(self, observation_shape: tuple[int, ...], width: int, generator: torch.Generator) -> None:
        super().__init__(observation_shape)
        height, breadth = self.frame_size
        channels = self.in_channels
        self.stacks = nn.ModuleList()
        for size in (16, 32, 32):
            self.stacks.append(_ResidualStack(channels, size * width, generator))
            channels = size * width
            height, breadth = output_size(height, 3, 2, "SAME"), output_size(breadth, 3, 2, "SAME")
        self.num_features, self.latent_shape = 512 * width, (channels, height, breadth)
        self.dense = Dense(height * breadth * channels, self.num_features, generator)

    def convolve(self, x: Tensor) -> Tensor:
        """Apply the stacks and the ReLU after them, and flatten."""
        for stack in self.stacks:
            x = stack(x)
        return flatten(F.relu_(x))


@dataclass(frozen=True)
class ConvSpec:
    """A plain convolutional network: convolutions with a ReLU each, then a dense layer."""

    layers: tuple[tuple[int, int, int], ...]
    """Channels, kernel and stride of each convolution."""
    padding: Padding
    features: int
    """Units of the dense layer."""


NATURE = ConvSpec(((32, 8, 4), (64, 4, 2), (64, 3, 1)), "SAME", 512)
"""Nature-DQN. SAME is the default of Flax's convolution, so what Dopamine and the paper's reference use; the original
DQN had VALID."""

MINATAR = ConvSpec(((16, 3, 1),), "VALID", 128)
"""The network of MinAtar's authors, VALID as theirs, so that an end-to-end DQN on it is their baseline. Every cell is
still seen by a window; SAME would only make the dense layer 100/64 times as large."""


class ConvTrunk(nn.Module):
    """The convolutions of a `ConvSpec`, flattened: (N, C, H, W) to (N, flat_features)."""

    def __init__(
        self, spec: ConvSpec, in_channels: int, frame_size: tuple[int, int], width: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        height, breadth = frame_size
        channels = in_channels
        self.convs = nn.ModuleList()
        for size, kernel, stride in spec.layers:
            self.convs.append(Conv(channels, size * width, kernel, stride, generator, spec.padding))
            channels = size * width
            height = output_size(height, kernel, stride, spec.padding)
            breadth = output_size(breadth, kernel, stride, spec.padding)
        self.output_shape = (channels, height, breadth)
        self.flat_features = height * breadth * channels

    def forward(self, x: Tensor) -> Tensor:
        """Apply the convolutions, each with its ReLU, and flatten."""
        for layer in self.convs:
            x = F.relu_(layer(x))
        return flatten(x)


class NatureEncoder(Encoder):
    """Nature-DQN: convolutions 32 8x8/4, 64 4x4/2, 64 3x3/1, dense 512, all x width."""

    def __init__(self, observation_shape: tuple[int, ...], width: int, generator: torch.Generator) -> None:
        super().__init__(observation_shape)
        self.trunk = ConvTrunk(NATURE, self.in_channels, self.frame_size, width, generator)
        self.num_features, self.latent_shape = NATURE.features * width, self.trunk.output_shape
        self.dense = Dense(self.trunk.flat_features, self.num_features, generator)

    def convolve(self, x: Tensor) -> Tensor:
        """Apply the three convolutions."""
        return cast("Tensor", self.trunk(x))


class MinatarEncoder(Encoder):
    """MinAtar: convolution 16 3x3/1, dense 128, both x width.

    The convolution is computed as one matrix product of all patches: on 10 x 10 frames that takes less time than the
    library's convolution, in training a fifth less at batches of 32.
    """

    minimum_size = 3
    patches: Tensor

    def __init__(self, observation_shape: tuple[int, ...], width: int, generator: torch.Generator) -> None:
        super().__init__(observation_shape)
        self.trunk = ConvTrunk(MINATAR, self.in_channels, self.frame_size, width, generator)
        self.num_features, self.latent_shape = MINATAR.features * width, self.trunk.output_shape
        self.dense = Dense(self.trunk.flat_features, self.num_features, generator)
        kernel = MINATAR.layers[0][1]
        cells = np.arange(math.prod(self.frame_size) * self.in_channels).reshape(*self.frame_size, self.in_channels)
        windows = np.lib.stride_tricks.sliding_window_view(cells, (kernel, kernel), (0, 1))  # (H', W', C, k, k)
        patches = np.ascontiguousarray(windows.transpose(0, 1, 3, 4, 2)).reshape(-1)
        self.register_buffer("patches", torch.from_numpy(patches.copy()), persistent=False)

    def convolve(self, x: Tensor) -> Tensor:
        """Apply the convolution."""
        conv = cast("Conv", self.trunk.convs[0])
        weight = conv.weight.permute(0, 2, 3, 1).flatten(1)  # (out, kernel * kernel * in), the order within a patch
        patches = flatten(x).index_select(1, self.patches).view(-1, weight.shape[1])
        return F.relu_(F.linear(patches, weight, conv.bias)).view(len(x), self.trunk.flat_features)


ENCODERS: dict[str, type[ImpalaEncoder | NatureEncoder | MinatarEncoder]] = {
    "impala": ImpalaEncoder,
    "nature": NatureEncoder,
    "minatar": MinatarEncoder,
}


def make_encoder(name: str, observation_shape: tuple[int, ...], width: int, generator: torch.Generator) -> Encoder:
    """Build the encoder `name` for observations (stack, H, W) or (stack, H, W, C), drawing from `generator` alone.

    Args:
        name: one of `ENCODERS`.
        observation_shape: shape of one observation, without the batch.
        width: multiplier of all channels and of the features; the paper's are 1, 2, 4 and 8.
        generator: source of the initial parameters, on the CPU.
    """
    if name not in ENCODERS:
        raise unknown("encoder", name, ENCODERS)
    if not 1 <= width < 1 << 16:
        raise UserError(f"encoder width: found {width}, expected at least 1 and at most {(1 << 16) - 1:,}")
    return ENCODERS[name](observation_shape, width, generator)
