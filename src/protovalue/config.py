"""The settings of every command: frozen dataclasses with one line of help per field; tyro makes the flags from them."""

import re
from collections import Counter
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import OmitArgPrefixes, Positional

from protovalue.errors import UserError

MOST_SEEDS = 1_000  # of a range that are trained together
MOST_THREADS = 4_096


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
    policy: Literal["random", "dqn"] = "random"
    """Who acts: uniformly random actions, or a DQN while it is trained (preset small; OUT-agent is its run)."""
    num_envs: int | None = None
    """Environments stepped together (random: 16, dqn: always 1)."""
    seed: int = 0
    """Seed of the environments and of the policy."""
    options: Annotated[EnvOptions, OmitArgPrefixes] = field(default_factory=EnvOptions)

    def __post_init__(self) -> None:
        require(self.steps >= 1, "--steps", self.steps, "at least 1")
        require(self.num_envs is None or self.num_envs >= 1, "--num-envs", self.num_envs, "at least 1")
        require(self.policy == "random" or self.num_envs in (None, 1), "--num-envs", self.num_envs, "1 with dqn")
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
class ImportConfig:
    """What all imports share."""

    source: Positional[tuple[str, ...]]
    """Folder, file, glob or URL (https://, gs://, ...) of the data; several are imported into one data set."""
    out: Path
    """Folder of the data set."""
    skip_damaged: bool = False
    """Leave out what is damaged and count it, in place of stopping there."""

    def __post_init__(self) -> None:
        require(len(self.source) > 0, "SOURCE", "none", "a folder, a file, a glob or a URL")


@dataclass(frozen=True, kw_only=True)
class ImportInParallelConfig(ImportConfig):
    """What the imports share whose episodes are decoded one by one; the DQN replay is one stream."""

    workers: int | None = None
    """Processes that decode and compress; None is one per processor."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.workers is None or self.workers >= 1, "--workers", self.workers, "at least 1")


@dataclass(frozen=True, kw_only=True)
class ImportAtariConfig(ImportConfig):
    """What the two public Atari collections share."""

    split: Literal["full", "weak", "mixed", "mixed-small", "sgi-weak", "sgi-mixed"] = "full"
    """Which checkpoints of which runs, by a published name (docs/data.md); sgi- are the self-predictive work's."""
    checkpoints: str | None = None
    """Which checkpoints, counted from 0 and separated by commas, in place of a split."""
    runs: str | None = None
    """Which runs, as numbered in the paths and separated by commas; None is all that are there."""
    proportion: float = 1.0
    """Share of the episodes of every checkpoint, evenly spread over it."""
    game: str | None = None
    """Game, such as Asterix; None takes it from the path of the source."""
    actions: Literal["minimal", "full"] = "minimal"
    """Action set that the recorded numbers index; the environment gets the same."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 < self.proportion <= 1, "--proportion", self.proportion, "more than 0 and at most 1")


@dataclass(frozen=True, kw_only=True)
class ImportRluConfig(ImportAtariConfig, ImportInParallelConfig):
    """Import RL Unplugged's Atari episodes: the raw shards, or as prepared by TFDS.

    Example: pvn import rlu gs://rl_unplugged/atari_episodes_ordered/Pong --runs 1 --split mixed --out data/pong

    The same command continues an interrupted import. Rewards are clipped to [-1, 1], as in the files.
    """


@dataclass(frozen=True, kw_only=True)
class ImportDqnReplayConfig(ImportAtariConfig):
    """Import the DQN replay data: Dopamine's $store$_observation_ckpt.N.gz and the files beside them.

    Example: pvn import dqn-replay gs://atari-replay-datasets/dqn/Pong/1/replay_logs --out data/pong --checkpoints 0,9

    The same command continues an interrupted import. Rewards are clipped to [-1, 1], as in the files.
    """


@dataclass(frozen=True, kw_only=True)
class ImportMinariConfig(ImportInParallelConfig):
    """Import a Minari data set that is on this machine, by its folder or its id.

    Example: pvn import minari minatar/breakout/expert-v0 --out data/breakout

    The same command continues an interrupted import.
    """

    env: str | None = None
    """Environment, such as minatar/breakout or gym/ID; None takes it from the data set."""
    options: Annotated[EnvOptions, OmitArgPrefixes] = field(default_factory=EnvOptions)


@dataclass(frozen=True, kw_only=True)
class PretrainConfig:
    """What all methods share. A field left at None is set by the preset, to the value in brackets."""

    out: Path
    """Folder of the run; the encoder is written to OUT/encoder."""
    data: tuple[Path, ...] = ()
    """Data set; several folders are used as one."""
    env: str | None = None
    """Environment, in place of a data set (method random only)."""
    method: str = "pvn"
    """What to learn: pvn, cumulants, spr, bc, reward, laplacian, random (docs/methods.md) or a Python file of yours."""
    preset: Literal["paper", "small"] = "small"
    """Where unset values come from: the paper's, or values for a small machine (docs/results.md)."""
    encoder: Literal["impala", "nature", "minatar"] | None = None
    """Architecture of the encoder [impala; MinAtar: minatar]."""
    width: int | None = None
    """Multiplier of the encoder's channels and features [paper 8, small 1]."""
    steps: int | None = None
    """Gradient steps [paper 1,562,500; small 10,000, MinAtar 5,000]."""
    batch_size: int | None = None
    """Transitions in a batch [256]."""
    learning_rate: float | None = None
    """Adam's step size [1e-4; small MinAtar 1e-3]."""
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
    """CPU threads of the network [PyTorch's choice; small MinAtar 1]."""
    memory: int = 2048
    """Most memory for decoded frames and prefetched batches [MiB]."""
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
        require(self.adam_epsilon >= 0, "--adam-epsilon", self.adam_epsilon, "0 or more")
        require((self.threads or 1) <= MOST_THREADS, "--threads", self.threads, f"at most {MOST_THREADS:,}")
        require(self.seed >= 0, "--seed", self.seed, "0 or more")


