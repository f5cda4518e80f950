"""The inner loop of a convolution, written in LLVM's vectors: all sums of a few neighbouring pixels in registers.

Importing this module brings numba.
"""

from collections.abc import Callable, Sequence
from functools import reduce
from itertools import product
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.extending import intrinsic


def _lanes() -> int:
    """Return how many numbers a vector of this processor has; 0 where this module is of no use.

    That is where products and sums are not one instruction, and on processors on which nothing was measured.
    """
    features = llvm.get_host_cpu_features()
    return 16 if features.get("avx512f") else 8 if features.get("avx2") and features.get("fma") else 0


LANES = _lanes()
# Pixels of a tile, large ones first, with one or two vectors of channels each: as many sums as there are registers for,
# and small ones for what is left of a row. Rows of Atari's layers are of 84, 42, 21 and 11 pixels; to the dense layer
# observations are pixels, of which there are as many as seeds.
WITH_ONE = (21, 7, 3, 1) if LANES == 16 else (12, 6, 3, 1)
WITH_TWO = (14, 11, 9, 7, 3, 2, 1) if LANES == 16 else (6, 5, 4, 3, 2, 1)

AHEAD = 32  # rows of weights that are asked for before they are needed

STORE, RELU, ADD = 0, 1, 2  # what becomes of the sums

_ARRAY, _INDEX = types.Array(types.float32, 1, "C"), types.int64
_ARGUMENTS = (_INDEX, *(_ARRAY, _INDEX) * 5, *(_INDEX,) * 6)


def make_tiles(sizes: Sequence[int], vectors: int) -> Any:
    """Return a function for compiled code: neighbouring pixels of `vectors` * LANES channels each.

    It computes as many as the largest of some sizes that is not more than `left`, and returns how many. Its other
    arguments are five flat arrays, each with the index of the first number in it, and six numbers:

    - inputs: where the window of the first pixel begins,
    - weights (rows, k, vectors * LANES) and biases (vectors * LANES),
    - out and positive: the first pixel's first channel,
    - step: from one pixel's window to the next; rows: of a window; k: numbers in one row of it, which are neighbours;
      down: from one row of the inputs to the next; channels: from one pixel's results to the next; kind: `STORE`
      writes the sums to out, `RELU` writes what is positive of them, to positive, and `ADD` adds them to out and
      writes what is positive then to positive.

    Every sum begins with the bias and goes on row by row in the order of memory, whatever the size.
    """

    def write(context: Any, builder: Any, signature: Any, args: Sequence[Any]) -> Any:
        done = builder.alloca(ir.IntType(64))
        end = builder.append_basic_block("end")
        for pixels in sizes:
            here, other = builder.append_basic_block("tile"), builder.append_basic_block("other")
            count = ir.Constant(ir.IntType(64), pixels)
            builder.cbranch(builder.icmp_signed(">=", args[0], count), here, other)
            builder.position_at_end(here)
            _write_tile(pixels, vectors, context, builder, signature.args[1:], args[1:])
            builder.store(count, done)
            builder.branch(end)
            builder.position_at_end(other)
        builder.store(ir.Constant(ir.IntType(64), 1), done)  # never: the smallest size is 1
        builder.branch(end)
        builder.position_at_end(end)
        return builder.load(done)

    @intrinsic
    def tiles(  # type: ignore[no-untyped-def]
        context, left, inputs, i, weights, w, biases, b, out, o, positive, p, step, rows, k, down, channels, kind
    ):
        return _INDEX(*_ARGUMENTS), write

    return tiles


def _largest(context, lines, a, b, c, u, v, w, out, o, p):  # type: ignore[no-untyped-def]
    """Write the largest of nine vectors of `lines`, at a, b, c, each plus u, v, w, to o; its positive part to p."""
    return types.void(_ARRAY, *(_INDEX,) * 6, _ARRAY, _INDEX, _INDEX), _write_largest


largest: Any = intrinsic(_largest)


def _write_largest(context: Any, builder: Any, signature: Any, args: Sequence[Any]) -> Any:
    vector = ir.VectorType(ir.FloatType(), LANES)
    lines, out = (context.make_array(signature.args[n])(context, builder, args[n]).data for n in (0, 7))

    def at(pointer: Any, place: Any) -> Any:
        return builder.bitcast(builder.gep(pointer, [place]), vector.as_pointer())

    def larger(one: Any, other: Any) -> Any:
        return builder.select(builder.fcmp_ordered(">", one, other), one, other)

    values = [builder.load(at(lines, builder.add(row, pixel)), align=4) for row in args[1:4] for pixel in args[4:7]]
    found = reduce(larger, values)
    builder.store(found, at(out, args[8]), align=4)
    builder.store(larger(found, ir.Constant(vector, [0.0] * LANES)), at(out, args[9]), align=4)
    return context.get_dummy_value()


