"""The range of every setting of data, pretraining, reports and studies: the last good value and the first bad one."""

from pathlib import Path
from typing import Any

import pytest

from protovalue.bench import BenchConfig
from protovalue.config import PRESET, flag, flag_words
from protovalue.data.config import (
    CollectConfig,
    DataInfoConfig,
    ImportDqnReplayConfig,
    ImportMinariConfig,
    ImportRluConfig,
)
from protovalue.demo.config import DemoConfig
from protovalue.envs.options import EnvOptions
from protovalue.errors import UserError
from protovalue.presets import resolved
from protovalue.pretrain.config import PretrainConfig
from protovalue.pretrain.method_configs import PvnConfig
from protovalue.released.config import ImportEncoderConfig
from protovalue.report.config import ReportConfig
from protovalue.study.config import StudyPlanConfig, StudyRunConfig, StudyStopConfig
from protovalue.tabular.config import TabularConfig

OUT = Path("x")
NEEDED: dict[type[Any], dict[str, Any]] = {
    CollectConfig: {"env": "minatar/breakout", "out": OUT},
    ImportRluConfig: {"source": ("x",), "out": OUT},
    ImportDqnReplayConfig: {"source": ("x",), "out": OUT},
    ImportMinariConfig: {"source": ("x",), "out": OUT},
    ImportEncoderConfig: {"source": "x", "out": OUT},
    PretrainConfig: {"out": OUT},
    PvnConfig: {"out": OUT},
    StudyRunConfig: {"file": OUT},
    StudyPlanConfig: {"file": OUT},
    ReportConfig: {"runs": (OUT,)},
    TabularConfig: {"world": "ring", "out": OUT},
}
ABOVE_0, BELOW_1 = 5e-324, 1 - 2**-53
# The field, its last good values and the first bad ones next to them.
RANGES: list[tuple[type[Any], str, list[Any], list[Any]]] = [
    (CollectConfig, "steps", [1], [0]),
    (CollectConfig, "num_envs", [None, 1], [0]),
    (CollectConfig, "seed", [0], [-1]),
    (ImportRluConfig, "source", [("x",)], [()]),
    (ImportMinariConfig, "source", [("x",)], [()]),
    (ImportRluConfig, "workers", [None, 1], [0]),
    (ImportMinariConfig, "workers", [None, 1], [0]),
    (ImportRluConfig, "proportion", [ABOVE_0, 1.0], [0.0, 1 + 2**-52]),
    (ImportDqnReplayConfig, "proportion", [ABOVE_0, 1.0], [0.0, 1 + 2**-52]),
    (ImportEncoderConfig, "source", ["x"], [""]),
    (ImportEncoderConfig, "width", [None, ABOVE_0, (1 << 16) - 1], [0.0, 1 << 16, float("nan")]),
    *((PretrainConfig, name, [None, 1], [0]) for name in ("batch_size", "threads")),
    (PretrainConfig, "width", [None, ABOVE_0, 1, (1 << 16) - 1], [0, 1 << 16, float("nan")]),
    *((PretrainConfig, name, [1], [0]) for name in ("log_every", "checkpoint_every", "memory")),
    (PretrainConfig, "steps", [None, 0], [-1]),
    (PretrainConfig, "learning_rate", [None, ABOVE_0], [0.0, float("nan")]),
    (PretrainConfig, "adam_epsilon", [0.0], [-ABOVE_0, float("nan")]),
    (PretrainConfig, "seed", [0], [-1]),
    (PvnConfig, "tasks", [None, 0], [-1]),
    (PvnConfig, "proportion", [None, ABOVE_0, BELOW_1], [0.0, 1.0]),
    (PvnConfig, "gamma", [0.0, BELOW_1], [-ABOVE_0, 1.0]),
    (PvnConfig, "target_ema", [None, 0.0, BELOW_1], [-ABOVE_0, 1.0]),
    *((PvnConfig, name, [None, 1], [0]) for name in ("target_every", "tasks_per_module")),
    (StudyRunConfig, "jobs", [1], [0]),
    (StudyPlanConfig, "jobs", [1], [0]),
    (ReportConfig, "draws", [100], [99]),
    (ReportConfig, "runs", [(OUT,)], [()]),
    (TabularConfig, "size", [None, 3], [2]),
    (TabularConfig, "gamma", [ABOVE_0, BELOW_1], [0.0, 1.0]),
    (TabularConfig, "dimensions", [1], [0]),
    (TabularConfig, "proportion", [ABOVE_0, BELOW_1], [0.0, 1.0]),
    (TabularConfig, "seed", [0], [-1]),
]


