"""`pvn claims`: one page of several studies, from files that a report wrote, and the page in docs is that page."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from protovalue.cli import main
from protovalue.report import claims_page
from protovalue.report.claims import in_order
from protovalue.report.model import Contrast, Estimate, GridWidth, Report, Verdict
from tests.report import fake

DOCS = Path(__file__).parents[2] / "docs"
FILE = """# A study.
#
#   pvn study run studies/one.toml
#   pvn report runs/one
name = 'one'
# pvn is not a command
"""


def report(tmp_path: Path, name: str, low: float) -> Report:
    made = fake.report(tmp_path)
    return replace(
        made,
        results=replace(made.results, name=name, title=f"Study *{name}*", file=FILE),
        scale="0 is nothing",
        notes=("something else", "a_game is left out of the aggregates: no yardstick"),
        verdicts=(
            Verdict("A | B", "section", "IQM", ("A", "B"), Estimate(low + 0.125, low, low + 0.25), 0, "2 games", 7),
            Verdict("C", "", "", ("C", "D"), Estimate(0.5), 0, "1 game", None, "bits"),
        ),
        contrasts=(Contrast("A, raw", "A", Estimate(-0.25, -0.5, -0.125), "2 games", 3),),
        grid_widths=(
            GridWidth("A", 0.5, Estimate(10, 5, 50), Estimate(0.125, 0.0625, 0.25), None, 2),
            GridWidth("A", 1, Estimate(5, 5, 5), None, Estimate(-0.25, -0.5, 0.125), 2),
        ),
    )


def written(tmp_path: Path, name: str, low: float) -> Path:
    folder = tmp_path / name
    folder.mkdir()
    assert claims_page.write_claims(report(tmp_path, name, low), folder / "claims.json") == [folder / "claims.json"]
    return folder


def test_what_a_report_writes_is_read_back(tmp_path: Path) -> None:
    found = claims_page.read_claims(written(tmp_path, "one", 0.125))
    made = report(tmp_path, "one", 0.125)
    assert (found.verdicts[0], found.contrasts, found.widths) == (made.verdicts[0], made.contrasts, made.grid_widths)
    assert found.verdicts[1].difference.point == 0.5
    assert not found.verdicts[1].difference.has_interval
    assert found.left_out == ("a_game is left out of the aggregates: no yardstick",)
    assert found.commands == ("pvn study run studies/one.toml", "pvn report runs/one")
    assert claims_page.write_claims(fake.report(tmp_path), tmp_path / "none.json") == []


def test_one_page_of_several_studies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = written(tmp_path, "one", 0.125), written(tmp_path, "two", -0.125)
    out = tmp_path / "docs" / "page.md"
    assert main(["claims", str(one), str(two / "claims.json"), "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "2 studies, 4 verdicts: 1 hold, 0 do not, 3 cannot be told" in printed
    text = out.read_text()
    assert (
        "| A \\| B | IQM (section) | one: **holds here**, 0.250 [0.125, 0.375] normalised score; 2 games<br>"
        "two: **cannot be told: about 7 a game would tell**, 0.000 [-0.125, 0.125] normalised score; 2 games |"
    ) in text
    assert "one: **cannot be told: too few encoders**, 0.500 bits; 1 game" in text
    assert "| A, raw | -0.250 [-0.500, -0.125] | lower (2 games) | one |" in text
    assert "| A, 0.5x | 10 [5, 50] | 0.125 [0.062, 0.250] |  | two |" in text
    assert "| A, 1x | 5 [5, 5] |  | -0.250 [-0.500, 0.125] | one |" in text
    about = "**one**: Study \\*one\\*. 0 is nothing. a\\_game is left out of the aggregates: no yardstick.\n"
    assert about in text
    assert "\n```\npvn study run studies/one.toml\npvn report runs/one\n```\n" in text
    assert "![All verdicts at a glance](images/page.png)" in text
    assert (tmp_path / "docs" / "images" / "page.png").read_bytes()[:4] == b"\x89PNG"


def test_claims_stand_in_the_order_of_the_paper_whichever_study_says_them_first() -> None:
    said = [
        "one of another version",
        "Successive states are nearer than in the random initialisation",
        "PVN scores higher than SPR",
        "PVN scores higher than the random initialisation",
        "PVN scores higher than SPR",
    ]
    judged = [Verdict(claim, "", "", ("A", "B"), Estimate(0.5), 0, "1 game", None) for claim in said]
    assert in_order(judged) == [said[3], said[2], said[1], said[0]]


def test_what_is_no_report_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = written(tmp_path, "one", 0.125)
    (tmp_path / "empty").mkdir()
    out = ["--out", str(tmp_path / "page.md")]
    for words, said in (
        ([str(tmp_path / "empty")], "found no claims.json, expected the folder of a report that has claims"),
        ([], "REPORTS: found none, expected folders of reports"),
        ([str(one), str(one)], "REPORTS: found study one twice, expected each study once"),
    ):
        assert main(["claims", *words, *out]) == 2
        assert said in capsys.readouterr().err
    damaged = one / "claims.json"
    damaged.write_text(damaged.read_text().replace('"format": "protovalue claims"', '"format": "protovalue study"'))
    assert main(["claims", str(one), *out]) == 2
    assert "claims.json: damaged" in capsys.readouterr().err
    assert not (tmp_path / "page.md").exists()


def test_the_page_in_docs_is_written_by_the_command(tmp_path: Path) -> None:
    """From the files that lie beside it; no number in it was typed."""
    files = sorted((DOCS / "claims").glob("*.json"), key=lambda path: path.stem)
    if not files:
        pytest.skip("no study has been judged yet")
    assert main(["claims", *map(str, files), "--out", str(tmp_path / "claims.md")]) == 0
    assert (DOCS / "claims.md").read_text() == (tmp_path / "claims.md").read_text()
    assert re.search(r"\*\*(holds here|does not hold here|cannot be told)", (DOCS / "claims.md").read_text())
