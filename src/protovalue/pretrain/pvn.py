"""Proto-value networks: the encoder predicts the successor measure of random sets of states (Algorithm 1)."""

import logging
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protovalue.config import (
    COUNT,
    DISCOUNT,
    INNER_SHARE,
    INPUT,
    NOT_NEGATIVE,
    PLACE,
    PRESET,
    RESULT,
    TRAINING,
    Only,
    marked,
    require,
)
from protovalue.data.dataset import Dataset
from protovalue.indicators.precompute import IndicatorRewards, IndicatorSpec, indicator_rewards, save_indicator
from protovalue.own_options import OwnOptions
from protovalue.presets import METHODS, PRETRAIN, Presets
from protovalue.pretrain.base import Sample
from protovalue.pretrain.config import PretrainConfig
from protovalue.pretrain.holdout import compare_with_rollouts, open_holdout
from protovalue.pretrain.task_values import HeadStart, TaskValues
from protovalue.registry import is_file

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class PvnConfig(PretrainConfig):
    """Train a proto-value network: its encoder predicts how often random sets of states will be visited.

    Example: pvn pretrain --data data/breakout --out runs/breakout --tasks 100 --width 2

    The same command resumes an interrupted run. Other methods: --method cumulants, spr, bc, reward, laplacian, random.
    """

    presets: ClassVar[tuple[Presets, ...]] = (PRETRAIN, METHODS["pvn"])

    tasks: Annotated[int, RESULT, NOT_NEGATIVE] = PRESET
    """Number of auxiliary tasks m; 0 leaves the encoder as initialised."""
    indicator: Annotated[str, RESULT] = "rni"
    """What defines the sets: rni (random networks), hash, or a Python file of yours."""
    indicator_options: Annotated[OwnOptions, RESULT] = None
    """Options of an indicator of your own, such as latest_only=true (docs/adding-an-indicator.md)."""
    proportion: Annotated[float, RESULT, INNER_SHARE] = PRESET
    """Share p of states that each set holds."""
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
    gamma: Annotated[float, RESULT, DISCOUNT] = 0.99
    """Discount factor."""
    target_ema: Annotated[float | None, RESULT, DISCOUNT] = PRESET
    """Share of the target network that is kept in each step."""
    target_every: Annotated[int | None, RESULT, COUNT] = None
    """Copy the target network every so many steps, in place of the moving average."""
    head_start: Annotated[HeadStart, RESULT] = "zero"
    """Where the heads' biases start: at zero, or at the mean value of each task on the data."""
    terminal_mask: Annotated[Literal["yes", "no"], RESULT] = "yes"
    """Whether nothing follows the end of an episode; no is the paper's formula as it reads."""
    indicator_seed: Annotated[int | None, RESULT] = None
    """Seed of the sets [--seed]."""
    cache: Annotated[Path | None, PLACE] = None
    """Folder for the indicator rewards of a data set, which are computed once; None is the user's cache folder."""
    holdout: Annotated[tuple[Path, ...], INPUT] = ()
    """Data set of a random policy to compare the predictions with Monte Carlo estimates at the end."""

    def __post_init__(self) -> None:
        super().__post_init__()
        drawn = self.threshold == "sgd" and self.indicator == "hash"  # its sets have their share as they are drawn
        require(not drawn, "--threshold", "sgd with --indicator hash", "exact: a hash has no threshold to learn")

    def dependent(self) -> dict[str, Only]:
        """Return what belongs to one way to draw the sets, to find their thresholds, or to follow with the target."""
        rni, needs = self.indicator == "rni", "it only with --indicator rni"
        return {
            "indicator_options": Only(is_file(self.indicator), "it only with an indicator of your own"),
            "burn_in": Only(self.threshold == "sgd", "it only with --threshold sgd"),
            "normalize": Only(rni, needs, "no"),
            **{name: Only(rni, needs) for name in ("tasks_per_module", "rni_network", "rni_output")},
            "target_ema": Only(self.target_every is None, "either it or --target-every"),
        }


class ProtoValueNetwork(TaskValues):
    """The m tasks are indicators: r_j(x) = 1 where x is in the random set j. psi_j is its successor measure."""

    Config: ClassVar[type[PretrainConfig]] = PvnConfig
    config: PvnConfig

    @classmethod
    def unused(cls, config: PretrainConfig) -> set[str]:
        """Without tasks, name all that says what they are and how to train."""
        own = {field.name for field in fields(PvnConfig)} - {field.name for field in fields(PretrainConfig)}
        return (marked(PvnConfig, TRAINING) | own) - {"tasks"} if getattr(config, "tasks", None) == 0 else set()

    def __init__(
        self, config: PvnConfig, data: Dataset | None, observation_shape: tuple[int, ...], device: str
    ) -> None:
        super().__init__(config, data, observation_shape, device)
        if not config.tasks:
            return
        self.holdout = open_holdout(config.holdout, self.data) if config.holdout else None
        applying: dict[str, Any] = {
            "burn_in": config.burn_in,
            "tasks_per_module": config.tasks_per_module,
            "network": config.rni_network,
            "output": config.rni_output,
            "options": config.indicator_options,
        }
        spec = IndicatorSpec(
            config.indicator,
            config.tasks,
            config.proportion,
            seed=config.seed if config.indicator_seed is None else config.indicator_seed,
            threshold=config.threshold,
            normalize=config.normalize == "yes",
            **{name: value for name, value in applying.items() if value is not None},
        )
        self.tasks: IndicatorRewards = indicator_rewards(self.data, spec, config.cache, device)
        self.add_heads(
            config.tasks,
            config.gamma,
            config.backup,
            config.target_ema,
            config.target_every,
            config.head_start,
            mask=config.terminal_mask == "yes",
        )

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
        summary: dict[str, Any] = {
            "proportion_min": float(proportions.min()),
            "proportion_max": float(proportions.max()),
        }
        if self.holdout is not None:
            device = str(next(self.parameters()).device)
            correlation, predicted, seen = compare_with_rollouts(
                self.holdout,
                self.tasks.indicator.to(device).rewards,
                lambda obs, action: self.heads.taken(self.encoder(obs), action),
                self.config.gamma,
                device,
            )
            known = correlation[np.isfinite(correlation)]
            if not len(known):
                log.warning("--holdout: nothing to compare: of no task do both rewards and predictions vary there")
            summary["holdout_correlation_mean"] = float(known.mean()) if len(known) else None
            summary["holdout_correlation_min"] = float(known.min()) if len(known) else None
            summary["holdout_prediction_mean"] = float(predicted.mean())
            summary["holdout_rollout_mean"] = float(seen.mean())
            return {**summary, "holdout_correlation_per_task": correlation.tolist()}
        return summary


METHOD = ProtoValueNetwork
