"""What a report says, computed and ready to be drawn: the seam between `report.command` and `report.page`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protovalue.evaluate.aggregate import STATISTIC_TITLES, STATISTICS, Estimate
from protovalue.evaluate.probe_file import FeatureScale, Kind
from protovalue.report.results import EncoderFeatures, Results

__all__ = [
    "STATISTICS", "STATISTIC_TITLES", "Aggregate", "Budget", "Contrast", "Cost", "Embedding", "Estimate",
    "FeatureNumbers", "Gallery", "GameScore", "GridCell", "GridWidth", "Picture", "ProbeRow", "Report", "Spread",
    "TableFiles", "Verdict",
]  # fmt: skip

Array = NDArray[np.float64]


@dataclass(frozen=True)
class GameScore:
    """What a method scores in an environment."""

    env: str
    method: str
    mean: Estimate
    """Mean evaluation return over encoders and agents."""
    normalised: Estimate | None
    """The same on the scale of the aggregates; None where there is no such scale."""
    encoders: int
    """Encoders, or end-to-end agents."""
    agents: int
    """Agents on each encoder; 1 end to end."""
    episodes: int
    """Evaluation episodes of each agent."""


@dataclass(frozen=True)
class Aggregate:
    """The normalised scores of a method over environments."""

    method: str
    envs: int
    encoders: int
    """Encoders per environment, the least of them."""
    agents: int
    """Agents per encoder, the least of them."""
    statistics: Mapping[str, Estimate]
    """By the names in STATISTICS."""


@dataclass(frozen=True)
class Spread:
    """Mean and range of a number over encoders."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class FeatureNumbers:
    """What the features of a method are like in an environment, over its encoders."""

    env: str
    method: str
    encoders: int
    num_features: int
    effective_rank: Spread
    """On states of a random policy."""
    smoothness: Spread
    """On one trajectory: distance of consecutive states over that of all pairs; 1 is no smoothness."""
    probe: Spread | None
    """Held-out R^2 of a linear probe of the state variables; None where the environment has no such variables."""
    each: tuple[EncoderFeatures, ...] = ()
    """The same, encoder by encoder."""


@dataclass(frozen=True)
class Picture:
    """A figure in its two files."""

    section: str
    """Which figure it is, by the name of its entry: that decides its place on the page."""
    name: str
    """Name of the files, such as "aggregates"."""
    title: str
    caption: str
    """How to read it and what it stands on, in one or two sentences."""
    png: Path
    svg: Path
    env: str | None = None
    """The environment that it is about, if it is about one."""


@dataclass(frozen=True)
class TableFiles:
    """A table in its three files."""

    name: str
    title: str
    caption: str
    markdown: Path
    csv: Path
    tex: Path


@dataclass(frozen=True)
class Embedding:
    """The features of one encoder on a trajectory, in the plane."""

    method: str
    encoder: str
    """Which encoder: its folder's name, or random:ARCHITECTURE:WIDTH:SEED."""
    points: Array
    """(N, 2), scaled so that the largest distance from the centre is 1."""
    stress: float
    """Kruskal's stress: 0 where the plane keeps every distance."""


@dataclass(frozen=True)
class Gallery:
    """One trajectory of an environment, seen through the features of every method."""

    env: str
    player: str
    """Who played it, in words."""
    episode_return: float
    steps: tuple[int, ...]
    """Which steps of the episode the N states are."""
    frames: tuple[bytes, ...]
    """N small PNG pictures."""
    embeddings: tuple[Embedding, ...]
    scaling: str = "classical"
    """Which multidimensional scaling placed them."""


@dataclass(frozen=True)
class Verdict:
    """What a report's runs say of a claim of the paper."""

    claim: str
    place: str
    """Where the paper makes it."""
    evidence: str
    """What the paper has for it."""
    methods: tuple[str, str]
    """What was compared: how much higher the first scores than the second."""
    difference: Estimate
    """Mean over games, with Student's interval over data sets, or over encoders of one."""
    margin: float
    """What the difference must be above."""
    stands_on: str
    needed: int | None
    """Data sets, or encoders, of each game that would tell, four times out of five, by the variance seen."""
    unit: str = "normalised score"
    """What the difference is of."""

    @property
    def holds(self) -> bool | None:
        """Whether the claim holds here, by the interval alone; None where that cannot be told."""
        if self.difference.low > self.margin:
            return True
        return False if self.difference.high < self.margin else None

    @property
    def verdict(self) -> str:
        """Whether the claim holds here, in words."""
        return _told(self.holds, ("holds here", "does not hold here"), self.difference, self.needed)


@dataclass(frozen=True)
class Contrast:
    """How much higher a variant scores than the method that it is a variant of."""

    method: str
    base: str
    difference: Estimate
    """Mean over games, in normalised scores, with Student's interval over data sets, or over encoders of one."""
    stands_on: str
    needed: int | None
    """As in `Verdict`."""

    @property
    def verdict(self) -> str:
        """Whether it scores higher or lower, by the interval alone."""
        higher = True if self.difference.low > 0 else False if self.difference.high < 0 else None
        return _told(higher, ("higher", "lower"), self.difference, self.needed)