@pytest.mark.parametrize(("config", "name", "good", "bad"), RANGES, ids=lambda value: getattr(value, "__name__", None))
def test_the_range_of_a_setting(config: type[Any], name: str, good: list[Any], bad: list[Any]) -> None:
    needed = NEEDED[config]
    for value in good:
        assert getattr(config(**{**needed, name: value}), name) == value
    flag = name.upper() if name in ("source", "runs") else f"--{name.replace('_', '-')}"
    for value in bad:
        with pytest.raises(UserError, match=f"^{flag}: found .*, expected "):
            config(**{**needed, name: value})


@pytest.mark.parametrize(
    ("config", "given", "named"),
    [
        (CollectConfig, {"policy": "dqn", "num_envs": 2}, "--num-envs"),
        (PvnConfig, {"burn_in": 5}, "--burn-in"),
        (PvnConfig, {"threshold": "sgd", "burn_in": 0}, "--burn-in"),
        (PvnConfig, {"threshold": "sgd", "indicator": "hash"}, "--threshold"),
        (PvnConfig, {"indicator": "hash", "normalize": "yes"}, "--normalize"),
        (PvnConfig, {"indicator": "mine.py", "tasks_per_module": 3}, "--tasks-per-module"),
        (PvnConfig, {"indicator": "mine.py", "rni_network": "dqn"}, "--rni-network"),
        (PvnConfig, {"indicator": "hash", "rni_output": "linear"}, "--rni-output"),
        (PvnConfig, {"target_every": 3, "target_ema": 0.5}, "--target-ema"),
        (ReportConfig, {"features": "none", "mds": "metric"}, "--mds"),
        (ReportConfig, {"runs": (), "paper": True, "features": "first"}, "--features"),
        (ReportConfig, {"runs": (), "paper": True, "draws": 100}, "--draws"),
        (ReportConfig, {"runs": (), "paper": True, "out": OUT}, "--out"),
        (StudyRunConfig, {"partition": "gpu"}, "--partition"),
        (StudyRunConfig, {"engine": "ray", "slurm": ("qos=a",)}, "--slurm"),
        (StudyRunConfig, {"engine": "slurm", "ray_address": "a:1"}, "--ray-address"),
    ],
)
def test_settings_that_do_not_go_together(config: type[Any], given: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError, match=f"^{named}: found .*, expected "):
        config(**{**NEEDED[config], **given})


@pytest.mark.parametrize(
    ("config", "given"),
    [
        (CollectConfig, {"policy": "dqn", "num_envs": 1}),
        (CollectConfig, {"policy": "dqn"}),
        (PvnConfig, {"threshold": "sgd", "burn_in": 1}),
        (PvnConfig, {"threshold": "sgd", "indicator": "mine.py"}),
        (PvnConfig, {"indicator": "hash", "normalize": "no"}),
        (PvnConfig, {"rni_network": "convolutions", "rni_output": "relu", "tasks_per_module": 1}),
        (ReportConfig, {"features": "first", "mds": "metric"}),
        (ReportConfig, {"paper": True, "out": OUT, "draws": 100}),
        (ReportConfig, {"runs": (), "paper": True}),
    ],
)
def test_settings_that_do(config: type[Any], given: dict[str, Any]) -> None:
    made = config(**{**NEEDED[config], **given})
    assert all(getattr(made, name) == value for name, value in given.items())


