"""The method itself: its loss by hand, and its predictions against the exact successor measure of its sets."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

from protovalue.config import PRESET
from protovalue.data.dataset import Dataset
from protovalue.data.format import End
from protovalue.indicators.precompute import IndicatorRewards, IndicatorSpec, indicator_rewards, load_indicator
from protovalue.pretrain import pvn
from protovalue.pretrain.base import transitions
from protovalue.pretrain.loop import pretrain
from protovalue.pretrain.method_configs import PvnConfig
from protovalue.runs import read_run
from tests.pretrain.helpers import TRANSITIONS, episodes, fill_table, made, pictures, trained, two_episodes, walks

# Two actions that lead to different places. Nothing follows state 9.
AFTER = np.array([[1, 2, 3, 4, 0, 6, 7, 9, 5, 9], [5, 0, 9, 8, 3, 2, 4, 1, 6, 9]])
LAST, GAMMA = 9, 0.8


@pytest.fixture
def few(tmp_path: Path) -> Dataset:
    return two_episodes(tmp_path / "few")


@pytest.fixture
def config(few: Dataset, table: str, tmp_path: Path) -> PvnConfig:
    return PvnConfig(
        out=tmp_path / "run", data=(few.folders[0].path,), architecture=table, indicator="singletons", tasks=3,
        steps=3, batch_size=8, gamma=0.5, target_ema=0.75, threads=1,
    )  # fmt: skip


@pytest.mark.parametrize("backup", ["mean", "max"])
def test_loss_by_hand(few: Dataset, config: PvnConfig, backup: Literal["mean", "max"]) -> None:
    """Every transition's targets from the two tables of predictions, one number at a time."""
    method = made(replace(config, backup=backup), few)
    rng = np.random.default_rng(0)
    psi, behind = rng.integers(-8, 9, (2, 3, 3, 2)).astype(float)  # [state][task][action] of network and target
    fill_table(method.heads, psi)
    fill_table(method.target["heads"], behind)
    sample = method.sample(5)
    loss, logged = method.loss(sample)
    errors, predictions, fired = [], [], []
    for index in method.sampler.indices(5):
        x, a, after, terminal = TRANSITIONS[index]
        for task in range(3):
            first, second = behind[after][task]
            following = (first + second) / 2 if backup == "mean" else max(first, second)
            fired.append(1.0 if x == task else 0.0)
            predictions.append(psi[x][task][a])
            errors.append(fired[-1] + (0.0 if terminal else 0.5 * following) - predictions[-1])
    assert {TRANSITIONS[index] for index in method.sampler.indices(5)} == set(TRANSITIONS)
    assert loss.item() == pytest.approx(np.mean(np.square(errors)), rel=1e-6)
    assert logged["td_error_std"].item() == pytest.approx(np.std(errors, ddof=1), rel=1e-6)
    assert logged["prediction_mean"].item() == pytest.approx(np.mean(predictions), rel=1e-6)
    assert logged["indicator_proportion"].item() == pytest.approx(np.mean(fired))
    loss.backward()
    assert method.heads.weight.grad.abs().sum() > 0
    assert all(parameter.grad is None for parameter in method.target.parameters())


def test_without_the_mask_a_value_follows_the_end(few: Dataset, config: PvnConfig) -> None:
    """The transition 1 -> 2 terminates: its target has half of what the target network says of state 2, or nothing."""
    losses = {}
    for mask in ("yes", "no"):
        method = made(replace(config, terminal_mask=mask), few)
        fill_table(method.heads, np.zeros((3, 3, 2)))
        fill_table(method.target["heads"], np.full((3, 3, 2), 4.0))
        sample = method.sample(5)
        rows = [TRANSITIONS[index] for index in method.sampler.indices(5)]
        targets = [
            (x == task) + (0.0 if ends and mask == "yes" else 2.0) for x, _, _, ends in rows for task in range(3)
        ]
        losses[mask] = method.loss(sample)[0].item()
        assert losses[mask] == pytest.approx(np.mean(np.square(targets)), rel=1e-6)
    assert losses["yes"] < losses["no"]


