"""The forward pass of a convolutional network whose parameters do not change any more, compiled, for few observations.

One observation after the other goes through all convolutions, in buffers that stay in the processor's cache. The
features of an observation depend on it alone, bit for bit: not on what is beside it in the batch, nor on the number of
threads. Importing this module brings numba.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protovalue.compiling import compiled
from protovalue.nets import tiles
from protovalue.nets.layers import Conv, Dense, check_observation_shape, output_size, same_padding
from protovalue.nets.tiles import ADD, LANES, RELU, STORE, WITH_ONE, WITH_TWO, make_tile

Array = NDArray[Any]
_SOURCES = [Path(tiles.__file__)]
_ZERO = np.float32(0)

_A1, _B1, _C1, _D1, _E1, _F1 = WITH_ONE
_A2, _B2, _C2, _D2, _E2, _F2 = WITH_TWO
_tile_a1, _tile_b1, _tile_c1, _tile_d1, _tile_e1, _tile_f1 = (make_tile(pixels, 1) for pixels in WITH_ONE)
_tile_a2, _tile_b2, _tile_c2, _tile_d2, _tile_e2, _tile_f2 = (make_tile(pixels, 2) for pixels in WITH_TWO)


def _pixels(
    count: int, inputs: Array, i: int, weights: Array, w: int, b: int, first: int, end: int,
    out: Array, o: int, positive: Array, p: int, step: int, rows: int, k: int, down: int, channels: int, kind: int,
) -> None:  # fmt: skip
    """Compute `count` neighbouring pixels, of their vectors of channels those from `first` (even) up to `end`.

    The weights are those of a pair of vectors after another, from index w of `weights`, where the biases are, too, from
    index b. The other arguments are those of a tile.
    """
    v = first
    while v < end:
        c = v * LANES
        at = w + rows * k * c
        n = 0
        while n < count:
            left = count - n
            i_n, o_n, p_n = i + n * step, o + n * channels + c, p + n * channels + c
            if v + 1 < end:
                if left >= _A2:
                    _tile_a2(inputs, i_n, weights, at, weights, b + c, out, o_n, positive, p_n, step, rows, k, down, channels, kind)  # noqa: E501
                    n += _A2
                elif left >= _B2:
                    _tile_b2(inputs, i_n, weights, at, weights, b + c, out, o_n, positive, p_n, step, rows, k, down, channels, kind)  # noqa: E501
                    n += _B2
                elif left >= _C2:
                    _tile_c2(inputs, i_n, weights, at, weights, b + c, out, o_n, positive, p_n, step, rows, k, down, channels, kind)  # noqa: E501
                    n += _C2
                elif left >= _D2:
                    _tile_d2(inputs, i_n, weights, at, weights, b + c, out, o_n, positive, p_n, step, rows, k, down, channels, kind)  # noqa: E501
                    n += _D2
                elif left >= _E2:
                    _tile_e2(inputs, i_n, weights, at, weights, b + c, out, o_n, positive, p_n, step, rows, k, down, channels, kind)  # noqa: E501
                    n += _E2
                else:
                    _tile_f2(inputs, i_n, weights, at, weights, b + c, out, o_n, positive, p_n, step, rows, k, down, channels, kind)  # noqa: E501
                    n += _F2
            elif left >= _A1:
                _tile_a1(inputs, i_n, weights, at, weights, b + c, out, o_n, positive, p_n, step, rows, k, down, channels, kind)  # noqa: E501
                n += _A1
            elif left >= _B1:
                _tile_b1(inputs, i_n, weights, at, weights, b + c, out, o_n, positive, p_n, step, rows, k, down, channels, kind)  # noqa: E501
                n += _B1
            elif left >= _C1:
                _tile_c1(inputs, i_n, weights, at, weights, b + c, out, o_n, positive, p_n, step, rows, k, down, channels, kind)  # noqa: E501
                n += _C1
            elif left >= _D1:
                _tile_d1(inputs, i_n, weights, at, weights, b + c, out, o_n, positive, p_n, step, rows, k, down, channels, kind)  # noqa: E501
                n += _D1
            elif left >= _E1:
                _tile_e1(inputs, i_n, weights, at, weights, b + c, out, o_n, positive, p_n, step, rows, k, down, channels, kind)  # noqa: E501
                n += _E1
            else:
                _tile_f1(inputs, i_n, weights, at, weights, b + c, out, o_n, positive, p_n, step, rows, k, down, channels, kind)  # noqa: E501
                n += _F1
        v += 2


pixels = compiled(_pixels, _SOURCES)


def _widen(obs: Array, scale: Any, buffer: Array, start: int, row: int) -> None:
    """Write one observation (stack, H, W, C), uint8, as (H, W, stack * C) into a buffer whose rows are wider."""
    stack, height, width, planes = obs.shape
    channels = stack * planes
    for y in range(height):
        at = start + y * row
        for f in range(stack):
            for x in range(width):
                for c in range(planes):
                    buffer[at + x * channels + f * planes + c] = np.float32(obs[f, y, x, c]) * scale


widen = compiled(_widen)


def _pool(lines: Array, y: int, height: int, width: int, channels: int, tall: Array, buffer: Array, o: int, p: int) -> None:
    """Max-pool 3x3, stride 2, SAME: row y of the result from the last three of `height` lines (3, width * channels).

    Line n is in row n % 3 of `lines`. The result goes to index o of the buffer, and what is positive of it to index p.
    """
    first = 2 * y - height % 2
    a, b, c = lines[max(first, 0) % 3], lines[min(first + 1, height - 1) % 3], lines[min(first + 2, height - 1) % 3]
    for j in range(width * channels):
        tall[j] = max(max(a[j], b[j]), c[j])
    for x in range((width + 1) // 2):
        left = 2 * x - width % 2
        u, v, w = max(left, 0) * channels, min(left + 1, width - 1) * channels, min(left + 2, width - 1) * channels
        for j in range(channels):
            found = max(max(tall[u + j], tall[v + j]), tall[w + j])
            buffer[o + x * channels + j] = found
            buffer[p + x * channels + j] = max(found, _ZERO)


pool = compiled(_pool)


def _convolve(
    obs: Array,  # (N, stack, H, W, C), uint8
    scale: Any,  # float32
    place: Array,  # (2,): where the input begins in the buffer, and from one of its rows to the next
    program: Array,  # (layers, 16)
    weights: Array,
    buffer: Array,  # zero where nothing is ever written: around the frames
    lines: Array,  # (3 * longest,), scratch
    tall: Array,  # (longest,), scratch
    latents: Array,  # (N, size), written
) -> None:
    """Take observations through all convolutions."""
    for n in range(len(obs)):
        widen(obs[n], scale, buffer, place[0], place[1])
        o = p = 0
        for layer in range(len(program)):
            i, down, stride, step, rows, k, w, b, height, width, o, p, line, other, channels, kind = program[layer]
            vectors = channels // LANES
            if kind == POOL:
                size = width * channels
                ring, done = lines[: 3 * size].reshape(3, size), 0
                for y in range((height + 1) // 2):
                    while done < min(2 * y - height % 2 + 3, height):
                        at = (done % 3) * size
                        pixels(
                            width, buffer, i + done * stride * down, weights, w, b, 0, vectors,
                            lines, at, lines, at, step, rows, k, down, channels, STORE,
                        )  # fmt: skip
                        done += 1
                    pool(ring, y, height, width, channels, tall, buffer, o + y * line, p + y * other)
            else:
                for y in range(height):
                    pixels(
                        width, buffer, i + y * stride * down, weights, w, b, 0, vectors,
                        buffer, o + y * line, buffer, p + y * other, step, rows, k, down, channels, kind,
                    )  # fmt: skip
        for j in range(latents.shape[1]):  # the last layer's frame has nothing around it
            latents[n, j] = buffer[p + j]


POOL = 3  # after RELU and ADD: the sums are max-pooled, and that and what is positive of it are kept
convolve = compiled(_convolve, _SOURCES)


@dataclass
class _Frame:
    """An image in the buffer, (height, width, channels) with zeros around it; channels fill whole vectors."""

    height: int
    width: int
    channels: int
    before: tuple[int, int] = (0, 0)
    after: tuple[int, int] = (0, 0)
    start: int = 0
    """Index of the corner of what is around it."""

    @property
    def line(self) -> int:
        """Numbers from one row to the next."""
        return (self.width + self.before[1] + self.after[1]) * self.channels

    @property
    def size(self) -> int:
        """All numbers, those around it too."""
        return (self.height + self.before[0] + self.after[0]) * self.line

    @property
    def first(self) -> int:
        """Index of its first pixel."""
        return self.start + self.before[0] * self.line + self.before[1] * self.channels


@dataclass
class Plan:
    """The layers of a network one after the other, and where everything lies: made by calling what it is made of."""

    observation_shape: tuple[int, ...]
    program: list[tuple[int, ...]] = field(default_factory=list)
    weights: list[Array] = field(default_factory=list)
    longest: int = 0
    _size: int = 0
    _stored: int = 0

    def __post_init__(self) -> None:
        stack, height, width, planes = check_observation_shape(self.observation_shape)
        self.input = _Frame(height, width, stack * planes)

    def frame(self, height: int, width: int, channels: int, reader: Conv | None) -> _Frame:
        """Make room for an image that a convolution will read; the last one is read as it is."""
        made = _Frame(height, width, channels)
        self._surround(made, reader)
        return made

    def _surround(self, made: _Frame, reader: Conv | None) -> None:
        if reader is not None and reader.padding == "SAME":
            top, bottom = same_padding(made.height, reader.kernel, reader.stride)
            left, right = same_padding(made.width, reader.kernel, reader.stride)
            made.before, made.after = (top, left), (bottom, right)
        made.start = self._size
        self._size += made.size

    def begin(self, reader: Conv) -> _Frame:
        """Make room for the observation."""
        self._surround(self.input, reader)
        return self.input

    def store(self, array: Array) -> int:
        """Keep parameters; return the index of the first."""
        self.weights.append(np.ascontiguousarray(array, np.float32).reshape(-1))
        self._stored += array.size
        return self._stored - array.size

    def conv(self, conv: Conv, source: _Frame, out: _Frame, positive: _Frame, kind: int) -> None:
        """Add a convolution of `source`; what is written to which of the others: see `kind`."""
        weight = _padded(conv.weight.permute(2, 3, 1, 0), 3)  # (kernel, kernel, in, out)
        weight = np.pad(weight, ((0, 0), (0, 0), (0, source.channels - weight.shape[2]), (0, 0)))
        height = output_size(source.height, conv.kernel, conv.stride, conv.padding)
        width = output_size(source.width, conv.kernel, conv.stride, conv.padding)
        at, bias = self.store(_paired(weight)), self.store(_padded(conv.bias, 0))
        channels = weight.shape[3]
        self.longest = max(self.longest, width * channels)
        step, k = conv.stride * source.channels, conv.kernel * source.channels
        self.program.append((
            source.start, source.line, conv.stride, step, conv.kernel, k, at, bias,
            height, width, out.first, positive.first, out.line, positive.line, channels, kind,
        ))  # fmt: skip

    def finish(self, dense: Dense, latent: _Frame, channels: int) -> "Pass":
        """Add the dense layer on an image of which `channels` are the network's, and return all together."""
        weight = dense.weight.detach().numpy().reshape(-1, latent.height, latent.width, channels)
        weight = np.pad(weight, ((0, 0), (0, 0), (0, 0), (0, latent.channels - channels)))
        flat = _padded(torch.from_numpy(weight.reshape(len(weight), -1).T), 1)  # (in, out)
        last = self.store(_paired(flat)), self.store(_padded(dense.bias, 0))
        return Pass(self, last, self._size, flat.shape, len(weight))


