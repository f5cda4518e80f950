"""The agents' arithmetic: updates worked out by hand or by torch's own optimiser, and rows that never mix."""

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from protovalue.nets.encoders import make_encoder
from protovalue.nets.layers import glorot_uniform
from protovalue.online.agent import Agent, Heads, Rule
from protovalue.online.dqn import Dqn
from protovalue.online.linear_dqn import LinearDqn
from protovalue.online.replay import ReplayBatch
from protovalue.randomness import Purpose, seeded
from tests.online.rigged import STATES, one_hot

RULE = Rule(learning_rate=0.1, adam_epsilon=1e-3, max_gradient_norm=0.0, target_every=1000)
OPTIONS = [{}, {"double": True}, {"huber": True}, {"head": "c51", "atoms": 5}, {"hidden": (6, 4)}]


def batch(
    seeds: int = 3, size: int = 8, shape: Any = (STATES,), dtype: Any = np.float16, seed: int = 0, actions: int = 2
) -> ReplayBatch:
    rng = np.random.default_rng(seed)
    return ReplayBatch(
        obs=rng.integers(0, 2, (seeds, size, *shape)).astype(dtype),
        action=rng.integers(actions, size=(seeds, size)),
        reward=rng.random((seeds, size)).astype(np.float32),
        discount=rng.choice([0.0, 0.9], (seeds, size)).astype(np.float32),
        next_obs=rng.integers(0, 2, (seeds, size, *shape)).astype(dtype),
        slot=np.zeros((seeds, size), np.int64),
    )


def linear(rule: Any = RULE, seeds: Any = (0, 1, 2)) -> LinearDqn:
    return LinearDqn(rule, seeds, 2, one_hot(), 1.0)


def rows(data: Any, s: Any) -> ReplayBatch:
    return ReplayBatch(*(getattr(data, name)[s : s + 1] for name in ReplayBatch.__dataclass_fields__))


def test_the_first_update_by_hand() -> None:
    # Zero weights, one transition: features (1, 0), action 1, reward 1, terminated. e = 1, so the gradient of e^2 by
    # w_1 is (-2, 0) and by b_1 is -2. Adam's first step is -lr g / (|g| + eps) = .1 * 2 / 2.001.
    agent = linear(seeds=(0,))
    agent.theta.zero_()
    one = ReplayBatch(
        np.eye(1, STATES, dtype=np.float16)[None], np.array([[1]]), np.ones((1, 1), np.float32),
        np.zeros((1, 1), np.float32), np.ones((1, 1, STATES), np.float16), np.zeros((1, 1), np.int64),
    )  # fmt: skip
    result = agent.update(one)
    assert result["loss"].tolist() == [[1.0]]
    assert result["value"].tolist() == [[0.0]]
    assert result["gradient_norm"].item() == pytest.approx(8**0.5)
    weight, bias = agent.heads.weights[0][0], agent.heads.biases[0][0]
    step = 0.1 * 2 / 2.001
    expected = torch.zeros(2, STATES)
    expected[1, 0] = step
    torch.testing.assert_close(weight.detach(), expected)
    torch.testing.assert_close(bias.detach(), torch.tensor([0.0, step]))


