"""Running a Python file that the user named, so that its mistakes are told as the file's own."""

import contextlib
import importlib.util
import inspect
import sys
import traceback
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from protovalue.errors import UserError

_SHOWN = 4  # lines of the user's that a message shows, the innermost first

_run: dict[str, Path] = {}  # the files that were run in this process: how frames name them, how the user did


def module_name(path: Path) -> str:
    """Name the module of a file of the user's; files of the same name may lie in different folders."""
    return f"protovalue_user_{path.stem}_{zlib.crc32(str(path.resolve()).encode()):08x}"


def run_file(path: Path) -> ModuleType | None:
    """Run a Python file as a module of its own; only ever for a path that the user gave. None if it is no such file."""
    name, place = module_name(path), path.resolve()
    spec = importlib.util.spec_from_file_location(name, place)
    if not path.is_file() or spec is None or spec.loader is None:
        return None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    _run[str(place)] = path
    with user_code(path):
        spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def user_code(path: Path | None = None) -> Iterator[None]:
    """Turn what goes wrong inside a file of the user's into one UserError with that file's own lines.

    With `path`, all that is raised is that file's: it is being run. Without, only what passed through a line of a file
    that `run_file` ran; anything else goes on as it is.
    """
    try:
        yield
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        frames = _frames(error)
        if path is None and not frames:
            raise
        raise _of_file(error, frames, path) from error


def known_file(path: Path) -> None:
    """Count a file as the user's that was not run from here: the module of an environment that Gymnasium made."""
    _run.setdefault(str(path), path)


def raised_in(what: str, error: Exception, expected: str = "") -> UserError:
    """Tell what the user's own code raised: with the lines of their file or, if none was reached, by what it is of.

    Where no line of theirs was reached, `expected` says what the caller wanted of it.
    """
    frames = _frames(error)
    return _of_file(error, frames) if frames else UserError(f"{what}: {_what(error)}{expected}")


def place_of(code: Any) -> str:
    """Say where a class or a function begins: "file.py: line 3: ", the file as the user named it; "" if unknown."""
    try:
        file, line = inspect.getfile(code), inspect.getsourcelines(code)[1]
    except (OSError, TypeError):  # its source cannot be read, or it is made of no Python code
        return ""
    return f"{_run.get(file, file)}: line {line}: "


def _frames(error: BaseException) -> list[traceback.FrameSummary]:
    return [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in _run]


def _of_file(error: BaseException, frames: list[traceback.FrameSummary], path: Path | None = None) -> UserError:
    where = _run[frames[-1].filename] if path is None else path
    return UserError(f"{where}: this file of yours raised {_what(error)}{_lines(error, frames)}")


def _what(error: BaseException) -> str:
    text = error.msg if isinstance(error, SyntaxError) else " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _lines(error: BaseException, frames: list[traceback.FrameSummary]) -> str:
    if isinstance(error, SyntaxError) and error.filename in _run:  # no line of it was run
        return f" (line {error.lineno}: {(error.text or '').strip()})"
    shown = [f"line {frame.lineno}: {frame.line}" for frame in reversed(frames[-_SHOWN:])]
    return f" ({', called from '.join(shown)})" if shown else ""
