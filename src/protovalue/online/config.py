"""Settings of `pvn online` and `pvn dqn`."""

import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import OmitArgPrefixes

from protovalue.config import MOST_THREADS, flag, require
from protovalue.envs.options import EnvOptions

MOST_SEEDS = 1_000  # of a range that are trained together


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
            require(value is None or value >= 1, flag(name), value, "at least 1")
        for name in ("epsilon", "epsilon_start", "gamma"):
            value = getattr(self, name)
            require(value is None or 0 <= value <= 1, flag(name), value, "between 0 and 1")
        for name in ("epsilon_steps", "max_gradient_norm"):
            value = getattr(self, name)
            require(value is None or value >= 0, flag(name), value, "0 or more")
        require((self.threads or 1) <= MOST_THREADS, "--threads", self.threads, f"at most {MOST_THREADS:,}")
        rate = self.learning_rate
        require(rate is None or rate > 0, "--learning-rate", rate, "more than 0")
        require(self.atoms is None or 2 <= self.atoms <= 10_000, "--atoms", self.atoms, "2 to 10,000")
        require(self.value_range is None or self.value_range > 0, "--value-range", self.value_range, "more than 0")
        for name, (applies, expected, _) in self.dependent().items():
            value = getattr(self, name)
            require(applies or value is None, flag(name), value, expected)
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
