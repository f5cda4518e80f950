"""The report's page as text: every number is there, nothing of the user's is code, nothing comes from a network."""

import base64
import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protovalue.report import page as page_module
from protovalue.report.model import Estimate, Report
from protovalue.report.numbers import interval, short
from protovalue.report.page import write_page
from protovalue.report.wording import headline
from tests.report import fake
from tests.report.fake import BEST, DQN, ENVS, INJECTION, MEANS, METHODS, PVN, RANDOM

VOID = {"meta", "link", "img", "input", "br", "path", "circle", "rect"}


class Page(HTMLParser):
    """What a reader finds: text, tables, addresses, and the text of scripts."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.source = path.read_text(encoding="utf-8")
        self.text = ""
        self.addresses: list[str] = []
        self.ids: list[str] = []
        self.images: list[dict[str, str]] = []
        self.scripts: list[tuple[str | None, str]] = []
        self.handlers: list[str] = []
        self.tables: dict[str, list[list[dict[str, str]]]] = {}
        self.headings: list[str] = []
        self._open: list[str] = []
        self._table = ""
        self.feed(self.source)
        assert not self._open

    def handle_starttag(self, tag: Any, attrs: Any) -> None:
        given = {name: value or "" for name, value in attrs}
        self.addresses += [given[name] for name in ("src", "href") if name in given]
        self.handlers += [name for name in given if name.startswith("on")]
        if "id" in given:
            self.ids.append(given["id"])
        if tag == "img":
            self.images.append(given)
        elif tag == "script":
            self.scripts.append((given.get("type"), ""))
        elif tag == "table":
            self._table = given["id"]
            self.tables[self._table] = []
        elif tag == "tr":
            self.tables[self._table].append([])
        elif tag in ("td", "th"):
            self.tables[self._table][-1].append({"text": "", "bold": "", **given})
        elif tag == "h2":
            self.headings.append("")
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: Any) -> None:
        if tag not in VOID:
            assert self._open.pop() == tag

    def handle_data(self, data: Any) -> None:
        words = " ".join(data.split())
        if "script" in self._open:
            kind, text = self.scripts[-1]
            self.scripts[-1] = (kind, text + data)
        elif "style" not in self._open and words:
            self.text += f" {words}"
            if {"td", "th"} & set(self._open):
                cell = self.tables[self._table][-1][-1]
                cell["text"] = f"{cell['text']} {words}".strip()
                cell["bold"] += words if "b" in self._open else ""
            elif "h2" in self._open:
                self.headings[-1] += words


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, Page]:
    folder = tmp_path_factory.mktemp("report")
    report = fake.report(folder)
    return report, Page(write_page(report, folder / "index.html"))


def test_sections_and_structure(made: tuple[Report, Page]) -> None:
    _, page = made
    assert page.headings == [
        "Over all games", "Game by game", "Training curves", "Geometry of the features", "Features in numbers",
        "How each number was made", "Costs", "What is missing", "About",
    ]  # fmt: skip
    assert len(page.ids) == len(set(page.ids))
    assert all(image["alt"] for image in page.images)
    inside = [address[1:] for address in page.addresses if address.startswith("#")]
    assert set(inside) <= set(page.ids)
    assert page.source.startswith("<!doctype html>")


def test_titles_and_files_of_the_user_are_text(made: tuple[Report, Page]) -> None:
    _, page = made
    assert INJECTION not in page.source
    assert INJECTION in page.text  # the parser undoes the escaping: a reader sees it as it was written
    assert f'title = "{INJECTION}"' in page.text  # in the study file
    assert "out of memory <here>" in page.text
    assert page.handlers == []
    code = [text for kind, text in page.scripts if kind is None]
    assert len(code) == 1
    allowed = re.search(r"script-src '([^']+)'", page.source)
    assert allowed is not None
    assert allowed[1] == page_module._hash(code[0])


def test_a_file_that_ends_the_script_stays_inside(tmp_path: Path) -> None:
    """The names of environments also stand in JSON inside a script element."""
    report = fake.report(tmp_path)
    evil = "</script><img src=x onerror=alert(1)>"
    galleries = tuple(replace(gallery, env=evil) for gallery in report.galleries[:1])
    page = Page(write_page(replace(report, galleries=galleries), tmp_path / "index.html"))
    assert page.handlers == []
    data = [json.loads(text) for kind, text in page.scripts if kind == "application/json"]
    assert [one["env"] for one in data] == [evil]


def test_a_colour_is_a_colour(tmp_path: Path) -> None:
    report = fake.report(tmp_path)
    report = replace(report, colours={PVN: "red; background: url(http://example.org)"})
    assert "example.org" not in write_page(report, tmp_path / "index.html").read_text()


def test_nothing_comes_from_a_network(made: tuple[Report, Page]) -> None:
    _, page = made
    outside = [a for a in page.addresses if not a.startswith(("data:", "#"))]
    assert outside == ["per-game.csv", "per-game.md", "per-game.tex", "https://openreview.net/forum?id=oGDKSt9JrZi"]
    assert "url(" not in page.source
    assert "@import" not in page.source
    assert "default-src 'none'" in page.source


def test_numbers_of_the_game_table(made: tuple[Report, Page]) -> None:
    _, page = made
    head, *rows = page.tables["returns-table"]
    assert [cell["text"] for cell in head] == ["Game", *METHODS, "paper: PVN"]
    for row, env in zip(rows, ENVS, strict=True):
        assert row[0]["data-value"] == env
        for cell, method in zip(row[1:4], METHODS, strict=True):
            assert float(cell["data-value"]) == MEANS[env, method][0]
            assert bool(cell["bold"]) == ((env, method) in BEST)
    assert [cell["text"] for cell in rows[0][1:]] == [
        "5.12 4.50 to 5.75",
        "1.75 1.25 to 2.25",
        "9.50 8.00 to 11.00",
        "123.4",
    ]
    assert rows[1][1]["text"] == "33.2 30.5 to 36.0 1 run"
    assert rows[1][3]["text"] == "1,234 1,100 to 1,300"
    assert (rows[1][4]["text"], rows[1][4]["data-value"]) == ("", "")
    scores = page.tables["scores-table"]
    assert [float(cell["data-value"]) for cell in scores[1][1:]] == [5.125 / 50, 1.75 / 50, 9.5 / 50]


def test_numbers_of_the_aggregates(made: tuple[Report, Page]) -> None:
    _, page = made
    head, pvn, random, dqn = page.tables["aggregate-table"]
    assert [cell["text"] for cell in head] == ["Method", "Median", "IQM", "Mean", "Optimality gap", "Stands on"]
    assert [cell["text"] for cell in pvn[2:]] == [
        "0.42 0.35 to 0.49", "0.43 0.35 to 0.49", "0.60 0.60 to 0.60", "2 games \N{MULTIPLICATION SIGN} 2 encoders "
        "\N{MULTIPLICATION SIGN} 2 agents",
    ]  # fmt: skip
    # End-to-end agents have the best numbers and are no rival; the lowest gap is the best.
    assert [bool(cell["bold"]) for cell in pvn[1:5]] == [True] * 4
    assert not any(cell["bold"] for row in (random, dqn) for cell in row)


def test_numbers_of_features_and_costs(made: tuple[Report, Page]) -> None:
    _, page = made
    rows = page.tables["feature-table"][1:]
    assert len(rows) == 4
    assert [cell["text"] for cell in rows[0]] == [
        PVN,
        "minatar/ breakout",
        "3.25 2.50 to 4.00",
        "0.50",
        "0.90 0.80 to 1.00",
        "128",
        "2",
    ]
    assert rows[1][4]["text"] == ""  # no probe
    stages = page.tables["stage-costs"][1:]
    assert [[cell["text"] for cell in row[:3]] for row in stages] == [
        ["pretrain", "60 min", "67%"],
        ["online", "30 min", "33%"],
    ]
    methods = page.tables["method-costs"][1:]
    assert [[cell["text"] for cell in row[:4]] for row in methods] == [
        [PVN, "62 min", "4", "16 min"],
        [RANDOM, "62 s", "4", "16 s"],
        [DQN, "2.0 h", "4", "31 min"],
    ]  # 3725 s, 62 s and 7322 s


def test_times_that_were_not_recorded_are_said(tmp_path: Path) -> None:
    full = fake.report(tmp_path)
    assert "stages, one after another: 90 min." in Page(write_page(full, tmp_path / "a.html")).text
    results = replace(full.results, stages_without_time=1, attempts_without_time=2)
    text = Page(write_page(replace(full, results=results), tmp_path / "b.html")).text
    assert "It lacks the time of 1 finished stage and 2 attempts whose end was not recorded" in text


def test_the_probability_of_improvement_is_shown(tmp_path: Path) -> None:
    full = fake.report(tmp_path)
    assert "improvement-table" not in Page(write_page(full, tmp_path / "a.html")).tables
    better = {RANDOM: Estimate(0.75, 0.5, 0.875), DQN: Estimate(0.25)}
    page = Page(write_page(replace(full, improvements=better), tmp_path / "b.html"))
    assert [[cell["text"] for cell in row] for row in page.tables["improvement-table"][1:]] == [
        [RANDOM, "0.75 0.50 to 0.88"],
        [DQN, "0.25"],
    ]
    assert f"a run of {PVN} scores higher" in page.text


def test_a_lone_method_is_not_the_best(tmp_path: Path) -> None:
    full = fake.report(tmp_path)
    several = write_page(full, tmp_path / "a.html").read_text()
    table = several.split('id="aggregate-table"')[1].split("</table>")[0]
    assert table.count("<b>") == 4
    alone = replace(full, aggregates=tuple(row for row in full.aggregates if row.method != RANDOM))
    page = write_page(alone, tmp_path / "b.html").read_text()
    assert "<b>" not in page.split('id="aggregate-table"')[1].split("</table>")[0]


def test_missing_runs_are_named(made: tuple[Report, Page]) -> None:
    report, page = made
    rows = page.tables["missing-table"][1:]
    assert [[cell["text"] for cell in row] for row in rows] == [
        ["minatar/ space_invaders", PVN, "2", "pretrain failed: out of memory <here>"],
        ["minatar/ breakout", RANDOM, "2", "not begun"],
    ]
    assert "2 of 14 runs have no result" in page.text
    assert len(report.results.missing) == 2


def test_every_number_leads_to_what_made_it(made: tuple[Report, Page]) -> None:
    report, page = made
    links = re.findall(r'<a href="#(made-\d-\d)">', page.source)
    assert len(links) == 2 * 6  # six results, as returns and as scores
    for cell in report.results.cells:
        assert cell.commands[0] in page.text
        assert str(cell.run) in page.text
    assert "seed 0: 4.62, seed 1: 5.62" in page.text  # 5.125 -+ 0.5
    assert [cell["text"] for cell in page.tables["differing"][1]] == ["agent.hidden", "[]", "[]", "[64]"]
    # What one method alone has, or all that have it alike, is folded: it hides no difference.
    assert [[cell["text"] for cell in row] for row in page.tables["differing"][1:]] == [
        ["agent.hidden", "[]", "[]", "[64]"]
    ]
    assert [[cell["text"] for cell in row] for row in page.tables["some-have"][1:]] == [
        ["data.steps", "500", "500", ""],
        ["pretrain.tasks", "50", "", ""],
    ]
    assert "2 settings that only some methods have, with the same value in each" in page.text
    assert "agent.gamma 0.99" in page.text
    assert "version.protovalue 0.1.0" in page.text
    assert "bootstrap draws 2000" in page.text
    assert "one note & another" in page.text


def test_the_explorer_has_every_frame_and_point(made: tuple[Report, Page]) -> None:
    report, page = made
    data = [json.loads(text) for kind, text in page.scripts if kind == "application/json"]
    assert [one["env"] for one in data] == list(ENVS)
    for one, gallery in zip(data, report.galleries, strict=True):
        assert one["steps"] == list(gallery.steps)
        assert [base64.b64decode(frame) for frame in one["frames"]] == list(gallery.frames)
    plots = re.findall(r"<svg.*?</svg>", page.source, re.DOTALL)
    assert len(plots) == 4
    drawn = re.findall(r'cx="(\S+)" cy="(\S+)" fill', plots[0])
    # Half a circle of radius 90 from the right over the top, where y is least, to the left.
    angles = np.linspace(0, math.pi, fake.STATES)
    np.testing.assert_allclose(
        np.array(drawn, float), 90 * np.stack([np.cos(angles), -np.sin(angles)], axis=1), atol=0.06
    )
    shades = re.findall(r'fill="#(..)(..)(..)"', plots[0])
    light = [0.2126 * int(r, 16) + 0.7152 * int(g, 16) + 0.0722 * int(b, 16) for r, g, b in shades]
    assert light == sorted(light)
    assert light[-1] - light[0] > 150
    # The still pictures of galleries that can be explored are not shown twice.
    assert "Figure mds" not in page.text
    assert "Figure curves-1" in page.text


def test_what_has_no_room_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = fake.report(tmp_path)
    (tmp_path / "profiles.svg").write_bytes(b"<svg" + bytes(200_000))
    (tmp_path / "profiles.png").write_bytes(bytes(150_000))
    (tmp_path / "games.svg").write_bytes(b"<svg" + bytes(150_000))
    big = replace(report.galleries[0], frames=tuple(bytes(20_000) for _ in range(fake.STATES)))
    report = replace(report, galleries=(big, report.galleries[1]))
    monkeypatch.setattr(page_module, "LIMIT", 150_000)
    page = Page(write_page(report, tmp_path / "index.html"))
    assert len(page.source.encode()) <= 150_000
    assert "it leaves out: figure Figure profiles (profiles.svg); explorer of minatar/breakout." in page.text
    data = [json.loads(text)["env"] for kind, text in page.scripts if kind == "application/json"]
    assert data == [ENVS[1]]
    sources = {image["alt"].split(".")[0]: image["src"][:20] for image in page.images if image["alt"].startswith("Fig")}
    assert set(sources) == {f"Figure {name}" for name in ("aggregates", "games", "curves-0", "curves-1", "mds-0")}
    assert sources["Figure games"].startswith("data:image/png")  # its SVG is too large
    assert sources["Figure aggregates"].startswith("data:image/svg")


def test_a_page_with_little_in_it(tmp_path: Path) -> None:
    """Runs without a scale, a study or an encoder: sections without contents are not there."""
    full = fake.report(tmp_path)
    results = replace(full.results, missing=(), file=None, cells=full.results.cells[:1], title="Runs", name="Runs")
    score = replace(full.per_game[0], normalised=None, mean=Estimate(5.0, math.nan, math.nan))
    report = replace(
        full, results=results, scale="", per_game=(score,), aggregates=(), features=(), pictures=(), tables=(),
        galleries=(), notes=(), costs=(), headline=(), paper={}, details={},
    )  # fmt: skip
    page = Page(write_page(report, tmp_path / "index.html"))
    assert page.headings == ["Game by game", "How each number was made", "Costs", "What is missing", "About"]
    assert "No run is missing and none failed." in page.text
    assert "nan" not in page.text.lower().split()
    assert [cell["text"] for cell in page.tables["returns-table"][1]] == ["minatar/ breakout", "5.00"]
    assert "scores-table" not in page.tables


def test_headline_over_games(tmp_path: Path) -> None:
    report = fake.report(tmp_path)
    assert headline(report) == (
        "Over 2 games, PVN (RNI) has the highest interquartile mean (IQM) of normalised scores among features learned "
        "without reward: 0.42 (95% interval 0.35 to 0.49), from 2 encoders with 2 agents on each in each game. "
        "Its interval overlaps that of Random <init> & frozen, so which is best is not settled. "
        "For reference, DQN has 1.00 (95% interval 0.90 to 1.10)."
    )
    apart = replace(report, aggregates=(report.aggregates[0], fake.aggregate(RANDOM, (0.2, 0.1, 0.34), 0.8)))
    assert headline(apart).endswith(" Its interval meets no other's.")
    touching = replace(report, aggregates=(report.aggregates[0], fake.aggregate(RANDOM, (0.2, 0.1, 0.35), 0.8)))
    assert "is not settled" in headline(touching)
    single = replace(report, aggregates=(fake.aggregate(PVN, (0.42, math.nan, math.nan), 0.6), report.aggregates[1]))
    assert "0.42 (no interval)" in headline(single)
    assert "is not settled" in headline(single)
    part = replace(report, aggregates=tuple(replace(row, envs=1) for row in report.aggregates))
    assert headline(part).startswith("Over 1 of 2 games, PVN (RNI) has")
    alone = replace(report, aggregates=report.aggregates[:1])
    assert headline(alone).endswith("There is nothing to compare it with.")


def test_headline_of_a_few_games(tmp_path: Path) -> None:
    report = replace(fake.report(tmp_path), aggregates=())
    first = (
        "In minatar/breakout, PVN (RNI) has the highest mean return among features learned without reward: 5.12 (95% "
        "interval 4.50 to 5.75), from 2 encoders with 2 agents on each. Its interval meets no other's. "
        "For reference, DQN has 9.50 (95% interval 8.00 to 11.00)."
    )
    second = (
        "In minatar/space_invaders, Random <init> & frozen has the highest mean return among features learned without "
        "reward: 41.5 (95% interval 35.0 to 48.0), from 2 encoders with 2 agents on each. Its interval overlaps that "
        "of PVN (RNI), so which is best is not settled. For reference, DQN has 1,234 (95% interval 1,100 to 1,300)."
    )
    assert headline(report) == f"{first} {second}"
    one = replace(report, results=replace(report.results, envs=ENVS[1:]))
    assert headline(one) == second
    assert headline(replace(report, per_game=())) == "No method has a result yet."


def test_headline_of_many_games(tmp_path: Path) -> None:
    """Two copies of each game. Only in the first do intervals settle who is best."""
    report = replace(fake.report(tmp_path), aggregates=())
    envs = (*ENVS, "gym/c", "gym/d")
    renamed = {ENVS[0]: "gym/c", ENVS[1]: "gym/d"}
    title = "random, 2x"
    scores = (*report.per_game, *(replace(score, env=renamed[score.env]) for score in report.per_game))
    scores = tuple(replace(score, method=title) if score.method == RANDOM else score for score in scores)
    report = replace(report, per_game=scores, results=replace(report.results, envs=envs))
    among = "Of 4 games, the highest mean return among features learned without reward is that of"
    assert headline(report) == (
        f"{among} PVN (RNI) in 2 and \N{LEFT DOUBLE QUOTATION MARK}random, 2x\N{RIGHT DOUBLE QUOTATION MARK} in 2. "
        "The best method's interval is clear of every other method's for PVN (RNI) in 2."
    )
    unsettled = tuple(replace(score, mean=Estimate(score.mean.point)) for score in scores)
    assert headline(replace(report, per_game=unsettled)).endswith("so which is best is not settled.")


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0.00"), (-0.001, "0.00"), (-0.254, "\N{MINUS SIGN}0.25"), (9.949, "9.95"), (9.96, "10.0"),
     (12345.6, "12,346"), (99.6, "100"), (math.nan, "\N{EN DASH}")],
)  # fmt: skip
def test_numbers_in_words(value: Any, text: str) -> None:
    assert short(value) == text


def test_intervals_in_words() -> None:
    assert interval(Estimate(150.0, 5.04, 295.0)) == "5 to 295"  # the decimals of the point
    assert interval(Estimate(1.0, math.nan, math.nan)) == ""


def test_one_game_is_not_games(tmp_path: Path) -> None:
    report = fake.report(tmp_path)
    one = replace(report.results, envs=report.results.envs[:1])
    assert ("game", "1") in page_module._counts(replace(report, results=one))
    assert ("games", "2") in page_module._counts(report)
