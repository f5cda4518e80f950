"""Settings of `pvn tabular`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional

from protovalue.config import COUNT, INNER_SHARE, INPUT, NOT_NEGATIVE, PLACE, RESULT, SEED, SUBJECT, Range, Settings


@dataclass(frozen=True)
class TabularConfig(Settings):
    """Solve a small world exactly and write a page that shows its proto-value functions and the paper's theory.

    Example: pvn tabular four-rooms --out four-rooms

    A maze of your own is a text file of '#' (wall) and ' ' or '.' (free): pvn tabular --map maze.txt --out maze
    """

    out: Annotated[Path, PLACE]
    """Folder for index.html and its pictures."""
    world: Annotated[Positional[str | None], SUBJECT] = None
    """World: four-rooms, open, ring, chain or random."""
    map: Annotated[Path | None, INPUT] = None
    """A maze drawn in a text file, instead of a named world."""
    size: Annotated[int | None, RESULT, Range(3)] = None
    """Side of the open grid (default 10), or states of ring and chain (48) or random (100)."""
    walls: Annotated[Literal["stay", "renormalise"] | None, RESULT] = None
    """What an action into a wall does: nothing (the default), or one of the free moves."""
    gamma: Annotated[float, RESULT, INNER_SHARE] = 0.95
    """Discount factor."""
    dimensions: Annotated[int, RESULT, COUNT] = 4
    """Features d: the dimension of the subspaces that are compared."""
    proportion: Annotated[float, RESULT, INNER_SHARE] = 0.1
    """Share of the states that each random set covers."""
    seed: Annotated[int, SEED, NOT_NEGATIVE] = 0
    """Seed of everything that is drawn at random."""
