"""The Impala-CNN, the paper's encoder."""

from typing import cast

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from protovalue.nets.encoders import Encoder, Quick, recomputed
from protovalue.nets.layers import Conv, Dense, flatten, max_pool, output_size, scaled
from protovalue.nets.readout import COMPILED


class _ResidualBlock(nn.Module):
    """x + conv(relu(conv(relu(x))))."""

    def __init__(self, channels: int, generator: torch.Generator) -> None:
        super().__init__()
        self.first = Conv(channels, channels, 3, 1, generator)
        self.second = Conv(channels, channels, 3, 1, generator)

    def forward(self, x: Tensor) -> Tensor:
        # The first ReLU cannot be in place: x is also the shortcut. The rest overwrites what no gradient needs.
        return cast("Tensor", self.second(F.relu_(self.first(F.relu(x))))).add_(x)


class _ResidualStack(nn.Module):
    """One stack of the Impala-CNN: convolution, max-pool, two residual blocks."""

    def __init__(self, in_channels: int, out_channels: int, generator: torch.Generator) -> None:
        super().__init__()
        self.conv = Conv(in_channels, out_channels, 3, 1, generator)
        self.blocks = nn.Sequential(*(_ResidualBlock(out_channels, generator) for _ in range(2)))

    def forward(self, x: Tensor) -> Tensor:
        return cast("Tensor", self.blocks(self.pooled(x)))

    def pooled(self, x: Tensor) -> Tensor:
        return max_pool(self.conv(x))


class ImpalaEncoder(Encoder):
    """Impala-CNN: stacks of 16, 32 and 32 x width channels, ReLU, dense 512 x width, ReLU."""

    def __init__(self, observation_shape: tuple[int, ...], width: float, generator: torch.Generator) -> None:
        super().__init__(observation_shape)
        height, breadth = self.frame_size
        channels = self.in_channels
        self.stacks = nn.ModuleList()
        for size in (16, 32, 32):
            self.stacks.append(_ResidualStack(channels, scaled(size, width), generator))
            channels = scaled(size, width)
            height, breadth = output_size(height, 3, 2, "SAME"), output_size(breadth, 3, 2, "SAME")
        self.num_features, self.latent_shape = scaled(512, width), (channels, height, breadth)
        self.dense = Dense(height * breadth * channels, self.num_features, generator)

    def compiled(self) -> Quick | None:
        """Return a forward pass that keeps each observation in the cache; None for a readout with a projection.

        And None for a subclass, whose `convolve` may be another.
        """
        if self.readout not in COMPILED or type(self) is not ImpalaEncoder:
            return None
        from protovalue.nets import frozen_convolutions as frozen  # here and not above, because it imports numba
        from protovalue.nets.tiles import ADD, LANES, RELU

        if not LANES:
            return None
        plan = frozen.Plan(self.observation_shape)
        stacks = [cast("_ResidualStack", stack) for stack in self.stacks]
        x = plan.begin(stacks[0].conv)
        for stack in stacks:
            blocks = [cast("_ResidualBlock", block) for block in stack.blocks]
            size = -(-x.height // 2), -(-x.width // 2), frozen.padded(len(stack.conv.bias))
            pooled, positive, inner = (plan.frame(*size, blocks[0].first) for _ in range(3))
            plan.conv(stack.conv, x, pooled, positive, frozen.POOL)
            x = pooled
            for block in blocks:
                plan.conv(block.first, positive, inner, inner, RELU)
                if stack is stacks[-1] and block is blocks[-1]:
                    positive = plan.frame(*size, None)
                plan.conv(block.second, inner, x, positive, ADD)
        return plan.finish(self.dense, positive, self.latent_shape[0], self.readout != "relu")

    def recompute_activations(self) -> None:
        """Keep only what goes into each pooled convolution and into each residual block.

        Whole stacks would save little: half of all activations are those of the first one.
        """
        for stack in self.stacks:
            assert isinstance(stack, _ResidualStack)
            stack.pooled = recomputed(stack.pooled)  # type: ignore[assignment, method-assign]
            for block in stack.blocks:
                block.forward = recomputed(block.forward)

    def convolve(self, x: Tensor) -> Tensor:
        """Apply the stacks and the ReLU after them, and flatten."""
        for stack in self.stacks:
            x = stack(x)
        return flatten(F.relu_(x))


ENCODER = ImpalaEncoder
