"""What is read from a file against what a format says: typed objects, or one line with file, field, found, expected."""

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Literal

import pytest

from protovalue.errors import UserError
from protovalue.schema import checked, parse_json, require, shown


class Colour(IntEnum):
    RED = 1
    BLUE = 2


@dataclass(frozen=True)
class Inner:
    size: int
    share: float = 0.5

    def __post_init__(self) -> None:
        require(self.size >= 0, "size", self.size, "0 or more")
        if self.size == 13:
            raise ValueError("thirteen\nis unlucky")


@dataclass(frozen=True)
class Outer:
    name: str
    kind: Literal["a", "b", 3] = "a"
    colour: Colour = Colour.RED
    inner: Inner | None = None
    parts: list[Inner] = field(default_factory=list)
    shape: tuple[int, ...] = ()
    pair: tuple[int, str] = (0, "")
    table: dict[str, float] = field(default_factory=dict)
    open: dict[str, Any] = field(default_factory=dict)
    either: int | str | None = None
    flag: bool = False


def test_everything_that_fits_becomes_a_typed_object() -> None:
    value = {
        "name": "x",
        "kind": 3,
        "colour": 2,
        "inner": {"size": 4},
        "parts": [{"size": 1, "share": 1}, {"size": 2, "share": 0.25}],
        "shape": [84, 84],
        "pair": [7, "seven"],
        "table": {"one": 1, "half": 0.5},
        "open": {"any": [None, {"thing": True}]},
        "either": "text",
        "flag": True,
    }
    found = checked(Outer, value, "FILE")
    assert found == Outer(
        "x",
        3,
        Colour.BLUE,
        Inner(4, 0.5),
        [Inner(1, 1.0), Inner(2, 0.25)],
        (84, 84),
        (7, "seven"),
        {"one": 1.0, "half": 0.5},
        {"any": [None, {"thing": True}]},
        "text",
        True,
    )
    assert type(found.parts[0].share) is float
    assert type(found.shape) is tuple
    assert found.colour is Colour.BLUE


def test_defaults_stand_where_a_field_is_missing() -> None:
    assert checked(Outer, {"name": "x"}, "FILE") == Outer("x")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": 3}, "field name: found 3, expected text"),
        ({"name": None}, "field name: found null, expected text"),
        ({"kind": "c"}, "field kind: found 'c', expected 'a' or 'b' or 3"),
        ({"kind": 3.0}, "field kind: found 3.0, expected 'a' or 'b' or 3"),
        ({"colour": 3}, "field colour: found 3, expected 1 or 2"),
        ({"colour": True}, "field colour: found true, expected 1 or 2"),
        ({"inner": 5}, "field inner: found 5, expected an object"),
        ({"inner": {}}, "field inner.size: missing, expected a whole number"),
        ({"inner": {"size": True}}, "field inner.size: found true, expected a whole number"),
        ({"inner": {"size": 2.0}}, "field inner.size: found 2.0, expected a whole number"),
        ({"inner": {"size": -1}}, "field inner.size: found -1, expected 0 or more"),
        ({"inner": {"size": 1 << 64}}, "field inner.size: found a whole number of 65 bits, expected a whole number"),
        ({"inner": {"size": 13}}, "field inner: thirteen is unlucky"),
        ({"inner": {"size": 1, "share": "1"}}, "field inner.share: found '1', expected a number"),
        ({"inner": {"size": 1, "share": 10**400}}, "field inner.share: found a whole number of 1329 bits, expected"),
        ({"inner": {"size": 1, "other": 2}}, "field inner.other: unknown, expected no such field"),
        ({"parts": [{"size": 1}, {"size": "2"}]}, "field parts[1].size: found '2', expected a whole number"),
        ({"parts": {"size": 1}}, "field parts: found an object with 1 fields, expected a list"),
        ({"shape": "84"}, "field shape: found '84', expected a list"),
        ({"shape": [84, "84"]}, "field shape[1]: found '84', expected a whole number"),
        ({"pair": [1]}, "field pair: found a list of 1, expected one of 2"),
        ({"pair": ["a", "b"]}, "field pair[0]: found 'a', expected a whole number"),
        ({"table": [1]}, "field table: found [1], expected an object"),
        ({"table": {"one": None}}, "field table.one: found null, expected a number"),
        ({"either": [1, 2]}, "field either: found [1, 2], expected a whole number or text or null"),
        ({"flag": 1}, "field flag: found 1, expected true or false"),
        ({"extra": 1, "also": 2}, "field also: unknown, expected no such field"),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as raised:
        checked(Outer, {"name": "x", **change}, "some/file.json")
    assert str(raised.value).startswith(f"some/file.json: {message}")
    assert "\n" not in str(raised.value)


