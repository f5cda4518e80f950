"""Options of an environment, as commands and study files take them."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, Self

from protovalue.config import flag, require
from protovalue.own_options import OwnOptions
from protovalue.registry import ENVIRONMENTS, split_env
from protovalue.schema import checked


@dataclass(frozen=True)
class EnvOptions:
    """Options of an environment; what is left at None keeps the default of the environment's family."""

    actions: Literal["minimal", "full"] | None = None
    """Action set: those that do something in this game, or all of the console's."""
    sticky: float | None = None
    """Probability that the environment repeats the previous action instead."""
    stack: int | None = None
    """Frames in one observation (atari: 4, minatar and gym: 1)."""
    max_steps: int | None = None
    """Agent steps after which an episode is truncated."""
    frameskip: int | None = None
    """Emulator frames per agent step (atari only)."""
    noop_max: int | None = None
    """Most random no-operations at the start of an episode (atari only)."""
    episodic_life: bool | None = None
    """End the episode and restart the game when a life is lost (atari only)."""
    resize: int | None = None
    """Height and width that frames are scaled to [pixels] (gym only)."""
    grey: bool | None = None
    """Make colour frames grey (gym only)."""
    env_options: OwnOptions = None
    """Options of an environment of your own, such as wind=0.5 (docs/adding-an-environment.md)."""

    def __post_init__(self) -> None:
        for name in self.env_options or {}:
            good = name not in {one.name for one in fields(self)}
            require(good, "--env-options", name, f"it as {flag(name)}")

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """Make them of all that an environment has."""
        known = {one.name for one in fields(cls)} - {"env_options"}
        own = {name: value for name, value in options.items() if name not in known}
        return cls(**{name: value for name, value in options.items() if name in known}, env_options=own or None)

    def flags(self) -> dict[str, Any]:
        """Return the settings that were made, as flags have them."""
        return {one.name: getattr(self, one.name) for one in fields(self) if getattr(self, one.name) is not None}

    def given(self) -> dict[str, Any]:
        """Return the options that were set."""
        known = self.flags()
        own: dict[str, Any] = known.pop("env_options", {})
        return known | own


def check_recorded(env_id: str | None, options: Mapping[str, Any], where: Path | str) -> None:
    """Check options that a file names by their types; those of a user's own family are checked where it is made."""
    known = {one.name for one in fields(EnvOptions)} - {"env_options"}
    own = env_id is not None and split_env(env_id)[0] not in ENVIRONMENTS.names()
    checked(EnvOptions, {name: value for name, value in options.items() if name in known or not own}, where)
