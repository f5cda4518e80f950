"""Studies run for real: everything once, failures apart, and a kill -9 that changes nothing but the time."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from protovalue import __version__
from protovalue.cli import main
from protovalue.errors import UserError
from protovalue.files import read_json, write_json
from protovalue.interrupt import Stop
from protovalue.study import command
from protovalue.study.command import _Progress, study_run
from protovalue.study.config import StudyRunConfig
from protovalue.study.engines.base import Ended, Job
from protovalue.study.folder import Events
from protovalue.study.plan import Plan, plan
from protovalue.study.schedule import Outcome, run_stages
from protovalue.study.state import is_done
from tests.study.helpers import TINY, evaluations, events, parse

# Long enough that a kill finds it at work: the agents take seconds.
SLOWER = TINY.replace("pretraining = 2\nonline = 2", "pretraining = 1\nonline = 2").replace(
    "[online]\nsteps = 60", "[online]\nsteps = 1200\ncheckpoint_every = 300\nlog_every = 300"
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study that ran to its end without interruption, with a method that fails on the way."""
    folder = tmp_path_factory.mktemp("study")
    broken = folder / "broken.py"
    broken.write_text(BROKEN)
    (folder / "study.toml").write_text(SLOWER + f"[methods.broken]\nmethod = '{broken}'\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PROTOVALUE_CACHE", str(folder / "cache"))
        assert main(["study", "run", str(folder / "study.toml"), "--out", str(folder / "out"), "--jobs", "2"]) == 2
    return folder


BROKEN = """
from protovalue.pretrain.bc import BehaviourCloning

class Broken(BehaviourCloning):
    def steps(self):
        raise RuntimeError("broken on purpose")

METHOD = Broken
"""


