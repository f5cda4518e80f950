"""What the settings of all commands share: frozen dataclasses whose fields know their role, range and preset."""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Self, get_args

from protovalue.errors import UserError
from protovalue.options import option_words
from protovalue.schema import hints_of

MOST_THREADS = 4_096


@dataclass(frozen=True)
class Role:
    """What a setting means to those who read settings without knowing them."""

    identifies: bool
    """Another value is another result: it is part of the address of a study's stage."""
    may_change: bool
    """An interrupted run may go on with another value."""
    compared: bool
    """Runs that differ in it are not one method in a report."""
    filled_in: bool
    """A study gives it, so a study file may not."""
    group: str = ""
    """The heading of its option in a long help text; without one it is what people usually set."""


RESULT = Role(identifies=True, may_change=False, compared=True, filled_in=False, group="method")
"""The result depends on it."""
LENGTH = Role(identifies=True, may_change=True, compared=True, filled_in=False)
"""How long it goes on: the result depends on it, but what was computed so far does not."""
SEED = Role(identifies=True, may_change=False, compared=False, filled_in=True)
"""What is drawn: the runs of one method differ in it."""
SUBJECT = Role(identifies=True, may_change=False, compared=False, filled_in=True)
"""The game, or the method: what is compared is grouped by it."""
INPUT = Role(identifies=False, may_change=True, compared=False, filled_in=True)
"""Where something lies that the result depends on; its checksum is what counts."""
PLACE = Role(identifies=False, may_change=True, compared=False, filled_in=True, group="machine")
"""Where something is written."""
KEPT_PLACE = Role(identifies=False, may_change=False, compared=False, filled_in=True, group="machine")
"""Where something is written that a run must find again when it goes on."""
MACHINE = Role(identifies=False, may_change=True, compared=False, filled_in=False, group="machine")
"""How it is computed and what is told about it, not what is computed."""
THREADS = Role(identifies=False, may_change=True, compared=False, filled_in=True, group="machine")
"""The same for processors, which a study shares out."""
RHYTHM = Role(identifies=False, may_change=False, compared=False, filled_in=False, group="machine")
"""How often files are written whose size depends on it."""


TRAINING = "how gradient steps are taken"
"""The mark of settings that mean nothing where nothing is learned."""
USUAL = "what people usually set"
"""The mark of settings that a long help text shows first, whatever their role."""


@dataclass(frozen=True)
class Later:
    """The mark of settings that are recorded only where they are changed: what was made before them counts."""

    before: Any = None
    """What it was then, where its default is another now."""


LATER = Later()


@dataclass(frozen=True)
class Range:
    """The numbers that a setting may be; of several numbers, each."""

    low: float
    high: float | None = None
    above: bool = False
    """Whether `low` itself is left out."""
    below: bool = False
    """Whether `high` itself is left out."""

    def __contains__(self, value: Any) -> bool:
        """Whether a number is one of them; NaN never is."""
        if isinstance(value, tuple):
            return all(one in self for one in value)
        good: bool = value > self.low if self.above else value >= self.low
        if self.high is None:
            return good
        return good and bool(value < self.high if self.below else value <= self.high)

    def __str__(self) -> str:
        """Say it as in an error."""
        if self.high is None:
            return (
                f"more than {self.low:,}" if self.above else "0 or more" if self.low == 0 else f"at least {self.low:,}"
            )
        if isinstance(self.high, int) and self.high > 1 and not self.above:
            return f"{self.low:,} to {self.high:,}"
        if not self.above and not self.below:
            return f"between {self.low} and {self.high}"
        start = "more than" if self.above else "at least"
        return f"{start} {self.low} and {'less than' if self.below else 'at most'} {self.high}"


COUNT = Range(1)
NOT_NEGATIVE = Range(0)
POSITIVE = Range(0, above=True)
PROBABILITY = Range(0, 1)
DISCOUNT = Range(0, 1, below=True)
"""Less than one, so that sums over all time are finite."""
INNER_SHARE = Range(0, 1, above=True, below=True)
WIDTH = Range(0, 1 << 16, above=True, below=True)
THREAD_COUNT = Range(1, MOST_THREADS)


def whole(number: float) -> int | float:
    """Return a number as an int where it is one: 1.0 and 1 are the same setting, and are recorded alike."""
    return int(number) if float(number).is_integer() else number


class _Preset:
    """The value of a setting that is not given; using it before `resolved` replaces it is an error."""

    def __repr__(self) -> str:
        return "PRESET"

    def __bool__(self) -> bool:
        raise TypeError("a setting that the preset gives was used before it was resolved")

    def __deepcopy__(self, memo: Any) -> Self:
        return self


PRESET: Any = _Preset()
"""The default of a field that the preset sets: typed as the field is, as nothing else ever sees it."""


def require(condition: bool, flag: str, found: object, expected: str) -> None:
    """Refuse a setting: one line with the flag, what was found and what was expected."""
    if not condition:
        raise UserError(f"{flag}: found {found}, expected {expected}")


