"""The layers' rules from TensorFlow's guide in NumPy, one output at a time, channels last as in Flax."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]


class Parameters:
    """The weights and biases of a network by the path of their layer, in double precision."""

    def __init__(self, state: Mapping[str, Tensor], prefix: str = "") -> None:
        self._state, self._prefix = state, prefix

    def __getitem__(self, path: str) -> tuple[Array, Array]:
        weight, bias = (self._state[f"{self._prefix}{path}.{part}"] for part in ("weight", "bias"))
        return weight.double().numpy(), bias.double().numpy()


def image_of(obs: Tensor) -> Array:
    """Turn one observation (S, H, W) or (S, H, W, C) into an image (H, W, S * C) in [0, 1], frame by frame."""
    top = 1.0 if obs.numpy().dtype == np.bool_ else 255.0
    frames = obs.numpy().astype(np.float64).reshape(*obs.shape[:3], -1) / top
    return np.concatenate(list(frames), axis=-1)


def padded(x: Array, kernel: int, stride: int, value: float) -> Array:
    """Pad (H, W, C): as many in all as the last window needs, the smaller half before."""
    widths = []
    for size in x.shape[:2]:
        total = max(kernel - stride, 0) if size % stride == 0 else max(kernel - size % stride, 0)
        widths.append((total // 2, total - total // 2))
    return np.pad(x, (*widths, (0, 0)), constant_values=value)


def windows(x: Array, kernel: int, stride: int) -> Array:
    """Cut (H, W, C) into windows (H', W', kernel, kernel, C)."""
    rows = range(0, x.shape[0] - kernel + 1, stride)
    columns = range(0, x.shape[1] - kernel + 1, stride)
    return np.array([[x[i : i + kernel, j : j + kernel] for j in columns] for i in rows])


def conv(x: Array, layer: tuple[Array, Array], stride: int = 1, same: bool = True) -> Array:
    """Convolve (H, W, C) with a weight (out, in, kernel, kernel) and add the bias."""
    weight, bias = layer
    kernel = weight.shape[2]
    x = padded(x, kernel, stride, 0.0) if same else x
    summed: Array = np.einsum("hwijc,ocij->hwo", windows(x, kernel, stride), weight)
    return summed + bias


def pool(x: Array) -> Array:
    """Max-pool 3x3, stride 2, SAME."""
    largest: Array = windows(padded(x, 3, 2, -np.inf), 3, 2).max(axis=(2, 3))
    return largest


def dense(x: Array, layer: tuple[Array, Array]) -> Array:
    weight, bias = layer
    return weight @ x + bias


def relu(x: Array) -> Array:
    return np.maximum(x, 0.0)


def latents(name: str, layers: Parameters, x: Array) -> Array:
    """What the convolutions of an encoder make of an image (H, W, C), after their last ReLU."""
    if name == "minatar":
        return relu(conv(x, layers["trunk.convs.0"], same=False))
    if name == "nature":
        for i, stride in enumerate((4, 2, 1)):
            x = relu(conv(x, layers[f"trunk.convs.{i}"], stride))
        return x
    if name == "der":
        for i in range(2):
            x = relu(conv(x, layers[f"trunk.convs.{i}"], 5, same=False))
        return x
    for s in range(3):
        x = pool(conv(x, layers[f"stacks.{s}.conv"]))
        for b in range(2):
            h = conv(relu(x), layers[f"stacks.{s}.blocks.{b}.first"])
            x = conv(relu(h), layers[f"stacks.{s}.blocks.{b}.second"]) + x
    return relu(x)
