"""An encoder of plain convolutions and a dense layer: what DQN's network is, and the data-efficient one."""

from typing import ClassVar, cast

import torch
from torch import Tensor

from protovalue.nets.convolutions import ConvSpec, ConvTrunk
from protovalue.nets.encoders import Encoder, Quick
from protovalue.nets.layers import Conv, Dense, output_size, scaled
from protovalue.nets.readout import COMPILED


class PlainEncoder(Encoder):
    """The convolutions of a `ConvSpec`, each with a ReLU, then its dense layer; all x width."""

    spec: ClassVar[ConvSpec]

    def __init__(self, observation_shape: tuple[int, ...], width: float, generator: torch.Generator) -> None:
        super().__init__(observation_shape)
        self.trunk = ConvTrunk(self.spec, self.in_channels, self.frame_size, width, generator)
        self.num_features, self.latent_shape = scaled(self.spec.features, width), self.trunk.output_shape
        self.dense = Dense(self.trunk.flat_features, self.num_features, generator)

    def compiled(self) -> Quick | None:
        """Return a forward pass that keeps each observation in the cache; None for a readout with a projection.

        And None for a subclass with a part of the pass of its own.
        """
        parts = ("forward", "project", "convolve")
        if self.readout not in COMPILED or any(
            getattr(type(self), one) is not getattr(PlainEncoder, one) for one in parts
        ):
            return None
        from protovalue.nets import frozen_convolutions as frozen  # here and not above, because it imports numba
        from protovalue.nets.tiles import LANES, RELU

        if not LANES:
            return None
        plan = frozen.Plan(self.observation_shape)
        convs = [cast("Conv", conv) for conv in self.trunk.convs]
        x = plan.begin(convs[0])
        for conv, reader in zip(convs, [*convs[1:], None], strict=True):
            height, width = (output_size(n, conv.kernel, conv.stride, conv.padding) for n in (x.height, x.width))
            found = plan.frame(height, width, frozen.padded(len(conv.bias)), reader)
            plan.conv(conv, x, found, found, RELU)
            x = found
        return plan.finish(self.dense, x, self.latent_shape[0], self.readout != "relu")

    def convolve(self, x: Tensor) -> Tensor:
        """Apply the convolutions."""
        return cast("Tensor", self.trunk(x))
