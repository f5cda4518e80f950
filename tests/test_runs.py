"""Run folders: resume, refusal, atomic checkpoints, kills at random instants."""

import json
import os
import random
import signal
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from protovalue.errors import UserError
from protovalue.runs import Run, read_checkpoint, read_metrics, read_run


@dataclass(frozen=True)
class Config:
    steps: int = 60
    seed: int = 0
    data: Path = Path("some/where")


def train(path: Path, config: Config, stop_at: int | None = None) -> None:
    """A learner whose state mixes a generator and its whole past, so that a step lost or done twice shows."""
    with Run.open(path, config, may_change=["steps"]) as run:
        start = run.resumed_from
        step, x = (start.step, start.tensors["x"]) if start else (0, np.zeros(3))
        rng = np.random.default_rng(config.seed)
        if start:
            rng.bit_generator.state = start.state["generator"]
        while step < config.steps and step != stop_at:
            x = 0.9 * x + rng.normal(size=3)
            step += 1
            run.log(step, {"x": x[0], "step_squared": step**2})
            if step % 4 == 0 or step == config.steps:
                run.save(step, {"x": x}, {"generator": rng.bit_generator.state})
        if step == config.steps:
            run.finish({"x": x[0]})


def result(path: Path):
    checkpoint = read_checkpoint(path)
    metrics = [(line["step"], line["x"], line["step_squared"]) for line in read_metrics(path)]
    return checkpoint.step, checkpoint.tensors["x"].tolist(), metrics, read_run(path)["done"]


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "whole"
    train(path, Config())
    return result(path)


@pytest.mark.parametrize("stop_at", [1, 3, 4, 5, 30, 59])
def test_a_stopped_run_ends_as_if_it_had_not_been(tmp_path, uninterrupted, stop_at):
    train(tmp_path / "run", Config(), stop_at)
    assert read_run(tmp_path / "run")["done"] is None
    train(tmp_path / "run", Config())
    assert result(tmp_path / "run") == uninterrupted


def test_killed_at_fifty_random_instants(tmp_path, uninterrupted):
    chance = random.Random(1)
    kills, rounds = 0, 0
    while kills < 50:
        path = tmp_path / f"run{rounds}"
        rounds += 1
        while True:
            child = os.fork()
            if child == 0:
                try:
                    train(path, Config())
                finally:
                    os._exit(0)
            signal.sigtimedwait([], chance.uniform(0, 0.06))
            os.kill(child, signal.SIGKILL)
            killed = os.WIFSIGNALED(os.waitpid(child, 0)[1])
            kills += killed
            if not killed or kills >= 50:
                break
        train(path, Config())
        assert result(path) == uninterrupted
        assert not [name for name in names(path / "checkpoints") if name.startswith(".")]


def test_another_config_is_refused_and_named(tmp_path):
    train(tmp_path / "run", Config())
    with pytest.raises(UserError) as error:
        train(tmp_path / "run", Config(seed=3, data=Path("else")))
    assert "data else (the run has some/where), seed 3 (the run has 0)" in str(error.value)
    train(tmp_path / "run", Config(steps=70))
    assert read_checkpoint(tmp_path / "run").step == 70
    assert read_run(tmp_path / "run")["config"]["steps"] == 70


def test_two_processes_on_one_run(tmp_path):
    with Run.open(tmp_path / "run", Config()):
        child = os.fork()
        if child == 0:
            try:
                Run.open(tmp_path / "run", Config())
            except UserError as error:
                os._exit(7 if f"in use by another process (pid {os.getppid()})" in str(error) else 8)
            os._exit(9)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    Run.open(tmp_path / "run", Config()).__exit__(None, None, None)


def test_keeps_the_last_checkpoints_only(tmp_path):
    train(tmp_path / "run", Config())
    assert names(tmp_path / "run" / "checkpoints") == ["step-000000000056", "step-000000000060"]


@pytest.mark.parametrize("name", ["tensors.safetensors", "state.json"])
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(tmp_path, uninterrupted, caplog, name):
    train(tmp_path / "run", Config(), stop_at=30)
    path = tmp_path / "run" / "checkpoints" / "step-000000000028" / name
    raw = bytearray(path.read_bytes())
    raw[-20] ^= 1
    path.write_bytes(raw)
    with Run.open(tmp_path / "run", Config()) as run:
        assert run.resumed_from is not None
        assert run.resumed_from.step == 24
    assert "step-000000000028: passed over" in caplog.text
    train(tmp_path / "run", Config())
    assert result(tmp_path / "run") == uninterrupted


def test_a_full_disk_names_the_checkpoint_that_is_kept(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    with Run.open(tmp_path / "run", Config()) as run:
        run.save(10, {"x": np.ones(2)}, {})
        monkeypatch.setattr("protovalue.runs.save_file", full)
        with pytest.raises(UserError, match="No space left on device; the checkpoint of step 10 is kept"):
            run.save(20, {"x": np.ones(2)}, {})
    assert names(tmp_path / "run" / "checkpoints") == ["step-000000000010"]


def test_metrics_are_json_and_tensorboard_events(tmp_path):
    train(tmp_path / "run", Config(), stop_at=31)  # the last checkpoint is of step 28
    with Run.open(tmp_path / "run", Config()) as run:
        run.log(29, {"x": 5.0, "bad": float("nan")})
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["step"] == 29
    assert json.loads(lines[-1])["bad"] is None
    assert [json.loads(line)["step"] for line in lines] == list(range(1, 30))
    events = EventAccumulator(str(tmp_path / "run" / "events"))
    events.Reload()
    assert [event.step for event in events.Scalars("x")] == list(range(1, 30))
    assert events.Scalars("x")[-1].value == 5.0


def test_versions_are_recorded_and_a_change_is_said(tmp_path, monkeypatch, caplog):
    with Run.open(tmp_path / "run", Config()):
        pass
    recorded = read_run(tmp_path / "run")["versions"]
    assert len(recorded) == 1
    assert recorded[0]["numpy"] == np.__version__
    assert recorded[0]["minatar"] == "protovalue-1", "our games'; older runs have the version of the package"
    monkeypatch.setattr("protovalue.runs.versions", lambda: {**recorded[0], "torch": "9.9"})
    with Run.open(tmp_path / "run", Config()):
        pass
    assert "torch 2." in caplog.text
    assert "-> 9.9" in caplog.text


def test_a_folder_with_something_else_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(UserError, match="not empty and not a run"):
        Run.open(tmp_path, Config())
    with pytest.raises(UserError, match="not a run: config.json is missing"):
        read_run(tmp_path)
