"""The numbers of a report: worked out by hand on cells made up for it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protovalue.report import summary
from protovalue.report.cells import CellResult
from protovalue.report.grid import scaling
from protovalue.report.results import Missing, Results

A, B = "minatar/breakout", "minatar/freeway"


def cell(
    method: Any,
    env: Any,
    returns: Any,
    seed: int = 0,
    family: str = "pvn",
    tasks: Any = None,
    width: int = 1,
    curve: Any = None,
    steps: Any = (100.0, 200.0),
) -> CellResult:
    kind = "dqn" if family == "dqn" else "online"
    curve = np.tile(np.asarray(returns, float)[:, None], (1, len(steps))) if curve is None else np.array(curve, float)
    return CellResult(
        env, method, width, tasks, 0, None if kind == "dqn" else seed, tuple(range(len(returns))),
        np.array(returns, float), 10, 200, np.array(steps, float), curve, Path(f"{method}-{seed}"), None, None,
        {"kind": kind, "method": family},
    )  # fmt: skip


def results(cells: Any, normalise: str = "dqn", random_policy: Any = None) -> Results:
    methods = tuple(dict.fromkeys(one.method for one in cells))
    envs = tuple(dict.fromkeys(one.env for one in cells))
    return Results("r", "R", normalise, methods, envs, tuple(cells), random_policy=random_policy or {})


PAIR = [
    cell("PVN", A, [4, 6], 0),
    cell("PVN", A, [8, 10], 1),
    cell("DQN", A, [9, 11], family="dqn"),
    cell("PVN", B, [1, 1], 0),
    cell("PVN", B, [1, 1], 1),
    cell("DQN", B, [3, 3], family="dqn"),
]


def test_dqn_is_one_and_random_actions_are_zero() -> None:
    made = results(PAIR, random_policy={A: 2.0, B: 1.0})
    scale = summary.scale_of(made)
    assert scale.yardsticks == {A: (2.0, 10.0), B: (1.0, 3.0)}
    scores, notes = summary.normalised_scores(made, scale)
    np.testing.assert_allclose(scores["PVN"][A], [[0.25, 0.5], [0.75, 1.0]])
    np.testing.assert_allclose(scores["PVN"][B], 0)
    np.testing.assert_allclose(scores["DQN"][A], [[0.875], [1.125]])
    assert (scale.notes, notes) == ((), ())
    rows = {row.method: row for row in summary.over_games(scores, 200)}
    assert rows["PVN"].statistics["mean"].point == pytest.approx(0.625 / 2)
    assert rows["PVN"].statistics["optimality_gap"].point == pytest.approx(1 - 0.625 / 2)
    assert (rows["PVN"].envs, rows["PVN"].encoders, rows["PVN"].agents) == (2, 2, 2)
    assert (rows["DQN"].encoders, rows["DQN"].agents) == (2, 1)


@pytest.mark.parametrize(
    ("cells", "random_policy", "said"),
    [
        (PAIR, {A: 2.0}, f"{B} is left out of the aggregates: its random policy was not measured"),
        (PAIR[:5], {A: 2.0, B: 1.0}, f"{B} is left out of the aggregates: it has no finished end-to-end DQN"),
        (PAIR, {A: 2.0, B: 3.0}, "DQN's mean return, 3.00, is not above that of random actions, 3.00"),
        (
            [*PAIR, cell("Random", A, [9, 9], family="random"), cell("Random", B, [2, 4], family="random")],
            {A: 2.0, B: 1.0},
            "DQN's mean return, 3.00, is not above that of agents on random initialisations, 3.00",
        ),
    ],
)
def test_a_game_without_a_yardstick_is_left_out_and_named(cells: Any, random_policy: Any, said: str) -> None:
    made = results(cells, random_policy=random_policy)
    scale = summary.scale_of(made)
    assert list(scale.yardsticks) == [A]
    assert len(scale.notes) == 1
    assert said in scale.notes[0]
    assert set(summary.normalised_scores(made, scale)[0]["PVN"]) == {A}


def test_a_game_in_which_a_method_has_no_result_is_left_out_for_all() -> None:
    made = results([*PAIR, cell("SPR", A, [1, 1], family="spr")], random_policy={A: 2.0, B: 1.0})
    scores, notes = summary.normalised_scores(made, summary.scale_of(made))
    assert {method: set(games) for method, games in scores.items()} == {"PVN": {A}, "DQN": {A}, "SPR": {A}}
    assert notes == (f"{B} is left out of the aggregates: no result of SPR",)


def test_human_normalised_leaves_out_games_without_a_human() -> None:
    made = results([cell("PVN", "atari/Pong", [14.6]), cell("PVN", "atari/Carnival", [5])], "human")
    scale = summary.scale_of(made)
    assert scale.yardsticks == {"atari/Pong": (-20.7, 14.6)}
    assert scale.notes == (
        "left out of the aggregates, because the package's table has no human score of them: atari/Carnival",
    )
    np.testing.assert_allclose(summary.normalised_scores(made, scale)[0]["PVN"]["atari/Pong"], [[1.0]])


def test_without_a_scale_there_are_games_alone() -> None:
    made = results(PAIR, "none")
    scale = summary.scale_of(made)
    assert (scale.text, summary.normalised_scores(made, scale)) == ("", ({}, ()))
    assert all(score.normalised is None for score in summary.per_game(made, scale))


def test_per_game_by_hand() -> None:
    scores = {(s.method, s.env): s for s in summary.per_game(results(PAIR), summary.Scale("", {}, ()))}
    pvn = scores["PVN", A]
    assert (pvn.mean.point, pvn.encoders, pvn.agents, pvn.episodes) == (7.0, 2, 2, 10)
    # Encoders' means 5 and 9: standard error 2, and t with one degree of freedom is 12.706.
    assert pvn.mean.low == pytest.approx(7 - 2 * 12.706, abs=1e-2)


def test_methods_that_saw_the_reward_are_references() -> None:
    others = [cell("DQN", A, [5], family="dqn"), cell("SPR", A, [2], family="spr")]
    made = results([cell("Reward", A, [9], family="reward"), cell("PVN", A, [3]), *others])
    assert summary.references(made) == ("Reward", "DQN")


def test_a_training_curve_by_hand() -> None:
    cells = [
        cell("PVN", A, [1, 1], 0, curve=[[2, np.nan], [4, 6]]),  # means over agents: 3, 6
        cell("PVN", A, [1, 1], 1, curve=[[5, np.nan], [5, np.nan]]),  # 5, none
    ]
    curve = summary.training_curve(cells, 50)
    assert curve is not None
    np.testing.assert_array_equal(curve.steps, [100, 200])
    np.testing.assert_allclose(curve.mean, [4, 6])
    assert curve.high[0] == pytest.approx(4 + 12.706 * 1.0, abs=1e-2)  # 3 and 5: standard error 1
    assert np.isnan(curve.high[1])  # one encoder alone
    assert (curve.lowest, curve.highest) == (3, 6)
    apart = summary.training_curve(cells[:1], 50, separate=True)
    assert apart is not None
    np.testing.assert_allclose(apart.mean, [3, 6])
    assert apart.low[0] == pytest.approx(3 - 12.706, abs=1e-2)


def test_a_long_curve_is_averaged_into_parts() -> None:
    long = cell("PVN", A, [1], curve=[np.arange(100.0)], steps=np.arange(10.0, 1001, 10))
    curve = summary.training_curve([long], 4)
    assert curve is not None
    np.testing.assert_allclose(curve.steps, [250, 500, 750, 1000])
    np.testing.assert_allclose(curve.mean, [12, 37, 62, 87])
    assert np.isnan(curve.low).all()


def test_no_curve_at_all() -> None:
    empty = cell("PVN", A, [1], curve=np.zeros((1, 0)), steps=())
    assert summary.training_curve([empty], 4) is None
    assert summary.training_curve([cell("PVN", A, [1], curve=[[np.nan, np.nan]])], 4) is None


@pytest.mark.parametrize(
    ("title", "base"),
    [
        ("PVN (RNI), 8x, 100 tasks", "PVN (RNI)"),
        ("pvn, tasks 10, width 2", "pvn"),
        ("PVN, 0.25x, 10 tasks", "PVN"),
        ("pvn, proportion 0.01, tasks 10", "pvn, proportion 0.01"),
        ("DQN", "DQN"),
    ],
)
def test_a_title_without_its_place_in_the_grid(title: str, base: str) -> None:
    assert summary.base_title(title) == base


def grid() -> list[Any]:
    cells = [cell(f"PVN, {w}x, {t} tasks", env, [t * w, t * w], tasks=t, width=w)
             for env in (A, B) for w in (1, 2) for t in (10, 50)]  # fmt: skip
    return [*cells, cell("Random", A, [0.5], family="random"), cell("Random", B, [0.5], family="random")]


def test_scaling_by_game_where_nothing_is_normalised() -> None:
    made = results(grid(), "none")
    points = scaling(made, summary.per_game(made, summary.scale_of(made)), ())
    found = {(p.panel, p.width, p.tasks): p.estimate.point for p in points}
    assert found[A, 2, 50] == 100
    assert found[A, 1, 0] == 0.5  # a random initialisation has no tasks
    assert len(found) == len(points) == 2 * (4 + 1)
    assert scaling(results(PAIR), (), ()) == ()


def test_scaling_over_games_shows_the_optimality_gap() -> None:
    cells = [*grid(), cell("DQN", A, [100, 100], family="dqn"), cell("DQN", B, [100, 100], family="dqn")]
    made = results(cells, random_policy={A: 0.0, B: 0.0})
    scores, _ = summary.normalised_scores(made, summary.scale_of(made))
    points = scaling(made, (), summary.over_games(scores, 100))
    assert {(p.panel, p.width, p.tasks): round(p.estimate.point, 6) for p in points} == {
        ("PVN", 1, 10): 0.9, ("PVN", 1, 50): 0.5, ("PVN", 2, 10): 0.8, ("PVN", 2, 50): 0.0, ("PVN", 1, 0): 0.995,
    }  # fmt: skip


def test_ablations_are_variants_of_one_method() -> None:
    cells = [cell("RNI", A, [5]), cell("Hash", A, [2]), cell("SPR", A, [3], family="spr")]
    made = results(cells, "none")
    bars = summary.ablations(made, summary.per_game(made, summary.scale_of(made)), ())
    assert {method: estimate.point for method, estimate in bars[A].items()} == {"RNI": 5, "Hash": 2}
    assert summary.ablations(results(grid(), "none"), (), ()) == {}  # widths and tasks are not ablations


def test_ablations_end_with_the_random_initialisation_of_the_same_network() -> None:
    cells = [
        cell("Random", A, [1, 3], family="random"),
        cell("Random", B, [0, 0], family="random"),
        cell("Random, wide", A, [9], family="random", width=2),  # no variant is as wide
        replace(cell("Random, deep", A, [8], family="random"), settings=NATURE),
        *(cell(name, env, [level]) for env in (A, B) for name, level in (("RNI", 5), ("Hash", 2))),
        cell("SPR", A, [3], family="spr"),
        cell("DQN", A, [10], family="dqn"),
        cell("DQN", B, [10], family="dqn"),
    ]
    made = results(cells, "none")
    bars = summary.ablations(made, summary.per_game(made, summary.scale_of(made)), ())
    drawn = {env: [(method, estimate.point) for method, estimate in panel.items()] for env, panel in bars.items()}
    assert drawn == {A: [("RNI", 5), ("Hash", 2), ("Random", 2)], B: [("RNI", 5), ("Hash", 2), ("Random", 0)]}
    lean = results([one for one in cells if one.method in ("Random", "RNI", "Hash", "DQN")], random_policy={A: 0, B: 0})
    scores, _ = summary.normalised_scores(lean, summary.scale_of(lean))
    bars = summary.ablations(lean, (), summary.over_games(scores, 100))
    assert {name: list(panel) for name, panel in bars.items()} == {
        "Median": ["RNI", "Hash", "Random"], "IQM": ["RNI", "Hash", "Random"],
    }  # fmt: skip
    assert bars["Median"]["Random"].point == pytest.approx((0.2 + 0.0) / 2)
    alone = results([one for one in cells if one.method in ("Random", "RNI", "SPR")], "none")
    assert summary.ablations(alone, summary.per_game(alone, summary.scale_of(alone)), ()) == {}  # nothing is varied


NATURE = {"kind": "online", "method": "random", "encoder.architecture": "nature"}


def test_behaviour_cloning_is_found_by_what_it_is() -> None:
    assert summary.cloning(results([cell("Imitation", A, [1], family="bc"), *PAIR])) == ("Imitation",)


def test_a_method_s_interval_does_not_depend_on_the_others() -> None:
    made = results(PAIR, random_policy={A: 2.0, B: 1.0})
    scores, _ = summary.normalised_scores(made, summary.scale_of(made))
    alone = summary.over_games({"PVN": scores["PVN"]}, 200)[0]
    assert alone == next(row for row in summary.over_games(scores, 200) if row.method == "PVN")


def test_the_scale_says_how_many_agents_it_stands_on() -> None:
    made = results(PAIR, random_policy={A: 2.0, B: 1.0})
    assert "end-to-end DQN (1; mean of 2 agents)" in summary.scale_of(made).text
    assert "taken as exact" in summary.scale_of(made).text
    lost = Missing(A, "DQN", None, "not finished", (2, 3, 4))
    scale = summary.scale_of(replace(made, missing=(lost, Missing(A, "PVN", 2, "not begun", (0, 1)))))
    assert scale.notes == (f"{A}: the DQN that is 1 stands on 2 of 5 planned agents",)
    one = [cell("PVN", A, [4]), cell("DQN", A, [9], family="dqn")]
    assert "(1; one agent)" in summary.scale_of(results(one, random_policy={A: 2.0})).text


def test_the_first_method_improves_on_the_others_by_hand() -> None:
    scores = {
        "PVN": {A: np.array([[1.0, 2.0], [3.0, 4.0]]), B: np.array([[5.0], [5.0]])},
        "SPR": {A: np.array([[2.0], [0.0]]), B: np.array([[5.0], [6.0]])},
        "BC": {A: np.zeros((2, 1)), B: np.zeros((2, 1))},
    }
    found = summary.improvements(scores, 100)
    # A: 1 beats one of (2, 0), 2 beats one and meets one, 3 and 4 beat both: 6.5 of 8. B: two ties of four pairs.
    assert found["SPR"].point == pytest.approx((6.5 / 8 + 1 / 4) / 2)
    assert (found["BC"].point, found["BC"].low) == (1.0, 1.0)
    assert list(found) == ["SPR", "BC"]
    assert summary.improvements({}, 100) == {}


def test_profiles_fall_from_one_to_zero() -> None:
    made = results(PAIR, random_policy={A: 2.0, B: 1.0})
    scores, _ = summary.normalised_scores(replace(made), summary.scale_of(made))
    profile = summary.profiles(scores, 100)["DQN"]
    assert (profile.share[0], profile.share[-1]) == (1.0, 0.0)
    assert (np.diff(profile.share) <= 0).all()
