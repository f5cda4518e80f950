"""d3rlpy: an encoder as the first layers of an algorithm's networks, and data sets as it wants them.

    data = d3rlpy_integration.mdp_dataset(protovalue.open_dataset("data/si"), protovalue.load_encoder("runs/pvn"))
    d3rlpy.algos.DiscreteCQLConfig().create().fit(data, n_steps=1_000)

learns offline on features; with observations in place of features,
`DiscreteCQLConfig(encoder_factory=FrozenEncoderFactory("runs/pvn"))` computes them in the network.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from d3rlpy.constants import ActionSpace
from d3rlpy.dataset import MDPDataset
from d3rlpy.models import EncoderFactory, register_encoder_factory
from d3rlpy.models.torch import Encoder, EncoderWithAction
from torch import Tensor

from protovalue.data.dataset import Dataset, Episode
from protovalue.data.format import End
from protovalue.encoder import FrozenEncoder
from protovalue.errors import UserError
from protovalue.integrations.features import EncoderLayer, Scale, fitting

BATCH = 1_024  # observations that pass the encoder together


class _Features(Encoder):  # type: ignore[misc]  # the package has no types
    def __init__(self, layer: EncoderLayer) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Any) -> Tensor:
        return cast("Tensor", self.layer(x))


class _FeaturesWithAction(EncoderWithAction):  # type: ignore[misc]  # as above
    def __init__(self, layer: EncoderLayer, action_size: int, discrete_action: bool) -> None:
        super().__init__()
        self.layer, self._size, self._discrete = layer, action_size, discrete_action

    def forward(self, x: Any, action: Tensor) -> Tensor:
        if self._discrete:
            action = F.one_hot(action.view(-1).long(), num_classes=self._size)
        return torch.cat([self.layer(x), action.float()], dim=1)


@dataclass()
class FrozenEncoderFactory(EncoderFactory):  # type: ignore[misc]  # as above
    """Makes an encoder's features of observations; everything in it can be saved as JSON.

    Attributes:
        encoder: name of the encoder, as `protovalue.load_encoder` takes it.
        frozen: leave the encoder as it is; else it is trained with the rest.
        scale: divisor of the features, or "rms", their root mean square on the encoder's own data.
    """

    encoder: str
    frozen: bool = True
    scale: Any = 1.0  # Scale, which the JSON of d3rlpy cannot say

    def create(self, observation_shape: Any) -> Encoder:
        """Return the encoder as d3rlpy has it."""
        return _Features(self._layer(observation_shape))

    def create_with_action(
        self, observation_shape: Any, action_size: int, discrete_action: bool = False
    ) -> EncoderWithAction:
        """Return features with the action beside them."""
        return _FeaturesWithAction(self._layer(observation_shape), action_size, discrete_action)

    @staticmethod
    def get_type() -> str:
        """Return the name in saved files."""
        return "protovalue"

    def _layer(self, shape: Any) -> EncoderLayer:
        return EncoderLayer(fitting(self.encoder, tuple(shape)), self.frozen, self.scale)


register_encoder_factory(FrozenEncoderFactory)


def mdp_dataset(
    data: Dataset, encoder: FrozenEncoder | Path | str | None = None, scale: Scale = 1.0, **settings: Any
) -> MDPDataset:
    """Return a data set as an MDPDataset of features, or of observations without an encoder; it lies in memory.

    All transitions are in it. d3rlpy takes the next observation from the next step: an episode that did not terminate
    gets its last observation as a further step, with action 0 and reward 0, which is no transition of its own.

    Args:
        data: of `protovalue.open_dataset`.
        encoder: what `protovalue.load_encoder` takes or returns.
        scale: divisor of the features, or "rms", their root mean square on the encoder's own data.
        **settings: of MDPDataset, such as `transition_picker`.
    """
    if not data.num_episodes:
        raise UserError("data: found no episode, expected one at least")
    layer = None if encoder is None else EncoderLayer(fitting(encoder, data.observation_shape), True, scale)
    seen, actions, rewards, terminals, timeouts = [], [], [], [], []
    for index in range(data.num_episodes):
        episode = data.episode(index)
        steps, ended = len(episode.actions), episode.end == End.TERMINATED
        rows = steps if ended else steps + 1
        seen.append(_seen(episode, data.stack, layer)[:rows])
        actions.append(np.pad(episode.actions, (0, rows - steps)))
        rewards.append(np.pad(episode.rewards, (0, rows - steps)))
        last = np.zeros(rows, np.float32)
        last[-1] = 1
        terminals.append(last if ended else np.zeros_like(last))
        timeouts.append(np.zeros_like(last) if ended else last)
    return MDPDataset(
        np.concatenate(seen),
        np.concatenate(actions).astype(np.int32),
        np.concatenate(rewards).astype(np.float32),
        np.concatenate(terminals),
        np.concatenate(timeouts),
        action_space=ActionSpace.DISCRETE,
        action_size=data.num_actions,
        **settings,
    )


@torch.inference_mode()
def _seen(episode: Episode, stack: int, layer: EncoderLayer | None) -> Any:
    """Return the observations of an episode, or their features."""
    observations = episode.observations(stack)
    if layer is None:
        return observations
    parts = [layer(torch.from_numpy(observations[i : i + BATCH])) for i in range(0, len(observations), BATCH)]
    return torch.cat(parts).numpy()
