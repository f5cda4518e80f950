"""What the settings of all commands share. They are frozen dataclasses; tyro makes flags of the fields."""

from protovalue.errors import UserError

MOST_THREADS = 4_096


def require(condition: bool, flag: str, found: object, expected: str) -> None:
    """Refuse a setting: one line with the flag, what was found and what was expected."""
    if not condition:
        raise UserError(f"{flag}: found {found}, expected {expected}")
