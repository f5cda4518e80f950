"""Random network indicators: their networks against the layers they are made of, modules, normalisation, thresholds."""

import json
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from protovalue.errors import UserError
from protovalue.indicators.registry import indicator_from_config, make_indicator
from protovalue.indicators.rni import RandomNetworkIndicator, RandomNetworks
from protovalue.nets import layers
from protovalue.nets.nature import NATURE
from protovalue.nets.patches import find_patches
from tests.nets.by_hand import Array, Parameters, dense, image_of, latents, relu

BREAKOUT = (1, 10, 10, 4)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def bits(count: int, shape: tuple[int, ...], seed: int = 0) -> Tensor:
    return torch.rand(count, *shape, generator=generator(seed)) < 0.2


def by_hand(networks: RandomNetworks, image: Array, trunk: str) -> Array:
    """All outputs on an image (H, W, C): the DQN network `trunk` of each module, dense and ReLU, then linear."""
    outputs = []
    for module in range(len(networks.modules_)):
        parameters = Parameters(networks.state_dict(), f"modules_.{module}.")
        g1 = latents(trunk, parameters, image).reshape(-1)
        if f"modules_.{module}.hidden.weight" in networks.state_dict():
            g1 = relu(dense(g1, parameters["hidden"]))
        outputs.append(dense(g1, parameters["omega"]))
    return np.concatenate(outputs)


def with_biases(networks: RandomNetworks) -> RandomNetworks:
    """Biases begin at zero, which would hide a missing one."""
    for key, value in networks.named_parameters():
        if key.endswith("bias"):
            value.uniform_(-0.2, 0.2, generator=generator(7))
    return networks


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("hidden", [True, False])
@pytest.mark.parametrize(("trunk", "shape"), [("minatar", BREAKOUT), ("minatar", (2, 9, 6)), ("nature", (2, 36, 38))])
def test_outputs_are_those_of_dqn_networks(trunk: str, shape: tuple[int, ...], hidden: bool, relu: bool) -> None:
    """VALID 3x3 on small frames; SAME 8x8/4, 4x4/2, 3x3 on larger ones; in modules of 10, 10 and 3."""
    networks = with_biases(RandomNetworks(shape, 23, generator(), hidden=hidden, relu=relu))
    obs = torch.randint(256, (2, *shape), dtype=torch.uint8, generator=generator(1))
    scores = networks(obs)
    assert scores.shape == (2, 23)
    assert relu or (scores < 0).any()
    for row in range(2):
        expected = by_hand(networks, image_of(obs[row]), trunk)
        assert (expected < 0).any()
        expected = np.maximum(expected, 0) if relu else expected
        np.testing.assert_allclose(scores[row].numpy(), expected, atol=2e-6)


def test_outputs_are_drawn_with_zero_biases_and_glorots_limits() -> None:
    state = RandomNetworks(BREAKOUT, 3, generator()).state_dict()
    for key, value in state.items():
        if key.endswith("bias"):
            assert not value.any()
    # fans 9 * 4 and 9 * 16; 1,024 and 128; 128 and 3
    for path, fans in (("trunk.convs.0", 180), ("hidden", 1152), ("omega", 131)):
        limit = (6 / fans) ** 0.5
        assert 0.95 * limit < state[f"modules_.0.{path}.weight"].abs().max() <= limit