def test_what_is_no_object_at_all() -> None:
    with pytest.raises(UserError) as raised:
        checked(Outer, [1, 2], "FILE")
    assert str(raised.value) == "FILE: found [1, 2], expected an object"
    assert checked(list[int], [1, 2], "FILE") == [1, 2]


def test_unknown_fields_are_passed_over_where_a_format_is_not_ours() -> None:
    value = {"name": "x", "version": 3, "inner": {"size": 1, "new": 2}}
    assert checked(Outer, value, "FILE", extra=True) == Outer("x", inner=Inner(1))


def test_numbers_of_64_bits_signed_or_not() -> None:
    assert checked(list[int], [-(1 << 63), (1 << 64) - 1], "FILE") == [-(1 << 63), (1 << 64) - 1]
    for beyond in (-(1 << 63) - 1, 1 << 64):
        with pytest.raises(UserError, match="expected a whole number"):
            checked(list[int], [beyond], "FILE")
    assert checked(list[float], [(1 << 64) - 1], "FILE") == [float((1 << 64) - 1)]


def test_a_kind_that_no_schema_may_have_is_our_mistake() -> None:
    with pytest.raises(TypeError, match="not a kind"):
        checked(bytes, "x", "FILE")


def nested(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


def test_json_that_is_too_deep() -> None:
    assert parse_json(nested(64), "FILE") is not None
    for levels in (65, 990, 100_000):
        for text in (nested(levels), nested(levels).replace(b"[", b'{"a":[').replace(b"]", b"]}")):
            with pytest.raises(UserError, match="^FILE: damaged: found lists or objects nested more than 64 deep$"):
                parse_json(text, "FILE")


@pytest.mark.parametrize("text", [b"", b"{", b'"\xff"', b"nul", b"1" * 5000, b"[1] 2"])
def test_what_is_not_json(text: bytes) -> None:
    with pytest.raises(UserError, match="^FILE: damaged: not JSON"):
        parse_json(text, "FILE")


def test_a_deep_value_of_any_kind_is_bounded() -> None:
    @dataclass(frozen=True)
    class Node:
        next: "list[Any] | None" = None

    assert checked(Node, {"next": [[[]]]}, "FILE").next == [[[]]]


@dataclass(frozen=True)
class Chain:
    next: "Chain | None" = None


def test_a_schema_that_contains_itself_is_bounded() -> None:
    value: Any = {}
    for _ in range(64):
        value = {"next": value}
    assert checked(Chain, value, "FILE").next is not None
    with pytest.raises(UserError, match="found more than 64 nested levels"):
        checked(Chain, {"next": value}, "FILE")


def test_found_values_are_shown_in_a_few_words() -> None:
    assert shown("a" * 1000) == "'" + "a" * 56 + "..."
    assert shown("two\nlines") == r"'two\nlines'"
    assert shown(list(range(9))) == "a list of 9"
    assert shown(list(range(8))) == "[0, 1, 2, 3, 4, 5, 6, 7]"
    assert shown([[1]]) == "a list of 1"
    assert shown({"a": 1, "b": 2}) == "an object with 2 fields"
    assert shown(10**5000) == "a whole number of 16610 bits"
    assert shown(float("nan")) == "nan"
    assert shown(False) == "false"
