"""Layers by hand: SAME padding and its asymmetry, pooling, initial kernels, the order of pixels, their one scaling."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.signal import correlate

from protovalue.errors import UserError
from protovalue.nets.layers import (
    Conv,
    Dense,
    check_observation_shape,
    flatten,
    glorot_conv,
    glorot_uniform,
    max_pool,
    output_size,
    planes,
    renormalize,
    same_padding,
)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@given(st.integers(1, 100), st.integers(1, 9), st.integers(1, 5))
def test_same_padding_is_what_the_last_window_needs(size: int, kernel: int, stride: int) -> None:
    before, after = same_padding(size, kernel, stride)
    starts = range(0, size, stride)  # one output for each
    assert before + after == max(starts[-1] + kernel - size, 0)
    assert after - before in (0, 1)


def test_same_padding_by_hand() -> None:
    assert same_padding(84, 3, 2) == (0, 1)
    assert same_padding(21, 3, 2) == (1, 1)
    assert same_padding(84, 8, 4) == (2, 2)
    assert same_padding(21, 4, 2) == (1, 2)
    assert same_padding(10, 3, 1) == (1, 1)
    assert same_padding(8, 1, 4) == (0, 0)


@pytest.mark.parametrize("size", range(3, 12))
@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (3, 2), (2, 3)])
def test_output_sizes_are_the_numbers_of_windows(size: int, kernel: int, stride: int) -> None:
    assert output_size(size, kernel, stride, "SAME") == len(range(0, size, stride))
    assert output_size(size, kernel, stride, "VALID") == len(range(0, size - kernel + 1, stride))


@pytest.mark.parametrize("size", [(6, 9), (7, 7), (8, 5)])
@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (3, 2), (4, 2), (8, 4), (1, 1)])
def test_a_convolution_is_a_sum_of_correlations(size: tuple[int, int], kernel: int, stride: int) -> None:
    """SciPy's correlation of the padded image, every stride-th output; both channels add up, the bias once."""
    layer = Conv(2, 3, kernel, stride, generator(1))
    with torch.no_grad():
        layer.bias.copy_(torch.tensor([0.5, -1.0, 2.0]))
    image = torch.rand(1, 2, *size, generator=generator(2))
    widths = [same_padding(length, kernel, stride) for length in size]
    for padding, x in (("SAME", np.pad(image[0].numpy(), ((0, 0), *widths))), ("VALID", image[0].numpy())):
        if min(x.shape[1:]) < kernel:
            continue
        layer.padding = padding  # type: ignore[assignment]
        weight, bias = layer.weight.detach().numpy(), layer.bias.tolist()
        expected = [
            sum(correlate(x[i], weight[o, i], mode="valid", method="direct")[::stride, ::stride] for i in range(2))
            + bias[o]
            for o in range(3)
        ]
        np.testing.assert_allclose(layer(image)[0].detach().numpy(), np.array(expected), atol=1e-5)


def test_convolution_pads_after_an_even_size() -> None:
    layer = Conv(1, 1, 3, 2, generator())
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([1.0, 10.0, 100.0]) * torch.tensor([[0.0], [1.0], [0.0]]))
    # The middle row of the kernel, on rows 1 and 3; columns (0, 1, 2) and (2, 3, padding).
    image = torch.arange(16.0).view(1, 1, 4, 4)
    # rows 1 and 3: 4 5 6 7 and 12 13 14 15
    expected = torch.tensor([[4 + 50 + 600, 6 + 70 + 0], [12 + 130 + 1400, 14 + 150 + 0]]).float()
    assert torch.equal(layer(image)[0, 0], expected)


def test_padding_of_height_and_width_are_each_their_own() -> None:
    """Height 3 is padded on both sides, width 4 after it alone: the first window holds a row of zeros, no column."""
    layer = Conv(1, 1, 3, 2, generator())
    with torch.no_grad():
        layer.weight.fill_(1.0)
    image = torch.ones(1, 1, 3, 4)
    assert layer(image)[0, 0].tolist() == [[6.0, 4.0], [6.0, 4.0]]
    assert layer(image.transpose(2, 3))[0, 0].tolist() == [[6.0, 6.0], [4.0, 4.0]]


def test_pooling_pads_after_an_even_size_and_never_with_zeros() -> None:
    image = -1.0 - torch.arange(16.0).view(1, 1, 4, 4)  # largest at the top left, all negative
    assert max_pool(image)[0, 0].tolist() == [[-1.0, -3.0], [-9.0, -11.0]]
    odd = -1.0 - torch.arange(9.0).view(1, 1, 3, 3)
    assert max_pool(odd)[0, 0].tolist() == [[-1.0, -2.0], [-4.0, -5.0]]
    # 3 x 4: rows (padding, 0, 1) and (1, 2, padding), columns (0, 1, 2) and (2, 3, padding)
    both = -1.0 - torch.arange(12.0).view(1, 1, 3, 4)
    assert max_pool(both)[0, 0].tolist() == [[-1.0, -3.0], [-5.0, -7.0]]


