"""The work of stages by their shapes, against PyTorch's own counter and by hand."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from protovalue.data.dataset import Dataset
from protovalue.encoder import FrozenEncoder
from protovalue.indicators.registry import make_indicator
from protovalue.nets.cost import network_cost
from protovalue.nets.encoders import make_encoder
from protovalue.nets.heads import TaskHeads
from protovalue.online.agent import Rule
from protovalue.online.dqn import Dqn
from protovalue.online.linear_dqn import LinearDqn
from protovalue.online.replay import ReplayBatch
from protovalue.presets import resolved
from protovalue.pretrain.config import PretrainConfig
from protovalue.pretrain.method_configs import CumulantsConfig, PvnConfig
from protovalue.pretrain.methods import method_names
from protovalue.registry import ENCODERS
from protovalue.study.work import acting_flops, step_work, task_pass, update_flops
from protovalue.tabular.gridworlds import open_grid
from tests.pretrain.helpers import atari_shaped, made, successors, walks
from tests.pretrain.test_precision import CONFIGS


def counted(function: Any) -> int:
    with FlopCounterMode(display=False) as counter:
        function()
    return int(counter.get_total_flops())


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("walk") / "set"
    return walks(folder, successors(open_grid(4, 4)), 40, 9, reward=lambda state: state / 10, ends=(15,))


def config_of(name: str, data: Dataset, folder: Path, **changes: Any) -> PretrainConfig:
    kind, settings = CONFIGS[name]
    cached: dict[str, Any] = {"cache": folder / "cache"} if hasattr(kind, "cache") else {}
    given = {"architecture": "minatar", **settings, **changes}
    config = kind(out=folder / "run", data=(data.folders[0].path,), batch_size=6, threads=1, **cached, **given)
    return resolved(config, data.env_id)


def step_flops(method: Any) -> int:
    sample = method.sample(0)
    return counted(lambda: method.loss(sample)[0].backward())


MORE: list[tuple[str, dict[str, Any]]] = [
    ("contrastive", {"arrival": "yes"}),
    ("contrastive", {"second_map": "own"}),
    ("contrastive", {"second_map": "own", "arrival": "yes", "inverse": 0.5}),
    ("rldp", {"hidden": 5, "horizon": 3}),
    ("rldp", {"ahead": 0.5, "horizon": None}),
    ("tdjepa", {"second_map": "own"}),
    *((name, {"inverse": 0.5}) for name in ("pvn", "cumulants", "spr", "rldp", "tdjepa")),
]


@pytest.mark.parametrize("grouped", [True, False], ids=["CPU", "GPU"])
@pytest.mark.parametrize(("name", "changes"), [*((name, {}) for name in CONFIGS), *MORE])
def test_a_step_of_every_method(
    name: str,
    changes: dict[str, Any],
    grouped: bool,
    data: Dataset,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    assert {one.split()[0] for one in CONFIGS} | {"random"} == set(method_names())
    config = config_of(name, data, tmp_path, **changes)
    method = made(config, data)
    if not grouped:
        monkeypatch.setattr(TaskHeads, "taken", TaskHeads._taken_of_all)
    expected = step_flops(method)
    shape, actions = data.observation_shape, data.num_actions
    cost = network_cost(make_encoder("minatar", shape, config.width, torch.Generator()).to("meta"))
    found = step_work(config, cost, actions, shape[0], grouped)
    assert found.flops == expected
    trained = sum(one.numel() for one in method.parameters() if one.requires_grad)
    assert found.head_parameters + cost.parameters == trained
    assert found.copies == sum(one.numel() for one in method.parameters()) - trained
    assert found.known
    sample = method.sample(0)
    frames = sum(one.numel() for key, one in sample.items() if key in ("frames", "obs", "later"))
    assert found.frames * 6 * np.prod(shape[1:]) == frames


@pytest.mark.parametrize("architecture", ENCODERS.names())
@pytest.mark.parametrize("name", ["pvn", "spr"])
def test_a_step_with_every_encoder(architecture: str, name: str, tmp_path: Path) -> None:
    data = atari_shaped(tmp_path / "data")
    more = {"indicator": "hash"} if name == "pvn" else {}
    config = config_of(name, data, tmp_path, architecture=architecture, width=0.125, **more)
    method = made(config, data)
    meta = make_encoder(architecture, data.observation_shape, config.width, torch.Generator()).to("meta")
    found = step_work(config, network_cost(meta), data.num_actions, 4, True)
    assert found.flops == step_flops(method)


def test_an_encoder_by_hand() -> None:
    """Impala: pixels get no gradient, so that the first convolution's backward pass is as its forward pass."""
    encoder = make_encoder("impala", (4, 84, 84), 2, torch.Generator()).to("meta")
    cost = network_cost(encoder)
    layers = []
    size, channels = 84, 4
    for out in (32, 64, 64):
        layers.append(2 * size * size * 9 * channels * out)
        size, channels = size // 2 if size % 2 == 0 else (size + 1) // 2, out
        layers += [2 * size * size * 9 * out * out] * 4
    assert size == 11
    dense = 2 * 64 * 121 * 1024
    assert cost.convolving == sum(layers)
    assert cost.forward == sum(layers) + dense
    assert cost.training == 3 * (sum(layers) + dense) - layers[0]
    assert cost.convolving_training == 3 * sum(layers) - layers[0]
    assert cost.latents == (64, 11, 11)
    assert cost.parameters == sum(one.numel() for one in encoder.parameters())


