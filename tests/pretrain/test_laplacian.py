"""The graph-drawing objective: by hand, against its definition, and against the exact Laplacian of a small world."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from protovalue.losses import graph_drawing_loss
from protovalue.pretrain.laplacian import LaplacianConfig, steps_ahead
from protovalue.pretrain.loop import pretrain
from protovalue.tabular.gridworlds import open_grid
from protovalue.tabular.protovalues import proto_value_functions
from protovalue.tabular.subspaces import principal_angles
from tests.pretrain.helpers import pictures, successors, trained, walks

COLUMNS = 7
WORLD = open_grid(2, COLUMNS)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return walks(tmp_path_factory.mktemp("walk") / "set", successors(WORLD), 400, 10)


@pytest.fixture
def config(data, tmp_path):
    return LaplacianConfig(
        out=tmp_path / "run", data=(data.folders[0].path,), encoder="minatar", steps=600, batch_size=128,
        learning_rate=3e-3, dimensions=3, beta=2.0, ahead=0.0, threads=1,
    )  # fmt: skip


def test_loss_by_hand():
    """Two states, d = 2. Attraction: 1/2 of the mean of |(1, -2)|^2 = 5 and |(2, 0)|^2 = 4, so 9/4.

    Repulsion: the product of the two is 1 * 3 + 2 * 0 = 3, its square 9; the norms' squares are 5 and 9: 9 - 14 + 2.
    """
    features = torch.tensor([[1.0, 2.0], [3.0, 0.0]])
    attraction, repulsion = graph_drawing_loss(features, torch.tensor([[0.0, 4.0], [1.0, 0.0]]))
    assert attraction.item() == 9 / 4
    assert repulsion.item() == 9 - 14 + 2


def test_repulsion_is_zero_for_orthonormal_functions_and_unbiased():
    """Over all ordered pairs of a small population, the mean is sum_jk (E f_j f_k - [j = k])^2 by definition."""
    f = np.random.default_rng(0).normal(size=(6, 3))
    pairs = [(a, b) for a in range(6) for b in range(6)]  # independent draws: a state may meet itself
    batches = (torch.tensor(f[list(pair)]) for pair in pairs)
    found = np.mean([graph_drawing_loss(batch, batch)[1].item() for batch in batches])
    assert found == pytest.approx(((f.T @ f / 6 - np.eye(3)) ** 2).sum())
    orthonormal = np.sqrt(6) * np.linalg.qr(f)[0]
    batches = (torch.tensor(orthonormal[list(pair)]) for pair in pairs)
    assert np.mean([graph_drawing_loss(batch, batch)[1].item() for batch in batches]) == pytest.approx(0, abs=1e-12)


def test_steps_ahead_by_hand():
    """share 1/2 and at most 3: probabilities 4/7, 2/7, 1/7."""
    uniform = np.array([0.0, 0.57, 0.58, 0.857, 0.858, 0.999999])
    assert steps_ahead(uniform, np.full(6, 3), 0.5).tolist() == [1, 1, 2, 2, 3, 3]
    assert steps_ahead(uniform, np.ones(6, np.int64), 0.9).tolist() == [1] * 6
    assert steps_ahead(uniform, np.full(6, 3), 0.0).tolist() == [1] * 6


@pytest.mark.parametrize("ahead", [0.0, 0.5])
def test_later_states_are_of_the_same_episode(data, config, ahead):
    """A walk of a grid: after one step the pixel has moved by at most one place; later ones are never empty."""
    method = trained(replace(config, ahead=ahead, steps=1), data)
    sample = method.sample(0)
    assert bool(sample["later"].flatten(1).any(1).all())
    places = [torch.nonzero(part.flatten(1))[:, 1].numpy() for part in (sample["obs"], sample["later"])]
    rows, columns = ([place // COLUMNS for place in places], [place % COLUMNS for place in places])
    distance = np.abs(rows[0] - rows[1]) + np.abs(columns[0] - columns[1])
    assert (distance.max() == 1) == (ahead == 0.0)


def test_it_spans_the_smallest_eigenvectors(data, config):
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
def test_every_option_changes_the_result(config, tmp_path, change):
    short = replace(config, steps=10)
    pretrain(short, quiet=True)
    pretrain(replace(short, out=tmp_path / "other", **change), quiet=True)
    first, second = ((path / "encoder" / "model.safetensors").read_bytes() for path in (short.out, tmp_path / "other"))
    assert first != second
