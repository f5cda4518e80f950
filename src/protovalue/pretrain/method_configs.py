"""Settings of the methods of this package, apart from their networks: asking for help then imports no PyTorch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from protovalue.config import (
    COUNT,
    DISCOUNT,
    INNER_SHARE,
    INPUT,
    LATER,
    NOT_NEGATIVE,
    PLACE,
    POSITIVE,
    PRESET,
    RESULT,
    SUBJECT,
    Only,
    Range,
    require,
)
from protovalue.own_options import OwnOptions
from protovalue.presets import METHODS, PRETRAIN, Presets
from protovalue.pretrain.config import PretrainConfig
from protovalue.pretrain.groups import Group, ScaleErrors, read_group, sizes
from protovalue.registry import METHODS as REGISTERED
from protovalue.registry import is_file

SecondMap = Literal["shared", "own"]


@dataclass(frozen=True, kw_only=True)
class InverseConfig(PretrainConfig):
    """What methods share that may learn inverse dynamics beside."""

    inverse: Annotated[float, RESULT, NOT_NEGATIVE, LATER] = 0.0
    """Weight of inverse dynamics, which action led from one state to the next; 0 is off."""


@dataclass(frozen=True, kw_only=True)
class TaskConfig(InverseConfig):
    """What methods with tasks share: all tasks are alike, or there are groups of them."""

    group_settings: ClassVar[Mapping[str, Any]] = {"gamma": 0.99, "backup": "mean"}
    """What a group may have of its own, and what the setting is where every group has it."""
    of_sets: ClassVar[tuple[str, ...]] = ()
    """Those of them that say how sets are drawn, which the set of all states is not."""

    tasks: Annotated[int, RESULT, NOT_NEGATIVE] = PRESET
    groups: Annotated[tuple[str, ...], RESULT, LATER] = ()
    """Groups of tasks with settings of their own: gamma=0.9,share=4 gamma=0.99,weight=0.1 (docs/methods.md)."""

    def own_groups(self) -> list[Group]:
        """Read the groups; none where all tasks are alike."""
        return [read_group(text, tuple(self.group_settings)) for text in self.groups]

    def task_groups(self) -> list[tuple[Group, int]]:
        """Return every group with its number of tasks; all tasks are one group where they are alike."""
        groups = self.own_groups() or [Group("")]
        return list(zip(groups, sizes(groups, self.tasks), strict=True))

    def of_group(self, group: Group, name: str) -> Any:
        """Return a setting of a group: its own, or that of all."""
        return group.own.get(name, getattr(self, name))

    def dependent(self) -> dict[str, Only]:
        """Return what every group has of its own."""
        found, groups = {}, self.own_groups()
        for name, otherwise in self.group_settings.items():
            needing = [one for one in groups if not (name in self.of_sets and one.is_lifetime)]
            used = not groups or any(name not in one.own for one in needing)
            found[name] = Only(used, "it only where a group has none of its own", otherwise)
        return found

    def check_given(self, given: Self) -> None:
        """Refuse fewer tasks than groups."""
        if self.groups and self.tasks:
            self.task_groups()


@dataclass(frozen=True, kw_only=True)
class PvnConfig(TaskConfig):
    """Train a proto-value network: its encoder predicts how often random sets of states will be visited.

    Example: pvn pretrain --data data/breakout --out runs/breakout --tasks 100 --width 2

    The same command resumes an interrupted run. Other methods: --method cumulants, spr, bc, reward, laplacian,
    contrastive, rldp, tdjepa, random.
    """

    presets: ClassVar[tuple[Presets, ...]] = (PRETRAIN, METHODS["pvn"])
    group_settings: ClassVar[Mapping[str, Any]] = {
        "proportion": None, "gamma": 0.99, "backup": "mean", "arrival": "no", "changes": "no", "indicator": "rni"
    }  # fmt: skip
    of_sets: ClassVar[tuple[str, ...]] = ("arrival", "changes", "indicator")

    tasks: Annotated[int, RESULT, NOT_NEGATIVE] = PRESET
    """Number of auxiliary tasks m; 0 leaves the encoder as initialised."""
    indicator: Annotated[str, RESULT] = "rni"
    """What defines the sets: rni (random networks), hash, patches (small windows), or a Python file of yours."""
    indicator_options: Annotated[OwnOptions, RESULT] = None
    """Options of patches (size=3, windows=2), or of an indicator of your own (docs/adding-an-indicator.md)."""
    proportion: Annotated[float | None, RESULT, INNER_SHARE] = PRESET
    """Share p of states that each set holds."""
    groups: Annotated[tuple[str, ...], RESULT, LATER] = ()
    """Groups of tasks with settings of their own: proportion=0.05,share=4 proportion=1,weight=0.1 (docs/methods.md)."""
    scale_errors: Annotated[ScaleErrors, RESULT, LATER] = "none"
    """What each task's errors are divided by: the spread of its sums on the data, its proportion, or nothing."""
    arrival: Annotated[Literal["yes", "no"], RESULT, LATER] = "no"
    """Whether a set counts the state that an action leads to, in place of the one that it is taken in."""
    changes: Annotated[Literal["yes", "no"], RESULT, LATER] = "no"
    """Whether sets are of transitions, those that raise the indicator's score most, in place of states."""
    threshold: Annotated[Literal["exact", "sgd"], RESULT] = "exact"
    """How the sets get their share: exact quantiles, or the paper's quantile regression."""
    burn_in: Annotated[int | None, RESULT, COUNT] = PRESET
    """Steps of quantile regression; only with --threshold sgd."""
    normalize: Annotated[Literal["yes", "no"], RESULT] = PRESET
    """Normalise the random networks' input per channel over the data set; only with rni."""
    tasks_per_module: Annotated[int | None, RESULT, COUNT] = PRESET
    """Tasks that share one random network; only with rni."""
    rni_network: Annotated[Literal["dqn", "convolutions"] | None, RESULT] = PRESET
    """Random networks: a whole DQN network, or its convolutions alone as in the paper's code; only with rni."""
    rni_output: Annotated[Literal["linear", "relu"] | None, RESULT] = PRESET
    """Their outputs: linear, or through a ReLU as in the paper's code; only with rni."""
    backup: Annotated[Literal["mean", "max"], RESULT] = "mean"
    """Over next actions: the mean learns the random policy's values, the maximum the optimal one's."""
    gamma: Annotated[float, RESULT, DISCOUNT] = PRESET
    """Discount factor."""
    target_ema: Annotated[float | None, RESULT, DISCOUNT] = PRESET
    """Share of the target network that is kept in each step."""
    target_every: Annotated[int | None, RESULT, COUNT] = None
    """Copy the target network every so many steps, in place of the moving average."""
    head_start: Annotated[Literal["zero", "mean"], RESULT] = PRESET
    """Where the heads' biases start: at zero, or at the mean value of each task on the data."""
    terminal_mask: Annotated[Literal["yes", "no"], RESULT] = "yes"
    """Whether nothing follows the end of an episode; no is the paper's formula as it reads."""
    indicator_seed: Annotated[int | None, RESULT] = None
    """Seed of the sets [--seed]."""
    cache: Annotated[Path | None, PLACE] = None
    """Folder for the indicator rewards of a data set, which are computed once [the user's cache folder]."""
    holdout: Annotated[tuple[Path, ...], INPUT] = ()
    """Data set of a random policy to compare the predictions with Monte Carlo estimates at the end."""

    def __post_init__(self) -> None:
        super().__post_init__()
        # The sets of a hash have their share as they are drawn.
        drawn = self.threshold == "sgd" and "hash" in self._indicators()
        require(not drawn, "--threshold", "sgd with --indicator hash", "exact: a hash has no threshold to learn")
        for group in self.own_groups() or [Group("")]:
            if not group.is_lifetime and self.of_group(group, "changes") == "yes":
                arrives, kind = self.of_group(group, "arrival") == "yes", self.of_group(group, "indicator")
                require(
                    not arrives, "--changes", "yes with --arrival yes", "one of the two: a change is of both states"
                )
                require(kind != "hash", "--changes", "yes with hash", "another indicator: a hash's changes say nothing")

    def dependent(self) -> dict[str, Only]:
        """Return what belongs to one way to draw the sets, to find their thresholds, or to follow with the target."""
        rni, needs = "rni" in self._indicators(), "it only with --indicator rni"
        drawn, to_draw = bool(self._indicators()), "it only where sets are drawn: there is one of all states"
        return {
            **super().dependent(),
            "threshold": Only(drawn, to_draw, "exact"),
            "indicator_seed": Only(drawn, to_draw),
            "indicator_options": Only(
                is_file(self.indicator) or self.indicator == "patches",
                "it only with patches or an indicator of your own",
            ),
            "burn_in": Only(self.threshold == "sgd", "it only with --threshold sgd"),
            "normalize": Only(rni, needs, "no"),
            **{name: Only(rni, needs) for name in ("tasks_per_module", "rni_network", "rni_output")},
            "target_ema": Only(self.target_every is None, "either it or --target-every"),
        }

    def _indicators(self) -> set[str]:
        """Return what defines the sets; nothing does where all groups are lifetimes."""
        groups = self.own_groups() or [Group("")]
        return {group.own.get("indicator", self.indicator) for group in groups if not group.is_lifetime}


