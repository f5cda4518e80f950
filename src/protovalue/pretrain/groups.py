"""Groups of tasks: some of the m tasks with settings of their own, a share of all and a weight in the loss."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from protovalue.config import DISCOUNT, POSITIVE, Range, require
from protovalue.errors import UserError, unknown
from protovalue.registry import INDICATORS

ScaleErrors = Literal["none", "spread", "proportion"]

_NUMBERS: Mapping[str, Range] = {
    "share": POSITIVE,
    "weight": POSITIVE,
    "proportion": Range(0, 1, above=True),
    "gamma": DISCOUNT,
}
_CHOICES: Mapping[str, tuple[str, ...]] = {
    "backup": ("mean", "max"),
    "arrival": ("yes", "no"),
    "changes": ("yes", "no"),
}
FLAG = "--groups"


@dataclass(frozen=True)
class Group:
    """One group, as it was given: `proportion=0.9,share=2,weight=0.1,gamma=0.9,backup=max,arrival=yes,indicator=rni`.

    What is not given is the method's own setting of the same name.
    """

    text: str
    share: float = 1.0
    """Its part of the tasks, beside the shares of the others."""
    weight: float = 1.0
    """What its squared errors are multiplied by."""
    own: Mapping[str, Any] = field(default_factory=dict)
    """Settings of its own, by name."""

    @property
    def is_lifetime(self) -> bool:
        """Whether its sets hold all states. There is one such set, whose value is the discounted length of life."""
        return self.own.get("proportion") == 1


def read_group(text: str, known: Sequence[str]) -> Group:
    """Read one group; `known` are the settings that a group may have of its own."""
    found: dict[str, Any] = {}
    for word in text.split(","):
        name, equals, value = (part.strip() for part in word.partition("="))
        require(bool(equals), FLAG, text, "settings such as share=2,gamma=0.9")
        if name not in (names := ("share", "weight", *known)):
            raise UserError(f"{FLAG}: {unknown('setting of a group', name, names)}")
        require(name not in found, FLAG, f"{name} twice in {text}", "each once")
        found[name] = _number(name, value) if name in _NUMBERS else _choice(name, value)
    if found.get("proportion") == 1:
        for name in ("share", "indicator", "arrival", "changes"):
            require(name not in found, FLAG, text, f"no {name}: of all states there is one set, so one task")
    return Group(text, found.pop("share", 1.0), found.pop("weight", 1.0), found)


def _number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    require(value in _NUMBERS[name] and math.isfinite(value), FLAG, f"{name}={text}", f"a number {_NUMBERS[name]}")
    return value


def _choice(name: str, text: str) -> str:
    allowed = _CHOICES.get(name) or INDICATORS.names()
    require(text in allowed, FLAG, f"{name}={text}", " or ".join(allowed))
    return text


def sizes(groups: Sequence[Group], tasks: int) -> list[int]:
    """Return how many of the tasks are each group's: at least one, one of the lifetime, the rest by their shares.

    Rounded by the largest remainders, the first group first where they are equal.
    """
    require(tasks >= len(groups), "--tasks", tasks, f"at least {len(groups)}, one for each of --groups")
    sharing = [number for number, group in enumerate(groups) if not group.is_lifetime]
    require(bool(sharing) or tasks == len(groups), "--tasks", tasks, f"{len(groups)}: every group is one task")
    left, whole = tasks - (len(groups) - len(sharing)), sum(groups[number].share for number in sharing)
    require(math.isfinite(left * whole), FLAG, f"shares that add up to {whole:g}", "smaller ones")
    exact = {number: left * groups[number].share / whole for number in sharing}
    counts = [max(1, math.floor(exact.get(number, 1))) for number in range(len(groups))]
    while sum(counts) < tasks:
        counts[max(sharing, key=lambda one: exact[one] - counts[one])] += 1
    while sum(counts) > tasks:  # a small group was given its one task: the largest does without
        counts[max(sharing, key=lambda one: counts[one])] -= 1
    return counts
