"""Max-pooling of our own: PyTorch's bits, whatever the size, the numbers and the threads."""

import ast
import importlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from protovalue.nets import layers, pooling
from protovalue.nets.encoders import make_encoder


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only tests about threads have more; they do not start PyTorch's own."""
    with_threads(monkeypatch, 1)


def with_threads(patch: pytest.MonkeyPatch, threads: int) -> None:
    patch.setattr(torch, "get_num_threads", lambda: threads)


def by_pytorch(x: Tensor) -> Tensor:
    return F.max_pool2d(x, 3, 2, (x.shape[2] % 2, x.shape[3] % 2), ceil_mode=True)


def last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def bits(x: Tensor) -> NDArray[np.int32]:
    return x.detach().contiguous().numpy().view(np.int32)


def drawn(shape: tuple[int, ...], seed: int, kind: str) -> Tensor:
    """Draw images of few different numbers, so that many are equal; some are zeros of both signs."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(-2, 3, shape, generator=generator) * torch.tensor(0.5)
    x = torch.where(torch.rand(shape, generator=generator) < 0.1, -0.0, x)
    if "infinite" in kind:
        x[torch.rand(shape, generator=generator) < 0.6] = -torch.inf
    if "nan" in kind:
        x[torch.rand(shape, generator=generator) < 0.2] = torch.nan
    return x


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Let any number of images be pooled by our own function; return a list of those that will be."""
    found: list[Tensor] = []
    pool = pooling.max_pool

    def noted(x: Tensor) -> Tensor:
        found.append(x)
        return pool(x)

    monkeypatch.setattr(layers, "POOLED_BY_US", 0)
    monkeypatch.setattr(pooling, "max_pool", noted)
    return found


@settings(max_examples=120, deadline=None)
@given(
    count=st.integers(1, 5),
    channels=st.integers(1, 40) | st.sampled_from([8, 16, 24, 32, 40]),
    height=st.integers(1, 11),
    width=st.integers(1, 11),
    threads=st.integers(1, 4),
    kind=st.sampled_from(["finite", "infinite", "nan", "infinite and nan"]),
    seed=st.integers(0, 99),
)
@example(count=1, channels=8, height=1, width=1, threads=1, kind="finite", seed=0)
@example(count=3, channels=16, height=4, width=5, threads=2, kind="nan", seed=0)
def test_values_and_gradients_have_pytorchs_bits(
    count: int, channels: int, height: int, width: int, threads: int, kind: str, seed: int
) -> None:
    x = last(drawn((count, channels, height, width), seed, kind))
    mine, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layers, "POOLED_BY_US", 0)
        with_threads(patch, threads)
        found, expected = layers.max_pool(mine), by_pytorch(theirs)
        slope = torch.randn(expected.shape, generator=torch.Generator().manual_seed(seed))  # not channels-last
        found.backward(slope)
        expected.backward(slope)
    assert found.shape == expected.shape
    assert ("MaxPoolBackward" in str(found.grad_fn)) == (channels % 8 == 0)
    assert found.is_contiguous(memory_format=torch.channels_last)
    np.testing.assert_array_equal(bits(found), bits(expected))
    assert mine.grad is not None
    assert theirs.grad is not None
    np.testing.assert_array_equal(bits(mine.grad), bits(theirs.grad))


def test_the_first_of_equal_pixels_gets_the_gradient() -> None:
    """By hand: 3 x 3 pixels, all the same; windows begin at row and column -1 and 1, so their first pixels differ."""
    x = last(torch.ones(1, 8, 3, 3)).requires_grad_()
    pooled = pooling.max_pool(x)
    pooled.backward(torch.tensor([[1.0, 10.0], [100.0, 1000.0]]).expand(1, 8, 2, 2))
    expected = torch.tensor([[1.0, 10.0, 0.0], [100.0, 1000.0, 0.0], [0.0, 0.0, 0.0]])
    assert x.grad is not None
    assert torch.equal(x.grad, expected.expand(1, 8, 3, 3))


def test_gradients_of_four_windows_are_added_row_by_row() -> None:
    """The middle of 3 x 3 pixels is in all four windows: ((1e8 + 1) - 1e8) + 1 is 1 in float32; other orders give 2."""
    x = torch.zeros(1, 8, 3, 3)
    x[:, :, 1, 1] = 1.0
    x = last(x).requires_grad_()
    pooling.max_pool(x).backward(torch.tensor([[1e8, 1.0], [-1e8, 1.0]]).expand(1, 8, 2, 2))
    assert x.grad is not None
    assert x.grad[0, :, 1, 1].tolist() == [1.0] * 8
    assert x.grad.count_nonzero() == 8


def test_each_image_and_channel_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """One pixel is set, in the last image and channel: what the other images and channels give stays zero."""
    for threads in (1, 2, 3):
        with_threads(monkeypatch, threads)
        x = torch.zeros(3, 16, 6, 6)
        x[2, 15, 5, 4] = 7.0
        pooled = pooling.max_pool(last(x))
        assert pooled.nonzero().tolist() == [[2, 15, 2, 1], [2, 15, 2, 2]]


