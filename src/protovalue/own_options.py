"""The type of a setting that holds the options of a class; apart, because it needs the command line's packages."""

from typing import Annotated, Any

from tyro.constructors import PrimitiveConstructorSpec

from protovalue.errors import UserError
from protovalue.options import option_words, parse_options


def _read(words: list[str]) -> dict[str, Any]:
    """Read options; what is wrong with them is told with the name of the flag."""
    try:
        return parse_options(words)
    except UserError as error:
        raise ValueError(str(error).removeprefix("options: ")) from None


OwnOptions = Annotated[
    dict[str, Any] | None,
    PrimitiveConstructorSpec(
        nargs="*",
        metavar="KEY=VALUE ...",
        instance_from_str=_read,
        is_instance=lambda value: value is None or isinstance(value, dict),
        str_from_instance=lambda value: option_words(value or {}),
    ),
]
"""The type of a setting that holds the options of a class; None is its defaults."""
