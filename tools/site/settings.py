"""How the reference shows settings: fields with their plain types; roles, ranges and checks are for the program."""

from typing import Any

import griffe

MARKS = ("Annotated", "Positional")
"""Names whose first argument is the type itself."""
HOMES = ("config", "method_configs", "options")
"""Modules whose classes are settings."""


class Settings(griffe.Extension):
    """Replaces `Annotated[T, ...]` by `T`, and leaves methods of settings out."""

    def on_attribute_instance(self, *, attr: griffe.Attribute, **kwargs: Any) -> None:
        """Look at one attribute, whose marks may be nested."""
        while isinstance(attr.annotation, griffe.ExprSubscript):
            if attr.annotation.canonical_path.rpartition(".")[2] not in MARKS:
                break
            inside = attr.annotation.slice
            attr.annotation = inside.elements[0] if isinstance(inside, griffe.ExprTuple) else inside

    def on_class_members(self, *, cls: griffe.Class, **kwargs: Any) -> None:
        """Look at one class."""
        if cls.module.name in HOMES:
            for name in [name for name, member in cls.members.items() if member.is_function]:
                cls.del_member(name)