def test_a_failed_stage_stops_only_what_needs_it(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = finished / "out"
    laid_out = plan_of(finished)
    state = {stage.id: is_done(stage, out) for stage in laid_out.stages}
    failed = {cell.method: [state[name] for name in cell.stages] for cell in laid_out.cells}
    assert failed["broken"] == [True, False, False, False]  # the data set, then nothing
    assert all(failed["pvn"] + failed["random"] + failed["dqn"])
    last = {event["stage"]: event for event in events(out)}
    broken = next(cell.encoder for cell in laid_out.cells if cell.method == "broken")
    assert last[broken]["event"] == "failed"
    assert "broken.py: this file of yours raised RuntimeError: broken on purpose" in last[broken]["error"]
    assert main(["study", "status", str(finished / "study.toml"), "--out", str(out)]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    table = {row[1]: row[2:6] for row in rows if row[:1] == ["minatar/breakout"]}
    assert table == {
        "pvn": ["1", "0", "0", "0"],
        "random": ["1", "0", "0", "0"],
        "dqn": ["1", "0", "0", "0"],
        "broken": ["0", "0", "1", "0"],
    }


def plan_of(folder: Path) -> Plan:
    return plan(parse((folder / "study.toml").read_text()), folder / "out")


def test_the_folder_says_what_was_done(finished: Path) -> None:
    out = finished / "out"
    study = read_json(out / "study.json")
    assert (study["format"], study["version"], study["name"]) == ("protovalue study", 1, "tiny")
    assert study["file"] == (finished / "study.toml").read_text()
    assert study["methods"]["pvn"] == {"title": "pvn"}
    ids = {stage["id"] for stage in study["stages"]}
    for cell in study["cells"]:
        assert ids.issuperset(cell["stages"])
    for cell in study["cells"][:3]:
        returns = json.loads((out / cell["run"] / "evaluation.json").read_bytes())["seeds"]
        assert [row["seed"] for row in returns] == cell["seeds"]
        assert [len(row["returns"]) for row in returns] == [2] * len(cell["seeds"])
    random = json.loads((out / study["random_policy"]["minatar/breakout"]).read_bytes())
    assert random["epsilon"] == 1.0
    done = [event for event in events(out) if event["event"] == "done"]
    assert all(event["seconds"] > 0 and event["cpu_seconds"] > 0 for event in done)
    assert (out / "logs").is_dir()


def test_what_is_done_is_not_run_again(finished: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = events(finished / "out")
    text = (finished / "study.toml").read_text()
    fixed = finished / "fixed.toml"
    fixed.write_text(text[: text.index("[methods.broken]")])
    assert main(["study", "run", str(fixed), "--out", str(finished / "out")]) == 0
    assert events(finished / "out") == before
    assert "10 stages, 10 of them done" in capfd.readouterr().err


def test_a_study_killed_three_times_with_9_ends_as_one_that_was_not(finished: Path, tmp_path: Path) -> None:
    text = (finished / "study.toml").read_text()
    file, out = tmp_path / "study.toml", tmp_path / "out"
    file.write_text(text[: text.index("[methods.broken]")])
    # when the data set has just begun, in the middle of the agents' training, before their evaluation
    for pattern in ("data/*", "online/*/checkpoints/step-*300", "online/*/done.json"):
        kill_when_there_is(pattern, file, out)
        assert not all(is_done(stage, out) for stage in plan(parse(file.read_text()), out).stages)
    assert main(["study", "run", str(file), "--out", str(out), "--jobs", "2"]) == 0
    assert evaluations(out) == evaluations(finished / "out")
    assert len(evaluations(out)) == 4  # two encoders' agents, dqn and the random policy
    assert main(["study", "run", str(file), "--out", str(finished / "out")]) == 0  # all there: only the plan is written
    assert tables(out, tmp_path) == tables(finished / "out", tmp_path)


def kill_when_there_is(pattern: str, file: Path, out: Path) -> None:
    """Run a study until it has written a file, kill it, and see that nothing of it stays alive."""
    command = [sys.executable, "-m", "protovalue.cli", "study", "run", str(file), "--out", str(out), "--jobs", "2"]
    process = subprocess.Popen(command)
    while not (list(out.glob(pattern)) and psutil.Process(process.pid).children(recursive=True)):
        assert process.poll() is None
        time.sleep(0.02)
    children = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert psutil.wait_procs(children, timeout=30)[1] == []
    assert any(event["event"] == "start" for event in events(out))


def tables(study: Path, tmp_path: Path) -> dict[str, str]:
    """Return the tables of a study's report."""
    report = tmp_path / "report"
    assert main(["report", str(study), "--out", str(report), "--features", "none", "--draws", "100"]) == 0
    found = {path.name: path.read_text() for path in (report / "tables").glob("*.csv")}
    assert found
    return found


class Rigged:
    """An engine whose jobs end with one code, at once or when they are interrupted."""

    def __init__(self, code: int = 0, slots: int = 1, hold: bool = False) -> None:
        self.code, self.slots, self.hold, self.interrupts = code, slots, hold, 0
        self.started: list[str] = []
        self._running: list[Job] = []

    def submit(self, job: Job) -> None:
        self.started.append(job.id)
        self._running.append(job)

    def adopt(self, job: Job) -> bool:
        return False

    def describe(self) -> str:
        return "nowhere"

    def poll(self, timeout: float) -> list[Ended]:
        if self.hold and not self.interrupts:
            return []
        ended, self._running = self._running, []
        return [Ended(job.id, self.code, 1.0, 0.5, "why") for job in ended]

    def cancel(self, now: bool = False) -> None:
        self.interrupts += 1

    def close(self) -> None:
        pass


SCRIPT = """
import sys
from pathlib import Path
from protovalue.study.engines import local

print("once")
local._IMPORTED_ONCE = []
root = Path(sys.argv[1])
running = local.LocalProcesses(1, root, 1)
running.submit(local.Job("job", ("pvn", "--version"), root / "log"))
while not (ended := running.poll(0.1)):
    pass
print(ended[0].code)
"""


def test_a_script_without_a_guard_is_not_run_again_by_the_workers(tmp_path: Path) -> None:
    """`multiprocessing` runs the main module in every process that it starts, unless it has no name and no file."""
    (tmp_path / "run.py").write_text(SCRIPT)
    command = [sys.executable, str(tmp_path / "run.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("once\n0\n", "")
    assert (tmp_path / "log").read_text() == f"protovalue {__version__}\n"


def test_a_stage_that_claims_success_without_a_result_failed(tmp_path: Path) -> None:
    laid_out = plan(parse(TINY), tmp_path)
    outcome = run_stages(laid_out.stages, (), Rigged(), tmp_path, Events(tmp_path), Stop(), lambda *_: None)
    data = laid_out.stages[0].id
    assert "is not complete" in outcome.failed[data]
    # what needs the data set: 4 encoders, 4 runs of agents, 4 evaluations
    assert sum(culprit == data for culprit in outcome.blocked.values()) == 12
    assert outcome.blocked[next(stage.id for stage in laid_out.stages if stage.kind == "random-policy")].startswith(
        "dqn/"
    )


def test_an_interruption_asks_once_and_starts_nothing_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    laid_out, engine, stop = plan(parse(TINY), tmp_path), Rigged(130, slots=2, hold=True), Stop()
    start = engine.submit

    def then_stop(job: Job) -> None:
        start(job)
        stop.signal = signal.SIGINT

    monkeypatch.setattr(engine, "submit", then_stop)
    outcome = run_stages(laid_out.stages, (), engine, tmp_path, Events(tmp_path), stop, lambda *_: None)
    assert outcome.interrupted
    assert (len(engine.started), engine.interrupts) == (2, 1)
    assert [event["event"] for event in events(tmp_path)] == ["start", "start", "interrupted", "interrupted"]
    assert not outcome.failed


@pytest.mark.parametrize(
    ("encoders", "agents", "said"),
    [(1, 1, "1 encoder or end-to-end run, 1 agent\n"), (2, 2, "2 encoders or end-to-end runs, 4 agents\n")],
)
def test_what_came_out_is_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], encoders: int, agents: int, said: str
) -> None:
    seeds = f"pretraining = {encoders}\nonline = {agents}"
    text = TINY.replace("pretraining = 2\nonline = 2", seeds).partition("[methods.random]")[0]
    text = text.replace('"dqn"', '"none"').replace("[dqn]\nsteps = 60\nreplay_min = 20\nseeds = 1\n", "")
    laid_out = plan(parse(text), tmp_path)
    command._report(tmp_path, laid_out, Outcome(), Stop())
    assert said in capsys.readouterr().out


def test_stages_start_in_the_order_of_the_plan(tmp_path: Path) -> None:
    laid_out, engine = plan(parse(TINY), tmp_path), Rigged()
    run_stages(laid_out.stages, (), engine, tmp_path, Events(tmp_path), Stop(), lambda *_: None)
    data, dqn = laid_out.stages[0].id, next(stage.id for stage in laid_out.stages if stage.kind == "dqn")
    assert engine.started == [data, dqn]  # all others need one of these, which do not succeed here


def test_events_go_on_after_a_line_that_was_cut_short(tmp_path: Path) -> None:
    Events(tmp_path).write("a", "start")
    with (tmp_path / "events.jsonl").open("a") as file:
        file.write('{"time": 1, "sta')
    Events(tmp_path).write("b", "start")
    assert [event["stage"] for event in events(tmp_path)] == ["a", "b"]


def test_another_folder_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "precious.txt").write_text("mine")
    (tmp_path / "study.toml").write_text(TINY)
    for name in ("run", "status", "plan"):
        assert main(["study", name, str(tmp_path / "study.toml"), "--out", str(tmp_path)]) == 2
        said = capsys.readouterr()
        assert said.err == f"pvn: {tmp_path}: not empty and not a study; choose another folder with --out\n"
        assert said.out == ""
    assert {path.name for path in tmp_path.iterdir()} == {"precious.txt", "study.toml"}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"format": "protovalue study", "version": 1, "name": "other"}, "found the study 'other' there"),
        ({"format": "protovalue study", "version": 2, "name": "tiny"}, "not a study of format version 1"),
        ({"format": "something", "version": 1, "name": "tiny"}, "not a study of format version 1"),
        (None, "damaged"),
    ],
)
def test_another_study_is_not_overwritten(
    fields: dict[str, Any] | None, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, file = tmp_path / "out", tmp_path / "study.toml"
    file.write_text(TINY)
    out.mkdir()
    if fields:
        write_json(out / "study.json", fields)
    else:
        (out / "study.json").write_text("{}")
    before = (out / "study.json").read_bytes()
    assert main(["study", "run", str(file), "--out", str(out)]) == 2
    assert expected in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in out.iterdir()} == {"study.json": before}


