"""From the words of a command line to settings: tyro's flags in groups, with what the presets give in brackets."""

import ast
import contextlib
import inspect
import io
import itertools
import re
import textwrap
from dataclasses import MISSING, field, fields, is_dataclass, make_dataclass, replace
from decimal import Decimal, InvalidOperation
from types import NoneType
from typing import Annotated, Any, TypeVar, get_args, get_origin

from protovalue.config import PRESET, TRAINING, USUAL, Settings, default_of, flag, marked, roles
from protovalue.errors import UserError, nearest
from protovalue.presets import in_brackets
from protovalue.schema import hints_of

S = TypeVar("S", bound=Settings)

FEW = 12  # options that need no headings
ABOUT = {
    "method": "What is computed: the result depends on it.",
    "training": "How gradient steps are taken.",
    "machine": "How it is computed and where things are kept: the result does not depend on it.",
    "environment": "Options of the environment; what is not given is as its family has it.",
}
"""Groups of options in a help text, below those that one usually sets."""


def parse(config: type[S], prog: str, args: list[str]) -> S:
    """Parse `args` into a config with tyro; what is wrong with them becomes one line."""
    import tyro

    if not any(word in ("-h", "--help") for word in args):
        _check_names(config, prog, args)
    group = groups(config)
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            found = tyro.cli(
                _as_typed(config, group),
                prog=prog,
                args=args,
                config=(tyro.conf.PositionalMetavarFromFieldName, tyro.conf.DisallowNone),
                registry=_registry(),
            )
    except SystemExit as exit_:
        if exit_.code in (0, None):
            raise
        said = _mended(_one_line(errors.getvalue()), args)
        raise UserError(f"{said} ({_help_of(config, prog, args)} explains)") from None
    hints, values = hints_of(config), dict[str, Any]()
    for one in fields(config):
        where = getattr(found, _field(group[one.name])) if one.name in group else found
        if is_dataclass(hints[one.name]):
            kind: Any = hints[one.name]
            values[one.name] = kind(**{inner.name: getattr(where, inner.name) for inner in fields(kind)})
        else:
            value = getattr(where, one.name)
            values[one.name] = PRESET if one.default is PRESET and value is None else value
    return config(**values)


def groups(config: type[Settings]) -> dict[str, str]:
    """Return the group of every option that is not what one usually sets; a short help text has only environments'."""
    inner = {name: "environment" for name, kind in hints_of(config).items() if is_dataclass(kind)}
    if len(fields(config)) - len(inner) <= FEW:
        return inner
    needed = {one.name for one in fields(config) if default_of(one) is MISSING}
    usual = needed | marked(config, USUAL) | {name for name, role in roles(config).items() if not role.group}
    found = {
        name: "training" if role.group == "method" and name in marked(config, TRAINING) else role.group
        for name, role in roles(config).items()
        if name not in usual
    }
    return found | inner


def _as_typed(config: type[Settings], group: dict[str, str]) -> type[Any]:
    """Make a dataclass for tyro: one inside it for each group, what a preset gives may be left out, nothing is checked.

    Options of an environment are a group as they are.
    """
    from tyro.conf import OmitArgPrefixes, arg

    options, hints = _options(config), hints_of(config)
    nested = []
    for name, about in ABOUT.items():
        members = [one for one, its in group.items() if its == name]
        if not members:
            continue
        inner = [row for one in members for row in (_options(hints[one]) if is_dataclass(hints[one]) else options)
                 if is_dataclass(hints[one]) or row[0] == one]  # fmt: skip
        kind = make_dataclass(name, inner, kw_only=True, namespace={"__doc__": about})
        nested.append((_field(name), Annotated[kind, OmitArgPrefixes, arg(name=name)], field(default_factory=kind)))
    usual = [row for row in options if row[0] not in group]
    return make_dataclass(config.__name__, [*usual, *nested], kw_only=True, namespace={"__doc__": config.__doc__})


def _field(group: str) -> str:
    """Return the name of a group's field, which no setting has."""
    return f"_{group}_options"