def test_what_a_setting_is_that_nobody_gives() -> None:
    """As the help says it, and as the results of the documents were made."""
    expected: dict[Any, dict[str, Any]] = {
        CollectConfig: {"steps": 100_000, "policy": "random", "num_envs": None, "seed": 0, "options": EnvOptions()},
        DataInfoConfig: {"picture": None},
        ImportRluConfig: {
            "skip_damaged": False, "workers": None, "split": "full", "iterations": None, "runs": None,
            "proportion": 1.0, "game": None, "actions": "minimal",
        },
        ImportMinariConfig: {"skip_damaged": False, "workers": None, "env": None, "options": EnvOptions()},
        ImportEncoderConfig: {"env": None, "input_range": "auto", "width": None},
        PvnConfig: {
            "method": "pvn", "preset": "small", "adam_epsilon": PRESET, "seed": 0, "device": "auto",
            "precision": "auto", "compile": False, "recompute_activations": False, "memory": 2048,
            "log_every": 100, "checkpoint_every": 1000, "indicator": "rni", "threshold": "exact", "backup": "mean",
            "gamma": PRESET, "holdout": (),
        },
        TabularConfig: {
            "map": None, "size": None, "walls": None, "gamma": 0.95, "dimensions": 4, "proportion": 0.1, "seed": 0,
        },
        StudyRunConfig: {
            "out": None, "jobs": None, "engine": "local", "ray_address": None, "partition": None, "account": None,
            "slurm": (), "retries": 3,
        },
        StudyStopConfig: {"out": None},
        StudyPlanConfig: {"out": None, "jobs": 1, "measure": "auto", "commands": False},
        ReportConfig: {
            "out": Path("report"), "paper": False, "features": "all", "mds": "classical", "draws": 2_000,
        },
        BenchConfig: {"quick": False},
        DemoConfig: {"out": Path("demo")},
    }  # fmt: skip
    needed = {
        **NEEDED,
        DataInfoConfig: {"paths": (OUT,)},
        BenchConfig: {"name": "data"},
        DemoConfig: {},
        StudyStopConfig: {"study": OUT},
    }
    for config, values in expected.items():
        made = config(**needed[config])
        assert {name: getattr(made, name) for name in values} == values


def test_options_of_an_environment_that_were_given() -> None:
    assert EnvOptions().given() == {}
    assert EnvOptions(sticky=0.0, episodic_life=False).given() == {"sticky": 0.0, "episodic_life": False}


def test_what_a_preset_leaves_unset_where_it_does_not_apply(tmp_path: Path) -> None:
    """The recorded settings hold no value that nobody looked at."""

    def settings(**given: Any) -> Any:
        return resolved(PvnConfig(out=tmp_path, **given), "minatar/breakout")

    own = ("burn_in", "normalize", "tasks_per_module", "rni_network", "rni_output", "target_ema", "target_every")
    expected = {
        (): (None, "yes", 10, "dqn", "linear", 0.95, None),
        (("indicator", "hash"),): (None, "no", None, None, None, 0.95, None),
        (("threshold", "sgd"),): (62_500, "yes", 10, "dqn", "linear", 0.95, None),
        (("target_every", 7), ("rni_output", "relu")): (None, "yes", 10, "dqn", "relu", None, 7),
        (("rni_network", "convolutions"), ("tasks_per_module", 3), ("burn_in", 9), ("threshold", "sgd")): (
            9, "yes", 3, "convolutions", "linear", 0.95, None,
        ),
    }  # fmt: skip
    for given, values in expected.items():
        assert tuple(getattr(settings(**dict(given)), name) for name in own) == values


def test_a_field_on_the_command_line() -> None:
    assert flag("batch_size") == "--batch-size"
    assert [flag_words("clip_rewards", True), flag_words("clip_rewards", False)] == [
        ["--clip-rewards"],
        ["--no-clip-rewards"],
    ]
    assert flag_words("data", (Path("a b"), Path("c"))) == ["--data", "a b", "c"]
    assert flag_words("learning_rate", 0.5) == ["--learning-rate", "0.5"]
