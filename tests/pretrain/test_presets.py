"""The paper's tables and every method's presets, typed out; and the limits of every setting."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.adam import Adam

from protovalue.envs.registry import resolve
from protovalue.errors import UserError
from protovalue.evaluate.config import EvaluateConfig
from protovalue.nets.encoders import make_encoder
from protovalue.online.config import OnlineConfig
from protovalue.presets import Preset, resolved
from protovalue.pretrain.config import PretrainConfig
from protovalue.pretrain.method_configs import PvnConfig
from protovalue.pretrain.methods import method_class, method_names
from protovalue.pretrain.trainer import Trainer

OUT = Path("run")


def settings(name: str, env_id: str, **given: Any) -> Any:  # of the class of its method
    cls = method_class(name)
    return resolved(cls.Config(out=OUT, method=name, **given), env_id)


def optimizer_of(config: Any) -> Adam:
    method: Any = torch.nn.Linear(1, 1)
    nothing: Any = None
    method.config, method.steps = config, lambda: 1
    return Trainer(method, nothing, nothing, "cpu").optimizer


def test_the_paper_s_table_of_pretraining() -> None:
    """'PVN Hyperparameters', in the paper's appendix, line by line; the encoder is its 8x Impala-CNN."""
    paper = settings("pvn", "atari/Pong", preset="paper", threshold="sgd")
    assert paper.tasks == 100, "Number of auxiliary tasks"
    assert paper.batch_size == 256, "Batch size"
    assert paper.steps == 1_562_500, "Number of gradient steps"
    assert paper.gamma == 0.99, "Discount factor"
    assert paper.target_ema == 0.99, "Target EMA coefficient"
    assert paper.proportion == 0.01, "Reward proportion"
    assert paper.burn_in == 62_500, "Quantile regression burn-in steps"
    assert paper.tasks_per_module == 10, "Tasks per module"
    optimizer = optimizer_of(paper)
    assert type(optimizer) is torch.optim.Adam, "Optimizer"
    assert optimizer.defaults["lr"] == 1e-4, "Adam Learning rate"
    assert optimizer.defaults["betas"] == (0.9, 0.999), "Adam beta_1, beta_2"
    assert optimizer.defaults["eps"] == 1.5e-4, "Adam epsilon"
    assert (optimizer.defaults["weight_decay"], optimizer.defaults["amsgrad"]) == (0, False)
    assert (paper.backup, paper.indicator, paper.normalize, paper.target_every) == ("mean", "rni", "no", None)
    assert (paper.architecture, paper.width) == ("impala", 8)
    assert make_encoder("impala", (4, 84, 84), 1, torch.Generator()).num_features * paper.width == 4096


def test_the_paper_s_table_of_the_online_phase() -> None:
    """'Online Hyperparameters'; frames are agent steps times the frame skip."""
    paper = resolved(OnlineConfig(env="atari/Pong", out=OUT, encoder="e", preset="paper"), "atari/Pong")
    assert (paper.head, paper.double, paper.prioritised) == ("dqn", False, False), "Update rule"
    assert paper.hidden == (), "Number of layers: 1 (linear)"
    assert paper.steps == 3_750_000, "Number of agent steps"
    frameskip = resolve("atari/Pong")["frameskip"]
    assert frameskip == 4, "Frame skip"
    assert paper.steps * frameskip == 15_000_000, "Total frames"
    assert (paper.epsilon, paper.epsilon_start) == (0.01, 0.01), "Train epsilon"
    assert EvaluateConfig(OUT).epsilon == 0.001, "Evaluation epsilon"
    assert paper.n_step == 1, "n step"
    assert paper.gamma == 0.99, "Discount factor"
    assert paper.learning_rate == 6.25e-5, "Adam Learning rate"
    assert paper.adam_epsilon == 1.5e-4, "Adam epsilon"
    assert paper.max_gradient_norm == 10, "Maximum gradient norm"
    assert paper.batch_size == 32, "Batch size"
    assert paper.replay_min == 2_000, "Minimum replay size"
    assert paper.replay_size == 1_000_000, "Maximum replay size"
    assert (paper.update_every, paper.updates) == (1, 1), "Gradient updates per agent step"


