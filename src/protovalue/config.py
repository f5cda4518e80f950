"""What the settings of all commands share. They are frozen dataclasses; tyro makes flags of the fields."""

from typing import Any

from protovalue.errors import UserError

MOST_THREADS = 4_096


def require(condition: bool, flag: str, found: object, expected: str) -> None:
    """Refuse a setting: one line with the flag, what was found and what was expected."""
    if not condition:
        raise UserError(f"{flag}: found {found}, expected {expected}")


def flag(name: str) -> str:
    """Return the flag of a field."""
    return f"--{name.replace('_', '-')}"


def flags(name: str, value: Any) -> list[str]:
    """Return a field and its value as words of a command line."""
    if isinstance(value, bool):
        return [flag(name) if value else flag(f"no_{name}")]
    return [flag(name), *texts(value)]


def texts(value: Any) -> list[str]:
    """Return a value as words of a command line; a tuple is several."""
    return [str(part) for part in (value if isinstance(value, tuple) else (value,))]