TRAINING = (
    "steps", "batch_size", "learning_rate", "adam_epsilon", "precision", "compile", "memory", "log_every",
    "checkpoint_every",
)  # fmt: skip
"""Fields of pretraining that say how gradient steps are taken."""


@dataclass(frozen=True, kw_only=True)
class AgentConfig:
    """What the online agents share. A field that is None is set by the preset; config.json has the result."""

    env: str
    """Environment: minatar/GAME, atari/Game or gym/ID."""
    out: Path
    """Folder of the run."""
    seeds: str = "0"
    """Seeds trained together, such as 0-8 or 0,3,5."""
    preset: Literal["paper", "small"] = "small"
    """Where unset values come from: the paper's, or values for a small machine (docs/online.md)."""
    steps: int | None = None
    """Agent steps of each seed."""
    epsilon: float | None = None
    """Probability of a random action."""
    epsilon_start: float | None = None
    """The same before the first update, from where it goes down linearly."""
    epsilon_steps: int | None = None
    """Agent steps over which it goes down to --epsilon."""
    gamma: float = 0.99
    """Discount factor."""
    n_step: int | None = None
    """Steps of reward before the bootstrap."""
    learning_rate: float | None = None
    """Adam's step size."""
    adam_epsilon: float = 1.5e-4
    """Adam's epsilon; its betas are 0.9 and 0.999."""
    max_gradient_norm: float | None = None
    """Norm to which a seed's gradient is scaled down; 0 is off."""
    batch_size: int | None = None
    """Transitions in a batch."""
    replay_min: int | None = None
    """Agent steps before the first update."""
    replay_size: int | None = None
    """Most agent steps that each seed remembers."""
    update_every: int | None = None
    """Agent steps from one time of learning to the next."""
    updates: int = 1
    """Gradient updates each time."""
    target_every: int | None = None
    """Updates between copies to the target network."""
    clip_rewards: bool = True
    """Learn from rewards clipped to [-1, 1]; returns are always reported raw."""
    double: bool | None = None
    """Double Q-learning: the trained network chooses the next action, the target network values it."""
    huber: bool = False
    """Huber loss in place of the squared error (not with c51)."""
    head: Literal["dqn", "c51"] = "dqn"
    """Predict values, or their distributions (C51)."""
    atoms: int | None = None
    """Atoms of a distribution (c51 only) [51]."""
    value_range: float | None = None
    """Values of the outer atoms, plus and minus (c51 only) [10]."""
    prioritised: bool = False
    """Prioritised replay: sample by the last error, weigh the losses to make up for it."""
    hidden: tuple[int, ...] = ()
    """Units of hidden layers between features and values; none is a linear agent."""
    replay_dir: Path | None = None
    """Folder to map the replay to, in place of memory."""
    keep_replay: bool = False
    """Keep the replay when the run is done, so that it can go on with more --steps."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute; auto takes CUDA where there is one."""
    threads: int | None = None
    """CPU threads of the networks; None leaves PyTorch's choice."""
    log_every: int | None = None
    """Agent steps between log lines."""
    checkpoint_every: int | None = None
    """Agent steps between checkpoints."""
    options: Annotated[EnvOptions, OmitArgPrefixes] = field(default_factory=EnvOptions)

    def __post_init__(self) -> None:
        counts = ("steps", "n_step", "batch_size", "replay_min", "replay_size", "update_every", "updates")
        for name in (*counts, "target_every", "threads", "log_every", "checkpoint_every"):
            value = getattr(self, name)
            require(value is None or value >= 1, f"--{name.replace('_', '-')}", value, "at least 1")
        for name in ("epsilon", "epsilon_start", "gamma"):
            value = getattr(self, name)
            require(value is None or 0 <= value <= 1, f"--{name.replace('_', '-')}", value, "between 0 and 1")
        for name in ("epsilon_steps", "max_gradient_norm"):
            value = getattr(self, name)
            require(value is None or value >= 0, f"--{name.replace('_', '-')}", value, "0 or more")
        require((self.threads or 1) <= MOST_THREADS, "--threads", self.threads, f"at most {MOST_THREADS:,}")
        rate = self.learning_rate
        require(rate is None or rate > 0, "--learning-rate", rate, "more than 0")
        require(self.atoms is None or 2 <= self.atoms <= 10_000, "--atoms", self.atoms, "2 to 10,000")
        require(self.value_range is None or self.value_range > 0, "--value-range", self.value_range, "more than 0")
        for name, (applies, expected, _) in self.dependent().items():
            value = getattr(self, name)
            require(applies or value is None, f"--{name.replace('_', '-')}", value, expected)
        require(not (self.huber and self.head == "c51"), "--huber", "it together with --head c51", "one of them")
        require(all(1 <= units <= 1 << 20 for units in self.hidden), "--hidden", self.hidden, "1 to 2^20 units in each")
        self.seed_list()

    def dependent(self) -> dict[str, tuple[bool, str, Any]]:
        """Return the fields that apply only with others: whether they do, what they need, and what None stands for."""
        distribution = (self.head == "c51", "it with --head c51 only")
        return {"atoms": (*distribution, 51), "value_range": (*distribution, 10.0)}

    def seed_list(self) -> tuple[int, ...]:
        """Return the seeds, each once."""
        found: list[int] = []
        for part in self.seeds.split(","):
            numbers = re.fullmatch(r"\s*([0-9]{1,9})(?:-([0-9]{1,9}))?\s*", part)
            require(numbers is not None, "--seeds", repr(self.seeds), "numbers and ranges such as 0-8 or 0,3,5")
            assert numbers is not None
            first, end = int(numbers[1]), int(numbers[2] or numbers[1])
            require(first <= end, "--seeds", repr(part.strip()), "a range that goes up")
            require(end - first < MOST_SEEDS, "--seeds", repr(part.strip()), f"at most {MOST_SEEDS} seeds")
            found += range(first, end + 1)
        twice = next((seed for seed, count in Counter(found).items() if count > 1), None)
        require(twice is None, "--seeds", f"{twice} twice in {self.seeds!r}", "each seed once")
        return tuple(found)


