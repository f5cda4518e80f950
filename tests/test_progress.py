"""Progress in a log: share, rate, time left."""

import time

import pytest

from protovalue.progress import ProgressBar


def test_lines_in_a_log(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """25 of 100 units done in 50 s: half a unit a second, 150 s left; then all in 200 s."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with ProgressBar("work", 100, "units") as bar:
        now[0] += 5
        bar.advance(2)
        now[0] += 45
        bar.advance(23, "loss 0.5")
        now[0] += 150
        bar.advance(75)
    assert capsys.readouterr().err.splitlines() == [
        "work: 25/100 units, 0.5/s, 2:30 left loss 0.5",
        "work: 100/100 units, 0.5/s in 3:20",
    ]


def test_what_was_done_before_does_not_count_into_the_rate(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with ProgressBar("work", 4000, "steps", done=1000) as bar:
        now[0] += 10
        bar.advance(1000)
        assert bar.rate == 100
    assert capsys.readouterr().err.startswith("work: 2,000/4,000 steps, 100/s, 0:20 left\n")


def test_without_eta_the_note_speaks_for_itself(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with ProgressBar("work", 100, "%", eta=False) as bar:
        now[0] += 50
        bar.advance(25, "3/12 stages, about 8 min left")
    assert capsys.readouterr().err.splitlines() == ["work: 25/100 % 3/12 stages, about 8 min left"]


def test_quiet_is_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressBar("work", 10, "units", quiet=True) as bar:
        bar.advance(10)
    assert capsys.readouterr().err == ""
