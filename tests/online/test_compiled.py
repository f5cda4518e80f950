"""Compiled code of linear agents against PyTorch's and NumPy's, which it must equal to rounding, or exactly."""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from protovalue.compiling import compiled as compile_function
from protovalue.encoder import FrozenEncoder
from protovalue.envs.registry import make
from protovalue.nets.encoders import make_encoder
from protovalue.nets.tiles import LANES
from protovalue.online import compiled, slots
from protovalue.online.agent import Agent, Rule
from protovalue.online.linear_dqn import LinearDqn
from protovalue.online.loop import train
from protovalue.online.replay import Layout, Replay
from protovalue.randomness import Purpose, seeded
from tests.online.rigged import config, learned, one_hot

SEEDS, FEATURES, ACTIONS, BATCH = (4, 1, 7), 19, 3, 6  # 19 is no multiple of a processor's vectors
RULE = Rule(learning_rate=0.05, adam_epsilon=1e-3, max_gradient_norm=0.0, target_every=7)


def widen(bits: Any, numbers: Any) -> None:
    for i in range(len(bits)):
        numbers[i] = compiled.single(bits[i])


def test_every_half_is_widened_as_numpy_does_it() -> None:
    bits, found = np.arange(1 << 16, dtype=np.uint16), np.empty(1 << 16, np.float32)
    wide = compile_function(widen, [Path(compiled.__file__)])  # not what was compiled of an older file
    wide(bits, found)
    expected = bits.view(np.float16).astype(np.float32)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    good = ~np.isnan(expected)
    np.testing.assert_array_equal(found[good].view(np.uint32), expected[good].view(np.uint32))  # the sign of 0, too
    wide(expected, found)  # what is float32 already
    np.testing.assert_array_equal(found, expected)


def agents(rule: Any) -> LinearDqn:
    return LinearDqn(rule, SEEDS, ACTIONS, one_hot((1, 1, FEATURES)), 1.0)


def experience(dtype: Any, reward_dtype: Any, folder: Path | None = None) -> Replay:
    """Fill a ring more than once: episodes of a few steps, of which some are truncated."""
    rng = np.random.default_rng(5)
    count = len(SEEDS)
    replay = Replay(count, 40, Layout((FEATURES,), dtype, ACTIONS, reward_dtype=reward_dtype), 9, folder)

    def items() -> Any:
        return rng.normal(size=(count, FEATURES)).astype(dtype)

    replay.begin(items())
    for _ in range(70):
        ended = rng.random(count) < 0.25
        cut = ended & (rng.random(count) < 0.5)
        rewards = rng.normal(size=count).astype(np.float32)
        replay.add(rng.integers(ACTIONS, size=count), rewards, ended & ~cut, cut, items(), items())
    return replay


def state(agent: Agent) -> dict[str, Any]:
    return {**agent.tensors(), "gradient": agent.gradient.numpy()}


@pytest.mark.parametrize(
    ("options", "n_step"),
    [
        ({}, 1), ({}, 3), ({"double": True}, 1), ({"huber": True}, 2), ({"double": True, "huber": True}, 4),
        ({"max_gradient_norm": 0.3}, 1), ({"target_every": 1}, 1), ({"adam_epsilon": 1.5e-4}, 3),
    ],
)  # fmt: skip
@pytest.mark.parametrize("weighted", [False, True])
def test_updates_are_those_of_pytorch(options: Any, n_step: int, weighted: bool) -> None:
    """Forty of them, with all that Adam remembers, ends of both kinds and clipped gradients.

    Both compute in float32 and differ in the order of sums: about 1e-7 of a number in each update, which Adam's
    division can make larger where a gradient is small.
    """
    rule = replace(RULE, **options)
    ours, oracle = agents(rule), agents(rule)
    replay = experience(np.float16, np.float16)
    rng = np.random.default_rng(1)
    kinds, clipped = set(), False
    for number in range(40):
        slot = replay.sample(rng.random((len(SEEDS), BATCH)), n_step, lambda *_: rng.random((len(SEEDS), BATCH)))
        weight = rng.random((len(SEEDS), BATCH)).astype(np.float32) if weighted else None
        kinds |= set(replay.kind(slot + n_step - 1).flat)
        found = ours.learn(replay, slot, n_step, 0.9, weight)
        batch = replay.batch(slot, n_step, 0.9)
        expected = oracle.update(batch, None if weight is None else torch.from_numpy(weight))
        assert found.keys() == expected.keys()
        for name, tensor in expected.items():
            torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=1e-4, msg=f"{name} of update {number}")
        clipped |= bool((found["gradient_norm"] > 0.3).any())
        for name, array in state(oracle).items():
            np.testing.assert_allclose(state(ours)[name], array, rtol=1e-4, atol=1e-4, err_msg=f"{name}, {number}")
    assert kinds >= {0, 1, 2}
    assert clipped
    assert ours.updates == oracle.updates == 40
    assert np.abs(ours.theta.numpy() - agents(rule).theta.numpy()).max() > 0.1  # and they are far from the beginning


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("reward_dtype", [np.float16, np.float32])
@pytest.mark.parametrize("mapped", [False, True])
def test_updates_from_every_kind_of_replay(tmp_path: Path, dtype: Any, reward_dtype: Any, mapped: bool) -> None:
    replay = experience(dtype, reward_dtype, tmp_path / "replay" if mapped else None)
    ours, oracle = agents(RULE), agents(RULE)
    slot = replay.window(1)[0][:, None] + np.flatnonzero((replay.kind(np.tile(np.arange(33, 60), (3, 1))) != 3).all(0))
    ours.learn(replay, slot, 1, 0.9)
    oracle.update(replay.batch(slot, 1, 0.9))
    for name, array in state(oracle).items():
        np.testing.assert_allclose(state(ours)[name], array, rtol=1e-4, atol=1e-5, err_msg=name)


