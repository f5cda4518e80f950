"""The graph-drawing objective: by hand, against its definition, and against the exact Laplacian of a small world."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from protovalue.data.dataset import Dataset
from protovalue.pretrain.laplacian import steps_ahead
from protovalue.pretrain.loop import pretrain
from protovalue.pretrain.method_configs import LaplacianConfig
from protovalue.randomness import Purpose, generator_at
from protovalue.tabular.gridworlds import open_grid
from protovalue.tabular.protovalues import proto_value_functions
from protovalue.tabular.subspaces import principal_angles
from tests.pretrain.helpers import made, pictures, successors, trained, walks

COLUMNS = 7
WORLD = open_grid(2, COLUMNS)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return walks(tmp_path_factory.mktemp("walk") / "set", successors(WORLD), 400, 10)


@pytest.fixture
def config(data: Dataset, tmp_path: Path) -> LaplacianConfig:
    return LaplacianConfig(
        out=tmp_path / "run", data=(data.folders[0].path,), architecture="minatar", steps=600, batch_size=128,
        learning_rate=3e-3, dimensions=3, beta=2.0, ahead=0.0, threads=1,
    )  # fmt: skip


def test_loss_by_hand(data: Dataset, config: LaplacianConfig, table: str) -> None:
    """Attraction over the batch's pairs and repulsion over all pairs of different rows, one pair at a time."""
    method = made(replace(config, architecture=table, batch_size=6, beta=2.0), data)
    f = np.random.default_rng(0).normal(size=(16, 3)).astype(np.float32)
    with torch.no_grad():
        method.head.weight.copy_(torch.from_numpy(f.T))
    sample = method.sample(4)
    loss, logged = method.loss(sample)
    u, v = (f[part.flatten(1).numpy().argmax(axis=1)].astype(float) for part in (sample["obs"], sample["later"]))
    attraction = np.mean([(a - b) @ (a - b) / 2 for a, b in zip(u, v, strict=True)])
    pairs = [(u[i] @ u[j]) ** 2 - u[i] @ u[i] - u[j] @ u[j] + 3 for i in range(6) for j in range(6) if i != j]
    assert logged["attraction"].item() == pytest.approx(attraction, rel=1e-5)
    assert logged["repulsion"].item() == pytest.approx(np.mean(pairs), rel=1e-5)
    assert loss.item() == pytest.approx(attraction + 2 * np.mean(pairs), rel=1e-5)


def test_steps_ahead_by_hand() -> None:
    """share 1/2 and at most 3: probabilities 4/7, 2/7, 1/7."""
    uniform = np.array([0.0, 0.57, 0.58, 0.857, 0.858, 0.999999])
    assert steps_ahead(uniform, np.full(6, 3), 0.5).tolist() == [1, 1, 2, 2, 3, 3]
    assert steps_ahead(uniform, np.ones(6, np.int64), 0.9).tolist() == [1] * 6
    assert steps_ahead(uniform, np.full(6, 3), 0.0).tolist() == [1] * 6


def test_the_states_are_those_that_the_random_numbers_say(data: Dataset, config: LaplacianConfig) -> None:
    """The first n whose probability, 0.6^(n - 1) of 1 + 0.6 + ... to the episode's end, adds up to more than drawn."""
    method = made(replace(config, ahead=0.6, seed=3), data)
    sample = method.sample(7)
    episode, at = data.locate(method.sampler.indices(7))
    uniform = generator_at(3, Purpose.AHEAD, 7).random(128)
    for row in range(128):
        frames = data.episode(int(episode[row])).frames
        chances = 0.6 ** np.arange(len(frames) - 1 - at[row])
        ahead = 1 + int(np.searchsorted(np.cumsum(chances / chances.sum()), uniform[row], side="right"))
        assert np.array_equal(sample["obs"][row, 0].numpy(), frames[at[row]])
        assert np.array_equal(sample["later"][row, 0].numpy(), frames[at[row] + ahead])
    assert method.sample_bytes() == sum(tensor.numel() for tensor in sample.values())


@pytest.mark.parametrize("ahead", [0.0, 0.5])
def test_later_states_are_of_the_same_episode(data: Dataset, config: LaplacianConfig, ahead: float) -> None:
    """A walk of a grid: after one step the pixel has moved by at most one place; later ones are never empty."""
    method = made(replace(config, ahead=ahead), data)
    sample = method.sample(0)
    assert bool(sample["later"].flatten(1).any(1).all())
    places = [torch.nonzero(part.flatten(1))[:, 1].numpy() for part in (sample["obs"], sample["later"])]
    rows, columns = ([place // COLUMNS for place in places], [place % COLUMNS for place in places])
    distance = np.abs(rows[0] - rows[1]) + np.abs(columns[0] - columns[1])
    assert (distance.max() == 1) == (ahead == 0.0)


def test_it_spans_the_smallest_eigenvectors(data: Dataset, config: LaplacianConfig) -> None:
    """The random walk of the grid is I - L / 4: its three smoothest functions are those of L, to 8 degrees."""
    method = trained(config, data)
    with torch.no_grad():
        features = method.encoder(torch.from_numpy(pictures(np.arange(14))[:, None]))
        learned = method.head(features).numpy().astype(np.float64)
    values, exact = proto_value_functions(WORLD, 4)
    assert values[3] > 1.5 * values[2], "a gap: the span of three is well defined"
    angles = np.rad2deg(principal_angles(learned, exact[:, :3]))
    assert angles[0] < 8.0
    start = np.rad2deg(principal_angles(np.random.default_rng(0).normal(size=(14, 3)), exact[:, :3]))
    assert start[0] > 60, "a random subspace is far away"


@pytest.mark.parametrize("change", [{"dimensions": 4}, {"beta": 1.0}, {"ahead": 0.9}, {"seed": 1}], ids=str)
def test_every_option_changes_the_result(config: LaplacianConfig, tmp_path: Path, change: dict[str, Any]) -> None:
    short = replace(config, steps=10)
    pretrain(short, quiet=True)
    pretrain(replace(short, out=tmp_path / "other", **change), quiet=True)
    first, second = ((path / "encoder" / "model.safetensors").read_bytes() for path in (short.out, tmp_path / "other"))
    assert first != second
