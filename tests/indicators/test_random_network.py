"""Random network indicators: their networks against the layers they are made of, modules, normalisation, thresholds."""

import json

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from protovalue.errors import UserError
from protovalue.indicators.random_network import STD_FLOOR, RandomNetworkIndicator, RandomNetworks
from protovalue.indicators.registry import indicator_from_config, make_indicator

BREAKOUT = (1, 10, 10, 4)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def bits(count: int, shape: tuple[int, ...], seed: int = 0) -> Tensor:
    return torch.rand(count, *shape, generator=generator(seed)) < 0.2


def by_hand(state: dict[str, Tensor], module: int, image: Tensor) -> Tensor:
    """A MinAtar module on (N, C, 10, 10): VALID convolution, ReLU, flatten by row, column, channel, dense, linear."""
    prefix = f"modules_.{module}."
    x = F.relu(F.conv2d(image, state[prefix + "trunk.convs.0.weight"])).permute(0, 2, 3, 1).reshape(len(image), -1)
    if prefix + "hidden.weight" in state:
        x = F.relu(x @ state[prefix + "hidden.weight"].T)
    return x @ state[prefix + "omega.weight"].T


@pytest.mark.parametrize("hidden", [True, False])
def test_small_frames_get_minatar_networks(hidden: bool) -> None:
    networks = RandomNetworks(BREAKOUT, 23, generator(), hidden=hidden)
    obs = bits(5, BREAKOUT)
    image = obs[:, 0].permute(0, 3, 1, 2).float()
    state = networks.state_dict()
    expected = torch.cat([by_hand(state, module, image) for module in range(3)], dim=1)
    scores = networks(obs)
    assert scores.shape == (5, 23)  # modules of 10, 10 and 3
    assert (scores < 0).any()  # linear output: no ReLU
    torch.testing.assert_close(scores, expected)
    assert state["modules_.2.omega.weight"].shape == (3, 128 if hidden else 1024)


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
    shape = (2, 10, 10, 2)
    mean, std = [0.2, 0.7], [0.5, 0.0]
    networks = RandomNetworks(shape, 10, generator(), channel_mean=mean, channel_std=std)
    plain = RandomNetworks(shape, 10, generator())
    obs = bits(6, shape)
    frames = obs.float()  # (N, S, H, W, C)
    frames[..., 0] = (frames[..., 0] - 0.2) / 0.5
    frames[..., 1] = (frames[..., 1] - 0.7) / STD_FLOOR
    image = frames.permute(0, 1, 4, 2, 3).reshape(6, 4, 10, 10)
    torch.testing.assert_close(networks(obs), by_hand(plain.state_dict(), 0, image), rtol=1e-4, atol=1e-3)
    assert not torch.allclose(networks(obs), plain(obs))


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


def test_config_and_state_rebuild_it() -> None:
    indicator = make_indicator(
        "rni",
        BREAKOUT,
        5,
        0.1,
        generator(),
        tasks_per_module=2,
        hidden=False,
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
