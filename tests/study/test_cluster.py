"""Jobs on other machines: found again, lost and tried again, asked to stop; on a cluster that exists on paper alone."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from protovalue.cli import main
from protovalue.errors import UserError
from protovalue.interrupt import Stop
from protovalue.study.engines import cluster
from protovalue.study.engines.base import Ended, Job
from protovalue.study.engines.cluster import Cluster, Gone
from protovalue.study.folder import Events
from protovalue.study.jobs import Record, Sign, read_record, read_sign, sign_path, write_record, write_sign
from protovalue.study.plan import plan
from protovalue.study.resources import Ask, Node
from protovalue.study.schedule import Outcome, run_stages
from protovalue.study.worker import FOLLOW, SUPERSEDED, Order
from tests.study.clusters import wait_until
from tests.study.helpers import TINY, events, parse

GB = 1 << 30


class Paper(Cluster):
    """A cluster that does what the test says."""

    name = "slurm"

    def __init__(self, root: Path, stages: Sequence[str], jobs: int | None = None, cpus: int = 4) -> None:
        self.cpus = cpus
        self.launched: list[tuple[str, Order, int]] = []
        self.ended: list[str] = []
        self.said: dict[str, Gone | None] | None = {}
        self.crash = False
        super().__init__(root, 1, {stage: Ask(2, 0, GB) for stage in stages}, jobs)

    def nodes(self) -> Sequence[Node]:
        return [Node("n1", self.cpus, 0, 8 * GB), Node("n2", 1, 0, 8 * GB)]

    def launch(self, title: str, order: Order, ask: Ask, losses: int) -> str:
        record = read_record(order.root, order.stage)
        assert record is not None
        assert (record.title, record.handle) == (title, "")  # it can be found, whatever happens from here on
        self.launched.append((title, order, losses))
        if self.crash:
            raise KeyboardInterrupt
        handle = str(len(self.launched))
        if self.said is not None:
            self.said[handle] = None
        return handle

    def find(self, title: str) -> str | None:
        return next((str(n) for n, (own, _, _) in enumerate(self.launched, 1) if own == title), None)

    def states(self, handles: Sequence[str]) -> Mapping[str, Gone | None] | None:
        return None if self.said is None else {one: self.said[one] for one in handles if one in self.said}

    def end(self, handle: str) -> None:
        self.ended.append(handle)

    def forget(self, handle: str) -> None:
        pass

    def close(self) -> None:
        pass

    def describe(self) -> str:
        return "on paper"


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOOK", "QUESTION", "GRACE"):
        monkeypatch.setattr(cluster, name, 0.0)


def job(root: Path, name: str = "a/b") -> Job:
    return Job(name, ("pvn", "collect", "x"), root / "logs/a-b.log")


def began(root: Path, name: str = "a/b", **ended: object) -> Sign:
    """Let the job of the attempt that counts begin, and perhaps end."""
    record = read_record(root, name)
    assert record is not None
    sign = replace(Sign(record.attempt, "node7", "m", 3, time.time(), 0), **ended)  # type: ignore[arg-type]
    write_sign(root, name, sign)
    return sign


def test_a_job_ends_by_its_own_words(tmp_path: Path) -> None:
    engine = Paper(tmp_path, ["a/b"])
    engine.submit(job(tmp_path))
    _, order, _ = engine.launched[0]
    assert order.words == ("collect", "x")
    assert (order.root, order.log, order.place) == (tmp_path, tmp_path / "logs/a-b.log", Path.cwd())
    record = read_record(tmp_path, "a/b")
    assert record is not None
    assert replace(record, submitted=0.0) == Record("a/b", order.attempt, "slurm", "1", 0.0)
    assert engine.poll(0) == []
    began(tmp_path)
    assert engine.poll(0) == []
    began(tmp_path, code=2, seconds=3.5, cpu_seconds=1.5, reason="why")
    assert engine.poll(0) == [Ended("a/b", 2, 3.5, 1.5, "why")]
    assert engine.poll(0) == []


def test_an_end_of_another_attempt_is_none(tmp_path: Path) -> None:
    engine = Paper(tmp_path, ["a/b"])
    engine.submit(job(tmp_path))
    began(tmp_path, code=0)
    engine.poll(0)
    engine.submit(job(tmp_path))  # the sign of the first one is still there
    assert engine.poll(0) == []


@pytest.mark.parametrize(("crash", "handle"), [(False, "1"), (True, "1")])
def test_the_next_process_finds_what_the_killed_one_submitted(crash: bool, handle: str, tmp_path: Path) -> None:
    first = Paper(tmp_path, ["a/b"])
    first.crash = crash  # killed after the cluster took it, before its number was written down
    if crash:
        with pytest.raises(KeyboardInterrupt):
            first.submit(job(tmp_path))
    else:
        first.submit(job(tmp_path))
    second = Paper(tmp_path, ["a/b"])
    second.launched, second.said = first.launched, {"1": None}
    assert second.adopt(job(tmp_path))
    assert second._followed["a/b"].record.handle == handle
    assert second.poll(0) == []
    began(tmp_path, code=0, seconds=1.0)
    assert second.poll(0) == [Ended("a/b", 0, 1.0, 0.0, "exit code 0, nothing printed")]
    assert len(second.launched) == 1
    assert not second.adopt(job(tmp_path, "other"))


def test_what_the_cluster_says_is_over_is_lost_or_failed_once_its_last_words_had_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Paper(tmp_path, ["a/b"])
    assert engine.said is not None
    engine.submit(job(tmp_path))
    began(tmp_path)
    engine.said["1"] = Gone("its node failed")
    monkeypatch.setattr(cluster, "GRACE", 1e9)
    assert engine.poll(0) == []
    monkeypatch.setattr(cluster, "GRACE", 0.0)
    (end,) = engine.poll(0)
    assert (end.lost, end.code, end.reason) == (True, 1, "slurm job 1 on node7: its node failed")
    engine.submit(job(tmp_path))
    engine.said["2"] = Gone("out of memory", lost=False)
    (end,) = engine.poll(0)
    assert (end.lost, end.reason) == (False, "slurm job 2: out of memory")


def test_without_an_answer_nothing_is_lost_and_what_is_not_known_there_lives_by_its_signs(tmp_path: Path) -> None:
    engine = Paper(tmp_path, ["a/b"])
    engine.submit(job(tmp_path))
    began(tmp_path)
    os.utime(sign_path(tmp_path, "a/b"), (1, 1))
    engine.said = None  # the controller is busy
    assert engine.poll(0) == []
    engine.said = {}  # it has forgotten the job
    began(tmp_path)
    assert engine.poll(0) == []
    os.utime(sign_path(tmp_path, "a/b"), (1, 1))
    (end,) = engine.poll(0)
    assert (end.lost, end.reason) == (True, "slurm job 1 on node7: no sign of it, and the cluster does not know it")


def test_a_stop_is_asked_of_what_runs_and_what_waits_leaves_the_queue(tmp_path: Path) -> None:
    engine = Paper(tmp_path, ["a/b", "c"])
    assert engine.said is not None
    engine.submit(job(tmp_path))
    engine.submit(job(tmp_path, "c"))
    began(tmp_path)
    engine.cancel()
    assert engine.ended == ["2"]
    for name in ("a/b", "c"):
        record = read_record(tmp_path, name)
        assert record is not None
        assert record.stop
    engine.said["2"] = Gone("it was cancelled")
    began(tmp_path, code=130)
    assert [(end.id, end.code, end.lost) for end in engine.poll(0)] == [("a/b", 130, False), ("c", 130, False)]
    engine.submit(job(tmp_path))
    began(tmp_path)
    engine.cancel(now=True)
    assert engine.ended == ["2", "3"]


@pytest.mark.parametrize("code", [130, 143])
def test_a_job_that_others_ended_is_lost(code: int, tmp_path: Path) -> None:
    engine = Paper(tmp_path, ["a/b"])
    assert engine.said is not None
    engine.submit(job(tmp_path))
    engine.poll(0)
    began(tmp_path, code=code)
    engine.said["1"] = Gone("it was cancelled")
    (end,) = engine.poll(0)
    assert (end.lost, end.reason) == (True, "slurm job 1 on node7: it was cancelled")


def test_a_stage_that_no_node_has_room_for_is_named_before_anything_starts(tmp_path: Path) -> None:
    expected = "a/b asks for 2 cpu, 1 GB, and no node has that much: the most that one has is 1 cpu, 0 gpu, 8 GB"
    with pytest.raises(UserError, match=f"--engine slurm: {expected}"):
        Paper(tmp_path, ["a/b"], cpus=1)
    assert list(tmp_path.iterdir()) == []


def test_as_many_as_were_asked_for_or_as_there_are(tmp_path: Path) -> None:
    names = [str(number) for number in range(9)]
    assert (Paper(tmp_path, names).slots, Paper(tmp_path, names).places) == (9, 2)  # two of 2 cpus on n1, none on n2
    assert (Paper(tmp_path, names, jobs=1).slots, Paper(tmp_path, names, jobs=1).places) == (1, 1)


class Lossy:
    """An engine that loses the first job again and again; each time it may have written a checkpoint before."""

    slots = 1

    def __init__(self, root: Path, folder: str, further: Sequence[bool]) -> None:
        self.folder, self.further = root / folder / "checkpoints", list(further)
        self.losses: list[int] = []

    def submit(self, job: Job) -> None:
        self.job = job
        self.losses.append(job.losses)

    def adopt(self, job: Job) -> bool:
        return False

    def poll(self, timeout: float) -> list[Ended]:
        if not self.further:
            return [Ended(self.job.id, 2, 1.0, 1.0, "its own fault")]
        if self.further.pop(0):
            (self.folder / f"step-{len(self.further)}").mkdir(parents=True)
        return [Ended(self.job.id, 1, 1.0, 0.5, "its node failed", lost=True)]

    def cancel(self, now: bool = False) -> None:
        raise AssertionError

    def describe(self) -> str:
        return "nowhere"

    def close(self) -> None:
        pass


def lossy(root: Path, further: Sequence[bool], retries: int) -> tuple[Lossy, Outcome, str]:
    stages = [stage for stage in plan(parse(TINY), root).stages if stage.kind == "dqn"]
    engine = Lossy(root, stages[0].folder, further)
    outcome = run_stages(stages, (), engine, root, Events(root), Stop(), lambda *_: None, retries)
    return engine, outcome, stages[0].id


def test_a_lost_job_is_tried_again_with_a_limit_and_named(tmp_path: Path) -> None:
    engine, outcome, stage = lossy(tmp_path, [False] * 9, retries=2)
    assert engine.losses == [0, 1, 2]
    assert outcome.failed == {stage: "lost 3 time(s), the last time: its node failed"}
    assert [event["event"] for event in events(tmp_path)] == ["start", "lost", "start", "lost", "start", "failed"]
    assert events(tmp_path)[1]["error"] == "its node failed"
    assert events(tmp_path)[1]["cpu_seconds"] == 0.5


def test_a_loss_after_a_new_checkpoint_is_not_counted(tmp_path: Path) -> None:
    engine, outcome, stage = lossy(tmp_path, [False, True, False, True, True], retries=1)
    assert len(engine.losses) == 6
    assert outcome.failed == {stage: "its own fault"}  # which is not tried again
    assert outcome.lost == {stage: 5}


def worker(root: Path, *words: str) -> list[str]:
    return Order(root, "a/b", "one", root / "logs" / "a-b.log", 1, root, words).command()


COLLECT = ("collect", "minatar/breakout", "--out", "data", "--steps", "100000000")


def test_a_stage_gives_signs_of_life_and_ends_before_its_time_limit(tmp_path: Path) -> None:
    write_record(tmp_path, Record("a/b", "one", "slurm", "1", 1.0))
    process = subprocess.Popen(worker(tmp_path, *COLLECT))
    wait_until(lambda: list(tmp_path.glob("data/manifest.json")), lambda: process.poll() is None)
    before = sign_path(tmp_path, "a/b").stat().st_mtime
    wait_until(lambda: sign_path(tmp_path, "a/b").stat().st_mtime > before)
    process.send_signal(signal.SIGUSR2)  # SLURM's, a while before it ends a job
    assert process.wait() == 143
    sign = read_sign(tmp_path, "a/b", "one")
    assert sign is not None
    assert (sign.code, sign.pid, sign.reason) == (143, process.pid, "terminated; the same command continues")
    assert sign.seconds > 0 < sign.cpu_seconds


def test_only_the_attempt_that_counts_runs_and_only_while_its_holder_does(tmp_path: Path) -> None:
    late, held, superseded = (tmp_path / name for name in ("late", "held", "superseded"))
    for root in (late, held, superseded):
        write_record(root, Record("a/b", "two" if root == late else "one", "slurm", "1", 1.0))
    commands = {root: worker(root, *COLLECT) for root in (late, held, superseded)}
    commands[held].insert(commands[held].index("protovalue.study.worker") + 1, FOLLOW)
    inputs = {held: subprocess.PIPE}
    started = {root: subprocess.Popen(words, stdin=inputs.get(root)) for root, words in commands.items()}
    stdin = started[held].stdin
    assert stdin is not None
    stdin.close()
    assert started[held].wait() == 1
    assert started[late].wait() == SUPERSEDED
    assert "another attempt counts now" in (late / "logs" / "a-b.log").read_text()
    assert not (late / "data").exists()
    wait_until(lambda: (superseded / "data" / "manifest.json").exists())
    write_record(superseded, Record("a/b", "two", "slurm", "2", 2.0))
    assert started[superseded].wait() == SUPERSEDED
    sign = read_sign(superseded, "a/b", "one")
    assert sign is not None
    assert sign.code is None  # it does not speak for the stage any more


def test_stop_without_a_process_of_the_study(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A job that lives on its own is asked, one in the queue is marked, one that is gone is passed over."""
    file, out = tmp_path / "study.toml", tmp_path / "out"
    file.write_text(TINY)
    from protovalue.study.command import open_study
    from protovalue.study.folder import write_study

    study, _, laid_out = open_study(file, out)
    out.mkdir()
    write_study(out, laid_out.fields(study))
    assert main(["study", "stop", str(file), "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"{out}: nothing runs\n"
    running, queued, gone = (stage.id for stage in laid_out.stages[:3])
    diary = Events(out)
    for stage in (running, queued, gone):
        diary.write(stage, "start")
        write_record(out, Record(stage, "one", "ray", "x", 1.0))
    diary.close()
    write_sign(out, gone, Sign("one", "node1", "m", 1, 1.0, 0))
    os.utime(sign_path(out, gone), (1, 1))
    command = Order(out, running, "one", out / "logs" / "x.log", 1, tmp_path, COLLECT).command()
    process = subprocess.Popen(command)
    wait_until(lambda: (tmp_path / "data" / "manifest.json").exists(), lambda: process.poll() is None)
    assert main(["study", "status", str(file), "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert f"running: {running} on " in said
    assert f"waiting: {queued}, ray job x, submitted " in said
    assert f"silent: {gone} on node1, ray job x, since " in said
    assert main(["study", "stop", str(out)]) == 0
    assert process.wait() == 130
    assert capsys.readouterr().out == f"{out}: 2 stage(s) stopped; pvn study run goes on\n"
    record = read_record(out, queued)
    assert record is not None
    assert record.stop
    assert events(out)[-1]["event"] == "interrupted"
    assert main(["study", "stop", str(out), "--out", str(out)]) == 2
    assert main(["study", "stop", str(tmp_path)]) == 2
    assert "found no study.json" in capsys.readouterr().err
