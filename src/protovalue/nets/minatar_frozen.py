"""The MinAtar network's forward pass, compiled, for frozen parameters: few observations, of which few cells are set.

The features of an observation depend on it alone, bit for bit, whatever is beside it in the batch. Importing this
module brings numba.
"""

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from protovalue.compiling import compiled
from protovalue.nets.readout import normalized_relu

Array = NDArray[Any]

CHUNK = 256  # rows of the dense layer that stay in the processor's cache while all observations pass


def _convolve(obs: Array, kernel: Array, bias: Array, latents: Array) -> None:
    """Convolve one observation (stack, H, W, C), bool, to latents (H', W', channels), which are written.

    `kernel` is (3, 3, stack * C, channels). Each cell that is set is added to every window that it is in.
    """
    stack, height, width, planes = obs.shape
    rows, columns, channels = latents.shape
    side = kernel.shape[0]
    for y in range(rows):
        for x in range(columns):
            for c in range(channels):
                latents[y, x, c] = bias[c]
    for f in range(stack):
        for y in range(height):
            for x in range(width):
                for p in range(planes):
                    if obs[f, y, x, p]:
                        for v in range(max(0, y - side + 1), min(rows, y + 1)):
                            for u in range(max(0, x - side + 1), min(columns, x + 1)):
                                for c in range(channels):
                                    latents[v, u, c] += kernel[y - v, x - u, f * planes + p, c]


convolve = compiled(_convolve)


def _forward(
    obs: Array,  # (N, stack, H, W, C), bool
    kernel: Array,  # (3, 3, stack * C, channels)
    bias: Array,  # (channels,)
    dense: Array,  # (H' * W' * channels, k)
    dense_bias: Array,  # (k,)
    flat: Array,  # (N, H' * W' * channels), scratch
    index: Array,  # (CHUNK,), scratch
    cut: bool,  # off at 0
    features: Array,  # (N, k), written
) -> None:
    count, k, side = len(obs), dense.shape[1], kernel.shape[0]
    latents = flat.reshape(count, obs.shape[2] - side + 1, obs.shape[3] - side + 1, kernel.shape[3])
    for n in range(count):
        convolve(obs[n], kernel, bias, latents[n])
        for i in range(k):
            features[n, i] = dense_bias[i]
    for start in range(0, flat.shape[1], CHUNK):
        end = min(start + CHUNK, flat.shape[1])
        for n in range(count):
            found = 0
            for j in range(start, end):  # what the ReLU leaves
                if flat[n, j] > 0:
                    index[found] = j
                    found += 1
            whole = found - found % 4
            for j in range(0, whole, 4):
                a, b, c, d = index[j], index[j + 1], index[j + 2], index[j + 3]
                xa, xb, xc, xd = flat[n, a], flat[n, b], flat[n, c], flat[n, d]
                for i in range(k):
                    features[n, i] += xa * dense[a, i] + xb * dense[b, i] + xc * dense[c, i] + xd * dense[d, i]
            for j in range(whole, found):
                a = index[j]
                for i in range(k):
                    features[n, i] += flat[n, a] * dense[a, i]
    for n in range(count if cut else 0):
        for i in range(k):
            features[n, i] = max(features[n, i], np.float32(0))


forward = compiled(_forward)


class Pass:
    """A forward pass by parameters that do not change any more."""

    dtypes: ClassVar[tuple[type, ...]] = (np.bool_,)

    def __init__(self, kernel: Array, bias: Array, dense: Array, dense_bias: Array, normalized: bool) -> None:
        """Take a kernel (3, 3, in, channels), its bias (channels,), a dense layer (H' * W' * channels, k) and (k,)."""
        self._parameters, self._normalized = (kernel, bias, dense, dense_bias), normalized
        self._flat, self._k = dense.shape
        self._index = np.empty(CHUNK, np.int64)

    def __call__(self, obs: NDArray[np.bool_]) -> NDArray[np.float32]:
        """Map observations (N, stack, H, W[, C]) to features (N, k)."""
        obs = obs if obs.ndim == 5 else obs[..., None]
        latents, features = np.empty((len(obs), self._flat), np.float32), np.empty((len(obs), self._k), np.float32)
        forward(obs, *self._parameters, latents, self._index, not self._normalized, features)
        return normalized_relu(features) if self._normalized else features
