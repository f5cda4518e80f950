"""Settings of `pvn tabular`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tyro.conf import Positional

from protovalue.config import require


@dataclass(frozen=True)
class TabularConfig:
    """Solve a small world exactly and write a page that shows its proto-value functions and the paper's theory.

    Example: pvn tabular four-rooms --out four-rooms

    A maze of your own is a text file of '#' (wall) and ' ' or '.' (free): pvn tabular --map maze.txt --out maze
    """

    out: Path
    """Folder for index.html and its pictures."""
    world: Positional[str | None] = None
    """World: four-rooms, open, ring, chain or random."""
    map: Path | None = None
    """A maze drawn in a text file, instead of a named world."""
    size: int | None = None
    """Side of the open grid (default 10), or states of ring and chain (48) or random (100)."""
    walls: Literal["stay", "renormalise"] | None = None
    """What an action into a wall does: nothing (the default), or one of the free moves."""
    gamma: float = 0.95
    """Discount factor."""
    dimensions: int = 4
    """Features d: the dimension of the subspaces that are compared."""
    proportion: float = 0.1
    """Share of the states that each random set covers."""
    seed: int = 0
    """Seed of everything that is drawn at random."""

    def __post_init__(self) -> None:
        require(self.size is None or self.size >= 3, "--size", self.size, "at least 3")
        require(0 < self.gamma < 1, "--gamma", self.gamma, "more than 0 and less than 1")
        require(self.dimensions >= 1, "--dimensions", self.dimensions, "at least 1")
        require(0 < self.proportion < 1, "--proportion", self.proportion, "a share between 0 and 1")
        require(self.seed >= 0, "--seed", self.seed, "0 or more")
