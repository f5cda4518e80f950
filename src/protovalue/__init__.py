"""Proto-value networks and their baselines: state representations without rewards, and what they are worth.

The names below are imported when they are first used, so that `import protovalue` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from protovalue.data.collect import collect as collect
    from protovalue.data.dataset import Dataset as Dataset
    from protovalue.data.dataset import open_dataset as open_dataset
    from protovalue.data.sampler import Sampler as Sampler
    from protovalue.encoder import FrozenEncoder as FrozenEncoder
    from protovalue.encoder import load_encoder as load_encoder
    from protovalue.envs.registry import make as make
    from protovalue.errors import UserError as UserError
    from protovalue.evaluate.episodes import evaluate_run as evaluate_run
    from protovalue.feature_env import FeatureEnv as FeatureEnv
    from protovalue.online.dqn import train_dqn as train_dqn
    from protovalue.online.linear_dqn import train_online as train_online
    from protovalue.registry import load_code as load_code
    from protovalue.runs import Run as Run

_HOME = {
    "Dataset": "protovalue.data.dataset",
    "FeatureEnv": "protovalue.feature_env",
    "FrozenEncoder": "protovalue.encoder",
    "Run": "protovalue.runs",
    "Sampler": "protovalue.data.sampler",
    "UserError": "protovalue.errors",
    "collect": "protovalue.data.collect",
    "evaluate_run": "protovalue.evaluate.episodes",
    "load_code": "protovalue.registry",
    "load_encoder": "protovalue.encoder",
    "make": "protovalue.envs.registry",
    "open_dataset": "protovalue.data.dataset",
    "train_dqn": "protovalue.online.dqn",
    "train_online": "protovalue.online.linear_dqn",
}

__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    """Import a public name from the module where it lives."""
    if name not in _HOME:
        raise AttributeError(f"module 'protovalue' has no attribute {name!r}; it has: {', '.join(sorted(_HOME))}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    """List the public names, imported or not."""
    return sorted(__all__)