@dataclass(frozen=True, kw_only=True)
class CumulantsConfig(TaskConfig):
    """Train an encoder to predict the optimal values of random cumulants, s (f(x') - f(x)) with random networks f.

    Example: pvn pretrain --method cumulants --data data/breakout --out runs/cumulants
    """

    presets: ClassVar[tuple[Presets, ...]] = (PRETRAIN, METHODS["cumulants"])
    group_settings: ClassVar[Mapping[str, Any]] = {"gamma": 0.99, "backup": "max"}

    method: Annotated[str, SUBJECT] = "cumulants"
    tasks: Annotated[int, RESULT, COUNT] = PRESET
    """Number of cumulants m."""
    scale: Annotated[float, RESULT, POSITIVE] = 1.0
    """Scale s of the cumulants."""
    unit: Annotated[Literal["deviation", "none"], RESULT] = "deviation"
    """What s counts in: each network's standard deviation over the data set, or the networks' own unit."""
    normalize: Annotated[Literal["yes", "no"], RESULT] = PRESET
    """Normalise the random networks' input per channel over the data set."""
    tasks_per_module: Annotated[int, RESULT, COUNT] = 10
    """Cumulants that share one random network."""
    backup: Annotated[Literal["mean", "max"], RESULT] = "max"
    """Over next actions: the maximum learns the optimal policy's values, the mean the random one's."""
    gamma: Annotated[float, RESULT, DISCOUNT] = PRESET
    """Discount factor."""
    target_ema: Annotated[float, RESULT, DISCOUNT] = PRESET
    """Share of the target network that is kept in each step."""
    head_start: Annotated[Literal["zero", "mean"], RESULT] = PRESET
    """Where the heads' biases start: at zero, or at the mean value of each task on the data."""
    scale_errors: Annotated[Literal["none", "spread"], RESULT, LATER] = "none"
    """What each task's errors are divided by: the spread of its sums on the data, or nothing."""
    cumulant_seed: Annotated[int | None, RESULT] = None
    """Seed of the random networks [--seed]."""
    cache: Annotated[Path | None, PLACE] = None
    """Folder for the networks' values on a data set, which are computed once [the user's cache folder]."""