@pytest.mark.parametrize(
    ("hidden", "parameters"),
    [
        # A Nature-DQN trunk on 84 x 84 x 4: 64*4*32 + 32 = 8,224; 16*32*64 + 64 = 32,832; 9*64*64 + 64 = 36,928.
        # Dense 11*11*64*512 + 512 = 3,965,440, and 10 outputs 512*10 + 10 = 5,130.
        (True, 10 * (8_224 + 32_832 + 36_928 + 3_965_440 + 5_130)),  # 162 MB
        (False, 10 * (8_224 + 32_832 + 36_928 + 77_450)),  # 7,744*10 + 10; 6 MB
    ],
)
def test_the_papers_hundred_tasks(hidden: bool, parameters: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # 40 million numbers take a while to draw, and here they do not matter.
    monkeypatch.setattr(layers, "glorot_uniform", lambda shape, fan_in, fan_out, generator: torch.empty(shape))
    networks = RandomNetworks((4, 84, 84), 100, generator(), hidden=hidden)
    assert len(networks.modules_) == 10
    assert sum(p.numel() for p in networks.parameters()) == parameters


def test_images_get_nature_networks() -> None:
    # 36 x 36: SAME strides 4 and 2 leave 9, then 5; 5 * 5 * 64 = 1,600 inputs of the dense layer.
    state = RandomNetworks((4, 36, 40), 12, generator()).state_dict()
    assert state["modules_.1.trunk.convs.0.weight"].shape == (32, 4, 8, 8)
    assert state["modules_.1.trunk.convs.2.weight"].shape == (64, 64, 3, 3)
    assert state["modules_.1.hidden.weight"].shape == (512, 5 * 5 * 64)
    assert state["modules_.1.omega.weight"].shape == (2, 512)
    small = RandomNetworks((4, 35, 40), 12, generator()).state_dict()
    assert small["modules_.1.trunk.convs.0.weight"].shape == (16, 4, 3, 3)


@pytest.mark.parametrize(("num_tasks", "per_module", "sizes"), [(7, 3, [3, 3, 1]), (4, 10, [4]), (6, 1, [1] * 6)])
def test_any_number_of_tasks_per_module(num_tasks: int, per_module: int, sizes: list[int]) -> None:
    indicator = RandomNetworkIndicator(BREAKOUT, num_tasks, 0.1, generator(), tasks_per_module=per_module)
    state = indicator.state_dict()
    assert [len(v) for k, v in state.items() if k.endswith("omega.weight")] == sizes
    scores = indicator.scores(bits(50, BREAKOUT))
    assert scores.shape == (50, num_tasks)
    assert torch.linalg.matrix_rank(scores) == num_tasks  # all of them different functions


def test_normalisation_is_per_channel_of_a_frame() -> None:
    """(pixel - mean) / deviation before the network, a channel's in all frames; deviations below 0.01 count as 0.01."""
    shape = (2, 10, 10, 3)
    mean, std = [0.2, 0.7, 0.5], [0.5, 0.0, 0.011]
    networks = with_biases(RandomNetworks(shape, 10, generator(), channel_mean=mean, channel_std=std))
    obs = bits(2, shape)
    for row in range(2):
        image = (image_of(obs[row]) - np.tile(mean, 2)) / np.tile([0.5, 0.01, 0.011], 2)
        np.testing.assert_allclose(networks(obs)[row].numpy(), by_hand(networks, image, "minatar"), rtol=1e-4)
    assert networks.normalized
    assert not RandomNetworks(shape, 10, generator()).normalized


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool])
def test_large_frames_that_hardly_change_give_what_each_gives_alone(normalized: bool, dtype: torch.dtype) -> None:
    """The padding is zero after the normalisation, a black pixel is not."""
    obs = torch.zeros(12, 2, 40, 37, dtype=dtype)
    obs[:, :, 5] = 1
    for row in range(12):
        obs[row, row % 2, 20, row // 4] = 1
    options: Any = {"channel_mean": [0.3], "channel_std": [0.5]} if normalized else {}
    networks = with_biases(RandomNetworks((2, 40, 37), 13, generator(), **options))
    assert find_patches(obs, NATURE).repeated
    for row, scores in enumerate(networks(obs)):
        image = (image_of(obs[row]) - 0.3) / 0.5 if normalized else image_of(obs[row])
        np.testing.assert_allclose(scores.numpy(), by_hand(networks, image, "nature"), rtol=1e-4, atol=1e-6)


def test_the_bias_is_minus_the_threshold() -> None:
    """r(x) = 1[g1(x)^T omega + b >= 0], with 1 on the boundary."""
    indicator = RandomNetworkIndicator(BREAKOUT, 3, 0.1, generator())
    obs = bits(6, BREAKOUT)
    g = np.array([by_hand(indicator.networks, image_of(one), "minatar") for one in obs])
    bias = -np.median(g, axis=0) - 1e-3
    indicator.set_thresholds(torch.from_numpy(-bias))
    assert indicator.rewards(obs).tolist() == (g + bias >= 0).tolist()
    assert indicator.rewards(obs).sum() == 9


def test_rewards_are_scores_at_least_the_threshold() -> None:
    indicator = make_indicator("rni", BREAKOUT, 4, 0.1, generator())
    obs = bits(9, BREAKOUT)
    with pytest.raises(RuntimeError, match="'rni' has no thresholds yet"):
        indicator.rewards(obs)
    scores = indicator.scores(obs)
    indicator.set_thresholds(scores[3])  # g(x) = score + b with b = -threshold: observation 3 lies on the boundary
    rewards = indicator.rewards(obs)
    assert rewards.dtype == torch.bool
    assert rewards[3].all()
    assert rewards.tolist() == [
        [s >= t for s, t in zip(row, scores[3].tolist(), strict=True)] for row in scores.tolist()
    ]
    assert 0 < rewards.sum() < rewards.numel()
    with pytest.raises(ValueError, match=r"found shape \(3,\), expected \(4,\)"):
        indicator.set_thresholds(torch.zeros(3))


def test_rewards_do_not_depend_on_the_batch() -> None:
    indicator = make_indicator("rni", BREAKOUT, 50, 0.1, generator())
    obs = bits(64, BREAKOUT)
    scores = indicator.scores(obs)
    torch.testing.assert_close(scores, indicator.get_submodule("networks")(obs), rtol=0, atol=2**-19 + 1e-6)
    assert torch.equal((scores * 2**18).round(), scores * 2**18)
    indicator.set_thresholds(scores[torch.arange(50), torch.arange(50)])  # the scores of states that occur
    rewards = indicator.rewards(obs)
    for size in (1, 3, 7, 8):
        again = torch.cat([indicator.rewards(batch) for batch in obs.split(size)])
        assert (again != rewards).sum() <= 1  # unrounded, bits of half of the tasks


def test_no_gradient_and_no_trainable_parameter() -> None:
    indicator = make_indicator("rni", BREAKOUT, 4, 0.1, generator())
    assert not indicator.scores(bits(2, BREAKOUT)).requires_grad
    assert not any(p.requires_grad for p in indicator.parameters())


def test_parameters_depend_on_the_generator_alone() -> None:
    before = torch.get_rng_state()
    one = make_indicator("rni", BREAKOUT, 12, 0.1, generator(3)).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(1)
    two = make_indicator("rni", BREAKOUT, 12, 0.1, generator(3)).state_dict()
    for key, value in one.items():
        torch.testing.assert_close(value, two[key], rtol=0, atol=0, equal_nan=True)
    first, second = one["networks.modules_.0.omega.weight"], one["networks.modules_.1.omega.weight"]
    assert not torch.equal(first[:2], second)


def test_without_more_said_ten_tasks_share_a_network_with_its_dense_layer() -> None:
    indicator = make_indicator("rni", BREAKOUT, 12, 0.1, generator())
    assert indicator.config()["options"] == {
        "tasks_per_module": 10,
        "hidden": True,
        "relu": False,
        "channel_mean": None,
        "channel_std": None,
    }
    state = indicator.state_dict()
    assert [state[f"networks.modules_.{module}.omega.weight"].shape for module in (0, 1)] == [(10, 128), (2, 128)]
    assert RandomNetworks((1, 3, 3), 1, generator())(bits(2, (1, 3, 3))).shape == (2, 1)  # the smallest frames


def test_config_and_state_rebuild_it() -> None:
    indicator = make_indicator(
        "rni",
        BREAKOUT,
        5,
        0.1,
        generator(),
        tasks_per_module=2,
        hidden=False,
        relu=True,
        channel_mean=[0.1] * 4,
        channel_std=[0.3] * 4,
    )
    obs = bits(9, BREAKOUT)
    indicator.set_thresholds(indicator.scores(obs)[0])
    config = json.loads(json.dumps(indicator.config()))
    again = indicator_from_config(config, indicator.state_dict())
    assert torch.equal(again.scores(obs), indicator.scores(obs))
    assert torch.equal(again.rewards(obs), indicator.rewards(obs))
    assert again.config() == indicator.config()
    config["num_tasks"] = 6
    with pytest.raises(UserError, match="saved parameters do not fit its config"):
        indicator_from_config(config, indicator.state_dict())


def test_bad_input_is_named() -> None:
    with pytest.raises(UserError, match="found 3 values of channel_std, expected 4"):
        RandomNetworks(BREAKOUT, 5, generator(), channel_mean=[0.1] * 4, channel_std=[0.3] * 3)
    with pytest.raises(UserError, match="only one of channel_mean and channel_std"):
        RandomNetworks(BREAKOUT, 5, generator(), channel_mean=[0.1] * 4)
    with pytest.raises(UserError, match="tasks per module: found 0"):
        RandomNetworks(BREAKOUT, 5, generator(), tasks_per_module=0)
    with pytest.raises(UserError, match=r"found \(1, 2, 10\), expected frames of at least 3 x 3"):
        RandomNetworks((1, 2, 10), 5, generator())
    indicator = make_indicator("rni", BREAKOUT, 5, 0.1, generator())
    with pytest.raises(UserError, match=r"found shape \(1, 10, 10, 6\), expected \(1, 10, 10, 4\)"):
        indicator.scores(bits(2, (1, 10, 10, 6)))
