"""The interface of an encoder, a network that maps stored observations to features, and how one is made by name."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, Literal, Protocol, cast

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from protovalue.errors import UserError
from protovalue.nets.layers import Dense, ObservationShapeError, check_observation_shape, planes, renormalize
from protovalue.options import resolve_options
from protovalue.precision import Precision, rounded_convolutions
from protovalue.registry import ENCODERS, name_of

Readout = Literal["relu", "projection", "normalized relu", "normalized projection"]
"""How an encoder's last, dense layer gives features of the latents: dense(z) cut off at 0 or, as self-predictive
representations have it, dense(z') of latents z' scaled to [0, 1]. Normalized, the features dense(z) of an observation
are shifted and scaled to mean 0 and variance 1 first: layer norm without parameters."""


class Quick(Protocol):
    """A compiled forward pass."""

    dtypes: ClassVar[tuple[type, ...]]
    """The types of observations that it takes."""

    def __call__(self, obs: NDArray[Any]) -> NDArray[np.float32]:
        """Map observations (N, stack, H, W[, C]) to features (N, num_features)."""


def recomputed(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Return the same function, of which nothing but its argument is kept for the backward pass."""

    def call(x: Tensor) -> Tensor:
        return cast("Tensor", checkpoint(function, x, use_reentrant=False))

    return call


class Encoder(nn.Module):
    """What every encoder has: `observation_shape`, `num_features`, and a forward pass from stored observations.

    A subclass is one file that ends with `ENCODER = TheClass`: in this folder, or a user's own. Its constructor takes
    `(observation_shape, width, generator)`, draws its parameters from the generator alone, and says which convolutions
    it has (`convolve`) and how many features its last, dense layer gives. Parameters with a default are its options:
    values that JSON can hold, kept in `options` and saved with it.
    """

    minimum_size: ClassVar[int] = 1
    """Smallest height and width of a frame [pixels]."""
    # These three are set by the subclass.
    num_features: int
    latent_shape: tuple[int, int, int]
    """Channels, height and width of what the convolutions give."""
    dense: Dense

    def __init__(self, observation_shape: tuple[int, ...]) -> None:
        super().__init__()
        stack, height, width, channels = check_observation_shape(observation_shape)
        if min(height, width) < self.minimum_size:
            raise ObservationShapeError(
                f"observation shape: found {tuple(observation_shape)}, expected frames of at least "
                f"{self.minimum_size} x {self.minimum_size} for this encoder"
            )
        self.observation_shape = tuple(observation_shape)
        self.frame_size = (height, width)
        self.in_channels = stack * channels
        self.options: dict[str, Any] = {}  # set by `make_encoder`
        self.readout: Readout = "relu"
        self.precision: Precision = "float32"  # that of its arithmetic; a method changes it while it computes its loss

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context in which this network, and what else belongs to it, computes."""
        if self.precision == "tf32":
            return rounded_convolutions()
        device = next(self.parameters()).device.type
        return torch.autocast(device, torch.bfloat16) if self.precision == "bfloat16" else nullcontext()

    def forward(self, obs: Tensor) -> Tensor:
        """Map observations (N, stack, H, W[, C]), uint8 or bool, to features (N, num_features), float32.

        They are >= 0, but for the readouts with "projection".
        """
        with self.autocast():
            latents = self.convolve(planes(obs, self.observation_shape))
            projection = self.readout.endswith("projection")
            features = self.project(renormalize(latents)) if projection else F.relu_(self.project(latents))
        return features.to(torch.float32)

    def project(self, latents: Tensor) -> Tensor:
        """Map latents (N, H * W * C) through the dense layer and, if the readout says so, layer norm."""
        features = cast("Tensor", self.dense(latents))
        return F.layer_norm(features, features.shape[1:]) if self.readout.startswith("normalized") else features

    def normalize_features(self) -> None:
        """Put layer norm before the readout; a network with a forward pass of its own has no place for it."""
        if type(self).forward is not Encoder.forward:
            raise UserError(f"--layer-norm: found an encoder {type(self).__name__} that reads out its features itself")
        self.readout = "normalized projection" if self.readout == "projection" else "normalized relu"

    def compiled(self) -> Quick | None:
        """Return a quicker forward pass on the CPU for few observations and the parameters of now, if there is one.

        To rounding it is `forward`; the features of an observation do not depend on the others in a batch.
        """
        return None

    def recompute_activations(self) -> None:
        """Keep no activations of the convolutions for the backward pass, which computes them again: to the same bits.

        It is for a network that is trained from now on: a copy that is made later would compute with this one's
        parameters.
        """
        self.convolve = recomputed(self.convolve)  # type: ignore[assignment, method-assign]

    def convolve(self, x: Tensor) -> Tensor:
        """Map (N, stack * C, H, W) in [0, 1] to the input of the dense layer, flattened."""
        raise NotImplementedError


def make_encoder(
    name: str,
    observation_shape: tuple[int, ...],
    width: float,
    generator: torch.Generator,
    options: Mapping[str, Any] | None = None,
) -> Encoder:
    """Build the encoder `name` for observations (stack, H, W) or (stack, H, W, C), drawing from `generator` alone.

    Args:
        name: that of an architecture of this package, or of a file of the user's that was loaded; never runs a file.
        observation_shape: shape of one observation, without the batch.
        width: multiplier of all channels and of the features, which are rounded; the paper's are 1, 2, 4 and 8.
        generator: source of the initial parameters, on the CPU.
        options: what to change from the defaults of the architecture's own options.
    """
    cls = ENCODERS.find(name)
    if not 0 < width < 1 << 16:
        raise UserError(f"encoder width: found {width}, expected more than 0 and less than {1 << 16}")
    resolved = resolve_options(cls, options, f"option of encoder {name_of(name)!r}", f"encoder {name_of(name)}")
    encoder: Encoder = cls(observation_shape, width, generator, **resolved)
    encoder.options = resolved
    return encoder
