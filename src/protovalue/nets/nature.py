"""The network of DQN, as it was published in Nature."""

from protovalue.nets.convolutions import ConvSpec
from protovalue.nets.plain import PlainEncoder

NATURE = ConvSpec(((32, 8, 4), (64, 4, 2), (64, 3, 1)), "SAME", 512)
"""Nature-DQN. SAME is the default of Flax's convolution, so what Dopamine and the paper's reference use; the original
DQN had VALID."""


class NatureEncoder(PlainEncoder):
    """Nature-DQN: convolutions 32 8x8/4, 64 4x4/2, 64 3x3/1, dense 512, all x width."""

    spec = NATURE


ENCODER = NatureEncoder
