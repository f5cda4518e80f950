"""TFRecord files and the `tf.train.Example` messages in them, without TensorFlow."""

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from protovalue.data.protobuf import fields, message, varints
from protovalue.data.sources import DamagedError, Readable

# A record: length (uint64), masked CRC-32C of these 8 bytes (uint32), the data, masked CRC-32C of the data (uint32).
_HEAD = struct.Struct("<QI")

# A record is an episode: at most 27,000 steps (30 minutes of play), each with a PNG of 84 x 84 grey pixels. One of pure
# noise has 8 KB, so that all have 216 MB. A length or a number of values beyond these is damage, not data.
LARGEST = 256 << 20  # bytes of a record
MOST_VALUES = 108_000  # values of one feature: four times as many
_MOST_FEATURES = 1_000  # names in an Example; RL Unplugged has 9, TFDS 10

Feature = list[bytes] | NDArray[Any]
T = TypeVar("T")


def masked_crc(data: bytes) -> int:
    """CRC-32C of some bytes as TFRecord stores it."""
    return mask(int(google_crc32c.value(data)))


def mask(crc: int) -> int:
    """Rotate a CRC-32C right by 15 bits and add a constant: what TensorFlow stores of all checksums."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def read_records(
    stream: Readable, name: str, on_damage: Callable[[DamagedError], None] | None = None
) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, data) of every record whose checksums hold; offsets count uncompressed bytes.

    `on_damage` is told of a damaged record, which is then passed over; without it the damage is raised. Where the
    length itself is damaged, nothing after it can be found.
    """

    def damaged(error: DamagedError) -> None:
        if on_damage is None:
            raise error
        on_damage(error)

    offset = 0
    while True:
        try:
            head = stream.read(_HEAD.size)
            if not head:
                return
            if len(head) < _HEAD.size:
                raise DamagedError(f"{name}: truncated in the record at byte {offset}")
            length, crc = _HEAD.unpack(head)
            if masked_crc(head[:8]) != crc:
                raise DamagedError(
                    f"{name}: damaged record at byte {offset}: the checksum of its length does not match"
                )
            if length > LARGEST:
                found = f"found a length of {length} bytes, expected at most {LARGEST}"
                raise DamagedError(f"{name}: damaged record at byte {offset}: {found}")
            data = stream.read(length)
            tail = stream.read(4)
            if len(data) < length or len(tail) < 4:
                raise DamagedError(f"{name}: truncated in the record at byte {offset}")
        except DamagedError as error:
            damaged(error)
            return
        if masked_crc(data) == struct.unpack("<I", tail)[0]:
            yield offset, data
        else:
            damaged(DamagedError(f"{name}: damaged record at byte {offset}: its checksum does not match"))
        offset += _HEAD.size + length + 4


def parse_example(data: bytes) -> dict[str, memoryview]:
    """Return the features of an Example by name, each as the undecoded message for `decode_feature`."""
    features: dict[str, memoryview] = {}
    for number, inner in fields(memoryview(data)):
        if number != 1:  # Example.features
            continue
        for entry_number, entry in fields(message(inner)):
            if entry_number != 1:  # Features.feature: a map entry of key and value
                continue
            key, value = memoryview(b""), memoryview(b"")
            for part, content in fields(message(entry)):
                if part == 1:
                    key = message(content)
                elif part == 2:
                    value = message(content)
            if len(features) == _MOST_FEATURES:
                raise ValueError(f"found more than {_MOST_FEATURES} features")
            features[bytes(key).decode()] = value
    return features


def decode_feature(feature: memoryview) -> Feature:
    """Return a Feature's values: a list of bytes, a float32 array or an int64 array; packed or not.

    Raises ValueError where the message is damaged or has more than `MOST_VALUES`.
    """
    for number, inner in fields(feature):
        if number == 1:  # bytes_list
            return list(_few(bytes(message(value)) for _, value in fields(message(inner))))
        if number == 2:  # float_list
            raw = b"".join(_few(bytes(message(value)) for _, value in fields(message(inner))))
            if len(raw) > 4 * MOST_VALUES:
                raise ValueError(f"found more than {MOST_VALUES} values")
            return np.frombuffer(raw, "<f4").astype(np.float32)
        if number == 3:  # int64_list
            values = (
                one
                for _, value in fields(message(inner))
                for one in ([value] if isinstance(value, int) else varints(value))
            )
            return np.array(list(_few(values)), np.uint64).view(np.int64)
    return []


def _few(values: Iterable[T]) -> Iterator[T]:
    """Give the values on, up to as many as there may be."""
    for count, value in enumerate(values):
        if count == MOST_VALUES:
            raise ValueError(f"found more than {MOST_VALUES} values")
        yield value