# Encoder, width, steps, batch, learning rate, Adam's epsilon and layer norm: the same for all methods. Only what they
# learn differs.
SHARED = {
    ("paper", "atari/Pong"): ("impala", 8, 1_562_500, 256, 1e-4, 1.5e-4, False),
    ("paper", "gym/Mine-v0"): ("impala", 8, 1_562_500, 256, 1e-4, 1.5e-4, False),
    ("paper", "minatar/breakout"): ("minatar", 8, 1_562_500, 256, 1e-4, 1.5e-4, False),
    ("small", "atari/Pong"): ("der", 1, 15_000, 64, 1e-3, 1e-8, True),
    ("small", "gym/Mine-v0"): ("impala", 1, 10_000, 256, 1e-4, 1.5e-4, False),
    ("small", "minatar/breakout"): ("minatar", 1, 5_000, 256, 1e-3, 1e-8, False),
}
# What each method adds: for images in both presets, for MinAtar in both, and what is another for Atari.
LAPLACIAN = {"dimensions": 100, "beta": 1.0, "ahead": 0.9}
SPR = {"channels": 64, "shift": 4, "intensity": 0.05, "dropout": 0.0, "target_ema": 0.0, "center": "no"}
SPR_GRID = {"channels": 64, "shift": 0, "intensity": 0.0, "dropout": 0.5, "target_ema": 0.99, "center": "no"}
CONTRASTIVE = {"dimensions": 100, "gamma": 0.99, "target_ema": 0.99, "orthonormality": 1.0, "second_map": "shared"}
RLDP = {"dimensions": 100, "horizon": 3, "hidden": 256, "target_ema": 0.99, "orthonormality": 1.0, "ahead": 0.0}
TDJEPA = {"dimensions": 100, "gamma": 0.98, "target_ema": 0.99, "orthonormality": 1.0, "second_map": "shared"}
OWN: dict[str, Any] = {
    "pvn": {
        "paper": {"tasks": 100, "proportion": 0.01, "target_ema": 0.99, "normalize": "no", "tasks_per_module": 10},
        "small": {"tasks": 100, "proportion": 0.01, "target_ema": 0.99, "normalize": "yes", "tasks_per_module": 10},
        "paper minatar": {"tasks": 100, "proportion": 0.01, "target_ema": 0.99, "normalize": "no"},
        "small minatar": {"tasks": 50, "proportion": 0.05, "target_ema": 0.95, "normalize": "yes", "gamma": 0.99},
        "small atari": {"tasks": 100, "proportion": 0.05, "target_ema": 0.95, "gamma": 0.9, "head_start": "mean"},
    },
    "cumulants": {
        "paper": {"tasks": 100, "target_ema": 0.99, "normalize": "no", "scale": 1.0, "unit": "deviation"},
        "small": {"tasks": 100, "target_ema": 0.99, "normalize": "yes", "tasks_per_module": 10, "backup": "max"},
        "paper minatar": {"tasks": 100, "target_ema": 0.99, "normalize": "no", "gamma": 0.99},
        "small minatar": {"tasks": 50, "target_ema": 0.95, "normalize": "yes", "gamma": 0.99},
        "small atari": {"tasks": 100, "target_ema": 0.95, "normalize": "yes", "gamma": 0.9, "head_start": "mean"},
    },
    "reward": {
        "paper": {"target_ema": 0.99, "gamma": 0.99, "clip_rewards": True, "double": True, "huber": False},
        "small": {"target_ema": 0.99},
        "paper minatar": {"target_ema": 0.99},
        "small minatar": {"target_ema": 0.95, "gamma": 0.99},
        "small atari": {"target_ema": 0.95, "gamma": 0.99},
    },
    "laplacian": {
        "paper": LAPLACIAN,
        "small": LAPLACIAN,
        "paper minatar": LAPLACIAN,
        "small minatar": {**LAPLACIAN, "dimensions": 50},
    },
    "spr": {
        "paper": {**SPR, "horizon": 5, "max_gradient_norm": 10.0},
        "small": {**SPR, "center": "yes"},
        "paper minatar": SPR_GRID,
        "small minatar": {**SPR_GRID, "channels": 16, "center": "yes"},
    },
    "contrastive": {
        "paper": CONTRASTIVE,
        "small": CONTRASTIVE,
        "paper minatar": CONTRASTIVE,
        "small minatar": {**CONTRASTIVE, "dimensions": 50, "target_ema": 0.95},
    },
    "rldp": {
        "paper": RLDP,
        "small": RLDP,
        "paper minatar": RLDP,
        "small minatar": {**RLDP, "dimensions": 50, "hidden": 128, "target_ema": 0.95},
    },
    "tdjepa": {
        "paper": TDJEPA,
        "small": TDJEPA,
        "paper minatar": TDJEPA,
        "small minatar": {**TDJEPA, "dimensions": 50, "target_ema": 0.95},
    },
    "bc": {},
    "random": {},
}


