"""What a network costs."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from protovalue.nets.encoders import Encoder
from protovalue.nets.layers import planes

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


@dataclass(frozen=True)
class NetworkCost:
    """What an encoder costs for one observation, from its shapes alone."""

    parameters: int
    features: int
    latents: tuple[int, int, int]
    """Channels, height and width of what the convolutions give."""
    forward: int
    """FLOPs of the features."""
    training: int
    """FLOPs of the features and of the gradient of all parameters; none is computed of the pixels."""
    convolving: int
    """FLOPs of the convolutions."""
    convolving_training: int
    """The same with their gradient."""
    saved: int
    """Numbers that are kept for the gradient."""


def network_cost(encoder: Encoder) -> NetworkCost:
    """Count what an encoder on PyTorch's `meta` device costs: shapes without values, so nothing is computed."""
    obs = torch.zeros((1, *encoder.observation_shape), dtype=torch.uint8, device="meta")
    whole, convolutions = encoder(obs), encoder.convolve(planes(obs, encoder.observation_shape))
    own = {parameter.untyped_storage()._cdata for parameter in encoder.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            kept[storage._cdata] = max(kept.get(storage._cdata, 0), tensor.numel())
        alive.append(tensor)
        return tensor

    alive: list[Tensor] = []  # so that no other storage gets the same address
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        encoder(obs)
    counts = []
    for function, result in (
        (lambda: encoder(obs), whole),
        (lambda: encoder.convolve(planes(obs, encoder.observation_shape)), convolutions),
    ):
        with FlopCounterMode(display=False) as forward:
            function()
        with FlopCounterMode(display=False) as backward:
            result.sum().backward()
        counts += [int(forward.get_total_flops()), int(backward.get_total_flops())]
    return NetworkCost(
        sum(parameter.numel() for parameter in encoder.parameters()), encoder.num_features, encoder.latent_shape,
        counts[0], counts[0] + counts[1], counts[2], counts[2] + counts[3], sum(kept.values()),
    )  # fmt: skip
