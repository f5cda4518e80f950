"""Hash indicators: r(x) = 1[h(x) = 0] with a Carter-Wegman (multiply-shift) hash h of the observation's pixels."""

import math

import torch
from torch import Tensor

from protovalue.errors import UserError
from protovalue.indicators.base import Indicator

PRIME = 2**13 - 1
"""The paper's Mersenne prime p."""


class HashIndicator(Indicator):
    """Universal hashes h(x) = ((a_0 + sum_j a_j x_j) mod p) mod k, with p = 2^13 - 1 and k = round(1 / proportion).

    x_j are the pixels as stored (0 to 255, or 0 and 1), a_0 and a_j are drawn from 0 ... p - 1, a_j not all zero.
    The score is -h and the threshold 0. The proportion holds over the draw of the hash, not for each single one:
    see `expected_proportion`.
    """

    tuned_on_data = False
    offsets: Tensor
    multipliers: Tensor

    def __init__(
        self, observation_shape: tuple[int, ...], num_tasks: int, proportion: float, generator: torch.Generator
    ) -> None:
        super().__init__(observation_shape, num_tasks, proportion)
        self.num_values = round(1.0 / proportion)  # k
        if self.num_values > PRIME:
            raise UserError(f"proportion: found {proportion}, expected at least 1/{PRIME} for hash indicators")
        pixels = math.prod(observation_shape)
        offsets = torch.randint(PRIME, (num_tasks,), generator=generator)
        multipliers = torch.randint(PRIME, (num_tasks, pixels), generator=generator)
        while (empty := (multipliers == 0).all(dim=1)).any():
            multipliers[empty] = torch.randint(PRIME, (int(empty.sum()), pixels), generator=generator)
        self.register_buffer("offsets", offsets)  # a_0 (m,)
        self.register_buffer("multipliers", multipliers.to(torch.int16))  # a_j (m, pixels); all are below 2^13
        self.thresholds.zero_()

    @property
    def expected_proportion(self) -> float:
        """Return Pr{h(x) = 0} over the draw of h: a_0 is uniform, so is the sum mod p; ceil(p / k) residues give 0."""
        return -(-PRIME // self.num_values) / PRIME

    @torch.no_grad()
    def scores(self, obs: Tensor) -> Tensor:
        """Return -h(x): observations (N, *observation_shape), uint8 or bool, to (N, m), float32, exact."""
        if obs.shape[1:] != self.observation_shape or obs.dtype not in (torch.uint8, torch.bool):
            raise UserError(
                f"observations: found {obs.dtype} of shape {tuple(obs.shape[1:])}, "
                f"expected torch.uint8 or torch.bool of shape {self.observation_shape}"
            )
        # The sum is a matrix product of floating-point numbers, the fastest there is, and exact: every factor is an
        # integer, and every partial sum, in whatever order and with or without fused multiply-add, is an integer of at
        # most pixels * (p - 1) * max(x). Floats hold all integers up to 2^53 (float64) or 2^24 (float32) exactly.
        # Atari: 28,224 * 8,190 * 255 = 5.9e10 < 2^53. MinAtar, boolean: 10 * 10 * 10 * 8,190 = 8.2e6 < 2^24.
        largest = self.multipliers.shape[1] * (PRIME - 1) * (1 if obs.dtype == torch.bool else 255)
        dtype = torch.float32 if largest <= 2**24 else torch.float64
        if largest > 2**53:
            raise UserError(f"observations: found {self.multipliers.shape[1]} pixels, too many for an exact hash")
        where = "cpu" if obs.device.type == "mps" else obs.device  # Apple's has no float64
        products = obs.flatten(1).to(where, dtype) @ self.multipliers.to(where, dtype).T  # (N, m)
        sums = (products.to(torch.int64).to(obs.device) + self.offsets) % PRIME
        return (-(sums % self.num_values)).to(torch.float32)


INDICATOR = HashIndicator
