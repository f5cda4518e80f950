"""Hash indicators against Python's own integers, which never wrap."""

import json
from typing import Any

import pytest
import torch
from torch import Tensor

from protovalue.errors import UserError
from protovalue.indicators.hash import PRIME, HashIndicator
from protovalue.indicators.registry import indicator_from_config, make_indicator


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def by_hand(indicator: HashIndicator, obs: Tensor) -> list[list[int]]:
    """((a_0 + sum_j a_j x_j) mod p) mod k with integers of any size."""
    k = round(1 / indicator.proportion)
    hashes = []
    for x in obs.flatten(1).tolist():
        row = zip(indicator.offsets.tolist(), indicator.multipliers.tolist(), strict=True)
        hashes.append([(a0 + sum(int(a) * int(v) for a, v in zip(aj, x, strict=True))) % 8191 % k for a0, aj in row])
    return hashes


def test_prime_is_the_paper_s() -> None:
    assert PRIME == 8191


@pytest.mark.parametrize(
    ("offset", "multipliers", "pixels", "proportion", "expected"),
    [
        # 8190 = -1 mod 8191: -1 - 255 - 255 = -511, so 7680; mod 100 that is 80
        (8190, (8190, 8190), (255, 255), 0.01, 80),
        # 5 + 3 * 2 + 8000 * 200 = 1,600,011 = 195 * 8191 + 2,766; 16-bit integers would wrap and give 2,574
        (5, (3, 8000), (2, 200), 0.01, 66),
        (39, (3, 8000), (2, 200), 0.01, 0),  # 2,800
        (8190, (1, 1), (0, 0), 0.01, 90),
        (8190, (1, 0), (1, 255), 0.01, 0),  # 8,191 mod 8,191
        (0, (1, 1), (100, 99), 0.5, 1),
        (7000, (1, 8190), (0, 1), 0.25, 3),  # 7000 - 1 = 6,999
    ],
)
def test_hashes_worked_out_by_hand(
    offset: int, multipliers: tuple[int, int], pixels: tuple[int, int], proportion: float, expected: int
) -> None:
    indicator = HashIndicator((1, 1, 2), 1, proportion, generator())
    indicator.offsets[0] = offset
    indicator.multipliers[0] = torch.tensor(multipliers)
    obs = torch.tensor(pixels, dtype=torch.uint8).view(1, 1, 1, 2)
    assert indicator.scores(obs).tolist() == [[-expected]]
    assert indicator.rewards(obs).tolist() == [[expected == 0]]


@pytest.mark.parametrize("shape", [(4, 84, 84), (1, 10, 10, 4), (1, 30, 30, 3)])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool])
def test_hashes_are_exact(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    indicator = HashIndicator(shape, 3, 0.05, generator())
    top = 256 if dtype == torch.uint8 else 2
    obs = torch.randint(top, (3, *shape), generator=generator(1)).to(dtype)
    hashes = by_hand(indicator, obs)
    assert (-indicator.scores(obs)).tolist() == hashes
    assert indicator.rewards(obs).tolist() == [[h == 0 for h in row] for row in hashes]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool])
def test_hashes_are_exact_at_the_largest_sums(dtype: torch.dtype) -> None:
    shape = (4, 84, 84) if dtype == torch.uint8 else (1, 32, 64)  # 2,048 * 8,190 = 16,773,120 is just below 2^24
    indicator = HashIndicator(shape, 2, 0.01, generator())
    indicator.multipliers.fill_(8190)
    indicator.offsets.fill_(8190)
    obs = torch.full((2, *shape), 255 if dtype == torch.uint8 else 1).to(dtype)
    obs[1].view(-1)[5] = 0
    assert (-indicator.scores(obs)).tolist() == by_hand(indicator, obs)


def test_both_widths_of_arithmetic_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    # One pixel more than float32 can hold: odd sums beyond 2^24 would be rounded there.
    indicator = HashIndicator((1, 1, 2050), 1, 0.5, generator())
    indicator.multipliers.fill_(8189)
    obs = torch.ones(1, 1, 1, 2050, dtype=torch.bool)
    assert 2049 * 8189 > 2**24
    assert 2049 * 8189 % 2 == 1
    obs[0, 0, 0, 0] = False
    assert (-indicator.scores(obs)).tolist() == by_hand(indicator, obs)
    # As many as it can hold: half the memory, the same hashes.
    used, product = [], torch.Tensor.__matmul__

    def noted(a: Any, b: Any) -> torch.Tensor:
        used.append(a.dtype)
        return product(a, b)

    monkeypatch.setattr(torch.Tensor, "__matmul__", noted)
    for pixels, dtype, width in (
        (2048, torch.bool, torch.float32),  # 2,048 * 8,190 = 16,773,120 <= 2^24
        (2049, torch.bool, torch.float64),
        (8, torch.uint8, torch.float32),  # 8 * 8,190 * 255 = 16,707,600
        (9, torch.uint8, torch.float64),
    ):
        HashIndicator((1, 1, pixels), 1, 0.5, generator()).scores(torch.ones(1, 1, 1, pixels).to(dtype))
        assert used.pop() == width


