"""Rank correlation and its interval, by hand."""

import numpy as np
import pytest

from protovalue.evaluate.correlation import rank_correlation


def test_rank_correlation_by_hand() -> None:
    """Four ranks differ by one: 1 - 6 * 4 / (5 * 24); atanh 0.8 +- 1.95996 sqrt(1.32 / 2)."""
    found = rank_correlation([10, 20, 30, 40, 50], [2, 1, 4, 3, 5])
    assert found is not None
    assert found.point == pytest.approx(0.8)
    assert (found.low, found.high) == pytest.approx((np.tanh(1.0986123 - 1.5922823), np.tanh(1.0986123 + 1.5922823)))
    few = rank_correlation([1, 2, 3, 4], [4, 3, 1, 2])
    assert few is not None
    assert few.point == pytest.approx(-0.8)
    assert not few.has_interval
    assert rank_correlation([1, 2, 3], [5, 5, 5]) is None
    assert rank_correlation([2, 2, 2], [1, 2, 3]) is None
    assert rank_correlation([1], [1]) is None
    two = rank_correlation([1, 2], [5, 4])
    assert two is not None
    assert two.point == pytest.approx(-1.0)
    same = rank_correlation([1, 2, 3, 4, 5], [1, 4, 9, 16, 25])
    assert same is not None
    assert same.point == pytest.approx(1.0)
    assert not same.has_interval
    with pytest.raises(ValueError, match="found 1 and 2 numbers"):
        rank_correlation([1], [1, 2])
