"""From the words of a command line to settings: tyro's flags, with what the presets give in brackets."""

import ast
import contextlib
import inspect
import io
import itertools
import re
import textwrap
from dataclasses import dataclass, fields
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

from protovalue.config import PRESET, Settings
from protovalue.errors import UserError
from protovalue.presets import in_brackets

S = TypeVar("S", bound=Settings)


def parse(config: type[S], prog: str, args: list[str]) -> S:
    """Parse `args` into a config with tyro; its boxed error becomes one line."""
    import tyro

    for old, new in config.old_flags.items():
        if any(word == old or word.startswith(f"{old}=") for word in args):
            raise UserError(f"{old}: found a name that it had before, expected {new}")
    style = (tyro.conf.PositionalMetavarFromFieldName, tyro.conf.DisallowNone)
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            found = tyro.cli(_as_typed(config), prog=prog, args=args, config=style)
    except SystemExit as exit_:
        if exit_.code in (0, None):
            raise
        raise UserError(f"{_one_line(errors.getvalue())} (`{prog} --help` explains)") from None
    values = {one.name: getattr(found, one.name) for one in fields(config)}
    unset = {one.name for one in fields(config) if one.default is PRESET and values[one.name] is None}
    return config(**{name: PRESET if name in unset else value for name, value in values.items()})


def _as_typed(config: type[S]) -> type[S]:
    """Make a dataclass for tyro: what a preset gives may be left out there, and nothing is checked yet."""
    from tyro.conf import arg

    hints, said = get_type_hints(config, include_extras=True), _lines_of_help(config)
    annotations: dict[str, Any] = {}
    namespace: dict[str, Any] = {"__doc__": config.__doc__, "__post_init__": lambda self: None}
    for one in fields(config):
        if one.default is PRESET:
            kind = get_args(hints[one.name])[0]
            hint = in_brackets(one.name, config.presets)
            annotations[one.name] = Annotated[kind | None, arg(help=said.get(one.name, ""), help_behavior_hint=hint)]
            namespace[one.name] = None
        elif one.default is None:
            annotations[one.name] = Annotated[hints[one.name], arg(help_behavior_hint="")]
            namespace[one.name] = None
    made = type(
        config.__name__, (config,), {**namespace, "__annotations__": annotations, "__module__": config.__module__}
    )
    return dataclass(frozen=True, kw_only=True)(made)


def _lines_of_help(config: type[Any]) -> dict[str, str]:
    """Return the text below each field, in the class and in those that it extends."""
    found: dict[str, str] = {}
    for base in reversed(config.__mro__[:-1]):
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
        except (OSError, TypeError):  # made at run time
            continue
        assert isinstance(tree.body[0], ast.ClassDef)
        body = tree.body[0].body
        for one, after in itertools.pairwise(body):
            text = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else None
            if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name) and isinstance(text, str):
                found[one.target.id] = text
    return found


def _one_line(box: str) -> str:
    """Take the first two paragraphs out of tyro's error box: what is wrong and what was perhaps meant."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", box)
    rows = [row.strip(" │") for row in text.splitlines() if not row.startswith(("╭", "╰"))]
    paragraphs: list[list[str]] = [[]]
    for row in rows:
        if row and set(row) == {"─"}:
            paragraphs.append([])
        elif row:
            paragraphs[-1].append(row)
    kept = [" ".join(paragraph) for paragraph in paragraphs if paragraph]
    useful = [paragraph for paragraph in kept if not paragraph.startswith(("For full helptext", "Argument helptext"))]
    return "; ".join(useful[:2])
