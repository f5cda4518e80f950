"""What may be added to methods: inverse dynamics, and layer norm before the readout."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from protovalue.data.dataset import Dataset
from protovalue.encoder import load_encoder
from protovalue.errors import UserError
from protovalue.pretrain.loop import pretrain
from protovalue.pretrain.methods import method_class, method_names
from protovalue.runs import read_run
from tests.pretrain.helpers import TRANSITIONS, made, two_episodes

INVERSE: dict[str, dict[str, Any]] = {
    "pvn": {"tasks": 3},
    "cumulants": {"tasks": 3},
    "spr": {"channels": 2, "horizon": 2, "shift": 0, "intensity": 0.0},
    "contrastive": {"dimensions": 2},
    "rldp": {"dimensions": 2},
    "tdjepa": {"dimensions": 2},
}


@pytest.fixture
def few(tmp_path: Path) -> Dataset:
    return two_episodes(tmp_path / "few")


def config_of(name: str, few: Dataset, out: Path, **changes: Any) -> Any:
    given = {"architecture": "minatar", "batch_size": 6, "threads": 1, **INVERSE.get(name, {}), **changes}
    return method_class(name).Config(out=out, data=(few.folders[0].path,), method=name, **given)


def test_which_methods_have_inverse_dynamics() -> None:
    having = {name for name in method_names() if "inverse" in method_class(name).Config.__dataclass_fields__}
    assert having == set(INVERSE)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", INVERSE)
def test_inverse_dynamics_by_hand(name: str, few: Dataset, tmp_path: Path, precision: Any) -> None:
    """Scores w_a^T (phi(x), phi(x')) + b_a of random w, and the loss without it; the encoder is what both learn."""
    plain, added = (made(config_of(name, few, tmp_path / "run", inverse=weight), few) for weight in (0.0, 0.3))
    assert all(torch.equal(tensor, added.state_dict()[key]) for key, tensor in plain.state_dict().items())
    torch.manual_seed(0)
    w, b = torch.randn(2, 2 * 128), torch.tensor([0.25, -0.5])
    with torch.no_grad():
        added.inverse.head.weight.copy_(w)
        added.inverse.head.bias.copy_(b)
    sample = added.sample(3)
    with added.in_precision(precision), plain.in_precision(precision):
        loss, logged = added.loss(sample)
        without, _ = plain.loss(plain.sample(3))
    stack = few.stack
    with torch.no_grad(), added.in_precision(precision):
        x, after = (added.encoder(sample["frames"][:, k : k + stack]).double().numpy() for k in (0, 1))
    actions = [TRANSITIONS[index][1] for index in added.sampler.indices(3)]
    terms, right = [], 0
    for row, action in enumerate(actions):
        scores = w.double().numpy() @ np.concatenate([x[row], after[row]]) + b.numpy()
        terms.append(math.log(sum(math.exp(score - scores[action]) for score in scores)))
        right += int(scores[action] > scores[1 - action])
    assert logged["inverse_loss"].item() == pytest.approx(np.mean(terms), rel=1e-4)
    assert loss.item() - without.item() == pytest.approx(0.3 * np.mean(terms), rel=1e-3)
    assert logged["inverse_accuracy"].item() == pytest.approx(right / 6)
    loss.backward()
    assert added.inverse.head.weight.grad.abs().sum() > 0


def test_inverse_dynamics_tells_actions(few: Dataset, tmp_path: Path) -> None:
    """In these four transitions the next state says which action it was."""
    config = config_of("pvn", few, tmp_path / "run", inverse=1.0, steps=60, learning_rate=1e-2)
    assert read_run(pretrain(config, quiet=True))["done"]["inverse_accuracy"] == 1


@pytest.mark.parametrize("name", method_names())
def test_layer_norm_by_hand(name: str, few: Dataset, tmp_path: Path) -> None:
    """Every observation's features have mean 0 and variance 1 before they are cut off; the folder says so."""
    training = {} if name == "random" else {"steps": 2}
    changes = {"dimensions": 2} if name == "laplacian" else {}
    plain = config_of(name, few, tmp_path / "plain", **training, **changes)
    config = config_of(name, few, tmp_path / "run", layer_norm=True, **training, **changes)
    if name == "random":
        plain, config = (method_class(name).Config(out=one.out, env="minatar/breakout", method=name,
                                                   layer_norm=one.layer_norm) for one in (plain, config))  # fmt: skip
    for one in (plain, config):
        pretrain(one, quiet=True)
    assert "layer_norm" not in read_run(plain.out)["config"]
    found, without = load_encoder(config.out), load_encoder(plain.out)
    shape = found.observation_shape
    obs = torch.from_numpy(np.random.default_rng(0).random((5, *shape)) < 0.3)
    with torch.no_grad():
        features = found(obs).double()
        encoder = found.encoder
        latents = encoder.convolve(obs.float().movedim(-1, 2).flatten(1, 2) if obs.dim() == 5 else obs.float())
        if name == "spr":
            low, high = latents.amin(1, keepdim=True), latents.amax(1, keepdim=True)
            latents = (latents - low) / (high - low + 1e-5)
        dense = encoder.dense(latents).double()
    centred = dense - dense.mean(dim=1, keepdim=True)
    expected = centred / (centred.square().mean(dim=1, keepdim=True) + 1e-5).sqrt()
    if name != "spr":
        expected = expected.clamp_min(0)
    torch.testing.assert_close(features, expected, rtol=1e-3, atol=1e-4)
    assert found.encoder.readout == f"normalized {without.encoder.readout}"
    quick = found.encoder.compiled()
    assert (quick is None) == (name == "spr")
    if quick is not None:
        np.testing.assert_allclose(quick(obs.numpy()), expected.numpy(), rtol=1e-3, atol=1e-4)


def test_a_forward_pass_of_its_own_has_no_place_for_layer_norm(few: Dataset, table: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--layer-norm: found an encoder Table that reads out its features itself"):
        made(config_of("bc", few, tmp_path / "run", architecture=table, layer_norm=True), few)
