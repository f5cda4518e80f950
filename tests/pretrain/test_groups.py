"""Groups of tasks: who gets how many, the loss by hand, and exact values of every kind in a small world."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from protovalue.data.dataset import Dataset
from protovalue.data.format import End
from protovalue.errors import UserError
from protovalue.files import read_json
from protovalue.indicators.precompute import load_indicator
from protovalue.pretrain.groups import read_group, sizes
from protovalue.pretrain.loop import pretrain
from protovalue.pretrain.method_configs import CumulantsConfig, PvnConfig
from protovalue.runs import read_run
from tests.pretrain.helpers import TRANSITIONS, episodes, fill_table, made, pictures, trained, two_episodes, walks

KNOWN = ("proportion", "gamma", "backup", "arrival", "changes", "indicator")
OUT = Path("run")


@pytest.mark.parametrize(
    ("texts", "tasks", "expected"),
    [
        (("proportion=0.05", "proportion=0.9"), 50, [25, 25]),
        (("proportion=0.05,share=4", "proportion=0.9"), 50, [40, 10]),
        (("gamma=0", "gamma=0.5", "gamma=0.9"), 50, [17, 17, 16]),
        (("proportion=0.05,share=3", "proportion=1,weight=0.1", "proportion=0.5"), 9, [6, 1, 2]),
        (("share=100", "share=1", "share=1"), 4, [2, 1, 1]),
        (("share=1", "share=2"), 2, [1, 1]),
        (("share=1", "gamma=0"), 3, [2, 1]),
        (("share=3", "proportion=1", "proportion=1,gamma=0", "share=1"), 6, [3, 1, 1, 1]),
        (("proportion=1", "proportion=1,gamma=0.5"), 2, [1, 1]),
    ],
)
def test_who_gets_how_many_tasks(texts: tuple[str, ...], tasks: int, expected: list[int]) -> None:
    """By share, rounded; one at least, and just one for the lifetime."""
    assert sizes([read_group(text, KNOWN) for text in texts], tasks) == expected


def test_a_group_as_it_is_written() -> None:
    group = read_group("share=2.5, weight=0.1,proportion=0.9,gamma=0,backup=max,arrival=yes,indicator=hash", KNOWN)
    assert (group.share, group.weight, group.is_lifetime) == (2.5, 0.1, False)
    own = {"proportion": 0.9, "gamma": 0.0, "backup": "max", "arrival": "yes", "indicator": "hash"}
    assert dict(group.own) == own
    assert read_group("proportion=1.0", KNOWN).is_lifetime


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0.9", "found 0.9, expected settings such as share=2,gamma=0.9"),
        ("", "found , expected settings"),
        ("proportion=0.9,", "expected settings such as"),
        ("portion=0.9", "unknown setting of a group 'portion': did you mean 'proportion'?"),
        ("share=1,share=2", "found share twice in share=1,share=2, expected each once"),
        ("proportion=0", "found proportion=0, expected a number more than 0 and at most 1"),
        ("proportion=1.01", "found proportion=1.01, expected"),
        ("gamma=1", "found gamma=1, expected a number at least 0 and less than 1"),
        ("gamma=nan", "found gamma=nan, expected"),
        ("share=0", "found share=0, expected a number more than 0"),
        ("weight=-1", "found weight=-1, expected a number more than 0"),
        ("weight=inf", "found weight=inf, expected a number more than 0"),
        ("weight=much", "found weight=much, expected a number"),
        ("backup=median", "found backup=median, expected mean or max"),
        ("arrival=1", "found arrival=1, expected yes or no"),
        ("changes=1", "found changes=1, expected yes or no"),
        ("proportion=1,arrival=yes", "expected no arrival: of all states there is one set"),
        ("proportion=1,changes=no", "expected no changes: of all states there is one set"),
        ("indicator=mine.py", "found indicator=mine.py, expected hash or"),
        ("proportion=1,share=2", "expected no share: of all states there is one set, so one task"),
        ("proportion=1,indicator=hash", "expected no indicator: of all states there is one set"),
        ("proportion=1, share = 2", "expected no share: of all states there is one set, so one task"),
    ],
)
def test_what_is_wrong_with_a_group(text: str, message: str) -> None:
    with pytest.raises(UserError, match=f"^--groups: .*{message.replace('?', '.')}"):
        PvnConfig(out=OUT, groups=(text,))


@pytest.mark.parametrize(
    ("config", "given", "message"),
    [
        (PvnConfig, {"groups": ("proportion=0.1", "proportion=1"), "proportion": 0.2}, "--proportion: found 0.2"),
        (PvnConfig, {"groups": ("gamma=0.1", "gamma=0.2"), "gamma": 0.5}, "--gamma: found 0.5"),
        (PvnConfig, {"groups": ("backup=max",), "backup": "max"}, "--backup: found max"),
        (PvnConfig, {"groups": ("arrival=no",), "arrival": "yes"}, "--arrival: found yes"),
        (PvnConfig, {"groups": ("proportion=1",), "tasks": 1, "arrival": "yes"}, "--arrival: found yes"),
        (PvnConfig, {"groups": ("changes=no", "proportion=1"), "changes": "yes"}, "--changes: found yes"),
        (PvnConfig, {"groups": ("indicator=hash", "proportion=1"), "indicator": "hash"}, "--indicator: found hash"),
        (PvnConfig, {"groups": ("indicator=hash", "proportion=1"), "normalize": "yes"}, "--normalize: found yes"),
        (PvnConfig, {"groups": ("indicator=hash", "gamma=0"), "threshold": "sgd"}, "--threshold: found sgd"),
        (PvnConfig, {"groups": ("proportion=1",), "indicator": "hash"}, "--indicator: found hash"),
        (PvnConfig, {"groups": ("proportion=1",), "normalize": "yes"}, "--normalize: found yes"),
        (PvnConfig, {"groups": ("proportion=1",), "threshold": "sgd"}, "--threshold: found sgd"),
        (PvnConfig, {"groups": ("proportion=1",), "indicator_seed": 1}, "--indicator-seed: found 1"),
        (CumulantsConfig, {"groups": ("gamma=0.1",), "gamma": 0.5}, "--gamma: found 0.5"),
        (CumulantsConfig, {"groups": ("proportion=0.1",)}, "--groups: unknown setting of a group 'proportion'"),
    ],
)
def test_a_setting_that_every_group_has_is_refused(config: Any, given: Any, message: str) -> None:
    with pytest.raises(UserError, match=f"^{message}"):
        config(out=OUT, **given)


def test_fewer_tasks_than_groups_are_refused(few: Dataset, config: PvnConfig) -> None:
    with pytest.raises(UserError, match="--tasks: found 1, expected at least 2, one for each of --groups"):
        pretrain(replace(config, tasks=1, groups=("weight=1", "gamma=0.2")), quiet=True)
    alone = PvnConfig(out=config.out, data=config.data, tasks=3, groups=("proportion=1",))
    with pytest.raises(UserError, match="--tasks: found 3, expected 1: every group is one task"):
        pretrain(alone, quiet=True)
    with pytest.raises(UserError, match=r"--groups: found shares that add up to inf, expected smaller ones"):
        pretrain(replace(config, groups=("gamma=0,share=1e308", "gamma=0.1,share=1e308"), gamma=0.99), quiet=True)
    assert not config.out.exists()


@pytest.fixture
def few(tmp_path: Path) -> Dataset:
    return two_episodes(tmp_path / "few")


@pytest.fixture
def config(few: Dataset, table: str, tmp_path: Path) -> PvnConfig:
    return PvnConfig(
        out=tmp_path / "run", data=(few.folders[0].path,), architecture=table, indicator="singletons", tasks=3,
        steps=3, batch_size=8, gamma=0.5, target_ema=0.75, threads=1,
    )  # fmt: skip


def test_loss_by_hand(few: Dataset, config: PvnConfig) -> None:
    """Five tasks of three groups: sets 0 and 1 now, sets 0 and 1 on arrival by the maximum, and the lifetime."""
    texts = ("weight=2", "gamma=0.25,backup=max,arrival=yes,share=1", "proportion=1,gamma=0.75,weight=0.1")
    method = made(replace(config, tasks=5, groups=texts), few)
    rng = np.random.default_rng(0)
    psi, behind = rng.integers(-8, 9, (2, 3, 5, 2)).astype(float)  # [state][task][action] of network and target
    fill_table(method.heads, psi)
    fill_table(method.target["heads"], behind)
    loss, logged = method.loss(method.sample(5))
    errors: list[list[float]] = [[], [], []]
    for index in method.sampler.indices(5):
        x, a, after, terminal = TRANSITIONS[index]
        for task in range(5):
            group = (0, 0, 1, 1, 2)[task]
            reward = (x == task, after == task - 2, True)[group]
            following = max(behind[after][task]) if group == 1 else sum(behind[after][task]) / 2
            bootstrap = 0.0 if terminal else (0.5, 0.25, 0.75)[group] * following
            errors[group].append((2, 1, 0.1)[group] * (reward + bootstrap - psi[x][task][a]) ** 2)
    assert loss.item() == pytest.approx(np.mean(np.concatenate(errors)), rel=1e-6)
    for number, part in enumerate(errors, 1):
        assert logged[f"loss_of_group_{number}"].item() == pytest.approx(np.mean(part), rel=1e-6)


def test_errors_in_units_of_the_proportion(few: Dataset, config: PvnConfig) -> None:
    """Sets 0, 1 and 2 hold 2, 1 and 1 of the 4 states: errors count 4, 16 and 16 times."""
    plain, scaled = made(config, few), made(replace(config, scale_errors="proportion"), few)
    for method in (plain, scaled):
        fill_table(method.heads, np.ones((3, 3, 2)))
        fill_table(method.target["heads"], np.zeros((3, 3, 2)))
    rows = [TRANSITIONS[index][0] for index in plain.sampler.indices(0)]
    squares = [(1 - (x == task)) * (4, 16, 16)[task] for x in rows for task in range(3)]
    assert scaled.loss(scaled.sample(0))[0].item() == pytest.approx(np.mean(squares), rel=1e-6)
    assert plain.loss(plain.sample(0))[0].item() == pytest.approx(np.mean(np.array(squares) > 0), rel=1e-6)


def test_errors_in_units_of_the_spread(few: Dataset, config: PvnConfig) -> None:
    """gamma 1/2. The mean values follow the second episode, which was cut off: 0.8, 0.4 and 0.4 (v = r + 3/8 v).

    Sums of set 0: 1, 0 and 0 + 1.4 / 2, 1 + 0.8 / 2; of set 1: 1/2, 1 and 0.4 / 4, 0.4 / 2; of set 2: 0, 0 and
    1 + 0.4 / 4, 0.4 / 2.
    """
    method = made(replace(config, scale_errors="spread"), few)
    sums = np.array([[1, 0, 0.7, 1.4], [0.5, 1, 0.1, 0.2], [0, 0, 1.1, 0.2]])
    np.testing.assert_allclose(method.spreads(), sums.std(axis=1), rtol=1e-6)
    fill_table(method.heads, np.ones((3, 3, 2)))
    fill_table(method.target["heads"], np.zeros((3, 3, 2)))
    rows = [TRANSITIONS[index][0] for index in method.sampler.indices(0)]
    squares = [(1 - (x == task)) / np.var(sums[task]) for x in rows for task in range(3)]
    assert method.loss(method.sample(0))[0].item() == pytest.approx(np.mean(squares), rel=1e-5)


def test_sums_that_do_not_differ_have_no_spread(few: Dataset, config: PvnConfig, tmp_path: Path) -> None:
    """Where no episode ends by itself every lifetime is 1 / (1 - gamma), to rounding: its errors are not scaled.

    Without a discount sums are rewards, here half ones and half zeros: the best constant, 1/2, has a loss of 1.
    """
    going_on = episodes(tmp_path / "on", *[((0, 1, 2), (0, 1), (0, 0), End.TRUNCATED)] * 7)
    groups = ("proportion=1", "gamma=0")
    method = made(replace(config, gamma=0.99, groups=groups, scale_errors="spread"), going_on)
    spread = method.spreads()
    assert spread[0] == 0
    np.testing.assert_allclose(spread[1:], [0.5, 0.5], rtol=1e-6)
    fill_table(method.heads, np.tile([[0.0], [0.5], [0.5]], (3, 1, 2)))
    fill_table(method.target["heads"], np.zeros((3, 3, 2)))
    logged = method.loss(method.sample(0))[1]
    assert [logged[f"loss_of_group_{number}"].item() for number in (1, 2)] == [1, 1]


def test_cumulants_in_groups(few: Dataset, config: PvnConfig) -> None:
    """The discounts of a group are those of its tasks, and all errors are divided by the spread."""
    given = CumulantsConfig(
        out=config.out, data=config.data, architecture=config.architecture, tasks=4, batch_size=8, threads=1,
        groups=("gamma=0.25", "gamma=0.75,backup=mean,weight=3"), scale_errors="spread", target_ema=0.5,
    )  # fmt: skip
    method = made(given, few)
    psi, behind = np.random.default_rng(1).integers(-8, 9, (2, 3, 4, 2)).astype(float)
    fill_table(method.heads, psi)
    fill_table(method.target["heads"], behind)
    spread, squares = method.spreads(), []
    for index in method.sampler.indices(2):
        x, a, after, terminal = TRANSITIONS[index]
        rewards = method.rewards(np.array([index]))[0]
        for task in range(4):
            following = max(behind[after][task]) if task < 2 else sum(behind[after][task]) / 2
            target = rewards[task] + (0 if terminal else (0.25, 0.25, 0.75, 0.75)[task] * following)
            squares.append((1, 1, 3, 3)[task] * ((target - psi[x][task][a]) / spread[task]) ** 2)
    assert method.loss(method.sample(2))[0].item() == pytest.approx(np.mean(squares), rel=1e-4)


# Two actions that lead to different places. Nothing follows state 9.
AFTER = np.array([[1, 2, 3, 4, 0, 6, 7, 9, 5, 9], [5, 0, 9, 8, 3, 2, 4, 1, 6, 9]])
LAST = 9


def test_every_group_finds_its_exact_values(table: str, tmp_path: Path) -> None:
    """Random networks draw the sets; the values of each group are solved here from the world's transitions."""
    data = walks(tmp_path / "set", AFTER, 80, 12, ends=(LAST,))
    config = PvnConfig(
        out=tmp_path / "run", data=(data.folders[0].path,), architecture=table, tasks=7, normalize="yes",
        tasks_per_module=2, steps=450, batch_size=64, learning_rate=0.3, adam_epsilon=0.1, target_ema=0.8, threads=1,
        groups=("proportion=0.3,gamma=0.8", "proportion=0.7,gamma=0.5,backup=max,arrival=yes",
                "proportion=1,gamma=0.8"),
        scale_errors="spread",
    )  # fmt: skip
    method = trained(config, data)
    frames = torch.from_numpy(pictures(np.arange(10))[:, None])
    first, second = (
        load_indicator(config.out / name).rewards(frames).numpy().astype(float) for name in ("indicator", "indicator-2")
    )
    assert not (config.out / "indicator-3").exists()
    assert not np.array_equal(first, second)
    moves = np.eye(10)[AFTER]  # (A, n, n)
    on = moves * (np.arange(10) != LAST)  # without the way into the last state
    solved = np.linalg.solve(np.eye(10) - 0.8 * on.mean(axis=0), np.concatenate([first, np.ones((10, 1))], axis=1))
    counted = np.concatenate([first, np.ones((10, 1))], axis=1) + 0.8 * on @ solved  # (A, n, 4)
    greedy, arriving = np.zeros((10, 3)), moves @ second
    for _ in range(100):
        greedy = (arriving + 0.5 * on @ greedy).max(axis=0)
    exact = np.concatenate([counted[:, :, :3], arriving + 0.5 * on @ greedy, counted[:, :, 3:]], axis=2)
    with torch.no_grad():
        learned = method.heads.all_actions(method.encoder(frames)).numpy().transpose(2, 0, 1)
    assert np.abs(exact[0] - exact[1])[:LAST].max(axis=0).min() > 0.3, "the actions differ in every task"
    assert np.abs(learned - exact)[:, :LAST].max() < 0.01


