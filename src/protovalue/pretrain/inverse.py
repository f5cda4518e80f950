"""Inverse dynamics as an addition to any method: which action led from x to x'?"""

import torch
from torch import Tensor, nn

from protovalue.losses import cloning_loss
from protovalue.nets.layers import Dense
from protovalue.randomness import Purpose, seeded


class InverseDynamics(nn.Module):
    """-log p(a | phi(x), phi(x')) with a linear softmax on the two, times a weight."""

    def __init__(self, weight: float, num_features: int, num_actions: int, seed: int) -> None:
        super().__init__()
        self.weight = weight
        self.head = Dense(2 * num_features, num_actions, seeded(seed, Purpose.INVERSE))

    def forward(self, features: Tensor, next_features: Tensor, action: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the weighted mean of features (B, k) and (B, k) and actions (B,), and what to log of it."""
        scores = self.head(torch.cat([features, next_features], dim=1))  # (B, A)
        loss = cloning_loss(scores, action).mean()
        right = scores.detach().argmax(dim=1) == action
        return self.weight * loss, {"inverse_loss": loss.detach(), "inverse_accuracy": right.to(torch.float32).mean()}
