"""Random numbers of the online phase: functions of seed, stream and step alone, in any order."""

import numpy as np

from protovalue.data.sampler import generator_at
from protovalue.online import draws
from protovalue.online.draws import Draws, environment_seeds


def test_a_step_has_its_row_of_its_block():
    """Blocks of 256 steps: step 700 is row 188 of block 2. Asked in any order, the numbers are the same."""
    drawn = Draws([3, 8], 102, 5)
    for step in (700, 0, 255, 256, 701, 0):
        block, row = divmod(step, 256)
        for s, seed in enumerate((3, 8)):
            np.testing.assert_array_equal(drawn(step)[s], generator_at(seed, block, 102).random((256, 5))[row])
    assert drawn(0).shape == (2, 5)


def test_the_streams_do_not_meet():
    """Results are repeatable from one version to the next only while these numbers stay."""
    assert (draws.EXPLORE, draws.SAMPLE, draws.REDRAW, draws.EVALUATE) == (101, 102, 103, 104)


def test_a_block_is_drawn_once(monkeypatch):
    asked = []
    monkeypatch.setattr(draws, "generator_at", lambda *key: asked.append(key) or generator_at(*key))
    drawn = Draws([3, 8], 101, 2)
    for step in range(300):
        drawn(step)
    assert asked == [(3, 0, 101), (8, 0, 101), (3, 1, 101), (8, 1, 101)]


def test_seeds_of_environments_are_31_bits_and_differ_by_seed_and_purpose():
    assert environment_seeds([0, 5], 1) == [1982462498, 1898245334]  # NumPy promises that these stay
    found = [seed for purpose in ((1,), (2,), (1, 10)) for seed in environment_seeds(range(50), *purpose)]
    assert len(set(found)) == 150
    assert all(0 <= seed < 2**31 for seed in found)
    assert max(found) > 2**30
    assert environment_seeds([5], 1) == environment_seeds([0, 5], 1)[1:]
