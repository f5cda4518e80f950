"""A writer of SavedModels, made from the format's description and sharing no code with the reader.

`python -m tests.released.saved FOLDER WIDTH` writes one of any size: that of width 8 has 532 MB, as the paper's.
"""

import struct
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.data.published import crc32c


def varint(number: int) -> bytes:
    found = b""
    while number > 0x7F:
        found, number = found + bytes([number & 0x7F | 0x80]), number >> 7
    return found + bytes([number])


def part(number: int, data: bytes) -> bytes:
    """A field that is a message or a text."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def count(number: int, value: int) -> bytes:
    """A field that is a number."""
    return varint(number << 3) + varint(value & (1 << 64) - 1)


def shape(sizes: Sequence[int]) -> bytes:
    return b"".join(part(2, count(1, size)) for size in sizes)


def attribute(name: str, value: bytes) -> bytes:
    return part(5, part(1, name.encode()) + part(2, value))


def node(name: str, op: str, inputs: Sequence[str] = (), **attributes: bytes) -> bytes:
    found = part(1, name.encode()) + part(2, op.encode()) + b"".join(part(3, one.encode()) for one in inputs)
    return part(1, found + b"".join(attribute(key, value) for key, value in attributes.items()))


def constant(name: str, array: Any, sizes: Sequence[int] | None = None) -> bytes:
    """A tensor with its bytes, or of one value that stands for all of `sizes`."""
    kind = 1 if array.dtype.kind == "f" else 3
    data = np.ascontiguousarray(array, "<f4" if kind == 1 else "<i4").tobytes()
    tensor = count(1, kind) + part(2, shape(array.shape if sizes is None else sizes))
    tensor += part(4, data) if sizes is None else part(5, data)
    return node(name, "Const", value=part(8, tensor))


def numbers(*values: int) -> bytes:
    return part(1, part(3, b"".join(varint(value) for value in values)))


def text(value: str) -> bytes:
    return part(2, value.encode())


def impala(
    width: float,
    size: int = 84,
    stack: int = 4,
    kernel: int = 3,
    blocks: int = 2,
    order: Callable[[list[bytes]], list[bytes]] = list,
) -> tuple[list[bytes], int]:
    """Return the nodes of an Impala-CNN from `x` to `features`, and how many features it has."""
    rng, nodes, layers = np.random.default_rng(0), list[bytes](), 0

    def conv(x: str, before: int, after: int) -> str:
        nonlocal layers
        layers += 1
        weights = rng.normal(0, 1.4 / np.sqrt(9 * before), (kernel, kernel, before, after))
        nodes.append(constant(f"k{layers}", weights.astype(np.float32)))
        nodes.append(constant(f"b{layers}", rng.normal(0, 0.1, after).astype(np.float32)))
        usual = {"strides": numbers(1, 1, 1, 1), "padding": text("SAME"), "data_format": text("NHWC")}
        nodes.append(node(f"c{layers}", "Conv2D", [x, f"k{layers}"], **usual))
        nodes.append(node(f"a{layers}", "BiasAdd", [f"c{layers}", f"b{layers}"]))
        return f"a{layers}"

    def relu(x: str) -> str:
        nodes.append(node(f"r{x}", "Relu", [x]))
        return f"r{x}"

    x, before, side = "x", stack, size
    for one in (16, 32, 32):
        channels = round(one * width)
        y = conv(x, before, channels)
        pool = {"ksize": numbers(1, 3, 3, 1), "strides": numbers(1, 2, 2, 1), "padding": text("SAME")}
        nodes.append(node(f"p{y}", "MaxPool", [y], **pool))
        x, before, side = f"p{y}", channels, -(-side // 2)
        for _ in range(blocks):
            y = conv(relu(conv(relu(x), channels, channels)), channels, channels)
            nodes.append(node(f"s{y}", "AddV2", [y, x]))
            x = f"s{y}"
    units, rows = round(512 * width), side * side * before
    nodes.append(constant("sizes", np.array([-1, rows])))
    nodes.append(node("flat", "Reshape", [relu(x), "sizes"]))
    nodes.append(constant("W", rng.normal(0, 1 / np.sqrt(rows), (rows, units)).astype(np.float32)))
    nodes.append(constant("B", rng.normal(0, 0.1, units).astype(np.float32)))
    nodes += [node("m", "MatMul", ["flat", "W"]), node("mb", "BiasAdd", ["m", "B"]), node("features", "Relu", ["mb"])]
    return order([node("x", "Placeholder"), *nodes]), units


def model(nodes: Sequence[bytes], sizes: Sequence[int], result: str = "features", kind: int = 1) -> bytes:
    """Return saved_model.pb of a graph with a serving signature."""

    def info(name: str, own: Sequence[int]) -> bytes:
        return part(1, f"{name}:0".encode()) + count(2, kind) + part(3, shape(own))

    signature = part(1, part(1, b"obs") + part(2, info("x", sizes)))
    signature += part(2, part(1, b"out") + part(2, info(result, (-1, 1))))
    graph = part(2, b"".join(nodes))
    return count(1, 1) + part(2, graph + part(5, part(1, b"serving_default") + part(2, signature)))


def write(folder: Path, data: bytes) -> Path:
    """Write a folder with saved_model.pb alone."""
    folder.mkdir(parents=True)
    (folder / "saved_model.pb").write_bytes(data)
    return folder


# TensorBundle


def masked(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def table(entries: Sequence[tuple[bytes, bytes]], compress: Callable[[bytes], bytes] | None = None) -> bytes:
    """Return a LevelDB table of one block; `compress` makes it Snappy's."""

    def block(pairs: Sequence[tuple[bytes, bytes]], kind: bool) -> bytes:
        found, last = b"", b""
        for key, value in pairs:
            shared = next(
                (at for at in range(min(len(key), len(last))) if key[at] != last[at]), min(len(key), len(last))
            )
            found += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
            last = key
        found += struct.pack("<II", 0, 1)
        found = compress(found) + b"\x01" if kind and compress else found + b"\x00"
        return found + masked(found)

    data = block(sorted(entries), True)
    index = block([(b"\xff", varint(0) + varint(len(data) - 5))], False)
    foot = varint(0) + varint(0) + varint(len(data)) + varint(len(index) - 5)
    return data + index + foot.ljust(40, b"\0") + bytes.fromhex("57fb808b247547db")


def variable(array: Any, offset: int, shard: int = 0, crc: bytes | None = None) -> bytes:
    """Return the entry of a variable."""
    data = np.ascontiguousarray(array, "<f4").tobytes()
    found = count(1, 1) + part(2, shape(array.shape)) + count(3, shard) + count(4, offset) + count(5, len(data))
    return found + varint(6 << 3 | 5) + (masked(data) if crc is None else crc)


if __name__ == "__main__":
    made, _ = impala(float(sys.argv[2]))
    write(Path(sys.argv[1]), model(made, (-1, 84, 84, 4)))
