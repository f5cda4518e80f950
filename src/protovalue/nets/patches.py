"""Convolutions of many similar images: what a layer sees at each place, each different sight once.

Frames of a game hardly differ from one to the next, and all episodes share their background: of all patches of Atari's
frames that a first convolution sees in 512 states, 1 in 25 is new. Which patches are equal does not depend on the
weights, so it is found out once for all networks of the same architecture on the same images.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from torch import Tensor

from protovalue.compiling import compiled
from protovalue.nets.convolutions import ConvSpec, ConvTrunk
from protovalue.nets.layers import Conv, flatten, output_size, same_padding
from protovalue.randomness import numpy_generator

ROWS = 1024  # different patches multiplied together: what is gathered for them stays in the processor's cache
_PRIME = np.uint64(0x9E3779B97F4A7C15)  # mixes a patch's place at the border into its hash


def _distinct(
    words: NDArray[np.uint32],
    factors: NDArray[np.uint64],
    stride: int,
    top: int,
    left: int,
    rows: int,
    columns: int,
) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """Number the different patches of images from 1, in the order in which they come.

    A hash only finds candidates: patches have the same number if all their words are the same, and if they hang over
    the border in the same way, where they do.

    Args:
        words: images (N, H, W, words of a pixel).
        factors: of the hash, (kernel, kernel, words of a pixel), odd.
        stride: from a patch to the next.
        top: rows of padding before the first one.
        left: columns of padding before the first one.
        rows: patches below each other.
        columns: patches beside each other.

    Returns:
        The number of each patch (N, rows, columns), and where the first of each number is (different, 3).
    """
    count, height, width, depth = words.shape
    kernel = factors.shape[0]
    lines, weights = words.reshape(count, height, width * depth), factors.reshape(kernel, kernel * depth)
    most = count * rows * columns
    bits = 4
    while (1 << bits) < 2 * most:
        bits += 1
    shift, mask = np.uint64(64 - bits), (1 << bits) - 1
    table = np.zeros(1 << bits, np.uint32)
    numbers = np.empty((count, rows, columns), np.uint32)
    hashes = np.empty(most + 1, np.uint64)
    places = np.empty((most, 3), np.int64)
    found = 0
    for n in range(count):
        for i in range(rows):
            y = i * stride - top
            r0, r1 = max(0, -y), min(kernel, height - y)
            for j in range(columns):
                x = j * stride - left
                c0, c1 = max(0, -x), min(kernel, width - x)
                first, last = (x + c0) * depth, (x + c1) * depth
                if n > 0:  # most often it is what was there before
                    other = np.uint32(0)
                    for r in range(r0, r1):
                        here, there = lines[n, y + r, first:last], lines[n - 1, y + r, first:last]
                        for q in range(len(here)):
                            other |= here[q] ^ there[q]
                        if other != 0:
                            break
                    if other == 0:
                        numbers[n, i, j] = numbers[n - 1, i, j]
                        continue
                code = np.uint64(((r0 * kernel + r1) * (kernel + 1) + c0) * (kernel + 1) + c1) * _PRIME
                for r in range(r0, r1):
                    here, weight = lines[n, y + r, first:last], weights[r, c0 * depth : c1 * depth]
                    for q in range(len(here)):
                        code += np.uint64(here[q]) * weight[q]
                slot = np.int64(code >> shift)
                while True:
                    number = np.int64(table[slot])
                    if number == 0:
                        places[found, 0], places[found, 1], places[found, 2] = n, i, j
                        found += 1
                        hashes[found] = code
                        table[slot] = np.uint32(found)
                        number = np.int64(found)
                        break
                    if hashes[number] == code:
                        m = places[number - 1, 0]
                        v = places[number - 1, 1] * stride - top
                        u = places[number - 1, 2] * stride - left
                        rows_alike = max(0, -v) == r0 and min(kernel, height - v) == r1
                        if rows_alike and max(0, -u) == c0 and min(kernel, width - u) == c1:
                            other = np.uint32(0)
                            for r in range(r0, r1):
                                here = lines[n, y + r, first:last]
                                there = lines[m, v + r, (u + c0) * depth : (u + c1) * depth]
                                for q in range(len(here)):
                                    other |= here[q] ^ there[q]
                            if other == 0:
                                break
                    slot = (slot + 1) & mask
                numbers[n, i, j] = np.uint32(number)
    return numbers, places[:found].copy()


def _cut(
    words: NDArray[np.uint32], places: NDArray[np.int64], kernel: int, stride: int, top: int, left: int
) -> tuple[NDArray[np.uint32], NDArray[np.uint8]]:
    """Cut patches out of images: (patches, kernel, kernel, words of a pixel), zero where they hang over the border.

    The second array is 1 where they do not, (patches, kernel, kernel).
    """
    _, height, width, depth = words.shape
    patches = np.zeros((len(places), kernel, kernel, depth), np.uint32)
    inside = np.zeros((len(places), kernel, kernel), np.uint8)
    for p in range(len(places)):
        y, x = places[p, 1] * stride - top, places[p, 2] * stride - left
        for r in range(max(0, -y), min(kernel, height - y)):
            for c in range(max(0, -x), min(kernel, width - x)):
                inside[p, r, c] = 1
                for d in range(depth):
                    patches[p, r, c, d] = words[places[p, 0], y + r, x + c, d]
    return patches, inside


@cache
def _kernels() -> tuple[Callable[..., Any], Callable[..., Any]]:
    return compiled(_distinct), compiled(_cut)


@cache
def _factors(kernel: int, depth: int) -> NDArray[np.uint64]:
    """Factors of the hash. They change no result, only how often two patches must be compared."""
    drawn = numpy_generator(0).integers(1 << 63, size=(kernel, kernel, depth), dtype=np.uint64)
    return drawn * np.uint64(2) + np.uint64(1)


@dataclass(frozen=True)
class Patches:
    """The different patches that each convolution of a network sees in some images, and the different images."""

    pixels: Tensor
    """Of the first convolution: (different, channels, kernel, kernel), as they are stored; zero beyond the border."""
    inside: Tensor
    """1 where they lie in an image, 0 where they hang over its border, (different, 1, kernel, kernel)."""
    parts: tuple[Tensor, ...]
    """Of each further convolution: numbers of the patches before it, 0 for padding, (different, kernel * kernel)."""
    images: Tensor
    """The different images: numbers of the last convolution's patches, (different, places)."""
    image: Tensor
    """Which of them each image is, (N,)."""

    @property
    def repeated(self) -> bool:
        """Whether it pays to convolve each patch once: not where more than half of the last layer's are different.

        With noise for frames, where all patches are different, it would take 1.6 times as long as convolving all.
        """
        return 2 * len(self.parts[-1]) <= self.image.numel() * self.images.shape[1]


