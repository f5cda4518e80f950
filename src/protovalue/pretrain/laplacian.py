"""The Laplacian of the data's own walk, by drawing its graph (Wu, Tucker and Nachum, 2019)."""

from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protovalue.data.dataset import Dataset
from protovalue.distributed.group import gathered
from protovalue.losses import graph_drawing_loss
from protovalue.nets.layers import Dense
from protovalue.pretrain.base import Method, Sample
from protovalue.pretrain.config import PretrainConfig
from protovalue.pretrain.method_configs import LaplacianConfig
from protovalue.randomness import Purpose, generator_at, seeded


class Laplacian(Method):
    """f(x) = W phi(x) + b, d functions of the features, trained by the graph-drawing objective.

    The variant is the original one, with its soft orthonormality penalty. It is the same under any rotation of f, so
    f spans the eigenvectors without being them one by one; for a linear agent on the features this is no difference.
    """

    Config: ClassVar[type[PretrainConfig]] = LaplacianConfig
    several_processes = True
    config: LaplacianConfig

    def __init__(
        self, config: LaplacianConfig, data: Dataset | None, observation_shape: tuple[int, ...], device: str
    ) -> None:
        super().__init__(config, data, observation_shape, device)
        self.head = Dense(self.encoder.num_features, config.dimensions, seeded(config.seed, Purpose.METHOD))

    def sample(self, step: int) -> Sample:
        """Return states and, for each, one that follows it in its episode."""
        data, sampler = self.data, self.sampler
        episode, at = data.locate(sampler.indices(step))
        uniform = generator_at(self.config.seed, Purpose.AHEAD, step).random(sampler.batch_size)[sampler.rows]
        later = at + steps_ahead(uniform, data.lengths[episode] - at, self.config.ahead)
        first, second = (data.windows(episode, place - data.stack + 1, data.stack) for place in (at, later))
        return {"obs": torch.from_numpy(first), "later": torch.from_numpy(second)}

    def sample_bytes(self) -> int:
        """Return the memory of two observations for each transition of the batch."""
        return self.sampler.num_rows * 2 * self.data.stack * self.data.frame_bytes

    def loss(self, sample: Sample) -> tuple[Tensor, dict[str, Tensor]]:
        """Return attraction + beta * repulsion."""
        both = self.head(self.encoder(torch.cat([sample["obs"], sample["later"]])))  # (2 B, d)
        attraction, repulsion = graph_drawing_loss(*gathered(*both.chunk(2)))  # all pairs, across processes too
        logged = {"attraction": attraction.detach(), "repulsion": repulsion.detach()}
        return attraction + self.config.beta * repulsion, logged


def steps_ahead(uniform: NDArray[np.float64], most: NDArray[np.int64], share: float) -> NDArray[np.int64]:
    """Draw how far ahead a state lies: n = 1, 2, ..., `most` with probability in proportion to share^(n - 1).

    The inverse of the distribution function (1 - share^n) / (1 - share^most), at uniform numbers in [0, 1).
    """
    if share == 0.0:
        return np.ones_like(most)
    drawn = np.log1p(-uniform * (1.0 - share**most)) / np.log(share)
    ahead: NDArray[np.int64] = np.minimum(1 + np.floor(drawn).astype(np.int64), most)
    return ahead


METHOD = Laplacian