@pytest.mark.parametrize(("mask", "expected"), [("yes", [0.8, 0.4, 0.4]), ("no", [1, 0.5, 0.5])])
def test_heads_start_at_the_value_of_a_constant(
    few: Dataset, config: PvnConfig, mask: Literal["yes", "no"], expected: list[float]
) -> None:
    """Rewards of 2, 1 and 1 in 4 transitions, one of which ends: v = r + 0.5 * 3/4 v, or r + 0.5 v without the mask."""
    method = made(replace(config, head_start="mean", terminal_mask=mask), few)
    for heads in (method.heads, method.target["heads"]):
        np.testing.assert_allclose(heads.bias.detach().numpy(), [expected] * 2, rtol=1e-6)
    assert not made(config, few).heads.bias.any()


def test_the_start_is_where_a_constant_predictor_ends(few: Dataset, config: PvnConfig) -> None:
    """Temporal differences with biases alone, the weights held at zero, stay at the start: the mean step is zero."""
    method = made(replace(config, head_start="mean", target_ema=0.0), few)
    with torch.no_grad():
        for heads in (method.heads, method.target["heads"]):
            heads.weight.zero_()
    every = np.arange(4)  # each transition once
    sample = transitions(method.sampler.transitions(every))
    method.loss({**sample, "reward": torch.from_numpy(method.rewards(every))})[0].backward()
    assert method.heads.bias.grad.abs().max() > 0.01  # one action's mean differs from the other's
    assert method.heads.bias.grad.sum(0).abs().max() < 1e-6


def test_one_step_of_the_loop_by_hand(few: Dataset, config: PvnConfig) -> None:
    """After a step the target has moved a quarter of the way from where the network was to where it is."""
    method = trained(replace(config, steps=1), few)
    start = made(config, few).heads.weight.detach()
    assert not torch.equal(method.heads.weight, start)
    moved = 0.75 * start + 0.25 * method.heads.weight.detach()
    torch.testing.assert_close(method.target["heads"].weight, moved)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    found = walks(tmp_path_factory.mktemp("world") / "set", AFTER, 80, 12, ends=(LAST,))
    assert min((found.ends == end).sum() for end in (End.TERMINATED, End.TRUNCATED)) > 20
    return found


@pytest.mark.parametrize("backup", ["mean", "max"])
def test_it_finds_the_exact_successor_measure_of_its_sets(
    data: Dataset, table: str, tmp_path: Path, backup: Literal["mean", "max"]
) -> None:
    """Random networks draw the sets; their values are solved here from the world's transition matrix."""
    config = PvnConfig(
        out=tmp_path / "run", data=(data.folders[0].path,), architecture=table, tasks=5, proportion=0.3,
        normalize="yes",
        tasks_per_module=2, steps=600, batch_size=64, learning_rate=0.3, adam_epsilon=0.1, gamma=GAMMA, target_ema=0.8,
        backup=backup, threads=1,
    )  # fmt: skip
    method = trained(config, data)
    frames = torch.from_numpy(pictures(np.arange(10))[:, None])
    sets = load_indicator(config.out / "indicator").rewards(frames).numpy().astype(float)
    assert 2 <= sets.sum(axis=0).min() <= sets.sum(axis=0).max() <= 5, "sets of some of the ten states"
    moves = np.eye(10)[AFTER] * (np.arange(10) != LAST)  # (A, n, n) without the way into the last state
    if backup == "mean":
        values = np.linalg.solve(np.eye(10) - GAMMA * moves.mean(axis=0), sets)
    else:
        values = sets
        for _ in range(200):  # error 0.8^200 < 1e-19
            values = (sets + GAMMA * moves @ values).max(axis=0)
    exact = sets + GAMMA * moves @ values  # (A, n, m)
    with torch.no_grad():
        learned = method.heads.all_actions(method.encoder(frames)).numpy().transpose(2, 0, 1)
    assert np.abs(exact[0] - exact[1]).max() > 1, "the actions differ"
    assert np.abs(learned - exact)[:, :LAST].max() < 0.01


