"""Protobuf messages as they lie in a file: fields by their numbers, without the package."""

from collections.abc import Iterator


def message(value: int | memoryview) -> memoryview:
    """Return the bytes of a field; one that is a number is a ValueError."""
    if isinstance(value, int):
        raise ValueError("found a number where a message was expected")
    return value


def fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Yield (field number, value) of a protobuf message; a value is a number or the bytes of what it contains."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = varint(data, at)
            yield key >> 3, value
            continue
        if kind == 2:
            size, at = varint(data, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError(f"unknown protobuf wire type {kind}")
        if at + size > len(data):
            raise ValueError("a protobuf field is longer than its message")
        yield key >> 3, data[at : at + size]
        at += size


def varint(data: memoryview, at: int) -> tuple[int, int]:
    """Read a number of up to 64 bits at a place; return it and the place after it."""
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError("a protobuf number does not end")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
        shift += 7


def varints(data: memoryview) -> Iterator[int]:
    """Yield the numbers of a packed field."""
    at = 0
    while at < len(data):
        value, at = varint(data, at)
        yield value