@dataclass(frozen=True, kw_only=True)
class OnlineConfig(AgentConfig):
    """Train linear agents on the features of a frozen encoder, many seeds at once.

    Example: pvn online --encoder runs/pvn --env minatar/breakout --seeds 0-8 --out runs/online

    The same command continues an interrupted run. `--encoder random:impala:1` is the random initialisation of an
    Impala encoder of width 1 (of seed 0; `random:impala:1:5` is that of seed 5).
    """

    encoder: str
    """Pretraining run or encoder folder, or random:ARCHITECTURE:WIDTH[:SEED]."""
    env: str = ""
    """minatar/GAME, atari/Game or gym/ID [the encoder's own]. Unset options are the family's, whatever the data had."""
    feature_scale: Literal["rms", "none"] | None = None
    """Divide the features by one number per encoder, their root mean square on data (rms), or use them as they are."""
    replay_dtype: Literal["float16", "float32"] | None = None
    """Precision of the stored features (not with --finetune) [float16]."""
    finetune: bool = False
    """Train the encoder too, one copy per seed; the replay then holds frames."""
    other_game: bool = False
    """Allow an encoder that was trained on another game."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.other_game:
            trained = not self.encoder.startswith("random:")
            require(trained, "--other-game", f"it with {self.encoder}", "an encoder that was trained on a game")
            require(self.env != "", "--other-game", "it without --env", "the other game as --env")

    def dependent(self) -> dict[str, tuple[bool, str, Any]]:
        """Add how features are stored."""
        features = (not self.finetune, "it without --finetune only, whose replay holds frames", "float16")
        return {**super().dependent(), "replay_dtype": features}


@dataclass(frozen=True, kw_only=True)
class DqnConfig(AgentConfig):
    """Train DQN end to end: the network learns from the pixels by itself.

    Example: pvn dqn --env minatar/breakout --seeds 0-2 --out runs/dqn

    The same command continues an interrupted run. --data also writes every transition of the training into a data set.
    """

    encoder: Literal["impala", "nature", "minatar"] | None = None
    """Architecture of the network below its last layer."""
    width: int = 1
    """Multiplier of its channels and features."""
    data: Path | None = None
    """Folder of a data set for every transition of the training, in order (one seed only)."""
    stages: int | None = None
    """Parts of the training that the data set's checkpoint numbers 0, 1, ... tell apart (with --data only) [50]."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.width >= 1, "--width", self.width, "at least 1")
        require(self.stages is None or self.stages >= 1, "--stages", self.stages, "at least 1")
        one = self.data is None or len(self.seed_list()) == 1
        require(one, "--data", f"it with seeds {self.seeds}", "one seed, whose training it records")

    def dependent(self) -> dict[str, tuple[bool, str, Any]]:
        """Add what a recording needs."""
        return {**super().dependent(), "stages": (self.data is not None, "it with --data only", 50)}


