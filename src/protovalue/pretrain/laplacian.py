"""The Laplacian of the data's own walk, by drawing its graph (Wu, Tucker and Nachum, 2019)."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protovalue.config import require
from protovalue.data.dataset import Dataset
from protovalue.losses import graph_drawing_loss
from protovalue.nets.layers import Dense
from protovalue.pretrain.base import Method, Sample
from protovalue.pretrain.config import PretrainConfig
from protovalue.randomness import Purpose, generator_at, seeded


@dataclass(frozen=True, kw_only=True)
class LaplacianConfig(PretrainConfig):
    """Train an encoder to span the smallest eigenvectors of the Laplacian: states that follow each other come close.

    Example: pvn pretrain --method laplacian --data data/breakout --out runs/laplacian
    """

    method: str = "laplacian"
    dimensions: int | None = None
    """Number of eigenvectors d [100; small MinAtar 50]."""
    beta: float | None = None
    """Weight of the repulsion that keeps the d functions apart [1]."""
    ahead: float | None = None
    """Share lambda by which ever later states count as following: 0 is the next one alone [0.9]."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.dimensions is None or self.dimensions >= 1, "--dimensions", self.dimensions, "at least 1")
        require(self.beta is None or self.beta > 0, "--beta", self.beta, "more than 0")
        require(self.ahead is None or 0 <= self.ahead < 1, "--ahead", self.ahead, "at least 0 and less than 1")
        good = self.batch_size is None or self.batch_size >= 2
        require(good, "--batch-size", self.batch_size, "at least 2: the repulsion is between two states")


class Laplacian(Method):
    """f(x) = W phi(x) + b, d functions of the features, trained by the graph-drawing objective.

    The variant is the original one, with its soft orthonormality penalty. It is the same under any rotation of f, so
    f spans the eigenvectors without being them one by one; for a linear agent on the features this is no difference.
    """

    Config: ClassVar[type[PretrainConfig]] = LaplacianConfig
    presets: ClassVar[dict[tuple[str, str], dict[str, Any]]] = {
        # d: as many as the other methods have tasks; lambda: the source's. With beta = 1 the optimum holds every
        # eigenvector whose eigenvalue is below 2 beta = 2: an eigenvalue e leaves the squared length 1 - e / (2 beta).
        ("paper", "*"): {"dimensions": 100, "beta": 1.0, "ahead": 0.9},
        ("small", "*"): {"dimensions": 100, "beta": 1.0, "ahead": 0.9},
        ("small", "minatar"): {"dimensions": 50, "beta": 1.0, "ahead": 0.9},
    }
    config: LaplacianConfig

    def __init__(
        self, config: LaplacianConfig, data: Dataset | None, observation_shape: tuple[int, ...], device: str
    ) -> None:
        super().__init__(config, data, observation_shape, device)
        assert config.dimensions is not None
        self.head = Dense(self.encoder.num_features, config.dimensions, seeded(config.seed, Purpose.METHOD))

    def sample(self, step: int) -> Sample:
        """Return states and, for each, one that follows it in its episode."""
        assert self.config.ahead is not None
        data = self.data
        episode, at = data.locate(self.sampler.indices(step))
        uniform = generator_at(self.config.seed, Purpose.AHEAD, step).random(len(at))
        later = at + steps_ahead(uniform, data.lengths[episode] - at, self.config.ahead)
        first, second = (data.windows(episode, place - data.stack + 1, data.stack) for place in (at, later))
        return {"obs": torch.from_numpy(first), "later": torch.from_numpy(second)}

    def sample_bytes(self) -> int:
        """Return the memory of two observations for each transition of the batch."""
        return self.sampler.batch_size * 2 * self.data.stack * self.data.frame_bytes

    def loss(self, sample: Sample) -> tuple[Tensor, dict[str, Tensor]]:
        """Return attraction + beta * repulsion."""
        assert self.config.beta is not None
        both = self.head(self.encoder(torch.cat([sample["obs"], sample["later"]])))  # (2 B, d)
        attraction, repulsion = graph_drawing_loss(*both.chunk(2))
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
