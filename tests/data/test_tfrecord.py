"""TFRecord files and tf.train.Example by value: places, checksums, damage, every kind of feature and of broken one."""

import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import protovalue.data.tfrecord as tfrecords
from protovalue.data.sources import DamagedError, find_sources
from protovalue.data.tfrecord import decode_feature, masked_crc, parse_example, read_records
from tests.data.published import crc32c, example, feature, masked, message, tfrecord


def test_checksums_are_crc32c_with_tensorflows_mask() -> None:
    assert crc32c(b"123456789") == 0xE3069283  # the check value of its definition
    for text in (b"", b"123456789", bytes(range(256)) * 3):
        assert masked_crc(text) == int.from_bytes(masked(text), "little")


def numbers_of(value: memoryview) -> np.ndarray:
    """Decode a feature that has numbers."""
    found = decode_feature(value)
    assert isinstance(found, np.ndarray)
    return found


def test_features_of_every_kind() -> None:
    numbers = np.array([0, 1, -1, 2**40, -(2**63), 127, 128])
    fields = {"ints": numbers, "floats": np.array([0.5, -3.25], np.float32), "texts": [b"", b"a" * 300]}
    for packed in (True, False):
        parsed = parse_example(example(fields, packed))
        assert numbers_of(parsed["ints"]).tolist() == numbers.tolist()
        assert numbers_of(parsed["floats"]).tolist() == [0.5, -3.25]
        assert decode_feature(parsed["texts"]) == [b"", b"a" * 300]


def test_the_longest_record_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tfrecords, "LARGEST", 1000)
    records = [bytes(1000), b"more"]
    path = tmp_path / "file"
    path.write_bytes(tfrecord(records))
    (source,) = find_sources([str(path)], ".")
    with source.open() as stream:
        assert [data for _, data in read_records(stream, "file")] == records
    path.write_bytes(tfrecord([bytes(1001)]))
    with (
        source.open() as stream,
        pytest.raises(DamagedError, match="found a length of 1001 bytes, expected at most 1000"),
    ):
        list(read_records(stream, "file"))


def test_a_feature_has_as_many_values_as_an_episode_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tfrecords, "MOST_VALUES", 5)
    kinds: dict[str, Any] = {"ints": np.arange(6), "floats": np.zeros(6, np.float32), "texts": [b""] * 6}
    for packed in (True, False):
        few = parse_example(example({name: values[:5] for name, values in kinds.items()}, packed))
        many = parse_example(example(kinds, packed))
        for name in kinds:
            assert len(decode_feature(few[name])) == 5
            with pytest.raises(ValueError, match="found more than 5 values"):
                decode_feature(many[name])


def test_millions_of_values_take_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """5 MB of ones: a list of them would be 40 MB; as texts of no bytes 5 million, 40 MB."""
    monkeypatch.setattr(tfrecords, "MOST_VALUES", 1000)
    ints = memoryview(message(3, message(1, b"\1" * 5_000_000)))
    texts = memoryview(message(1, b"\x0a\0" * 5_000_000))
    for values in (ints, texts):
        tracemalloc.start()
        with pytest.raises(ValueError, match="found more than 1000 values"):
            decode_feature(values)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
        tracemalloc.stop()


def test_an_example_with_any_number_of_names() -> None:
    entries = [message(1, message(1, b"%d" % number)) for number in range(1001)]
    assert len(parse_example(message(1, b"".join(entries[:1000])))) == 1000
    with pytest.raises(ValueError, match="found more than 1000 features"):
        parse_example(message(1, b"".join(entries)))
    many_fields = b"".join(message(number, b"") for number in range(3, 5000))  # of one entry, beside key and value
    features = parse_example(message(1, message(1, message(1, b"key") + many_fields + message(2, b"value"))))
    assert {name: bytes(value) for name, value in features.items()} == {"key": b"value"}


