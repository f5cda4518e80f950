"""Run folders: resume, refusal, atomic checkpoints, kills at random instants."""

import json
import os
import random
import re
import resource
import shutil
import signal
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from protovalue.errors import UserError
from protovalue.files import read_json, size_and_crc, write_json
from protovalue.runs import Checkpoint, Run, read_checkpoint, read_metrics, read_run, restoring


@dataclass(frozen=True)
class Config:
    steps: int = 60
    seed: int = 0
    data: Path = Path("some/where")


def train(path: Path, config: Config, stop_at: int | None = None) -> None:
    """A learner whose state mixes a generator and its whole past, so that a step lost or done twice shows."""
    with Run.open(path, config, may_change=["steps"]) as run:
        run.begin()
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


def result(path: Path) -> tuple[int, Any, list[tuple[Any, Any, Any]], Any]:
    checkpoint = read_checkpoint(path)
    metrics = [(line["step"], line["x"], line["step_squared"]) for line in read_metrics(path)]
    return checkpoint.step, checkpoint.tensors["x"].tolist(), metrics, read_run(path)["done"]


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("run") / "whole"
    train(path, Config())
    return result(path)


@pytest.mark.parametrize("stop_at", [1, 3, 4, 5, 30, 59])
def test_a_stopped_run_ends_as_if_it_had_not_been(tmp_path: Path, uninterrupted: Any, stop_at: int) -> None:
    train(tmp_path / "run", Config(), stop_at)
    assert read_run(tmp_path / "run")["done"] is None
    train(tmp_path / "run", Config())
    assert result(tmp_path / "run") == uninterrupted


def test_killed_at_fifty_random_instants(tmp_path: Path, uninterrupted: Any) -> None:
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


def test_another_config_is_refused_and_named(tmp_path: Path) -> None:
    train(tmp_path / "run", Config())
    with pytest.raises(UserError) as error:
        train(tmp_path / "run", Config(seed=3, data=Path("else")))
    assert "data else (the run has some/where), seed 3 (the run has 0)" in str(error.value)
    train(tmp_path / "run", Config(steps=70))
    assert read_checkpoint(tmp_path / "run").step == 70
    assert read_run(tmp_path / "run")["config"]["steps"] == 70


def test_two_processes_on_one_run(tmp_path: Path) -> None:
    with Run.open(tmp_path / "run", Config()) as run:
        run.begin()
        child = os.fork()
        if child == 0:
            try:
                Run.open(tmp_path / "run", Config())
            except UserError as error:
                os._exit(7 if f"in use by another process (pid {os.getppid()})" in str(error) else 8)
            os._exit(9)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    Run.open(tmp_path / "run", Config()).__exit__(None, None, None)


def test_keeps_the_last_checkpoints_only(tmp_path: Path) -> None:
    train(tmp_path / "run", Config())
    assert names(tmp_path / "run" / "checkpoints") == ["step-000000000056", "step-000000000060"]


@pytest.mark.parametrize("name", ["tensors.safetensors", "state.json"])
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(
    tmp_path: Path, uninterrupted: Any, caplog: pytest.LogCaptureFixture, name: str
) -> None:
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


