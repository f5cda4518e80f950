"""The document's example runs as it stands, learns, and resumes exactly."""

import re
from pathlib import Path

import pytest

from protovalue.cli import main
from protovalue.runs import read_metrics

DOCUMENT = Path(__file__).parents[2] / "docs" / "adding-a-method.md"


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    Path("inverse.py").write_text(code)
    assert main(["collect", "minatar/breakout", "--sticky", "0", "--steps", "1000", "--out", "data"]) == 0


def test_the_example_learns_and_resumes(files: None, capsys: pytest.CaptureFixture[str]) -> None:
    common = "pretrain --method inverse.py --data data --batch-size 64 --log-every 10 --checkpoint-every 30 --steps"
    assert main(f"{common} 200 --out whole".split()) == 0
    accuracy = [line["accuracy"] for line in read_metrics(Path("whole"))]
    assert min(accuracy[-3:]) > 0.6 > 0.5 > accuracy[0], "the paddle's move shows one of three actions"
    assert main(f"{common} 100 --out parts".split()) == 0
    assert main(f"{common} 200 --out parts".split()) == 0
    assert Path("parts/encoder/model.safetensors").read_bytes() == Path("whole/encoder/model.safetensors").read_bytes()
    assert main(f"{common} 200 --out other --tasks 3".split()) == 2
    assert "--tasks" in capsys.readouterr().err
