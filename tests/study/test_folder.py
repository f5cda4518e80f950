"""A study's folder: the plan as it was written, and a diary of which every event is a line at once."""

import json
import logging
import os
import zlib
from pathlib import Path
from typing import Any

import pytest

from protovalue.cli import main
from protovalue.errors import UserError
from protovalue.files import write_json
from protovalue.study import folder as study_folder
from protovalue.study.command import open_study
from protovalue.study.folder import (
    Events,
    History,
    histories,
    read_diary,
    read_events,
    read_study,
    write_study,
)

STUDY = """
environments = ["minatar/breakout"]
[dqn]
steps = 60
replay_min = 20
[methods.dqn]
"""


def write(folder: Any, *lines: str) -> None:
    (folder / "events.jsonl").write_text("".join(f"{line}\n" for line in lines))


def test_events_are_lines_with_a_checksum(tmp_path: Path) -> None:
    events = Events(tmp_path)
    events.write("dqn/a", "start")
    text = (tmp_path / "events.jsonl").read_text()  # before it is closed
    events.write("dqn/a", "done", seconds=1.5, cpu_seconds=1.25)
    events.close()
    stored = json.loads(text)
    crc = stored.pop("crc32")
    assert crc == zlib.crc32(json.dumps(stored).encode())
    assert list(stored) == ["time", "stage", "event"]
    rows = read_events(tmp_path)
    assert [(row["stage"], row["event"], row.get("seconds")) for row in rows] == [
        ("dqn/a", "start", None), ("dqn/a", "done", 1.5)
    ]  # fmt: skip
    assert histories(rows)["dqn/a"].whole


def test_one_goes_on_after_the_last_whole_line(tmp_path: Path) -> None:
    write(tmp_path, '{"stage": "a", "event": "start"}', "damaged")
    with (tmp_path / "events.jsonl").open("a") as file:
        file.write('{"stage": "a", "ev')
    events = Events(tmp_path)
    events.write("b", "start")
    events.close()
    first, second, third = (tmp_path / "events.jsonl").read_text().splitlines()
    assert first == '{"stage": "a", "event": "start"}'
    assert second == "damaged"  # kept, and named whenever it is read
    assert json.loads(third)["stage"] == "b"


def test_nothing_is_written_again_where_nothing_was_cut(tmp_path: Path) -> None:
    write(tmp_path, '{"stage": "a", "event": "start"}', "damaged")
    before = os.stat(tmp_path / "events.jsonl").st_ino  # noqa: PTH116
    Events(tmp_path).close()
    assert os.stat(tmp_path / "events.jsonl").st_ino == before  # noqa: PTH116


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('{"event": "start"}', "no stage"),
        ('{"stage": 3, "event": "start"}', "no stage"),
        ('{"stage": "a", "event": null}', "no event"),
        ('{"stage": "a", "event": "done", "seconds": "1"}', "seconds is no time"),
        ('{"stage": "a", "event": "done", "seconds": NaN}', "seconds is no time"),
        ('{"stage": "a", "event": "done", "cpu_seconds": -1}', "cpu_seconds is no time"),
        ('{"stage": "a", "event": "done", "time": true}', "time is no time"),
        ('{"stage": "a", "event": "failed", "error": 3}', "error is no text"),
        ('{"stage": "a", "event": "start", "crc32": 3}', "its checksum does not match"),
    ],
)
def test_a_damaged_line_is_named(tmp_path: Path, line: str, reason: str) -> None:
    write(tmp_path, '{"stage": "a", "event": "start"}', line, '{"stage": "a", "event": "done", "seconds": null}')
    found = read_diary(tmp_path)
    assert [row["event"] for row in found.rows] == ["start", "done"]
    assert found.damage == f"{tmp_path}/events.jsonl: damaged: line 2 ({reason}): left out"


def test_a_history_by_hand() -> None:
    rows: list[dict[str, Any]] = [
        {"stage": "a", "event": "start"},
        {"stage": "b", "event": "done", "seconds": 4.0},  # its start was lost
        {"stage": "a", "event": "failed", "seconds": 1.5, "cpu_seconds": 1.0, "error": "no luck"},
        {"stage": "a", "event": "start"},  # killed
        {"stage": "a", "event": "start"},
        {"stage": "a", "event": "done", "seconds": 2.0},
        {"stage": "b", "event": "start"},
    ]
    found = histories(rows)
    assert found["a"] == History(
        last="done", seconds=3.5, cpu_seconds=1.0, whole=False, error="", finished=True, unended=1, unbegun=0
    )
    assert found["b"] == History(
        last="start", seconds=4.0, cpu_seconds=0.0, whole=False, error="", finished=True, unended=1, unbegun=1
    )
    assert histories(rows[:3])["a"].error == "no luck"