@dataclass(frozen=True, kw_only=True)
class SprConfig(InverseConfig):
    """Train an encoder to predict its own latents some steps ahead, without rewards.

    Example: pvn pretrain --method spr --data data/breakout --out runs/spr
    """

    presets: ClassVar[tuple[Presets, ...]] = (PRETRAIN, METHODS["spr"])

    method: Annotated[str, SUBJECT] = "spr"
    horizon: Annotated[int, RESULT, COUNT] = 5
    """Steps K that the latent model predicts."""
    channels: Annotated[int, RESULT, COUNT] = PRESET
    """Channels between the two convolutions of the latent model, times the encoder's width."""
    shift: Annotated[int, RESULT, NOT_NEGATIVE] = PRESET
    """Most pixels by which an image is shifted at random."""
    intensity: Annotated[float, RESULT, Range(0, 0.5, below=True)] = PRESET  # the factor goes down to 1 - 2 * intensity
    """Spread of the random factor by which an image is made lighter or darker."""
    dropout: Annotated[float, RESULT, DISCOUNT] = PRESET
    """Share of the first latents that is set to zero at random."""
    target_ema: Annotated[float, RESULT, DISCOUNT] = PRESET
    """Share of the target network that is kept in each step; 0: it is the trained one."""
    center: Annotated[Literal["yes", "no"], RESULT] = PRESET
    """Subtract the batch's mean from the projections before they are compared."""
    max_gradient_norm: Annotated[float, RESULT, NOT_NEGATIVE] = 10.0
    """Norm to which the gradient is scaled down; 0 is off."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(not self.compile, "--compile", "it with --method spr", "another method: this one cannot be compiled")


@dataclass(frozen=True, kw_only=True)
class BcConfig(PretrainConfig):
    """Train an encoder to predict the logged action: behaviour cloning with a linear head.

    Example: pvn pretrain --method bc --data data/breakout --out runs/bc

    It learns what the policy that made the data looked at. From uniformly random actions there is nothing to learn.
    """

    method: Annotated[str, SUBJECT] = "bc"


@dataclass(frozen=True, kw_only=True)
class RewardConfig(PretrainConfig):
    """Train an encoder by offline Q-learning on the environment's rewards, which no other method sees.

    Example: pvn pretrain --method reward --data data/breakout --out runs/reward
    """

    presets: ClassVar[tuple[Presets, ...]] = (PRETRAIN, METHODS["reward"])

    method: Annotated[str, SUBJECT] = "reward"
    gamma: Annotated[float, RESULT, DISCOUNT] = PRESET
    """Discount factor."""
    clip_rewards: Annotated[bool, RESULT] = True
    """Learn from rewards clipped to [-1, 1]; no difference where the data set has clipped ones already."""
    double: Annotated[bool, RESULT] = True
    """Double Q-learning: the trained network chooses the next action, the target network values it."""
    huber: Annotated[bool, RESULT] = False
    """Huber loss in place of the squared error."""
    target_ema: Annotated[float, RESULT, DISCOUNT] = PRESET
    """Share of the target network that is kept in each step."""


@dataclass(frozen=True, kw_only=True)
class LaplacianConfig(PretrainConfig):
    """Train an encoder to span the smallest eigenvectors of the Laplacian: states that follow each other come close.

    Example: pvn pretrain --method laplacian --data data/breakout --out runs/laplacian
    """

    presets: ClassVar[tuple[Presets, ...]] = (PRETRAIN, METHODS["laplacian"])

    method: Annotated[str, SUBJECT] = "laplacian"
    dimensions: Annotated[int, RESULT, COUNT] = PRESET
    """Number of eigenvectors d."""
    beta: Annotated[float, RESULT, POSITIVE] = PRESET
    """Weight of the repulsion that keeps the d functions apart."""
    ahead: Annotated[float, RESULT, DISCOUNT] = PRESET
    """Share lambda by which ever later states count as following: 0 is the next one alone."""

    def __post_init__(self) -> None:
        super().__post_init__()
        good = self.batch_size is PRESET or self.batch_size >= 2
        require(good, "--batch-size", self.batch_size, "at least 2: the repulsion is between two states")


@dataclass(frozen=True, kw_only=True)
class PairsConfig(InverseConfig):
    """What methods share that keep d functions of the state orthonormal, by pairs of a batch's states."""

    dimensions: Annotated[int, RESULT, COUNT] = PRESET
    """Number of functions d."""
    orthonormality: Annotated[float, RESULT, NOT_NEGATIVE] = 1.0
    """Weight of what keeps the functions orthonormal over the data."""
    target_ema: Annotated[float, RESULT, DISCOUNT] = PRESET
    """Share of the target network that is kept in each step."""

    def __post_init__(self) -> None:
        super().__post_init__()
        good = self.batch_size is PRESET or self.batch_size >= 2
        require(good, "--batch-size", self.batch_size, "at least 2: orthonormality is of two states")


