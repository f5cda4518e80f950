"""Numbers that say whether features are alive: effective rank, dead units, norms."""

import math

import torch
from torch import Tensor


def effective_rank(features: Tensor) -> float:
    """Return exp(H(q)), q_i = sigma_i / sum of sigma, over the singular values sigma of features (n, k).

    It is between 1 (all rows are multiples of one vector: collapse) and min(n, k); 0 for features that are all zero,
    and not a number where they are not finite.
    """
    x = features.to(torch.float64)
    wide = min((x, x.T), key=len)  # for the smaller of the two products; its eigenvalues are sigma^2
    product = wide @ wide.T
    if not torch.isfinite(product).all():
        return math.nan
    sigma = torch.linalg.eigvalsh(product).clamp_min(0).sqrt()
    total = float(sigma.sum())
    if total == 0:
        return total
    q = sigma / total
    return float(torch.exp(-torch.xlogy(q, q).sum()))


def feature_statistics(features: Tensor) -> dict[str, float]:
    """Return effective rank, share of units that are zero on all rows, mean norm and root mean square of (n, k)."""
    x = features.to("cpu", torch.float32)  # one wait for the device; and Apple's has no float64
    return {
        "effective_rank": effective_rank(x),
        "dead_units": float((x == 0).all(dim=0).to(torch.float32).mean()),
        "feature_norm": float(x.norm(dim=1).mean()),
        "feature_rms": float(x.square().mean().sqrt()),
    }
