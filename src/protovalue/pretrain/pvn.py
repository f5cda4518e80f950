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
from protovalue.pretrain.groups import Group
from protovalue.pretrain.holdout import compare_with_rollouts, open_holdout
from protovalue.pretrain.method_configs import PvnConfig
from protovalue.pretrain.task_values import TaskValues
from protovalue.randomness import part_seed

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
        groups = config.task_groups()
        self.sets = [
            _Sets(config, number, group, size, self.data, device) for number, (group, size) in enumerate(groups)
        ]
        self.add_heads(
            config,
            config.target_ema,
            config.target_every,
            config.head_start,
            mask=config.terminal_mask == "yes",
            scale={"none": None, "spread": self.spreads, "proportion": self._proportions}[config.scale_errors],
        )

    def steps(self) -> int:
        """Return the number of gradient steps; none without tasks."""
        return super().steps() if self.config.tasks else 0

    def rewards(self, index: NDArray[Any]) -> NDArray[Any]:
        """Return r_j(x) of the given transitions (B, m)."""
        return np.concatenate([one.rewards(index) for one in self.sets], axis=1)

    def _proportions(self) -> NDArray[np.float64]:
        """Return the share of the data set's states that each set holds (m,)."""
        return np.concatenate([one.proportions for one in self.sets])

    def noted(self, reward: Tensor) -> dict[str, Tensor]:
        """Return the share of rewards that are 1."""
        return {"indicator_proportion": reward.to(torch.float32).mean()}

    def save_artifacts(self, folder: Path) -> None:
        """Keep the indicators with the run, so that any frame's rewards can be computed again."""
        for number, one in enumerate(self.sets if self.config.tasks else []):
            if one.found is not None:
                save_indicator(one.found.indicator, folder / (f"indicator-{number + 1}" if number else "indicator"))

    @torch.inference_mode()
    def finish(self) -> dict[str, Any]:
        """Return the achieved proportions, and how well the predictions agree with held-out rollouts."""
        if not self.config.tasks:
            return {}
        proportions = self._proportions()
        summary: dict[str, Any] = {
            "proportion_min": float(proportions.min()),
            "proportion_max": float(proportions.max()),
        }
        if self.holdout is not None:
            device = str(next(self.parameters()).device)
            correlation, predicted, seen = compare_with_rollouts(
                self.holdout,
                lambda obs: torch.cat([one.along(obs) for one in self.sets], dim=1),
                lambda obs, action: self.heads.taken(self.encoder(obs), action),
                self._gamma,
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


class _Sets:
    """The sets of one group of tasks on a data set; of all states where the group's proportion is 1."""

    found: IndicatorRewards | None = None

    def __init__(self, config: PvnConfig, number: int, group: Group, size: int, data: Dataset, device: str) -> None:
        self.size = size
        self._arrival, self._changes = (config.of_group(group, name) == "yes" for name in ("arrival", "changes"))
        self.proportions = np.ones(size)
        if group.is_lifetime:
            return
        kind = config.of_group(group, "indicator")
        applying: dict[str, Any] = {
            "burn_in": config.burn_in,
            "options": config.indicator_options if kind == config.indicator else None,
            **({"tasks_per_module": config.tasks_per_module} if kind == "rni" else {}),
            **({"network": config.rni_network, "output": config.rni_output} if kind == "rni" else {}),
        }
        spec = IndicatorSpec(
            kind,
            size,
            config.of_group(group, "proportion"),
            seed=part_seed(config.seed if config.indicator_seed is None else config.indicator_seed, number),
            threshold=config.threshold,
            normalize=config.normalize == "yes" and kind == "rni",
            arrival=self._arrival,
            changes=self._changes,
            **{name: value for name, value in applying.items() if value is not None},
        )
        self.found = indicator_rewards(data, spec, config.cache, device)
        self.proportions = self.found.proportions

    def rewards(self, index: NDArray[Any]) -> NDArray[np.bool_]:
        """Return the rewards of the given transitions (B, size)."""
        return np.ones((len(index), self.size), bool) if self.found is None else self.found.rewards(index)

    def along(self, obs: Tensor) -> Tensor:
        """Return the rewards (N - 1, size) of the transitions between successive observations (N, *shape)."""
        if self.found is None:
            return torch.ones(len(obs) - 1, self.size, dtype=torch.bool, device=obs.device)
        indicator = self.found.indicator.to(obs.device)
        if self._changes:
            return indicator.scores(obs).diff(dim=0) >= indicator.thresholds
        return indicator.rewards(obs[1:] if self._arrival else obs[:-1])


METHOD = ProtoValueNetwork