def test_the_indicator_is_what_the_config_says(
    few: Dataset, config: PvnConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def recorded(data: Any, spec: Any, *rest: Any) -> IndicatorRewards:
        seen.append((spec, rest))
        return indicator_rewards(data, spec, *rest)

    monkeypatch.setattr(pvn, "indicator_rewards", recorded)
    cache = config.out.parent / "own"
    base = replace(config, indicator="rni", proportion=0.2, seed=4, cache=cache)
    made(replace(base, threshold="sgd", burn_in=30, normalize="yes", tasks_per_module=2, indicator_seed=0), few)
    made(replace(base, preset="paper", target_ema=PRESET), few)
    assert asdict(seen[0][0]) == asdict(IndicatorSpec("rni", 3, 0.2, 0, "sgd", 30, True, 2))
    assert asdict(seen[1][0]) == asdict(IndicatorSpec("rni", 3, 0.2, 4, "exact", 62_500, False, 10))
    assert seen[0][1] == (cache, "cpu")


def test_without_tasks_nothing_is_learned_or_written(few: Dataset, config: PvnConfig) -> None:
    empty = PvnConfig(out=config.out, data=config.data, architecture="table", tasks=0)
    pretrain(empty, quiet=True)
    assert read_run(config.out)["done"]["steps"] == 0
    assert not (config.out / "indicator").exists()
    method = made(empty, few)
    assert (method.steps(), method.finish()) == (0, {})
    assert made(config, few).steps() == 3


def test_the_summary_says_how_large_the_sets_are(few: Dataset, config: PvnConfig) -> None:
    """Of the four states of transitions two are 0, one is 1 and one is 2."""
    found = made(config, few).finish()
    assert found == {"proportion_min": 0.25, "proportion_max": 0.5}


def test_predictions_are_compared_with_rollouts(
    few: Dataset, config: PvnConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Only the first episode terminates: 0 by action 1, then 1 by action 0; gamma is 1/2.

    So the sums of task 0 are 1 and 0, those of task 1 are 1/2 and 1; task 2 is never met, and its correlation not
    known. The predictions are 10 j + 4 x of task and state, higher by 100 for actions that were not taken.
    """
    terminated = ((0, 1, 2), (1, 0), (0, 0), End.TERMINATED)
    episodes(tmp_path / "held", terminated, ((2, 1), (0,), (0,), End.CUT))
    method = made(replace(config, holdout=(tmp_path / "held",)), few)
    psi = np.array([[[10 * task + 4 * x + 100 * (a != 1 - x) for a in (0, 1)] for task in range(3)] for x in (0, 1)])
    fill_table(method.heads, psi)
    found = method.finish()
    np.testing.assert_allclose(found["holdout_correlation_per_task"], [-1, 1, np.nan], rtol=1e-6)
    assert found["holdout_correlation_mean"] == pytest.approx(0, abs=1e-6)
    assert found["holdout_correlation_min"] == pytest.approx(-1)
    assert found["holdout_prediction_mean"] == pytest.approx(12)
    assert found["holdout_rollout_mean"] == pytest.approx((0.5 + 0.75 + 0) / 3)
    assert found["proportion_max"] == 0.5
    assert "nothing to compare" not in caplog.text
    fill_table(method.heads, np.ones((2, 3, 2)))  # all alike: there is nothing to correlate
    found = method.finish()
    assert (found["holdout_correlation_mean"], found["holdout_correlation_min"]) == (None, None)
    assert "--holdout: nothing to compare" in caplog.text
