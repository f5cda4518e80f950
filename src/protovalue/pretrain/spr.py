"""Self-predictive representations: a latent model predicts what the encoder will see (Schwarzer et al., 2021)."""

from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from protovalue.data.dataset import Dataset
from protovalue.distributed.group import gathered
from protovalue.losses import latent_loss
from protovalue.nets.batch_norm import BatchNorm
from protovalue.nets.encoders import Encoder
from protovalue.nets.layers import Conv, Dense, flatten, planes, renormalize, scaled
from protovalue.pretrain.base import Method, Sample
from protovalue.pretrain.config import PretrainConfig
from protovalue.pretrain.method_configs import SprConfig
from protovalue.pretrain.target import TargetNetwork
from protovalue.randomness import Purpose, generator_at, seeded


class Transition(nn.Module):
    """The latent model: (z, a) to the latents of the next step.

    Convolution 3x3 over z and one plane per action, ReLU, batch normalisation, convolution 3x3, ReLU, scaled to [0, 1].
    """

    def __init__(self, channels: int, num_actions: int, hidden: int, generator: torch.Generator) -> None:
        super().__init__()
        self.num_actions = num_actions
        self.first = Conv(channels + num_actions, hidden, 3, 1, generator)
        self.norm = BatchNorm(hidden)
        self.second = Conv(hidden, channels, 3, 1, generator)

    def forward(self, z: Tensor, action: Tensor) -> Tensor:
        """Map latents (N, C, H, W) and actions (N,) to latents (N, C, H, W)."""
        one_hot = F.one_hot(action, self.num_actions).to(z.dtype)  # (N, A)
        acting = one_hot[:, :, None, None].expand(-1, -1, *z.shape[2:])
        x = torch.cat([z, acting], dim=1).contiguous(memory_format=torch.channels_last)
        x = F.relu(self.second(self.norm(F.relu(self.first(x)))))
        return _as_planes(renormalize(flatten(x)), z.shape[1:])


