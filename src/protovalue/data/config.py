"""Settings of `pvn collect`, `pvn data` and `pvn import`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from tyro.conf import OmitArgPrefixes, Positional

from protovalue.config import (
    COUNT,
    INPUT,
    LENGTH,
    MACHINE,
    NOT_NEGATIVE,
    PLACE,
    RESULT,
    SEED,
    SUBJECT,
    Range,
    Settings,
    require,
)
from protovalue.envs.options import EnvOptions


@dataclass(frozen=True)
class CollectConfig(Settings):
    """Collect experience from an environment into a data set folder.

    Example: pvn collect minatar/breakout --steps 50000 --out data/breakout --seed 0

    The same command continues an interrupted collection. Several seeds make several data sets,
    which every later command opens as one.
    """

    env: Annotated[Positional[str], SUBJECT]
    """Environment: minatar/GAME, atari/Game, gym/ID, or gym/FILE.py:ID of your own (docs/your-environment.md)."""
    out: Annotated[Path, PLACE]
    """Folder of the data set."""
    steps: Annotated[int, LENGTH, COUNT] = 100_000
    """Transitions to collect [agent steps]."""
    policy: Annotated[Literal["random", "dqn"], RESULT] = "random"
    """Who acts: uniformly random actions, or a DQN while it is trained (preset small; OUT-agent is its run)."""
    num_envs: Annotated[int | None, RESULT, COUNT] = None
    """Environments stepped together (random: 16, dqn: always 1)."""
    seed: Annotated[int, SEED, NOT_NEGATIVE] = 0
    """Seed of the environments and of the policy."""
    options: Annotated[Annotated[EnvOptions, OmitArgPrefixes], SUBJECT] = field(default_factory=EnvOptions)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.policy == "random" or self.num_envs in (None, 1), "--num-envs", self.num_envs, "1 with dqn")


@dataclass(frozen=True)
class DataInfoConfig(Settings):
    """Print what is in a data set.

    Example: pvn data info data/breakout --picture breakout.png
    """

    paths: Annotated[Positional[tuple[Path, ...]], INPUT]
    """Folder of the data set; several are shown as the one data set they make."""
    picture: Annotated[Path | None, PLACE] = None
    """Also write a contact sheet of some frames to this PNG file."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(len(self.paths) > 0, "PATHS", "none", "the folder of a data set")
        good = self.picture is None or self.picture.suffix.lower() == ".png"
        require(good, "--picture", self.picture, "a name that ends in .png")


@dataclass(frozen=True)
class DataVerifyConfig(Settings):
    """Check every byte of a data set against its checksums and name the first damaged part.

    Example: pvn data verify data/breakout
    """

    path: Annotated[Positional[Path], INPUT]
    """Folder of the data set."""


@dataclass(frozen=True, kw_only=True)
class ImportConfig(Settings):
    """What all imports share."""

    source: Annotated[Positional[tuple[str, ...]], INPUT]
    """Folder, file, glob or URL (https://, gs://, ...) of the data; several are imported into one data set."""
    out: Annotated[Path, PLACE]
    """Folder of the data set."""
    skip_damaged: Annotated[bool, RESULT] = False
    """Leave out what is damaged and count it, in place of stopping there."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(len(self.source) > 0, "SOURCE", "none", "a folder, a file, a glob or a URL")


@dataclass(frozen=True, kw_only=True)
class ImportInParallelConfig(ImportConfig):
    """What the imports share whose episodes are decoded one by one; the DQN replay is one stream."""

    workers: Annotated[int | None, MACHINE, COUNT] = None
    """Processes that decode and compress [one per processor]."""


@dataclass(frozen=True, kw_only=True)
class ImportAtariConfig(ImportConfig):
    """What the two public Atari collections share."""

    old_flags: ClassVar[Mapping[str, str]] = {"--checkpoints": "--iterations"}

    split: Annotated[Literal["full", "weak", "mixed", "mixed-small", "sgi-weak", "sgi-mixed"], RESULT] = "full"
    """Which iterations of which runs, by a published name (docs/data.md); sgi- are the self-predictive work's."""
    iterations: Annotated[str | None, RESULT] = None
    """Which iterations, counted from 0 and separated by commas, in place of a split."""
    runs: Annotated[str | None, RESULT] = None
    """Which runs, as numbered in the paths and separated by commas [all that are there]."""
    proportion: Annotated[float, RESULT, Range(0, 1, above=True)] = 1.0
    """Share of the episodes of every iteration, evenly spread over it."""
    game: Annotated[str | None, SUBJECT] = None
    """Game, such as Asterix [taken from the path of the source]."""
    actions: Annotated[Literal["minimal", "full"], RESULT] = "minimal"
    """Action set that the recorded numbers index; the environment gets the same."""


