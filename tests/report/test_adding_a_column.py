"""The document's column, added as it stands there, is in the files and on the page."""

import csv
import re
from pathlib import Path

import pytest

from protovalue.report import rendering, tables
from protovalue.report.page import write_page
from tests.report import fake

DOCUMENT = Path(__file__).parents[2] / "docs" / "adding-a-report-column.md"


def test_the_documents_column_is_in_every_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (line,) = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    columns = (*tables.FEATURE_COLUMNS, *eval(f"({line})", vars(tables)))
    monkeypatch.setattr(tables, "FEATURE_COLUMNS", columns)
    report = fake.report(tmp_path)
    paths = rendering.write_table(tables.FEATURES.for_files(report), tmp_path, "features")
    # Effective rank 3.25 of 128 features in all four rows, which are equally good.
    with paths["csv"].open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["Rank per feature"]) for row in rows] == [3.25 / 128] * 4
    head, _, first, *_ = paths["md"].read_text().splitlines()[2:]
    assert head.endswith("| Linear probe R2 | Rank per feature |")
    assert first.endswith("| **0.0254** |")
    lines = paths["tex"].read_text().splitlines()
    assert any(one.endswith(r"& Rank per feature \\") for one in lines)
    assert sum(one.endswith(r"& \textbf{0.0254} \\") for one in lines) == 4
    page = write_page(report, tmp_path / "index.html").read_text()
    table = page.split('id="feature-table"')[1].split("</table>")[0]
    titles = re.findall(r"<button[^>]*>(.*?)</button>", table)
    assert titles[-4:] == ["Probe R\N{SUPERSCRIPT TWO}", "Rank per feature", "Features", "Encoders"]
    assert table.count('data-value="0.025390625" class=""><b>0.03</b>') == 4
