"""Contrastive, rldp and tdjepa: their losses by hand, and what they find in worlds whose answer is known."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from protovalue.data.collect import collect
from protovalue.data.config import CollectConfig
from protovalue.data.dataset import Dataset
from protovalue.data.format import End
from protovalue.errors import UserError
from protovalue.pretrain.loop import pretrain
from protovalue.pretrain.method_configs import ContrastiveConfig, RldpConfig, SprConfig, TdJepaConfig
from protovalue.randomness import Purpose, generator_at
from protovalue.registry import ENCODERS, _Loaded
from protovalue.runs import read_run
from protovalue.tabular.gridworlds import open_grid
from protovalue.tabular.subspaces import left_singular_vectors, principal_angles
from tests.pretrain.helpers import (
    TRANSITIONS,
    Embedding,
    episodes,
    fill_table,
    made,
    pictures,
    successors,
    trained,
    two_episodes,
    walks,
)

# Two actions that lead to different places. Nothing follows state 9.
AFTER = np.array([[1, 2, 3, 4, 0, 6, 7, 9, 5, 9], [5, 0, 9, 8, 3, 2, 4, 1, 6, 9]])
LAST, GAMMA = 9, 0.8


@pytest.fixture
def few(tmp_path: Path) -> Dataset:
    return two_episodes(tmp_path / "few")


@pytest.fixture
def given(few: Dataset, table: str, tmp_path: Path) -> dict[str, Any]:
    return {
        "out": tmp_path / "run", "data": (few.folders[0].path,), "architecture": table, "dimensions": 2,
        "batch_size": 6, "target_ema": 0.9, "threads": 1,
    }  # fmt: skip


def fill_map(layer: Any, values: np.ndarray) -> None:
    """Let a linear map of `Table` be values (n, d)."""
    with torch.no_grad():
        layer.weight.zero_()
        layer.weight[:, : len(values)] = torch.from_numpy(values.T)


def numbers(count: int, *shape: int) -> list[np.ndarray]:
    return list(np.random.default_rng(3).integers(-4, 5, (count, *shape)).astype(float))


def orthonormality(rows: np.ndarray) -> float:
    """Over all pairs of different rows, one at a time."""
    count = len(rows)
    pairs = [(rows[i] @ rows[j]) ** 2 for i in range(count) for j in range(count) if i != j]
    return float(np.mean(pairs) / 2 - np.mean([row @ row for row in rows]) + rows.shape[1] / 2)


@pytest.mark.parametrize("arrival", ["no", "yes"])
@pytest.mark.parametrize("second_map", ["shared", "own"])
def test_contrastive_loss_by_hand(few: Dataset, given: dict[str, Any], arrival: Any, second_map: Any) -> None:
    config = ContrastiveConfig(**given, gamma=0.5, arrival=arrival, second_map=second_map, orthonormality=3.0)
    method = made(config, few)
    forward, old_forward = numbers(2, 3, 2, 2)  # [state][dimension][action] of network and target
    backward, old_backward = numbers(2, 3, 2)  # [state][dimension]
    fill_table(method.forward_heads, forward)
    fill_table(method.target["heads"], old_forward)
    fill_map(method.backward_map.head, backward)
    fill_map(method.target["map"].head, old_backward)
    loss, logged = method.loss(method.sample(5))
    rows = [TRANSITIONS[index] for index in method.sampler.indices(5)]
    counted = [after if arrival == "yes" else x for x, _, after, _ in rows]
    squares, own = [], []
    for i, (x, a, after, terminal) in enumerate(rows):
        own.append(forward[x][:, a] @ backward[counted[i]])
        for j in range(6):
            following = 0.0 if terminal else 0.5 * (old_forward[after].mean(axis=1) @ old_backward[counted[j]])
            squares += [(forward[x][:, a] @ backward[counted[j]] - following) ** 2] if i != j else []
    fit = np.mean(squares) / 2 - np.mean(own)
    straight = orthonormality(backward[counted])
    assert logged["measure_loss"].item() == pytest.approx(fit, rel=1e-5)
    assert logged["orthonormality"].item() == pytest.approx(straight, rel=1e-5)
    assert loss.item() == pytest.approx(fit + 3 * straight, rel=1e-5)
    loss.backward()
    assert all(parameter.grad is None for parameter in method.target.parameters())
    assert method.forward_heads.bias.grad is None


@pytest.mark.parametrize("second_map", ["shared", "own"])
def test_tdjepa_loss_by_hand(few: Dataset, given: dict[str, Any], second_map: Any) -> None:
    method = made(TdJepaConfig(**given, gamma=0.5, orthonormality=2.0, second_map=second_map), few)
    state, old_state, task, old_task = numbers(4, 3, 2)
    heads, old_heads = numbers(2, 2, 2, 2)  # [input][dimension][action]
    target = method.target
    for layer, values in ((method.state_map, state), (target["state_map"], old_state)):
        fill_map(layer, values)
    for layer, values in ((method.task_map.head, task), (target["task_map"].head, old_task)):
        fill_map(layer, values)
    for layer, values in ((method.heads, heads), (target["heads"], old_heads)):
        fill_table(layer, values)
    loss, logged = method.loss(method.sample(5))
    rows = [TRANSITIONS[index] for index in method.sampler.indices(5)]
    errors = []
    for x, a, after, terminal in rows:
        following = 0.0 if terminal else 0.5 * (old_state[after] @ old_heads.mean(axis=2))
        error = state[x] @ heads[:, :, a] - old_task[after] - following
        errors.append(error @ error)
    xs = [row[0] for row in rows]
    straight = orthonormality(state[xs]), orthonormality(task[xs])
    assert logged["prediction_loss"].item() == pytest.approx(np.mean(errors), rel=1e-5)
    assert logged["orthonormality"].item() == pytest.approx(straight[0], rel=1e-5)
    assert logged["orthonormality_of_tasks"].item() == pytest.approx(straight[1], rel=1e-5)
    assert loss.item() == pytest.approx(np.mean(errors) + 2 * sum(straight), rel=1e-5)


def test_rldp_loss_by_hand(few: Dataset, given: dict[str, Any]) -> None:
    """Two steps, the second one from what the model said; only what is before the end of an episode counts."""
    method = made(RldpConfig(**given, horizon=2, hidden=0, orthonormality=2.0), few)
    state, old_state = numbers(2, 3, 2)
    (model,) = numbers(1, 2, 2, 2)
    fill_map(method.state_map, state)
    fill_map(method.target["state_map"], old_state)
    fill_table(method.model, model)
    loss, logged = method.loss(method.sample(5))
    index = method.sampler.indices(5)
    errors = []
    for first in index:
        x, a, after, _ = TRANSITIONS[first]
        u = state[x] @ model[:, :, a]
        errors.append(np.sum((u - old_state[after]) ** 2))
        if first in (0, 2):  # the first of the two of its episode
            _, a, after, _ = TRANSITIONS[first + 1]
            errors.append(np.sum((u @ model[:, :, a] - old_state[after]) ** 2))
    straight = orthonormality(state[[TRANSITIONS[one][0] for one in index]])
    assert method.sample_bytes() == method.sample(5)["frames"].numel()
    assert logged["prediction_loss"].item() == pytest.approx(np.mean(errors), rel=1e-5)
    assert loss.item() == pytest.approx(np.mean(errors) + 2 * straight, rel=1e-5)


def test_a_later_state_is_the_one_that_the_random_numbers_say(table: str, tmp_path: Path) -> None:
    """The first n whose probability, 0.6^(n - 1) of all to the episode's end, adds up to more than was drawn."""
    data = walks(tmp_path / "set", AFTER, 20, 12, ends=(LAST,))
    config = RldpConfig(
        out=tmp_path / "run", data=(data.folders[0].path,), architecture=table, dimensions=2, hidden=0, ahead=0.6,
        seed=3, batch_size=32, threads=1,
    )  # fmt: skip
    method = made(config, data)
    sample = method.sample(7)
    episode, at = data.locate(method.sampler.indices(7))
    uniform = generator_at(3, Purpose.AHEAD, 7).random(32)
    for row in range(32):
        frames = data.episode(int(episode[row])).frames
        chances = 0.6 ** np.arange(len(frames) - 1 - at[row])
        ahead = 1 + int(np.searchsorted(np.cumsum(chances / chances.sum()), uniform[row], side="right"))
        assert np.array_equal(sample["frames"][row].numpy(), frames[at[row] : at[row] + 2])
        assert np.array_equal(sample["later"][row, 0].numpy(), frames[at[row] + ahead])
    assert method.sample_bytes() == sample["frames"].numel() + sample["later"].numel()
    state, old_state = numbers(2, 10, 2)
    (model,) = numbers(1, 2, 2, 2)
    fill_map(method.state_map, state)
    fill_map(method.target["state_map"], old_state)
    fill_table(method.model, model)
    x, later = (part[:, 0].flatten(1).numpy().argmax(axis=1) for part in (sample["frames"], sample["later"]))
    action = sample["action"][:, 0].numpy()
    errors = [np.sum((state[i] @ model[:, :, a] - old_state[y]) ** 2) for i, a, y in zip(x, action, later, strict=True)]
    assert method.loss(sample)[1]["prediction_loss"].item() == pytest.approx(np.mean(errors), rel=1e-5)


