"""Stable-Baselines3: an encoder as the features extractor of a policy, and environments as it wants them.

    env = sb3.vec_env(protovalue.make("minatar/breakout", num_envs=8))
    kwargs = dict(features_extractor_class=sb3.FrozenFeatures, features_extractor_kwargs=dict(encoder="runs/pvn"))
    PPO("MlpPolicy", env, policy_kwargs=kwargs)

`protovalue.FeatureEnv` does the same outside of the policy: features are computed once per step, which is quicker, and
a replay stores features in place of frames; but nothing can be fine-tuned there.
"""

from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from gymnasium.spaces import Space
from gymnasium.vector import VectorEnv
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import VecEnv
from torch import Tensor

from protovalue.encoder import FrozenEncoder
from protovalue.envs.sb3 import as_sb3
from protovalue.integrations.features import EncoderLayer, Scale, fitting


class FrozenFeatures(BaseFeaturesExtractor):
    """An encoder's features (N, k) as what a policy of Stable-Baselines3 sees of an observation.

    Its policies make floats of observations, and divide images by 255; both is undone here.
    """

    def __init__(
        self,
        observation_space: Space[Any],
        encoder: FrozenEncoder | Path | str,
        frozen: bool = True,
        scale: Scale = 1.0,
    ) -> None:
        """Make the extractor.

        Args:
            observation_space: of the environment; Stable-Baselines3 gives it.
            encoder: what `protovalue.load_encoder` takes or returns. A name keeps saved policies small and portable.
            frozen: leave the encoder as it is; else it is trained with the policy.
            scale: divisor of the features, or "rms", their root mean square on the encoder's own data.
        """
        found = fitting(encoder, observation_space.shape)
        super().__init__(observation_space, found.num_features)
        self.layer = EncoderLayer(found, frozen, scale)
        self._plain = observation_space.dtype == np.uint8 and not is_image_space(observation_space)

    def forward(self, observations: Tensor) -> Tensor:
        """Map observations, as a policy gives them, to features."""
        given = observations.to(torch.uint8) if self._plain else observations
        return cast("Tensor", self.layer(given))


def vec_env(env: VectorEnv[Any, Any, Any]) -> VecEnv:
    """Return a vector environment, such as one of `protovalue.make` or a FeatureEnv, for Stable-Baselines3."""
    return as_sb3(env)
