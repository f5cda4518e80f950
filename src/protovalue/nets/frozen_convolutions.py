"""The forward pass of a convolutional network whose parameters do not change any more, compiled, for few observations.

One observation after the other goes through all convolutions, in buffers that stay in the processor's cache. The
features of an observation depend on it alone, bit for bit: not on what is beside it in the batch, nor on the number of
threads. Importing this module brings numba.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numba.extending import register_jitable
from numpy.typing import NDArray
from torch import Tensor

from protovalue.compiling import compiled
from protovalue.nets import tiles
from protovalue.nets.layers import Conv, Dense, check_observation_shape, output_size, same_padding
from protovalue.nets.readout import normalized_relu
from protovalue.nets.tiles import LANES, RELU, STORE, WITH_ONE, WITH_TWO, largest, make_tiles

Array = NDArray[Any]
_SOURCES = [Path(tiles.__file__)]

POOL = 3  # besides STORE, RELU and ADD: sums are max-pooled; that and what is positive of it are kept

_one_vector, _two_vectors = make_tiles(WITH_ONE, 1), make_tiles(WITH_TWO, 2)


@register_jitable
def pixels(
    count: int, inputs: Array, i: int, weights: Array, w: int, b: int, first: int, end: int, out: Array, o: int,
    positive: Array, p: int, step: int, rows: int, k: int, down: int, channels: int, kind: int,
) -> None:  # fmt: skip
    """Compute `count` neighbouring pixels, of their vectors of channels those from `first` (even) up to `end`.

    The weights are those of a pair of vectors after another, from index w of `weights`, where the biases are, too, from
    index b. The other arguments are those of `make_tiles`.
    """
    for v in range(first, end, 2):
        c, n = v * LANES, 0
        pair, bias = w + rows * k * c, b + c
        while n < count:
            window, result, other = i + n * step, o + n * channels + c, p + n * channels + c
            if v + 1 < end:
                n += _two_vectors(
                    count - n, inputs, window, weights, pair, weights, bias, out, result, positive, other,
                    step, rows, k, down, channels, kind,
                )  # fmt: skip
            else:
                n += _one_vector(
                    count - n, inputs, window, weights, pair, weights, bias, out, result, positive, other,
                    step, rows, k, down, channels, kind,
                )  # fmt: skip


@register_jitable
def widen(obs: Array, scale: Any, buffer: Array, start: int, row: int) -> None:
    """Write one observation (stack, H, W, C), uint8, as (H, W, stack * C) into a buffer whose rows are wider."""
    stack, height, width, planes = obs.shape
    channels = stack * planes
    for y in range(height):
        for f in range(stack):
            at = start + y * row + f * planes
            if planes == 1:  # the usual case, and several times as quick without another loop
                for x in range(width):
                    buffer[at + x * channels] = np.float32(obs[f, y, x, 0]) * scale
            else:
                for x in range(width):
                    for c in range(planes):
                        buffer[at + x * channels + c] = np.float32(obs[f, y, x, c]) * scale


@register_jitable
def pool(buffer: Array, lines: int, y: int, height: int, width: int, channels: int, o: int, p: int) -> None:
    """Max-pool 3x3, stride 2, SAME: row y of the result from the last three of `height` lines of width * channels.

    Line n is the (n % 3)-th at index `lines` of the buffer. The result goes to index o, what is positive of it to p.
    """
    top, size = 2 * y - height % 2, width * channels
    a = lines + max(top, 0) % 3 * size
    b = lines + min(top + 1, height - 1) % 3 * size
    c = lines + min(top + 2, height - 1) % 3 * size
    for x in range((width + 1) // 2):
        left = 2 * x - width % 2
        u, v, w = max(left, 0) * channels, min(left + 1, width - 1) * channels, min(left + 2, width - 1) * channels
        for j in range(0, channels, LANES):
            here = x * channels + j
            largest(buffer, a + j, b + j, c + j, u, v, w, buffer, o + here, p + here)


@register_jitable
def convolve(
    obs: Array,  # (N, stack, H, W, C), uint8
    scale: Any,  # float32
    place: Array,  # (2,): where the input begins in the buffer, and from one of its rows to the next
    program: Array,  # (layers, 16)
    weights: Array,
    buffer: Array,  # zero where nothing is ever written: around the frames; its end is scratch for three lines
    latents: Array,  # (N, size), written
) -> None:
    """Take observations through all convolutions."""
    for n in range(len(obs)):
        widen(obs[n], scale, buffer, place[0], place[1])
        last = 0
        for layer in range(len(program)):
            i, down, stride, step, rows, k, w, b, height, width, o, p, line, other, channels, kind = program[layer]
            size, last, pooled = width * channels, p, 0
            lines = len(buffer) - 3 * size
            for y in range(height):
                at, there = (lines + y % 3 * size, 0) if kind == POOL else (o + y * line, p + y * other)
                pixels(
                    width, buffer, i + y * stride * down, weights, w, b, 0, channels // LANES,
                    buffer, at, buffer, there, step, rows, k, down, channels, STORE if kind == POOL else kind,
                )  # fmt: skip
                # The result's row that this line was the last one for; after the last line also one that it ends.
                while kind == POOL and pooled < (height + 1) // 2 and min(2 * pooled - height % 2 + 2, height - 1) == y:
                    pool(buffer, lines, pooled, height, width, channels, o + pooled * line, p + pooled * other)
                    pooled += 1
        for j in range(latents.shape[1]):  # the last layer's frame has nothing around it
            latents[n, j] = buffer[last + j]


def _forward(
    obs: Array,
    scale: Any,
    place: Array,
    program: Array,
    weights: Array,
    buffer: Array,
    latents: Array,  # (N, size), written where there are observations
    dense: Array,  # (2,): where the weights of the dense layer begin, and its biases
    first: int,
    end: int,
    kind: int,  # what becomes of the dense layer's sums: `STORE` or `RELU`
    features: Array,  # (N, ...), written: of its vectors those from `first` up to `end`
) -> None:
    """Do both parts of the pass, or one: the convolutions of some observations, some features of all latents.

    They are one function because what they share takes most of the time to compile.
    """
    if len(obs) > 0:
        convolve(obs, scale, place, program, weights, buffer, latents)
    if end > first:
        count, size = latents.shape
        flat, found = latents.reshape(-1), features.reshape(-1)
        pixels(
            count, flat, 0, weights, dense[0], dense[1], first, end, found, 0, found, 0,
            size, 1, size, 0, features.shape[1], kind,
        )  # fmt: skip


forward = compiled(_forward, _SOURCES)


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
        weight = _whole(conv.weight.permute(2, 3, 1, 0), 3)  # (kernel, kernel, in, out)
        weight = _filled(weight, 2, source.channels)
        height = output_size(source.height, conv.kernel, conv.stride, conv.padding)
        width = output_size(source.width, conv.kernel, conv.stride, conv.padding)
        at, bias = self.store(_paired(weight)), self.store(_whole(conv.bias, 0))
        channels = weight.shape[3]
        self.longest = max(self.longest, width * channels)
        step, k = conv.stride * source.channels, conv.kernel * source.channels
        self.program.append((
            source.start, source.line, conv.stride, step, conv.kernel, k, at, bias,
            height, width, out.first, positive.first, out.line, positive.line, channels, kind,
        ))  # fmt: skip

    def finish(self, dense: Dense, latent: _Frame, channels: int, normalized: bool) -> "Pass":
        """Add the dense layer on an image of which `channels` are the network's, and return all together."""
        weight = dense.weight.detach().numpy().reshape(-1, latent.height, latent.width, channels)
        weight = _filled(weight, 3, latent.channels)
        flat = _filled(weight.reshape(len(weight), -1).T, 1, padded(len(weight)))  # (in, out)
        last = self.store(_paired(flat)), self.store(_whole(dense.bias, 0))
        return Pass(self, last, self._size, flat.shape, len(weight), normalized)


