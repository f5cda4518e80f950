"""Indicators of amounts: how much of a random small pattern there is on the whole frame, wherever it is."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from protovalue.errors import UserError
from protovalue.indicators.base import Indicator
from protovalue.indicators.patches import LARGEST
from protovalue.nets.layers import check_observation_shape, check_observations


class AmountIndicator(Indicator):
    """score_j(x) = +- sum over all places of relu(weighted sum of the pixels in the window there).

    A task draws the size of its window, a weight for every pixel in it, and a sign. What moves on the frame leaves its
    amount as it was; what appears, vanishes or meets something else changes it. So these sets are made for
    `--changes yes`: the transitions in which something happens to a thing of some kind. With the sign, a task is of
    more or of less. Outside of the frame there is nothing.

    Args:
        observation_shape: (stack, H, W) or (stack, H, W, C).
        num_tasks: number of tasks m.
        proportion: share p of the states, or of the changes, that each set holds.
        generator: source of all sizes, weights and signs.
        size: largest height and width of a window [pixels]; each task has one of 1 to it.
    """

    weights: Tensor
    signs: Tensor

    def __init__(
        self,
        observation_shape: tuple[int, ...],
        num_tasks: int,
        proportion: float,
        generator: torch.Generator,
        size: int = 3,
    ) -> None:
        super().__init__(observation_shape, num_tasks, proportion)
        stack, height, width, channels = check_observation_shape(observation_shape)
        if not 1 <= size <= min(height, width):
            raise UserError(f"option size: found {size}, expected 1 to {min(height, width)}, the size of a frame")
        sizes = torch.randint(1, size + 1, (num_tasks,), generator=generator)
        weights = torch.randint(
            -LARGEST, LARGEST + 1, (num_tasks, stack * channels, size, size), generator=generator, dtype=torch.int16
        )
        inside = torch.arange(size)[None, :] < sizes[:, None]  # (m, size): a small window is a corner of a large one
        weights *= inside[:, None, :, None] & inside[:, None, None, :]
        signs = 2 * torch.randint(2, (num_tasks,), generator=generator, dtype=torch.int16) - 1
        self.register_buffer("weights", weights)
        self.register_buffer("signs", signs)

    @torch.no_grad()
    def scores(self, obs: Tensor) -> Tensor:
        """Return the amounts with their signs: observations (N, *observation_shape) to (N, m)."""
        check_observations(obs, self.observation_shape)
        frames = obs if obs.dim() == 5 else obs[..., None]
        x = frames.permute(0, 1, 4, 2, 3).flatten(1, 2).to(torch.float64)  # (N, stack * C, H, W)
        over = self.weights.shape[-1] - 1
        found = F.conv2d(F.pad(x, (0, over, 0, over)), self.weights.to(torch.float64))  # (N, m, H, W)
        return (F.relu_(found).sum(dim=(2, 3)) * self.signs).to(torch.float32)


INDICATOR = AmountIndicator
