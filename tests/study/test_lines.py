"""Text that tomllib cannot take is one line that names the file."""

import pytest

from protovalue.errors import UserError
from protovalue.study.lines import Source


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = " + "[" * 5_000 + "]" * 5_000, "study.toml: not TOML: lists or tables are nested too deep"),
        ("a = " + "{b = " * 5_000 + "1" + "}" * 5_000, "study.toml: not TOML: lists or tables are nested too deep"),
        ("a = 1\nb = !\n", "study.toml:2: not TOML: Invalid value"),
        ("a = 'x", "study.toml:end: not TOML"),
        ("a = " + "9" * 5_000, "not TOML: Exceeds the limit"),
    ],
)
def test_what_is_not_toml_is_one_line(text: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        Source("study.toml", text)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