def find_patches(obs: Tensor, spec: ConvSpec) -> Patches:
    """Find out what is different in observations (N, stack, H, W) or (N, stack, H, W, C), uint8 or bool."""
    distinct, cut = _kernels()
    last = obs.permute(0, 2, 3, 1) if obs.dim() == 4 else obs.permute(0, 2, 3, 1, 4).flatten(3)
    channels = last.shape[3]
    # A pixel is as many 32-bit words as its channels fill; a number of a patch is one.
    filled = last.new_zeros(*last.shape[:3], -(-channels // 4) * 4)
    filled[..., :channels] = last
    words = filled.view(torch.uint8).numpy().view(np.uint32)  # (N, H, W, words)
    found = []
    for _, kernel, stride in spec.layers:
        _, height, width, depth = words.shape
        rows, columns = (output_size(size, kernel, stride, spec.padding) for size in (height, width))
        same = spec.padding == "SAME"
        top, left = (same_padding(size, kernel, stride)[0] if same else 0 for size in (height, width))
        numbers, places = distinct(words, _factors(kernel, depth), stride, top, left, rows, columns)
        found.append(cut(words, places, kernel, stride, top, left))
        words = numbers[..., None]
    (kinds, inside), *others = found
    pixels = torch.from_numpy(kinds.view(np.uint8)).view(obs.dtype)[..., :channels].permute(0, 3, 1, 2)
    parts = tuple(torch.from_numpy(patches.reshape(len(patches), -1).view(np.int32)) for patches, _ in others)
    whole = words.reshape(len(words), 1, 1, -1)
    image, places = distinct(whole, _factors(1, whole.shape[3]), 1, 0, 0, 1, 1)
    images = torch.from_numpy(whole.reshape(len(words), -1)[places[:, 0]].view(np.int32))
    numbers = torch.from_numpy(image.reshape(-1).astype(np.int64) - 1)
    return Patches(pixels, torch.from_numpy(inside)[:, None], parts, images, numbers)


def convolved(trunk: ConvTrunk, patches: Patches, x: Tensor) -> Tensor:
    """Apply a trunk: its outputs on the different images, (different, flat_features).

    Args:
        trunk: of the architecture that the patches were found for.
        patches: of the images.
        x: the network's input, made of `patches.pixels`, zero where it is not `patches.inside`; channels last.
    """
    first, *others = (cast("Conv", layer) for layer in trunk.convs)
    table = F.relu_(F.linear(flatten(x), flatten(first.weight), first.bias))  # (different, channels)
    for layer, part in zip(others, patches.parts, strict=True):
        weight = flatten(layer.weight)
        padded = torch.cat([table.new_zeros(1, table.shape[1]), table])
        table = torch.empty(len(part), len(weight))
        for numbers, out in zip(part.split(ROWS), table.split(ROWS), strict=True):
            torch.addmm(layer.bias, _rows(padded, numbers), weight.T, out=out).relu_()
    return _rows(torch.cat([table.new_zeros(1, table.shape[1]), table]), patches.images)


def _rows(table: Tensor, numbers: Tensor) -> Tensor:
    """Put rows of a table beside each other: numbers (n, k) to (n, k * channels)."""
    return table.index_select(0, numbers.flatten()).view(len(numbers), -1)
