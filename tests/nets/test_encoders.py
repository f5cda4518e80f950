"""Encoders: sizes by hand, a forward pass against layer rules written out in NumPy, padding, initialisation."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from protovalue.errors import UserError
from protovalue.nets.encoders import Encoder, make_encoder
from protovalue.nets.layers import Conv, Dense, flatten, max_pool, planes, same_padding

Array = NDArray[np.float64]
ATARI = (4, 84, 84)
BREAKOUT = (1, 10, 10, 4)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def num_parameters(encoder: Encoder) -> int:
    return sum(p.numel() for p in encoder.parameters())


# Sizes. A convolution has 9 * in * out + out parameters (3x3), a dense layer in * out + out.
# Impala 1x on 84x84x4: pooling gives 42, 21 and 11, so the dense layer sees 11 * 11 * 32 = 3,872 inputs.
#   stack 1: 9*4*16 + 16 = 592;     4 residual convolutions 9*16*16 + 16 = 2,320 each: 9,280     -> 9,872
#   stack 2: 9*16*32 + 32 = 4,640;  4 of 9*32*32 + 32 = 9,248 each: 36,992                       -> 41,632
#   stack 3: 9*32*32 + 32 = 9,248;  36,992                                                       -> 46,240
#   dense:   3,872*512 + 512                                                                     -> 1,982,976
#   sum 2,080,720
# Impala 8x: channels 128, 256, 256; dense inputs 11 * 11 * 256 = 30,976.
#   stack 1: 9*4*128 + 128 = 4,736;        4 of 9*128*128 + 128 = 147,584: 590,336               -> 595,072
#   stack 2: 9*128*256 + 256 = 295,168;    4 of 9*256*256 + 256 = 590,080: 2,360,320             -> 2,655,488
#   stack 3: 9*256*256 + 256 = 590,080;    2,360,320                                             -> 2,950,400
#   dense:   30,976*4,096 + 4,096                                                                -> 126,881,792
#   sum 133,082,752
# Nature 1x: SAME gives 21, 11 and 11; dense inputs 11 * 11 * 64 = 7,744.
#   64*4*32 + 32 = 8,224; 16*32*64 + 64 = 32,832; 9*64*64 + 64 = 36,928; 7,744*512 + 512 = 3,965,440; sum 4,043,424
# MinAtar 1x on 10x10x4: VALID gives 8; dense inputs 8 * 8 * 16 = 1,024.
#   9*4*16 + 16 = 592; 1,024*128 + 128 = 131,200; sum 131,792
# MinAtar 2x on 10x10x4: 9*4*32 + 32 = 1,184; 2,048*256 + 256 = 524,544; sum 525,728
@pytest.mark.parametrize(
    ("name", "shape", "width", "features", "parameters"),
    [
        ("impala", ATARI, 1, 512, 2_080_720),
        ("impala", ATARI, 8, 4096, 133_082_752),
        ("nature", ATARI, 1, 512, 4_043_424),
        ("minatar", BREAKOUT, 1, 128, 131_792),
        ("minatar", BREAKOUT, 2, 256, 525_728),
    ],
)
def test_sizes(name: str, shape: tuple[int, ...], width: int, features: int, parameters: int) -> None:
    encoder = make_encoder(name, shape, width, generator())
    assert encoder.num_features == features
    assert num_parameters(encoder) == parameters


# The rules of TensorFlow's guide, one output at a time, channels last as in Flax.
def padded(x: Array, kernel: int, stride: int, value: float) -> Array:
    """Pad (H, W, C): as many in all as the last window needs, the smaller half before."""
    widths = []
    for size in x.shape[:2]:
        total = max(kernel - stride, 0) if size % stride == 0 else max(kernel - size % stride, 0)
        widths.append((total // 2, total - total // 2))
    return np.pad(x, (*widths, (0, 0)), constant_values=value)


def windows(x: Array, kernel: int, stride: int) -> Array:
    """Cut (H, W, C) into windows (H', W', kernel, kernel, C)."""
    rows = range(0, x.shape[0] - kernel + 1, stride)
    columns = range(0, x.shape[1] - kernel + 1, stride)
    return np.array([[x[i : i + kernel, j : j + kernel] for j in columns] for i in rows])


def np_conv(x: Array, layer: Conv, same: bool = True) -> Array:
    weight = layer.weight.detach().double().numpy()  # (O, I, K, K)
    bias = layer.bias.detach().double().numpy()
    x = padded(x, layer.kernel, layer.stride, 0.0) if same else x
    return np.einsum("hwijc,ocij->hwo", windows(x, layer.kernel, layer.stride), weight) + bias


def np_pool(x: Array) -> Array:
    return windows(padded(x, 3, 2, -np.inf), 3, 2).max(axis=(2, 3))


def np_dense(x: Array, layer: Dense) -> Array:
    return layer.weight.detach().double().numpy() @ x + layer.bias.detach().double().numpy()


def relu(x: Array) -> Array:
    return np.maximum(x, 0.0)


def np_forward(encoder: Encoder, name: str, x: Array) -> Array:
    """Compute the features of one input (H, W, C)."""
    modules = dict(encoder.named_modules())

    def conv(path: str) -> Conv:
        layer = modules[path]
        assert isinstance(layer, Conv)
        return layer

    if name == "impala":
        for s in range(3):
            x = np_pool(np_conv(x, conv(f"stacks.{s}.conv")))
            for b in range(2):
                h = np_conv(relu(x), conv(f"stacks.{s}.blocks.{b}.first"))
                x = np_conv(relu(h), conv(f"stacks.{s}.blocks.{b}.second")) + x
        x = relu(x)
    else:
        for i in range({"nature": 3, "minatar": 1}[name]):
            x = relu(np_conv(x, conv(f"trunk.convs.{i}"), same=name == "nature"))
    dense = modules["dense"]
    assert isinstance(dense, Dense)
    return relu(np_dense(x.reshape(-1), dense))


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("impala", (4, 84, 84)),
        ("impala", (2, 13, 18, 3)),
        ("nature", (4, 84, 84)),
        ("nature", (1, 37, 50)),
        ("minatar", (1, 10, 10, 7)),
        ("minatar", (2, 9, 6, 3)),
    ],
)
def test_forward_follows_the_layer_rules(name: str, shape: tuple[int, ...]) -> None:
    encoder = make_encoder(name, shape, 1, generator(1))
    with torch.no_grad():  # zero biases would hide a missing one
        for key, value in encoder.named_parameters():
            if key.endswith("bias"):
                value.uniform_(-0.2, 0.2, generator=generator(2))
    obs = torch.randint(256, (2, *shape), dtype=torch.uint8, generator=generator(3))
    features = encoder(obs)
    assert features.dtype == torch.float32
    for row in range(2):
        frames = obs[row].numpy().astype(np.float64).reshape(*shape[:3], -1) / 255.0  # (S, H, W, C)
        image = np.concatenate(list(frames), axis=-1)  # (H, W, S * C), frame by frame
        expected = np_forward(encoder, name, image)
        assert 0.1 < (expected > 0).mean() < 0.9
        np.testing.assert_allclose(features[row].detach().numpy(), expected, atol=1e-5)


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


def test_convolution_pads_after_an_even_size() -> None:
    layer = Conv(1, 1, 3, 2, generator())
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([1.0, 10.0, 100.0]) * torch.tensor([[0.0], [1.0], [0.0]]))
    # The middle row of the kernel, on rows 1 and 3; columns (0, 1, 2) and (2, 3, padding).
    image = torch.arange(16.0).view(1, 1, 4, 4)
    # rows 1 and 3: 4 5 6 7 and 12 13 14 15
    expected = torch.tensor([[4 + 50 + 600, 6 + 70 + 0], [12 + 130 + 1400, 14 + 150 + 0]]).float()
    assert torch.equal(layer(image)[0, 0], expected)


def test_pooling_pads_after_an_even_size_and_never_with_zeros() -> None:
    image = -1.0 - torch.arange(16.0).view(1, 1, 4, 4)  # largest at the top left, all negative
    assert max_pool(image)[0, 0].tolist() == [[-1.0, -3.0], [-9.0, -11.0]]
    odd = -1.0 - torch.arange(9.0).view(1, 1, 3, 3)
    assert max_pool(odd)[0, 0].tolist() == [[-1.0, -2.0], [-4.0, -5.0]]


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


@pytest.mark.parametrize(("name", "shape"), [("impala", (1, 12, 12)), ("nature", (2, 36, 36)), ("minatar", BREAKOUT)])
def test_a_bool_is_a_pixel_of_255(name: str, shape: tuple[int, ...]) -> None:
    encoder = make_encoder(name, shape, 1, generator())
    bits = torch.rand(3, *shape, generator=generator(1)) < 0.3
    torch.testing.assert_close(encoder(bits), encoder(bits.to(torch.uint8) * 255))


@pytest.mark.parametrize("name", ["impala", "nature", "minatar"])
def test_kernels_are_glorot_uniform_and_biases_zero(name: str) -> None:
    encoder = make_encoder(name, (4, 40, 40), 2, generator(5))
    for key, value in encoder.named_parameters():
        if key.endswith("bias"):
            assert value.abs().max() == 0.0
            continue
        area = value[0, 0].numel() if value.dim() == 4 else 1
        limit = math.sqrt(6.0 / (area * (value.shape[0] + value.shape[1])))
        assert 0.99 * limit < value.abs().max() <= limit
        # The variance of U(-l, l) is l^2 / 3, the standard error of an estimate of it 0.9 / sqrt(n) of that.
        assert abs(value.var().item() / (limit**2 / 3) - 1) < 5 * 0.9 / math.sqrt(value.numel())


@pytest.mark.parametrize("name", ["impala", "nature", "minatar"])
def test_parameters_depend_on_the_generator_alone(name: str) -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one = make_encoder(name, (4, 12, 12), 1, generator(7)).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    two = make_encoder(name, (4, 12, 12), 1, generator(7)).state_dict()
    other = make_encoder(name, (4, 12, 12), 1, generator(8)).state_dict()
    assert all(torch.equal(one[key], two[key]) for key in one)
    assert not torch.equal(one["dense.weight"], other["dense.weight"])
    assert all(value.is_contiguous() for value in one.values())  # as safetensors wants it


@pytest.mark.parametrize(("name", "shape"), [("impala", (2, 10, 10)), ("nature", (2, 12, 12)), ("minatar", BREAKOUT)])
def test_gradients_agree_with_finite_differences(name: str, shape: tuple[int, ...]) -> None:
    encoder = make_encoder(name, shape, 1, generator(1))
    obs = torch.randint(256, (4, *shape), dtype=torch.uint8, generator=generator(2))
    parameters = list(encoder.parameters())
    gradients = torch.autograd.grad(encoder(obs).square().sum(), parameters)
    length = math.sqrt(sum(float(g.square().sum()) for g in gradients))
    step = 0.01 / length  # a step of length 0.01 along the gradient, where the slope is its length
    values = []
    with torch.no_grad():
        for factor in (step, -2 * step):  # first to one side, then to the other
            for value, gradient in zip(parameters, gradients, strict=True):
                value.add_(gradient, alpha=factor)
            values.append(float(encoder(obs).double().square().sum()))
    assert length == pytest.approx((values[0] - values[1]) / 0.02, rel=0.01)


def test_bad_shapes_and_names_are_named() -> None:
    encoder = make_encoder("minatar", BREAKOUT, 1, generator())
    with pytest.raises(UserError, match=r"found shape \(1, 10, 10, 6\), expected \(1, 10, 10, 4\)"):
        encoder(torch.zeros(2, 1, 10, 10, 6, dtype=torch.bool))
    with pytest.raises(UserError, match=r"found torch.float32, expected torch.uint8 or torch.bool"):
        encoder(torch.zeros(2, *BREAKOUT))
    with pytest.raises(UserError, match=r"found \(84, 84\), expected \(stack, H, W\)"):
        make_encoder("impala", (84, 84), 1, generator())
    with pytest.raises(UserError, match=r"found \(1, 2, 9\), expected frames of at least 3 x 3"):
        make_encoder("minatar", (1, 2, 9), 1, generator())
    with pytest.raises(UserError, match=r"width: found 0, expected at least 1"):
        make_encoder("impala", ATARI, 0, generator())
    with pytest.raises(UserError, match=r"unknown encoder 'impalla': did you mean 'impala'"):
        make_encoder("impalla", ATARI, 1, generator())
