"""Studies on real clusters of this machine: the process of the study killed, a node or a job lost, the same results."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from protovalue.cli import main
from protovalue.study import command
from protovalue.study.jobs import read_record, read_sign
from protovalue.study.plan import Plan, plan
from tests.options.world import InTurn
from tests.study.clusters import NO_SLURM, one_node_slurm, ray_nodes, wait_until
from tests.study.helpers import evaluations, events, parse

STUDY = """name = "small"
environments = ["minatar/breakout"]

[data]
steps = 200

[online]
steps = 6000
replay_min = 20
checkpoint_every = 300
log_every = 300

[evaluate]
episodes = 1

[methods.random]
"""


class Running:
    """A study in a process of its own."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.out, self.said = folder / "out", folder / "said"
        file = folder / "study.toml"
        file.write_text(STUDY)
        self.plan: Plan = plan(parse(STUDY), self.out)
        self.words = [
            sys.executable, "-m", "protovalue.cli", "study", "run", str(file), "--out", str(self.out), *words,
        ]  # fmt: skip
        self.agents = next(stage.id for stage in self.plan.stages if stage.kind == "online")
        self.start()

    def start(self) -> None:
        with self.said.open("w") as file:
            self.process = subprocess.Popen(self.words, stdout=file, stderr=file)

    def until(self, condition: Callable[[], object]) -> None:
        try:
            wait_until(condition, lambda: self.process.poll() is None)
        except AssertionError:
            self.kill()
            raise AssertionError(self.said.read_text()) from None

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def checkpoints(self) -> list[Path]:
        return list((self.out / self.agents / "checkpoints").glob("step-*"))

    def agents_pid(self) -> int:
        record = read_record(self.out, self.agents)
        assert record is not None
        sign = read_sign(self.out, self.agents, record.attempt)
        assert sign is not None
        return sign.pid

    def names(self, stage: str) -> list[str]:
        return [event["event"] for event in events(self.out) if event["stage"] == stage]


def survives(study: Running, mishap: Callable[[], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Kill the study's process while its agents learn, start it again, let the mishap come, and compare the end."""
    study.until(study.checkpoints)
    before = study.agents_pid()
    psutil.Process(before).suspend()  # so that it is in the middle, however slow this machine is
    study.kill()
    assert psutil.pid_exists(before)  # the job lives on
    study.start()
    study.until(lambda: "stages to run" in study.said.read_text())
    assert study.names(study.agents) == ["start"]
    assert study.agents_pid() == before  # and was not started twice
    mishap()
    code = study.process.wait(300)
    said = study.said.read_text()
    assert code == 0, said
    assert study.names(study.agents) == ["start", "lost", "start", "done"]
    log = (study.out / "logs" / f"{study.agents.replace('/', '-')}.log").read_text()
    assert "continuing at step" in log
    assert f"lost and tried again: {study.agents}: 1 time(s), the last: " in said
    for stage in study.plan.stages:
        if stage.id != study.agents:
            assert study.names(stage.id) == ["start", "done"]
    monkeypatch.setattr(command, "LocalProcesses", InTurn)
    monkeypatch.setenv("PROTOVALUE_CACHE", str(tmp_path / "cache"))
    assert main(["study", "run", str(tmp_path / "study.toml"), "--out", str(tmp_path / "here")]) == 0
    assert evaluations(study.out) == evaluations(tmp_path / "here")
    assert len(evaluations(study.out)) == 1
    return said


def test_a_study_on_ray_survives_its_own_process_and_a_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ray_nodes((1, 1)) as cluster:
        study = Running(tmp_path, "--engine", "ray", "--ray-address", cluster.address)

        def kill_the_node() -> None:
            owners = [parent.pid for parent in psutil.Process(study.agents_pid()).parents()]
            (node,) = [number for number, one in enumerate(cluster.nodes) if one.pid in owners]
            if node == 0:  # the cluster ends with its head: there the job is killed with what holds it, no more
                job = psutil.Process(study.agents_pid())
                holder = job.parent()
                assert holder is not None
                job.kill()
                holder.kill()
            else:
                cluster.kill(node)

        try:
            survives(study, kill_the_node, tmp_path, monkeypatch)
        finally:
            study.kill()


@pytest.mark.skipif(bool(NO_SLURM), reason=NO_SLURM)
def test_a_study_on_slurm_survives_its_own_process_and_a_cancelled_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with one_node_slurm(tmp_path / "slurm") as config:
        monkeypatch.setenv("SLURM_CONF", str(config))
        study = Running(tmp_path, "--engine", "slurm", "--partition", "main")

        def cancel_the_job() -> None:
            record = read_record(study.out, study.agents)
            assert record is not None
            subprocess.run(["scancel", record.handle], check=True)

        try:
            said = survives(study, cancel_the_job, tmp_path, monkeypatch)
        finally:
            study.kill()
        assert "the last: slurm job " in said
        # a file with the words of the command for each job, and no pickle
        files = {path.name for path in (study.out / "jobs" / "slurm").iterdir()}
        assert not any(name.endswith(".pkl") for name in files)
        scripts = list((study.out / "jobs" / "slurm").glob("*_submission.sh"))
        assert any("protovalue.study.worker" in script.read_text() for script in scripts)
        for words, expected in (
            (["--slurm", "foo=1"], "unrecognized option '--foo=1'"),
            (["--partition", "mian"], "--partition: unknown partition 'mian': did you mean 'main'?"),
        ):
            out = str(tmp_path / "no")
            assert main(["study", "run", str(tmp_path / "study.toml"), "--out", out, "--engine", "slurm", *words]) == 2
            assert expected in capsys.readouterr().err
            assert not Path(out).exists()