@pytest.mark.parametrize("options", [{}, {"double": True}, {"huber": True}])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_closed_form_is_the_gradient(options: dict[str, Any], weighted: bool) -> None:
    agent = linear(replace(RULE, **options))
    weight = torch.rand(3, 8, generator=torch.Generator().manual_seed(0)) if weighted else None
    data = batch()
    parts = [torch.from_numpy(part) for part in (data.action, data.reward, data.discount)]
    loss, _ = agent._loss(*agent.features_of(data), *parts)
    total = (loss if weight is None else loss * weight).mean(dim=1).sum()
    expected = torch.autograd.grad(total, list(agent.heads.parameters()))
    agent.update(data, weight)
    for found, wanted in zip(agent._gradients, expected, strict=True):
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("options", [{}, {"double": True}, {"huber": True}])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_closed_form_goes_on_through_trained_encoders(options: dict[str, Any], weighted: bool) -> None:
    agent = dqn(replace(RULE, **options), (0, 1))
    weight = torch.rand(2, 4, generator=torch.Generator().manual_seed(0)) if weighted else None
    data = frames(2)
    parts = [torch.from_numpy(part) for part in (data.action, data.reward, data.discount)]
    loss, _ = agent._loss(*agent.features_of(data), *parts)
    total = (loss if weight is None else loss * weight).mean(dim=1).sum()
    expected = torch.autograd.grad(total, agent._trained)
    agent.update(data, weight)
    assert len(expected) == 2 + 2 * 4  # the heads' weight and bias, four parameters of each encoder
    for found, wanted in zip(agent._gradients, expected, strict=True):
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("options", OPTIONS)
def test_each_seed_is_a_torch_network_with_an_adam_of_its_own(options: Any) -> None:
    """Three seeds in one against torch's modules, its Adam and its gradient clipping, one seed at a time."""
    rule = replace(RULE, max_gradient_norm=0.05, target_every=3, **options)
    agent = linear(rule)
    alone = [Heads([s], agent._sizes) for s in range(3)]
    targets = copy.deepcopy(alone)
    optimisers = [torch.optim.Adam(net.parameters(), 0.1, eps=1e-3) for net in alone]
    single = linear(rule, seeds=(0,))  # only for its loss function
    for update in range(7):
        data = batch(seed=update)
        norms = agent.update(data)["gradient_norm"]
        for s, (net, target, optimiser) in enumerate(zip(alone, targets, optimisers, strict=True)):
            single.heads, single.target_heads = net, target
            mine = rows(data, s)
            parts = [torch.from_numpy(part) for part in (mine.action, mine.reward, mine.discount)]
            loss, _ = single._loss(*single.features_of(mine), *parts)
            optimiser.zero_grad()
            loss.mean().backward()
            norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 0.05)
            torch.testing.assert_close(norms[s], norm)
            optimiser.step()
            if update % 3 == 2:
                target.load_state_dict(net.state_dict())
            for found, expected in zip(agent.heads.parameters(), net.parameters(), strict=True):
                torch.testing.assert_close(found[s], expected[0], rtol=1e-4, atol=1e-5)
    assert (norms > 0.05).any()


def test_the_norm_is_clipped_per_seed() -> None:
    agent = linear(replace(RULE, max_gradient_norm=0.5))
    data = batch()
    data.reward[1] *= 100
    norms = agent.update(data)["gradient_norm"]
    clipped = agent.gradient.norm(dim=1)
    assert norms[1] > 10
    torch.testing.assert_close(clipped, norms.clamp(max=0.5))


def test_the_target_is_copied_every_so_many_updates() -> None:
    agent = linear(replace(RULE, target_every=2))
    start = agent.target.clone()
    torch.testing.assert_close(start, agent.theta, rtol=0, atol=0)
    agent.update(batch())
    assert torch.equal(agent.target, start)
    assert not torch.equal(agent.theta, start)
    agent.update(batch())
    assert torch.equal(agent.target, agent.theta)


@pytest.mark.parametrize("options", OPTIONS[1:])
def test_every_option_changes_the_update(options: Any) -> None:
    results = []
    for changes in (dict[str, Any](), options):
        agent = linear(replace(RULE, **changes))
        for update in range(20):
            agent.update(batch(seed=update))
        results.append(agent.theta)
    assert results[0].shape != results[1].shape or not torch.allclose(results[0], results[1])


def test_values_of_a_distribution() -> None:
    agent = linear(replace(RULE, head="c51", atoms=3, value_range=2.0), seeds=(0,))
    agent.theta.zero_()
    agent.heads.biases[0].data[0, :3] = torch.tensor([0.2, 0.3, 0.5]).log()  # action 0: -2, 0 and 2
    values = agent.values(torch.zeros(1, 1, STATES))
    torch.testing.assert_close(values, torch.tensor([[[0.6, 0.0]]]))


def test_heads_of_a_seed_do_not_depend_on_the_others() -> None:
    together, alone = Heads([3, 7], (4, 5, 2)), Heads([7], (4, 5, 2))
    for found, expected in zip(together.parameters(), alone.parameters(), strict=True):
        assert torch.equal(found[1:], expected)


def dqn(rule: Any, seeds: Any) -> Dqn:
    encoders = [make_encoder("minatar", (1, 10, 10, 4), 1, torch.Generator().manual_seed(s)) for s in seeds]
    return Dqn(rule, seeds, 3, encoders)


def frames(seeds: Any, size: int = 4, seed: int = 0) -> Any:
    return batch(seeds, size, (1, 10, 10, 4), np.bool_, seed, actions=3)