@pytest.mark.parametrize("name", method_names())
@pytest.mark.parametrize(("preset", "env_id"), SHARED)
def test_every_preset_of_every_method(name: str, preset: Any, env_id: Any) -> None:
    found = settings(name, env_id, preset=preset)
    shared = ("architecture", "width", "steps", "batch_size", "learning_rate", "adam_epsilon", "layer_norm")
    assert tuple(getattr(found, key) for key in shared) == SHARED[preset, env_id]
    assert (found.precision, found.seed) == ("auto", 0)
    general = {} if env_id.startswith("minatar") else OWN[name].get(preset, {})
    for key, value in OWN[name].get(f"{preset} {env_id.partition('/')[0]}", general).items():
        assert getattr(found, key) == value, key


def test_only_the_random_initialisation_does_without_data() -> None:
    assert [name for name in method_names() if not method_class(name).needs_data] == ["random"]


def test_what_is_given_is_kept() -> None:
    given = {"architecture": "nature", "width": 3, "steps": 0, "batch_size": 7, "learning_rate": 0.5, "threads": 2}
    found = settings("spr", "minatar/breakout", **given, dropout=0.0, target_ema=0.0, shift=1, center="no")
    assert {name: getattr(found, name) for name in given} == given
    assert (found.dropout, found.target_ema, found.shift, found.center, found.channels) == (0.0, 0.0, 1, "no", 16)


def test_a_method_s_own_preset_comes_before_the_common_one() -> None:
    """By preset, then by family, each time the common one first."""

    class Own(PretrainConfig):
        presets = (
            *PretrainConfig.presets,
            {("small", "*"): Preset("mine", width=5, steps=6), ("small", "gym"): Preset("mine", steps=7)},
        )

    found = resolved(Own(out=OUT), "gym/Mine-v0")
    assert (found.width, found.steps, found.batch_size) == (5, 7, 256)
    found = resolved(Own(out=OUT), "atari/Pong")
    assert (found.width, found.steps) == (5, 6)
    found = resolved(Own(out=OUT, preset="paper"), "gym/Mine-v0")
    assert (found.width, found.steps) == (8, 1_562_500)


def test_a_proto_value_network_fills_in_only_what_applies() -> None:
    hashes = settings("pvn", "minatar/breakout", indicator="hash")
    assert (hashes.normalize, hashes.tasks_per_module, hashes.burn_in, hashes.proportion) == ("no", None, None, 0.05)
    copied = settings("pvn", "minatar/breakout", target_every=7)
    assert (copied.target_every, copied.target_ema) == (7, None)
    learned = settings("pvn", "minatar/breakout", threshold="sgd", tasks_per_module=3, normalize="no")
    assert (learned.burn_in, learned.tasks_per_module, learned.normalize) == (62_500, 3, "no")
    assert settings("pvn", "minatar/breakout", threshold="sgd", burn_in=9).burn_in == 9


