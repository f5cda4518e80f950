"""How features are scaled before they are read: by one number, or every direction by its own."""

import numpy as np
import pytest
import torch
from torch import Tensor

from protovalue.evaluate.probe_file import Variable
from protovalue.probe import readout
from protovalue.probe.labels import Labelled
from protovalue.probe.scaling import scale_features

TRAIN = torch.arange(800)


def features() -> Tensor:
    """Three directions mixed into four features: standard deviations 100, 1, 0.01, around a mean."""
    rng = np.random.default_rng(0)
    mixed = rng.normal(size=(1000, 3)) * [100, 1, 0.01] @ np.linalg.qr(rng.normal(size=(4, 4)))[0][:3]
    return torch.from_numpy(mixed + 7).float()


def test_by_one_number() -> None:
    """The root mean square of 3 and 4 on the training states, the first, is 3.5355."""
    found = scale_features(torch.tensor([[3.0, 4.0], [30.0, 0.0]]), torch.tensor([0]), "rms")
    torch.testing.assert_close(found, torch.tensor([[3.0, 4.0], [30.0, 0.0]]) / 12.5**0.5)
    assert scale_features(torch.zeros(3, 2), torch.tensor([0]), "rms").tolist() == [[0.0, 0.0]] * 3
    assert scale_features(torch.full((2, 2), 0.25), torch.tensor([0]), "rms").tolist() == [[1.0, 1.0]] * 2


def test_whitened_by_hand() -> None:
    """Deviations of 3 and 0.5 around (10, 1): what is not in training is measured by the same."""
    given = torch.tensor([[13.0, 1.5], [7.0, 1.5], [13.0, 0.5], [7.0, 0.5], [16.0, 1.0]])
    found = scale_features(given, torch.arange(4), "whitened")  # the smallest variance comes first
    expected = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0], [0.0, 2.0]])
    torch.testing.assert_close(found.abs(), expected.abs(), atol=1e-6, rtol=0)
    torch.testing.assert_close(found[:, 0] * found[0, 0], expected[:, 0], atol=1e-6, rtol=0)
    torch.testing.assert_close(found[:, 1] * found[0, 1], expected[:, 1], atol=1e-6, rtol=0)


def test_every_direction_has_the_same_variance_and_none_the_training_does_not_have() -> None:
    found = scale_features(features(), TRAIN, "whitened")
    assert found.shape == (1000, 3)  # the fourth direction is rounding
    assert found.dtype == torch.float32
    own = found[TRAIN].double()
    torch.testing.assert_close(own.mean(dim=0), torch.zeros(3).double(), atol=1e-4, rtol=0)
    torch.testing.assert_close(own.T @ own / 800, torch.eye(3).double(), atol=1e-3, rtol=0)


@pytest.mark.parametrize(("faint", "kept"), [(2e-5, 2), (5e-6, 1)])
def test_what_is_fainter_than_a_hundred_thousandth_is_left_out(faint: float, kept: int) -> None:
    given = torch.tensor([[1.0, faint], [1.0, -faint], [-1.0, faint], [-1.0, -faint]])
    assert scale_features(given, torch.arange(4), "whitened").shape == (4, kept)


def test_the_last_digit_of_large_features_is_left_out() -> None:
    """Around 1000 the numbers of float32 are 0.00006 apart: features that differ by that tell nothing."""
    given = torch.full((8, 1), 1000.0)
    given[::2] = torch.nextafter(given[::2], torch.tensor(2000.0))
    assert given.unique().numel() == 2
    assert scale_features(given, torch.arange(8), "whitened").abs().max() == 0


@pytest.mark.parametrize("value", [0.0, 0.1, 1e4 / 3])
def test_constant_features_stay_silent(value: float) -> None:
    found = scale_features(torch.full((10, 5), value), torch.arange(8), "whitened")
    assert found.abs().max() == 0


def test_a_label_in_a_faint_direction_is_read_only_whitened() -> None:
    """Six directions of noise a thousand times as large: in thirty epochs one learning rate does not find the seventh.

    The area under the curve is 1 where the label is read, 1/2 where it is not.
    """
    rng = np.random.default_rng(0)
    label = rng.integers(2, size=2_000)
    mixed = np.concatenate([1_000 * rng.normal(size=(2_000, 6)), (2 * label - 1)[:, None]], axis=1)
    given = torch.from_numpy(mixed @ np.linalg.qr(rng.normal(size=(7, 7)))[0]).float()
    labelled = Labelled(
        np.arange(2_000).reshape(-1, 1, 1, 1), np.arange(2_000) // 40, label[:, None], (Variable("a", "x"),), 0
    )
    made = readout.make_task(labelled, 0)
    assert readout.read_frozen(made, given, 0, 30, "whitened").area[0] > 0.99
    assert readout.read_frozen(made, given, 0, 30, "rms").area[0] < 0.6