def test_a_folder_that_was_killed_before_its_plan_was_written_is_taken(tmp_path: Path) -> None:
    out, file = tmp_path / "out", tmp_path / "study.toml"
    file.write_text(TINY)
    out.mkdir()
    for name in ("lock", "workers", ".new-0123456789abcdef.json"):
        (out / name).touch()
    with pytest.raises(UserError, match="failed"):  # stages without results, not the folder
        study_run(StudyRunConfig(file, out), Rigged())
    assert read_json(out / "study.json")["name"] == "tiny"


def test_more_threads_than_cores_are_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "study.toml"
    file.write_text("threads = 2\n" + TINY)
    monkeypatch.setattr(command, "cpu_count", lambda: 5)
    monkeypatch.setattr(command, "LocalProcesses", lambda jobs, root, threads: Rigged(slots=jobs))
    for jobs, warned in ((2, False), (3, True)):
        assert main(["study", "run", str(file), "--out", str(tmp_path / "out"), "--jobs", str(jobs)]) == 2
        said = f"--jobs: found {jobs} with 2 thread(s) a stage on 5 core(s)" in capsys.readouterr().err
        assert said == warned


def test_the_time_left_is_that_of_the_scheduler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study, now = parse(TINY), [0.0]
    laid_out = plan(study, tmp_path)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    progress = _Progress(study, laid_out, tmp_path, (), 2, "here")
    assert progress.left((), ()) == "time left not known before a stage is done"
    times = {"collect": 10.0, "pretrain": 20.0, "online": 30.0, "evaluate": 40.0, "dqn": 200.0, "random-policy": 50.0}
    progress.seconds = {stage.id: times[stage.kind] for stage in laid_out.stages}
    assert progress.left((), ()) == "about 5.7 min left"  # 340 s: worked out in test_plan.py, tenfold
    data, dqn = laid_out.stages[0].id, next(stage.id for stage in laid_out.stages if stage.kind == "dqn")
    # the data set failed: dqn for 200 s, then its evaluation beside the random policy, 50 s
    assert progress.left((), {data: "why"}) == "about 4.2 min left"
    # and 150 s later
    progress.update(Outcome(failed={data: "why"}), [dqn], False)
    now[0] = 150.0
    assert progress.left([dqn], {data: "why"}) == "about 1.7 min left"
    # one that takes longer than estimated is taken to have a twentieth left
    now[0] = 1000.0
    assert progress.left([dqn], {data: "why"}) == "about 60 s left"