def padded(channels: int) -> int:
    """Return a number of channels that fills whole vectors."""
    return -(-channels // LANES) * LANES


def _padded(parameter: Tensor, axis: int) -> Array:
    """Return a copy of a parameter with zeros for channels that only fill a vector."""
    array = parameter.detach().numpy()
    widths = [(0, 0)] * array.ndim
    widths[axis] = (0, padded(array.shape[axis]) - array.shape[axis])
    return np.pad(array, widths)


def _paired(weight: Array) -> Array:
    """Put weights (..., channels) in the order in which tiles read them: (pair of vectors, ..., its channels)."""
    flat = weight.reshape(-1, weight.shape[-1])
    return np.concatenate([flat[:, c : c + 2 * LANES].reshape(-1) for c in range(0, flat.shape[1], 2 * LANES)])


class Pass:
    """A forward pass by parameters that do not change any more."""

    dtypes: ClassVar[tuple[type, ...]] = (np.uint8, np.bool_)

    def __init__(
        self, plan: Plan, dense: tuple[int, int], size: int, shape: tuple[int, ...], num_features: int
    ) -> None:
        """Take a plan, where the dense layer's parameters lie, the buffer's size, and the dense layer's shape."""
        self._weights, self._program = np.concatenate(plan.weights), np.array(plan.program, np.int64)
        self._place = np.array([plan.input.first, plan.input.line], np.int64)
        self._shape, self._input = plan.observation_shape, check_observation_shape(plan.observation_shape)
        self._dense, self._size, self._longest = dense, size, plan.longest
        (self._flat, self._out), self._num_features = shape, num_features
        self._rooms: list[tuple[Array, Array, Array]] = []

    def __call__(self, obs: Array) -> NDArray[np.float32]:
        """Map observations (N, stack, H, W[, C]) to features (N, k), by as many threads as PyTorch has."""
        assert obs.shape[1:] == self._shape
        scale = np.float32(1.0 if obs.dtype == np.bool_ else 1.0 / 255.0)
        stack, height, width, planes = self._input
        plain = np.ascontiguousarray(obs).view(np.uint8).reshape(-1, stack, height, width, planes)
        count, threads = len(obs), torch.get_num_threads()
        latents, features = np.empty((count, self._flat), np.float32), np.empty((count, self._out), np.float32)

        def convolve_some(part: int, start: int, end: int) -> None:
            room = self._rooms[part]
            convolve(
                plain[start:end], scale, self._place, self._program, self._weights, *room, latents[start:end]
            )

        def multiply(part: int, first: int, end: int) -> None:
            flat, found = latents.reshape(-1), features.reshape(-1)
            pixels(
                count, flat, 0, self._weights, *self._dense, first, end,
                found, 0, found, 0, self._flat, 1, self._flat, 0, self._out, RELU,
            )  # fmt: skip

        pairs = -(-self._out // (2 * LANES))
        bounds = _split(pairs, min(threads, pairs))
        halves = [min(2 * bound, self._out // LANES) for bound in bounds]
        parts = _split(count, min(threads, count))
        while len(self._rooms) < len(parts) - 1:
            self._rooms.append(self._room())
        _spread(convolve_some, parts)
        _spread(multiply, halves)
        return np.ascontiguousarray(features[:, : self._num_features])

    def _room(self) -> tuple[Array, Array, Array]:
        """Return the buffer of one thread, and its scratch."""
        sizes = (self._size, 3 * self._longest, self._longest)
        buffer, lines, tall = (np.zeros(size, np.float32) for size in sizes)
        return buffer, lines, tall


def _split(count: int, parts: int) -> list[int]:
    """Return the bounds of nearly equal parts."""
    return [count * part // max(parts, 1) for part in range(max(parts, 1) + 1)]


def _spread(work: Callable[[int, int, int], None], bounds: list[int]) -> None:
    """Do parts of a work, each in a thread of its own; one alone in this one."""
    jobs = [(part, *pair) for part, pair in enumerate(zip(bounds[:-1], bounds[1:], strict=True))]
    if len(jobs) == 1:
        work(*jobs[0])
        return
    with ThreadPoolExecutor(len(jobs)) as pool_of_threads:
        for _ in pool_of_threads.map(lambda job: work(*job), jobs):
            pass