def _write_tile(
    pixels: int, vectors: int, context: Any, builder: Any, kinds: Sequence[Any], args: Sequence[Any]
) -> None:
    """Write the instructions of one tile."""
    index, vector = ir.IntType(64), ir.VectorType(ir.FloatType(), LANES)
    bases = [context.make_array(kinds[n])(context, builder, args[n]).data for n in range(0, 10, 2)]
    inputs, weights, biases, out, positive = (
        builder.gep(base, [start]) for base, start in zip(bases, args[1:10:2], strict=True)
    )
    step, rows, k, down, channels, kind = args[10:]

    def constant(value: int) -> Any:
        return ir.Constant(index, value)

    def at(pointer: Any, place: Any) -> Any:
        return builder.bitcast(builder.gep(pointer, [place]), vector.as_pointer())

    def load(pointer: Any, place: Any) -> Any:
        return builder.load(at(pointer, place), align=4)

    def store(value: Any, pointer: Any, place: Any) -> None:
        builder.store(value, at(pointer, place), align=4)

    def begin_loop(start: Sequence[Any], name: str) -> tuple[Any, Any, list[Any]]:
        """Open a loop that counts from 0 and carries the sums; return its first block, its counter and the sums."""
        before, block = builder.block, builder.append_basic_block(name)
        builder.branch(block)
        builder.position_at_end(block)
        counter, sums = builder.phi(index), [builder.phi(vector) for _ in start]
        counter.add_incoming(constant(0), before)
        for phi, value in zip(sums, start, strict=True):
            phi.add_incoming(value, before)
        return block, counter, sums

    def end_loop(block: Any, counter: Any, end: Any, sums: Sequence[Any], found: Sequence[Any], name: str) -> None:
        """Go on with what was found, until the counter has come to the end."""
        following, here = builder.add(counter, constant(1)), builder.block
        counter.add_incoming(following, here)
        for phi, value in zip(sums, found, strict=True):
            phi.add_incoming(value, here)
        done = builder.append_basic_block(name)
        builder.cbranch(builder.icmp_signed("<", following, end), block, done)
        builder.position_at_end(done)

    width = vectors * LANES
    start = [load(biases, constant(LANES * v)) for _ in range(pixels) for v in range(vectors)]
    row_block, row, row_sums = begin_loop(start, "row")
    row_inputs = builder.gep(inputs, [builder.mul(row, down)])
    row_weights = builder.gep(weights, [builder.mul(row, builder.mul(k, constant(width)))])
    windows = [builder.gep(row_inputs, [builder.mul(step, constant(n))]) for n in range(pixels)]
    block, j, sums = begin_loop(row_sums, "k")
    factors = [load(row_weights, builder.add(builder.mul(j, constant(width)), constant(LANES * v)))
               for v in range(vectors)]  # fmt: skip
    if vectors == 2:  # ask for what comes soon: the weights of a dense layer are larger than the cache
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind_of = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        prefetch = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind_of)
        for v in range(vectors):
            soon = builder.add(builder.mul(j, constant(width)), constant(LANES * v + AHEAD * width))
            address = builder.bitcast(builder.gep(row_weights, [soon]), byte)
            builder.call(prefetch, [address, number(0), number(3), number(1)])  # to read, soon again, data
    nothing, first = ir.Constant(vector, ir.Undefined), ir.Constant(ir.IntType(32), 0)
    everywhere = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
    found = []
    for n in range(pixels):
        number = builder.insert_element(nothing, builder.load(builder.gep(windows[n], [j])), first)
        spread = builder.shuffle_vector(number, nothing, everywhere)
        for v in range(vectors):  # "contract": as one instruction
            term = builder.fmul(spread, factors[v], flags=("contract",))
            found.append(builder.fadd(sums[n * vectors + v], term, flags=("contract",)))
    end_loop(block, j, k, sums, found, "end_of_k")
    end_loop(row_block, row, rows, row_sums, found, "end_of_rows")

    zero = ir.Constant(vector, [0.0] * LANES)
    places = [
        builder.add(builder.mul(channels, constant(n)), constant(LANES * v))
        for n, v in product(range(pixels), range(vectors))
    ]

    def relu(value: Any) -> Any:
        return builder.select(builder.fcmp_ordered(">", value, zero), value, zero)

    def when(value: int) -> Any:
        return builder.if_then(builder.icmp_signed("==", kind, constant(value)))

    finish: dict[int, Callable[[Any, Any], None]] = {
        STORE: lambda value, place: store(value, out, place),
        RELU: lambda value, place: store(relu(value), positive, place),
    }
    for name, write in finish.items():
        with when(name):
            for value, place in zip(found, places, strict=True):
                write(value, place)
    with when(ADD):
        for value, place in zip(found, places, strict=True):
            total = builder.fadd(value, load(out, place))
            store(total, out, place)
            store(relu(total), positive, place)