@pytest.mark.parametrize(
    ("proportion", "k", "expected"),
    [
        (0.01, 100, 82 / 8191),  # residues 0, 100, ..., 8100
        (0.05, 20, 410 / 8191),  # 0, 20, ..., 8180
        (0.4, 2, 4096 / 8191),  # 1 / 0.4 = 2.5 rounds to 2: half of all states, not 0.4 of them
        (1 / 8191, 8191, 1 / 8191),
    ],
)
def test_expected_proportion(proportion: float, k: int, expected: float) -> None:
    indicator = HashIndicator((1, 3, 3), 1, proportion, generator())
    assert indicator.num_values == k
    assert indicator.expected_proportion == pytest.approx(expected, rel=1e-12)


def test_proportion_holds_over_the_draw_of_the_hash() -> None:
    indicator = HashIndicator((1, 10, 10), 100_000, 0.05, generator())
    obs = torch.randint(256, (1, 1, 10, 10), dtype=torch.uint8, generator=generator(1))
    # 100,000 draws: standard error sqrt(.05 * .95 / 1e5) = 0.0007
    assert indicator.rewards(obs).double().mean().item() == pytest.approx(410 / 8191, abs=5 * 0.0007)


def test_parameters_are_in_range_and_never_all_zero() -> None:
    indicator = HashIndicator((1, 1, 1), 60_000, 0.5, generator())  # a zero comes up about 7 times in 60,000
    multipliers = indicator.multipliers
    assert int(multipliers.min()) == 1
    assert int(multipliers.max()) == 8190
    assert (int(indicator.offsets.min()), int(indicator.offsets.max())) == (0, 8190)
    wide = HashIndicator((1, 100, 100), 20, 0.5, generator()).multipliers
    assert int(wide.min()) == 0  # single zeros are allowed


def test_a_single_pixel_changes_the_hash() -> None:
    indicator = HashIndicator((1, 10, 10, 4), 200, 0.1, generator())
    obs = torch.zeros(2, 1, 10, 10, 4, dtype=torch.bool)
    obs[1, 0, 3, 4, 2] = True
    scores = indicator.scores(obs)
    assert (scores[0] != scores[1]).double().mean() > 0.8


def test_config_and_state_rebuild_it() -> None:
    assert not HashIndicator.tuned_on_data
    indicator = make_indicator("hash", (1, 10, 10, 4), 7, 0.1, generator())
    obs = torch.rand(50, 1, 10, 10, 4, generator=generator(1)) < 0.2
    again = indicator_from_config(json.loads(json.dumps(indicator.config())), indicator.state_dict())
    assert torch.equal(again.rewards(obs), indicator.rewards(obs))
    assert indicator.rewards(obs).any()
    before = torch.get_rng_state()
    same = make_indicator("hash", (1, 10, 10, 4), 7, 0.1, generator())
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(same.rewards(obs), indicator.rewards(obs))


def test_more_pixels_than_double_precision_can_sum_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """2^53 / (8190 * 255) = 4,312,863,250.1; all pixels are the same byte of memory, and the sum is not begun."""

    class BegunError(Exception):
        pass

    def begin(*_: object) -> None:
        raise BegunError

    monkeypatch.setattr(torch.Tensor, "flatten", begin)
    indicator = HashIndicator((1, 1, 1), 1, 0.5, generator())
    one = indicator.multipliers
    for pixels, error, what in (
        (4_312_863_250, BegunError, None),
        (4_312_863_251, UserError, "found 4312863251 pixels, too many for an exact hash"),
    ):
        indicator.observation_shape, indicator.multipliers = (1, 1, pixels), one.expand(1, pixels)
        with pytest.raises(error, match=what):
            indicator.scores(torch.zeros(1, dtype=torch.uint8).expand(1, 1, 1, pixels))


def test_bad_input_is_named() -> None:
    with pytest.raises(UserError, match=r"found 0\.0001, expected at least 1/8191"):
        HashIndicator((1, 10, 10), 5, 0.0001, generator())
    indicator = HashIndicator((1, 10, 10), 5, 0.1, generator())
    with pytest.raises(UserError, match=r"found torch.float32 of shape \(1, 10, 10\)"):
        indicator.scores(torch.zeros(2, 1, 10, 10))
    with pytest.raises(UserError, match=r"found torch.bool of shape \(1, 10, 9\)"):
        indicator.scores(torch.zeros(2, 1, 10, 9, dtype=torch.bool))