def padded(channels: int) -> int:
    """Return a number of channels that fills whole vectors."""
    return -(-channels // LANES) * LANES


def _whole(parameter: Tensor, axis: int) -> Array:
    """Return a parameter with zeros for channels that only fill a vector."""
    return _filled(parameter.detach().numpy(), axis, padded(parameter.shape[axis]))


def _filled(array: Array, axis: int, size: int) -> Array:
    """Return an array with zeros after one axis; itself where there is nothing to do, because some are large."""
    if array.shape[axis] == size:
        return array
    return np.pad(array, [(0, size - array.shape[axis] if n == axis else 0) for n in range(array.ndim)])


def _paired(weight: Array) -> Array:
    """Put weights (..., channels) in the order in which tiles read them: (pair of vectors, ..., its channels)."""
    flat = weight.reshape(-1, weight.shape[-1])
    return np.concatenate([flat[:, c : c + 2 * LANES].reshape(-1) for c in range(0, flat.shape[1], 2 * LANES)])


class Pass:
    """A forward pass by parameters that do not change any more."""

    dtypes: ClassVar[tuple[type, ...]] = (np.uint8, np.bool_)

    def __init__(
        self,
        plan: Plan,
        dense: tuple[int, int],
        size: int,
        shape: tuple[int, ...],
        num_features: int,
        normalized: bool,
    ) -> None:
        """Take a plan, where the dense layer's parameters lie, the buffer's size, and the dense layer's shape."""
        self._normalized, self._kind = normalized, STORE if normalized else RELU
        self._weights, self._program = np.concatenate(plan.weights), np.array(plan.program, np.int64)
        self._place = np.array([plan.input.first, plan.input.line], np.int64)
        self._shape, self._input = plan.observation_shape, check_observation_shape(plan.observation_shape)
        self._dense, self._size = np.array(dense, np.int64), size + 3 * plan.longest
        (self._flat, self._out), self._num_features = shape, num_features
        self._rooms: list[Array] = []  # the buffer of each thread

    def __call__(self, obs: Array) -> NDArray[np.float32]:
        """Map observations (N, stack, H, W[, C]) to features (N, k), by as many threads as PyTorch has."""
        assert obs.shape[1:] == self._shape
        scale = np.float32(1.0 if obs.dtype == np.bool_ else 1.0 / 255.0)
        stack, height, width, planes = self._input
        plain = np.ascontiguousarray(obs).view(np.uint8).reshape(-1, stack, height, width, planes)
        count, threads = len(obs), torch.get_num_threads()
        latents, features = np.empty((count, self._flat), np.float32), np.empty((count, self._out), np.float32)

        fixed = (scale, self._place, self._program, self._weights)
        parts, pairs = _split(count, threads), _split(-(-self._out // (2 * LANES)), threads)
        vectors = [min(2 * pair, self._out // LANES) for pair in pairs]
        while len(self._rooms) < threads:
            self._rooms.append(np.zeros(self._size, np.float32))

        def convolutions(part: int) -> None:
            here = slice(parts[part], parts[part + 1])
            forward(plain[here], *fixed, self._rooms[part], latents[here], self._dense, 0, 0, self._kind, features)

        def products(part: int) -> None:
            bounds = vectors[part], vectors[part + 1]
            forward(plain[:0], *fixed, self._rooms[part], latents, self._dense, *bounds, self._kind, features)

        if threads == 1:
            forward(plain, *fixed, self._rooms[0], latents, self._dense, 0, vectors[-1], self._kind, features)
        else:
            with ThreadPoolExecutor(threads) as workers:
                for work in (convolutions, products):
                    list(workers.map(work, range(threads)))
        found = features[:, : self._num_features]
        return normalized_relu(found) if self._normalized else np.ascontiguousarray(found)


def _split(count: int, parts: int) -> list[int]:
    """Return the bounds of nearly equal parts."""
    return [count * part // parts for part in range(parts + 1)]
