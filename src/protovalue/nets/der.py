"""The network of data-efficient Rainbow: two coarse convolutions, for small machines."""

from protovalue.nets.convolutions import ConvSpec
from protovalue.nets.plain import PlainEncoder

DER = ConvSpec(((32, 5, 5), (64, 5, 5)), "VALID", 256)
"""van Hasselt, Hessel and Aslanides (2019). Of 84 x 84 pixels 3 x 3 places are left, so its dense layer has a 27th of
the weights of DQN's; a forward pass is an eleventh of the work."""


class DerEncoder(PlainEncoder):
    """Data-efficient Rainbow: convolutions 32 5x5/5, 64 5x5/5, dense 256, all x width."""

    minimum_size = 25
    spec = DER


ENCODER = DerEncoder
