"""What `pvn study plan` says of the total: a sum where all is known, a bound where some is, nothing where none is."""

from pathlib import Path
from typing import Any

import pytest

from protovalue.cli import main
from protovalue.files import write_json
from protovalue.study.command import open_study
from protovalue.study.folder import Events
from protovalue.study.plan import plan
from protovalue.study.rates import MEASURED, Rate, remember
from tests.study.helpers import TINY, parse


@pytest.fixture
def printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Return what the plan of TINY prints, by the first word of each line."""

    def run() -> dict[str, str]:
        file = tmp_path / "study.toml"
        file.write_text(TINY)
        words = ["study", "plan", str(file), "--out", str(tmp_path / "out"), "--measure", "no", "--jobs", "2"]
        assert main(words) == 0
        lines = [line for line in capsys.readouterr().out.splitlines() if line]
        return {line.split()[0]: " ".join(line.split()[1:]) for line in lines}

    return run


def test_nothing_known(printed: Any) -> None:
    lines = printed()
    assert lines["collect"] == "1 not known"
    assert lines["all"] == "16 not known"
    assert lines["left:"] == "16 stages, their time is not known"


def test_some_known(printed: Any) -> None:
    # an hour for 300 transitions, and 10 s for the start of each of two of the four encoders
    remember({"collect minatar": Rate(12.0, 0.0, MEASURED)})
    remember({"pretrain random minatar minatar x1 threads 1": Rate(0.0, 10.0, MEASURED)})
    lines = printed()
    assert lines["collect"] == "1 60 min"
    assert lines["pretrain"] == "4 at least 20 s, 2 of 4 stages not estimated"
    assert lines["all"] == "16 at least 60 min, 13 of 16 stages not estimated"
    assert lines["left:"] == (
        "16 stages, at least 1.0 processor-hours at 1 thread(s) a stage, at least 60 min with --jobs 2, "
        "13 of 16 stages not estimated"
    )


def test_all_known(printed: Any, tmp_path: Path) -> None:
    rates = {stage.rate for stage in plan(parse(TINY), tmp_path).stages}
    rates |= {rate for stage in plan(parse(TINY), tmp_path).stages for rate in stage.before}
    remember({rate: Rate(0.0, 2.0, MEASURED) for rate in rates})
    lines = printed()
    assert lines["all"] == "16 32 s"
    # the agents of four encoders and dqn, two at a time: 16 stages of 2 s
    assert lines["left:"] == "16 stages, 0.0 processor-hours at 1 thread(s) a stage, 16 s with --jobs 2"


def test_status_says_what_each_kind_of_stage_took(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two runs of DQN, one in two attempts: 30 s + 150 s, so 3.0 min, 90 s each. What is open is not in it."""
    file = tmp_path / "study.toml"
    file.write_text(TINY.replace("seeds = 1\n", "seeds = 3\n"))
    _, root, laid_out = open_study(file, tmp_path / "out")
    trained = [stage for stage in laid_out.stages if stage.kind == "dqn"]
    for stage in trained[:2]:
        (root / stage.folder).mkdir(parents=True)
        write_json(root / stage.folder / "done.json", {"steps": 60})
    diary = Events(root)
    spent = [(trained[0], "done", 30.0), (trained[1], "interrupted", 50.0), (trained[1], "done", 100.0)]
    for stage, event, seconds in [*spent, (trained[2], "interrupted", 7.0)]:
        diary.write(stage.id, "start")
        diary.write(stage.id, event, seconds=2 * seconds, cpu_seconds=seconds)
    diary.close()
    assert main(["study", "status", str(file), "--out", str(root)]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["done", "processor", "time", "each"] in rows
    assert [row for row in rows if row[:1] == ["dqn"]] == [["dqn", "2", "3.0", "min", "90", "s"]]
