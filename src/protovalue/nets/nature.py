"""The network of DQN, as it was published in Nature."""

from typing import cast

import torch
from torch import Tensor

from protovalue.nets.convolutions import ConvSpec, ConvTrunk
from protovalue.nets.encoders import Encoder
from protovalue.nets.layers import Dense, scaled

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

    def convolve(self, x: Tensor) -> Tensor:
        """Apply the three convolutions."""
        return cast("Tensor", self.trunk(x))


ENCODER = NatureEncoder