def test_a_seed_computes_the_same_bits_alone() -> None:
    replay = experience(np.float16, np.float32)
    together = agents(RULE)
    rng = np.random.default_rng(1)
    chosen = [replay.sample(rng.random((3, BATCH)), 1, lambda *_: rng.random((3, BATCH))) for _ in range(2)]
    for slot in chosen:
        together.learn(replay, slot, 1, 0.9)
    for s, seed in enumerate(SEEDS):
        alone = LinearDqn(RULE, (seed,), ACTIONS, one_hot((1, 1, FEATURES)), 1.0)
        own = Replay(1, 40, Layout((FEATURES,), np.float16, ACTIONS), 9)
        for name, array in own.arrays.items():
            array[:] = replay.arrays[name][s : s + 1]
        for slot in chosen:
            alone.learn(own, slot[s : s + 1], 1, 0.9)
        for name, array in alone.tensors().items():
            np.testing.assert_array_equal(together.tensors()[name][s : s + 1] if array.ndim else array, array)


def test_actions_are_those_of_the_values() -> None:
    agent = agents(RULE)
    rng = np.random.default_rng(0)
    met = set()
    for _ in range(20):
        features = torch.from_numpy(rng.normal(size=(3, 1, FEATURES)).astype(np.float32))
        expected = agent.values(features)[:, 0].argmax(dim=1)
        assert agent.greedy(features).tolist() == expected.tolist()
        met |= set(expected.tolist())
    assert met == {0, 1, 2}
    agent.theta.zero_()
    assert agent.greedy(features).tolist() == [0, 0, 0]  # the first of equal ones


@pytest.mark.parametrize("options", [{"hidden": (5,)}, {"head": "c51", "atoms": 5}])
def test_what_is_not_linear_learns_by_pytorch(options: Any) -> None:
    rule = replace(RULE, **options)
    replay = experience(np.float16, np.float32)
    slot = replay.window(1)[0][:, None] + np.flatnonzero((replay.kind(np.tile(np.arange(33, 60), (3, 1))) != 3).all(0))
    ours, oracle = agents(rule), agents(rule)
    weight = np.random.default_rng(0).random(slot.shape).astype(np.float32)
    ours.learn(replay, slot, 1, 0.9, weight)
    oracle.update(replay.batch(slot, 1, 0.9), torch.from_numpy(weight))
    assert torch.equal(ours.theta, oracle.theta)
    features = torch.randn(3, 1, FEATURES, generator=torch.Generator().manual_seed(0))
    assert ours.greedy(features).tolist() == ours.values(features)[:, 0].argmax(dim=1).tolist()


@pytest.mark.parametrize("network", ["minatar", "impala", "nature", "der"])
def test_seeds_on_a_real_encoder_are_the_same_bits_alone(tmp_path: Path, network: str) -> None:
    """Features do not depend on who is beside an observation, and neither does anything learned from them."""
    if network != "minatar" and LANES == 0:
        pytest.skip("this processor has no compiled convolutions")

    def go(name: str, seeds: str) -> Any:
        game = "atari/Pong" if network == "der" else "minatar/breakout"  # its convolutions need 25 x 25 pixels
        settings = config(tmp_path / name, env=game, steps=120, seeds=seeds, learning_rate=1e-3)
        env = make(settings.env, len(settings.seed_list()))
        encoder = make_encoder(network, env.single_observation_space.shape, 1, seeded(0, Purpose.ENCODER))
        frozen = FrozenEncoder(encoder, {"env_id": settings.env})
        agent = LinearDqn(Rule.of(settings), settings.seed_list(), env.num_actions, frozen, 0.37)
        return learned(train(settings, {}, env, agent, quiet=True))

    together = go("all", "0-2")
    for s in range(3):
        alone = go(str(s), str(s))
        for name in ("agent.theta", "agent.target", "agent.exp_avg", "agent.exp_avg_sq"):
            np.testing.assert_array_equal(together[name][s : s + 1], alone[name])


@pytest.mark.parametrize("function", [compiled.store, compiled.choose, compiled.learn])
def test_compiled_code_is_named_after_the_kinds_of_slots_that_it_was_made_with(function: Any) -> None:
    """numba itself would go on with the old numbers after a change in that file."""
    content = Path(slots.__file__).read_bytes()
    assert function.py_func.__qualname__.endswith(f"_{hashlib.sha256(content).hexdigest()[:16]}")