def test_dqn_trains_encoder_and_head_like_torch_would() -> None:
    rule = replace(RULE, learning_rate=0.01, target_every=2)
    agent = dqn(rule, (0, 1))
    encoders = [make_encoder("minatar", (1, 10, 10, 4), 1, torch.Generator().manual_seed(s)) for s in range(2)]
    heads = [Heads([s], (128, 3)) for s in range(2)]
    nets = [torch.nn.ModuleList(pair) for pair in zip(encoders, heads, strict=True)]
    targets = copy.deepcopy(nets)
    optimisers = [torch.optim.Adam(net.parameters(), 0.01, eps=1e-3) for net in nets]
    for update in range(4):
        data = frames(2, seed=update)
        agent.update(data)
        for s in range(2):
            encoder, head = nets[s]
            target_encoder, target_head = targets[s]
            q = head(encoder(torch.from_numpy(data.obs[s]))[None])[0]
            with torch.no_grad():
                following = target_head(target_encoder(torch.from_numpy(data.next_obs[s]))[None])[0].amax(dim=1)
            goal = torch.from_numpy(data.reward[s]) + torch.from_numpy(data.discount[s]) * following
            loss = (goal - q[torch.arange(4), torch.from_numpy(data.action[s])]).square().mean()
            optimisers[s].zero_grad()
            loss.backward()
            optimisers[s].step()
            if update % 2 == 1:
                targets[s].load_state_dict(nets[s].state_dict())
            found = [*agent.encoders[s].parameters()]
            for mine, theirs in zip(found, encoder.parameters(), strict=True):
                torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)


def test_dqn_seeds_do_not_mix() -> None:
    rule = replace(RULE, learning_rate=1e-3)
    together, alone = dqn(rule, (0, 1)), dqn(rule, (1,))
    for update in range(3):
        data = frames(2, seed=update)
        together.update(data)
        alone.update(rows(data, 1))
    torch.testing.assert_close(together.theta[1:], alone.theta, rtol=0, atol=1e-5)
    obs = frames(2).obs[:, :, :].reshape(8, 1, 10, 10, 4)
    torch.testing.assert_close(together.see(obs)[1], alone.see(obs[4:])[0], rtol=0, atol=1e-4)


@pytest.mark.parametrize("make", [linear, lambda rule, seeds: dqn(rule, seeds)])
def test_state_is_taken_back(make: Any) -> None:
    agent: Agent = make(RULE, (0, 1, 2))
    data = batch() if isinstance(agent, LinearDqn) else frames(3)
    agent.load(agent.tensors(), 0)  # before the first update there are no moments yet
    agent.update(data)
    saved = {name: array.copy() for name, array in agent.tensors().items()}
    agent.update(data)
    again: Agent = make(RULE, (0, 1, 2))
    again.load(saved, 1)
    again.update(data)
    assert torch.equal(agent.theta, again.theta)
    assert agent.updates == again.updates == 2


def test_hidden_layers_by_hand() -> None:
    """Two features, two hidden units, one value: ReLUs between the layers, none before the first nor after the last."""
    heads = Heads([0], (2, 2, 1))
    for parameter, value in zip(
        heads.parameters(), ([[[1.0, 0.0], [0.0, -1.0]]], [[[2.0, -3.0]]], [[0.5, 0.25]], [[-1.0]]), strict=True
    ):
        parameter.data = torch.tensor(value)
    # (-1, 2): units (-1 + .5, -2 + .25), both cut to 0, so -1. (3, -1): units (3.5, 1.25), so 7 - 3.75 - 1.
    found = heads(torch.tensor([[[-1.0, 2.0], [3.0, -1.0]]]))
    torch.testing.assert_close(found, torch.tensor([[[-1.0], [2.25]]]))


def test_heads_are_drawn_by_seeds_of_their_own() -> None:
    """Stream 1,000 of a seed, where its encoder is stream 0: Glorot-uniform kernels, biases of zero."""
    heads = Heads([3], (4, 2))
    torch.testing.assert_close(
        heads.weights[0][0], glorot_uniform((2, 4), 4, 2, seeded(3, Purpose.HEAD)), rtol=0, atol=0
    )
    assert heads.weights[0].abs().max() <= 1  # the root of 6 / (4 + 2)
    assert torch.equal(heads.biases[0], torch.zeros(1, 2))