def test_a_full_disk_names_the_checkpoint_that_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with Run.open(tmp_path / "run", Config()) as run:
        run.save(10, {"x": np.ones(2)}, {})
        monkeypatch.setattr("protovalue.runs.save_file", full)
        with pytest.raises(UserError, match="No space left on device; the checkpoint of step 10 is kept"):
            run.save(20, {"x": np.ones(2)}, {})
    assert names(tmp_path / "run" / "checkpoints") == ["step-000000000010"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"nonsense\n", "not JSON"),
        (b"[" * 100_000 + b"\n", "not JSON"),
        (b'{"time": 1.0}\n', "no step"),
        (b'{"step": "3"}\n', "no step"),
        (b'{"step": true}\n', "no step"),
        (b'{"step": -1}\n', "no step"),
        (b'{"step": 3, "loss": "small"}\n', "'loss' is no number"),
        (b'{"step": 3, "x": 1.0, "crc32": 7}\n', "its checksum does not match"),
    ],
)
def test_a_damaged_line_of_metrics_is_named_and_the_run_goes_on(
    tmp_path: Path, uninterrupted: Any, caplog: pytest.LogCaptureFixture, line: bytes, reason: str
) -> None:
    train(tmp_path / "run", Config(), stop_at=30)
    path = tmp_path / "run" / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:4], line, *lines[4:]]))
    said = f"{path}: damaged: line 5 ({reason}): left out"
    with pytest.raises(UserError, match=re.escape(said)):
        read_metrics(tmp_path / "run", whole=True)
    assert len(read_metrics(tmp_path / "run")) == 30
    assert said in caplog.text
    caplog.clear()
    train(tmp_path / "run", Config())
    assert said in caplog.text
    assert result(tmp_path / "run") == uninterrupted
    caplog.clear()
    read_metrics(tmp_path / "run", whole=True)
    assert caplog.text == ""


@pytest.mark.parametrize("kept", [slice(0, 0), slice(0, 27), slice(1, 28), slice(0, 28, 3)])
def test_lines_of_metrics_that_are_gone_are_said_and_the_run_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kept: Any
) -> None:
    """28 lines until the checkpoint of step 28, of which each has its own checksum; then two more, which come again."""
    train(tmp_path / "run", Config(), stop_at=30)
    path = tmp_path / "run" / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    assert len(lines) == 30
    left = lines[:28][kept]
    path.write_bytes(b"".join([*left, *lines[28:]]))
    said = f"{path}: damaged: found {len(left)} lines until step 28, expected 28"
    with pytest.raises(UserError, match=re.escape(said)):
        read_metrics(tmp_path / "run", whole=True)
    train(tmp_path / "run", Config(), stop_at=28)
    assert f"{said}: the run goes on without them" in caplog.text
    assert path.read_bytes() == b"".join(left)
    caplog.clear()
    train(tmp_path / "run", Config())
    assert caplog.text.count("the run goes on without them") == 1  # no checkpoint was written since
    caplog.clear()
    train(tmp_path / "run", Config())
    read_metrics(tmp_path / "run", whole=True)
    assert not caplog.text


def test_a_last_line_of_metrics_that_a_kill_cut_short_is_cut_off_and_said(
    tmp_path: Path, uninterrupted: Any, caplog: pytest.LogCaptureFixture
) -> None:
    train(tmp_path / "run", Config(), stop_at=28)
    path = tmp_path / "run" / "metrics.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + whole.splitlines(keepends=True)[-1][:-1])
    train(tmp_path / "run", Config(), stop_at=28)
    assert "metrics.jsonl: damaged: line 29 (cut short): left out" in caplog.text
    assert path.read_bytes() == whole
    train(tmp_path / "run", Config())
    assert result(tmp_path / "run") == uninterrupted


def test_a_checkpoint_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, done = os.fsync, []

    def fsync(descriptor: Any) -> None:
        done.append(Path(f"/proc/self/fd/{descriptor}").readlink().relative_to(tmp_path / "run"))
        assert not (tmp_path / "run/checkpoints/step-000000000001").exists() or len(done) == 5
        real(descriptor)

    with Run.open(tmp_path / "run", Config()) as run:
        run.log(1, {"x": 1.0})
        monkeypatch.setattr(os, "fsync", fsync)
        run.save(1, {"x": np.ones(1)}, {})
    tensors, state, folder, metrics, checkpoints = map(str, done)
    assert (tensors, metrics, checkpoints) == (
        "checkpoints/.new-000000000001/tensors.safetensors", "metrics.jsonl", "checkpoints"
    )  # fmt: skip
    assert state.startswith("checkpoints/.new-000000000001/.new-")
    assert folder == "checkpoints/.new-000000000001"


