"""Proto-value networks: the encoder predicts the successor measure of random sets of states (Algorithm 1)."""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protovalue.config import flag, require
from protovalue.data.dataset import Dataset, open_dataset
from protovalue.indicators.precompute import IndicatorRewards, IndicatorSpec, indicator_rewards, save_indicator
from protovalue.pretrain.base import Sample
from protovalue.pretrain.config import TRAINING, PretrainConfig
from protovalue.pretrain.holdout import compare_with_rollouts
from protovalue.pretrain.task_values import TaskValues


@dataclass(frozen=True, kw_only=True)
class PvnConfig(PretrainConfig):
    """Train a proto-value network: its encoder predicts how often random sets of states will be visited.

    Example: pvn pretrain --data data/breakout --out runs/breakout --tasks 100 --width 2

    The same command resumes an interrupted run. Other methods: --method cumulants, spr, bc, reward, laplacian, random.
    """

    tasks: int | None = None
    """Number of auxiliary tasks m; 0 leaves the encoder as initialised [100; small MinAtar 50]."""
    indicator: str = "rni"
    """What defines the sets: rni (random networks), hash, or a Python file of yours."""
    proportion: float | None = None
    """Share p of states that each set holds [0.01; small MinAtar 0.05]."""
    threshold: Literal["exact", "sgd"] = "exact"
    """How the sets get their share: exact quantiles, or the paper's quantile regression."""
    burn_in: int | None = None
    """Steps of quantile regression; only with --threshold sgd [62,500]."""
    normalize: Literal["yes", "no"] | None = None
    """Normalise the random networks' input per channel over the data set; only with rni [paper no, small yes]."""
    tasks_per_module: int | None = None
    """Tasks that share one random network; only with rni [10]."""
    rni_network: Literal["dqn", "convolutions"] | None = None
    """Random networks: a whole DQN network, or its convolutions alone as in the paper's code; only with rni [dqn]."""
    rni_output: Literal["linear", "relu"] | None = None
    """Their outputs: linear, or through a ReLU as in the paper's code; only with rni [linear]."""
    backup: Literal["mean", "max"] = "mean"
    """Over next actions: the mean learns the random policy's values, the maximum the optimal one's."""
    gamma: float = 0.99
    """Discount factor."""
    target_ema: float | None = None
    """Share of the target network that is kept in each step [0.99; small MinAtar 0.95]."""
    target_every: int | None = None
    """Copy the target network every so many steps, in place of the moving average."""
    indicator_seed: int | None = None
    """Seed of the sets [--seed]."""
    cache: Path | None = None
    """Folder for the indicator rewards of a data set, which are computed once; None is the user's cache folder."""
    holdout: tuple[Path, ...] = ()
    """Data set of a random policy to compare the predictions with Monte Carlo estimates at the end."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.tasks is None or self.tasks >= 0, "--tasks", self.tasks, "0 or more")
        good = self.proportion is None or 0 < self.proportion < 1
        require(good, "--proportion", self.proportion, "more than 0 and less than 1")
        require(0 <= self.gamma < 1, "--gamma", self.gamma, "at least 0 and less than 1")
        good = self.target_ema is None or 0 <= self.target_ema < 1
        require(good, "--target-ema", self.target_ema, "at least 0 and less than 1")
        for name in ("target_every", "burn_in", "tasks_per_module"):
            value = getattr(self, name)
            require(value is None or value >= 1, flag(name), value, "at least 1")
        sgd, rni = self.threshold == "sgd", self.indicator == "rni"
        drawn = sgd and self.indicator == "hash"  # its sets have their share as they are drawn
        require(not drawn, "--threshold", "sgd with --indicator hash", "exact: a hash has no threshold to learn")
        require(sgd or self.burn_in is None, "--burn-in", self.burn_in, "it only with --threshold sgd")
        require(rni or self.normalize in (None, "no"), "--normalize", self.normalize, "it only with --indicator rni")
        for name in ("tasks_per_module", "rni_network", "rni_output"):
            value = getattr(self, name)
            good = rni or value is None
            require(good, flag(name), value, "it only with --indicator rni")
        good = self.target_every is None or self.target_ema is None
        require(good, "--target-every", self.target_every, "either it or --target-ema")


class ProtoValueNetwork(TaskValues):
    """The m tasks are indicators: r_j(x) = 1 where x is in the random set j. psi_j is its successor measure."""

    Config: ClassVar[type[PretrainConfig]] = PvnConfig
    presets: ClassVar[dict[tuple[str, str], dict[str, Any]]] = {
        ("paper", "*"): {"tasks": 100, "proportion": 0.01, "target_ema": 0.99, "normalize": "no"},
        ("small", "*"): {"tasks": 100, "proportion": 0.01, "target_ema": 0.99, "normalize": "yes"},
        ("small", "minatar"): {"tasks": 50, "proportion": 0.05, "target_ema": 0.95, "normalize": "yes"},
    }
    config: PvnConfig

    @classmethod
    def resolve(cls, config: PretrainConfig, env_id: str) -> PretrainConfig:
        """Fill the fields left at None from the preset, but for those that do not apply."""
        assert isinstance(config, PvnConfig)
        every = config.target_every
        rni, sgd = config.indicator == "rni", config.threshold == "sgd"
        filled = super().resolve(
            replace(config, target_every=None, normalize=config.normalize if rni else "no"), env_id
        )
        assert isinstance(filled, PvnConfig)
        return replace(
            filled,
            target_every=every,
            target_ema=None if every else filled.target_ema,
            burn_in=(config.burn_in or 62_500) if sgd else None,
            tasks_per_module=(config.tasks_per_module or 10) if rni else None,
            rni_network=(config.rni_network or "dqn") if rni else None,
            rni_output=(config.rni_output or "linear") if rni else None,
        )

    @classmethod
    def unused(cls, config: PretrainConfig) -> tuple[str, ...]:
        """Without tasks, name all that says what they are and how to train."""
        own = {field.name for field in fields(PvnConfig)} - {field.name for field in fields(PretrainConfig)}
        return (*TRAINING, *(own - {"tasks"})) if getattr(config, "tasks", None) == 0 else ()

    def __init__(
        self, config: PvnConfig, data: Dataset | None, observation_shape: tuple[int, ...], device: str
    ) -> None:
        super().__init__(config, data, observation_shape, device)
        if not config.tasks:
            return
        assert config.proportion is not None
        spec = IndicatorSpec(
            config.indicator,
            config.tasks,
            config.proportion,
            config.seed if config.indicator_seed is None else config.indicator_seed,
            config.threshold,
            config.burn_in or 62_500,
            config.normalize == "yes",
            config.tasks_per_module or 10,
            config.rni_network or "dqn",
            config.rni_output or "linear",
        )
        self.tasks: IndicatorRewards = indicator_rewards(self.data, spec, config.cache, device)
        self.add_heads(config.tasks, config.gamma, config.backup, config.target_ema, config.target_every)

    def steps(self) -> int:
        """Return the number of gradient steps; none without tasks."""
        return super().steps() if self.config.tasks else 0

    def rewards(self, index: NDArray[Any]) -> NDArray[Any]:
        """Return r_j(x) of the given transitions (B, m)."""
        return self.tasks.rewards(index)

    def loss(self, sample: Sample) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the squared TD error of all tasks."""
        loss, logged = super().loss(sample)
        return loss, {**logged, "indicator_proportion": sample["reward"].to(torch.float32).mean()}

    def save_artifacts(self, folder: Path) -> None:
        """Keep the indicators with the run, so that any frame's rewards can be computed again."""
        if self.config.tasks:
            save_indicator(self.tasks.indicator, folder / "indicator")

    @torch.inference_mode()
    def finish(self) -> dict[str, Any]:
        """Return the achieved proportions, and how well the predictions agree with held-out rollouts."""
        if not self.config.tasks:
            return {}
        proportions = self.tasks.proportions
        summary = {"proportion_min": float(proportions.min()), "proportion_max": float(proportions.max())}
        if self.config.holdout:
            device = str(next(self.parameters()).device)
            correlation, predicted, seen = compare_with_rollouts(
                open_dataset(*self.config.holdout),
                self.tasks.indicator.to(device).rewards,
                lambda obs, action: self.heads.taken(self.encoder(obs), action),
                self.config.gamma,
                device,
            )
            summary["holdout_correlation_mean"] = float(np.nanmean(correlation))
            summary["holdout_correlation_min"] = float(np.nanmin(correlation))
            summary["holdout_prediction_mean"] = float(predicted.mean())
            summary["holdout_rollout_mean"] = float(seen.mean())
            return {**summary, "holdout_correlation_per_task": correlation.tolist()}
        return summary


METHOD = ProtoValueNetwork