@dataclass(frozen=True, kw_only=True)
class ContrastiveConfig(PairsConfig):
    """Train an encoder to predict how often each state of the batch will be visited: the successor measure itself.

    Example: pvn pretrain --method contrastive --data data/breakout --out runs/contrastive
    """

    presets: ClassVar[tuple[Presets, ...]] = (PRETRAIN, METHODS["contrastive"])

    method: Annotated[str, SUBJECT] = "contrastive"
    gamma: Annotated[float, RESULT, DISCOUNT] = PRESET
    """Discount factor."""
    arrival: Annotated[Literal["yes", "no"], RESULT] = "no"
    """Whether the state that an action leads to counts first, in place of the one that it is taken in."""
    second_map: Annotated[SecondMap, RESULT] = "shared"
    """What the states that are visited are seen by: the same encoder, or one of their own."""


@dataclass(frozen=True, kw_only=True)
class RldpConfig(PairsConfig):
    """Train an encoder to predict its own latents, kept from collapse by orthonormality.

    Example: pvn pretrain --method rldp --data data/breakout --out runs/rldp
    """

    presets: ClassVar[tuple[Presets, ...]] = (PRETRAIN, METHODS["rldp"])

    method: Annotated[str, SUBJECT] = "rldp"
    ahead: Annotated[float, RESULT, DISCOUNT] = 0.0
    """Share by which ever later states are predicted in one go, as in BYOL-gamma; 0: step by step."""
    horizon: Annotated[int | None, RESULT, COUNT] = PRESET
    """Steps H that the latent model predicts; only with --ahead 0."""
    hidden: Annotated[int, RESULT, NOT_NEGATIVE] = PRESET
    """Units of the latent model's hidden layer; 0: it is linear for each action."""

    def dependent(self) -> dict[str, Only]:
        """Return what belongs to one of the two ways ahead."""
        return {"horizon": Only(self.ahead == 0, "it only with --ahead 0")}


