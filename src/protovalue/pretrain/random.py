"""Random initialisation: the encoder as it was drawn. What the other methods must beat."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from protovalue.config import SUBJECT, TRAINING, marked
from protovalue.pretrain.base import Method
from protovalue.pretrain.config import PretrainConfig


@dataclass(frozen=True, kw_only=True)
class RandomConfig(PretrainConfig):
    """Write an encoder as it is initialised, without training it.

    Example: pvn pretrain --method random --env minatar/breakout --out runs/random
    """

    method: Annotated[str, SUBJECT] = "random"


class RandomInitialization(Method):
    """No gradient steps."""

    Config: ClassVar[type[PretrainConfig]] = RandomConfig
    needs_data = False

    @classmethod
    def unused(cls, config: PretrainConfig) -> set[str]:
        """Name all that says how to train."""
        return marked(RandomConfig, TRAINING)

    def steps(self) -> int:
        """Return 0."""
        return 0


METHOD = RandomInitialization