@pytest.mark.parametrize("threads", [1, 2])
def test_only_more_than_one_thread_needs_workers(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    made: list[int] = []

    class Noted(ThreadPoolExecutor):
        def __init__(self, count: int) -> None:
            made.append(count)
            super().__init__(count)

    monkeypatch.setattr(pooling, "ThreadPoolExecutor", Noted)
    with_threads(monkeypatch, threads)
    pooling.max_pool(last(torch.zeros(4, 8, 4, 4)))
    assert made == [1] * (threads - 1)


def test_what_goes_wrong_in_a_thread_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    with_threads(monkeypatch, 2)
    calls: list[int] = []

    def kernel(*args: int) -> None:
        calls.append(args[3])
        if args[3] == 1:
            raise ValueError("the second")

    arrays = (np.zeros(0), np.zeros(0), np.zeros(0))
    with pytest.raises(ValueError, match="the second"):
        pooling._by_threads(kernel, arrays, torch.Size((2, 8, 1, 1)))
    assert sorted(calls) == [0, 1]


def test_a_second_derivative_is_refused() -> None:
    x = last(torch.rand(1, 8, 4, 4)).requires_grad_()
    (slope,) = torch.autograd.grad(pooling.max_pool(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.sum().backward()


def test_of_the_images_only_a_byte_for_each_maximum_is_kept() -> None:
    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    x = last(torch.rand(1, 8, 4, 6)).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        pooling.max_pool(x)
    assert [(tensor.dtype, tuple(tensor.shape)) for tensor in kept] == [(torch.uint8, (1, 8, 2, 3))]


IMAGES = {
    "as it takes them": (last(torch.rand(2, 8, 5, 5)), True),
    "rows first": (torch.rand(2, 8, 5, 5), False),
    "every other row": (last(torch.rand(2, 8, 10, 5))[:, :, ::2], False),
    "12 channels": (last(torch.rand(2, 12, 5, 5)), False),
    "bfloat16": (last(torch.rand(2, 8, 5, 5)).bfloat16(), False),
    "float64": (last(torch.rand(2, 8, 5, 5)).double(), False),
    "no numbers": (last(torch.rand(2, 8, 5, 5)).to("meta"), False),
}


@pytest.mark.parametrize("name", IMAGES)
def test_pytorch_pools_what_ours_does_not_take(ours: list[Tensor], name: str) -> None:
    x, taken = IMAGES[name]
    found = layers.max_pool(x)
    assert bool(ours) == taken
    assert (found.dtype, found.device) == (x.dtype, x.device)
    if name != "no numbers":
        assert torch.equal(found, by_pytorch(x))


def test_pytorch_pools_few_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """8 * 256 * 512 numbers are 4 MiB, from where on it is ours."""
    pooled: list[tuple[int, ...]] = []
    monkeypatch.setattr(pooling, "max_pool", lambda x: pooled.append(tuple(x.shape)))
    for shape in ((1, 8, 256, 512), (1, 8, 511, 256)):
        layers.max_pool(torch.zeros(shape).to(memory_format=torch.channels_last))
    assert pooled == [(1, 8, 256, 512)]


def test_pytorch_pools_what_it_compiles(ours: list[Tensor]) -> None:
    """As a whole graph, which a call of numba would break."""
    x = last(torch.rand(2, 8, 5, 5)).requires_grad_()
    compiled = torch.compile(layers.max_pool, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x), by_pytorch(x))
    assert not ours


@pytest.mark.parametrize("how", ["plain", "again", "autocast", "no gradient", "inference"])
def test_an_encoder_pools_with_it(ours: list[Tensor], how: str) -> None:
    """Features and gradients of an Impala network are those with PyTorch's pooling; where it is rounded, PyTorch's."""
    obs = torch.randint(0, 256, (3, 4, 17, 12), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    found: list[list[Tensor]] = []
    for limit in (0, 1 << 20):
        layers.POOLED_BY_US = limit  # put back by the fixture
        encoder = make_encoder("impala", (4, 17, 12), 0.5, torch.Generator().manual_seed(1))
        if how == "again":
            encoder.recompute_activations()
        if how == "autocast":
            encoder.precision = "bfloat16"
        if how in ("no gradient", "inference"):
            with torch.no_grad() if how == "no gradient" else torch.inference_mode():
                found.append([encoder(obs)])
            continue
        features = encoder(obs)
        features.square().sum().backward()
        found.append([features, *(p.grad for p in encoder.parameters() if p.grad is not None)])
        assert len(found[-1]) == 33
    assert len(ours) == {"plain": 3, "again": 6, "autocast": 0, "no gradient": 3, "inference": 3}[how]
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(bits(one), bits(other))


def test_an_encoders_file_does_not_bring_numba() -> None:
    """Nothing that it imports does, all the way down, where the import is not in a function."""
    found, left = set(), {"protovalue.nets.impala"}
    while left:
        name = left.pop()
        found.add(name)
        if not name.startswith("protovalue."):
            continue
        module = importlib.import_module(name)
        assert module.__file__ is not None
        for node in ast.parse(Path(module.__file__).read_text()).body:
            if isinstance(node, ast.Import):
                left |= {alias.name for alias in node.names} - found
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                left |= {node.module} - found
    assert "protovalue.nets.layers" in found
    assert not {name for name in found if name.split(".")[0] in ("numba", "llvmlite")}
