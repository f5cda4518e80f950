"""Encoders: sizes by hand, a forward pass against layer rules written out in NumPy, initialisation, gradients."""

import math
from typing import Literal

import numpy as np
import pytest
import torch

from protovalue.errors import UserError
from protovalue.nets import layers
from protovalue.nets.encoders import Encoder, make_encoder
from tests.nets.by_hand import Parameters, dense, image_of, latents, relu

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
# DER 1x: VALID gives 16 and 3; dense inputs 3 * 3 * 64 = 576.
#   25*4*32 + 32 = 3,232; 25*32*64 + 64 = 51,264; 576*256 + 256 = 147,712; sum 202,208
# MinAtar 1x on 10x10x4: VALID gives 8; dense inputs 8 * 8 * 16 = 1,024.
#   9*4*16 + 16 = 592; 1,024*128 + 128 = 131,200; sum 131,792
# MinAtar 0.25x: 9*4*4 + 4 = 148; 256*32 + 32 = 8,224; sum 8,372. At 0.03 one channel, not none: 37 + 64*4 + 4 = 297.
# Nature 0.5x: 64*4*16 + 16 = 4,112; 16*16*32 + 32 = 8,224; 9*32*32 + 32 = 9,248; 3,872*256 + 256 = 991,488; 1,013,072
# MinAtar 2x on 10x10x4: 9*4*32 + 32 = 1,184; 2,048*256 + 256 = 524,544; sum 525,728
@pytest.mark.parametrize(
    ("name", "shape", "width", "features", "latent_shape", "parameters"),
    [
        ("impala", ATARI, 1, 512, (32, 11, 11), 2_080_720),
        ("impala", ATARI, 8, 4096, (256, 11, 11), 133_082_752),
        ("nature", ATARI, 1, 512, (64, 11, 11), 4_043_424),
        ("der", ATARI, 1, 256, (64, 3, 3), 202_208),
        ("minatar", BREAKOUT, 1, 128, (16, 8, 8), 131_792),
        ("minatar", BREAKOUT, 2, 256, (32, 8, 8), 525_728),
        ("minatar", BREAKOUT, 0.25, 32, (4, 8, 8), 8_372),
        ("nature", ATARI, 0.5, 256, (32, 11, 11), 1_013_072),
        ("minatar", BREAKOUT, 0.03, 4, (1, 8, 8), 297),
    ],
)
def test_sizes(
    name: str,
    shape: tuple[int, ...],
    width: float,
    features: int,
    latent_shape: tuple[int, int, int],
    parameters: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Drawing 133 million numbers takes a second, and here they do not matter.
    monkeypatch.setattr(layers, "glorot_uniform", lambda shape, fan_in, fan_out, generator: torch.empty(shape))
    encoder = make_encoder(name, shape, width, generator())
    assert encoder.num_features == features
    assert encoder.latent_shape == latent_shape
    assert num_parameters(encoder) == parameters


def test_the_stacks_of_the_papers_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Impala (16, 32, 32) x 8: a convolution and two residual blocks of two convolutions in each stack, all 3x3."""
    monkeypatch.setattr(layers, "glorot_uniform", lambda shape, fan_in, fan_out, generator: torch.empty(shape))
    state = make_encoder("impala", ATARI, 8, generator()).state_dict()
    expected: dict[str, tuple[int, ...]] = {"dense": (4096, 30_976)}
    for s, (inputs, outputs) in enumerate([(4, 128), (128, 256), (256, 256)]):
        expected[f"stacks.{s}.conv"] = (outputs, inputs, 3, 3)
        for b in range(2):
            for part in ("first", "second"):
                expected[f"stacks.{s}.blocks.{b}.{part}"] = (outputs, outputs, 3, 3)
    assert {key: tuple(value.shape) for key, value in state.items() if key.endswith("weight")} == {
        f"{key}.weight": shape for key, shape in expected.items()
    }
    assert {key: len(value) for key, value in state.items() if key.endswith("bias")} == {
        f"{key}.bias": shape[0] for key, shape in expected.items()
    }


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("impala", (4, 84, 84)),
        ("impala", (2, 13, 18, 3)),
        ("nature", (4, 84, 84)),
        ("nature", (1, 37, 50)),
        ("der", (4, 84, 84)),
        ("der", (1, 29, 53, 3)),
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
    parameters = Parameters(encoder.state_dict())
    encoder.readout = "projection"
    projected = encoder(obs).detach().numpy()
    for row in range(2):
        z = latents(name, parameters, image_of(obs[row]))  # (H', W', C)
        assert (z.shape[2], *z.shape[:2]) == encoder.latent_shape
        expected = relu(dense(z.reshape(-1), parameters["dense"]))
        assert 0.1 < (expected > 0).mean() < 0.9
        np.testing.assert_allclose(features[row].detach().numpy(), expected, atol=1e-5)
        # The readout of self-predictive representations: latents from 0 to 1, no ReLU after the dense layer.
        scaled = (z - z.min()) / (z.max() - z.min())
        expected = dense(scaled.reshape(-1), parameters["dense"])
        assert (expected < 0).any()
        np.testing.assert_allclose(projected[row], expected, atol=1e-5)


@pytest.mark.parametrize("name", ["impala", "nature", "der", "minatar"])
@pytest.mark.parametrize("width", [2, 0.5, 0.25])
def test_the_width_multiplies_every_layer(name: str, width: float) -> None:
    """Forward, against the same rules; a width that missed a layer would not fit the next one."""
    shape = (1, 26, 31) if name == "der" else (1, 9, 12)
    encoder = make_encoder(name, shape, width, generator(1))
    obs = torch.randint(256, (1, *shape), dtype=torch.uint8, generator=generator(3))
    parameters = Parameters(encoder.state_dict())
    assert len(parameters["dense"][0]) == {"impala": 512, "nature": 512, "der": 256, "minatar": 128}[name] * width
    expected = relu(dense(latents(name, parameters, image_of(obs[0])).reshape(-1), parameters["dense"]))
    np.testing.assert_allclose(encoder(obs)[0].detach().numpy(), expected, atol=1e-5)


def test_what_is_saved_is_what_is_learned() -> None:
    """The places of MinAtar's patches follow from the frame's size; a file of weights does not hold them."""
    encoder = make_encoder("minatar", BREAKOUT, 1, generator())
    assert encoder.state_dict().keys() == dict(encoder.named_parameters()).keys()


@pytest.mark.parametrize(("name", "size"), [("impala", 1), ("nature", 1), ("der", 25), ("minatar", 3)])
def test_the_smallest_frames(name: str, size: int) -> None:
    encoder = make_encoder(name, (1, size, size), 1, generator())
    assert encoder(torch.ones(2, 1, size, size, dtype=torch.bool)).shape == (2, encoder.num_features)


@pytest.mark.parametrize(("name", "shape"), [("impala", (1, 12, 12)), ("nature", (2, 36, 36)), ("minatar", BREAKOUT)])
def test_a_bool_is_a_pixel_of_255(name: str, shape: tuple[int, ...]) -> None:
    encoder = make_encoder(name, shape, 1, generator())
    bits = torch.rand(3, *shape, generator=generator(1)) < 0.3
    torch.testing.assert_close(encoder(bits), encoder(bits.to(torch.uint8) * 255))


@pytest.mark.parametrize("name", ["impala", "nature", "der", "minatar"])
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


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize(("name", "shape"), [("impala", (2, 13, 16)), ("nature", (2, 36, 38)), ("minatar", BREAKOUT)])
def test_activations_that_are_computed_again_give_the_same_bits(
    name: str, shape: tuple[int, ...], precision: Literal["float32", "bfloat16"]
) -> None:
    obs = torch.randint(256, (3, *shape), dtype=torch.uint8, generator=generator(1))

    def gradients(again: bool) -> list[torch.Tensor]:
        encoder = make_encoder(name, shape, 1, generator())
        encoder.precision = precision
        if again:
            encoder.recompute_activations()
        features = encoder(obs)
        features.square().sum().backward()
        return [features.detach(), *(p.grad for p in encoder.parameters() if p.grad is not None)]

    for found, expected in zip(gradients(True), gradients(False), strict=True):
        assert torch.equal(found, expected)


def test_of_each_block_only_what_goes_in_is_kept() -> None:
    """16 x 16 pixels in 2 channels, pooled to 8, 4 and 2, by hand; parameters are there anyway.

    All of it: a stack's input and convolved input; with them pooling's places (8 bytes each) and output; in each of
    two blocks two ReLUs and two convolutions' inputs, which are the same.
    """

    def kept(again: bool) -> int:
        encoder = make_encoder("impala", (2, 16, 16), 1, generator())
        if again:
            encoder.recompute_activations()
        own = {p.data_ptr() for p in encoder.parameters()}
        found: dict[int, int] = {}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.data_ptr() not in own:
                found[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            features = encoder(torch.zeros(1, 2, 16, 16, dtype=torch.uint8))
        assert features.requires_grad
        return sum(found.values())

    inputs = 4 * (2 * 16 * 16 + 16 * 8 * 8 + 32 * 4 * 4)
    ends = 4 * (32 * 2 * 2 + 512)  # what goes into the dense layer and what comes out of it
    pooled = 16 * 8 * 8 + 32 * 4 * 4 + 32 * 2 * 2
    assert kept(again=True) == inputs + ends + 2 * 4 * pooled  # two blocks in each stack
    convolved = 4 * (16 * 16 * 16 + 32 * 8 * 8 + 32 * 4 * 4)
    assert kept(again=False) == inputs + ends + convolved + 8 * pooled + 4 * 4 * pooled


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
    with pytest.raises(UserError, match=r"width: found 0, expected more than 0 and less than 65536"):
        make_encoder("impala", ATARI, 0, generator())
    with pytest.raises(UserError, match=r"unknown encoder 'impalla': did you mean 'impala'"):
        make_encoder("impalla", ATARI, 1, generator())
