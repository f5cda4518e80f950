"""The MinAtar network's compiled update against PyTorch's, which it must equal to rounding."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from protovalue.nets.encoders import make_encoder
from protovalue.nets.minatar import MinatarEncoder
from protovalue.online.agent import Rule
from protovalue.online.dqn import Dqn
from protovalue.online.replay import Layout, Replay

SEEDS, ACTIONS = (4, 1), 3
RULE = Rule(learning_rate=0.003, adam_epsilon=1e-3, max_gradient_norm=0.0, target_every=3)


def agents(rule: Any, frame: Any, stack: int, seeds: Any = SEEDS, scale: float = 0.7) -> Dqn:
    """Make networks whose biases are not 0."""
    encoders = []
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        encoder = make_encoder("minatar", (stack, *frame), 1, generator)
        for parameter in encoder.parameters():
            if parameter.dim() == 1:
                parameter.data.normal_(0, 0.1, generator=generator)
        encoders.append(encoder)
    return Dqn(rule, seeds, ACTIONS, encoders, scale)


def experience(frame: Any, stack: int, dtype: Any = np.bool_) -> Replay:
    """Sparse frames, of episodes that end in both ways."""
    rng = np.random.default_rng(5)
    replay = Replay(len(SEEDS), 40, Layout(frame, dtype, ACTIONS, stack), 9)

    def frames() -> Any:
        return (rng.random((len(SEEDS), *frame)) < 0.1).astype(dtype)

    replay.begin(frames())
    for _ in range(30):
        ended = rng.random(len(SEEDS)) < 0.25
        cut = ended & (rng.random(len(SEEDS)) < 0.5)
        rewards = rng.normal(size=len(SEEDS)).astype(np.float32)
        replay.add(rng.integers(ACTIONS, size=len(SEEDS)), rewards, ended & ~cut, cut, frames(), frames())
    return replay


def state(agent: Dqn) -> dict[str, Any]:
    return {**agent.tensors(), "gradient": agent.gradient.numpy()}


@pytest.mark.parametrize(
    ("options", "frame", "stack", "size"),
    [
        ({}, (10, 10, 4), 1, 6),
        ({"double": True, "max_gradient_norm": 0.2}, (10, 10, 4), 2, 5),
        ({"huber": True}, (6, 9, 2), 1, 8),
        ({"double": True, "huber": True, "target_every": 1}, (10, 10, 7), 1, 3),
    ],
)
@pytest.mark.parametrize("weighted", [False, True])
def test_updates_are_those_of_pytorch(options: Any, frame: Any, stack: int, size: int, weighted: bool) -> None:
    """Both compute in float32 and differ in the order of sums, which Adam's division makes larger in places."""
    rule = replace(RULE, **options)
    ours, oracle = agents(rule, frame, stack), agents(rule, frame, stack)
    replay, rng = experience(frame, stack), np.random.default_rng(1)
    for number in range(8):
        shape = (len(SEEDS), size)
        slot = replay.sample(rng.random(shape), 2, lambda *_: rng.random(shape))  # noqa: B023
        weight = rng.random(shape).astype(np.float32) if weighted else None
        found = ours.learn(replay, slot, 2, 0.9, weight)
        given = None if weight is None else torch.from_numpy(weight)
        expected = oracle.update(replay.batch(slot, 2, 0.9), given)
        for name, tensor in expected.items():
            torch.testing.assert_close(found[name], tensor, rtol=1e-3, atol=1e-4, msg=f"{name} of update {number}")
        for name, array in state(oracle).items():
            np.testing.assert_allclose(state(ours)[name], array, rtol=1e-3, atol=1e-4, err_msg=f"{name}, {number}")
    assert ours.updates == 8
    assert np.abs(ours.theta.numpy() - agents(rule, frame, stack).theta.numpy()).max() > 0.01
    for part in (slice(0, 387), slice(387, 387 + 9), slice(-200, None)):  # head, convolution, end of the dense layer
        assert ours.gradient[:, part].any()


def test_features_and_actions_are_those_of_pytorch() -> None:
    agent = agents(RULE, (10, 10, 4), 2)
    obs = np.random.default_rng(0).random((2 * 5, 2, 10, 10, 4)) < 0.1
    found = agent.see(obs)
    expected = agent.encode(agent.encoders, obs.reshape(2, 5, 2, 10, 10, 4))
    torch.testing.assert_close(found, expected.detach(), rtol=0, atol=1e-5)
    for number in range(5):
        one = agent.see(obs[number::5])
        torch.testing.assert_close(one, found[:, number : number + 1], rtol=0, atol=1e-5)
        assert agent.greedy(one).tolist() == agent.values(one)[:, 0].argmax(dim=1).tolist()


def test_a_seed_computes_the_same_bits_alone() -> None:
    frame = (10, 10, 4)
    replay, together = experience(frame, 1), agents(RULE, frame, 1)
    rng = np.random.default_rng(2)
    slot = replay.sample(rng.random((2, 6)), 1, lambda *_: rng.random((2, 6)))
    together.learn(replay, slot, 1, 0.9)
    for s, seed in enumerate(SEEDS):
        alone = agents(RULE, frame, 1, (seed,))
        own = Replay(1, 40, Layout(frame, np.bool_, ACTIONS, 1), 9)
        for name, array in own.arrays.items():
            array[:] = replay.arrays[name][s : s + 1]
        alone.learn(own, slot[s : s + 1], 1, 0.9)
        np.testing.assert_array_equal(together.theta[s : s + 1], alone.theta)


class Own(MinatarEncoder):
    """A network of the user's, made from this one."""

    def convolve(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().convolve(x)


@pytest.mark.parametrize("kind", ["hidden", "c51", "uint8", "own", "projection"])
def test_other_networks_learn_by_pytorch(kind: str) -> None:
    frame, rule = (10, 10, 4), RULE
    if kind == "hidden":
        rule = replace(rule, hidden=(5,))
    if kind == "c51":
        rule = replace(rule, head="c51", atoms=5)

    def made() -> Dqn:
        if kind not in ("own", "projection"):
            return agents(rule, frame, 1)
        encoder = (Own if kind == "own" else MinatarEncoder)((1, *frame), 1, torch.Generator().manual_seed(0))
        encoder.readout = "projection" if kind == "projection" else "relu"
        return Dqn(rule, SEEDS, ACTIONS, encoder)

    replay = experience(frame, 1, np.uint8 if kind == "uint8" else np.bool_)
    rng = np.random.default_rng(2)
    slot = replay.sample(rng.random((2, 6)), 1, lambda *_: rng.random((2, 6)))
    weight = np.linspace(0.1, 1, 12, dtype=np.float32).reshape(2, 6)
    ours, oracle = made(), made()
    ours.learn(replay, slot, 1, 0.9, weight)
    batch = replay.batch(slot, 1, 0.9)
    oracle.update(batch, torch.from_numpy(weight))
    assert torch.equal(ours.theta, oracle.theta)
    obs = batch.obs.reshape(12, 1, *frame)
    assert torch.equal(ours.see(obs), ours.encode(ours.encoders, batch.obs).detach())