def test_sets_of_changes_find_their_exact_values(table: str, tmp_path: Path) -> None:
    """A transition counts where it raises the score enough, that into the last state too; solved from the world."""
    data = walks(tmp_path / "set", AFTER, 80, 12, ends=(LAST,))
    config = PvnConfig(
        out=tmp_path / "run", data=(data.folders[0].path,), architecture=table, tasks=4, normalize="yes",
        proportion=0.3, gamma=0.5, backup="max", changes="yes", holdout=(data_to_compare(tmp_path),),
        steps=450, batch_size=64, learning_rate=0.3, adam_epsilon=0.1, target_ema=0.8, threads=1,
        cache=tmp_path / "cache",
    )  # fmt: skip
    method = trained(config, data)
    (kept,) = (tmp_path / "cache").glob("*/indicator.json")
    assert read_json(kept)["transitions"] == data.num_transitions
    frames = torch.from_numpy(pictures(np.arange(10))[:, None])
    sets = load_indicator(config.out / "indicator")
    score, limits = sets.scores(frames).numpy(), sets.thresholds.numpy()
    raises = (score[AFTER] - score >= limits).astype(float)  # (A, n, m)
    states = np.concatenate([data.episode(number).frames for number in range(data.num_episodes)]).reshape(-1, 16)
    ends = np.cumsum(data.lengths + 1)[:-1]  # between episodes nothing changes
    rises = np.delete(np.diff(score[states.argmax(axis=1)], axis=0), ends - 1, axis=0) >= limits
    index = np.arange(data.num_transitions)
    np.testing.assert_array_equal(method.rewards(index), rises)
    np.testing.assert_allclose(method.sets[0].proportions, rises.mean(axis=0))
    on = np.eye(10)[AFTER] * (np.arange(10) != LAST)
    greedy = np.zeros((10, 4))
    for _ in range(100):
        greedy = (raises + 0.5 * on @ greedy).max(axis=0)
    exact = raises + 0.5 * on @ greedy
    with torch.no_grad():
        learned = method.heads.all_actions(method.encoder(frames)).numpy().transpose(2, 0, 1)
    assert np.abs(exact[0] - exact[1])[:LAST].max(axis=0).min() > 0.3, "the actions differ in every task"
    assert np.abs(learned - exact)[:, :LAST].max() < 0.01
    held = raises[[1, 0], [0, 5]]  # 0 to 5 by the second action, 5 to 6 by the first, where it ends
    assert method.finish()["holdout_rollout_mean"] == pytest.approx(np.mean([held[0] + 0.5 * held[1], held[1]]))


