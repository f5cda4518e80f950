"""The settings of every command: frozen dataclasses with one line of help per field; tyro makes the flags from them."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import OmitArgPrefixes, Positional

from protovalue.errors import UserError


def require(condition: bool, flag: str, found: object, expected: str) -> None:
    """Refuse a setting: one line with the flag, what was found and what was expected."""
    if not condition:
        raise UserError(f"{flag}: found {found}, expected {expected}")


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


@dataclass(frozen=True)
class CollectConfig:
    """Collect experience from an environment into a data set folder.

    Example: pvn collect minatar/breakout --steps 100000 --out data/breakout

    The same command continues an interrupted collection. Several seeds make several data sets,
    which every later command opens as one.
    """

    env: Positional[str]
    """Environment: minatar/GAME, atari/Game or gym/ID."""
    out: Path
    """Folder of the data set."""
    steps: int = 100_000
    """Transitions to collect [agent steps]."""
    policy: Literal["random"] = "random"
    """Who acts: uniformly random actions."""
    num_envs: int = 16
    """Environments stepped together."""
    seed: int = 0
    """Seed of the environments and of the policy."""
    options: Annotated[EnvOptions, OmitArgPrefixes] = field(default_factory=EnvOptions)

    def __post_init__(self) -> None:
        require(self.steps >= 1, "--steps", self.steps, "at least 1")
        require(self.num_envs >= 1, "--num-envs", self.num_envs, "at least 1")
        require(self.seed >= 0, "--seed", self.seed, "0 or more")


@dataclass(frozen=True)
class DataInfoConfig:
    """Print what is in a data set.

    Example: pvn data info data/breakout --picture breakout.png
    """

    paths: Positional[tuple[Path, ...]]
    """Folder of the data set; several are shown as the one data set they make."""
    picture: Path | None = None
    """Also write a contact sheet of some frames to this PNG file."""


@dataclass(frozen=True)
class DataVerifyConfig:
    """Check every byte of a data set against its checksums and name the first damaged part.

    Example: pvn data verify data/breakout
    """

    path: Positional[Path]
    """Folder of the data set."""


@dataclass(frozen=True, kw_only=True)
class PretrainConfig:
    """What all methods share. A field that is None is set by the preset; config.json has the result."""

    out: Path
    """Folder of the run; the encoder is written to OUT/encoder."""
    data: tuple[Path, ...] = ()
    """Data set; several folders are used as one."""
    env: str | None = None
    """Environment, in place of a data set (method random only)."""
    method: str = "pvn"
    """What the encoder learns from: pvn, random, or a Python file of yours (docs/adding-a-method.md)."""
    preset: Literal["paper", "small"] = "small"
    """Where unset values come from: the paper's, or values for a small machine (docs/results.md)."""
    encoder: Literal["impala", "nature", "minatar"] | None = None
    """Architecture of the encoder."""
    width: int | None = None
    """Multiplier of the encoder's channels and features."""
    steps: int | None = None
    """Gradient steps."""
    batch_size: int | None = None
    """Transitions in a batch."""
    learning_rate: float | None = None
    """Adam's step size."""
    adam_epsilon: float = 1.5e-4
    """Adam's epsilon; its betas are 0.9 and 0.999."""
    seed: int = 0
    """Seed of the encoder, of what the method draws and of the order of the data."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute; auto takes CUDA where there is one."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Arithmetic of the network; auto is bfloat16 on CUDA and float32 on a CPU."""
    compile: bool = False
    """Compile the network with torch.compile."""
    threads: int | None = None
    """CPU threads of the network; None leaves PyTorch's choice."""
    memory: int = 2048
    """Most memory for decoded frames and prefetched batches [MiB]."""
    cache: Path | None = None
    """Folder for what is computed once per data set; None is the user's cache folder."""
    log_every: int = 100
    """Steps between log lines."""
    checkpoint_every: int = 1000
    """Steps between checkpoints."""

    def __post_init__(self) -> None:
        for name in ("width", "steps", "batch_size", "threads", "log_every", "checkpoint_every", "memory"):
            value = getattr(self, name)
            low = 0 if name == "steps" else 1
            require(value is None or value >= low, f"--{name.replace('_', '-')}", value, f"at least {low}")
        require(
            self.learning_rate is None or self.learning_rate > 0, "--learning-rate", self.learning_rate, "more than 0"
        )
        require(self.seed >= 0, "--seed", self.seed, "0 or more")


@dataclass(frozen=True)
class BenchConfig:
    """Run one of the benchmarks in benchmarks/ and print its table and one line of JSON.

    Example: pvn bench data
    """

    name: Positional[str]
    """Which benchmark."""
    quick: bool = False
    """A smaller measurement that takes about a minute."""


@dataclass(frozen=True)
class DemoConfig:
    """Show what there is in a few minutes: the tabular theory, collecting, pretraining.

    Example: pvn demo --out demo
    """

    out: Path = Path("demo")
    """Folder for what the demo makes."""


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
