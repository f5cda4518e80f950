"""A plain convolutional network: what the networks of DQN and of MinAtar's authors are made of."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from protovalue.nets.layers import Conv, Padding, flatten, output_size, scaled


@dataclass(frozen=True)
class ConvSpec:
    """A plain convolutional network: convolutions with a ReLU each, then a dense layer."""

    layers: tuple[tuple[int, int, int], ...]
    """Channels, kernel and stride of each convolution."""
    padding: Padding
    features: int
    """Units of the dense layer."""


class ConvTrunk(nn.Module):
    """The convolutions of a `ConvSpec`, flattened: (N, C, H, W) to (N, flat_features)."""

    def __init__(
        self, spec: ConvSpec, in_channels: int, frame_size: tuple[int, int], width: float, generator: torch.Generator
    ) -> None:
        super().__init__()
        height, breadth = frame_size
        channels = in_channels
        self.convs = nn.ModuleList()
        for size, kernel, stride in spec.layers:
            self.convs.append(Conv(channels, scaled(size, width), kernel, stride, generator, spec.padding))
            channels = scaled(size, width)
            height = output_size(height, kernel, stride, spec.padding)
            breadth = output_size(breadth, kernel, stride, spec.padding)
        self.output_shape = (channels, height, breadth)
        self.flat_features = height * breadth * channels

    def forward(self, x: Tensor) -> Tensor:
        """Apply the convolutions, each with its ReLU, and flatten."""
        for layer in self.convs:
            x = F.relu_(layer(x))
        return flatten(x)
