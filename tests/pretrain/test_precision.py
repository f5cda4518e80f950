"""bfloat16 is inside the networks and nowhere else: every method's loss from its own features, in float64 by NumPy."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from protovalue.data.dataset import Dataset
from protovalue.encoder import load_encoder
from protovalue.errors import UserError
from protovalue.nets.encoders import Encoder
from protovalue.precision import choose_precision
from protovalue.pretrain.config import PretrainConfig
from protovalue.pretrain.loop import pretrain, probe_of
from protovalue.pretrain.method_configs import (
    BcConfig,
    ContrastiveConfig,
    CumulantsConfig,
    LaplacianConfig,
    PvnConfig,
    RewardConfig,
    RldpConfig,
    SprConfig,
    TdJepaConfig,
)
from protovalue.pretrain.methods import method_names
from protovalue.runs import read_metrics, read_run
from protovalue.tabular.gridworlds import open_grid
from tests.pretrain.helpers import made, successors, walks

END = 15
LONG = {"gamma": 0.999}  # in bfloat16 this is 1
CONFIGS: dict[str, tuple[type[PretrainConfig], dict[str, Any]]] = {
    "pvn": (PvnConfig, {"tasks": 3, "proportion": 0.3, **LONG}),
    "pvn max": (PvnConfig, {"tasks": 3, "proportion": 0.3, "backup": "max", **LONG}),
    "cumulants": (CumulantsConfig, {"tasks": 3, **LONG}),
    "reward": (RewardConfig, LONG),
    "bc": (BcConfig, {}),
    "laplacian": (LaplacianConfig, {"dimensions": 3}),
    "spr": (SprConfig, {"channels": 4, "horizon": 2}),
    "contrastive": (ContrastiveConfig, {"dimensions": 3, **LONG}),
    "rldp": (RldpConfig, {"dimensions": 3, "horizon": 2, "hidden": 0}),
    "tdjepa": (TdJepaConfig, {"dimensions": 3, **LONG}),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("walk") / "set"
    return walks(folder, successors(open_grid(4, 4)), 40, 9, reward=lambda state: state / 10, ends=(END,))


@pytest.fixture
def config(request: pytest.FixtureRequest, data: Dataset, tmp_path: Path) -> PretrainConfig:
    kind, settings = CONFIGS[request.param]
    return kind(
        out=tmp_path / "run", data=(data.folders[0].path,), architecture="minatar", batch_size=16, steps=1, threads=1,
        log_every=1, **settings,
    )  # fmt: skip


def recorded(module: Any) -> list[Any]:
    """Return a list that will hold what a module gives, in float64."""
    found = []
    module.register_forward_hook(lambda _, given, result: found.append(result.detach()))
    return found


def doubles(tensors: Any) -> list[Any]:
    return [tensor.numpy().astype(np.float64) for tensor in tensors]


def linear(head: Any, x: Any) -> Any:
    return x @ head.weight.detach().numpy().T.astype(np.float64) + head.bias.detach().numpy()


def values(heads: Any, x: Any) -> Any:
    """Return the values of all tasks and actions, (N, m, A)."""
    weight, bias = heads.weight.detach().numpy().astype(np.float64), heads.bias.detach().numpy()
    return np.einsum("nk,amk->nma", x, weight) + bias.T


def task_values(method: Any, sample: Any, own: Any, behind: Any) -> Any:
    (x,), (following,), action = own, behind, sample["action"].numpy()
    next_values = values(method.target["heads"], following)
    best = next_values.max(axis=2) if method.config.backup == "max" else next_values.mean(axis=2)
    target = sample["reward"].numpy() + 0.999 * ~sample["terminal"].numpy()[:, None] * best
    return np.mean((target - values(method.heads, x)[np.arange(len(x)), :, action]) ** 2)


def reward(method: Any, sample: Any, own: Any, behind: Any) -> Any:
    (x, following), (behind,), rows = own, behind, np.arange(16)
    choice = values(method.head, following)[:, 0].argmax(axis=1)
    best = values(method.target["head"], behind)[rows, 0, choice]
    target = np.clip(sample["reward"].numpy(), -1, 1) + 0.999 * ~sample["terminal"].numpy() * best
    return np.mean((target - values(method.head, x)[rows, 0, sample["action"].numpy()]) ** 2)


def bc(method: Any, sample: Any, own: Any, behind: Any) -> Any:
    scores = linear(method.head, own[0])
    chosen = scores[np.arange(16), sample["action"].numpy()]
    return np.mean(np.log(np.exp(scores).sum(axis=1)) - chosen)


def laplacian(method: Any, sample: Any, own: Any, behind: Any) -> Any:
    f = linear(method.head, own[0])
    f, later = f[:16], f[16:]
    pairs = [(f[i] @ f[j]) ** 2 - f[i] @ f[i] - f[j] @ f[j] + 3 for i in range(16) for j in range(16) if i != j]
    return ((f - later) ** 2).sum(axis=1).mean() / 2 + np.mean(pairs)


def spr(method: Any, sample: Any, own: Any, behind: Any) -> Any:
    """Projections of the two steps, expected and seen; the centre is the mean over the steps that exist."""
    valid = sample["valid"].numpy()
    both = [np.stack([linear(method.predictor, y) for y in own], 1), np.stack(behind, 1)]
    y, z = (part - part[valid].mean(axis=0) for part in both)
    cosine = (y * z).sum(axis=2) / np.linalg.norm(y, axis=2) / np.linalg.norm(z, axis=2)
    return (2 - 2 * cosine)[valid].mean()


def orthonormality(f: Any) -> Any:
    pairs = [(f[i] @ f[j]) ** 2 for i in range(16) for j in range(16) if i != j]
    return np.mean(pairs) / 2 - (f**2).sum(axis=1).mean() + f.shape[1] / 2


def contrastive(method: Any, sample: Any, own: Any, behind: Any) -> Any:
    (x,), (following, y), apart = own, behind, ~np.eye(16, dtype=bool)
    measure = values(method.forward_heads, x)[np.arange(16), :, sample["action"].numpy()]
    backward = linear(method.backward_map.head, x)
    measure = measure @ backward.T
    after = values(method.target["heads"], following).mean(axis=2) @ linear(method.target["map"].head, y).T
    error = measure - 0.999 * ~sample["terminal"].numpy()[:, None] * after
    return (error**2)[apart].mean() / 2 - measure.diagonal().mean() + orthonormality(backward)


def rldp(method: Any, sample: Any, own: Any, behind: Any) -> Any:
    u = first = linear(method.state_map, own[0])
    errors = []
    for h, seen in enumerate(behind):
        u = values(method.model, u)[np.arange(16), :, sample["action"][:, h].numpy()]
        errors.append(((u - linear(method.target["state_map"], seen)) ** 2).sum(axis=1))
    return np.stack(errors, 1)[sample["valid"].numpy()].mean() + orthonormality(first)


def tdjepa(method: Any, sample: Any, own: Any, behind: Any) -> Any:
    (x,), (following,), target = own, behind, method.target
    state, task = linear(method.state_map, x), linear(method.task_map.head, x)
    after = values(target["heads"], linear(target["state_map"], following)).mean(axis=2)
    expected = linear(target["task_map"].head, following) + 0.999 * ~sample["terminal"].numpy()[:, None] * after
    error = values(method.heads, state)[np.arange(16), :, sample["action"].numpy()] - expected
    return (error**2).sum(axis=1).mean() + orthonormality(state) + orthonormality(task)


ORACLES = {
    "pvn": task_values, "cumulants": task_values, "reward": reward, "bc": bc, "laplacian": laplacian, "spr": spr,
    "contrastive": contrastive, "rldp": rldp, "tdjepa": tdjepa,
}  # fmt: skip


def test_every_method_is_here() -> None:
    assert {*ORACLES, "random"} == set(method_names())


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("config", CONFIGS, indirect=True)
def test_the_loss_is_that_of_its_features_in_float32(config: PretrainConfig, data: Dataset, precision: str) -> None:
    method = made(config, data)
    for parameter in method.parameters():  # so that target and network differ
        if not parameter.requires_grad:
            parameter.mul_(1.5)

    def module(encoder: Any) -> Any:
        return encoder.dense if config.method == "spr" else encoder

    own = recorded(module(method.encoder))
    behind = recorded(module(method.target["encoder"])) if hasattr(method, "target") else []
    sample = method.sample(0)
    with method.in_precision(precision):
        loss, logged = method.loss(sample)
    rounded = [bool((tensor.bfloat16() == tensor).all()) for tensor in (*own, *behind)]
    assert set(rounded) == {precision == "bfloat16"}, "features are computed in the precision"
    own, behind = (doubles(tensor.float() for tensor in part) for part in (own, behind))
    assert loss.item() == pytest.approx(ORACLES[config.method](method, sample, own, behind), rel=1e-6)
    assert all(tensor.dtype == torch.float32 for tensor in (loss, *logged.values()))
    loss.backward()
    trained = {name: parameter.grad for name, parameter in method.named_parameters() if parameter.requires_grad}
    assert all(gradient.dtype == torch.float32 and gradient.abs().sum() > 0 for gradient in trained.values())


@pytest.mark.parametrize("config", CONFIGS, indirect=True)
def test_the_loop_trains_in_bfloat16_and_looks_in_float32(config: PretrainConfig, data: Dataset) -> None:
    """The logged loss is that of bfloat16 features; the statistics are those of the encoder as it will be used."""
    config = replace(config, precision="bfloat16")
    pretrain(config, quiet=True)
    fresh = made(config, data)
    sample = fresh.sample(0)
    with fresh.in_precision("bfloat16"):
        expected = fresh.loss(sample)[0].item()
    (line,) = read_metrics(config.out)
    assert line["loss"] == pytest.approx(expected, rel=1e-6)
    assert made(config, data).loss(sample)[0].item() != pytest.approx(expected, rel=1e-6), "float32 is something else"
    probe = probe_of(data, data.env_id, "cpu")
    rms = float(load_encoder(config.out).features(probe).square().mean().sqrt())
    assert read_run(config.out)["done"]["feature_rms"] == pytest.approx(rms, rel=1e-6)


@pytest.mark.parametrize("config", ["pvn", "spr"], indirect=True)
def test_precision_is_for_a_while(config: PretrainConfig, data: Dataset) -> None:
    method = made(config, data)
    encoders = [module for module in method.modules() if isinstance(module, Encoder)]
    assert len(encoders) == 2
    with pytest.raises(RuntimeError), method.in_precision("bfloat16"):
        assert {encoder.precision for encoder in encoders} == {"bfloat16"}
        raise RuntimeError
    assert {encoder.precision for encoder in encoders} == {"float32"}


@pytest.mark.parametrize("config", ["bc"], indirect=True)
def test_what_is_recorded_is_what_was_used(config: PretrainConfig) -> None:
    """On a CPU auto is float32, on CUDA bfloat16. A run goes on in the precision that it was begun in."""
    pretrain(config, quiet=True)
    assert read_run(config.out)["config"]["precision"] == "float32"
    about = json.loads((config.out / "encoder" / "config.json").read_text())["about"]
    assert about["config"]["precision"] == "float32"
    assert "--precision float32" in (config.out / "encoder" / "README.md").read_text()
    pretrain(replace(config, precision="float32", steps=2), quiet=True)
    with pytest.raises(UserError, match=r"another config: precision bfloat16 \(the run has float32\)"):
        pretrain(replace(config, precision="bfloat16", steps=3), quiet=True)
    assert choose_precision("auto", "cpu") == "float32"
    assert choose_precision("auto", "cuda") == "bfloat16"
    assert choose_precision("float32", "cuda") == "float32"
    assert choose_precision("bfloat16", "cpu") == "bfloat16"
