"""Successor features of a learned map: latent prediction by temporal differences (TD-JEPA, 2025, without policies)."""

from typing import ClassVar

import torch
from torch import Tensor

from protovalue.data.dataset import Dataset
from protovalue.distributed.group import gathered
from protovalue.losses import orthonormality_loss, prediction_loss
from protovalue.pretrain.base import Method, Sample, transitions
from protovalue.pretrain.config import PretrainConfig
from protovalue.pretrain.maps import StateMap, linear_heads, linear_map
from protovalue.pretrain.method_configs import TdJepaConfig
from protovalue.pretrain.target import TargetNetwork
from protovalue.randomness import Purpose, seeded


class TdJepa(Method):
    """f(x) = W phi(x) and psi(x) are kept orthonormal; T(f(x), a) = U_a f(x) learns the successor features of psi.

    T(f(x), a) = E [ psi(x') + gamma (1 - z) mean over a' of T(f(x'), a') ].
    """

    Config: ClassVar[type[PretrainConfig]] = TdJepaConfig
    several_processes = True
    config: TdJepaConfig

    def __init__(
        self, config: TdJepaConfig, data: Dataset | None, observation_shape: tuple[int, ...], device: str
    ) -> None:
        super().__init__(config, data, observation_shape, device)
        draw, d = seeded(config.seed, Purpose.METHOD), config.dimensions
        self.state_map = linear_map(self.encoder.num_features, d, draw)
        self.heads = linear_heads(d, d, self.data.num_actions, draw)
        self.task_map = StateMap(config.second_map, d, self.encoder, config, draw)
        followed = {
            "encoder": self.encoder, "state_map": self.state_map, "heads": self.heads, "task_map": self.task_map
        }  # fmt: skip
        self.target = TargetNetwork(followed, config.target_ema)

    def sample(self, step: int) -> Sample:
        """Return transitions."""
        return transitions(self.sampler.batch(step))

    def loss(self, sample: Sample) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the squared error of the successor features, and how far f and psi are from orthonormal."""
        config, target = self.config, self.target
        obs, next_obs = sample["frames"][:, :-1], sample["frames"][:, 1:]
        features = self.encoder(obs)
        state, task = self.state_map(features), self.task_map(features, obs)  # f(x) and psi(x), (B, d)
        prediction = self.heads.taken(state, sample["action"])
        with torch.no_grad():
            behind = target["encoder"](next_obs)
            going_on = (~sample["terminal"]).to(prediction.dtype).unsqueeze(1)
            following = target["heads"].mean(target["state_map"](behind))
            expected = target["task_map"](behind, next_obs) + config.gamma * going_on * following
        prediction, expected, state, task = gathered(prediction, expected, state, task)
        error = prediction_loss(prediction, expected)
        of_states, of_tasks = orthonormality_loss(state), orthonormality_loss(task)
        logged = {
            "prediction_loss": error.detach(),
            "orthonormality": of_states.detach(),
            "orthonormality_of_tasks": of_tasks.detach(),
        }
        found = (error + config.orthonormality * (of_states + of_tasks), logged)
        return self.with_inverse(found, features, next_obs, sample["action"])

    def after_step(self) -> None:
        """Let the target follow."""
        self.target.follow()


METHOD = TdJepa
