"""Tables: the paper's own bold, numbers by hand, and renderings read back by other programs."""

import csv
import io
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from markdown_it import MarkdownIt

from protovalue.evaluate.aggregate import Estimate
from protovalue.evaluate.scores import PAPER_TITLES, paper_scores
from protovalue.report import command, rendering
from protovalue.report.model import Aggregate, Spread
from protovalue.report.table import Column, Number, Table, filled, shown
from protovalue.report.tables import AGGREGATES, FEATURES, GAMES
from tests.report import fake

# Which method is bold in the paper's table, where it is not PVN.
NOT_PVN = {
    "Random Cumulants": "Atlantis BankHeist Breakout CrazyClimber Freeway Phoenix Pooyan SpaceInvaders UpNDown",
    "SPR": "Centipede DoubleDunk Enduro Frostbite Hero KungFuMaster MsPacman",
    "Behavior Cloning": "Gravitar Kangaroo Robotank StarGunner VideoPinball",
}
X, DASH = "\N{MULTIPLICATION SIGN}", "\N{EN DASH}"
HOSTILE = r"a|b *c* _d_ `e` \f [g](h) <i> 50% $j$ #k {l} ~m~ ^n & &lt; **o**"


def per_game(scores: Any, references: Any = ()) -> Table:
    return GAMES.for_files(fake.of_scores(scores, references))


def paper_as_ours() -> dict[Any, Any]:
    return {
        PAPER_TITLES[method]: {f"atari/{game}": np.array([[score]]) for game, score in games.items()}
        for method, games in paper_scores().items()
    }


def read_markdown(text: Any) -> list[list[tuple[str, bool]]]:
    """Return the cells of the table in a Markdown text as another program reads them: text, and whether bold."""
    rows: list[list[tuple[str, bool]]] = []
    for token in MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text):
        if token.type == "tr_open":
            rows.append([])
        elif token.type == "inline" and token.level > 2:
            assert token.children is not None
            kinds = [child.type for child in token.children]
            assert set(kinds) <= {"text", "text_special", "strong_open", "strong_close"}, kinds
            rows[-1].append(("".join(child.content for child in token.children), "strong_open" in kinds))
    return rows


def test_the_papers_table_with_the_papers_bold() -> None:
    table = per_game(paper_as_ours(), references=("DQN", "Environment Reward"))
    titles = list(PAPER_TITLES.values())
    assert table.columns == ("Game", *titles, *(f"{title}, paper" for title in titles))
    assert len(table.rows) == 46
    for row in table.rows:
        game = row[0].text
        expected = next((method for method, games in NOT_PVN.items() if game in games.split()), "PVN (RNI)")
        assert [column for column, cell in zip(table.columns, row, strict=True) if cell.is_best] == [
            expected,
            f"{expected}, paper",
        ]
    demon = next(row for row in table.rows if row[0].text == "DemonAttack")
    assert [cell.text for cell in demon[1:8]] == [
        "4,427.9", "101,850.7", "123.1", "14,426.7", "421.8", "2,407.8", "78,671.1",
    ]  # fmt: skip


def test_measured_cells_by_hand() -> None:
    scores = {
        # Means of encoders 1, 2, 3: 2 with 4.30265 / sqrt(3) on both sides.
        "PVN (RNI)": {"atari/Pong": np.array([[0.0, 2.0], [2.0, 2.0], [3.0, 3.0]]), "atari/Qbert": np.ones((2, 2))},
        "mine": {"atari/Pong": np.full((3, 2), 1.9)},
        "DQN": {"atari/Pong": np.full((5, 1), 20.0), "atari/Qbert": np.full((5, 1), 7000.0)},
    }
    table = per_game(scores, references=["DQN"])
    assert table.columns == ("Game", "PVN (RNI)", "mine", "DQN", "DQN, paper", "PVN (RNI), paper")
    pong, qbert = table.rows
    assert [cell.text for cell in pong] == [
        "Pong", "2.0 [-0.5, 4.5]", "1.9 [1.9, 1.9]", "20.0 [20.0, 20.0]", "11.5", "20.1",
    ]  # fmt: skip
    assert (pong[1].value, pong[1].low, pong[1].high) == pytest.approx((2, -0.484138, 4.484138), abs=1e-5)
    assert (pong[1].encoders, pong[1].agents) == (3, 2)
    # The best of ours is PVN, not DQN; in the paper Pong's best is PVN too, Qbert's as well.
    assert [cell.is_best for cell in pong] == [False, True, False, False, False, True]
    # A method without a rival or a result is not marked; numbers of runs that are not the method's usual are said.
    assert [cell.is_best for cell in qbert] == [False, False, False, False, False, True]
    assert qbert[1].text == f"1.0 [1.0, 1.0] (2 {X} 2)"
    assert qbert[2] == Number(DASH, short="no result")
    assert f"PVN (RNI) 2 to 3 {X} 2, mine 3 {X} 2, DQN 5 {X} 1" in table.note
    assert "apart from DQN" in table.note
    assert "one encoder and three agents" in table.note


