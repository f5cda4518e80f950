"""Behaviour cloning: the loss by hand, and a deterministic policy that it must recover."""

import math

import numpy as np
import pytest
import torch

from protovalue.losses import cloning_loss
from protovalue.pretrain.bc import BcConfig
from protovalue.runs import read_metrics
from protovalue.tabular.gridworlds import open_grid
from tests.pretrain.helpers import pictures, successors, trained, walks


def test_loss_by_hand():
    """Softmax of (log 1, log 2, log 5) is (1, 2, 5) / 8; equal scores are -log(1/3) whatever the action."""
    scores = torch.tensor([[0.0, math.log(2), math.log(5)], [7.0, 7.0, 7.0]])
    loss = cloning_loss(scores, torch.tensor([1, 2]))
    assert loss.tolist() == pytest.approx([math.log(4), math.log(3)])


def test_it_recovers_a_deterministic_policy(tmp_path):
    """Any table of actions over the 16 states of a grid; the walks of the policy start everywhere."""
    table = np.random.default_rng(3).integers(4, size=16)
    data = walks(tmp_path / "set", successors(open_grid(4, 4)), 60, 5, policy=lambda state: int(table[state]))
    config = BcConfig(
        out=tmp_path / "run", data=(tmp_path / "set",), encoder="minatar", steps=250, batch_size=32,
        learning_rate=3e-3, log_every=10,
    )  # fmt: skip
    method = trained(config, data)
    with torch.no_grad():
        scores = method.head(method.encoder(torch.from_numpy(pictures(np.arange(16))[:, None])))
    assert scores.argmax(dim=1).tolist() == table.tolist()
    lines = read_metrics(config.out)
    assert lines[-1]["accuracy"] == 1.0 > lines[0]["accuracy"]
    assert lines[-1]["loss"] < 0.1 < 1.0 < lines[0]["loss"]


def test_random_actions_teach_nothing(tmp_path):
    """Nothing tells the action: accuracy stays near a quarter and the loss near log 4."""
    data = walks(tmp_path / "set", successors(open_grid(4, 4)), 200, 50)
    config = BcConfig(
        out=tmp_path / "run", data=(tmp_path / "set",), encoder="minatar", steps=100, batch_size=256,
        learning_rate=1e-3, log_every=10,
    )  # fmt: skip
    trained(config, data)
    lines = read_metrics(config.out)
    assert np.mean([line["accuracy"] for line in lines[-5:]]) == pytest.approx(0.25, abs=0.05)
    assert lines[-1]["loss"] == pytest.approx(math.log(4), abs=0.05)
