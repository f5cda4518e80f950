"""Protobuf messages by hand: numbers, bytes and fixed sizes, and every way in which they may be broken."""

import pytest

from protovalue.data.protobuf import fields, message, varint, varints

LARGEST = 2**64 - 1


def test_every_wire_type_by_hand() -> None:
    """Field 1 is 150, as in protobuf's own description; then text, 8 bytes, 4 bytes, nothing, and field 16."""
    raw = bytes.fromhex("08 9601  12 07 74657374696e67  19 0102030405060708  25 0a0b0c0d  12 00  8001 7f")
    found = [(number, value if isinstance(value, int) else bytes(value)) for number, value in fields(memoryview(raw))]
    assert found == [
        (1, 150),
        (2, b"testing"),
        (3, bytes(range(1, 9))),
        (4, b"\x0a\x0b\x0c\x0d"),
        (2, b""),
        (16, 127),
    ]


@pytest.mark.parametrize(("raw", "value"), [("12 02 6162", b"ab"), ("19 01020304050607ff", b"\1\2\3\4\5\6\7\xff")])
def test_the_last_field_may_fill_its_message(raw: str, value: bytes) -> None:
    ((_, found),) = fields(memoryview(bytes.fromhex(raw)))
    assert bytes(message(found)) == value


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        ("00", 0),
        ("01", 1),
        ("7f", 127),
        ("8001", 128),
        ("ac02", 300),
        ("808001", 1 << 14),
        ("ffffffffffffffffff01", LARGEST),
        ("80808080808080808001", 1 << 63),
        ("ffffffffffffffffff7f", LARGEST),  # bits beyond 64 are dropped
    ],
)
def test_numbers_by_hand(raw: str, value: int) -> None:
    """Seven bits in each byte, the lowest first; behind a byte that is not looked at and before one."""
    data = memoryview(b"\xff" + bytes.fromhex(raw) + b"\x05")
    assert varint(data, 1) == (value, len(data) - 1)
    assert list(varints(data[1:])) == [value, 5]


@pytest.mark.parametrize("raw", ["", "80", "ffff", "80" * 9, "80" * 10 + "01"])
def test_a_number_that_does_not_end(raw: str) -> None:
    with pytest.raises(ValueError, match="a protobuf number does not end"):
        varint(memoryview(bytes.fromhex(raw)), 0)


def test_no_numbers_are_none() -> None:
    assert list(varints(memoryview(b""))) == []
    assert list(fields(memoryview(b""))) == []


@pytest.mark.parametrize("raw", ["12 03 6162", "19 01020304050607", "25 010203", "12 01", "12 ffffffffffffffffff01"])
def test_a_field_that_is_longer_than_its_message(raw: str) -> None:
    with pytest.raises(ValueError, match="a protobuf field is longer than its message"):
        list(fields(memoryview(bytes.fromhex(raw))))


@pytest.mark.parametrize("kind", [3, 4, 6, 7])
def test_groups_and_unknown_wire_types_are_refused(kind: int) -> None:
    with pytest.raises(ValueError, match=f"unknown protobuf wire type {kind}$"):
        list(fields(memoryview(bytes([8 + kind, 0, 0, 0, 0, 0, 0, 0, 0]))))


def test_a_message_is_bytes() -> None:
    data = memoryview(b"ab")
    assert message(data) is data
    with pytest.raises(ValueError, match="found a number where a message was expected"):
        message(7)
