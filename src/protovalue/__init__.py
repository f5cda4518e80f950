"""Proto-value networks and their baselines: state representations without rewards, and what they are worth.

The names below are imported when they are first used, so that `import protovalue` costs nothing. docs/python.md shows
them at work.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from protovalue.api import collect as collect
    from protovalue.api import evaluate as evaluate
    from protovalue.api import pretrain as pretrain
    from protovalue.api import report as report
    from protovalue.api import run_study as run_study
    from protovalue.api import train_dqn as train_dqn
    from protovalue.api import train_online as train_online
    from protovalue.data.config import CollectConfig as CollectConfig
    from protovalue.data.dataset import Dataset as Dataset
    from protovalue.data.dataset import open_dataset as open_dataset
    from protovalue.data.sampler import Sampler as Sampler
    from protovalue.encoder import FrozenEncoder as FrozenEncoder
    from protovalue.encoder import load_encoder as load_encoder
    from protovalue.envs.options import EnvOptions as EnvOptions
    from protovalue.envs.registry import make as make
    from protovalue.errors import UserError as UserError
    from protovalue.evaluate.config import EvaluateConfig as EvaluateConfig
    from protovalue.feature_env import FeatureEnv as FeatureEnv
    from protovalue.online.config import DqnConfig as DqnConfig
    from protovalue.online.config import OnlineConfig as OnlineConfig
    from protovalue.pretrain.config import PretrainConfig as PretrainConfig
    from protovalue.pretrain.method_configs import BcConfig as BcConfig
    from protovalue.pretrain.method_configs import CumulantsConfig as CumulantsConfig
    from protovalue.pretrain.method_configs import LaplacianConfig as LaplacianConfig
    from protovalue.pretrain.method_configs import PvnConfig as PvnConfig
    from protovalue.pretrain.method_configs import RandomConfig as RandomConfig
    from protovalue.pretrain.method_configs import RewardConfig as RewardConfig
    from protovalue.pretrain.method_configs import SprConfig as SprConfig
    from protovalue.registry import load_code as load_code
    from protovalue.report.config import ReportConfig as ReportConfig
    from protovalue.runs import Run as Run
    from protovalue.study.config import StudyRunConfig as StudyRunConfig

_HOME = {
    "BcConfig": "protovalue.pretrain.method_configs",
    "CollectConfig": "protovalue.data.config",
    "CumulantsConfig": "protovalue.pretrain.method_configs",
    "Dataset": "protovalue.data.dataset",
    "DqnConfig": "protovalue.online.config",
    "EnvOptions": "protovalue.envs.options",
    "EvaluateConfig": "protovalue.evaluate.config",
    "FeatureEnv": "protovalue.feature_env",
    "FrozenEncoder": "protovalue.encoder",
    "LaplacianConfig": "protovalue.pretrain.method_configs",
    "OnlineConfig": "protovalue.online.config",
    "PretrainConfig": "protovalue.pretrain.config",
    "PvnConfig": "protovalue.pretrain.method_configs",
    "RandomConfig": "protovalue.pretrain.method_configs",
    "ReportConfig": "protovalue.report.config",
    "RewardConfig": "protovalue.pretrain.method_configs",
    "Run": "protovalue.runs",
    "Sampler": "protovalue.data.sampler",
    "SprConfig": "protovalue.pretrain.method_configs",
    "StudyRunConfig": "protovalue.study.config",
    "UserError": "protovalue.errors",
    "collect": "protovalue.api",
    "evaluate": "protovalue.api",
    "load_code": "protovalue.registry",
    "load_encoder": "protovalue.encoder",
    "make": "protovalue.envs.registry",
    "open_dataset": "protovalue.data.dataset",
    "pretrain": "protovalue.api",
    "report": "protovalue.api",
    "run_study": "protovalue.api",
    "train_dqn": "protovalue.api",
    "train_online": "protovalue.api",
}
_FOLDERS = ("evaluate", "pretrain", "report")  # functions, and folders of this package, too

__all__ = ["__version__", *_HOME]


class _Stage(ModuleType):
    """A folder of this package whose name is also that of a function: calling the one is calling the other."""

    def __call__(self, *args: Any, **settings: Any) -> Any:
        return _function(self.__name__.rpartition(".")[2])(*args, **settings)


class _Package(ModuleType):
    """This package. Python puts a folder's module here when it is imported, in place of a function of its name."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _FOLDERS and isinstance(value, ModuleType):
            value.__class__ = _Stage
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def _function(name: str) -> Any:
    return getattr(import_module(_HOME[name]), name)


def __getattr__(name: str) -> Any:
    """Import a public name from the module where it lives."""
    if name not in _HOME:
        raise AttributeError(f"module 'protovalue' has no attribute {name!r}; it has: {', '.join(sorted(_HOME))}")
    return import_module(f"protovalue.{name}") if name in _FOLDERS else _function(name)


def __dir__() -> list[str]:
    """List the public names, imported or not."""
    return sorted(__all__)
