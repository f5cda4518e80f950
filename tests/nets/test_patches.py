"""Convolutions of each different patch once: compared all with all, outputs against PyTorch's."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from protovalue.nets.convolutions import ConvSpec, ConvTrunk
from protovalue.nets.layers import planes
from protovalue.nets.patches import _factors, _kernels, convolved, find_patches

SAME = ConvSpec(((5, 4, 2), (6, 3, 2), (7, 3, 1)), "SAME", 1)
VALID = ConvSpec(((5, 4, 3), (6, 2, 1)), "VALID", 1)


def game(count: int, shape: tuple[int, ...], dtype: torch.dtype = torch.uint8, seed: int = 0) -> Tensor:
    """Images of a background with two things that move; every third image is that of before."""
    rng = np.random.default_rng(seed)
    frames = np.zeros((count, *shape), np.uint8)
    frames[:, :, 2] = 9
    for n in range(count):
        for _ in range(2):
            y, x = rng.integers(shape[1]), rng.integers(shape[2])
            frames[n, :, y, x] = rng.integers(1, 255, size=frames[n, :, y, x].shape)
        if n % 3 == 2:
            frames[n] = frames[n - 1]
    found = torch.from_numpy(frames)
    return found > 100 if dtype == torch.bool else found


def sights(words: Any, kernel: int, stride: int, top: int, left: int, rows: int, columns: int) -> list[bytes]:
    """Return what is seen at each place, as bytes: 2^32 stands for what is beyond the border."""
    padded = np.full((len(words), words.shape[1] + 2 * kernel, words.shape[2] + 2 * kernel, words.shape[3]), 1 << 32)
    padded[:, kernel:-kernel, kernel:-kernel] = words
    starts = [
        (n, kernel - top + i * stride, kernel - left + j * stride)
        for n in range(len(words)) for i in range(rows) for j in range(columns)
    ]  # fmt: skip
    return [padded[n, y : y + kernel, x : x + kernel].tobytes() for n, y, x in starts]


@pytest.mark.parametrize("collide", [False, True])
@pytest.mark.parametrize(
    ("kernel", "stride", "top", "left", "rows", "columns", "depth"),
    [(3, 1, 1, 1, 6, 5, 1), (4, 2, 1, 0, 3, 3, 2), (2, 2, 0, 0, 3, 2, 1), (1, 1, 0, 0, 6, 5, 3)],
)
def test_patches_have_the_same_number_if_all_of_them_is_the_same(
    kernel: int, stride: int, top: int, left: int, rows: int, columns: int, depth: int, collide: bool
) -> None:
    """Also where all hashes are the same, and where zeros lie beyond the border in one and in the image in another."""
    words = np.random.default_rng(0).integers(2, size=(7, 6, 5, depth)).astype(np.uint32)
    words[3:5] = 0
    words[5] = words[2]
    factors = np.zeros((kernel, kernel, depth), np.uint64) if collide else _factors(kernel, depth)
    distinct, cut = _kernels()
    numbers, places = distinct(words, factors, stride, top, left, rows, columns)
    seen = sights(words, kernel, stride, top, left, rows, columns)
    order: dict[bytes, int] = {}
    expected = [order.setdefault(sight, len(order) + 1) for sight in seen]
    assert numbers.reshape(-1).tolist() == expected
    assert len(places) == len(order)
    flat = (places[:, 0] * rows + places[:, 1]) * columns + places[:, 2]
    assert flat.tolist() == [expected.index(number) for number in range(1, len(order) + 1)]
    patches, inside = cut(words, places, kernel, stride, top, left)
    for patch, within, sight in zip(patches, inside, order, strict=True):
        values = np.frombuffer(sight, np.int64).reshape(patch.shape)
        assert np.array_equal(np.where(within[..., None] == 1, patch.astype(np.int64), 1 << 32), values)
        assert not patch[within == 0].any()


@pytest.mark.parametrize("spec", [SAME, VALID], ids=["same", "valid"])
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((4, 17, 14), torch.uint8), ((3, 14, 17), torch.uint8), ((2, 15, 15, 3), torch.uint8), ((1, 16, 13), torch.bool)],
)
def test_a_trunk_of_patches_is_a_trunk_of_images(spec: ConvSpec, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    obs = game(9, shape, dtype)
    channels = int(np.prod(shape)) // (shape[1] * shape[2])
    trunk = ConvTrunk(spec, channels, (shape[1], shape[2]), 1, torch.Generator().manual_seed(0)).requires_grad_(False)
    for layer in trunk.convs:
        layer.bias.uniform_(-0.2, 0.2, generator=torch.Generator().manual_seed(1))  # type: ignore[operator]
    patches = find_patches(obs, spec)
    assert len(patches.images) == len(torch.unique(obs, dim=0)) < len(obs)
    found = convolved(trunk, patches, planes(patches.pixels, tuple(patches.pixels.shape[1:])))[patches.image]
    x = planes(obs, shape)
    for layer, (_, kernel, stride) in zip(trunk.convs, spec.layers, strict=True):
        if spec.padding == "SAME":  # in all max((ceil(size / stride) - 1) * stride + kernel - size, 0), less before
            total = [max((-(-size // stride) - 1) * stride + kernel - size, 0) for size in (x.shape[3], x.shape[2])]
            x = F.pad(x, [side for all_ in total for side in (all_ // 2, all_ - all_ // 2)])
        x = F.relu(F.conv2d(x, layer.weight, layer.bias, stride))  # type: ignore[arg-type]
    torch.testing.assert_close(found, x.permute(0, 2, 3, 1).flatten(1), rtol=1e-5, atol=1e-6)


def test_more_rows_than_are_multiplied_together(monkeypatch: pytest.MonkeyPatch) -> None:
    obs = game(6, (4, 17, 14))
    trunk = ConvTrunk(SAME, 4, (17, 14), 1, torch.Generator().manual_seed(0)).requires_grad_(False)
    patches = find_patches(obs, SAME)
    x = planes(patches.pixels, tuple(patches.pixels.shape[1:]))
    whole = convolved(trunk, patches, x)
    monkeypatch.setattr("protovalue.nets.patches.ROWS", 7)
    torch.testing.assert_close(convolved(trunk, patches, x), whole)


def test_it_pays_where_patches_come_again() -> None:
    assert find_patches(game(20, (4, 48, 48)), SAME).repeated
    noise = torch.randint(256, (9, 4, 48, 48), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    assert not find_patches(noise, SAME).repeated
