"""The results that are shipped: they can be read, and the tables of docs/results.md have their numbers."""

import re
import tomllib
from pathlib import Path

import numpy as np
import pytest

from protovalue.evaluate.aggregate import mean_interval
from protovalue.report.reading import read_results
from protovalue.report.results import Results

ROOT = Path(__file__).parents[2]
SHIPPED = sorted((ROOT / "studies/results").glob("*.jsonl"))


def rows(results: Results) -> list[str]:
    """The table of returns by method and game; a place of which an encoder is missing is empty.

    A method that was not begun has no row.
    """
    lacking = {(one.method, one.env) for one in results.missing}
    games = [env for env in results.envs if any(cell.env == env for cell in results.cells)]
    found = []
    for method in results.methods:
        texts = [method]
        for env in games:
            scores = [cell.score for cell in results.of(method, env)]
            one = mean_interval(np.array(scores)) if scores and (method, env) not in lacking else None
            texts.append(f"{one.point:.1f} ({one.low:.1f} to {one.high:.1f})" if one else "")
        if any(texts[1:]):
            found.append(f"| {' | '.join(texts)} |")
    return found


def test_there_are_some() -> None:
    assert [path.stem for path in SHIPPED] == ["atari-small", "minatar-methods-random", "minatar-methods"]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_the_documents_have_their_numbers(path: Path) -> None:
    results = read_results([path])
    text = (ROOT / "docs/results.md").read_text()
    assert [row for row in rows(results) if row not in text] == []
    assert tomllib.loads(results.file or "") == tomllib.loads((ROOT / f"studies/{path.stem}.toml").read_text())
    assert not re.search(r'"/\w', path.read_text()), "a path of one machine"