@dataclass(frozen=True, kw_only=True)
class TdJepaConfig(PairsConfig):
    """Train an encoder to predict the successor features of a map that it learns, both orthonormal.

    Example: pvn pretrain --method tdjepa --data data/breakout --out runs/tdjepa
    """

    presets: ClassVar[tuple[Presets, ...]] = (PRETRAIN, METHODS["tdjepa"])

    method: Annotated[str, SUBJECT] = "tdjepa"
    gamma: Annotated[float, RESULT, DISCOUNT] = PRESET
    """Discount factor."""
    second_map: Annotated[SecondMap, RESULT] = "shared"
    """What the map whose successor features are learned sees by: the same encoder, or one of its own."""


@dataclass(frozen=True, kw_only=True)
class RandomConfig(PretrainConfig):
    """Write an encoder as it is initialised, without training it.

    Example: pvn pretrain --method random --env minatar/breakout --out runs/breakout-random
    """

    method: Annotated[str, SUBJECT] = "random"


CONFIGS: Mapping[str, type[PretrainConfig]] = {
    "pvn": PvnConfig,
    "cumulants": CumulantsConfig,
    "spr": SprConfig,
    "bc": BcConfig,
    "reward": RewardConfig,
    "laplacian": LaplacianConfig,
    "contrastive": ContrastiveConfig,
    "rldp": RldpConfig,
    "tdjepa": TdJepaConfig,
    "random": RandomConfig,
}
"""By the name of the method."""


def config_class(args: Sequence[str]) -> type[PretrainConfig]:
    """Choose the config dataclass by the command line's --method, so that only its own flags are accepted."""
    name = "pvn"
    for i, arg in enumerate(args):
        if arg == "--method" and i + 1 < len(args):
            name = args[i + 1]
        elif arg.startswith("--method="):
            name = arg.partition("=")[2]
    config: type[PretrainConfig] = CONFIGS[name] if name in CONFIGS else REGISTERED.load(name).Config
    return config