def test_what_is_kept_for_the_gradient_by_hand() -> None:
    """MinAtar: the patches of the convolution, its result after the ReLU, the features after theirs."""
    cost = network_cost(make_encoder("minatar", (1, 10, 10, 6), 1, torch.Generator()).to("meta"))
    assert cost.saved == 64 * 9 * 6 + 16 * 64 + 128


@pytest.mark.parametrize("hidden", [True, False])
def test_the_pass_over_the_data(hidden: bool) -> None:
    """Against the indicator itself; bits stay, scores pass."""
    shape, network = (4, 40, 40), "dqn" if hidden else "convolutions"
    given: Any = {"out": Path(), "data": (Path(),), "tasks": 13, "tasks_per_module": 5, "rni_network": network}
    config = resolved(PvnConfig(**given), "atari/Pong")
    made_up = make_indicator("rni", shape, 13, 0.1, torch.Generator(), tasks_per_module=5, hidden=hidden)
    expected = counted(lambda: made_up.to("meta").networks(torch.zeros((1, *shape), dtype=torch.uint8, device="meta")))  # type: ignore[operator]
    found = task_pass(config, shape)
    assert found is not None
    assert (found.flops, found.kept, found.meanwhile) == (expected, 2, 52)
    assert found.networks == 4 * sum(one.numel() for one in made_up.parameters())
    cumulants = task_pass(resolved(CumulantsConfig(out=Path(), data=(Path(),), tasks=13), "atari/Pong"), shape)
    assert cumulants is not None
    assert (cumulants.kept, cumulants.meanwhile) == (52, 0)
    hashed = resolved(PvnConfig(out=Path(), data=(Path(),), tasks=13, indicator="hash"), "atari/Pong")
    work = task_pass(hashed, shape)
    assert work is not None
    assert (work.flops, work.kept, work.meanwhile) == (2 * 6400 * 13, 2, 0)
    assert task_pass(resolved(PretrainConfig(out=Path()), "atari/Pong"), shape) is None


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("trains", [False, True])
def test_agents_act_and_learn(double: bool, trains: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    shape, seeds, batch = (2, 40, 40), 3, 5
    encoder = make_encoder("nature", shape, 0.25, torch.Generator())
    cost = network_cost(make_encoder("nature", shape, 0.25, torch.Generator()).to("meta"))
    rule = Rule(1e-3, 1e-4, 0.0, 100, double)
    obs = np.zeros((seeds, batch, *shape), np.uint8)
    if trains:
        agent: Any = Dqn(rule, range(seeds), 4, encoder)
        items = obs
    else:
        agent = LinearDqn(rule, range(seeds), 4, FrozenEncoder(encoder, {}), 1.0)
        agent._encode = agent._linear = None  # as on a GPU
        items = np.zeros((seeds, batch, encoder.num_features), np.float16)
    zeros = np.zeros((seeds, batch), np.float32)
    data = ReplayBatch(items, zeros.astype(np.int64), zeros, zeros, items, zeros.astype(np.int64))
    assert counted(lambda: agent.update(data)) == update_flops(cost, 4, seeds, batch, double, trains)
    assert counted(lambda: agent.values(agent.see(obs[:, 0]))) == acting_flops(cost, 4, seeds)