def _options(config: type[Any]) -> list[tuple[str, Any, Any]]:
    """Return name, type and default of every option, with its line of help and what it is when it is not given."""
    from tyro.conf import arg

    hints, plain = hints_of(config, extras=True), hints_of(config)
    said, rows = _lines_of_help(config), []
    for one in fields(config):
        kind, usual, hint = hints[one.name], default_of(one), None
        if usual is PRESET:
            kind, usual = Annotated[get_args(kind)[0] | None, *get_args(kind)[1:]], None
            # Tyro breaks lines after a comma, also inside a number.
            hint = re.sub(r"(?<=\d),(?=\d)", "_", in_brackets(one.name, config.presets))
        elif usual is None or usual == () or usual == "":
            hint = ""
        elif usual is MISSING and get_origin(plain[one.name]) is tuple:
            hint = "(required)"  # one at least, which tyro does not know
        kind = Annotated[kind, arg(help=said.get(one.name, ""), help_behavior_hint=hint)]
        rows.append((one.name, kind, field() if usual is MISSING else field(default=usual)))
    return rows


def _registry() -> Any:
    """Say how tyro reads numbers, and what may be left out: 1e4 is a whole number too, and nobody writes None."""
    from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

    registry = ConstructorRegistry()

    @registry.primitive_rule
    def numbers(info: PrimitiveTypeInfo) -> Any:
        parts = get_args(info.type)
        either = {*parts} - {NoneType} == {int, float}
        if info.type not in (int, float) and not either:
            return None
        read: Any = whole if info.type is int else whole_or_not if either else number
        return PrimitiveConstructorSpec(
            nargs=1,
            metavar="INT" if info.type is int else "FLOAT",
            instance_from_str=lambda words: read(words[0]),
            is_instance=lambda value: (
                isinstance(value, int | float) or (NoneType in get_args(info.type) and value is None)
            ),
            str_from_instance=lambda value: [str(value)],
        )

    @registry.primitive_rule
    def optional(info: PrimitiveTypeInfo) -> Any:
        kinds = get_args(info.type)
        if NoneType not in kinds or len(kinds) != 2 or bool in kinds:
            return None
        (kind,) = (one for one in kinds if one is not NoneType)
        spec = ConstructorRegistry.get_primitive_spec(PrimitiveTypeInfo.make(kind, info.markers))
        if not isinstance(spec, PrimitiveConstructorSpec):
            return None
        return replace(spec, is_instance=lambda value: value is None or spec.is_instance(value))

    return registry


def whole(text: str) -> int:
    """Read a whole number: 10000, 10_000 or 1e4."""
    try:
        return int(text)
    except ValueError:
        pass
    with contextlib.suppress(InvalidOperation):
        found = Decimal(text)
        if "e" in text.lower() and found.is_finite() and found.adjusted() < 19 and found == found.to_integral_value():
            return int(found)
    raise ValueError(f"found {text!r}, expected a whole number such as 10000, 10_000 or 1e4")


def whole_or_not(text: str) -> int | float:
    """Read a number as a whole one if it is written like one."""
    try:
        return whole(text)
    except ValueError:
        return number(text)


def number(text: str) -> float:
    """Read any number."""
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"found {text!r}, expected a number") from None


def _check_names(config: type[Settings], prog: str, args: list[str]) -> None:
    """Refuse an option that there is not, and name those that are missing."""
    positional, known = _positional(config), dict[str, bool]()
    hints = hints_of(config)
    for kind in (config, *(hint for hint in hints.values() if isinstance(hint, type) and is_dataclass(hint))):
        for one, hint in hints_of(kind).items():
            if one in kind.__dataclass_fields__ and one not in positional and not is_dataclass(hint):
                switch = bool in (hint, *get_args(hint))
                known |= {flag(one): switch, **({flag(f"no_{one}"): switch} if switch else {})}
    given = [word.partition("=") for word in args if re.match("--[a-zA-Z]", word)]
    for word, equals, value in ((flag(name[2:]), equals, value) for name, equals, value in given):
        if word in config.old_flags:
            raise UserError(f"{word}: found a name that it had before, expected {config.old_flags[word]}")
        if word not in known:
            raise UserError(f"{word}: {_unknown(config, word, prog, args, list(known))}")
        if equals and known[word]:
            raise UserError(f"{word}: found {value!r} after it, expected no value: it is a switch")
    named = {flag(name[2:]) for name, _, _ in given}
    required = [one.name for one in fields(config) if default_of(one) is MISSING and one.name not in positional]
    missing = [flag(one) for one in required if flag(one) not in named]
    if missing:
        raise UserError(f"{', '.join(missing)}: missing ({_help_of(config, prog, args)} explains)")


