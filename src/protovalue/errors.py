"""The one exception that a user can cause, and the wording that every message shares."""

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

MOST_NAMES = 16  # that an error lists


class UserError(Exception):
    """A mistake in what the user gave: a flag, a file, a name.

    Its text is one line that names the flag or file, what was found and what was expected.
    The command line prints it without a traceback and exits with code 2.
    """


@contextmanager
def given_as(flag: str) -> Iterator[None]:
    """Name the flag by which the user gave what turns out to be wrong."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{flag}: {error}") from error


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """Say that `name` is not one of `known`, with the nearest of them."""
    names = sorted(known)
    close = nearest(name, names)
    if close:
        return UserError(f"unknown {kind} {name!r}: did you mean {close!r}?")
    shown = ", ".join(names[:MOST_NAMES]) + (f", ... ({len(names)} in all)" if len(names) > MOST_NAMES else "")
    return UserError(f"unknown {kind} {name!r}: expected one of {shown}")


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return what was perhaps meant, if anything is like it."""
    return next(iter(difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.6)), None)