def data_to_compare(folder: Path) -> Path:
    """Write one episode that leads from 0 over 5 to 6."""
    episodes(folder / "held", ((0, 5, 6), (1, 0), (0, 0), End.TERMINATED))
    return folder / "held"


def test_predictions_of_arrivals_are_compared_with_rollouts(few: Dataset, config: PvnConfig, tmp_path: Path) -> None:
    """0 to 1 to 2, where it ends: arrivals at 1 and 2. Sums at gamma 1/2: of set 1 are 1, 0, of set 2 1/2, 1."""
    episodes(tmp_path / "held", ((0, 1, 2), (1, 0), (0, 0), End.TERMINATED))
    method = made(replace(config, holdout=(tmp_path / "held",), arrival="yes"), few)
    fill_table(method.heads, np.array([[[0.0, 0.0], [3, 3], [1, 1]], [[0, 0], [1, 1], [3, 3]]]))
    found = method.finish()
    np.testing.assert_allclose(found["holdout_correlation_per_task"], [np.nan, 1, 1], rtol=1e-6)
    assert found["holdout_rollout_mean"] == pytest.approx((0 + 0.5 + 0.75) / 3)


def test_what_is_not_given_is_not_recorded(few: Dataset, config: PvnConfig, tmp_path: Path) -> None:
    """A run that was begun before there were groups goes on, and its address in a study stays."""
    config = replace(config, architecture="minatar", gamma=0.99)
    pretrain(config, quiet=True)
    recorded = read_run(config.out)["config"]
    assert not {"groups", "scale_errors", "arrival", "changes"} & set(recorded)
    pretrain(config, quiet=True)
    with pytest.raises(UserError, match="holds a run with another config: groups"):
        pretrain(replace(config, groups=("gamma=0.9",)), quiet=True)
    other = replace(config, out=tmp_path / "other", groups=("gamma=0.99",))
    pretrain(other, quiet=True)
    assert read_run(other.out)["config"]["groups"] == ["gamma=0.99"]
    weights = [(one.out / "encoder" / "model.safetensors").read_bytes() for one in (config, other)]
    assert weights[0] == weights[1], "one group with the settings of all is what there was before"
