"""Linear maps of features, for methods that learn functions of the state besides the ones that are kept."""

import torch
from torch import Tensor, nn

from protovalue.nets.encoders import Encoder, make_encoder
from protovalue.nets.heads import TaskHeads
from protovalue.nets.layers import Dense
from protovalue.pretrain.config import PretrainConfig
from protovalue.pretrain.method_configs import SecondMap


def linear_map(num_features: int, dimensions: int, generator: torch.Generator) -> Dense:
    """Return f(x) = W phi(x), without a bias: what f spans, phi spans."""
    found = Dense(num_features, dimensions, generator)
    found.bias.requires_grad_(False)
    return found


def linear_heads(num_features: int, dimensions: int, num_actions: int, generator: torch.Generator) -> TaskHeads:
    """Return F(x, a) = W_a phi(x), without biases."""
    found = TaskHeads(num_features, dimensions, num_actions, generator)
    found.bias.requires_grad_(False)
    return found


class StateMap(nn.Module):
    """d functions of the state, linear in the method's own features (shared) or in those of an encoder of their own."""

    def __init__(
        self, kind: SecondMap, dimensions: int, encoder: Encoder, config: PretrainConfig, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.own: Encoder | None = None
        if kind == "own":
            shape, options = encoder.observation_shape, config.architecture_options
            self.own = make_encoder(config.architecture, shape, config.width, generator, options)
            self.own.readout = encoder.readout
        self.head = linear_map(encoder.num_features, dimensions, generator)

    def forward(self, features: Tensor, obs: Tensor) -> Tensor:
        """Map observations, whose shared features are known, to (N, d)."""
        found: Tensor = self.head(features if self.own is None else self.own(obs))
        return found
