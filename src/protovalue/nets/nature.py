"""The network of DQN, as it was published in Nature."""

from typing import cast

import torch
from torch import Tensor

from protovalue.nets.convolutions import ConvSpec, ConvTrunk
from protovalue.nets.encoders import Encoder, Quick
from protovalue.nets.layers import Conv, Dense, output_size, scaled

NATURE = ConvSpec(((32, 8, 4), (64, 4, 2), (64, 3, 1)), "SAME", 512)
"""Nature-DQN. SAME is the default of Flax's convolution, so what Dopamine and the paper's reference use; the original
DQN had VALID."""


class NatureEncoder(Encoder):
    """Nature-DQN: convolutions 32 8x8/4, 64 4x4/2, 64 3x3/1, dense 512, all x width."""

    def __init__(self, observation_shape: tuple[int, ...], width: float, generator: torch.Generator) -> None:
        super().__init__(observation_shape)
        self.trunk = ConvTrunk(NATURE, self.in_channels, self.frame_size, width, generator)
        self.num_features, self.latent_shape = scaled(NATURE.features, width), self.trunk.output_shape
        self.dense = Dense(self.trunk.flat_features, self.num_features, generator)

    def compiled(self) -> Quick | None:
        """Return a forward pass that keeps each observation in the cache; None for another readout than the ReLU.

        And None for a subclass, whose `convolve` may be another.
        """
        if self.readout != "relu" or type(self) is not NatureEncoder:
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
        return plan.finish(self.dense, x, self.latent_shape[0])

    def convolve(self, x: Tensor) -> Tensor:
        """Apply the three convolutions."""
        return cast("Tensor", self.trunk(x))


ENCODER = NatureEncoder
