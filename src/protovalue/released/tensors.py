"""What messages about tensors say: their types, shapes and values, as arrays over the file itself."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protovalue.data.protobuf import fields, message, varints

Array = NDArray[Any]

STRING = 7
TYPES: dict[int, np.dtype[Any]] = {
    1: np.dtype("<f4"),
    2: np.dtype("<f8"),
    3: np.dtype("<i4"),
    4: np.dtype("u1"),
    9: np.dtype("<i8"),
    10: np.dtype("?"),
}
"""The types of numbers that are taken, by TensorFlow's own."""
MOST_VALUES = 1 << 28  # of a tensor: twice as many as the paper's dense layer has
_MOST_AXES = 16
_FLOATS, _DOUBLES, _INTS, _LONGS, _BOOLS = 5, 6, 7, 10, 11  # fields of TensorProto with single values


def signed(value: int) -> int:
    """Return a number of protobuf as int64 has it."""
    return value - (1 << 64) if value >> 63 else value


def read_shape(data: memoryview) -> tuple[int, ...]:
    """Return the sizes of a TensorShapeProto; -1 is any."""
    sizes = []
    for number, value in fields(data):
        if number == 3 and value:
            raise ValueError("found a shape of unknown rank")
        if number == 2:
            inner = [size for field, size in fields(message(value)) if field == 1 and isinstance(size, int)]
            sizes.append(signed(inner[-1]) if inner else 0)
            if len(sizes) > _MOST_AXES:
                raise ValueError(f"found more than {_MOST_AXES} axes")
    return tuple(sizes)


def count_of(shape: Sequence[int]) -> int:
    """Return the number of values of a shape; one that is not known, or too large, is a ValueError."""
    if any(size < 0 for size in shape):
        raise ValueError(f"found shape {tuple(shape)}, expected sizes of 0 or more")
    count = math.prod(shape)
    if count > MOST_VALUES:
        raise ValueError(f"found shape {tuple(shape)}, expected at most {MOST_VALUES:,} values")
    return count


def as_array(data: memoryview, kind: int, shape: tuple[int, ...]) -> Array:
    """Return the bytes of a tensor as an array, which is no copy."""
    if kind not in TYPES:
        raise ValueError(f"found type {kind}, expected one of {', '.join(map(str, TYPES.values()))}")
    count = count_of(shape)
    if len(data) != count * TYPES[kind].itemsize:
        expected = f"{count * TYPES[kind].itemsize:,} for {shape} {TYPES[kind]}"
        raise ValueError(f"found {len(data):,} bytes, expected {expected}")
    return np.frombuffer(data, TYPES[kind]).reshape(shape)


def read_tensor(data: memoryview) -> Array | list[bytes]:
    """Return what a TensorProto holds: an array over its bytes, or texts."""
    kind, content, texts = 0, None, list[bytes]()
    shape: tuple[int, ...] = ()
    single: list[tuple[int, int | memoryview]] = []
    for number, value in fields(data):
        if number == 1 and isinstance(value, int):
            kind = value
        elif number == 2:
            shape = read_shape(message(value))
        elif number == 4:
            content = message(value)
        elif number == 8:
            texts.append(bytes(message(value)))
        elif number in (_FLOATS, _DOUBLES, _INTS, _LONGS, _BOOLS):
            single.append((number, value))
    if kind == STRING:
        return texts
    if content is not None and len(content):
        return as_array(content, kind, shape)
    if kind not in TYPES:
        raise ValueError(f"found type {kind}, expected one of {', '.join(map(str, TYPES.values()))}")
    count = count_of(shape)
    values = np.concatenate([np.zeros(0, TYPES[kind]), *(_values(*one, TYPES[kind]) for one in single)])
    if len(values) > count:
        raise ValueError(f"found {len(values)} values, expected at most {count} of shape {shape}")
    if len(values) <= 1:  # one stands for all; without any they are 0
        return np.broadcast_to(values.reshape(()) if len(values) else np.zeros((), TYPES[kind]), shape)
    if len(values) < count and count > 1 << 20:
        raise ValueError(f"found {len(values)} values for shape {shape}, expected {count}")
    return np.concatenate([values, np.full(count - len(values), values[-1])]).reshape(shape)  # the last is repeated


def _values(number: int, value: int | memoryview, kind: np.dtype[Any]) -> Array:
    """Return the values of one field, packed or not."""
    if number in (_FLOATS, _DOUBLES):
        size = 4 if number == _FLOATS else 8
        raw = message(value)
        if len(raw) % size:
            raise ValueError("found numbers that are cut off")
        return np.frombuffer(raw, f"<f{size}").astype(kind)
    found = [value] if isinstance(value, int) else list(_few(varints(value)))
    return np.array([signed(one) for one in found], np.int64).astype(kind)


def _few(values: Iterator[int]) -> Iterator[int]:
    for count, value in enumerate(values):
        if count == 1 << 20:
            raise ValueError(f"found more than {1 << 20:,} single values")
        yield value
