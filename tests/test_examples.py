"""What the examples work out by themselves; that they run is tested with the documents that name them."""

import runpy
from pathlib import Path

import numpy as np

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_the_player_s_place_and_the_enemies_that_moves_lead_to() -> None:
    """By hand: in the first frame enemies left of and below the player; in the second, one on the edge it stays on."""
    places = runpy.run_path(str(EXAMPLES / "asterix.py"))["places"]
    observations = np.zeros((2, 3, 10, 10, 4), np.bool_)  # states, stacked frames, rows, columns, channels
    observations[:, 0, 3, 3, 0] = True  # an older frame, which does not count
    observations[0, -1, 4, 5, 0] = True
    observations[0, -1, [4, 5], [4, 5], 1] = True
    observations[0, -1, 3, 5, 3] = True  # above is something else: no enemy
    observations[1, -1, 8, 9, 0] = True  # the lowest row and the last column that a player can be in
    observations[1, -1, [8, 7], [8, 9], 1] = True
    observations[1, -1, 9, 9, 1] = True  # beyond where a player can go
    player, danger = places(observations)
    assert player.tolist() == [[4, 5], [8, 9]]
    assert danger.tolist() == [[1, 0, 0, 1], [1, 1, 0, 0]]  # left, up, right, down
