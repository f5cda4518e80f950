"""Indicators of random local patches: what is to be seen in one small window of the frame, or in two at once."""

import torch
from torch import Tensor

from protovalue.errors import UserError
from protovalue.indicators.base import Indicator
from protovalue.nets.layers import check_observation_shape, check_observations

LARGEST = 1 << 10
"""Weights are whole numbers up to this, so that sums are exact whatever the batch and the machine: float64 has room for
those of 2^35 pixels."""


class PatchIndicator(Indicator):
    """score_j(x) = least over its windows of the weighted sum of the pixels in it; 1 where it is large enough.

    A task draws the place of each window and a weight for every pixel in it. With one window the set is of what is
    there, whatever the rest of the frame is; with two it is nearly the intersection of two such sets.

    Args:
        observation_shape: (stack, H, W) or (stack, H, W, C).
        num_tasks: number of tasks m.
        proportion: share p of the states that each set holds.
        generator: source of all windows and weights.
        size: height and width of a window [pixels].
        windows: how many a task has.
    """

    corners: Tensor
    weights: Tensor

    def __init__(
        self,
        observation_shape: tuple[int, ...],
        num_tasks: int,
        proportion: float,
        generator: torch.Generator,
        size: int = 3,
        windows: int = 1,
    ) -> None:
        super().__init__(observation_shape, num_tasks, proportion)
        stack, height, width, channels = check_observation_shape(observation_shape)
        if not 1 <= size <= min(height, width):
            raise UserError(f"option size: found {size}, expected 1 to {min(height, width)}, the size of a frame")
        if windows < 1:
            raise UserError(f"option windows: found {windows}, expected at least 1")
        pixels = stack * size * size * channels
        self.size = size
        rows = torch.randint(height - size + 1, (num_tasks, windows), generator=generator)
        columns = torch.randint(width - size + 1, (num_tasks, windows), generator=generator)
        weights = torch.randint(-LARGEST, LARGEST + 1, (num_tasks, windows, pixels), generator=generator)
        self.register_buffer("corners", torch.stack([rows, columns], 2))  # (m, windows, 2)
        self.register_buffer("weights", weights.to(torch.int16))

    @torch.no_grad()
    def scores(self, obs: Tensor) -> Tensor:
        """Return the least weighted sum of each task's windows: observations (N, *observation_shape) to (N, m)."""
        check_observations(obs, self.observation_shape)
        found = []
        for corners, weights in zip(self.corners.tolist(), self.weights.to(torch.float64), strict=True):
            sums = []
            for (row, column), weight in zip(corners, weights, strict=True):
                patch = obs[:, :, row : row + self.size, column : column + self.size]
                sums.append(patch.flatten(1).to(torch.float64) @ weight)
            found.append(torch.stack(sums).amin(dim=0))
        return torch.stack(found, dim=1).to(torch.float32)


INDICATOR = PatchIndicator
