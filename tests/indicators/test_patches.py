"""Patch indicators: scores pixel by pixel, and what they refuse."""

from typing import Any

import numpy as np
import pytest
import torch

from protovalue.errors import UserError
from protovalue.indicators.registry import indicator_from_config, make_indicator
from protovalue.randomness import torch_generator


@pytest.mark.parametrize("shape", [(2, 6, 5), (2, 6, 5, 3)])
@pytest.mark.parametrize("windows", [1, 2])
def test_scores_by_hand(shape: tuple[int, ...], windows: int) -> None:
    """Every window's sum one pixel at a time; the least of them counts, and is the same for one and for many."""
    made: Any = make_indicator("patches", shape, 7, 0.3, torch_generator(1), size=2, windows=windows)
    obs = np.random.default_rng(0).integers(0, 256, (9, *shape), np.uint8)
    scores = made.scores(torch.from_numpy(obs)).numpy()
    pixels = obs.reshape(9, 2, 6, 5, -1).astype(int)
    for task in range(7):
        for n in range(9):
            sums = []
            for window in range(windows):
                (row, column), total, number = made.corners[task, window].tolist(), 0, 0
                assert 0 <= row <= 4
                assert 0 <= column <= 3
                for f in range(2):
                    for y in range(2):
                        for x in range(2):
                            for c in range(pixels.shape[-1]):
                                weight = int(made.weights[task, window, number])
                                total += weight * pixels[n, f, row + y, column + x, c]
                                number += 1
                sums.append(total)
            assert scores[n, task] == min(sums)
    alone = torch.cat([made.scores(torch.from_numpy(obs[n : n + 1])) for n in range(9)])
    assert np.array_equal(alone.numpy(), scores)


def test_it_is_rebuilt_from_its_config() -> None:
    made: Any = make_indicator("patches", (1, 8, 8), 5, 0.3, torch_generator(1), size=4, windows=2)
    assert len({tuple(corner) for corner in made.corners.flatten(0, 1).tolist()}) > 3, "windows lie everywhere"
    again = indicator_from_config(made.config(), made.state_dict())
    obs = torch.rand(20, 1, 8, 8, generator=torch_generator(0)) < 0.3
    assert torch.equal(made.scores(obs), again.scores(obs))


def test_what_is_drawn() -> None:
    """Windows of 3 x 3 that lie wherever there is room, and weights that are all whole numbers from -1024 to 1024."""
    made: Any = make_indicator("patches", (1, 5, 6), 2000, 0.3, torch_generator(1))
    assert made.weights.shape == (2000, 1, 9)
    rows, columns = made.corners[:, 0].T.tolist()
    assert (set(rows), set(columns)) == ({0, 1, 2}, {0, 1, 2, 3})
    assert (made.weights.min(), made.weights.max()) == (-1024, 1024)
    assert abs(made.weights.float().mean()) < 20


@pytest.mark.parametrize("size", [1, 5])
def test_a_window_may_be_a_pixel_or_the_whole_frame(size: int) -> None:
    made: Any = make_indicator("patches", (1, 5, 5), 3, 0.3, torch_generator(0), size=size)
    on = torch.ones(1, 1, 5, 5, dtype=torch.bool)
    assert torch.equal(made.scores(on)[0], made.weights.float().sum(dim=(1, 2)))
    with pytest.raises(UserError, match="observations: found shape"):
        made.scores(torch.ones(1, 1, 5, 6, dtype=torch.bool))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0}, "option size: found 0, expected 1 to 5"),
        ({"size": 6}, "option size: found 6, expected 1 to 5"),
        ({"windows": 0}, "option windows: found 0, expected at least 1"),
        ({"sizes": 2}, "unknown option of indicator 'patches' 'sizes': did you mean 'size'"),
    ],
)
def test_what_it_refuses(options: dict[str, int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_indicator("patches", (1, 5, 9), 3, 0.3, torch_generator(0), **options)
