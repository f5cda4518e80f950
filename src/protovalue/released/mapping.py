"""From what a graph does to its observations to the parameters of our Impala network, each by its place in the flow."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from protovalue.config import whole
from protovalue.errors import UserError
from protovalue.nets.layers import scaled
from protovalue.released.operations import Flow, bare
from protovalue.released.tensors import Array

CHANNELS, FEATURES = (16, 32, 32), 512  # of the Impala-CNN at width 1
BLOCKS = 2


@dataclass(frozen=True)
class Network:
    """An Impala-CNN, in the names of our parameters; kernels are as the graph has them."""

    convolutions: dict[str, Array]
    """Kernels (3, 3, in, out), HWIO."""
    biases: dict[str, Array]
    dense: Array
    """Weights (in, out); rows in the order height, width, channel."""
    width: int | float
    scale: float
    """What the graph multiplies its input by before the first convolution."""

    @property
    def num_features(self) -> int:
        """Number of features."""
        return int(self.dense.shape[1])


class _Walk:
    """A walk from the features back to the observations."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.kernels: dict[str, Array] = {}
        self.biases: dict[str, Array] = {}

    def step(self, flow: Flow, kind: str, where: str) -> Flow:
        """Return what was there before a step that must be of a kind."""
        if flow.kind != kind:
            raise self.other(flow, kind, where)
        return flow.before[0]

    def other(self, flow: Flow, expected: str, where: str) -> UserError:
        """Say what was found in another's place."""
        found = (
            f"a step of another kind ({flow.name[-120:]})"
            if flow.kind == "other"
            else f"{flow.kind} ({flow.name[-120:]})"
        )
        return UserError(f"{self.url}: found {found} of shape {flow.shape} {where}, expected {expected}: an Impala-CNN")

    def layer(self, flow: Flow, kind: str, name: str) -> Flow:
        """Take weights and bias of a layer, and return what goes into it."""
        bias = None
        if flow.kind == "bias":
            bias, flow = flow.weight, flow.before[0]
        before = self.step(flow, kind, f"in the place of {name}")
        kernel = flow.weight
        if kind == "convolution" and kernel.shape[:2] != (3, 3):
            raise UserError(
                f"{self.url}: found a kernel {kernel.shape} in the place of {name}, expected (3, 3, in, out)"
            )
        self.kernels[name] = kernel
        self.biases[name] = np.zeros(kernel.shape[-1], np.float32) if bias is None else bias
        return before

    def block(self, flow: Flow, name: str) -> Flow:
        """Go back over x + conv(relu(conv(relu(x))))."""
        if flow.kind != "sum":
            raise self.other(flow, "a sum", f"after {name}")
        main, shortcut = flow.before
        if main.kind not in ("bias", "convolution"):
            main, shortcut = shortcut, main
        inner = self.step(self.layer(main, "convolution", f"{name}.second"), "relu", f"before {name}.second")
        start = self.step(self.layer(inner, "convolution", f"{name}.first"), "relu", f"before {name}.first")
        if start is not shortcut:
            raise self.other(shortcut, "what goes into the block", f"as the shortcut of {name}")
        return start


def read_network(features: Flow | None, url: str) -> Network:
    """Find an Impala-CNN in what a graph does; anything else is a UserError that says where it differs."""
    if features is None:
        raise UserError(f"{url}: found features that do not depend on the observations")
    walk = _Walk(url)
    flow = walk.layer(walk.step(features, "relu", "as the features"), "dense", "dense")
    flow = walk.step(walk.step(flow, "flatten", "before the dense layer"), "relu", "before the dense layer")
    for stack in reversed(range(len(CHANNELS))):
        for block in reversed(range(BLOCKS)):
            flow = walk.block(flow, f"stacks.{stack}.blocks.{block}")
        flow = walk.layer(walk.step(flow, "pool", f"in stack {stack}"), "convolution", f"stacks.{stack}.conv")
    scale = 1.0
    while flow.kind == "scale":
        scale, flow = scale * flow.weight, flow.before[0]
    if flow.kind != "input":
        raise walk.other(flow, "the observations, perhaps scaled", "before the first convolution")
    dense = walk.kernels.pop("dense")
    _check(walk.kernels, url)
    return Network(walk.kernels, walk.biases, dense, _width(walk.kernels, dense, url), scale)


def _check(kernels: dict[str, Array], url: str) -> None:
    for name, kernel in kernels.items():
        if kernel.dtype != np.float32:
            raise UserError(f"{url}: found {name} of type {kernel.dtype}, expected float32")
        if name.count(".") > 2 and kernel.shape[2] != kernel.shape[3]:
            raise UserError(f"{url}: found {name} {kernel.shape}, expected as many channels out as in")


def _width(kernels: dict[str, Array], dense: Array, url: str) -> int | float:
    """Return the multiplier of all channels and features."""
    channels = [kernels[f"stacks.{stack}.conv"].shape[3] for stack in range(len(CHANNELS))]
    width = whole(dense.shape[1] / FEATURES)
    if channels != [scaled(size, width) for size in CHANNELS] or scaled(FEATURES, width) != dense.shape[1]:
        found = f"channels {', '.join(map(str, channels))} and {dense.shape[1]} features"
        raise UserError(f"{url}: found {found}, expected 16, 32, 32 and 512 times one number")
    return width


def parameters(network: Network, factor: float) -> dict[str, Array]:
    """Return the parameters under our names and in our layout, as views; the first kernel times a factor."""
    found: dict[str, Any] = {}
    for name, kernel in network.convolutions.items():
        turned = kernel.transpose(3, 2, 0, 1)  # HWIO -> OIHW
        found[f"{name}.weight"] = turned * np.float32(factor) if name == "stacks.0.conv" and factor != 1 else turned
    found["dense.weight"] = network.dense.T
    for name, bias in network.biases.items():
        found[f"{name}.bias"] = bias.reshape(bare(bias.shape) or (1,))
    return found
