"""Options of an environment, as commands and study files take them."""

from dataclasses import asdict, dataclass
from typing import Any, Literal


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

    def given(self) -> dict[str, Any]:
        """Return the options that were set."""
        return {name: value for name, value in asdict(self).items() if value is not None}
