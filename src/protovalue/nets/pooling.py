"""Max-pooling of float32 images in channels-last memory, and its gradient, compiled: PyTorch's bits in less time.

PyTorch keeps the pooled image and eight bytes for each maximum, and fills the gradient with zeros before it adds to
it. Here one byte says which of the nine pixels of its window a maximum is, and every number of the gradient is written
once. Importing this module brings numba.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

from protovalue.compiling import compiled
from protovalue.nets.layers import output_size

Array = NDArray[Any]

LANES = 8
"""Channels that are computed together, and of which an image must have a multiple: vectors of 32 bytes."""
NONE = 100  # stands for the number of a pixel that no window has: the sums that it occurs in are more than 8

_INDEX, _NUMBERS, _BYTES = types.int64, types.Array(types.float32, 1, "C"), types.Array(types.uint8, 1, "C")
_INT, _LONG = ir.IntType(32), ir.IntType(64)
_VECTOR, _CODES, _STORED = (ir.VectorType(kind, LANES) for kind in (ir.FloatType(), _INT, ir.IntType(8)))


def _data(context: Any, builder: Any, signature: Any, args: Sequence[Any], n: int) -> Any:
    """Return the address of an argument's first number."""
    return context.make_array(signature.args[n])(context, builder, args[n]).data


def _at(builder: Any, base: Any, place: Any, kind: Any) -> Any:
    """Return the address of the vector that begins at an index."""
    return builder.bitcast(builder.gep(base, [place]), kind.as_pointer())


def _spread(builder: Any, number: Any) -> Any:
    """Return a vector of codes that are all the same number."""
    nothing = ir.Constant(_CODES, ir.Undefined)
    one = builder.insert_element(nothing, builder.trunc(number, _INT), _INT(0))
    return builder.shuffle_vector(one, nothing, ir.Constant(_CODES, [0] * LANES))


def _window(context, x, a, b, c, u, v, w, top, bottom, left, right, out, place, o):  # type: ignore[no-untyped-def]
    """Write the largest of nine vectors of x, at a, b, c, each plus u, v, w, to out; which one it is to place.

    `top` and `bottom` are the codes of the rows a and c, `left` and `right` those of the columns u and w: 0 and 6, 0
    and 2, or those of the middle, 3 and 1, where the window is cut off and the middle is there twice.
    """
    return types.void(_NUMBERS, *(_INDEX,) * 10, _NUMBERS, _BYTES, _INDEX), _write_window


window: Any = intrinsic(_window)


def _write_window(context: Any, builder: Any, signature: Any, args: Sequence[Any]) -> Any:
    x, out, place = (_data(context, builder, signature, args, n) for n in (0, 11, 12))
    rows = zip(args[1:4], (args[7], _LONG(3), args[8]), strict=True)
    columns = list(zip(args[4:7], (args[9], _LONG(1), args[10]), strict=True))
    pixels = [(builder.add(i, j), builder.add(m, n)) for i, m in rows for j, n in columns]
    best: Any = None
    for at, code in pixels:
        value, which = builder.load(_at(builder, x, at, _VECTOR), align=4), _spread(builder, code)
        if best is None:
            best, found = value, which
            continue
        # As PyTorch does it: the first of equal numbers, but the last of those that are not a number.
        better = builder.or_(builder.fcmp_ordered(">", value, best), builder.fcmp_unordered("uno", value, value))
        best, found = builder.select(better, value, best), builder.select(better, which, found)
    builder.store(best, _at(builder, out, args[13], _VECTOR), align=4)
    builder.store(builder.trunc(found, _STORED), _at(builder, place, args[13], _STORED), align=1)
    return context.get_dummy_value()


def _square(context, slope, place, here, before, above, corner, up, left, x, a, b, u, v):  # type: ignore[no-untyped-def]
    """Write the gradient of four pixels, in the rows a and b and the columns u and v: the first four of a window.

    What they get comes from this window, the one before it, the one above it, and the one before that, which lie at
    `here`, `before`, `above` and `corner`. To the window above these are its last pixels: their codes begin with `up`,
    6 or `NONE`. To the window before they are those in its last column, of code `left`, 2 or `NONE`.
    """
    return types.void(_NUMBERS, _BYTES, *(_INDEX,) * 6, _NUMBERS, *(_INDEX,) * 4), _write_square


square: Any = intrinsic(_square)


def _write_square(context: Any, builder: Any, signature: Any, args: Sequence[Any]) -> Any:
    slope, place, x = (_data(context, builder, signature, args, n) for n in (0, 1, 8))
    zero, past = ir.Constant(_VECTOR, [0.0] * LANES), builder.module.add_metadata([_INT(1)])

    def read(at: Any) -> tuple[Any, Any]:
        which = builder.load(_at(builder, place, at, _STORED), align=1)
        return builder.load(_at(builder, slope, at, _VECTOR), align=4), builder.zext(which, _CODES)

    here, before, above, corner = (read(at) for at in args[2:6])
    up, left, (a, b, u, v) = _spread(builder, args[6]), _spread(builder, args[7]), args[9:]

    def code(number: int) -> Any:
        return ir.Constant(_CODES, [number] * LANES)

    def total(*terms: tuple[tuple[Any, Any], Any]) -> Any:
        """Add what comes from each window to zero, in PyTorch's order: rows of windows first."""
        found: Any = zero
        for (number, which), wanted in terms:
            term = builder.select(builder.icmp_signed("==", which, wanted), number, zero)
            found = builder.fadd(found, term)
        return found

    first = total((corner, builder.add(up, left)), (above, up), (before, left), (here, code(0)))
    second = total((above, builder.add(up, code(1))), (here, code(1)))
    third = total((before, builder.add(left, code(3))), (here, code(3)))
    fourth = total((here, code(4)))
    for value, row, column in ((first, a, u), (second, a, v), (third, b, u), (fourth, b, v)):
        # Past the cache: the gradient is larger than it, and need not be read before it is overwritten.
        stored = builder.store(value, _at(builder, x, builder.add(row, column), _VECTOR), align=4 * LANES)
        stored.set_metadata("nontemporal", past)
    return context.get_dummy_value()