class SelfPredictive(Method):
    """Online: z_0 = conv(x_0), z_k = transition(z_{k-1}, a_{k-1}), prediction q(dense(z_k)) of dense^-(conv^-(x_k)).

    The encoder's own dense layer is the projection: without a ReLU, of latents scaled to [0, 1]. This is what is kept
    (readout "projection"), so that the encoder has the size and the initial weights of every other method's.
    """

    Config: ClassVar[type[PretrainConfig]] = SprConfig
    several_processes = True
    config: SprConfig

    def __init__(
        self, config: SprConfig, data: Dataset | None, observation_shape: tuple[int, ...], device: str
    ) -> None:
        super().__init__(config, data, observation_shape, device)
        self.max_gradient_norm = config.max_gradient_norm
        draw = seeded(config.seed, Purpose.METHOD)
        self.encoder.readout = "normalized projection" if config.layer_norm else "projection"
        features, channels = self.encoder.num_features, self.encoder.latent_shape[0]
        self.transition = Transition(channels, self.data.num_actions, scaled(config.channels, config.width), draw)
        self.predictor = Dense(features, features, draw)
        self.target = TargetNetwork({"encoder": self.encoder}, config.target_ema)

    def sample(self, step: int) -> Sample:
        """Return segments, and the random numbers of their augmentation."""
        config = self.config
        segments, rows = self.sampler.segments(step, config.horizon), self.sampler.rows
        rng = generator_at(config.seed, Purpose.AUGMENTATION, step)  # drawn for the whole batch, whoever has which row
        size = (self.sampler.batch_size, config.horizon + 1)  # each observation has its own
        sample = {
            "frames": torch.from_numpy(segments.frames),
            "action": torch.from_numpy(segments.action),
            "valid": torch.from_numpy(segments.valid),
        }
        if config.shift:
            shift = rng.integers(-config.shift, config.shift, (*size, 2), endpoint=True)
            sample["shift"] = torch.from_numpy(shift[rows])
        if config.intensity:
            noise = np.clip(rng.standard_normal(size, np.float32), -2, 2)
            sample["factor"] = torch.from_numpy(1 + np.float32(config.intensity) * noise[rows])
        if config.dropout:
            latents = int(np.prod(self.encoder.latent_shape))
            sample["kept"] = torch.from_numpy(rng.random((size[0], latents), np.float32)[rows] >= config.dropout)
        return sample

    def sample_bytes(self) -> int:
        """Return the memory of the segments."""
        return self.sampler.num_rows * (self.data.stack + self.config.horizon) * self.data.frame_bytes

    def loss(self, sample: Sample) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the mean distance of predicted and seen projections."""
        with self.encoder.autocast():
            first, expected, targets = self._projections(sample)
        prediction = torch.stack([self.predictor(y.to(torch.float32)) for y in expected], 1)  # (B, K, n)
        seen = torch.stack(targets, 1).to(torch.float32)
        prediction, seen, valid = gathered(prediction, seen, sample["valid"])
        if self.config.center == "yes":
            prediction, seen = centered(prediction, valid), centered(seen, valid)
        loss = latent_loss(prediction, seen, valid)
        with torch.no_grad():  # another segment's states as targets: if they do as well, all states look the same
            others = latent_loss(prediction, seen.roll(1, 0), valid & valid.roll(1, 0))
            last = latent_loss(prediction[:, -1:], seen[:, -1:], valid[:, -1:])
        found = (loss, {"loss_of_last_step": last, "loss_of_other_states": others})
        next_obs = sample["frames"][:, 1 : 1 + self.data.stack]
        return self.with_inverse(found, self._features(first), next_obs, sample["action"][:, 0])

    def after_step(self) -> None:
        """Let the target follow."""
        self.target.follow()

    def _features(self, latents: Tensor) -> Tensor:
        """Return the features of latents (B, H * W * C), where inverse dynamics needs them."""
        if self.inverse is None:
            return latents
        with self.encoder.autocast():
            return self.encoder.project(latents).to(torch.float32)

    def _projections(self, sample: Sample) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Return the first latents, and the projections (B, n) that the model expects and that the target sees."""
        steps = range(1, self.config.horizon + 1)
        z = first = self._latents(self.encoder, sample, 0)  # (B, H * W * C)
        if "kept" in sample:
            z = z * sample["kept"] / (1 - (self.config.dropout or 0.0))
        z = _as_planes(z, self.encoder.latent_shape)
        expected = []
        for k in steps:
            z = self.transition(z, sample["action"][:, k - 1])
            expected.append(self.encoder.project(flatten(z)))
        with torch.no_grad():
            target = self.target["encoder"]
            seen = [target.project(self._latents(target, sample, k)) for k in steps]
        return first, expected, seen

    def _latents(self, encoder: Encoder, sample: Sample, k: int) -> Tensor:
        """Return the latents of the augmented observation x_k, (B, H * W * C)."""
        obs = sample["frames"][:, k : k + self.data.stack]
        if "shift" in sample:
            obs = shifted(obs, sample["shift"][:, k])
        x = planes(obs, encoder.observation_shape)
        if "factor" in sample:
            x = x * sample["factor"][:, k, None, None, None]
        return renormalize(encoder.convolve(x))


def shifted(obs: Tensor, by: Tensor) -> Tensor:
    """Shift observations (N, stack, H, W[, C]) by (N, 2) rows and columns; the border's pixels fill what is empty.

    The same as padding by replication and cropping at a random place: entry i of the result is entry i + by, not
    before the first nor after the last.
    """
    count, stack, height, width = obs.shape[:4]
    rows, columns = (
        (torch.arange(size, device=obs.device) + by[:, axis, None]).clamp_(0, size - 1)
        for axis, size in enumerate((height, width))
    )
    n = torch.arange(count, device=obs.device)[:, None, None, None]
    s = torch.arange(stack, device=obs.device)[None, :, None, None]
    return obs[n, s, rows[:, None, :, None], columns[:, None, None, :]]


def centered(x: Tensor, valid: Tensor) -> Tensor:
    """Subtract from (B, K, n) the mean over all steps that exist: what all states share tells none from another."""
    weight = valid.to(x.dtype).unsqueeze(-1)
    return x - (x * weight).sum(dim=(0, 1)) / weight.sum()


def _as_planes(flat: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Undo `flatten`: (N, H * W * C) to (N, C, H, W) in channels-last memory, without a copy."""
    channels, height, width = shape
    return flat.view(-1, height, width, channels).permute(0, 3, 1, 2)


METHOD = SelfPredictive