def test_metrics_that_were_logged_with_a_checkpoint_stay_as_they_are(tmp_path: Path) -> None:
    train(tmp_path / "run", Config(), stop_at=28)
    path = tmp_path / "run" / "metrics.jsonl"
    before = path.stat().st_ino
    train(tmp_path / "run", Config(), stop_at=28)
    assert path.stat().st_ino == before  # appended to, not written again


@pytest.mark.parametrize("name", ["lock", "metrics.jsonl", "checkpoints", "events"])
def test_no_link_in_a_run_is_followed(tmp_path: Path, name: str) -> None:
    train(tmp_path / "run", Config(), stop_at=5)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / ".precious").mkdir()
    (elsewhere / ".bashrc").write_text("precious")
    (tmp_path / "precious").write_text('{"step": 1}\n' if name == "metrics.jsonl" else "")
    before = (tmp_path / "precious").read_text()
    path = tmp_path / "run" / name
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    path.symlink_to(elsewhere if name in ("checkpoints", "events") else tmp_path / "precious")
    with pytest.raises(UserError, match=f"{name}: found a symbolic link"):
        train(tmp_path / "run", Config())
    assert (tmp_path / "precious").read_text() == before
    assert names(elsewhere) == [".bashrc", ".precious"]


@pytest.mark.parametrize("name", ["config.json", "done.json"])
def test_a_link_in_the_place_of_a_json_file_is_replaced(tmp_path: Path, name: str) -> None:
    train(tmp_path / "run", Config())
    (tmp_path / "precious").write_bytes((tmp_path / "run" / name).read_bytes())
    (tmp_path / "run" / name).unlink()
    (tmp_path / "run" / name).symlink_to(tmp_path / "precious")
    before = (tmp_path / "precious").read_bytes()
    train(tmp_path / "run", Config(steps=70))
    assert (tmp_path / "precious").read_bytes() == before
    assert read_run(tmp_path / "run")["config"]["steps"] == 70
    assert read_run(tmp_path / "run")["done"]["x"] == read_checkpoint(tmp_path / "run").tensors["x"][0]


def test_links_among_the_checkpoints_lead_nowhere(tmp_path: Path, uninterrupted: Any) -> None:
    train(tmp_path / "run", Config(), stop_at=5)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/precious").write_text("precious")
    for name in (".new-000000000008", ".old-step-000000000004", ".any"):
        (tmp_path / "run/checkpoints" / name).symlink_to(tmp_path / "elsewhere")
    train(tmp_path / "run", Config())
    assert result(tmp_path / "run") == uninterrupted
    assert names(tmp_path / "elsewhere") == ["precious"]
    assert names(tmp_path / "run/checkpoints") == ["step-000000000056", "step-000000000060"]


def test_a_run_in_a_folder_that_is_the_users_own_link_is_a_run(tmp_path: Path, uninterrupted: Any) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "disk")
    train(tmp_path / "run", Config())
    assert result(tmp_path / "disk") == uninterrupted


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("format", "something", "config.json: field format: found 'something', expected 'protovalue run'"),
        ("version", 3, "config.json: field version: found 3, expected 2"),
        ("config", [], "config.json: field config: found [], expected an object"),
        ("versions", [], "config.json: field versions: found [], expected at least one entry"),
        ("versions", [{"torch": 2}], "config.json: field versions[0].torch: found 2, expected text"),
        ("more", 1, "config.json: field more: unknown"),
    ],
)
def test_a_config_of_another_kind_is_named(tmp_path: Path, field: str, value: Any, message: str) -> None:
    train(tmp_path / "run", Config(), stop_at=5)
    write_json(tmp_path / "run/config.json", {**read_json(tmp_path / "run/config.json"), field: value})
    for use in (read_run, lambda path: train(path, Config())):
        with pytest.raises(UserError, match=re.escape(message)):
            use(tmp_path / "run")