@pytest.mark.parametrize("ahead", [0.0, 0.5])
def test_latents_are_of_whole_observations(given: dict[str, Any], tmp_path: Path, ahead: float) -> None:
    """Two pictures each: f(x) is one map of the earlier picture, if there is one, and another of the later one."""
    data = two_episodes(tmp_path / "stacked", stack=2)
    ways = {"ahead": ahead} if ahead else {"horizon": 2}
    method = made(RldpConfig(**{**given, "data": (data.folders[0].path,)}, hidden=0, orthonormality=0.0, **ways), data)
    earlier, later, old_earlier, old_later = numbers(4, 3, 2)
    (model,) = numbers(1, 2, 2, 2)
    for layer, first, second in (
        (method.state_map, earlier, later),
        (method.target["state_map"], old_earlier, old_later),
    ):
        fill_map(layer, np.concatenate([first, np.zeros((13, 2)), second]))
    fill_table(method.model, model)
    sample = method.sample(5)
    uniform = generator_at(0, Purpose.AHEAD, 5).random(6)
    episodes_of = [((0, 1, 2), (1, 0)), ((2, 0, 1), (0, 1))]
    errors = []

    def seen(states: Any, at: int, first: Any, second: Any) -> Any:
        return second[states[at]] + (first[states[at - 1]] if at else 0)

    for row, index in enumerate(method.sampler.indices(5)):
        (states, actions), at = episodes_of[index // 2], index % 2
        u = seen(states, at, earlier, later)
        two = at == 0 and uniform[row] > 2 / 3  # one step with probability 1 of 1 + 1/2
        for h in range(1 if ahead else 2 - at):
            u = u @ model[:, :, actions[at + h]]
            end = at + 1 + (two if ahead else h)
            errors.append(np.sum((u - seen(states, end, old_earlier, old_later)) ** 2))
    loss, logged = method.loss(sample)
    assert logged["prediction_loss"].item() == loss.item() == pytest.approx(np.mean(errors), rel=1e-5)
    assert method.sample_bytes() == sum(sample[name].numel() for name in ("frames", "later") if name in sample)


def test_the_hidden_layer_of_the_model_by_hand(few: Dataset, given: dict[str, Any]) -> None:
    """Units see the latents and which action it is; what is negative is cut off."""
    model = made(RldpConfig(**given, horizon=1, hidden=2), few).model
    with torch.no_grad():
        model.hidden.weight.copy_(torch.tensor([[1.0, 0, 0, 10], [0, 1, -5, 0]]))
        model.out.weight.copy_(torch.tensor([[1.0, 0], [0, 2]]))
        model.out.bias.copy_(torch.tensor([0.5, 0]))
        found = model.taken(torch.tensor([[1.0, 3], [1, 3]]), torch.tensor([0, 1]))
    assert found.tolist() == [[1.5, 0], [11.5, 6]]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return walks(tmp_path_factory.mktemp("world") / "set", AFTER, 80, 12, ends=(LAST,))


def frequencies(data: Dataset) -> np.ndarray:
    """Return how often each state is that of a transition."""
    episode, at = data.locate(np.arange(data.num_transitions))
    seen = [data.episode(int(e)).frames[t].argmax() for e, t in zip(episode, at, strict=True)]
    return np.bincount(seen, minlength=10) / len(seen)


def test_contrastive_finds_the_density_of_the_successor_measure(data: Dataset, table: str, tmp_path: Path) -> None:
    """F^T B times the frequency of y is what a linear solve gives, to 0.1 of values up to 1.55: 4% in the mean square.

    What is compared is the target network, the average of the last steps.
    """
    config = ContrastiveConfig(
        out=tmp_path / "run", data=(data.folders[0].path,), architecture=table, steps=800, batch_size=128,
        learning_rate=0.05, adam_epsilon=1e-4, gamma=GAMMA, target_ema=0.97, dimensions=10, threads=1,
    )  # fmt: skip
    method = trained(config, data)
    frames = torch.from_numpy(pictures(np.arange(10))[:, None])
    with torch.no_grad():
        phi = method.encoder(frames)
        forward = method.target["heads"].all_actions(phi).permute(2, 0, 1)
        learned = (forward @ method.target["map"](phi, frames).T).numpy() * frequencies(data)
    on = np.eye(10)[AFTER] * (np.arange(10) != LAST)  # (A, n, n) without the way into the last state
    exact = np.eye(10) + GAMMA * on @ np.linalg.inv(np.eye(10) - GAMMA * on.mean(axis=0))
    error = (learned - exact)[:, :LAST, :LAST]
    assert np.abs(error).max() < 0.1
    assert np.linalg.norm(error) < 0.04 * np.linalg.norm(exact[:, :LAST, :LAST])


def test_tdjepa_finds_the_successor_features_of_its_map(data: Dataset, table: str, tmp_path: Path) -> None:
    """The map is orthonormal over the data, and the heads are its exact successor features, to a tenth of their size.

    That size is the root of the sum of all squares.
    """
    config = TdJepaConfig(
        out=tmp_path / "run", data=(data.folders[0].path,), architecture=table, steps=800, batch_size=128,
        learning_rate=0.02, adam_epsilon=1e-4, gamma=GAMMA, target_ema=0.95, dimensions=9, threads=1,
    )  # fmt: skip
    method = trained(config, data)
    frames = torch.from_numpy(pictures(np.arange(10))[:, None])
    with torch.no_grad():
        phi = method.encoder(frames)
        task = method.target["task_map"](phi, frames).numpy()
        learned = method.target["heads"].all_actions(method.target["state_map"](phi)).numpy().transpose(2, 0, 1)
    moves = np.eye(10)[AFTER]
    on = moves * (np.arange(10) != LAST)
    following = np.linalg.solve(np.eye(10) - GAMMA * on.mean(axis=0), moves.mean(axis=0) @ task)
    exact = moves @ task + GAMMA * on @ following  # (A, n, d)
    error = (learned - exact)[:, :LAST]
    assert np.linalg.norm(error) < 0.1 * np.linalg.norm(exact[:, :LAST])
    moments = (task * frequencies(data)[:, None]).T @ task
    assert np.abs(moments - np.eye(9)).max() < 0.25


SPECTRAL = [
    (ContrastiveConfig, {"gamma": 0.9}, 0.0, 6.0),
    (TdJepaConfig, {"gamma": 0.9}, 0.5, 13.0),
    (RldpConfig, {"hidden": 0}, 0.5, 13.0),
    (RldpConfig, {"hidden": 0, "ahead": 0.5}, 0.5, 13.0),
]


@pytest.mark.parametrize(("config", "settings", "lazy", "degrees"), SPECTRAL, ids=str)
def test_the_features_come_to_span_the_subspace_of_the_theorem(
    config: Any, settings: Any, lazy: float, degrees: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three features for each state of a grid with a random walk and one action: the distance falls to near zero.

    The theorem's subspace has the top left singular vectors of the successor measure's density. Latent prediction may
    settle on the most negative eigenvalue, however small; a walk that stays half the time has no negative one.
    """
    monkeypatch.setitem(ENCODERS.loaded, "embedding", _Loaded("embedding", "helpers.py", Embedding))
    after, rng, rows = successors(open_grid(2, 7)), np.random.default_rng(0), []
    counts = np.zeros((14, 14))
    for _ in range(400):
        states = [int(rng.integers(14))]
        for _ in range(10):
            states.append(states[-1] if rng.random() < lazy else int(after[rng.integers(4), states[-1]]))
            counts[states[-2], states[-1]] += 1
        rows.append((states, [0] * 10, [0.0] * 10, End.TRUNCATED))
    data = episodes(tmp_path / "set", *rows, actions=1)
    chosen = config(
        out=tmp_path / "run", data=(data.folders[0].path,), architecture="embedding", width=3, steps=1000,
        batch_size=128, learning_rate=0.02, adam_epsilon=1e-4, target_ema=0.95, dimensions=3, threads=1, **settings,
    )  # fmt: skip
    frequency = counts.sum(axis=1) / counts.sum()
    density = np.linalg.inv(np.eye(14) - 0.9 * counts / counts.sum(axis=1, keepdims=True)) / frequency
    best, _ = left_singular_vectors(density, 3, frequency, frequency)
    frames = torch.from_numpy(pictures(np.arange(14))[:, None])
    methods = made(chosen, data), trained(chosen, data)
    with torch.no_grad():
        start, end = (method.target["encoder"](frames).numpy().astype(np.float64) for method in methods)
    angles = [np.rad2deg(principal_angles(features, best, frequency)).max() for features in (start, end)]
    assert angles[0] > 60
    assert angles[1] < degrees


def test_orthonormality_prevents_the_collapse_of_latent_prediction(tmp_path: Path) -> None:
    """Effective ranks side by side in Breakout: what spr without centring loses, rldp keeps."""
    collect(CollectConfig("minatar/breakout", tmp_path / "set", steps=1000), quiet=True)
    shared: dict[str, Any] = {
        "data": (tmp_path / "set",), "architecture": "minatar", "steps": 60, "batch_size": 32, "learning_rate": 3e-3,
        "threads": 1,
    }  # fmt: skip
    runs = {
        "rldp": RldpConfig(out=tmp_path / "rldp", **shared),
        "ahead": RldpConfig(out=tmp_path / "ahead", ahead=0.5, **shared),
        "without": RldpConfig(out=tmp_path / "without", orthonormality=0.0, **shared),
        "spr": SprConfig(out=tmp_path / "spr", center="no", channels=4, horizon=2, **shared),
    }
    done = {name: read_run(pretrain(config, quiet=True))["done"] for name, config in runs.items()}
    rank = {name: found["effective_rank"] for name, found in done.items()}
    assert min(rank["rldp"], rank["ahead"]) > 2 * rank["spr"], rank
    # Without the term, states of another segment are soon predicted as well as one's own.
    assert done["without"]["loss_of_other_states"] < 0.05 < done["rldp"]["loss_of_other_states"]


@pytest.mark.parametrize("config", [ContrastiveConfig, RldpConfig, TdJepaConfig])
def test_a_batch_of_one_has_no_pairs(config: Any) -> None:
    with pytest.raises(UserError, match="--batch-size: found 1, expected at least 2"):
        config(out=Path("run"), batch_size=1)


def test_steps_and_a_later_state_are_two_ways() -> None:
    with pytest.raises(UserError, match="--horizon: found 2, expected it only with --ahead 0"):
        RldpConfig(out=Path("run"), ahead=0.5, horizon=2)


def test_the_second_map_may_have_an_encoder_of_its_own(few: Dataset, given: dict[str, Any]) -> None:
    """It starts from other weights, is trained, and normalises its features where the other one does."""
    config = TdJepaConfig(**given, gamma=0.5, second_map="own")
    method = made(replace(config, architecture="minatar", width=0.5, layer_norm=True), few)
    own = method.task_map.own
    assert own.readout == method.encoder.readout == "normalized relu"
    assert own.num_features == method.encoder.num_features == 64
    assert not torch.equal(own.dense.weight, method.encoder.dense.weight)
    method.loss(method.sample(0))[0].backward()
    assert own.dense.weight.grad.abs().sum() > 0