SHARE = ([0, 0.5, 0.999], [-0.1, 1, 1.5])
INSIDE = ([0.001, 0.5, 0.999], [0, 1, -0.1])
COUNT = ([1, 2], [0, -1])
LIMITS: dict[str, dict[str, Any]] = {
    "random": {"width": COUNT, "steps": ([0, 1], [-1]), "batch_size": COUNT, "threads": COUNT, "log_every": COUNT,
               "checkpoint_every": COUNT, "memory": COUNT, "learning_rate": ([1e-9, 2.0], [0, -1]),
               "seed": ([0, 1], [-1])},
    "pvn": {"tasks": ([0, 1], [-1]), "proportion": INSIDE, "gamma": SHARE, "target_ema": SHARE, "target_every": COUNT,
            "tasks_per_module": COUNT},
    "cumulants": {"tasks": COUNT, "scale": ([0.01, 3.0], [0, -1]), "tasks_per_module": COUNT, "gamma": SHARE,
                  "target_ema": SHARE},
    "reward": {"gamma": SHARE, "target_ema": SHARE},
    "laplacian": {"dimensions": COUNT, "beta": ([0.01, 3.0], [0, -1]), "ahead": SHARE, "batch_size": ([2], [1, 0])},
    "spr": {"horizon": COUNT, "channels": COUNT, "shift": ([0, 1], [-1]), "intensity": ([0, 0.499], [-0.1, 0.5]),
            "dropout": SHARE, "target_ema": SHARE, "max_gradient_norm": ([0, 0.5], [-1])},
    "bc": {},
    "contrastive": {"dimensions": COUNT, "orthonormality": ([0, 0.5], [-0.1]), "gamma": SHARE, "target_ema": SHARE,
                    "inverse": ([0, 0.5], [-0.1]), "batch_size": ([2], [1, 0])},
    "rldp": {"dimensions": COUNT, "orthonormality": ([0, 0.5], [-0.1]), "ahead": SHARE, "target_ema": SHARE,
             "horizon": COUNT, "hidden": ([0, 1], [-1]), "batch_size": ([2], [1, 0])},
    "tdjepa": {"dimensions": COUNT, "orthonormality": ([0, 0.5], [-0.1]), "gamma": SHARE, "target_ema": SHARE},
}  # fmt: skip


@pytest.mark.parametrize(("name", "field"), [(name, field) for name, fields in LIMITS.items() for field in fields])
def test_the_limits_of_every_setting(name: str, field: Any) -> None:
    cls, (good, bad) = method_class(name).Config, LIMITS[name][field]
    for value in good:
        assert getattr(cls(out=OUT, **{field: value}), field) == value
    for value in bad:
        with pytest.raises(UserError, match=f"^--{field.replace('_', '-')}: found {value}, expected"):
            cls(out=OUT, **{field: value})


@pytest.mark.parametrize("name", method_names())
def test_what_all_methods_share_is_checked_for_each(name: str) -> None:
    with pytest.raises(UserError, match="--width: found 0, expected more than 0 and less than 65536"):
        method_class(name).Config(out=OUT, width=0)


@pytest.mark.parametrize(
    ("given", "flag"),
    [
        ({"threshold": "sgd", "burn_in": 0}, "--burn-in: found 0, expected at least 1"),
        ({"burn_in": 9}, "--burn-in: found 9, expected it only"),
        ({"indicator": "hash", "normalize": "yes"}, "--normalize: found yes, expected it only"),
        ({"indicator": "hash", "tasks_per_module": 5}, "--tasks-per-module: found 5, expected it only"),
        ({"target_every": 3, "target_ema": 0.9}, "--target-ema: found 0.9, expected either it or --target-every"),
    ],
)
def test_settings_of_a_proto_value_network_that_do_not_go_together(given: dict[str, Any], flag: str) -> None:
    with pytest.raises(UserError, match=f"^{flag}"):
        method_class("pvn").Config(out=OUT, **given)


def test_settings_of_a_proto_value_network_that_do() -> None:
    config = PvnConfig
    assert config(out=OUT, threshold="sgd", burn_in=1).burn_in == 1
    assert config(out=OUT, indicator="hash", normalize="no").normalize == "no"
    assert config(out=OUT, indicator="rni", tasks_per_module=5, normalize="yes").tasks_per_module == 5