def test_kernels_are_uniform_between_glorots_limits() -> None:
    """l = sqrt(6 / (fan_in + fan_out)): for 5 and 7 sqrt(1/2), for a 2x2 kernel from 3 to 3 channels 1/2."""
    drawn = glorot_uniform((400, 100), 5, 7, generator())
    assert 0.999 * math.sqrt(0.5) < drawn.max() <= math.sqrt(0.5)
    assert -0.999 * math.sqrt(0.5) > drawn.min() >= -math.sqrt(0.5)
    assert drawn.mean().item() == pytest.approx(0, abs=5 * math.sqrt(0.5 / 3 / 40_000))
    kernels = torch.cat([glorot_conv(3, 3, 2, generator(seed)).flatten() for seed in range(200)])
    assert 0.999 * 0.5 < kernels.abs().max() <= 0.5
    assert glorot_conv(4, 3, 2, generator()).shape == (4, 3, 2, 2)
    layer = Dense(2, 4, generator())  # l = 1
    assert (layer.weight.shape, layer.bias.tolist()) == ((4, 2), [0.0] * 4)
    assert 0.5 < layer.weight.abs().max() <= 1


def test_a_dense_layer_by_hand() -> None:
    layer = Dense(2, 3, generator())
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]))
        layer.bias.copy_(torch.tensor([10.0, 20.0, 30.0]))
    assert layer(torch.tensor([[1.0, 0.0], [1.0, 1.0]])).tolist() == [[11.0, 23.0, 35.0], [13.0, 27.0, 41.0]]


def test_flattening_goes_by_row_column_channel() -> None:
    x = torch.arange(12.0).view(1, 2, 2, 3)  # (N, C, H, W)
    assert flatten(x)[0].tolist() == [0, 6, 1, 7, 2, 8, 3, 9, 4, 10, 5, 11]


def test_planes_are_scaled_once_and_channels_last() -> None:
    obs = torch.tensor([0, 51, 255, 102], dtype=torch.uint8).view(1, 1, 2, 2)
    torch.testing.assert_close(planes(obs, (1, 2, 2)).flatten(), torch.tensor([0.0, 0.2, 1.0, 0.4]))
    assert obs.flatten().tolist() == [0, 51, 255, 102]
    stacked = torch.zeros(1, 2, 2, 2, 3, dtype=torch.bool)
    stacked[0, 1, 0, 1, 2] = True  # frame 1, channel 2 -> plane 1 * 3 + 2
    x = planes(stacked, (2, 2, 2, 3))
    assert x.shape == (1, 6, 2, 2)
    assert x.is_contiguous(memory_format=torch.channels_last)
    assert x.nonzero().tolist() == [[0, 5, 0, 1]]
    assert x.sum() == 1.0


def test_planes_of_a_stack_of_frames_without_channels() -> None:
    obs = torch.arange(12, dtype=torch.uint8).view(1, 3, 2, 2)
    x = planes(obs, (3, 2, 2))
    assert x.shape == (1, 3, 2, 2)
    assert x.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(x * 255, obs.float())


def test_every_pixel_of_colour_frames_has_its_place() -> None:
    """Pixel (frame s, row h, column w, channel c) is plane s * C + c; all sizes differ, so that no two can be mixed."""
    shape = (2, 3, 4, 5)
    obs = torch.arange(120, dtype=torch.uint8).view(1, *shape)
    x = (planes(obs, shape) * 255).round().int()
    assert x.shape == (1, 10, 3, 4)
    for s, h, w, c in np.ndindex(*shape):
        assert x[0, s * 5 + c, h, w] == obs[0, s, h, w, c]


def test_renormalising_by_hand() -> None:
    x = torch.tensor([[1.0, 3.0, 2.0], [-4.0, 0.0, -4.0], [7.0, 7.0, 7.0], [0.0, 5e-7, 1e-7]])
    expected = torch.tensor([[0.0, 1.0, 0.5], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.5, 0.1]])
    torch.testing.assert_close(renormalize(x), expected)  # a range below 1e-6 is divided by 1e-6


def test_observation_shapes() -> None:
    assert check_observation_shape((4, 84, 85)) == (4, 84, 85, 1)
    assert check_observation_shape((1, 1, 2, 3)) == (1, 1, 2, 3)
    for shape in ((84, 84), (1, 2, 3, 4, 5), (4, 0, 84), (0, 10, 10), (1, 10, 10, 0)):
        with pytest.raises(UserError, match=r"observation shape: found .*, expected \(stack, H, W\) or \(stack, H, W"):
            check_observation_shape(shape)


def test_pixels_of_another_kind_are_refused() -> None:
    with pytest.raises(UserError, match=r"found shape \(1, 3, 2\), expected \(1, 2, 3\)"):
        planes(torch.zeros(5, 1, 3, 2, dtype=torch.uint8), (1, 2, 3))
    with pytest.raises(UserError, match=r"found torch.int64, expected torch.uint8 or torch.bool"):
        planes(torch.zeros(5, 1, 2, 3, dtype=torch.int64), (1, 2, 3))