def test_a_plan_is_read_as_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(STUDY)
    study, root, laid_out = open_study(tmp_path / "study.toml", tmp_path)
    write_study(root, laid_out.fields(study))
    found = read_study(root)
    assert (found.name, found.normalise, found.file) == (study.name, study.normalise, STUDY)
    assert [(cell.env, cell.method, cell.seeds, cell.encoder) for cell in found.cells] == [
        ("minatar/breakout", "dqn", (0,), None)
    ]
    assert [stage.kind for stage in found.stages] == ["dqn", "evaluate"]
    assert found.cells == list(laid_out.cells)
    assert found.cells[0].stages == tuple(stage.id for stage in found.stages)
    expect = found.stages[1].expect
    assert expect is not None
    assert expect.file == f"{found.cells[0].run}/evaluation.json"
    assert (expect.steps, expect.seed) == (60, 0)


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"version": 2}, "not a study of format version 1"),
        ({"title": 3}, "field title: found 3, expected text"),
        ({"methods": {}}, r"field cells\[0\].method: found 'dqn', expected one of `methods`"),
        ({"stages": []}, r"field cells\[0\].stages: found .*, expected ids of `stages`"),
    ],
)
def test_what_is_no_plan_is_refused(tmp_path: Path, changes: dict[str, Any], wrong: str) -> None:
    (tmp_path / "study.toml").write_text(STUDY)
    study, root, laid_out = open_study(tmp_path / "study.toml", tmp_path)
    write_study(root, laid_out.fields(study) | changes)
    with pytest.raises(UserError, match=wrong):
        read_study(root)


def test_status_and_plan_of_a_study_with_a_damaged_diary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "study.toml").write_text(STUDY)
    (tmp_path / "out").mkdir()
    write(tmp_path / "out", "\x00\x01", '{"stage": "x", "event": "start"}')
    study_folder.warn_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert main(f"study status {tmp_path}/study.toml --out {tmp_path}/out".split()) == 0
        assert main(f"study plan {tmp_path}/study.toml --out {tmp_path}/out --measure no".split()) == 0
    assert caplog.text.count("events.jsonl: damaged: line 1 (not JSON): left out") == 1
    assert "0 of 2 stages are done" in capsys.readouterr().out


@pytest.mark.parametrize("content", ["", "{", "[]", '{"sha256": "0"}'])
def test_status_names_a_damaged_result_and_says_nothing_of_one_that_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, content: str
) -> None:
    (tmp_path / "study.toml").write_text(STUDY)
    _, root, laid_out = open_study(tmp_path / "study.toml", tmp_path / "out")
    words = f"study status {tmp_path}/study.toml --out {root}".split()
    study_folder.warn_once.cache_clear()
    assert main(words) == 0
    assert not caplog.text
    files = [root / stage.expect["file"] for stage in laid_out.stages if "file" in stage.expect]
    files += [root / stage.folder / "done.json" for stage in laid_out.stages if stage.kind == "dqn"]
    assert len(files) == 2
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    assert main(words) == 0
    for file in files:
        assert caplog.text.count(f"is not done: {file}: damaged") == 1
    assert "0 of 2 stages are done" in capsys.readouterr().out


def test_status_and_plan_say_that_the_diary_has_lost_the_time_of_a_done_stage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "study.toml").write_text(STUDY)
    _, root, laid_out = open_study(tmp_path / "study.toml", tmp_path / "out")
    trained = next(stage for stage in laid_out.stages if stage.kind == "dqn")
    (root / trained.folder).mkdir(parents=True)
    write_json(root / trained.folder / "done.json", {"steps": 60})
    lines = [json.dumps({"stage": trained.id, "event": event, "seconds": 3.0}) for event in ("start", "done")]
    for kept, said in ((lines, False), (lines[:1], True), (lines[1:], True), ([], True)):
        write(root, *kept)
        for words in ("status", "plan --measure no"):
            study_folder.warn_once.cache_clear()
            caplog.clear()
            assert main(f"study {words} {tmp_path}/study.toml --out {root}".split()) == 0
            assert (f"{root}/events.jsonl: has no time of 1 of 1 done stages" in caplog.text) == said
            assert bool(caplog.text) == said
