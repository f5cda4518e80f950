"""Latent prediction kept from collapse by orthonormality: some steps ahead (RLDP), or one drawn later (BYOL-gamma)."""

from typing import ClassVar

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from protovalue.data.dataset import Dataset
from protovalue.distributed.group import gathered
from protovalue.losses import orthonormality_loss, prediction_loss
from protovalue.nets.heads import TaskHeads
from protovalue.nets.layers import Dense
from protovalue.pretrain.base import Method, Sample
from protovalue.pretrain.config import PretrainConfig
from protovalue.pretrain.laplacian import steps_ahead
from protovalue.pretrain.maps import linear_heads, linear_map
from protovalue.pretrain.method_configs import RldpConfig
from protovalue.pretrain.target import TargetNetwork
from protovalue.randomness import Purpose, generator_at, seeded


class LatentModel(nn.Module):
    """P(u, a): what the latents will be, by a layer of hidden units that sees u and one input for each action."""

    def __init__(self, dimensions: int, num_actions: int, hidden: int, generator: torch.Generator) -> None:
        super().__init__()
        self.num_actions = num_actions
        self.hidden = Dense(dimensions + num_actions, hidden, generator)
        self.out = Dense(hidden, dimensions, generator)

    def taken(self, u: Tensor, action: Tensor) -> Tensor:
        """Map latents (B, d) and actions (B,) to latents (B, d)."""
        x = torch.cat([u, F.one_hot(action, self.num_actions).to(u.dtype)], dim=1)
        found: Tensor = self.out(F.relu(self.hidden(x)))
        return found


class LatentPrediction(Method):
    """f(x) = W phi(x), d functions that are kept orthonormal over the data, and a model of how they go on.

    Unrolled, u_0 = f(x_0) and u_h = P(u_{h-1}, a_{h-1}) is to be f^-(x_h) for h = 1 ... H. With `ahead`, P(f(x), a) is
    to be f^- of one later state, as in BYOL-gamma. Without the orthonormality a constant f would do.
    """

    Config: ClassVar[type[PretrainConfig]] = RldpConfig
    several_processes = True
    config: RldpConfig

    def __init__(
        self, config: RldpConfig, data: Dataset | None, observation_shape: tuple[int, ...], device: str
    ) -> None:
        super().__init__(config, data, observation_shape, device)
        draw, d = seeded(config.seed, Purpose.METHOD), config.dimensions
        self.state_map = linear_map(self.encoder.num_features, d, draw)
        actions = self.data.num_actions
        self.model: LatentModel | TaskHeads = (
            LatentModel(d, actions, config.hidden, draw) if config.hidden else linear_heads(d, d, actions, draw)
        )
        self.target = TargetNetwork({"encoder": self.encoder, "state_map": self.state_map}, config.target_ema)

    def sample(self, step: int) -> Sample:
        """Return segments of H steps; or transitions and, of each, a later state."""
        config, data, sampler = self.config, self.data, self.sampler
        if config.horizon is not None:
            found = sampler.segments(step, config.horizon)
            frames, action, valid = found.frames, found.action, found.valid
            return {
                "frames": torch.from_numpy(frames),
                "action": torch.from_numpy(action),
                "valid": torch.from_numpy(valid),
            }
        batch = sampler.batch(step)
        episode, at = data.locate(batch.index)
        uniform = generator_at(config.seed, Purpose.AHEAD, step).random(sampler.batch_size)[sampler.rows]
        later = at + steps_ahead(uniform, data.lengths[episode] - at, config.ahead)
        seen = data.windows(episode, later - data.stack + 1, data.stack)
        return {
            "frames": torch.from_numpy(batch.frames),
            "action": torch.from_numpy(batch.action[:, None]),
            "valid": torch.ones(len(batch.action), 1, dtype=torch.bool),
            "later": torch.from_numpy(seen),
        }

    def sample_bytes(self) -> int:
        """Return the memory of the segments, or of transitions and later states."""
        stack, horizon = self.data.stack, self.config.horizon
        frames = stack + horizon if horizon is not None else 2 * stack + 1
        return self.sampler.num_rows * frames * self.data.frame_bytes

    def loss(self, sample: Sample) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the error of the predictions, and how far f is from orthonormal."""
        frames, stack, valid = sample["frames"], self.data.stack, sample["valid"]
        features = self.encoder(frames[:, :stack])
        u = first = self.state_map(features)  # (B, d)
        expected, seen = [], []
        for h in range(valid.shape[1]):
            u = self.model.taken(u, sample["action"][:, h])
            expected.append(u)
            obs = sample["later"] if "later" in sample else frames[:, h + 1 : h + 1 + stack]
            with torch.no_grad():
                seen.append(self.target["state_map"](self.target["encoder"](obs)))
        both = torch.stack(expected, 1), torch.stack(seen, 1)  # (B, H, d)
        prediction, target, valid, first = gathered(*both, valid, first)
        error, orthonormality = prediction_loss(prediction, target, valid), orthonormality_loss(first)
        with torch.no_grad():  # another segment's states as targets: if they do as well, all states look the same
            others = prediction_loss(prediction, target.roll(1, 0), valid & valid.roll(1, 0))
        logged = {
            "prediction_loss": error.detach(),
            "loss_of_other_states": others,
            "orthonormality": orthonormality.detach(),
        }
        found = (error + self.config.orthonormality * orthonormality, logged)
        return self.with_inverse(found, features, frames[:, 1 : 1 + stack], sample["action"][:, 0])

    def after_step(self) -> None:
        """Let the target follow."""
        self.target.follow()


METHOD = LatentPrediction