def test_what_a_rule_leaves_out() -> None:
    rule = Rule(0.1, 0.2, 0.3, 4)
    assert (rule.double, rule.huber, rule.head, rule.atoms, rule.value_range, rule.hidden) == (
        False, False, "dqn", 51, 10.0, (),
    )  # fmt: skip
    agent = linear(replace(RULE, head="c51"))
    assert agent.support[[0, 25, 50]].tolist() == pytest.approx([-10, 0, 10], abs=1e-6)
    assert agent.updates == 0


@pytest.mark.parametrize("options", [{"hidden": (6,)}, {"head": "c51", "atoms": 5}, {"hidden": (6,), "huber": True}])
def test_weights_multiply_the_losses(options: dict[str, Any]) -> None:
    agent = linear(replace(RULE, **options))
    weight = torch.tensor([0.5, 2.0, 0.0, 1.0, 3.0, 0.25, 1.0, 0.0]).expand(3, 8)
    data = batch()
    parts = [torch.from_numpy(part) for part in (data.action, data.reward, data.discount)]
    loss, _ = agent._loss(*agent.features_of(data), *parts)
    expected = torch.autograd.grad((loss * weight).sum() / 8, list(agent.heads.parameters()))
    agent.update(data, weight)
    for found, wanted in zip(agent._gradients, expected, strict=True):
        torch.testing.assert_close(found, wanted)


def test_a_gradient_below_the_largest_norm_stays_as_it_is() -> None:
    free, clipped = linear(), linear(replace(RULE, max_gradient_norm=0.5))
    data = batch()
    data.obs[2], data.reward[2], data.discount[2] = 0, 0.01, 0.0  # only biases, which are 0: a gradient of .02
    free.update(data)
    norms = clipped.update(data)["gradient_norm"]
    assert norms[0] > 0.5 > norms[2] > 0
    assert torch.equal(clipped.gradient[2], free.gradient[2])
    torch.testing.assert_close(clipped.gradient[0], free.gradient[0] * 0.5 / norms[0])
    zero = linear(replace(RULE, max_gradient_norm=0.5), seeds=(0,))
    zero.theta.zero_()
    zero.update(
        ReplayBatch(data.obs[2:], data.action[2:], 0 * data.reward[2:], data.discount[2:], data.obs[2:], data.slot[2:])
    )
    assert not zero.gradient.any()  # and not a division by zero
    assert not zero.theta.any()


@pytest.mark.parametrize("make", [linear, lambda rule, seeds: dqn(rule, seeds)])
def test_targets_begin_as_copies_and_have_no_gradient(make: Any) -> None:
    agent: Agent = make(RULE, (0, 1))
    assert torch.equal(agent.theta, agent.target)
    assert agent.theta.data_ptr() != agent.target.data_ptr()
    trained, fixed = agent.parameters_of("online"), agent.parameters_of("target")
    assert all(parameter.requires_grad for parameter, _, _ in trained)
    assert not any(parameter.requires_grad for parameter, _, _ in fixed)
    sizes = sum(parameter.numel() for parameter, _, _ in trained)
    assert agent.theta.shape == agent.target.shape == (2, sizes // 2)
    # Row s holds all that seed s learns: what is written there is what the networks have.
    agent.theta[1] = 7.0
    for parameter, rows, _ in trained:
        values = parameter if rows == slice(0, 2) else parameter.unsqueeze(0)
        assert bool((values[-1] == 7.0).all()) == (rows.stop == 2)
        if rows == slice(0, 2):
            assert not (parameter[0] == 7.0).any()


def test_double_learning_by_hand() -> None:
    """The trained network chooses the next action, the target network values it: one state, two actions."""
    one = ReplayBatch(
        np.eye(1, STATES, dtype=np.float16)[None], np.array([[0]]), np.ones((1, 1), np.float32),
        np.full((1, 1), 0.5, np.float32), np.eye(1, STATES, dtype=np.float16)[None], np.zeros((1, 1), np.int64),
    )  # fmt: skip
    for double, expected in ((False, (1 + 0.5 * 8 - 2) ** 2), (True, (1 + 0.5 * 6 - 2) ** 2)):
        agent = linear(replace(RULE, double=double), seeds=(0,))
        agent.theta.zero_()
        agent.target.zero_()
        agent.heads.biases[0].data[:] = torch.tensor([[2.0, 3.0]])  # chooses action 1
        agent.target_heads.biases[0].data[:] = torch.tensor([[8.0, 6.0]])  # would choose action 0
        assert agent.update(one)["loss"].tolist() == [[expected]]
