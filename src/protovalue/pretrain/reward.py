"""The oracle: offline double DQN on the data's own, clipped rewards. What a representation with rewards would give."""

from typing import ClassVar

import torch
from torch import Tensor

from protovalue.data.dataset import Dataset
from protovalue.distributed.group import gathered
from protovalue.losses import q_loss, q_target
from protovalue.nets.heads import TaskHeads
from protovalue.pretrain.base import Method, Sample, transitions
from protovalue.pretrain.config import PretrainConfig
from protovalue.pretrain.method_configs import RewardConfig
from protovalue.pretrain.target import TargetNetwork
from protovalue.randomness import Purpose, seeded


class EnvironmentReward(Method):
    """Q(x, a) = phi(x)^T w_a + b_a, one task whose reward is the environment's."""

    Config: ClassVar[type[PretrainConfig]] = RewardConfig
    several_processes = True
    config: RewardConfig

    def __init__(
        self, config: RewardConfig, data: Dataset | None, observation_shape: tuple[int, ...], device: str
    ) -> None:
        super().__init__(config, data, observation_shape, device)
        self.head = TaskHeads(self.encoder.num_features, 1, self.data.num_actions, seeded(config.seed, Purpose.METHOD))
        self.target = TargetNetwork({"encoder": self.encoder, "head": self.head}, config.target_ema)

    def sample(self, step: int) -> Sample:
        """Return transitions with the logged rewards."""
        return transitions(self.sampler.batch(step))

    def loss(self, sample: Sample) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the mean loss of the Q-learning errors."""
        config, reward = self.config, sample["reward"]
        obs, next_obs = sample["frames"][:, :-1], sample["frames"][:, 1:]
        value = self.head.taken(self.encoder(obs), sample["action"]).squeeze(1)  # (B,)
        with torch.no_grad():
            target_next = self.target["head"].all_actions(self.target["encoder"](next_obs)).squeeze(1)  # (B, A)
            online_next = self.head.all_actions(self.encoder(next_obs)).squeeze(1) if config.double else None
        clipped = reward.clamp(-1.0, 1.0) if config.clip_rewards else reward
        discount = config.gamma * (~sample["terminal"]).to(reward.dtype)
        target = q_target(clipped, discount, target_next, online_next)
        value, target, clipped = gathered(value, target, clipped)
        logged = {
            "td_error_std": (target - value).detach().std(),
            "prediction_mean": value.detach().mean(),
            "reward_mean": clipped.mean(),
        }
        return q_loss(value, target, config.huber).mean(), logged

    def after_step(self) -> None:
        """Let the target follow."""
        self.target.follow()


METHOD = EnvironmentReward
