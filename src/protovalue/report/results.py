"""What a report is about: the results of a study's cells, or of loose runs, and what is missing."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from protovalue.report.cells import DQN, Array, CellResult


@dataclass(frozen=True)
class Missing:
    """A cell that a study names and that has no result."""

    env: str
    method: str
    pretraining_seed: int | None
    reason: str
    seeds: tuple[int, ...] = ()
    """Seeds of the agents that it should have had."""


@dataclass(frozen=True)
class EncoderFeatures:
    """What the features of one encoder are like."""

    data_seed: int | None
    pretraining_seed: int | None
    """None of an end-to-end agent."""
    num_features: int
    rank: float
    smoothness: float
    probe: float | None


@dataclass(frozen=True)
class Results:
    """All cells of a report, in the order of their methods and environments."""

    name: str
    title: str
    normalise: str
    """What scores are measured on: "human", "dqn" (random policy 0, DQN 1) or "none"."""
    methods: tuple[str, ...]
    envs: tuple[str, ...]
    cells: tuple[CellResult, ...]
    missing: tuple[Missing, ...] = ()
    random_policy: Mapping[str, float] = field(default_factory=dict)
    """Mean return of uniformly random actions, by environment."""
    stage_seconds: Mapping[str, float] = field(default_factory=dict)
    """Recorded wall-clock time by kind of stage."""
    stages_without_time: int = 0
    """Finished stages of which no time was recorded."""
    attempts_without_time: int = 0
    """Attempts at stages that were begun and whose end was not recorded: they were killed, or still run."""
    notes: tuple[str, ...] = ()
    """What a reader must know, such as that runs of different settings were told apart."""
    file: str | None = None
    """The text of the study file."""
    features: Mapping[tuple[str, str], tuple[EncoderFeatures, ...]] = field(default_factory=dict)
    """What an earlier report measured of encoders that are not at hand, by environment and method."""
    yardstick: str = ""
    """Name of the study that random policy and DQN are of, if it is another one."""

    def of(self, method: str, env: str) -> tuple[CellResult, ...]:
        """Return the cells of a method in an environment."""
        return tuple(cell for cell in self.cells if cell.method == method and cell.env == env)

    def scores(self) -> dict[str, dict[str, Array]]:
        """Return mean evaluation returns (P, S) by method and environment: P encoders with S agents each.

        Where cells have different numbers of agents, the first ones of each are taken, as many as all have.
        """
        table: dict[str, dict[str, Array]] = {}
        for method in self.methods:
            for env in self.envs:
                rows = [cell.returns for cell in self.of(method, env)]
                if method == self.end_to_end and rows:  # every end-to-end agent has a network of its own
                    table.setdefault(method, {})[env] = np.concatenate(rows)[:, None]
                elif rows:
                    common = min(len(row) for row in rows)
                    table.setdefault(method, {})[env] = np.stack([row[:common] for row in rows])
        return table

    @property
    def end_to_end(self) -> str | None:
        """Title of the end-to-end method, if there is one."""
        return next((cell.method for cell in self.cells if cell.settings.get("kind") == DQN), None)
