"""Settings of `pvn online` and `pvn dqn`."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from numbers import Integral
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from tyro.conf import OmitArgPrefixes

from protovalue.config import (
    COUNT,
    INPUT,
    KEPT_PLACE,
    LENGTH,
    MACHINE,
    NOT_NEGATIVE,
    PLACE,
    POSITIVE,
    PRESET,
    PROBABILITY,
    RESULT,
    RHYTHM,
    SEED,
    SUBJECT,
    THREAD_COUNT,
    THREADS,
    USUAL,
    WIDTH,
    Only,
    Range,
    Settings,
    require,
)
from protovalue.envs.options import EnvOptions
from protovalue.own_options import OwnOptions
from protovalue.presets import DQN, ONLINE, Presets

MOST_SEEDS = 1_000  # of a range that are trained together


def seeds_text(seeds: object) -> str:
    """Return seeds as the flag has them: text as it is, and numbers of Python's with what is in a row as a range.

    One number alone is refused: it could be a seed or how many.
    """
    if isinstance(seeds, str):
        return seeds
    found = list(seeds) if isinstance(seeds, Iterable) else []
    whole = bool(found) and all(isinstance(one, Integral) and not isinstance(one, bool) for one in found)
    require(whole, "--seeds", repr(seeds), "a list such as [0, 1, 2], or text such as '0-2'")
    rows: list[list[int]] = []
    for seed in map(int, found):
        if rows and seed == rows[-1][-1] + 1:
            rows[-1].append(seed)
        else:
            rows.append([seed])
    return ",".join(str(row[0]) if len(row) == 1 else f"{row[0]}-{row[-1]}" for row in rows)


@dataclass(frozen=True, kw_only=True)
class AgentConfig(Settings):
    """What the online agents share. config.json has what was used."""

    env: Annotated[str, SUBJECT]
    """Environment: minatar/GAME, atari/Game, gym/ID, or gym/FILE.py:ID of your own (docs/your-environment.md)."""
    out: Annotated[Path, PLACE]
    """Folder of the run."""
    seeds: Annotated[str, SEED] = "0"
    """Seeds trained together, such as 0-8 or 0,3,5."""
    preset: Annotated[Literal["paper", "small"], RESULT, USUAL] = "small"
    """Where unset values come from: the paper's, or values for a small machine (docs/online.md)."""
    steps: Annotated[int, LENGTH, COUNT] = PRESET
    """Agent steps of each seed."""
    epsilon: Annotated[float, RESULT, PROBABILITY] = PRESET
    """Probability of a random action."""
    epsilon_start: Annotated[float, RESULT, PROBABILITY] = PRESET
    """The same before the first update, from where it goes down linearly."""
    epsilon_steps: Annotated[int, RESULT, NOT_NEGATIVE] = PRESET
    """Agent steps over which it goes down to --epsilon."""
    gamma: Annotated[float, RESULT, PROBABILITY] = 0.99
    """Discount factor."""
    n_step: Annotated[int, RESULT, COUNT] = PRESET
    """Steps of reward before the bootstrap."""
    learning_rate: Annotated[float, RESULT, POSITIVE] = PRESET
    """Adam's step size."""
    adam_epsilon: Annotated[float, RESULT, NOT_NEGATIVE] = 1.5e-4
    """Adam's epsilon; its betas are 0.9 and 0.999."""
    max_gradient_norm: Annotated[float, RESULT, NOT_NEGATIVE] = PRESET
    """Norm to which a seed's gradient is scaled down; 0 is off."""
    batch_size: Annotated[int, RESULT, COUNT] = PRESET
    """Transitions in a batch."""
    replay_min: Annotated[int, RESULT, COUNT] = PRESET
    """Agent steps before the first update."""
    replay_size: Annotated[int, RESULT, COUNT] = PRESET
    """Most agent steps that each seed remembers."""
    update_every: Annotated[int, RESULT, COUNT] = PRESET
    """Agent steps from one time of learning to the next."""
    updates: Annotated[int, RESULT, COUNT] = 1
    """Gradient updates each time."""
    target_every: Annotated[int, RESULT, COUNT] = PRESET
    """Updates between copies to the target network."""
    clip_rewards: Annotated[bool, RESULT] = True
    """Learn from rewards clipped to [-1, 1]; returns are always reported raw."""
    double: Annotated[bool, RESULT] = PRESET
    """Double Q-learning: the trained network chooses the next action, the target network values it."""
    huber: Annotated[bool, RESULT] = False
    """Huber loss in place of the squared error (not with c51)."""
    head: Annotated[Literal["dqn", "c51"], RESULT] = "dqn"
    """Predict values, or their distributions (C51)."""
    atoms: Annotated[int | None, RESULT, Range(2, 10_000)] = PRESET
    """Atoms of a distribution (c51 only)."""
    value_range: Annotated[float | None, RESULT, POSITIVE] = PRESET
    """Values of the outer atoms, plus and minus (c51 only)."""
    prioritised: Annotated[bool, RESULT] = False
    """Prioritised replay: sample by the last error, weigh the losses to make up for it."""
    hidden: Annotated[tuple[int, ...], RESULT, Range(1, 1 << 20)] = ()
    """Units of hidden layers between features and values; none is a linear agent."""
    replay_dir: Annotated[Path | None, KEPT_PLACE] = None
    """Folder to map the replay to, in place of memory."""
    keep_replay: Annotated[bool, MACHINE] = False
    """Keep the replay when the run is done, so that it can go on with more --steps."""
    device: Annotated[Literal["auto", "cpu", "cuda", "mps"], MACHINE] = "auto"
    """Where to compute; auto takes CUDA where there is one."""
    threads: Annotated[int | None, THREADS, THREAD_COUNT] = None
    """CPU threads; by default as many as pay for the size of the network and its batch."""
    log_every: Annotated[int, MACHINE, COUNT] = PRESET
    """Agent steps between log lines."""
    checkpoint_every: Annotated[int, RHYTHM, COUNT] = PRESET
    """Agent steps between checkpoints."""
    options: Annotated[Annotated[EnvOptions, OmitArgPrefixes], SUBJECT] = field(default_factory=EnvOptions)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "seeds", seeds_text(self.seeds))
        require(not (self.huber and self.head == "c51"), "--huber", "it together with --head c51", "one of them")
        self.seed_list()

    def dependent(self) -> dict[str, Only]:
        """Return what only a distribution has."""
        only = Only(self.head == "c51", "it with --head c51 only")
        return {"atoms": only, "value_range": only}

    def check_given(self, given: Self) -> None:
        """Refuse a length of a schedule that is not there, and a replay that is too small."""
        schedule = self.epsilon_start != self.epsilon or given.epsilon_steps is PRESET or not given.epsilon_steps
        require(schedule, "--epsilon-steps", given.epsilon_steps, "--epsilon-start with it")
        size, least = self.replay_size, self.replay_min
        require(size >= least, "--replay-size", size, f"at least --replay-min, {least}")
        require(least > self.n_step, "--replay-min", least, f"more than --n-step, {self.n_step}")

    def check_updates(self) -> None:
        """Refuse a training that would end before its first update; all values must be known."""
        first = self.first_update
        least = f"at least {first:,}: the first update comes then (--replay-min, --update-every)"
        require(self.steps >= first, "--steps", f"{self.steps:,}", least)

    @property
    def first_update(self) -> int:
        """Return the step after which agents learn for the first time; all values must be known."""
        return -(-self.replay_min // self.update_every) * self.update_every

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

    presets: ClassVar[tuple[Presets, ...]] = (ONLINE,)

    encoder: Annotated[str, INPUT]
    """Pretraining run or encoder folder, zoo:NAME, hf://ORG/NAME, or random:ARCHITECTURE:WIDTH[:SEED]."""
    env: Annotated[str, SUBJECT] = ""
    """minatar/GAME, atari/Game or gym/ID [the encoder's own]. Unset options are the family's, whatever the data had."""
    feature_scale: Annotated[Literal["rms", "none"], RESULT] = PRESET
    """Divide the features by one number per encoder, their root mean square on data (rms), or use them as they are."""
    replay_dtype: Annotated[Literal["float16", "float32"] | None, RESULT] = PRESET
    """Precision of the stored features (not with --finetune)."""
    finetune: Annotated[bool, RESULT] = False
    """Train the encoder too, one copy per seed; the replay then holds frames."""
    other_game: Annotated[bool, SUBJECT] = False
    """Allow an encoder that was trained on another game; with one of the same game it changes nothing."""
    code: Annotated[tuple[str, ...], INPUT] = ()
    """Python files of yours that the encoder was made with (docs/adding-an-encoder.md)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.other_game:
            trained = not self.encoder.startswith("random:")
            require(trained, "--other-game", f"it with {self.encoder}", "an encoder that was trained on a game")
            require(self.env != "", "--other-game", "it without --env", "the other game as --env")

    def dependent(self) -> dict[str, Only]:
        """Add how features are stored."""
        features = Only(not self.finetune, "it without --finetune only, whose replay holds frames")
        return {**super().dependent(), "replay_dtype": features}


@dataclass(frozen=True, kw_only=True)
class DqnConfig(AgentConfig):
    """Train DQN end to end: the network learns from the pixels by itself.

    Example: pvn dqn --env minatar/breakout --seeds 0-2 --out runs/dqn-0-2

    The same command continues an interrupted run. --record also writes all transitions of the training to a data set.
    """

    presets: ClassVar[tuple[Presets, ...]] = (DQN,)
    old_flags: ClassVar[Mapping[str, str]] = {
        "--encoder": "--architecture",
        "--data": "--record",
        "--stages": "--iterations",
    }

    architecture: Annotated[str, RESULT, USUAL] = PRESET
    """Architecture of the network below its last layer: impala, nature, der, minatar or a Python file of yours."""
    architecture_options: Annotated[OwnOptions, RESULT] = None
    """Options of an architecture of your own, such as depth=3 (docs/adding-an-encoder.md)."""
    width: Annotated[int | float, RESULT, WIDTH] = 1
    """Multiplier of its channels and features, which are rounded: 0.25, 0.5, 1, 2 ..."""
    record: Annotated[Path | None, PLACE, USUAL] = None
    """Folder of a data set for every transition of the training, in order (one seed only)."""
    iterations: Annotated[int | None, SUBJECT, COUNT] = PRESET
    """Parts of the training, which the data set numbers 0, 1, ... (with --record only)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        one = self.record is None or len(self.seed_list()) == 1
        require(one, "--record", f"it with seeds {self.seeds}", "one seed, whose training it records")

    def dependent(self) -> dict[str, Only]:
        """Add what a recording needs."""
        return {**super().dependent(), "iterations": Only(self.record is not None, "it with --record only")}
