"""What the integrations share: an encoder as a layer of somebody else's network, frozen or trained with it."""

import copy
import os
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from protovalue.encoder import FrozenEncoder, load_encoder
from protovalue.errors import UserError

Scale = float | Literal["rms"]


class EncoderLayer(nn.Module):
    """Maps observations to the features of an encoder, divided by a number.

    Each layer has parameters of its own: frozen, they never change; else they are trained with the rest of the network.
    Floats are what other libraries make of bytes and flags: they must lie between 0 and 1, and become bytes again, so
    that the features are exactly the encoder's own.
    """

    def __init__(self, encoder: FrozenEncoder, frozen: bool, scale: Scale) -> None:
        super().__init__()
        self.encoder = copy.deepcopy(encoder.encoder).requires_grad_(not frozen)
        self.frozen, self.num_features = frozen, encoder.num_features
        self._factor = 1.0 / _divisor(encoder, scale)

    def forward(self, observations: Tensor) -> Tensor:
        """Map observations (N, stack, *frame_shape) to features (N, k)."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            return cast("Tensor", self.encoder(_as_recorded(observations)) * self._factor)


def fitting(encoder: FrozenEncoder | Path | str, shape: tuple[int, ...] | None) -> FrozenEncoder:
    """Return an encoder, loaded if it is named, that takes observations of a shape; another is a UserError."""
    if not isinstance(encoder, FrozenEncoder | str | os.PathLike):
        raise UserError(
            f"encoder: found {type(encoder).__name__}, expected one of protovalue.load_encoder, or its name"
        )
    found = encoder if isinstance(encoder, FrozenEncoder) else load_encoder(encoder)
    if shape != found.observation_shape:
        raise UserError(f"encoder: found one for observations {found.observation_shape}, expected {shape}")
    return found


def _divisor(encoder: FrozenEncoder, scale: Scale) -> float:
    value: Any = encoder.about.get("summary", {}).get("feature_rms") if scale == "rms" else scale
    if value is None:
        raise UserError("scale: found rms with an encoder that has no feature_rms in its summary, expected a number")
    if isinstance(value, str) or not value > 0:
        raise UserError(f"scale: found {value}, expected more than 0, or rms")
    return float(value)


def _as_recorded(observations: Tensor) -> Tensor:
    """Return observations as bytes or flags."""
    if not observations.is_floating_point():
        return observations
    if observations.numel() and not 0 <= float(observations.min()) <= float(observations.max()) <= 1:
        raise UserError(
            f"observations: found floats from {float(observations.min()):g} to {float(observations.max()):g}, expected "
            "bytes, flags, or floats between 0 and 1, as image observations are when they are normalised"
        )
    return observations.mul(255.0).round_().to(torch.uint8)
