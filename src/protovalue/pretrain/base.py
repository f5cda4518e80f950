"""The interface of a method: what it samples, its parameters, its loss."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from protovalue.data.dataset import Dataset
from protovalue.data.sampler import Batch, Sampler
from protovalue.distributed.group import ranks
from protovalue.nets.encoders import Encoder, make_encoder
from protovalue.precision import Precision
from protovalue.pretrain.config import PretrainConfig
from protovalue.pretrain.inverse import InverseDynamics
from protovalue.randomness import Purpose, seeded

Sample = dict[str, Tensor]


def transitions(batch: Batch) -> Sample:
    """Return a batch as a sample: what temporal differences need of each transition."""
    return {
        "frames": torch.from_numpy(batch.frames),
        "action": torch.from_numpy(batch.action),
        "reward": torch.from_numpy(batch.reward),
        "terminal": torch.from_numpy(batch.terminal),
    }


class Method(nn.Module):
    """One way to train an encoder. A subclass is one file in this folder that ends with `METHOD = TheClass`.

    It is a module: its parameters that require a gradient are trained, and all parameters and buffers are in the
    checkpoint. The loop calls `sample` in a background thread, `loss` on what it returned (moved to the device), takes
    an optimiser step and calls `after_step`.
    """

    Config: ClassVar[type[PretrainConfig]] = PretrainConfig
    """The method's settings: a dataclass that extends PretrainConfig by the method's own fields."""
    needs_data: ClassVar[bool] = True
    several_processes: ClassVar[bool] = False
    """Whether `sample` and `loss` are right in a process that has a part of the batch (docs/distributed.md): the mean
    of the processes' losses is the loss of the whole batch. Then the method may run in several."""
    max_gradient_norm: float = 0.0
    """Norm to which the gradient of all parameters is scaled down; 0 is off."""

    encoder: Encoder

    def __init__(
        self, config: PretrainConfig, data: Dataset | None, observation_shape: tuple[int, ...], device: str
    ) -> None:
        super().__init__()
        self.config = config
        self.encoder = make_encoder(
            config.architecture,
            observation_shape,
            config.width,
            seeded(config.seed, Purpose.ENCODER),
            config.architecture_options,
        )
        if config.layer_norm:
            self.encoder.normalize_features()
        self.inverse: InverseDynamics | None = None
        if data is not None:
            rows = ranks().rows(config.batch_size)
            self.sampler = Sampler(data, config.batch_size, config.seed, rows)
            if weight := getattr(config, "inverse", 0.0):  # of the methods that have it
                self.inverse = InverseDynamics(weight, self.encoder.num_features, data.num_actions, config.seed)

    @property
    def data(self) -> Dataset:
        """Return the data set that the method learns from."""
        return self.sampler.dataset

    @classmethod
    def unused(cls, config: PretrainConfig) -> set[str]:
        """Name the fields that a run of this config would not look at; one that is given all the same is refused."""
        return set()

    def steps(self) -> int:
        """Return the number of gradient steps."""
        return self.config.steps

    def sample(self, step: int) -> Sample:
        """Return what the loss at `step` needs: a function of (seed, step) alone, called in a background thread."""
        raise NotImplementedError

    def sample_bytes(self) -> int:
        """Return the memory of one sample, by which the loop decides how many to make ahead."""
        return self.sampler.batch_bytes

    def loss(self, sample: Sample) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the scalar loss and scalars to log.

        All of it is float32. With `--precision bfloat16` the encoders (target networks' too) compute in bfloat16 and
        give float32 features; what else is worth bfloat16 goes into `with self.encoder.autocast():`.
        """
        raise NotImplementedError

    def with_inverse(
        self, found: tuple[Tensor, dict[str, Tensor]], features: Tensor, next_obs: Tensor, action: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return a loss and what to log with inverse dynamics added, if the settings ask for it.

        Args:
            found: the loss and what to log without it.
            features: phi(x), with its gradient (B, k).
            next_obs: x', which is put through the encoder only if it is needed (B, *observation_shape).
            action: a (B,).
        """
        if self.inverse is None:
            return found
        loss, logged = self.inverse(features, self.encoder(next_obs), action)
        return found[0] + loss, {**found[1], **logged}

    @contextmanager
    def in_precision(self, precision: Precision) -> Iterator[None]:
        """Let the encoders compute in `precision` for a while."""
        encoders = [module for module in self.modules() if isinstance(module, Encoder)]
        for encoder in encoders:
            encoder.precision = precision
        try:
            yield
        finally:
            for encoder in encoders:
                encoder.precision = "float32"

    def after_step(self) -> None:
        """Update what follows the trained parameters, such as a target network."""

    def finish(self) -> dict[str, Any]:
        """Return numbers for the run's summary, computed once at the end."""
        return {}

    def save_artifacts(self, folder: Path) -> None:
        """Write what the method drew or computed before its first step into the run folder, once."""
