"""The interface of a method: what it samples, its parameters, its loss."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor, nn

from protovalue.data.dataset import Dataset
from protovalue.data.sampler import Sampler
from protovalue.nets.encoders import Encoder, make_encoder
from protovalue.precision import Precision
from protovalue.pretrain.config import PretrainConfig
from protovalue.randomness import Purpose, seeded

Sample = dict[str, Tensor]


class Method(nn.Module):
    """One way to train an encoder. A subclass is one file in this folder that ends with `METHOD = TheClass`.

    It is a module: its parameters that require a gradient are trained, and all parameters and buffers are in the
    checkpoint. The loop calls `sample` in a background thread, `loss` on what it returned (moved to the device), takes
    an optimiser step and calls `after_step`.
    """

    Config: ClassVar[type[PretrainConfig]] = PretrainConfig
    """The method's settings: a dataclass that extends PretrainConfig by the method's own fields."""
    presets: ClassVar[dict[tuple[str, str], dict[str, Any]]] = {}
    """Values for fields left at None, by (preset, family of the environment); "*" is every family."""
    needs_data: ClassVar[bool] = True
    max_gradient_norm: float = 0.0
    """Norm to which the gradient of all parameters is scaled down; 0 is off."""

    encoder: Encoder

    def __init__(
        self, config: PretrainConfig, data: Dataset | None, observation_shape: tuple[int, ...], device: str
    ) -> None:
        super().__init__()
        assert config.encoder is not None
        assert config.width is not None
        self.config = config
        self.encoder = make_encoder(
            config.encoder, observation_shape, config.width, seeded(config.seed, Purpose.ENCODER)
        )
        if data is not None:
            assert config.batch_size is not None
            self.sampler = Sampler(data, config.batch_size, config.seed)

    @property
    def data(self) -> Dataset:
        """Return the data set that the method learns from."""
        return self.sampler.dataset

    @classmethod
    def resolve(cls, config: PretrainConfig, env_id: str) -> PretrainConfig:
        """Fill the fields left at None from the preset."""
        family = env_id.partition("/")[0]
        values: dict[str, Any] = {}
        for source in (COMMON_PRESETS, cls.presets):
            for key in ((config.preset, "*"), (config.preset, family)):
                values |= source.get(key, {})
        return replace(config, **{name: value for name, value in values.items() if getattr(config, name) is None})

    @classmethod
    def unused(cls, config: PretrainConfig) -> tuple[str, ...]:
        """Name the fields that a run of this config would not look at; one that is given all the same is refused."""
        return ()

    def steps(self) -> int:
        """Return the number of gradient steps."""
        assert self.config.steps is not None
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


COMMON_PRESETS: dict[tuple[str, str], dict[str, Any]] = {
    # 8x Impala, 1,562,500 steps of 256 transitions: 400 million samples, eight times the 50 million of a data set.
    ("paper", "*"): {
        "encoder": "impala",
        "width": 8,
        "steps": 1_562_500,
        "batch_size": 256,
        "learning_rate": 1e-4,
    },
    ("paper", "minatar"): {"encoder": "minatar"},
    ("small", "*"): {"encoder": "impala", "width": 1, "steps": 10_000, "batch_size": 256, "learning_rate": 1e-4},
    ("small", "minatar"): {"encoder": "minatar", "steps": 5_000, "learning_rate": 1e-3, "threads": 1},
}
