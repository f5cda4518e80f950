"""The MinAtar network's compiled forward pass against PyTorch's."""

from typing import Any

import numpy as np
import pytest
import torch

from protovalue.nets.encoders import Encoder, make_encoder
from protovalue.nets.minatar import MinatarEncoder


def encoder(shape: tuple[int, ...], width: int = 1) -> Encoder:
    """Draw an encoder whose biases are not 0, as those of a trained one."""
    generator = torch.Generator().manual_seed(3)
    made = make_encoder("minatar", shape, width, generator)
    for parameter in made.parameters():
        if parameter.dim() == 1:
            parameter.data.normal_(0, 0.3, generator=generator)
    return made


def observations(shape: tuple[int, ...]) -> Any:
    """Draw sparse and crowded ones, an empty one, a full one, and one for each cell in a corner."""
    rng = np.random.default_rng(0)
    obs = rng.random((12, *shape)) < rng.choice([0.02, 0.1, 0.6], (12, *(1 for _ in shape)))
    obs[0], obs[1], obs[2:4] = False, True, False
    obs[2, :, 0, 0], obs[3, :, -1, -1] = True, True
    return obs


@pytest.mark.parametrize(
    ("shape", "width"), [((1, 10, 10, 4), 1), ((1, 10, 10, 7), 2), ((3, 10, 10, 5), 1), ((2, 5, 8, 1), 1)]
)
@pytest.mark.parametrize("readout", ["relu", "normalized relu"])
def test_features_are_pytorch_s_to_rounding_and_do_not_depend_on_the_batch(
    shape: Any, width: int, readout: Any
) -> None:
    made, obs = encoder(shape, width), observations(shape)
    made.readout = readout
    quick = made.compiled()
    assert quick is not None
    found = quick(obs)
    expected = made(torch.from_numpy(obs)).detach().numpy()
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6 * np.abs(expected).max())
    assert (expected > 0).any(axis=1).all()
    assert (found >= 0).all()
    assert (found == 0).any()
    for one, row in zip(obs, found, strict=True):
        np.testing.assert_array_equal(quick(one[None])[0], row)


def test_it_has_the_parameters_of_when_it_was_made() -> None:
    made, obs = encoder((1, 10, 10, 4)), observations((1, 10, 10, 4))
    before = made.compiled()
    assert before is not None
    found = before(obs)
    for parameter in made.parameters():
        parameter.data += 1.0
    np.testing.assert_array_equal(before(obs), found)
    after = made.compiled()
    assert after is not None
    assert np.abs(after(obs) - found).max() > 0.5


def test_other_networks_have_none() -> None:
    class Own(MinatarEncoder):
        def convolve(self, x: torch.Tensor) -> torch.Tensor:
            return -super().convolve(x)

    shape = (1, 10, 10, 4)
    assert Own(shape, 1, torch.Generator()).compiled() is None
    made = encoder(shape)
    made.readout = "normalized projection"
    assert made.compiled() is None
    made.readout = "projection"
    assert made.compiled() is None