@dataclass(frozen=True)
class EvaluateConfig:
    """Play complete episodes with the agents of a run and write every return and length.

    Example: pvn evaluate runs/online --episodes 100 --video episode.gif
    """

    run: Positional[Path]
    """Folder of a run of `pvn online` or `pvn dqn`."""
    episodes: int = 100
    """Episodes of each seed."""
    epsilon: float = 0.001
    """Probability of a random action."""
    num_envs: int | None = None
    """Environments of each seed that are stepped together, at most one per episode [10, if there are so many]."""
    seed: int = 0
    """Seed of the evaluation: other seeds play other episodes."""
    out: Path | None = None
    """File for the result; None is evaluation.json in the run folder."""
    video: Path | None = None
    """Also write an animated GIF of the first seed's first episode to this file."""
    env: str | None = None
    """The run's environment; needed for gym/MODULE:ID only, whose module is imported if it is named here."""

    def __post_init__(self) -> None:
        require(self.episodes >= 1, "--episodes", self.episodes, "at least 1")
        found, most = self.num_envs, self.episodes
        require(found is None or 1 <= found <= most, "--num-envs", found, f"1 to {most}, as many as episodes")
        require(0 <= self.epsilon <= 1, "--epsilon", self.epsilon, "between 0 and 1")
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
    """Show what there is in a few minutes: the tabular theory, collecting, pretraining, playing.

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


@dataclass(frozen=True)
class StudyRunConfig:
    """Run a study: everything that its file names and that is not there yet.

    Example: pvn study run studies/minatar-main.toml --jobs 2

    The same command continues an interrupted study. docs/studies.md explains study files.
    """

    file: Positional[Path]
    """The study file (TOML)."""
    out: Path | None = None
    """Folder of the study [runs/NAME]."""
    jobs: int = 1
    """Stages that run at the same time, each in a process of its own."""

    def __post_init__(self) -> None:
        require(self.jobs >= 1, "--jobs", self.jobs, "at least 1")


@dataclass(frozen=True)
class StudyStatusConfig:
    """Print how far a study is: what is done, running, failed and missing, and the time it took.

    Example: pvn study status studies/minatar-main.toml
    """

    file: Positional[Path]
    """The study file (TOML)."""
    out: Path | None = None
    """Folder of the study [runs/NAME]."""


@dataclass(frozen=True)
class StudyPlanConfig:
    """Print every stage of a study with its estimated time on this machine, and what all of it costs.

    Example: pvn study plan studies/minatar-main.toml --jobs 2

    Times come from finished stages of the study or from short runs on this machine, which are remembered.
    """

    file: Positional[Path]
    """The study file (TOML)."""
    out: Path | None = None
    """Folder of the study [runs/NAME]."""
    jobs: int = 1
    """Stages that will run at the same time."""
    measure: Literal["auto", "again", "no"] = "auto"
    """Short runs for the rates that are not known yet (auto), for all of them (again), or none."""
    commands: bool = False
    """Also print the command of every stage."""

    def __post_init__(self) -> None:
        require(self.jobs >= 1, "--jobs", self.jobs, "at least 1")


@dataclass(frozen=True)
class ReportConfig:
    """Write tables, figures and a page about finished, evaluated runs, and print the headline numbers.

    Example: pvn report runs/minatar-main --out report

    RUNS is the folder of one study, or any folders of runs of `pvn online` and `pvn dqn`.
    `pvn report --paper` prints the aggregates of the paper's own table.
    """

    runs: Positional[tuple[Path, ...]] = ()
    """Folder of a study, or folders of runs, or folders that contain some."""
    out: Path = Path("report")
    """Folder for index.html, tables/ and figures/."""
    paper: bool = False
    """Print the aggregates of the paper's own table (no RUNS needed)."""
    features: Literal["all", "first", "none"] = "all"
    """Whose features are measured: all encoders', those of the first of each method and game, or none."""
    mds: Literal["classical", "metric"] = "classical"
    """How a trajectory is placed in the plane: by eigenvectors, or by lowering the stress from there."""
    draws: int = 2_000
    """Draws of the bootstrap."""
    env: tuple[str, ...] = ()
    """Environments gym/MODULE:ID among the runs', whose modules are imported so that their games can be played."""

    def __post_init__(self) -> None:
        require(self.draws >= 100, "--draws", self.draws, "at least 100")
        require(self.paper or len(self.runs) > 0, "RUNS", "none", "the folder of a study, folders of runs, or --paper")
        for one in fields(self):  # the paper's table is printed as it is
            value = getattr(self, one.name)
            good = len(self.runs) > 0 or one.name == "paper" or value == one.default
            require(good, f"--{one.name}", value, "it only with RUNS")
        drawn = self.mds == "classical" or self.features != "none"
        require(drawn, "--mds", f"{self.mds} with --features none", "some features to place in the plane")
