"""Proto-value networks: the encoder predicts the successor measure of random sets of states (Algorithm 1)."""

import logging
from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protovalue.config import TRAINING, marked
from protovalue.data.dataset import Dataset
from protovalue.indicators.precompute import IndicatorRewards, IndicatorSpec, indicator_rewards, save_indicator
from protovalue.pretrain.config import PretrainConfig
from protovalue.pretrain.holdout import compare_with_rollouts, open_holdout
from protovalue.pretrain.method_configs import PvnConfig
from protovalue.pretrain.task_values import TaskValues

log = logging.getLogger(__name__)


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

    def noted(self, reward: Tensor) -> dict[str, Tensor]:
        """Return the share of rewards that are 1."""
        return {"indicator_proportion": reward.to(torch.float32).mean()}

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
