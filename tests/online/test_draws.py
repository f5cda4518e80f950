"""Random numbers of the online phase: functions of seed, purpose and step alone, in any order."""

from typing import Any

import numpy as np
import pytest

from protovalue.online import draws
from protovalue.online.draws import Draws
from protovalue.randomness import Purpose, generator_at


def test_a_step_has_its_row_of_its_block() -> None:
    """Blocks of 256 steps: step 700 is row 188 of block 2. Asked in any order, the numbers are the same."""
    drawn = Draws([3, 8], Purpose.REPLAY, 5)
    for step in (700, 0, 255, 256, 701, 0):
        block, row = divmod(step, 256)
        for s, seed in enumerate((3, 8)):
            expected = generator_at(seed, Purpose.REPLAY, block).random((256, 5))[row]
            np.testing.assert_array_equal(drawn(step)[s], expected)
    assert drawn(0).shape == (2, 5)


def test_a_block_is_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def noted(*key: Any) -> np.random.Generator:
        asked.append(key)
        return generator_at(*key)

    monkeypatch.setattr(draws, "generator_at", noted)
    drawn = Draws([3, 8], Purpose.EXPLORE, 2)
    for step in range(300):
        drawn(step)
    assert asked == [(seed, Purpose.EXPLORE, block) for block in (0, 1) for seed in (3, 8)]
