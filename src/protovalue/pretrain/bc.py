"""Behaviour cloning: the encoder learns to tell which action the data's policy took."""

from typing import ClassVar

import torch
from torch import Tensor

from protovalue.data.dataset import Dataset
from protovalue.distributed.group import gathered
from protovalue.losses import cloning_loss
from protovalue.nets.layers import Dense
from protovalue.pretrain.base import Method, Sample
from protovalue.pretrain.config import PretrainConfig
from protovalue.pretrain.method_configs import BcConfig
from protovalue.randomness import Purpose, seeded


class BehaviourCloning(Method):
    """Scores phi(x)^T w_a + b_a of each action, trained by cross-entropy on the logged one."""

    Config: ClassVar[type[PretrainConfig]] = BcConfig
    several_processes = True
    # No presets of its own: it has no settings beyond the encoder, the steps and the optimiser that all methods share.

    def __init__(self, config: BcConfig, data: Dataset | None, observation_shape: tuple[int, ...], device: str) -> None:
        super().__init__(config, data, observation_shape, device)
        self.head = Dense(self.encoder.num_features, self.data.num_actions, seeded(config.seed, Purpose.METHOD))

    def sample(self, step: int) -> Sample:
        """Return observations and the actions taken."""
        batch = self.sampler.batch(step)
        return {"obs": torch.from_numpy(batch.obs), "action": torch.from_numpy(batch.action)}

    def loss(self, sample: Sample) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the mean cross-entropy."""
        scores, action = gathered(self.head(self.encoder(sample["obs"])), sample["action"])  # (B, A), (B,)
        right = scores.detach().argmax(dim=1) == action
        return cloning_loss(scores, action).mean(), {"accuracy": right.to(torch.float32).mean()}


METHOD = BehaviourCloning