def test_unusual_numbers_of_runs_are_in_the_cell() -> None:
    games = {f"minatar/{name}": np.ones((3, 3)) for name in ("asterix", "breakout")}
    table = per_game({"pvn": {**games, "minatar/freeway": np.ones((1, 3))}})
    assert [row[0].text for row in table.rows] == ["asterix", "breakout", "freeway"]
    assert [row[1].text for row in table.rows] == ["1.00 [1.00, 1.00]", "1.00 [1.00, 1.00]", f"1.00 (1 {X} 3)"]
    assert table.columns == ("Game", "pvn")  # MinAtar is not in the paper
    assert "One encoder alone gives no interval" in table.note


def test_a_game_without_any_result_is_on_the_page_alone() -> None:
    report = fake.of_scores({"a": {"minatar/breakout": np.ones((2, 1))}})
    report = replace(report, results=replace(report.results, envs=("minatar/freeway", "minatar/breakout")))
    assert [row[0].text for row in GAMES.for_files(report).rows] == ["breakout"]
    lines = GAMES.for_page(report).lines
    assert [(line.of, line.numbers["measured"][0].short) for line in lines] == [
        ("minatar/freeway", "no result"), ("minatar/breakout", "1.00"),
    ]  # fmt: skip


@pytest.mark.parametrize(("env", "text"), [("atari/Pong", "1.5"), ("minatar/breakout", "1.50")])
def test_returns_have_the_same_decimals_in_the_table_and_in_the_terminal(env: str, text: str) -> None:
    report = fake.of_scores({"a": {env: np.full((1, 1), 1.5)}})
    assert GAMES.for_files(report).rows[0][1].text == text
    assert list(command._headline(report))[1] == f"  a  {text} (no interval)  1 encoder x 1 agent"


def test_families_stay_where_they_differ_and_equal_bests_are_all_bold() -> None:
    one = {"minatar/breakout": np.ones((1, 1)), "atari/Breakout": np.ones((1, 1))}
    table = per_game({"a": one, "b": one})
    assert [row[0].text for row in table.rows] == ["minatar/breakout", "atari/Breakout"]
    assert all(cell.is_best for row in table.rows for cell in row[1:])


def test_aggregates_mark_the_largest_scores_and_the_smallest_gap() -> None:
    def estimates(median: Any, gap: Any) -> dict[Any, Any]:
        return {
            "median": Estimate(median, median - 0.1, median + 0.1),
            "iqm": Estimate(median),
            "mean": Estimate(-0.0001),
            "optimality_gap": Estimate(gap),
        }

    rows = {"a": estimates(0.5, 0.6), "b": estimates(0.4, 0.5), "DQN": estimates(1, 0)}
    report = fake.of_scores({}, ["DQN"])
    report = replace(report, aggregates=tuple(Aggregate(method, 2, 2, 1, found) for method, found in rows.items()))
    table = AGGREGATES.for_files(report)
    assert table.columns == ("Method", "Median", "IQM", "Mean", "Optimality gap")
    assert [cell.text for cell in table.rows[0]] == ["a", "0.500 [0.400, 0.600]", "0.500", "0.000", "0.600"]
    assert [[cell.is_best for cell in row[1:]] for row in table.rows] == [
        [True, True, True, False],
        [False, False, True, True],
        [False] * 4,
    ]


def test_methods_that_saw_the_reward_do_not_compete() -> None:
    one = {"minatar/breakout": 9.0, "minatar/freeway": 9.0}
    scores = {
        method: {env: np.full((1, 1), level) for env, level in games.items()}
        for method, games in {"Reward": one, "PVN": {"minatar/breakout": 3.0, "minatar/freeway": 2.0},
                              "DQN": one, "SPR": {"minatar/breakout": 2.0}}.items()
    }  # fmt: skip
    breakout, freeway = per_game(scores, ["Reward", "DQN"]).rows
    assert [number.is_best for number in breakout] == [False, False, True, False, False]
    assert not any(number.is_best for number in freeway)  # one alone is not the best


def test_the_best_row_of_a_column_and_the_best_column_of_a_row() -> None:
    rows = [(1.0, 5.0), (2.0, 2.0), (0.0, None)]
    columns: list[Column[Any]] = [
        Column("a", lambda row: row[0], best="highest"),
        Column("b", lambda row: row[1], best="lowest"),
        Column("c", lambda row: row[0]),
    ]
    marked = [[number.is_best for number in row] for row in filled(columns, rows, "xyz", ())]
    assert marked == [[False, False, False], [True, True, False], [False, False, False]]
    apart = [[number.is_best for number in row] for row in filled(columns, rows, "xyz", ("y",))]
    assert apart == [[True, False, False], [False, False, False], [False, False, False]]
    pair: list[Column[Any]] = [
        Column("a", lambda row: row[0], best="highest"),
        Column("b", lambda row: row[1], best="highest"),
    ]
    across = [[number.is_best for number in row] for row in filled(pair, rows, "xyz", (), "columns")]
    assert across == [[False, True], [True, True], [False, False]]


