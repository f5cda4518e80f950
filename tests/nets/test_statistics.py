"""Effective rank, dead units and norms of features whose singular values are known exactly."""

import math

import pytest
import torch

from protovalue.nets.statistics import effective_rank, feature_statistics


def rotation(size: int, seed: int) -> torch.Tensor:
    q: torch.Tensor = torch.linalg.qr(torch.randn(size, size, generator=torch.Generator().manual_seed(seed)).double())[
        0
    ]
    return q


def test_one_direction_has_rank_1_and_equal_ones_their_number() -> None:
    assert effective_rank(torch.outer(torch.arange(1.0, 6.0), torch.tensor([1.0, 2.0, 3.0]))) == pytest.approx(1.0)
    assert effective_rank(7.0 * torch.eye(4)) == pytest.approx(4.0)
    assert effective_rank(torch.zeros(3, 2)) == 0.0
    assert math.isnan(effective_rank(torch.tensor([[1.0, torch.inf], [2.0, 3.0]])))


@pytest.mark.parametrize(("rows", "columns"), [(3, 3), (8, 3), (3, 8)])
def test_the_entropy_of_known_singular_values(rows: int, columns: int) -> None:
    """4, 2 and 2: shares 1/2, 1/4, 1/4, entropy 1/2 log 2 + 1/2 log 4, whatever the rotations: 2^(1/2) 4^(1/2)."""
    middle = torch.zeros(rows, columns, dtype=torch.float64)
    middle[range(3), range(3)] = torch.tensor([4.0, 2.0, 2.0], dtype=torch.float64)
    features = rotation(rows, 0) @ middle @ rotation(columns, 1)
    assert effective_rank(features) == pytest.approx(2 * math.sqrt(2), rel=1e-6)
    assert effective_rank(features.float()) == pytest.approx(2 * math.sqrt(2), rel=1e-4)


@pytest.mark.parametrize(("rows", "columns"), [(9, 3), (3, 9)])
def test_no_larger_matrix_is_decomposed_than_needed(rows: int, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """4096 features of some hundred states: of the two products, the smaller has all that is not zero."""
    sizes, real = list[tuple[int, ...]](), torch.linalg.eigvalsh

    def noted(matrix: torch.Tensor) -> torch.Tensor:
        sizes.append(tuple(matrix.shape))
        found: torch.Tensor = real(matrix)
        return found

    monkeypatch.setattr(torch.linalg, "eigvalsh", noted)
    effective_rank(torch.rand(rows, columns, generator=torch.Generator().manual_seed(0)))
    assert sizes == [(3, 3)]


def test_features_are_not_centred() -> None:
    assert effective_rank(torch.ones(5, 3)) == pytest.approx(1.0, abs=1e-5)


def test_statistics_by_hand() -> None:
    # Norms 5, 0, 13 and 0: mean 4.5; squares 25 + 169 over 4 * 4 entries. Units 1 and 3 are zero on all rows.
    features = torch.tensor([[3.0, 0, 4, 0], [0, 0, 0, 0], [5, 0, 12, 0], [0, 0, 0, 0]])
    found = feature_statistics(features)
    assert found["dead_units"] == 0.5
    assert found["feature_norm"] == 4.5
    assert found["feature_rms"] == pytest.approx(math.sqrt(194 / 16))
    # Singular values of [[3, 4], [5, 12]]: squares add up to 194, the product is the determinant, 16.
    plus, minus = math.sqrt(194 + 2 * 16), math.sqrt(194 - 2 * 16)
    shares = [(plus + minus) / 2 / plus, (plus - minus) / 2 / plus]
    assert found["effective_rank"] == pytest.approx(math.exp(-sum(q * math.log(q) for q in shares)), rel=1e-6)


def test_a_unit_that_is_once_negative_is_alive() -> None:
    assert feature_statistics(torch.tensor([[0.0, -1.0], [0.0, 0.0]]))["dead_units"] == 0.5