def _unknown(config: type[Settings], word: str, prog: str, args: list[str], known: list[str]) -> str:
    """Say what may have been meant by an option that there is not."""
    chosen, text = _chosen(config, args), f"{prog} has no such option"
    elsewhere = [name for name, other in config.others().items() if word in map(flag, other.__dataclass_fields__)]
    if elsewhere:
        asked = chosen or f"{config.chosen_by} {default_of(config.__dataclass_fields__[config.chosen_by[2:]])}"
        return f"found it with {asked}, expected it only with {config.chosen_by} {', '.join(elsewhere)}"
    if close := nearest(word, known):
        return f"{text}, did you mean {close}?"
    return f"{text} ({_help_of(config, prog, args)} lists them)"


def _chosen(config: type[Settings], args: list[str]) -> str:
    """Return the words that chose this class among others, such as --method bc."""
    by, found = config.chosen_by, ""
    for word, after in itertools.pairwise([*args, ""]):
        if by and word == by and after:
            found = f"{by} {after}"
        elif by and word.startswith(f"{by}="):
            found = word
    return found


def _help_of(config: type[Settings], prog: str, args: list[str]) -> str:
    return f"`{' '.join(filter(None, [prog, _chosen(config, args), '--help']))}`"


def _positional(config: type[Any]) -> set[str]:
    """Name the fields that are given without a flag."""
    from tyro.conf import Positional

    (_, mark) = get_args(Positional[int])
    hints = hints_of(config, extras=True)
    return {name for name, hint in hints.items() if mark in get_args(hint)[1:]}


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
    """Take what is wrong out of tyro's error box, in the words of this program where they are known."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", box)
    rows = [row.strip(" │") for row in text.splitlines() if not row.startswith(("╭", "╰"))]
    paragraphs: list[list[str]] = [[]]
    for row in rows:
        if row and set(row) in ({"─"}, {"-"}):
            paragraphs.append([])
        elif row:
            paragraphs[-1].append(row)
    titled = int("╭" not in text)  # where the terminal has no frames, the title is a paragraph
    said = next((" ".join(paragraph) for paragraph in paragraphs[titled:] if paragraph), "")
    for pattern, words in _WORDS:
        if found := re.fullmatch(pattern, said, re.DOTALL):
            return words(found) if callable(words) else found.expand(words)
    return said


def _mended(said: str, args: list[str]) -> str:
    """Close what was long enough to be broken by the box."""
    for word in args:
        value = re.sub("^--[^=]*=", "", word)
        if len(value) > _UNBROKEN:
            said = re.sub(r"\s?".join(map(re.escape, value)), lambda _, value=value: value, said)  # type: ignore[misc]
    return said


def _choices(found: re.Match[str]) -> str:
    *most, last = re.findall(r"'([^']*)'", found[3])
    name = found[2] if found[2].startswith("--") else found[2].upper()
    return f"{name}: found {found[1]}, expected {' or '.join(filter(None, [', '.join(most), last]))}"


_UNBROKEN = 20  # characters that tyro's box has room for in a line

_WORDS: list[tuple[str, Any]] = [
    (r"Error parsing (\S+): Could not find valid parse .*\[(.*)\]", r"\1: found \2, expected numbers"),
    (r"Error parsing (\S+): (.*)", r"\1: \2"),
    (r"invalid choice (.*) for argument '(\S+)'\. Expected one of \((.*)\)\.", _choices),
    (r"Missing value for argument '(\S+)'\. .*", r"\1: found no value after it, expected one"),
    (r"Missing from [^:]*: ([A-Z_]+) .*", r"\1: missing"),
    (r"Unrecognized options: (.*)", r"found \1, expected no more words without a flag"),
]
"""Sentences of tyro's, and how they are said here."""
