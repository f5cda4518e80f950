"""The operations that such a graph has, in NumPy: what they compute, and what that is in the words of a network."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protovalue.nets.layers import same_padding
from protovalue.released.graph import THROUGH, Node, integers
from protovalue.released.tensors import TYPES, Array

Pads = tuple[tuple[int, int], tuple[int, int]]

MOST_VALUES = 1 << 24  # of a result: the paper's largest activations have 900,000 an observation
MOST_BYTES = 1 << 30  # of all results
MOST_WORK = 4e11  # multiply-adds of all: the paper's network has 4e9 an observation
_ROWS = 512  # of a dense layer's weights, which are in memory at once


@dataclass(frozen=True, eq=False)
class Flow:
    """What was done to the observations, in the words of a network.

    `kind` is input, scale, convolution, bias, relu, pool, flatten, dense, sum, transpose, or other.
    """

    kind: str
    name: str
    """Name of the node."""
    before: tuple["Flow", ...] = ()
    weight: Any = None
    """A constant of it: weights, or a number."""
    shape: tuple[int, ...] = ()
    """Shape of its result."""


@dataclass(frozen=True)
class Value:
    """A result: numbers, and where they come from if they depend on the observations."""

    array: Array
    flow: Flow | None = None


@dataclass
class Limits:
    """What a graph may still ask for."""

    left: float = MOST_BYTES
    work: float = MOST_WORK
    reducers: Mapping[str, str] = field(default_factory=dict)
    """The one operation that each function of two arguments is, by its name."""

    def room(self, shape: Sequence[int]) -> None:
        """Take memory for an array of a shape, before it is made."""
        count = math.prod(shape)
        self.left -= 8 * count
        if any(size < 0 for size in shape) or count > MOST_VALUES or self.left < 0:
            raise ValueError(f"found a result of shape {tuple(shape)}, expected less than {MOST_VALUES:,} values")

    def multiply(self, count: int) -> None:
        """Take time for multiply-adds."""
        self.work -= count
        if self.work < 0:
            raise ValueError(f"found more than {MOST_WORK:.0e} multiply-adds, expected a network of Atari's size")


def bare(shape: Sequence[int]) -> tuple[int, ...]:
    """Return a shape without its axes of length 1: those may be anywhere and change nothing."""
    return tuple(size for size in shape if size != 1)


def _shown(node: Node, array: Array, flow: Flow | None, kind: str, weight: Any = None, *also: Flow) -> Value:
    """Return a result with what was done."""
    before = () if flow is None else (flow, *also)
    return Value(array, Flow(kind, node.name, before, weight, array.shape) if flow is not None else None)


def _moved(node: Node, array: Array, value: Value) -> Value:
    """Return the same numbers in another shape: nothing was done if only axes of length 1 came or went."""
    if value.flow is None or bare(array.shape) == bare(value.array.shape):
        return Value(array, value.flow)
    before, after = bare(value.array.shape), bare(array.shape)
    flattened = len(before) > 2 and after == (before[0], math.prod(before[1:]))
    return _shown(node, array, value.flow, "flatten" if flattened else "other")


def _permuted(node: Node, value: Value, order: Sequence[int]) -> Value:
    """Transpose; two that cancel out are nothing."""
    if sorted(order) != list(range(value.array.ndim)):
        raise ValueError(f"found the order {tuple(order)} for {value.array.ndim} axes")
    array = value.array.transpose(order)
    if value.flow is None:
        return Value(array)
    places = [axis for axis in order if value.array.shape[axis] != 1]
    rank = {axis: place for place, axis in enumerate(sorted(places))}
    moved = tuple(rank[axis] for axis in places)  # the order of the axes that count
    flow = value.flow
    if flow.kind == "transpose" and len(flow.weight) == len(moved):
        moved = tuple(flow.weight[axis] for axis in moved)
        flow = flow.before[0]
    if moved == tuple(range(len(moved))):
        return Value(array, flow)
    return Value(array, Flow("transpose", node.name, (flow,), moved, array.shape))


def _elementwise(
    node: Node, values: Sequence[Value], limits: Limits, compute: Callable[[Any, Any], Any]
) -> tuple[Array, Value, Value]:
    one, other = values
    limits.room(np.broadcast_shapes(one.array.shape, other.array.shape))
    with np.errstate(all="ignore"):
        return np.asarray(compute(one.array, other.array)), one, other


def _add(node: Node, values: Sequence[Value], limits: Limits) -> Value:
    array, one, other = _elementwise(node, values, limits, np.add)
    if one.flow is not None and other.flow is not None:
        same = bare(one.array.shape) == bare(other.array.shape) == bare(array.shape)
        return _shown(node, array, one.flow, "sum" if same else "other", None, other.flow)
    if one.flow is None and other.flow is None:
        return Value(array)
    value, constant = (one, other) if one.flow is not None else (other, one)
    return _biased(node, array, value, constant.array)


def _biased(node: Node, array: Array, value: Value, constant: Array) -> Value:
    """Say that something was added, the same to every place of a channel."""
    if bare(array.shape) != bare(value.array.shape):
        return _shown(node, array, value.flow, "other")
    channels = bare(array.shape)[-1:] or (1,)
    rows = np.broadcast_to(constant, np.broadcast_shapes(constant.shape, array.shape))
    whole = rows.reshape(bare(array.shape) or (1,))
    vector = np.array(whole[(0,) * (whole.ndim - 1)])
    if vector.shape != channels or not np.array_equal(whole, np.broadcast_to(vector, whole.shape), equal_nan=True):
        return _shown(node, array, value.flow, "other")
    return _shown(node, array, value.flow, "bias", vector)


def _bias_add(node: Node, values: Sequence[Value], limits: Limits) -> Value:
    if node.text("data_format") == b"NCHW":
        raise ValueError("found BiasAdd of format NCHW, expected NHWC")
    if values[1].array.ndim != 1 or values[0].array.shape[-1:] != values[1].array.shape:
        found = f"{values[1].array.shape} for {values[0].array.shape}"
        raise ValueError(f"found a bias {found}, expected one number for each channel")
    return _add(node, values, limits)


def _scaled(compute: Callable[[Any, Any], Any], inverse: bool) -> Callable[..., Value]:
    """Make a multiplication or a division."""

    def apply(node: Node, values: Sequence[Value], limits: Limits) -> Value:
        array, one, other = _elementwise(node, values, limits, compute)
        if one.flow is None and other.flow is None:
            return Value(array)
        value, constant = (one, other) if one.flow is not None else (other, one)
        single = constant.flow is None and constant.array.size == 1 and not (inverse and one.flow is None)
        if not single or bare(array.shape) != bare(value.array.shape):
            return _shown(node, array, value.flow, "other")
        factor = float(constant.array.reshape(()))
        if not math.isfinite(factor) or factor == 0:
            raise ValueError(f"{node.name[:200]}: found a scale of {factor}, expected a finite number other than 0")
        return _shown(node, array, value.flow, "scale", 1.0 / factor if inverse else factor)

    return apply


def _maximum(node: Node, values: Sequence[Value], limits: Limits) -> Value:
    array, one, other = _elementwise(node, values, limits, np.maximum)
    value, constant = (one, other) if one.flow is not None else (other, one)
    if value.flow is None:
        return Value(array)
    zero = constant.flow is None and not constant.array.any() and bare(array.shape) == bare(value.array.shape)
    return _shown(node, array, value.flow, "relu" if zero else "other")


def _relu(node: Node, values: Sequence[Value], limits: Limits) -> Value:
    limits.room(values[0].array.shape)
    return _shown(node, np.maximum(values[0].array, 0), values[0].flow, "relu")


def _cast(node: Node, values: Sequence[Value], limits: Limits) -> Value:
    kind = TYPES.get(node.number("DstT"))
    if kind is None:
        raise ValueError(f"found Cast to type {node.number('DstT')}, expected one that is known")
    limits.room(values[0].array.shape)
    if values[0].flow is not None and kind.kind != "f":
        return _shown(node, values[0].array.astype(kind), values[0].flow, "other")
    return Value(values[0].array.astype(kind), values[0].flow)


def _reshape(node: Node, values: Sequence[Value], limits: Limits) -> Value:
    shape = _whole(values[1])
    if not values[0].array.flags.c_contiguous:  # else it is no copy
        limits.room(values[0].array.shape)
    return _moved(node, values[0].array.reshape(shape), values[0])


def _expand(node: Node, values: Sequence[Value], limits: Limits) -> Value:
    (axis,) = _whole(values[1]) if values[1].array.ndim else (int(values[1].array),)
    return _moved(node, np.expand_dims(values[0].array, axis), values[0])


def _squeeze(node: Node, values: Sequence[Value], limits: Limits) -> Value:
    axes = node.numbers("squeeze_dims") or None
    return _moved(node, np.squeeze(values[0].array, axes), values[0])


def _transpose(node: Node, values: Sequence[Value], limits: Limits) -> Value:
    return _permuted(node, values[0], _whole(values[1]))


def _broadcast(node: Node, values: Sequence[Value], limits: Limits) -> Value:
    shape = _whole(values[1])
    limits.room(shape)
    return _moved(node, np.broadcast_to(values[0].array, shape), values[0])


def _shape_of(node: Node, values: Sequence[Value], limits: Limits) -> Value:
    kind = np.int64 if node.number("out_type") == 9 else np.int32
    return Value(np.array(values[0].array.shape, kind))  # how many observations there are is no property of them


def _pack(node: Node, values: Sequence[Value], limits: Limits) -> Value:
    _constants(values)
    limits.room((sum(value.array.size for value in values),))
    return Value(np.stack([value.array for value in values], node.number("axis")))


def _concat(node: Node, values: Sequence[Value], limits: Limits) -> Value:
    _constants(values)
    limits.room((sum(value.array.size for value in values),))
    return Value(np.concatenate([value.array for value in values[:-1]], int(values[-1].array)))


def _range(node: Node, values: Sequence[Value], limits: Limits) -> Value:
    _constants(values)
    start, end, step = (int(value.array) for value in values)
    if step == 0:
        raise ValueError("found a range in steps of 0")
    limits.room((len(range(start, end, step)),))
    return Value(np.arange(start, end, step).astype(values[0].array.dtype))


def _slice(node: Node, values: Sequence[Value], limits: Limits) -> Value:
    _constants(values)
    if any(node.number(name) for name in ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask")):
        masks = {name: node.number(name) for name in ("begin_mask", "end_mask")}
        if node.number("ellipsis_mask") or node.number("new_axis_mask"):
            raise ValueError(f"{node.name[:200]}: found a slice with masks that are not known")
    else:
        masks = {}
    found: list[int | slice] = []
    for axis, (start, end, step) in enumerate(zip(*(_whole(value) for value in values[1:4]), strict=True)):
        if node.number("shrink_axis_mask") >> axis & 1:
            found.append(start)
            continue
        first = None if masks.get("begin_mask", 0) >> axis & 1 else start
        last = None if masks.get("end_mask", 0) >> axis & 1 else end
        found.append(slice(first, last, step))
    return Value(np.asarray(values[0].array[tuple(found)]))


def _select(node: Node, values: Sequence[Value], limits: Limits) -> Value:
    _constants(values)
    limits.room(np.broadcast_shapes(*(value.array.shape for value in values)))
    return Value(np.where(*(value.array for value in values)))


def _fill(node: Node, values: Sequence[Value], limits: Limits) -> Value:
    _constants(values)
    shape = _whole(values[0])
    limits.room(shape)
    return Value(np.broadcast_to(values[1].array, shape))


def _plain(compute: Callable[..., Any]) -> Callable[..., Value]:
    """Make an operation of constants alone, such as sizes."""

    def apply(node: Node, values: Sequence[Value], limits: Limits) -> Value:
        _constants(values)
        limits.room(np.broadcast_shapes(*(value.array.shape for value in values)))
        with np.errstate(all="ignore"):
            return Value(np.asarray(compute(*(value.array for value in values))))

    return apply


def _constants(values: Sequence[Value]) -> None:
    if any(value.flow is not None for value in values):
        raise ValueError("found it applied to what depends on the observations, expected that of sizes alone")


def _whole(value: Value) -> tuple[int, ...]:
    """Return a list of whole numbers that the graph computes."""
    if value.flow is not None or value.array.dtype.kind not in "iu" or value.array.ndim > 1:
        raise ValueError("found something else in place of a list of whole numbers")
    return tuple(int(one) for one in value.array.reshape(-1))


# Convolutions and poolings


def convolved(x: Array, kernel: Array, pads: Pads, strides: tuple[int, int]) -> NDArray[np.float32]:
    """Convolve (N, H, W, in) with a kernel (h, w, in, out)."""
    x = np.pad(x, ((0, 0), *pads, (0, 0)))
    count, height, width, _ = x.shape
    rows, columns = ((size - k) // s + 1 for size, k, s in zip((height, width), kernel.shape, strides, strict=False))
    found = np.zeros((count, rows, columns, kernel.shape[3]), np.float32)
    for i in range(kernel.shape[0]):
        for j in range(kernel.shape[1]):
            part = x[
                :, i : i + (rows - 1) * strides[0] + 1 : strides[0], j : j + (columns - 1) * strides[1] + 1 : strides[1]
            ]
            found += part @ kernel[i, j]
    return found


def _convolution(
    node: Node, value: Value, kernel: Array, pads: Pads, strides: tuple[int, int], limits: Limits
) -> Value:
    """Convolve (N, H, W, in) with a kernel (h, w, in, out), both in this order."""
    x = value.array
    if x.ndim != 4 or kernel.ndim != 4 or x.shape[3] != kernel.shape[2]:
        raise ValueError(f"found a convolution of {x.shape} with {kernel.shape}, expected as many channels in both")
    if min(strides) < 1 or any(not 0 <= pad <= 64 for pair in pads for pad in pair):
        raise ValueError(f"found strides {strides} and padding {pads}")
    sizes = [size + sum(pair) for size, pair in zip(x.shape[1:3], pads, strict=True)]
    if any(size < k for size, k in zip(sizes, kernel.shape, strict=False)):
        raise ValueError(f"found a convolution of {x.shape} with {kernel.shape}, expected a smaller kernel")
    limits.room((x.shape[0], *sizes, x.shape[3]))
    limits.room(kernel.shape)
    rows, columns = ((size - k) // s + 1 for size, k, s in zip(sizes, kernel.shape, strides, strict=False))
    limits.room((x.shape[0], rows, columns, kernel.shape[3]))
    limits.multiply(x.shape[0] * rows * columns * math.prod(kernel.shape))
    array = convolved(x.astype(np.float32), np.ascontiguousarray(kernel, np.float32), pads, strides)
    usual = strides == (1, 1) and all(
        pair == same_padding(size, k, 1) for pair, size, k in zip(pads, x.shape[1:3], kernel.shape, strict=False)
    )
    return _shown(node, array, value.flow, "convolution" if usual else "other", kernel)


def _conv2d(node: Node, values: Sequence[Value], limits: Limits) -> Value:
    value, kernel = values
    _channels_last(node)
    if kernel.flow is not None or set(node.numbers("dilations")) - {1}:
        raise ValueError("found Conv2D with a kernel or a dilation that is not known")
    strides = _pair_of(node.numbers("strides"))
    if value.array.ndim != 4 or kernel.array.ndim != 4:
        raise ValueError(f"found Conv2D of {value.array.shape} with {kernel.array.shape}, expected 4 axes each")
    pads = _pads(node, value.array.shape[1:3], kernel.array.shape[:2], strides)
    return _convolution(node, value, kernel.array, pads, strides, limits)


def _channels_last(node: Node) -> None:
    found = node.text("data_format")
    if found not in (b"", b"NHWC"):
        raise ValueError(f"found format {found.decode()[:20]!r}, expected NHWC")


def _pair_of(found: Sequence[int]) -> tuple[int, int]:
    if len(found) != 4 or found[0] != 1 or found[3] != 1 or min(found) < 1:
        raise ValueError(f"found sizes {tuple(found)}, expected (1, height, width, 1)")
    return found[1], found[2]


def _pads(node: Node, sizes: Sequence[int], kernel: Sequence[int], strides: Sequence[int]) -> Pads:
    padding = node.text("padding")
    if padding == b"SAME":
        first, second = (same_padding(*one) for one in zip(sizes, kernel, strides, strict=True))
        return first, second
    if padding == b"VALID":
        return (0, 0), (0, 0)
    found = node.numbers("explicit_paddings")
    if padding != b"EXPLICIT" or len(found) != 8:
        raise ValueError(f"found padding {padding.decode()[:20]!r}, expected SAME, VALID or EXPLICIT")
    return (found[2], found[3]), (found[4], found[5])


def _xla_conv(node: Node, values: Sequence[Value], limits: Limits) -> Value:
    """XlaConvV2: which axis is what is said by numbers."""
    value, kernel = values[:2]
    strides, lhs, rhs = (_whole(values[at]) for at in (2, 4, 5))
    padding, groups = values[3].array, values[6].array
    if kernel.flow is not None or {*lhs, *rhs} != {1} or padding.shape != (2, 2) or int(groups) != 1:
        raise ValueError("found a convolution with dilations or groups, expected none")
    data = memoryview(node.text("dimension_numbers"))

    def axes(batch: int, feature: int, spatial: int) -> list[int]:
        one, last, inner = (integers(data, number) for number in (batch, feature, spatial))
        return [*(one[-1:] or (0,)), *inner, *(last[-1:] or (0,))]

    found = _permuted(node, value, axes(7, 8, 11))
    height_width = integers(data, 6)
    order = [*height_width, *(integers(data, 3)[-1:] or (0,)), *(integers(data, 4)[-1:] or (0,))]
    weights = _permuted(node, kernel, order).array
    (top, bottom), (left, right) = padding.tolist()
    if len(strides) != 2:
        raise ValueError(f"found strides {strides}, expected two")
    result = _convolution(node, found, weights, ((top, bottom), (left, right)), (strides[0], strides[1]), limits)
    return _permuted(node, result, np.argsort(axes(9, 10, 12)).tolist())


def _pooled(
    node: Node,
    value: Value,
    window: Sequence[int],
    strides: Sequence[int],
    pads: Sequence[tuple[int, int]],
    limits: Limits,
) -> Value:
    """Take the largest number of windows over all axes of an array."""
    x = value.array
    if not len(window) == len(strides) == len(pads) == x.ndim:
        raise ValueError(f"found a pooling over {len(window)} axes of {x.shape}")
    if min((*window, *strides)) < 1 or max(window) > 64 or any(not 0 <= pad <= 64 for pair in pads for pad in pair):
        raise ValueError(f"found windows {tuple(window)}, strides {tuple(strides)} and padding {tuple(pads)}")
    sizes = [size + sum(pair) for size, pair in zip(x.shape, pads, strict=True)]
    if any(size < k for size, k in zip(sizes, window, strict=True)):
        raise ValueError(f"found windows {tuple(window)} over {x.shape}, expected smaller ones")
    limits.room(sizes)
    limits.multiply(math.prod(sizes) * math.prod(window))
    array = np.pad(x.astype(np.float32), tuple(pads), constant_values=-np.inf)
    for axis, (k, step) in enumerate(zip(window, strides, strict=True)):
        if k == step == 1:
            continue
        count = (array.shape[axis] - k) // step + 1
        cut = [slice(None)] * array.ndim
        parts = []
        for at in range(k):
            cut[axis] = slice(at, at + (count - 1) * step + 1, step)
            parts.append(array[tuple(cut)])
        array = np.maximum.reduce(parts)
    real = [axis for axis, size in enumerate(x.shape) if size != 1]
    usual = (
        len(real) == 4
        and [(window[axis], strides[axis]) for axis in real] == [(1, 1), (3, 2), (3, 2), (1, 1)]
        and all(pads[axis] == same_padding(x.shape[axis], window[axis], strides[axis]) for axis in real)
    )
    return _shown(node, array, value.flow, "pool" if usual else "other")


def _max_pool(node: Node, values: Sequence[Value], limits: Limits) -> Value:
    _channels_last(node)
    window, strides = _pair_of(node.numbers("ksize")), _pair_of(node.numbers("strides"))
    if values[0].array.ndim != 4:
        raise ValueError(f"found MaxPool of {values[0].array.shape}, expected 4 axes")
    pads = _pads(node, values[0].array.shape[1:3], window, strides)
    return _pooled(node, values[0], (1, *window, 1), (1, *strides, 1), ((0, 0), *pads, (0, 0)), limits)


def _reduce_window(node: Node, values: Sequence[Value], limits: Limits) -> Value:
    """XlaReduceWindow of the maximum, beginning with minus infinity."""
    function = limits.reducers.get(node.text("computation").decode(), "something else")
    start = values[1].array
    if function != "Maximum" or start.size != 1 or not np.isneginf(start.reshape(())):
        raise ValueError(f"found windows reduced by {function[:40]}, expected Maximum from minus infinity")
    window, strides, base, inner = (_whole(values[at]) for at in (2, 3, 4, 5))
    pads = values[6].array
    if {*base, *inner} != {1} or pads.ndim != 2 or pads.shape[1] != 2:
        raise ValueError("found windows with dilations, expected none")
    return _pooled(node, values[0], window, strides, [(int(a), int(b)) for a, b in pads], limits)


# Dense layers


def _dense(node: Node, value: Value, kernel: Value, limits: Limits) -> Value:
    """Multiply (N, in) by weights (in, out), a part of them at a time: they may be most of the file."""
    x, weights = value.array, kernel.array
    if value.flow is None or kernel.flow is not None or x.ndim < 2 or weights.ndim != 2:
        raise ValueError(f"found a product of {x.shape} and {weights.shape}, expected features times weights")
    if x.shape[-1] != weights.shape[0]:
        raise ValueError(f"found a product of {x.shape} and {weights.shape}, expected as many features in both")
    limits.room((*x.shape[:-1], weights.shape[1]))
    limits.multiply(math.prod(x.shape[:-1]) * weights.size)
    array = np.zeros((*x.shape[:-1], weights.shape[1]), np.float32)
    for first in range(0, weights.shape[0], _ROWS):
        array += x[..., first : first + _ROWS].astype(np.float32) @ np.ascontiguousarray(weights[first : first + _ROWS])
    return _shown(node, array, value.flow, "dense" if len(bare(x.shape)) == 2 else "other", weights)


def _matmul(node: Node, values: Sequence[Value], limits: Limits) -> Value:
    if node.number("transpose_a") or node.number("adj_x") or node.number("adj_y"):
        raise ValueError("found a product of transposed features, expected features times weights")
    kernel = Value(values[1].array.T, values[1].flow) if node.number("transpose_b") else values[1]
    return _dense(node, values[0], kernel, limits)


def _xla_dot(node: Node, values: Sequence[Value], limits: Limits) -> Value:
    data = memoryview(node.text("dimension_numbers"))
    lhs, rhs, *batch = (integers(data, number) for number in (1, 2, 3, 4))
    if any(batch) or lhs != (values[0].array.ndim - 1,) or rhs not in ((0,), (1,)):
        raise ValueError(f"found a product over axes {lhs} and {rhs}, expected the last one of the features")
    kernel = Value(values[1].array.T, values[1].flow) if rhs == (1,) else values[1]
    return _dense(node, values[0], kernel, limits)


def _einsum(node: Node, values: Sequence[Value], limits: Limits) -> Value:
    equation = node.text("equation").decode()
    given, _, result = equation.partition("->")
    left, _, right = given.partition(",")
    straight, turned = right == left[-1:] + result[-1:], right == result[-1:] + left[-1:]
    known = left[:-1] == result[:-1] and (straight or turned) and len(set(left + right)) == len(left) + 1
    if len(values) != 2 or not known:
        raise ValueError(f"found Einsum {equation[:60]!r}, expected features times weights such as 'ab,bc->ac'")
    return _dense(node, values[0], values[1] if straight else Value(values[1].array.T, values[1].flow), limits)


def _same(node: Node, values: Sequence[Value], limits: Limits) -> Value:
    return values[0]


OPERATIONS: Mapping[str, tuple[int, Callable[[Node, Sequence[Value], Limits], Value]]] = {
    **dict.fromkeys(THROUGH, (1, _same)),
    "Add": (2, _add),
    "AddV2": (2, _add),
    "BatchMatMulV2": (2, _matmul),
    "BiasAdd": (2, _bias_add),
    "BroadcastTo": (2, _broadcast),
    "Cast": (1, _cast),
    "ConcatV2": (0, _concat),
    "Conv2D": (2, _conv2d),
    "Einsum": (0, _einsum),
    "Equal": (2, _plain(np.equal)),
    "ExpandDims": (2, _expand),
    "Fill": (2, _fill),
    "FloorDiv": (2, _plain(np.floor_divide)),
    "GreaterEqual": (2, _plain(np.greater_equal)),
    "MatMul": (2, _matmul),
    "Maximum": (2, _maximum),
    "MaxPool": (1, _max_pool),
    "Mul": (2, _scaled(np.multiply, False)),
    "Pack": (0, _pack),
    "Range": (3, _range),
    "RealDiv": (2, _scaled(np.divide, True)),
    "Relu": (1, _relu),
    "Reshape": (2, _reshape),
    "SelectV2": (3, _select),
    "Shape": (1, _shape_of),
    "Squeeze": (1, _squeeze),
    "StridedSlice": (4, _slice),
    "Sub": (2, _plain(np.subtract)),
    "Transpose": (2, _transpose),
    "XlaConvV2": (7, _xla_conv),
    "XlaDotV2": (2, _xla_dot),
    "XlaReduceWindow": (7, _reduce_window),
}
"""How many inputs each operation has, 0 for any number, and what it does."""
