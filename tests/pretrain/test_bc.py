"""Behaviour cloning: the loss by hand, and a deterministic policy that it must recover."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from protovalue.pretrain.method_configs import BcConfig
from protovalue.runs import read_metrics
from protovalue.tabular.gridworlds import open_grid
from tests.pretrain.helpers import made, pictures, successors, trained, walks

AFTER = np.array([[1, 2, 3, 0], [3, 0, 1, 2], [2, 3, 0, 1]])  # where three actions lead in four states


def test_loss_by_hand(table: str, tmp_path: Path) -> None:
    """Scores log 1, log 2 and log 5 in every state, then the likeliest action is 2 and -log p is log 8, 4 and 8/5."""
    data = walks(tmp_path / "set", AFTER, 5, 6)
    method = made(BcConfig(out=tmp_path / "run", data=(tmp_path / "set",), architecture=table, batch_size=32), data)
    with torch.no_grad():
        method.head.weight.zero_()
        method.head.bias.copy_(torch.tensor([1.0, 2.0, 5.0]).log())
    loss, logged = method.loss(method.sample(2))
    episode, at = data.locate(method.sampler.indices(2))
    actions = data.actions(episode, at)
    assert loss.item() == pytest.approx(np.mean([math.log(8 / (1, 2, 5)[a]) for a in actions]), rel=1e-6)
    assert logged["accuracy"].item() == pytest.approx(np.mean(actions == 2))


def test_it_learns_the_frequencies_of_actions_in_each_state(table: str, tmp_path: Path) -> None:
    """A table's best scores are the logarithms of what was done in each state, counted."""
    rng = np.random.default_rng(5)
    chances = [[0.6, 0.3, 0.1], [0.2, 0.2, 0.6], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4]]
    data = walks(tmp_path / "set", AFTER, 40, 10, policy=lambda state: int(rng.choice(3, p=chances[state])))
    method = made(BcConfig(out=tmp_path / "run", data=(tmp_path / "set",), architecture=table, batch_size=400), data)
    whole = method.sampler.transitions(np.arange(400))
    method.sampler.batch = lambda step: whole
    optimizer = torch.optim.LBFGS(method.head.parameters(), max_iter=60, line_search_fn="strong_wolfe")

    def closure() -> Any:
        optimizer.zero_grad()
        loss, _ = method.loss(method.sample(0))
        loss.backward()
        return loss

    optimizer.step(closure)
    counts = np.zeros((4, 3))
    np.add.at(counts, (whole.obs.reshape(400, -1).argmax(axis=1), whole.action), 1)
    with torch.no_grad():
        learned = method.head(method.encoder(torch.from_numpy(pictures(np.arange(4))[:, None]))).softmax(dim=1)
    np.testing.assert_allclose(learned.numpy(), counts / counts.sum(axis=1, keepdims=True), atol=1e-3)


def test_it_recovers_a_deterministic_policy(tmp_path: Path) -> None:
    """Any table of actions over the 16 states of a grid; the walks of the policy start everywhere."""
    table = np.random.default_rng(3).integers(4, size=16)
    data = walks(tmp_path / "set", successors(open_grid(4, 4)), 60, 5, policy=lambda state: int(table[state]))
    config = BcConfig(
        out=tmp_path / "run", data=(tmp_path / "set",), architecture="minatar", steps=250, batch_size=32,
        learning_rate=3e-3, log_every=10,
    )  # fmt: skip
    method = trained(config, data)
    with torch.no_grad():
        scores = method.head(method.encoder(torch.from_numpy(pictures(np.arange(16))[:, None])))
    assert scores.argmax(dim=1).tolist() == table.tolist()
    lines = read_metrics(config.out)
    assert lines[-1]["accuracy"] == 1.0 > lines[0]["accuracy"]
    assert lines[-1]["loss"] < 0.1 < 1.0 < lines[0]["loss"]


def test_random_actions_teach_nothing(tmp_path: Path) -> None:
    """Nothing tells the action: accuracy stays near a quarter and the loss near log 4."""
    data = walks(tmp_path / "set", successors(open_grid(4, 4)), 200, 50)
    config = BcConfig(
        out=tmp_path / "run", data=(tmp_path / "set",), architecture="minatar", steps=100, batch_size=256,
        learning_rate=1e-3, log_every=10,
    )  # fmt: skip
    trained(config, data)
    lines = read_metrics(config.out)
    assert np.mean([line["accuracy"] for line in lines[-5:]]) == pytest.approx(0.25, abs=0.05)
    assert lines[-1]["loss"] == pytest.approx(math.log(4), abs=0.05)
