"""docs/tabular.md: every block of code runs and prints what the page says it prints, and every picture is there."""

import doctest
import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "tabular.md").read_text(encoding="utf-8")


def test_code_prints_what_the_page_says() -> None:
    blocks = re.findall(r"```pycon\n(.*?)```", TEXT, flags=re.DOTALL)
    assert len(blocks) >= 7
    parser, runner = doctest.DocTestParser(), doctest.DocTestRunner(verbose=False)
    names: dict[str, object] = {}
    output: list[str] = []
    for number, block in enumerate(blocks, start=1):
        test = parser.get_doctest(block, names, f"tabular.md, block {number}", None, 0)
        runner.run(test, out=output.append, clear_globs=False)
        names.update(test.globs)
    assert not output, "".join(output)


def test_pictures_are_there_and_small() -> None:
    pictures = [DOCS / path for path in re.findall(r"!\[[^\]]+\]\(([^)]+)\)", TEXT)]
    assert len(pictures) == 6
    assert {path.name for path in pictures} == {path.name for path in (DOCS / "images" / "tabular").iterdir()}
    assert sum(path.stat().st_size for path in pictures) < 1_000_000