@pytest.mark.parametrize(("field", "value"), [("step", 24), ("bytes", None), ("crc32", "7"), ("state", [])])
def test_a_checkpoint_that_does_not_say_what_it_is_is_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, field: str, value: Any
) -> None:
    train(tmp_path / "run", Config(), stop_at=30)
    state = tmp_path / "run/checkpoints/step-000000000028/state.json"
    write_json(state, {**read_json(state), field: value})
    assert read_checkpoint(tmp_path / "run").step == 24
    assert f"step-000000000028: passed over: {state}: field {field}: found" in caplog.text


def test_tensors_of_a_type_that_is_not_known_are_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    train(tmp_path / "run", Config(), stop_at=30)
    path = tmp_path / "run/checkpoints/step-000000000028"
    header = b'{"x":{"dtype":"F8_E5M2","shape":[1],"data_offsets":[0,1]}}'
    (path / "tensors.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"0")
    size, crc = size_and_crc(path / "tensors.safetensors")
    write_json(path / "state.json", {**read_json(path / "state.json"), "bytes": size, "crc32": crc})
    assert read_checkpoint(tmp_path / "run").step == 24
    assert "step-000000000028: passed over" in caplog.text


def test_a_checkpoint_that_is_not_of_this_run_is_one_line(tmp_path: Path) -> None:
    checkpoint = Checkpoint(4, {}, {}, tmp_path)
    empty, nothing, text = dict[str, int](), cast(Any, None), cast(Any, "a")
    fails: list[Callable[[], Any]] = [
        lambda: empty["weight"], lambda: [][1], lambda: int("x"), lambda: nothing.x, lambda: text + 1, lambda: 1 / 0,
    ]  # fmt: skip
    for fail in fails:
        said = f"{tmp_path}: damaged: it does not hold the state of such a run \\("
        with pytest.raises(UserError, match=said), restoring(checkpoint):
            fail()
    with pytest.raises(OSError, match="other"), restoring(checkpoint):
        raise OSError("other")


def limited(size: int) -> None:
    """Let no file of this process grow beyond some bytes; what is written beyond is an error."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


@pytest.mark.parametrize("size", [0, 3, 100, 200, 400, 600, 900, 1200, 2000])
def test_a_full_disk_at_any_moment_names_a_file_and_the_run_goes_on(
    tmp_path: Path, uninterrupted: Any, size: int
) -> None:
    child = os.fork()
    if child == 0:
        code = 9
        try:
            limited(size)
            train(tmp_path / "run", Config())
        except UserError as error:
            code = 7 if str(tmp_path / "run") in str(error) else 8
        except OSError as error:
            code = 7 if str(error.filename).startswith(str(tmp_path / "run")) else 6
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    train(tmp_path / "run", Config())
    assert result(tmp_path / "run") == uninterrupted
    assert not list((tmp_path / "run").rglob(".*"))


def test_metrics_are_json_and_tensorboard_events(tmp_path: Path) -> None:
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


def test_versions_are_recorded_and_a_change_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with Run.open(tmp_path / "run", Config()) as run:
        run.begin()
    recorded = read_run(tmp_path / "run")["versions"]
    assert len(recorded) == 1
    assert recorded[0]["numpy"] == np.__version__
    assert recorded[0]["minatar"] == "protovalue-1", "our games'; older runs have the version of the package"
    assert recorded[0]["compiled"] == "2", "agents' arithmetic; older runs have none"
    assert recorded[0]["normalized"] == "1", "what they see of layer norm"
    assert recorded[0]["patches"] == "1", "random networks' on large frames; older runs have none"
    monkeypatch.setattr("protovalue.runs.versions", lambda: {**recorded[0], "torch": "9.9"})
    with Run.open(tmp_path / "run", Config()) as run:
        run.begin()
    assert "torch 2." in caplog.text
    assert "-> 9.9" in caplog.text


def test_a_folder_with_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(UserError, match="not empty and not a run"):
        Run.open(tmp_path, Config())
    with pytest.raises(UserError, match="not a run: config.json is missing"):
        read_run(tmp_path)
