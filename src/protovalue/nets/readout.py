"""Layer norm and ReLU of features that compiled code has summed."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

COMPILED = ("relu", "normalized relu")
"""The readouts of encoders that compiled passes have."""
EPSILON = 1e-5  # PyTorch's


def normalized_relu(features: NDArray[Any]) -> NDArray[np.float32]:
    """Normalise each row of features (N, k) to mean 0 and variance 1, and cut it off at 0; rows are independent."""
    wide = features.astype(np.float64)
    wide -= wide.mean(axis=1, keepdims=True)
    wide /= np.sqrt(np.square(wide).mean(axis=1, keepdims=True) + EPSILON)
    return np.maximum(wide, 0.0).astype(np.float32)
