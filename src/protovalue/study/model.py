"""A study as the rest of the package sees it: what its file says, read and checked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import product
from typing import Any

from protovalue.config import TRAINING, marked
from protovalue.envs.options import EnvOptions
from protovalue.pretrain.method_configs import RandomConfig
from protovalue.pretrain.methods import method_class
from protovalue.study.settings import field_names

DQN, RANDOM, RELEASED = "dqn", "random", "released"
RELEASED_WIDTH = 8  # of the encoders that the paper's authors released
RANDOM_KEEPS = field_names(RandomConfig) - marked(RandomConfig, TRAINING)  # all that it depends on


@dataclass(frozen=True)
class Seeds:
    """Data x pretraining x online, or pairs of data and pretraining x online."""

    data: tuple[int, ...] = (0,)
    pretraining: tuple[int, ...] = (0,)
    online: tuple[int, ...] = (0,)
    """Of the first encoder's agents."""
    dqn: tuple[int, ...] = (0,)
    pair: bool = False
    """Whether encoder i learns from data set i alone, in place of one from every data set."""

    def encoders(self, learns: bool) -> list[tuple[int, int]]:
        """Return the data seed and the pretraining seed of every encoder of a method.

        An encoder that does not learn from data is there once, not once per data set.
        """
        if self.pair:
            return list(zip(self.data, self.pretraining, strict=True))
        return list(product(self.data if learns else self.data[:1], self.pretraining))

    def agents(self, encoder: int) -> tuple[int, ...]:
        """Return the seeds of the agents on an encoder, by its number: no two encoders of a method share one."""
        return tuple(encoder * (max(self.online) + 1) + seed for seed in self.online)


@dataclass(frozen=True)
class Variant:
    """An environment as it is played."""

    options: EnvOptions
    """Those that the file sets."""
    resolved: Mapping[str, Any]
    """All of them, with their values."""
    frame: tuple[int, ...] = ()
    """Shape of a frame."""


@dataclass(frozen=True)
class Data:
    """Where experience comes from."""

    kind: str
    """collect, rlu, dqn-replay, minari or folder."""
    settings: Mapping[str, Any]
    """Of the command that makes the data set."""
    policy: str = "random"
    """Who acts (collect only)."""
    source: tuple[str, ...] = ()
    """Templates of what is imported, or of the folders; {game} and {seed} are filled in."""
    checksums: Mapping[str, str] = field(default_factory=dict)
    """Of the data sets that were there already, by folder."""


@dataclass(frozen=True)
class MethodEntry:
    """A method with what is special about it in this study."""

    name: str
    """Its name in the file."""
    title: str
    method: str
    """Its name on the command line."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    code: str = ""
    """Checksum of a user's own code, if there is some."""
    environments: Mapping[str, Variant] = field(default_factory=dict)
    """What its agents play in; empty where it is what all play in."""
    source: str = ""
    """Of encoders that others released, in place of pretraining: a template; {game} and {seed} are filled in."""
    encoders: int | None = None
    """How many of the study's encoders it has, the first ones; None is all."""

    @property
    def pretrains(self) -> bool:
        """Whether it makes encoders of its own."""
        return self.method not in (DQN, RELEASED)

    @property
    def has_tasks(self) -> bool:
        """Whether it has a number of tasks."""
        return self.pretrains and "tasks" in {one.name for one in fields(method_class(self.method).Config)}

    def grid(self, tasks: Sequence[int | None]) -> Sequence[int | None]:
        """Return the part of the study's axis of tasks that it takes; None is its own number or none at all."""
        return tasks if self.has_tasks and "tasks" not in self.settings else (None,)

    def untrained(self, tasks: int | None) -> bool:
        """Whether it is the random initialisation, as everything without tasks is."""
        return self.method == RANDOM or tasks == 0 or self.settings.get("tasks") == 0

    def learns(self, tasks: int | None) -> bool:
        """Whether its encoder depends on the data."""
        return self.pretrains and not self.untrained(tasks) and method_class(self.method).needs_data


@dataclass(frozen=True)
class Study:
    """A study file, checked."""

    name: str
    title: str
    text: str
    environments: Mapping[str, Variant]
    """As data are collected in, and as methods play that say nothing else."""
    methods: tuple[MethodEntry, ...]
    data: Data | None
    widths: tuple[int | float | None, ...]
    """None is the preset's."""
    tasks: tuple[int | None, ...]
    seeds: Seeds
    threads: int
    normalise: str
    pretrain: Mapping[str, Any]
    online: Mapping[str, Any]
    dqn: Mapping[str, Any]
    evaluate: Mapping[str, Any]
    resources: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What stages ask of a cluster, by kind, as far as the file says it."""

    def variant(self, env: str, entry: MethodEntry) -> Variant:
        """Return the environment as the agents of a method play it."""
        return entry.environments.get(env, self.environments[env])