def flag(name: str) -> str:
    """Return the flag of a field."""
    return f"--{name.replace('_', '-')}"


def flag_words(name: str, value: Any) -> list[str]:
    """Return a field and its value as words of a command line."""
    if isinstance(value, bool):
        return [flag(name) if value else flag(f"no_{name}")]
    return [flag(name), *texts(value)]


def texts(value: Any) -> list[str]:
    """Return a value as words of a command line; a tuple is several, and so are the options of a class."""
    if isinstance(value, dict):
        return option_words(value)
    return [str(part) for part in (value if isinstance(value, tuple) else (value,))]


@dataclass(frozen=True)
class Only:
    """When a setting applies; where it does not, it must not be given."""

    applies: bool
    needs: str
    """What to expect instead, as an error says it."""
    otherwise: Any = None
    """Its value where it does not apply, which may be given."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a command. Every field is `Annotated` with its role, and numbers with their range."""

    presets: ClassVar[tuple[Mapping[tuple[str, str], Any], ...]] = ()
    """Tables of `protovalue.presets` with the values of fields that are PRESET; later ones come before earlier ones."""

    old_flags: ClassVar[Mapping[str, str]] = {}
    """Flags that had another name once, with what they are called now."""

    chosen_by: ClassVar[str] = ""
    """The flag that chooses this class among others, each with settings of its own."""

    def __post_init__(self) -> None:
        """Check every number against its range, and that nothing is given that does not apply; paths may be text."""
        for name, several in _path_fields(type(self)).items():
            value = getattr(self, name)
            if several:
                listed = (value,) if isinstance(value, str | Path) else value
                object.__setattr__(self, name, tuple(Path(one) for one in listed))
            elif isinstance(value, str):
                object.__setattr__(self, name, Path(value))
        for name, allowed in ranges(type(self)).items():
            value = getattr(self, name)
            good = value is None or value is PRESET or value in allowed
            require(good, flag(name), " ".join(texts(value)), str(allowed))
        for name, only in self.dependent().items():
            value = getattr(self, name)
            good = only.applies or value in (PRESET, only.otherwise)
            require(good, flag(name), " ".join(texts(value)), only.needs)

    def dependent(self) -> dict[str, Only]:
        """Return the fields that apply only with some values of others."""
        return {}

    @classmethod
    def others(cls) -> Mapping[str, "type[Settings]"]:
        """Return the classes that `chosen_by` chooses from, by name."""
        return {}

    def check_given(self, given: Self) -> None:
        """Refuse, once all values are known, what only then is seen not to go together; `given` is as it was before."""


def _path_fields(config: type[Any]) -> dict[str, bool]:
    """Return the fields that are paths, and of each whether it is several."""
    hints = hints_of(config)
    return {
        one.name: hints[one.name] == tuple[Path, ...]
        for one in fields(config)
        if hints[one.name] in (Path, Path | None, tuple[Path, ...])
    }


def _marks(config: type[Any]) -> dict[str, tuple[Any, ...]]:
    """Return what every field is annotated with."""
    hints = hints_of(config, extras=True)
    return {one.name: tuple(get_args(hints[one.name])[1:]) for one in fields(config)}


def roles(config: type[Any]) -> dict[str, Role]:
    """Return the role of every field; the result depends on one that does not say, such as a field of a user's."""
    marks = _marks(config).items()
    return {name: next((mark for mark in found if isinstance(mark, Role)), RESULT) for name, found in marks}


def names_where(config: type[Any], condition: Callable[[Role], bool]) -> set[str]:
    """Name the fields whose role meets a condition."""
    return {name for name, role in roles(config).items() if condition(role)}


def ranges(config: type[Any]) -> Mapping[str, Range]:
    """Return the ranges of the fields that have one."""
    marks = _marks(config).items()
    return {name: mark for name, found in marks for mark in found if isinstance(mark, Range)}


def marked(config: type[Any], mark: object) -> set[str]:
    """Name the fields that are annotated with `mark`."""
    return {name for name, found in _marks(config).items() if mark in found}


def before_choices(config: type[Any]) -> dict[str, Any]:
    """Return what the fields with a mark `Later` were before there was a choice: what a record without them means."""
    marks = _marks(config)
    later = {name: mark.before for name, found in marks.items() for mark in found if isinstance(mark, Later)}
    return {one.name: default_of(one) if later[one.name] is None else later[one.name]
            for one in fields(config) if one.name in later}  # fmt: skip


def not_given(config: Any) -> set[str]:
    """Name the fields that are as they were before there was a choice: no record has them."""
    return {name for name, value in before_choices(type(config)).items() if getattr(config, name) == value}


def default_of(one: Field[Any]) -> Any:
    """Return what a field is when nobody says anything."""
    return one.default_factory() if one.default_factory is not MISSING else one.default
