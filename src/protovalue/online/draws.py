"""Uniform numbers for every step: pure functions of (seed, step), so that there is no generator to save."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from protovalue.randomness import Purpose, generator_at

_BLOCK = 256  # steps whose numbers are drawn together, because a call per seed and step would cost more than the step


class Draws:
    """Uniform numbers in [0, 1), (S, count) for a step; row s depends on seeds[s] and the step alone."""

    def __init__(self, seeds: Sequence[int], purpose: Purpose, count: int) -> None:
        self._seeds, self._purpose, self._count = tuple(seeds), purpose, count
        self._number, self._block = -1, np.zeros((_BLOCK, len(seeds), count))

    def __call__(self, step: int) -> NDArray[np.float64]:
        """Return the numbers of a step."""
        number, row = divmod(step, _BLOCK)
        if number != self._number:
            for s, seed in enumerate(self._seeds):
                self._block[:, s] = generator_at(seed, self._purpose, number).random((_BLOCK, self._count))
            self._number = number
        drawn: NDArray[np.float64] = self._block[row]
        return drawn
