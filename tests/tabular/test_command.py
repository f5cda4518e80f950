"""`pvn tabular` from the command line: what it writes, what the page says, what it refuses."""

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protovalue.cli import main
from protovalue.errors import UserError
from protovalue.tabular import command, experiments, gridworlds
from protovalue.tabular.config import TabularConfig

PICTURES = {"protovalues", "contrast", "spectrum", "claim", "theorem", "learned"}
MAZE = "#######\n#.#...#\n#...#.#\n#######\n"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Less of everything: what is tested here is the page, not the numbers."""
    monkeypatch.setattr(experiments, "RUNS", 2)
    monkeypatch.setattr(experiments, "STEPS", 30)
    monkeypatch.setattr(experiments, "WALK", 500)
    monkeypatch.setattr(experiments, "DESCENT_STEPS", 50)


class Page(HTMLParser):
    """Collects images, text and table cells, and every address the page asks for."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.sources: list[str] = []
        self.alternatives: list[str] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: Any, attrs: Any) -> None:
        given = dict(attrs)
        if tag == "img":
            self.sources.append(given["src"])
            self.alternatives.append(given["alt"])
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: Any) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: Any) -> None:
        if "style" not in self.open:
            self.text = " ".join([*self.text.split(), *data.split()])


@pytest.mark.parametrize("world", ["ring", "map"])
def test_page(quick: None, tmp_path: Path, capsys: pytest.CaptureFixture[str], world: str) -> None:
    maze = tmp_path / "<maze>.txt"
    maze.write_text(MAZE)
    which = ["--map", str(maze), "--walls", "renormalise"] if world == "map" else [world, "--size", "9"]
    assert main(["tabular", *which, "--out", str(tmp_path / "out")]) == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"index.html", *(f"{p}.png" for p in PICTURES)}
    page = Page((tmp_path / "out" / "index.html").read_text())
    assert not page.open
    assert len(page.sources) == len(PICTURES)
    assert all(source.startswith("data:image/png;base64,") for source in page.sources)
    assert all(page.alternatives)
    assert "http" not in page.text
    assert ("not symmetric" in page.text) == (world == "map")
    assert "nan" not in page.text.lower().split()
    assert "12/12 parts" in capsys.readouterr().err  # four exact parts, two runs of four kinds of sets
    # The ring's eigenvalues after the first come in pairs: four features would split the second pair.
    assert ("features d 3 (asked: 4)" in page.text) == (world == "ring")


def test_numbers_on_the_page(quick: None, tmp_path: Path) -> None:
    assert main(["tabular", "four-rooms", "--out", str(tmp_path)]) == 0
    text = Page((tmp_path / "index.html").read_text()).text
    assert "states 104" in text
    # 1 + n (k - 1) / (n - k) for k = 1, 2, 5, 10, 21, 36, 52
    assert re.search(r"weight of the constant vector 1\.0 2\.0 5\.2 11\.0 26\.1 54\.5 103\.0", text)
    assert re.search(r"one-hot \[°\] [\d. ]+ 0\.0 random sets", text)  # all single states: the subspace itself
    assert re.search(r"proto-value functions is [\d.]+e-1\d°", text)


@pytest.mark.parametrize(("asked", "used"), [(1, 1), (2, 1), (3, 3), (4, 3), (5, 5)])
def test_dimensions_step_down_to_a_gap(asked: int, used: int) -> None:
    assert experiments.exact_objects(gridworlds.ring(9), 0.9, asked).d == used


def test_contrast_shows_the_most_secluded_state_and_the_share() -> None:
    world = gridworlds.chain(20)
    one, many = experiments.contrast(world, 0.9, 0.25, seed=0)
    assert np.flatnonzero(one.reward).tolist() == [0]  # both ends return most; the first counts
    assert many.reward.sum() == 5
    psi = np.linalg.inv(np.eye(20) - 0.9 * world.random_walk.toarray())
    np.testing.assert_allclose(one.value, psi[:, 0], atol=1e-12)
    np.testing.assert_allclose(many.value, psi @ many.reward, atol=1e-12)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({}, "WORLD: found neither, expected one of four-rooms"),
        ({"world": "four-rooms", "map": Path("m.txt")}, "found both 'four-rooms' and --map m.txt"),
        ({"world": "fourrooms"}, "did you mean 'four-rooms'"),
        ({"world": "four-rooms", "size": 5}, "--size: found 5 for a world of fixed size"),
        ({"world": "ring", "walls": "stay"}, "--walls: found stay for ring"),
        ({"world": "open", "size": 32}, "open: found 1,024 states, expected at most 1,000"),
        ({"world": "chain", "size": 4}, "--dimensions: found 4, expected less than the 4 states"),
        ({"map": Path("missing.txt")}, "missing.txt: no such file"),
    ],
)
def test_refused(tmp_path: Path, flags: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        command.tabular(TabularConfig(out=tmp_path / "out", **flags))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "flags",
    [
        {"gamma": 1.0},
        {"gamma": 0.0},
        {"dimensions": 0},
        {"proportion": 0.0},
        {"proportion": 1.0},
        {"size": 2},
        {"seed": -1},
    ],
)
def test_settings_out_of_range(tmp_path: Path, flags: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=f"--{next(iter(flags))}: found"):
        TabularConfig(out=tmp_path, world="ring", **flags)


def test_a_bad_map_ends_with_one_line_and_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "maze.txt").write_text("..\n.?\n")
    assert main(["tabular", "--map", str(tmp_path / "maze.txt"), "--out", str(tmp_path / "out")]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert "maze.txt: line 2, column 2: found '?'" in lines[0]