def _told(answer: bool | None, words: tuple[str, str], difference: Estimate, needed: int | None) -> str:
    if answer is not None:
        return words[0] if answer else words[1]
    if not difference.has_interval:
        return "cannot be told: too few encoders"
    return f"cannot be told: about {needed:,} a game would tell" if needed else "cannot be told"


@dataclass(frozen=True)
class GridCell:
    """A method at one width of the encoder with one number of tasks."""

    method: str
    width: float
    tasks: int
    encoders: int
    """In all games together."""
    agents: int
    """On each encoder."""
    score: Estimate
    """Normalised, mean over games."""
    loss: float
    """Per task, at the end of pretraining; NaN where there is none."""
    effective_rank: float
    """Mean over encoders; NaN where it was not measured."""
    seconds: float
    """Of one encoder with its agents and their evaluation; NaN where it was not recorded."""


@dataclass(frozen=True)
class GridWidth:
    """Where a method stops gaining from tasks at one width of the encoder."""

    method: str
    width: float
    tasks: Estimate
    """The number of tasks with the best score."""
    gain: Estimate | None
    """What the normalised score gains up to it with every doubling of the number of tasks; None at the smallest."""
    beyond: Estimate | None
    """What it gains beyond; None at the largest."""
    games: int


@dataclass(frozen=True)
class ProbeRow:
    """How well one category of what is true of a state is read from the features of every method."""

    env: str
    category: str
    kind: Kind
    """Which score it is."""
    feature_scale: FeatureScale
    """How features were scaled before they were read."""
    scores: Mapping[str, Estimate]
    """By method, with Student's interval over encoders; also of what stands beside the methods."""
    correlation: Estimate | None
    """Rank correlation of an encoder's score and its agents' mean return, over all encoders of the game."""
    encoders: int


@dataclass(frozen=True)
class Budget:
    """What the returns of a method stand on; where runs differ, every value that there is. Empty: there is none."""

    method: str
    networks: tuple[str, ...]
    """Architecture and width."""
    transitions: tuple[int, ...]
    """Of the data that an encoder learned from."""
    steps: tuple[int, ...]
    """Gradient steps of pretraining."""
    batch_size: tuple[int, ...]
    """Of pretraining."""
    agent_steps: tuple[int, ...]
    """Of each agent."""
    episodes: tuple[int, ...]
    """Evaluation episodes of each agent."""


@dataclass(frozen=True)
class Cost:
    """What a kind of stage took."""

    stage: str
    seconds: float


@dataclass(frozen=True)
class Report:
    """All that a report says; `report.page.write_page(report, path)` makes the page of it."""

    results: Results
    draws: int
    """Draws of the bootstrap."""
    colours: Mapping[str, str]
    """The colour of each method, as #rrggbb, the same in every figure."""
    scale: str
    """What a normalised score is, in one sentence; empty where scores are not normalised."""
    per_game: tuple[GameScore, ...]
    scores: Mapping[str, Mapping[str, Array]]
    """Normalised scores (P, S) by method and environment, of the environments that all methods share."""
    aggregates: tuple[Aggregate, ...]
    """Of these scores; empty where scores are not normalised."""
    features: tuple[FeatureNumbers, ...]
    galleries: tuple[Gallery, ...]
    notes: tuple[str, ...]
    """What a reader must know: environments left out, settings that differ, runs without encoder."""
    costs: tuple[Cost, ...]
    improvements: Mapping[str, Estimate] = field(default_factory=dict)
    """Probability that a run of the first method scores higher than one of another, by that other method."""
    verdicts: tuple[Verdict, ...] = ()
    """On the paper's claims that these runs say something about; empty where scores are not normalised."""
    contrasts: tuple[Contrast, ...] = ()
    """Of the variants of a method; empty where scores are not normalised."""
    grid: tuple[GridCell, ...] = ()
    """Of methods that were run with several numbers of tasks."""
    grid_widths: tuple[GridWidth, ...] = ()
    probes: tuple[ProbeRow, ...] = ()
    """What `pvn probe` found of these encoders."""
    headline: tuple[str, ...] = ()
    """The lines that the command prints: numbers with intervals, per game and over games."""
    paper: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Mean returns that the paper printed, by environment and the paper's name of the method."""
    budgets: tuple[Budget, ...] = ()
    """What the returns stand on, the paper's last; empty where the paper has none for these games."""
    references: tuple[str, ...] = ()
    """Methods that saw the reward before the agents did, which do not compete: end-to-end DQN, reward pretraining."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """Versions and settings of the statistics: package version, bootstrap draws, seed."""
    pictures: tuple[Picture, ...] = ()
    """In the order of the page."""
    tables: tuple[TableFiles, ...] = ()