def _forward(x: Array, out: Array, place: Array, first: int, end: int, height: int, width: int, channels: int) -> None:
    """Pool the images from `first` up to `end` of x (N, height, width, channels), all arrays flat."""
    down, across, line = (height + 1) // 2, (width + 1) // 2, width * channels
    for n in range(first, end):
        for y in range(down):
            top = 2 * y - height % 2
            i = n * height * line
            a, b, c = i + max(top, 0) * line, i + (top + 1) * line, i + min(top + 2, height - 1) * line
            upper, lower = 3 if top < 0 else 0, 6 if top + 2 < height else 3
            for z in range(across):
                left = 2 * z - width % 2
                u, v, w = max(left, 0) * channels, (left + 1) * channels, min(left + 2, width - 1) * channels
                before, after = 1 if left < 0 else 0, 2 if left + 2 < width else 1
                o = ((n * down + y) * across + z) * channels
                for j in range(0, channels, LANES):
                    window(x, a + j, b + j, c + j, u, v, w, upper, lower, before, after, out, place, o + j)


def _backward(
    slope: Array, place: Array, x: Array, first: int, end: int, height: int, width: int, channels: int
) -> None:
    """Write the gradient x (N, height, width, channels) of the images from `first` up to `end`, all arrays flat."""
    down, across, line = (height + 1) // 2, (width + 1) // 2, width * channels
    for n in range(first, end):
        for y in range(down):
            top = 2 * y - height % 2
            # Beyond the border a row is the next one, which is written later: so is a column.
            a, b = (n * height + max(top, 0)) * line, (n * height + top + 1) * line
            up, above = (6, across * channels) if y > 0 else (NONE, 0)
            for z in range(across):
                u, v = max(2 * z - width % 2, 0) * channels, (2 * z - width % 2 + 1) * channels
                left, before = (2, channels) if z > 0 else (NONE, 0)
                o = ((n * down + y) * across + z) * channels
                for j in range(0, channels, LANES):
                    k = o + j
                    square(
                        slope, place, k, k - before, k - above, k - above - before, up, left, x, a + j, b + j, u, v
                    )  # fmt: skip


forward, backward = compiled(_forward), compiled(_backward)


def _flat(x: Tensor) -> Array:
    """Return the numbers of images in channels-last memory, in the order of memory: no copy."""
    flat: Array = x.detach().permute(0, 2, 3, 1).view(-1).numpy()
    return flat


def _by_threads(kernel: Callable[..., None], arrays: tuple[Array, Array, Array], shape: torch.Size) -> None:
    """Call a kernel on all images, as many at a time as PyTorch has threads."""
    count, channels, height, width = shape
    parts = torch.get_num_threads()
    bounds = [count * part // parts for part in range(parts + 1)]

    def work(part: int) -> None:
        kernel(*arrays, bounds[part], bounds[part + 1], height, width, channels)

    if parts == 1:
        work(0)
        return
    with ThreadPoolExecutor(parts - 1) as workers:
        others = [workers.submit(work, part) for part in range(1, parts)]
        work(0)
        for other in others:
            other.result()


class _MaxPool(torch.autograd.Function):
    """Max-pooling with its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        count, channels, height, width = ctx.shape = x.shape
        shape = count, channels, output_size(height, 3, 2, "SAME"), output_size(width, 3, 2, "SAME")
        pooled = torch.empty(shape, memory_format=torch.channels_last)
        place = torch.empty(shape, dtype=torch.uint8, memory_format=torch.channels_last)
        _by_threads(forward, (_flat(x), _flat(pooled), _flat(place)), x.shape)
        ctx.save_for_backward(place)
        return pooled

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        (place,) = ctx.saved_tensors
        x = torch.empty(ctx.shape, memory_format=torch.channels_last)
        slope = slope.contiguous(memory_format=torch.channels_last)
        _by_threads(backward, (_flat(slope), _flat(place), _flat(x)), x.shape)
        return x


def max_pool(x: Tensor) -> Tensor:
    """Max-pool 3x3, stride 2, SAME, as `layers.max_pool` does: float32 on the CPU in channels-last memory."""
    assert x.dtype == torch.float32
    assert x.shape[1] % LANES == 0
    assert x.is_contiguous(memory_format=torch.channels_last)
    pooled: Tensor = _MaxPool.apply(x)  # type: ignore[no-untyped-call]
    return pooled
