"""What processes exchange, by values worked out by hand."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from protovalue.distributed.group import (
    Ranks,
    arrays_from_first,
    averages,
    from_first,
    gathered,
    highest,
    ranks,
    summed,
    to_first,
    together,
    unlike,
)
from tests.distributed.ranks import in_ranks


def exchanged() -> Mapping[str, Any]:
    """What one of three processes, number r, finds; it has row r of a batch of three."""
    rank = ranks().rank
    found: dict[str, Any] = {"rank": rank}

    x = torch.tensor([[float(rank + 1)]], requires_grad=True)  # 1, 2, 3
    every, flags, numbers = gathered(x, torch.tensor([[rank == 1, True]]), torch.tensor([rank], dtype=torch.int64))
    found |= {"rows": every.detach(), "flags": flags, "numbers": numbers}
    every.square().mean().backward()  # of all: d/dx_r of (1 + 4 + 9) / 3 is 2 x_r / 3, and times three processes
    assert x.grad is not None
    found["gradient"] = x.grad

    y = torch.tensor([float(rank + 1)], requires_grad=True)
    total = summed(y)  # 6
    (total * (rank + 1)).sum().backward()  # each uses the sum otherwise: 1 + 2 + 3 times
    assert y.grad is not None
    found |= {"total": total.detach(), "from all": y.grad}

    weight = nn.Linear(1, 1, bias=False)
    nn.init.constant_(weight.weight, 2.0 + rank)  # the first one's counts
    loss = together(weight, lambda given: gathered(weight(given))[0].square().mean())
    value = loss(torch.tensor([[float(rank + 1)]]))  # (2 * 1)^2 + (2 * 2)^2 + (2 * 3)^2 = 56, over 3
    value.backward()
    assert weight.weight.grad is not None
    found |= {"loss": value.detach(), "weight": weight.weight.grad}  # 2 w (1 + 4 + 9) / 3 = 56 / 3

    found["averages"] = averages([torch.tensor(float(rank)), torch.tensor(0.1)])
    found["highest"] = highest(15 if rank == 1 else 2 * rank)()
    found["unlike"] = unlike(7 + (rank == 2))
    found["told"] = from_first({"a": 1.5} if rank == 0 else None)["a"]
    given = {"scalar": np.array(3), "matrix": np.arange(6.0).reshape(2, 3).T, "none": np.zeros((0, 2), np.float32)}
    found |= {f"sent {name}": array for name, array in arrays_from_first(given if rank == 0 else None).items()}
    at_first = to_first(torch.full((2,), float(rank)))
    found["at first"] = [] if at_first is None else torch.stack(at_first)
    return found


def test_what_three_processes_exchange(tmp_path: Path) -> None:
    for rank, found in enumerate(in_ranks(tmp_path, 3, exchanged)):
        assert found["rank"] == rank
        assert found["rows"].tolist() == [[1], [2], [3]]
        assert found["flags"].tolist() == [[False, True], [True, True], [False, True]]
        assert found["numbers"].tolist() == [0, 1, 2]
        assert found["gradient"].tolist() == [[2.0 * (rank + 1)]]
        assert found["total"].tolist() == [6]
        assert found["from all"].tolist() == [6]
        assert found["loss"] == pytest.approx(56 / 3)
        assert found["weight"].tolist() == [[pytest.approx(56 / 3)]]
        assert found["averages"].tolist() == [1.0, float(np.float32(0.1))]
        assert found["highest"] == 15
        assert found["unlike"].tolist() == [2]
        assert found["told"] == 1.5
        assert found["sent scalar"].shape == ()
        assert found["sent scalar"] == 3
        assert found["sent matrix"].tolist() == [[0, 3], [1, 4], [2, 5]]
        assert found["sent none"].shape == (0, 2)
        assert found["at first"].tolist() == ([[0, 0], [1, 1], [2, 2]] if rank == 0 else [])


def test_one_process_exchanges_nothing() -> None:
    x = torch.ones(2)
    assert gathered(x)[0] is x
    assert summed(x) is x
    assert averages([torch.tensor(2.0)]) == [2.0]
    assert highest(3)() == 3
    assert unlike(1) == []
    assert from_first({"a": 1}) == {"a": 1}


def test_equal_parts() -> None:
    assert [Ranks(rank, 3).rows(12) for rank in range(3)] == [slice(0, 4), slice(4, 8), slice(8, 12)]
