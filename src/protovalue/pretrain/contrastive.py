"""The successor measure with the batch's states as tasks: forward-backward without policies (Touati, Ollivier 2021)."""

from typing import ClassVar

import torch
from torch import Tensor

from protovalue.data.dataset import Dataset
from protovalue.distributed.group import gathered
from protovalue.losses import measure_loss, orthonormality_loss
from protovalue.pretrain.base import Method, Sample, transitions
from protovalue.pretrain.config import PretrainConfig
from protovalue.pretrain.maps import StateMap, linear_heads
from protovalue.pretrain.method_configs import ContrastiveConfig
from protovalue.pretrain.target import TargetNetwork
from protovalue.randomness import Purpose, seeded


class Contrastive(Method):
    """M(x, a, y) = F(x, a)^T B(y), F(x, a) = W_a phi(x): the density of the successor measure with respect to the data.

    Where proto-value networks have some random sets of states as tasks, here every state y of the batch is one. B is
    kept orthonormal over the data, so that F is what the density is projected to: successor features of B.
    """

    Config: ClassVar[type[PretrainConfig]] = ContrastiveConfig
    several_processes = True
    config: ContrastiveConfig

    def __init__(
        self, config: ContrastiveConfig, data: Dataset | None, observation_shape: tuple[int, ...], device: str
    ) -> None:
        super().__init__(config, data, observation_shape, device)
        draw, d = seeded(config.seed, Purpose.METHOD), config.dimensions
        self.forward_heads = linear_heads(self.encoder.num_features, d, self.data.num_actions, draw)
        self.backward_map = StateMap(config.second_map, d, self.encoder, config, draw)
        followed = {"encoder": self.encoder, "heads": self.forward_heads, "map": self.backward_map}
        self.target = TargetNetwork(followed, config.target_ema)

    def sample(self, step: int) -> Sample:
        """Return transitions."""
        return transitions(self.sampler.batch(step))

    def loss(self, sample: Sample) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of the measure and of B's orthonormality."""
        config, target = self.config, self.target
        obs, next_obs = sample["frames"][:, :-1], sample["frames"][:, 1:]
        arrival = config.arrival == "yes"
        features = self.encoder(obs)
        y = next_obs if arrival else obs
        shared = config.second_map == "shared"
        counted = self.encoder(next_obs) if shared and arrival else features
        forward = self.forward_heads.taken(features, sample["action"])  # F(x, a), (B, d)
        backward = self.backward_map(counted, y)  # B(y), (B, d)
        with torch.no_grad():
            next_features = target["encoder"](next_obs)
            behind = target["encoder"](obs) if shared and not arrival else next_features
            next_forward, next_backward = target["heads"].mean(next_features), target["map"](behind, y)
        forward, backward, next_forward, next_backward, terminal = gathered(  # all pairs, across processes too
            forward, backward, next_forward, next_backward, sample["terminal"]
        )
        measure, next_measure = forward @ backward.T, next_forward @ next_backward.T  # (B, B)
        fit = measure_loss(measure, next_measure, terminal, config.gamma)
        orthonormality = orthonormality_loss(backward)
        logged = {
            "measure_loss": fit.detach(),
            "orthonormality": orthonormality.detach(),
            "measure_of_own_state": measure.detach().diagonal().mean(),
            "measure_mean": measure.detach().mean(),
        }
        found = (fit + config.orthonormality * orthonormality, logged)
        return self.with_inverse(found, features, next_obs, sample["action"])

    def after_step(self) -> None:
        """Let the target follow."""
        self.target.follow()


METHOD = Contrastive