@dataclass(frozen=True, kw_only=True)
class ImportRluConfig(ImportAtariConfig, ImportInParallelConfig):
    """Import RL Unplugged's Atari episodes: the raw shards, or as prepared by TFDS.

    Example: pvn import rlu gs://rl_unplugged/atari_episodes_ordered/Pong --runs 1 --split mixed --out data/pong-mixed

    The same command continues an interrupted import. Rewards are clipped to [-1, 1], as in the files.
    """


@dataclass(frozen=True, kw_only=True)
class ImportDqnReplayConfig(ImportAtariConfig):
    """Import the DQN replay data: Dopamine's $store$_observation_ckpt.N.gz and the files beside them.

    Example: pvn import dqn-replay gs://atari-replay-datasets/dqn/Pong/1/replay_logs --iterations 0,9 --out data/pong2

    The same command continues an interrupted import. Rewards are clipped to [-1, 1], as in the files.
    """


@dataclass(frozen=True, kw_only=True)
class ImportMinariConfig(ImportInParallelConfig):
    """Import a Minari data set that is on this machine, by its folder or its id.

    Example: pvn import minari minatar/breakout/expert-v0 --out data/expert

    The same command continues an interrupted import.
    """

    env: Annotated[str | None, SUBJECT] = None
    """Environment, such as minatar/breakout or gym/ID [taken from the data set]."""
    options: Annotated[Annotated[EnvOptions, OmitArgPrefixes], SUBJECT] = field(default_factory=EnvOptions)


@dataclass(frozen=True, kw_only=True)
class ImportCopyConfig(Settings):
    """Copy a data set of this program from elsewhere, such as the Hugging Face Hub, and check every byte of it.

    Example: pvn import copy hf://datasets/me/breakout --out data/breakout-copy

    The same command continues an interrupted copy.
    """

    source: Annotated[Positional[str], INPUT]
    """Folder or URL of the data set: hf://datasets/ORG/NAME, https://, gs://, ..."""
    out: Annotated[Path, PLACE]
    """Folder of the data set; a new one."""


@dataclass(frozen=True, kw_only=True)
class ExportMinariConfig(Settings):
    """Write a data set in Minari's format, without loss: `pvn import minari` brings back the same bytes.

    Example: pvn export minari data/breakout --out minari/breakout
    """

    data: Annotated[Positional[tuple[Path, ...]], INPUT]
    """Folder of the data set; several are written as the one data set they make."""
    out: Annotated[Path, PLACE]
    """Folder to make; Minari finds it by the name if it is MINARI_DATASETS_PATH/NAME."""
    name: Annotated[str, RESULT] = ""
    """Minari's id of the data set, such as minatar/breakout/random-v0 [made of the environment and of the folder]."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(len(self.data) > 0, "DATA", "none", "the folder of a data set")
        good = not self.name or re.fullmatch(r"(?:[\w-]+/)*[\w-]+-v[0-9]+", self.name) is not None
        require(good, "--name", repr(self.name), "a name such as minatar/breakout/random-v0")
