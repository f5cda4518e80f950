"""What the games share: the actions, the fields of a game, the random numbers, and how a frame is painted."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol, TypeVar, cast

import numpy as np
from numba.extending import register_jitable
from numpy.typing import NDArray

SIZE = 10  # cells along each side
NONE, LEFT, UP, RIGHT, DOWN, FIRE = range(6)

Frame = NDArray[np.bool_]
Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Field:
    """Integers that are part of a game's state."""

    low: int | tuple[int, ...]
    """The least that they can be, for all or for each along the last axis."""
    high: int | tuple[int, ...]
    """The most. A saved state outside of these is refused, because compiled code does not check where it writes."""
    shape: tuple[int, ...] = ()


class Rules(Protocol):
    """What the file of a game has. A `game` is a record of its fields and of those in COMMON."""

    CHANNELS: int
    ACTIONS: tuple[int, ...]
    """The minimal action set."""
    FIELDS: dict[str, Field]

    def begin(self, game: Any) -> None:
        """Set every field to the start of an episode."""

    def act(self, game: Any, action: int) -> tuple[int, bool]:
        """Play one step; return the reward and whether the episode is over."""

    def paint(self, game: Any, frame: Frame) -> None:
        """Mark what is visible in an empty frame."""


def rules_of(name: str) -> Rules:
    """Import the file of a game."""
    return cast(Rules, import_module(f"protovalue.envs.minatar_games.{name}"))


def rule(function: Function) -> Function:
    """Let compiled functions call this one: it becomes a part of them."""
    return register_jitable(function)


COMMON = {"last_action": Field(0, FIRE), "steps": Field(0, 2**62)}  # steps of this episode


def record(rules: Rules) -> np.dtype[np.void]:
    """Return the type of one game: the state of its random numbers, then the common fields and its own."""
    fields = [(name, np.int64, field.shape) for name, field in (COMMON | rules.FIELDS).items()]
    return np.dtype([("random", np.uint64), *fields])


# SplitMix64 (Steele, Lea and Flood 2014): a counter grows by _STRIDE with every number, and the number is a hash of it.
# The seed is where the counter starts, so a game's numbers depend on its own seed and on nothing else.
_STRIDE = np.uint64(0x9E3779B97F4A7C15)
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SHIFT_1, _SHIFT_2, _SHIFT_3 = np.uint64(30), np.uint64(27), np.uint64(31)
_TO_52_BITS = np.uint64(12)


@rule
def uniform(game: Any) -> float:
    """Draw a number between 0 and 1: the middle of one of 2^52 equal parts, so never 0, 1 or exactly a half."""
    game.random += _STRIDE
    bits = game.random
    bits = (bits ^ (bits >> _SHIFT_1)) * _MIX_1
    bits = (bits ^ (bits >> _SHIFT_2)) * _MIX_2
    bits = (bits ^ (bits >> _SHIFT_3)) >> _TO_52_BITS
    return (float(bits) + 0.5) * 2.0**-52


@rule
def below(game: Any, count: int) -> int:
    """Draw an integer from 0 to `count` - 1."""
    return int(uniform(game) * count)


@rule
def mark(frame: Frame, x: int, y: int, channel: int) -> None:
    """Set one cell of a frame, which is flat: row by row, cell by cell, channel by channel."""
    frame[(y * SIZE + x) * (frame.size // SIZE**2) + channel] = True


@rule
def mark_if_inside(frame: Frame, x: int, y: int, channel: int) -> None:
    """Set one cell of a frame, unless its column is outside."""
    if 0 <= x < SIZE:
        mark(frame, x, y, channel)