class Bytes:
    """What gives bytes, from memory."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self, size: int) -> bytes:
        part, self._data = self._data[:size], self._data[size:]
        return part


RECORDS = [b"first", b"", bytes(range(256)) * 20]
PLACES = [0, 21, 37, 37 + 5120 + 16]  # a record has 16 bytes beside its data


def test_records_come_with_their_places() -> None:
    assert list(read_records(Bytes(tfrecord(RECORDS)), "FILE")) == list(zip(PLACES, RECORDS, strict=False))
    assert list(read_records(Bytes(b""), "FILE")) == []


def read_all(data: bytes, tolerant: bool = True) -> tuple[list[bytes], list[str]]:
    said: list[str] = []
    found = read_records(Bytes(data), "FILE", (lambda error: said.append(str(error))) if tolerant else None)
    return [record for _, record in found], said


@pytest.mark.parametrize("number", [0, 2])
def test_a_flipped_byte_of_the_data_costs_that_record_alone(number: int) -> None:
    raw = bytearray(tfrecord(RECORDS))
    raw[PLACES[number] + 12] ^= 1
    left = [record for index, record in enumerate(RECORDS) if index != number]
    text = f"FILE: damaged record at byte {PLACES[number]}: its checksum does not match"
    assert read_all(bytes(raw)) == (left, [text])
    with pytest.raises(DamagedError, match=text):
        read_all(bytes(raw), tolerant=False)


def test_a_flipped_byte_of_the_datas_checksum_costs_that_record_alone() -> None:
    raw = bytearray(tfrecord(RECORDS))
    raw[PLACES[1] - 1] ^= 0x80
    assert read_all(bytes(raw)) == (RECORDS[1:], ["FILE: damaged record at byte 0: its checksum does not match"])


@pytest.mark.parametrize("place", [0, 7, 8, 11])
def test_after_a_flipped_byte_of_a_length_nothing_is_found(place: int) -> None:
    raw = bytearray(tfrecord(RECORDS))
    raw[PLACES[1] + place] ^= 1
    text = "FILE: damaged record at byte 21: the checksum of its length does not match"
    assert read_all(bytes(raw)) == (RECORDS[:1], [text])


@pytest.mark.parametrize("cut", [1, 3, 4, 5, 5000, 5123, 5124, 5135])
def test_a_file_that_ends_too_early(cut: int) -> None:
    raw = tfrecord(RECORDS)
    assert read_all(raw[: len(raw) - cut]) == (RECORDS[:2], ["FILE: truncated in the record at byte 37"])


def test_parts_of_an_example_that_do_not_count_are_passed_over() -> None:
    """Unknown fields of every wire type, in the example, in the map and in an entry."""
    noise = b"\x18\x05" + b"\x21" + bytes(8) + b"\x2d" + bytes(4) + message(6, b"text")
    entry = noise + message(1, b"a") + message(2, feature(np.array([3])))
    parsed = parse_example(noise + message(1, noise + message(1, entry)))
    assert {name: numbers_of(value).tolist() for name, value in parsed.items()} == {"a": [3]}
    assert parse_example(b"") == {}
    assert bytes(parse_example(message(1, message(1, message(1, b"b"))))["b"]) == b""


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"\x08\x01", "found a number where a message was expected"),  # field 1 is a number
        (message(1, b"\x08\x01"), "found a number where a message was expected"),
        (message(1, message(1, b"\x08\x01")), "found a number where a message was expected"),
        (message(1, message(1, b"\x10\x01")), "found a number where a message was expected"),
        (b"\x0b", "unknown protobuf wire type 3"),
        (b"\x0c", "unknown protobuf wire type 4"),
        (b"\x0f", "unknown protobuf wire type 7"),
        (b"\x0a", "a protobuf number does not end"),
        (b"\x8a", "a protobuf number does not end"),
        (b"\x0a" + b"\xff" * 11, "a protobuf number does not end"),
        (b"\x0a\x05abcd", "a protobuf field is longer than its message"),
        (b"\x09" + bytes(7), "a protobuf field is longer than its message"),
        (b"\x0d" + bytes(3), "a protobuf field is longer than its message"),
        (message(1, message(1, message(1, b"\xff"))), "utf-8"),
    ],
)
def test_what_is_no_example_is_a_value_error(data: Any, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        parse_example(data)


@pytest.mark.parametrize(
    "data",
    [message(2, message(1, b"abc")), message(2, b"\x0d\0\0"), b"\x18\x01", b"\x08\x01", message(3, b"\x0a\x01\x80")],
)
def test_a_broken_feature_is_a_value_error(data: Any) -> None:
    with pytest.raises(ValueError, match=r"multiple|longer|number"):
        decode_feature(memoryview(data))


def test_an_empty_feature_has_no_values() -> None:
    assert decode_feature(memoryview(b"")) == []
    assert decode_feature(memoryview(message(7, b"unknown"))) == []
    assert numbers_of(memoryview(message(7, b"unknown") + message(3, b"\x08\x05"))).tolist() == [5]
    assert numbers_of(memoryview(message(3, b""))).tolist() == []


def test_numbers_of_ten_bytes() -> None:
    """The largest of 64 bits takes ten bytes of seven bits; what is beyond them is cut off, as protobuf does."""
    for raw, expected in ((b"\xff" * 9 + b"\x01", -1), (b"\xff" * 9 + b"\x7f", -1), (b"\x80" * 9 + b"\x01", -(2**63)),
                          (b"\xff\x7f", 16383), (b"\x80\x01", 128)):  # fmt: skip
        for packed in (message(1, raw), b"\x08" + raw):
            assert numbers_of(memoryview(message(3, packed))).tolist() == [expected]


def test_kinds_of_what_is_decoded() -> None:
    assert numbers_of(memoryview(feature(np.array([1], np.int64)))).dtype == np.int64
    assert numbers_of(memoryview(feature(np.array([1.0], np.float32)))).dtype == np.float32
    assert struct.unpack("<f", numbers_of(memoryview(feature(np.array([1.5], np.float32)))).tobytes()) == (1.5,)
