"""Settings of `pvn sets`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional

from protovalue.config import COUNT, INPUT, PLACE, RESULT, Only, Settings

ROWS = 8


@dataclass(frozen=True)
class SetsConfig(Settings):
    """Print what the sets of a proto-value network are like on its data; --picture draws some of them.

    Example: pvn sets runs/pong-pvn --picture sets.png

    A set that is left and entered all the time says little about the future, and tasks whose sets are nearly the same
    are one task.
    """

    run: Annotated[Positional[Path], INPUT]
    """Folder of a pretraining run with method pvn."""
    data: Annotated[tuple[Path, ...], INPUT] = ()
    """Its data set, if that is not where it was any more."""
    picture: Annotated[Path | None, PLACE] = None
    """PNG file to draw: a row for each of some sets, with how their states differ from others, and some of them."""
    rows: Annotated[int, RESULT, COUNT] = ROWS
    """Sets to draw, evenly spaced among all."""

    def dependent(self) -> dict[str, Only]:
        """Return what only a picture has."""
        return {"rows": Only(self.picture is not None, "it with --picture only", ROWS)}