@pytest.mark.parametrize(
    ("value", "text", "short", "below"),
    [
        (3, "3", "3", ""),
        (1234.5678, "1,234.57", "1,235", ""),
        (-0.001, "0.00", "0.00", ""),
        (Estimate(-1.5, -2.25, 3.0), "-1.50 [-2.25, 3.00]", "\N{MINUS SIGN}1.50", "\N{MINUS SIGN}2.25 to 3.00"),
        (Spread(12.0, 1.0, 23.0), "12.00 (1.00 to 23.00)", "12.0", "1.0 to 23.0"),
        (Spread(0.5, 0.5, 0.5), "0.50", "0.50", ""),
        (Spread(math.nan, math.nan, math.nan), DASH, "", ""),
        (None, DASH, "", ""),
    ],
)
def test_a_number_in_files_and_on_the_page(value: Any, text: Any, short: str, below: str) -> None:
    found = shown(value, 2)
    assert (found.text, found.short, found.below) == (text, short, below)


def test_counts_come_first_in_files_and_last_on_the_page(tmp_path: Path) -> None:
    report = fake.report(tmp_path)
    assert FEATURES.for_files(report).columns == (
        "Game and method", "Encoders", "Features", "Effective rank", "Smoothness", "Linear probe R2",
    )  # fmt: skip
    page = FEATURES.for_page(report)
    assert [column.page_title for column in page.columns["count"]] == ["Features", "Encoders"]
    assert [number.short for number in page.lines[0].numbers["count"]] == ["128", "2"]


def hostile_table() -> Table:
    rows = (
        (Number(HOSTILE), Number(HOSTILE, is_best=True)),
        (Number("[x]"), Number("1.5 [1.0, 2.0]", 1.5, 1.0, 2.0, 3, 2)),
    )
    return Table(HOSTILE, ("Game", HOSTILE), rows, note=HOSTILE)


def test_markdown_is_read_back_as_it_was() -> None:
    rows = read_markdown(rendering.markdown(hostile_table()))
    assert rows == [
        [("Game", False), (HOSTILE, False)],
        [(HOSTILE, False), (HOSTILE, True)],
        [("[x]", False), ("1.5 [1.0, 2.0]", False)],
    ]


def test_csv_is_read_back_in_full_precision() -> None:
    rows = list(csv.reader(io.StringIO(rendering.csv(hostile_table()))))
    assert rows[0] == ["Game", HOSTILE, *(f"{HOSTILE}, {name}" for name in ("low", "high", "encoders", "agents"))]
    assert rows[1:] == [[HOSTILE, "", "", "", "", ""], ["[x]", "1.5", "1.0", "2.0", "3", "2"]]
    table = per_game({"a": {"minatar/breakout": np.array([[1 / 3], [2 / 3]])}})
    (row,) = csv.DictReader(io.StringIO(rendering.csv(table)))
    assert float(row["a"]) == 0.5
    assert float(row["a, high"]) == table.rows[0][1].high
    assert (row["a, encoders"], row["a, agents"]) == ("2", "1")


def test_latex_escapes_and_bolds() -> None:
    lines = rendering.latex(hostile_table()).splitlines()
    escaped = (
        r"a\textbar{}b *c* \_d\_ `e` \textbackslash{}f [g](h) \textless{}i\textgreater{} 50\% \$j\$ \#k \{l\} "
        r"\textasciitilde{}m\textasciitilde{} \textasciicircum{}n \& \&lt; **o**"
    )
    assert lines[2] == rf"\caption{{{escaped}}}"
    assert lines[3] == r"\begin{tabular}{lr}"
    assert rf"Game & {escaped} \\" in lines
    assert rf"{escaped} & \textbf{{{escaped}}} \\" in lines
    assert r"{}[x] & 1.5 [1.0, 2.0] \\" in lines  # \\ would take [x] for a length
    assert (
        rendering.latex(Table("t", ("Game",), ((Number(f"3 {X} 2 {DASH}"),),))).splitlines()[7] == r"3 $\times$ 2 -- \\"
    )


def test_the_three_files(tmp_path: Path) -> None:
    table = hostile_table()
    paths = rendering.write_table(table, tmp_path, "per-game")
    assert {ending: path.name for ending, path in paths.items()} == {
        "md": "per-game.md", "csv": "per-game.csv", "tex": "per-game.tex",
    }  # fmt: skip
    assert paths["md"].read_text() == rendering.markdown(table)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["per-game.csv", "per-game.md", "per-game.tex"]


def test_an_empty_table_renders() -> None:
    table = per_game({})
    assert table.rows == ()
    assert rendering.csv(table) == "Game\n"
    assert "Game" in rendering.markdown(table)
    assert "Game" in rendering.plain(table)
