"""Random cumulants: their optimal values on a small world, and that every option counts."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from protovalue.indicators.precompute import load_indicator
from protovalue.losses import td_loss
from protovalue.pretrain.cumulants import CumulantsConfig
from protovalue.pretrain.loop import pretrain
from protovalue.tabular.gridworlds import open_grid
from tests.pretrain.helpers import pictures, successors, trained, walks

END, GAMMA = 15, 0.8


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return walks(tmp_path_factory.mktemp("mdp") / "set", successors(open_grid(4, 4)), 300, 20, ends=(END,))


@pytest.fixture
def config(data, tmp_path):
    return CumulantsConfig(
        out=tmp_path / "run", data=(data.folders[0].path,), encoder="minatar", steps=1000, batch_size=64,
        learning_rate=2e-3, tasks=4, tasks_per_module=2, gamma=GAMMA, target_ema=0.9, normalize="yes", threads=1,
    )  # fmt: skip


def test_loss_by_hand():
    """f(x) = 1, f(x') = 3, s = 2: c = 4. Best next value 5: target 4 + 0.5 * 5 = 6.5; at a terminal 4."""
    cumulant = 2 * (torch.tensor([[3.0], [3.0]]) - torch.tensor([[1.0], [1.0]]))
    best = torch.tensor([[[5.0, -1.0]], [[5.0, -1.0]]]).amax(dim=2)
    loss, error = td_loss(torch.tensor([[6.0], [6.0]]), best, cumulant, torch.tensor([False, True]), 0.5)
    assert error.tolist() == [[0.5], [-2.0]]
    assert loss.item() == (0.25 + 4) / 2


def test_it_finds_the_optimal_values_of_its_cumulants(data, config):
    """Value iteration over the 16 states, with f from the networks saved with the run."""
    method = trained(config, data)
    frames = torch.from_numpy(pictures(np.arange(16))[:, None])
    networks = load_indicator(config.out / "cumulants").networks
    f = networks(frames).numpy() / method.tasks.deviation  # (n, m), in units of the deviation
    after = successors(open_grid(4, 4))
    going_on = (np.arange(16) != END)[:, None]
    exact = np.zeros((4, 16, 4))  # (A, n, m)
    for _ in range(200):  # error 0.8^200 < 1e-19
        exact = f[after] - f + GAMMA * (going_on * exact.max(axis=0))[after]
    with torch.no_grad():
        learned = method.heads.all_actions(method.encoder(frames)).numpy().transpose(2, 0, 1)
    inside = np.arange(16) != END
    assert exact[:, inside].std() > 0.5, "values are as large as s f / deviation"
    assert np.abs(learned - exact)[:, inside].max() < 0.15


@pytest.mark.parametrize(
    "change",
    [
        {"tasks": 5},
        {"scale": 2.0},
        {"unit": "none"},
        {"normalize": "no"},
        {"tasks_per_module": 1},
        {"backup": "mean"},
        {"gamma": 0.5},
        {"target_ema": 0.5},
        {"cumulant_seed": 9},
        {"seed": 1},
    ],
    ids=str,
)
def test_every_option_changes_the_result(config, tmp_path, change):
    short = replace(config, steps=20)
    pretrain(short, quiet=True)
    pretrain(replace(short, out=tmp_path / "other", **change), quiet=True)
    first, second = ((path / "encoder" / "model.safetensors").read_bytes() for path in (short.out, tmp_path / "other"))
    assert first != second
