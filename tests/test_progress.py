"""Progress in a log: share, rate, time left."""

import io
import re
import sys
import time

import pytest

from protovalue.progress import ProgressBar, duration, fitted


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


class Terminal(io.StringIO):
    """A terminal that remembers what was written to it."""

    def isatty(self) -> bool:
        return True


NOTE = "3/32 stages, about 8.0 min left minatar-space-invaders/online-pvn-0-0, minatar-breakout/online-cumulants-0-0"


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (160, f"study demo {'-' * 31} 25/100 % {NOTE}"),
        (110, f"study demo {'-' * 10} 25/100 % {NOTE[:78]}…"),  # 10 + 1 + 10 + 1 + 8 + 1 + 79
        (60, f"study demo {'-' * 10} 25/100 % 3/32 stages, about 8.0 min l…"),
        (34, f"study demo {'-' * 14} 25/100 %"),
        (21, "study demo 25/100 %"),
        (14, "stud… 25/100 %"),
    ],
)
def test_a_line_of_a_terminal(width: int, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers are never cut; the note is, from its end, then the bar and the label; and it is one line."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    with ProgressBar("study demo", 100, "%", eta=False) as bar:
        bar.advance(25, NOTE)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue())
    *_, last = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "\n", plain).strip().splitlines()
    assert re.sub("[━╸╺]+", lambda found: "-" * len(found[0]), last).rstrip() == shown


def test_what_fits_into_a_line() -> None:
    for width in range(200):
        label, bar, note = fitted(width, "a label", "12/345 steps, 3.2/s, 1:45 left", "loss 0.1234, threads 1")
        parts = [label, "-" * bar, "12/345 steps, 3.2/s, 1:45 left", note]
        assert len(" ".join(filter(None, parts))) <= max(width, len(parts[2]))


def test_times_in_words() -> None:
    seconds = (0, 0.44, 12.3, 59.7, 210, 600, 3599, 7260, 200_000, 2_000_000)
    assert [duration(s) for s in seconds] == [
        "0 s", "0.4 s", "12 s", "60 s", "3.5 min", "10 min", "60 min", "2.0 h", "56 h", "23 days",
    ]  # fmt: skip
