"""Random initialisation: the encoder as it was drawn. What the other methods must beat."""

from typing import ClassVar

from protovalue.config import TRAINING, marked
from protovalue.pretrain.base import Method
from protovalue.pretrain.config import PretrainConfig
from protovalue.pretrain.method_configs import RandomConfig


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
