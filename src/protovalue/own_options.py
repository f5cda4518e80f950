"""The type of a setting that holds the options of a class; apart, because it needs the command line's packages."""

from typing import Annotated, Any

from tyro.constructors import PrimitiveConstructorSpec

from protovalue.options import option_words, parse_options

OwnOptions = Annotated[
    dict[str, Any] | None,
    PrimitiveConstructorSpec(
        nargs="*",
        metavar="KEY=VALUE ...",
        instance_from_str=parse_options,
        is_instance=lambda value: value is None or isinstance(value, dict),
        str_from_instance=lambda value: option_words(value or {}),
    ),
]
"""The type of a setting that holds the options of a class; None is its defaults."""
