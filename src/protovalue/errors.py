"""The one exception that a user can cause, and the wording that every message shares."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake in what the user gave: a flag, a file, a name.

    Its text is one line that names the flag or file, what was found and what was expected.
    The command line prints it without a traceback and exits with code 2.
    """


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """Say that `name` is not one of `known`, with the nearest of them."""
    names = sorted(known)
    nearest = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if nearest:
        return UserError(f"unknown {kind} {name!r}: did you mean {nearest[0]!r}?")
    shown = ", ".join(names[:12]) + (f", ... ({len(names)} in all)" if len(names) > 12 else "")
    return UserError(f"unknown {kind} {name!r}: expected one of {shown}")
