"""Indicators of amounts: scores pixel by pixel, what moves and what vanishes, and what they refuse."""

from typing import Any

import numpy as np
import pytest
import torch

from protovalue.errors import UserError
from protovalue.indicators.registry import indicator_from_config, make_indicator
from protovalue.randomness import torch_generator


@pytest.mark.parametrize("shape", [(2, 5, 4), (2, 5, 4, 3)])
def test_scores_by_hand(shape: tuple[int, ...]) -> None:
    """Every place's sum one pixel at a time, nothing outside of the frame; the same for one and for many."""
    made: Any = make_indicator("amounts", shape, 6, 0.3, torch_generator(1), size=2)
    obs = np.random.default_rng(0).integers(0, 256, (3, *shape), np.uint8)
    scores = made.scores(torch.from_numpy(obs)).numpy()
    pixels = obs.reshape(3, 2, 5, 4, -1).astype(int)
    channels = pixels.shape[-1]
    weights, signs = made.weights.tolist(), made.signs.tolist()
    for task in range(6):
        for n in range(3):
            total = 0
            for row in range(5):
                for column in range(4):
                    here = 0
                    for f in range(2):
                        for c in range(channels):
                            for y in range(min(2, 5 - row)):
                                for x in range(min(2, 4 - column)):
                                    weight = weights[task][f * channels + c][y][x]
                                    here += weight * int(pixels[n, f, row + y, column + x, c])
                    total += max(here, 0)
            assert scores[n, task] == np.float32(signs[task] * total)
    alone = torch.cat([made.scores(torch.from_numpy(obs[n : n + 1])) for n in range(3)])
    assert np.array_equal(alone.numpy(), scores)


def test_what_moves_keeps_its_amount_and_what_vanishes_does_not() -> None:
    """Two things far apart, of two kinds. Apart from windows that the frame's edge cuts off, places do not matter."""
    made: Any = make_indicator("amounts", (1, 9, 9, 2), 40, 0.3, torch_generator(0))
    frames = torch.zeros(4, 1, 9, 9, 2, dtype=torch.bool)
    frames[0, 0, 3, 3, 0] = frames[0, 0, 7, 7, 1] = True
    frames[1, 0, 2, 4, 0] = frames[1, 0, 7, 6, 1] = True  # both have moved
    frames[2, 0, 3, 3, 0] = True  # one is gone
    frames[3, 0, 3, 3, 0] = frames[3, 0, 3, 4, 1] = True  # they have met
    here, moved, gone, met = made.scores(frames)
    assert torch.equal(here, moved)
    assert (here != gone).float().mean() > 0.8
    assert (here != met).float().mean() > 0.4


def test_what_is_drawn() -> None:
    """Windows of 1, 2 and 3 pixels as often as each other; their weights are whole numbers, the rest 0; both signs."""
    made: Any = make_indicator("amounts", (1, 6, 6), 3000, 0.3, torch_generator(2))
    assert made.weights.shape == (3000, 1, 3, 3)
    assert (made.weights.min(), made.weights.max()) == (-1024, 1024)
    rows = (made.weights != 0).any(dim=3).sum(dim=(1, 2))
    columns = (made.weights != 0).any(dim=2).sum(dim=(1, 2))
    assert (rows == columns).float().mean() > 0.99
    assert all(900 < int((rows == size).sum()) < 1100 for size in (1, 2, 3))
    assert made.signs.unique().tolist() == [-1, 1]
    assert abs(made.signs.float().mean()) < 0.1


def test_it_is_rebuilt_from_its_config() -> None:
    made: Any = make_indicator("amounts", (1, 8, 8), 5, 0.3, torch_generator(1), size=4)
    again = indicator_from_config(made.config(), made.state_dict())
    obs = torch.rand(20, 1, 8, 8, generator=torch_generator(0)) < 0.3
    assert torch.equal(made.scores(obs), again.scores(obs))
    with pytest.raises(UserError, match="observations: found shape"):
        made.scores(obs[:, :, :5])


@pytest.mark.parametrize("size", [0, 6])
def test_what_it_refuses(size: int) -> None:
    with pytest.raises(UserError, match=f"option size: found {size}, expected 1 to 5"):
        make_indicator("amounts", (1, 5, 9), 3, 0.3, torch_generator(0), size=size)
