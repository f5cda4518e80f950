"""Layers by TensorFlow's and Flax's rules: SAME padding, Glorot-uniform kernels, zero biases, explicit generators."""

import math
from typing import Literal

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from protovalue.errors import UserError

Padding = Literal["SAME", "VALID"]

POOLED_BY_US = 1 << 20
"""Numbers from which on `max_pool` does without PyTorch: 4 MiB, which take PyTorch a millisecond."""


def same_padding(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """Return the padding before and after one axis by TensorFlow's SAME rule.

    The output has ceil(size / stride) entries; an odd number of padded entries puts the extra one after. So an even
    size with kernel 3 and stride 2 gives (0, 1), where PyTorch's symmetric `padding=1` would give (1, 1).
    """
    outputs = -(-size // stride)
    total = max((outputs - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2


def scaled(size: int, width: float) -> int:
    """Return a layer's number of channels or features at a width: the nearest whole number, at least 1."""
    return max(1, round(size * width))


def output_size(size: int, kernel: int, stride: int, padding: Padding) -> int:
    """Return the length of one axis after a convolution or a pooling."""
    return -(-size // stride) if padding == "SAME" else (size - kernel) // stride + 1


def glorot_uniform(shape: tuple[int, ...], fan_in: int, fan_out: int, generator: torch.Generator) -> Tensor:
    """Draw from U(-l, l) with l = sqrt(6 / (fan_in + fan_out))."""
    limit = math.sqrt(6.0 / (fan_in + fan_out))
    return torch.empty(shape).uniform_(-limit, limit, generator=generator)


def glorot_conv(out_channels: int, in_channels: int, kernel: int, generator: torch.Generator) -> Tensor:
    """Draw a convolution kernel (out, in, kernel, kernel); the receptive field counts in both fans, as in Flax."""
    area = kernel * kernel
    return glorot_uniform(
        (out_channels, in_channels, kernel, kernel), in_channels * area, out_channels * area, generator
    )


class Conv(nn.Module):
    """A square convolution with SAME or VALID padding; weight (out, in, kernel, kernel).

    The weight is kept contiguous, ready for safetensors; PyTorch reorders it to the input's channels-last layout in
    each call, a copy that is small beside the convolution.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel: int,
        stride: int,
        generator: torch.Generator,
        padding: Padding = "SAME",
    ) -> None:
        super().__init__()
        self.kernel, self.stride, self.padding = kernel, stride, padding
        self.weight = nn.Parameter(glorot_conv(out_channels, in_channels, kernel, generator))
        self.bias = nn.Parameter(torch.zeros(out_channels))

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, in, H, W) to (N, out, H', W')."""
        return conv(x, self.weight, self.bias, self.stride, self.padding)


def conv(x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: Padding) -> Tensor:
    """Convolve (N, in, H, W) with a weight (out, in, kernel, kernel)."""
    if padding == "VALID":
        return F.conv2d(x, weight, bias, stride)
    top, bottom = same_padding(x.shape[2], weight.shape[2], stride)
    left, right = same_padding(x.shape[3], weight.shape[3], stride)
    if top == bottom and left == right:
        return F.conv2d(x, weight, bias, stride, (top, left))
    return F.conv2d(F.pad(x, (left, right, top, bottom)), weight, bias, stride)


def max_pool(x: Tensor) -> Tensor:
    """Max-pool 3x3, stride 2, SAME: (N, C, H, W) to (N, C, ceil(H / 2), ceil(W / 2)).

    Padding counts as minus infinity. An odd size needs one entry on both sides, which is PyTorch's `padding=1`; an even
    one needs none before and one after, which is what `ceil_mode` does: windows are cut off at the far edge.

    Many images on the CPU are pooled by a function of our own, in half the time and to the same bits.
    """
    if _worth_compiling(x):
        from protovalue.nets import pooling  # here and not above, because it imports numba

        return pooling.max_pool(x)
    odd = (x.shape[2] % 2, x.shape[3] % 2)
    return F.max_pool2d(x, 3, 2, odd, ceil_mode=True)


def _worth_compiling(x: Tensor) -> bool:
    """Whether `nets/pooling.py` can pool these images, and they are so many that importing it pays."""
    return (
        x.numel() >= POOLED_BY_US
        and not torch.compiler.is_compiling()
        and type(x) is Tensor  # and not one of those that have no numbers
        and (x.device.type, x.dtype) == ("cpu", torch.float32)
        and x.shape[1] % 8 == 0
        and x.is_contiguous(memory_format=torch.channels_last)
    )


class Dense(nn.Module):
    """A dense layer; weight (out, in), the transpose of Flax's kernel."""

    def __init__(self, in_features: int, out_features: int, generator: torch.Generator) -> None:
        super().__init__()
        self.weight = nn.Parameter(glorot_uniform((out_features, in_features), in_features, out_features, generator))
        self.bias = nn.Parameter(torch.zeros(out_features))

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, in) to (N, out)."""
        return F.linear(x, self.weight, self.bias)


class ObservationShapeError(UserError):
    """Observations of a shape that a network cannot take; who knows where the shape comes from names that, too."""


def check_observation_shape(shape: tuple[int, ...]) -> tuple[int, int, int, int]:
    """Return (stack, H, W, C) of an observation (stack, H, W) or (stack, H, W, C); anything else is a user's error."""
    if len(shape) not in (3, 4) or any(size < 1 for size in shape):
        raise ObservationShapeError(
            f"observation shape: found {tuple(shape)}, expected (stack, H, W) or (stack, H, W, C)"
        )
    stack, height, width = shape[:3]
    return stack, height, width, shape[3] if len(shape) == 4 else 1


def check_observations(obs: Tensor, observation_shape: tuple[int, ...]) -> None:
    """Refuse observations of another shape than (N, *observation_shape), or neither uint8 nor bool."""
    if obs.shape[1:] != observation_shape:
        raise UserError(f"observations: found shape {tuple(obs.shape[1:])}, expected {tuple(observation_shape)}")
    if obs.dtype not in (torch.uint8, torch.bool):
        raise UserError(f"observations: found {obs.dtype}, expected torch.uint8 or torch.bool")


def planes(obs: Tensor, observation_shape: tuple[int, ...]) -> Tensor:
    """Turn stored observations into a network's input: the one place where pixels are scaled.

    (N, stack, H, W) or (N, stack, H, W, C), uint8 or bool, becomes (N, stack * C, H, W) float32 in [0, 1] in
    channels-last memory; uint8 is divided by 255. Channel s * C + c is channel c of frame s.
    """
    check_observations(obs, observation_shape)
    if obs.dim() == 5:
        count, stack, height, width, channels = obs.shape
        # (N, S, H, W, C) -> (N, H, W, S * C) in memory; a view of the input when S = 1 -> (N, S * C, H, W)
        flat = obs.permute(0, 2, 3, 1, 4).reshape(count, height, width, stack * channels).permute(0, 3, 1, 2)
    else:
        flat = obs
    x = flat.to(torch.float32, memory_format=torch.channels_last)
    return x.mul_(1.0 / 255.0) if obs.dtype == torch.uint8 else x


def renormalize(x: Tensor) -> Tensor:
    """Move and scale each row of (N, n) to the range from 0 to 1; a constant row becomes zero."""
    low, high = torch.aminmax(x, dim=1, keepdim=True)
    return (x - low) / (high - low).clamp_min(1e-6)


def flatten(x: Tensor) -> Tensor:
    """Flatten (N, C, H, W) to (N, H * W * C): Flax's order, so that published dense kernels fit. No copy."""
    return x.permute(0, 2, 3, 1).flatten(1)
