"""How features are scaled before they are read, so that readouts compare what encoders hold, not its units.

Divided by one number, features keep their shape: a few directions of large variance are learned at once, those of
small variance hardly move within the epochs that a readout has. Whitened, all directions have the same variance, so
that what is there is read no matter how large it is.
"""

import torch
from torch import Tensor

from protovalue.evaluate.probe_file import FeatureScale

LEAST = 1e-5
"""Directions whose standard deviation is below this share of the largest are left out, and those of rounding alone."""


def scale_features(features: Tensor, train: Tensor, scale: FeatureScale) -> Tensor:
    """Return features (N, k) scaled by what the training states (indices) say; whitened, there may be fewer."""
    if scale == "rms":
        size = features[train].square().mean().sqrt()
        return features / size if size > 0 else features
    return _whitened(features, train)


def _whitened(features: Tensor, train: Tensor) -> Tensor:
    """Centre, turn to the principal axes of the training states, and divide each by its standard deviation there."""
    exact = features.double()
    centred = exact - exact[train].mean(dim=0)
    own = centred[train]
    variances, axes = torch.linalg.eigh(own.T @ own / len(own))
    rounding = torch.finfo(features.dtype).eps * features.abs().max().double()
    kept = variances > torch.maximum(variances[-1] * LEAST**2, rounding**2)
    if not kept.any():  # constant features: nothing to read
        return torch.zeros_like(features)
    whitened: Tensor = (centred @ axes[:, kept] / variances[kept].sqrt()).float()
    return whitened
