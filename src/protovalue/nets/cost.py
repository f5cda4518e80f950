"""What a network costs."""

import torch
from torch.utils.flop_counter import FlopCounterMode

from protovalue.nets.encoders import Encoder

TRAINING = 3
"""Work of a training step by that of its forward pass: gradients of inputs and of parameters cost as much each."""


@torch.inference_mode()
def forward_flops(encoder: Encoder) -> int:
    """Return the floating-point operations of one observation's features, as PyTorch counts them."""
    device = next((parameter.device for parameter in encoder.parameters()), torch.device("cpu"))
    with FlopCounterMode(display=False) as counter:
        encoder(torch.zeros((1, *encoder.observation_shape), dtype=torch.uint8, device=device))
    return int(counter.get_total_flops())
