"""Of two processes that would run one study, one does: on one machine by a lock, between machines by a lease."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from protovalue.cli import main
from protovalue.errors import UserError
from protovalue.files import write_json
from protovalue.study import jobs, lease
from protovalue.study.jobs import Record, Sign, read_record, read_sign, sign_path, silence, write_record, write_sign
from protovalue.study.lease import Lease, deciding
from tests.study.helpers import TINY


class Elsewhere:
    """Lets this process be another machine: its locks do not hold here, and its name is another."""

    def __init__(self, patch: pytest.MonkeyPatch, name: str) -> None:
        class NoLock:
            def __init__(self, *_: Any) -> None:
                pass

            def release(self) -> None:
                pass

        patch.setattr(lease, "FolderLock", NoLock)
        patch.setattr(lease, "machine", lambda: name)
        patch.setattr(lease, "host", lambda: f"host-{name}")


def test_on_one_machine_the_lock_refuses_the_second_and_frees_at_once(tmp_path: Path) -> None:
    with Lease(tmp_path), pytest.raises(UserError, match=rf"in use by another process \(pid {os.getpid()}\)"):
        Lease(tmp_path)
    with Lease(tmp_path):
        pass


def test_a_killed_process_of_this_machine_is_followed_at_once(tmp_path: Path) -> None:
    words = "from pathlib import Path; import os; from protovalue.study.lease import Lease; "
    words += f"Lease(Path({str(tmp_path)!r})); os._exit(9)"
    subprocess.run([sys.executable, "-c", words], check=False)
    number, holder = lease.latest(tmp_path)
    assert (number, holder is not None and holder.ended) == (1, False)
    assert deciding(tmp_path) is None
    with Lease(tmp_path) as held:
        held.check()
        assert lease.latest(tmp_path)[0] == 2
        found = deciding(tmp_path)
        assert found is not None
        assert found.pid == os.getpid()
        assert [path.name for path in (tmp_path / "jobs").glob("driver-*")] == ["driver-000002.json"]


def test_between_machines_the_lease_refuses_while_there_are_signs_of_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Elsewhere(monkeypatch, "a")
    first = Lease(tmp_path)
    Elsewhere(monkeypatch, "b")
    with pytest.raises(UserError, match=rf"in use by process {os.getpid()} on host-a, seen \d s ago; .* in (60|5\d) s"):
        Lease(tmp_path)
    found = deciding(tmp_path)
    assert found is not None
    assert found.host == "host-a"
    # silent for a minute: another takes over, and the first one hears of it when it wakes up
    first._ended.set()
    first._thread.join()
    old = time.time() - 61
    os.utime(tmp_path / "jobs" / "driver-000001.json", (old, old))
    second = Lease(tmp_path)
    first._ended = threading.Event()
    monkeypatch.setattr(lease, "BEAT", 0.01)
    first._beat()
    with pytest.raises(UserError, match=f"taken over by process {os.getpid()} on host-b"):
        first.check()
    first.__exit__(None, None, None)  # which leaves the other's alone
    second.check()
    assert lease.latest(tmp_path)[1] == second._me
    second.__exit__(None, None, None)
    assert deciding(tmp_path) is None
    Elsewhere(monkeypatch, "a")
    with Lease(tmp_path):  # given back: no need to wait
        assert lease.latest(tmp_path)[0] == 3


def test_of_two_that_take_over_at_the_same_moment_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Elsewhere(monkeypatch, "a")
    link, looked, taken = os.link, list[bool](), list[Lease]()

    def slowly(source: Path, target: Path) -> None:
        if not looked:
            looked.append(True)
            taken.append(Lease(tmp_path))  # the other one comes between our look and our link
        link(source, target)

    monkeypatch.setattr(os, "link", slowly)
    with pytest.raises(UserError, match="in use by another process, which began at the same moment"):
        Lease(tmp_path)
    taken[0].check()
    assert lease.latest(tmp_path) == (1, taken[0]._me)
    taken[0].__exit__(None, None, None)


def test_one_that_looked_long_ago_does_not_get_an_old_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Elsewhere(monkeypatch, "a")
    link, slept = os.link, list[bool]()

    def slowly(source: Path, target: Path) -> None:
        if not slept:
            slept.append(True)
            for _ in range(2):  # two others had it and gave it back: number 1 is swept away, number 2 is there
                with Lease(tmp_path):
                    pass
        link(source, target)

    monkeypatch.setattr(os, "link", slowly)
    with pytest.raises(UserError, match="at the same moment"):
        Lease(tmp_path)
    assert [path.name for path in (tmp_path / "jobs").iterdir()] == ["driver-000002.json"]


def test_a_damaged_lease_counts_by_its_signs_of_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jobs").mkdir()
    path = tmp_path / "jobs" / "driver-000007.json"
    path.write_text("{")
    with pytest.raises(UserError, match="in use by process 0 on a machine that is not known"):
        Lease(tmp_path)
    os.utime(path, (1, 1))
    with Lease(tmp_path):
        assert lease.latest(tmp_path)[0] == 8


def test_two_studies_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command itself refuses where another machine runs the study, and `pvn study stop` asks that one."""
    file, out = tmp_path / "study.toml", tmp_path / "out"
    file.write_text(TINY)
    (out / "jobs").mkdir(parents=True)
    write_json(out / "jobs" / "driver-000001.json", {"host": "other", "machine": "x", "pid": 12, "ended": False})
    assert main(["study", "run", str(file), "--out", str(out)]) == 2
    assert "in use by process 12 on other" in capsys.readouterr().err
    assert {path.name for path in out.iterdir()} == {"jobs", "lock"}
    write_json(out / "study.json", {"format": "protovalue study", "version": 1, "name": "tiny"})

    def obey() -> None:
        while not (out / "jobs" / "stop").exists():
            time.sleep(0.01)
        write_json(out / "jobs" / "driver-000001.json", {"host": "other", "machine": "x", "pid": 12, "ended": True})

    thread = threading.Thread(target=obey)
    thread.start()
    assert main(["study", "stop", str(out)]) == 0
    thread.join()
    said = capsys.readouterr()
    assert "asked process 12 on other" in said.err
    assert said.out == f"{out}: stopped; pvn study run goes on\n"


