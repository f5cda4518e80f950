"""One thread for the tests of this folder: their matrices are small, and tests already run side by side."""

from collections.abc import Iterator

import pytest
import torch
from threadpoolctl import threadpool_limits


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with threadpool_limits(1):
        yield
    torch.set_num_threads(before)
