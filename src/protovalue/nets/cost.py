"""What a network costs."""

import torch
from torch.utils.flop_counter import FlopCounterMode

from protovalue.nets.encoders import Encoder

SMALL = 3e7  # a network of which a bound does: MinAtar's has 4e5, Nature's DQN 3e7
TRAINING = 3
"""Work of a training step by that of its forward pass: gradients of inputs and of parameters cost as much each."""


@torch.inference_mode()
def forward_flops(encoder: Encoder, exactly: bool = False) -> int:
    """Return the floating-point operations of one observation's features, as PyTorch counts them.

    Of a small network a bound does, unless they are wanted exactly: counting takes PyTorch a second of imports.
    """
    height, width = encoder.frame_size
    dense = sum(parameter.numel() for name, parameter in encoder.named_parameters() if name.startswith("dense."))
    others = sum(parameter.numel() for parameter in encoder.parameters()) - dense
    bound = 2 * (dense + others * height * width)  # what is convolved at every place of the frame
    if not exactly and bound < SMALL:
        return bound
    device = next((parameter.device for parameter in encoder.parameters()), torch.device("cpu"))
    with FlopCounterMode(display=False) as counter:
        encoder(torch.zeros((1, *encoder.observation_shape), dtype=torch.uint8, device=device))
    return int(counter.get_total_flops())