def test_what_runs_on_another_engine_is_not_started_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = tmp_path / "study.toml", tmp_path / "out"
    file.write_text(TINY)
    from protovalue.study.command import open_study

    stage = open_study(file, out)[2].stages[0].id
    write_record(out, Record(stage, "one", "slurm", "12", 1.0))
    write_sign(out, stage, Sign("one", "node7", "x", 3, 2.0, 0))
    assert main(["study", "run", str(file), "--out", str(out)]) == 2
    wanted = f"{stage} still runs on node7 (--engine slurm); go on with that engine, or end it: pvn study stop {out}"
    assert capsys.readouterr().err.strip().endswith(wanted)
    assert not (out / "study.json").exists()


def test_signs_are_of_one_attempt_and_damage_is_nothing(tmp_path: Path) -> None:
    write_record(tmp_path, Record("a/b", "one", "ray", "", 1.0))
    write_sign(tmp_path, "a/b", Sign("one", "h", "m", 3, 2.0, 0))
    assert read_record(tmp_path, "a/b") == Record("a/b", "one", "ray", "", 1.0)
    assert read_sign(tmp_path, "a/b", "two") is None
    assert read_sign(tmp_path, "a/b", "one") == Sign("one", "h", "m", 3, 2.0, 0)
    os.utime(sign_path(tmp_path, "a/b"), (100, 100))
    assert silence(sign_path(tmp_path, "a/b"), 130.0) == 30.0
    assert silence(sign_path(tmp_path, "none"), 130.0) == float("inf")
    sign_path(tmp_path, "a/b").write_text(json.dumps({"attempt": "one"}))
    assert read_sign(tmp_path, "a/b", "one") is None
    assert read_record(tmp_path, "other") is None
    assert jobs.log_name("a/b") == "logs/a-b.log"
