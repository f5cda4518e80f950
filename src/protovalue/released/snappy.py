"""Raw Snappy blocks, as LevelDB tables have them."""

from protovalue.data.protobuf import varint


def decompress(data: bytes, most: int) -> bytes:
    """Decompress a block of at most `most` bytes; damage, or more of them, is a ValueError."""
    view = memoryview(data)
    size, at = varint(view, 0)
    if size > most:
        raise ValueError(f"found a block of {size:,} bytes, expected at most {most:,}")
    out = bytearray()
    while at < len(view):
        tag = view[at]
        at += 1
        if tag & 3 == 0:  # bytes as they are
            length = (tag >> 2) + 1
            if length > 60:
                count = length - 60
                length = int.from_bytes(_part(view, at, count), "little") + 1
                at += count
            out += _part(view, at, length)
            at += length
        else:  # a copy of what came before
            if tag & 3 == 1:
                length, count, high = (tag >> 2 & 7) + 4, 1, (tag >> 5) << 8
            else:
                length, count, high = (tag >> 2) + 1, 2 if tag & 3 == 2 else 4, 0
            offset = high | int.from_bytes(_part(view, at, count), "little")
            at += count
            if not 0 < offset <= len(out):
                raise ValueError(f"found a copy from {offset} bytes back after {len(out)}")
            piece = bytes(out[-offset:][:length])  # it may reach into what it makes itself, which then repeats
            out += (piece * (-(-length // len(piece))))[:length]
        if len(out) > size:
            raise ValueError(f"found more than the {size} bytes that it says")
    if len(out) != size:
        raise ValueError(f"found {len(out)} bytes, expected {size}")
    return bytes(out)


def _part(view: memoryview, at: int, length: int) -> memoryview:
    if at + length > len(view):
        raise ValueError("it ends too early")
    return view[at : at + length]
