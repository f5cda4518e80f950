"""Ctrl-C and SIGTERM: every command ends in one line with its exit code, and goes on where it was."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protovalue.cli import main
from protovalue.data.dataset import open_dataset
from protovalue.evaluate.episodes import Quotas
from protovalue.files import locked
from protovalue.interrupt import Terminated, raised, stop_on_interrupt
from protovalue.nets.encoders import make_encoder
from protovalue.pretrain import base
from protovalue.progress import ProgressBar
from protovalue.report import summary
from protovalue.runs import Run, read_checkpoint
from tests.data.published import atari_episode, write_atari, write_rlu

CONTINUES, AGAIN, NOTHING = "the same command continues", "the same command starts again", "nothing was begun"
LINES = {signal.SIGINT: "pvn: interrupted; ", signal.SIGTERM: "pvn: terminated; "}
BOTH = pytest.mark.parametrize("number", list(LINES))


def wait_until(true: Callable[[], bool], alive: Callable[[], bool] = lambda: True) -> None:
    while not true():
        assert alive(), "the process ended early"
        time.sleep(0.002)


class Child:
    """A command in a process of its own, forked from this one: what it needs is imported already."""

    def __init__(self, folder: Path, words: str, patch: Callable[[], None] = lambda: None) -> None:
        self.log = folder / "log"
        self.pid = os.fork()
        if self.pid == 0:
            code = 99
            try:
                signal.signal(signal.SIGINT, signal.default_int_handler)
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                with self.log.open("w") as log:
                    os.dup2(log.fileno(), 1)
                    os.dup2(log.fileno(), 2)
                    sys.stdout = sys.stderr = log
                    patch()
                    try:
                        code = main(words.split())
                    except BaseException:
                        traceback.print_exc()
            finally:
                os._exit(code)

    def alive(self) -> bool:
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    def end(self, number: int, when: Callable[[], bool], then: str = CONTINUES) -> str:
        """Send a signal when something is true; check the exit code and the last line; return all that was said."""
        wait_until(when, self.alive)
        os.kill(self.pid, number)
        assert os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]) == 128 + number, self.log.read_text()
        said = self.log.read_text()
        assert "Traceback" not in said
        assert said.strip().splitlines()[-1] == LINES[signal.Signals(number)] + then
        return said


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:

    folder = tmp_path_factory.mktemp("made")
    assert main(f"collect minatar/breakout --steps 64 --num-envs 2 --out {folder}/data".split()) == 0
    small = "--env minatar/breakout --steps 12 --replay-min 5"
    assert main(f"online --encoder random:minatar:1 {small} --out {folder}/online".split()) == 0
    assert main(f"evaluate {folder}/online --episodes 1".split()) == 0
    return folder


def lines(path: Path) -> int:
    return path.read_text().count("\n") if path.exists() else 0


@pytest.mark.parametrize(
    "words",
    [
        "pretrain --method bc --data {made}/data --batch-size 8",
        "online --encoder random:minatar:1 --env minatar/breakout --replay-min 5",
        "dqn --env minatar/breakout --replay-min 5 --epsilon-steps 10",
    ],
)
def test_training_writes_a_checkpoint_of_the_step_where_it_was(made: Path, tmp_path: Path, words: str) -> None:
    out = tmp_path / "run"
    words = words.format(made=made) + f" --out {out} --log-every 1 --checkpoint-every 900000 --steps "
    Child(tmp_path, words + "900001").end(signal.SIGTERM, lambda: lines(out / "metrics.jsonl") >= 3)
    step = read_checkpoint(out).step
    assert 3 <= step == lines(out / "metrics.jsonl")
    assert main((words + str(step + 4)).split()) == 0  # the first update comes at the sixth step
    assert read_checkpoint(out).step == step + 4


@pytest.mark.parametrize(("target", "name"), [(Run, "log"), (ProgressBar, "advance")])
@pytest.mark.parametrize(
    "words",
    [
        "pretrain --method bc --data {made}/data --batch-size 8",
        "online --encoder random:minatar:1 --env minatar/breakout --replay-min 5",
    ],
)
def test_wherever_in_a_step_the_signal_comes_there_is_a_checkpoint(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, target: Any, name: str
) -> None:
    before, calls = getattr(target, name), []

    def then_signal(*args: Any) -> None:
        before(*args)
        calls.append(1)
        if len(calls) == 3:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(target, name, then_signal)
    out = tmp_path / "run"
    words = words.format(made=made) + f" --out {out} --log-every 1 --checkpoint-every 900 --steps 901"
    assert main(words.split()) == 143
    assert read_checkpoint(out).step in (3, 4)


def test_collecting_keeps_every_transition(tmp_path: Path) -> None:
    out = tmp_path / "data"
    words = f"collect minatar/breakout --num-envs 2 --out {out} --steps "
    Child(tmp_path, words + "90000000").end(signal.SIGTERM, lambda: (out / "episodes.bin").exists() and size(out) > 640)
    before = open_dataset(out).num_transitions
    assert main((words + str(before + 10)).split()) == 0
    assert open_dataset(out).num_transitions == before + 10


def size(out: Path) -> int:
    return (out / "episodes.bin").stat().st_size


def test_recording_a_dqn_ends_with_its_checkpoint(tmp_path: Path) -> None:
    out = tmp_path / "data"
    words = f"collect minatar/breakout --policy dqn --steps 900000 --out {out}"
    wait = tmp_path / "data-agent"
    Child(tmp_path, words).end(signal.SIGTERM, lambda: (out / "episodes.bin").exists() and size(out) > 640)
    assert read_checkpoint(wait).step >= open_dataset(out).num_transitions > 0


def marking(target: object, name: str, mark: Path) -> Callable[[], None]:
    """Let a function say by a file that it was called."""

    def patch() -> None:
        before = getattr(target, name)

        def marked(*args: Any, **kwargs: Any) -> Any:
            mark.touch()
            return before(*args, **kwargs)

        setattr(target, name, marked)

    return patch


def test_evaluating_leaves_what_was_there(made: Path, tmp_path: Path) -> None:
    before = (made / "online/evaluation.json").read_bytes()
    mark = tmp_path / "mark"
    words = f"evaluate {made}/online --episodes 900000"
    Child(tmp_path, words, marking(Quotas, "add", mark)).end(signal.SIGTERM, mark.exists, AGAIN)
    assert (made / "online/evaluation.json").read_bytes() == before
    assert not list(made.rglob(".new-*"))


def test_reporting_ends(made: Path, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    words = f"report {made}/online --out {tmp_path}/page --draws 100000"
    Child(tmp_path, words, marking(summary, "over_games", mark)).end(signal.SIGTERM, mark.exists, AGAIN)
    assert not list(tmp_path.rglob(".new-*"))


@BOTH
def test_importing_ends_with_its_workers(tmp_path: Path, number: Any) -> None:
    """A signal to every process, as a terminal and a cluster send it, while the workers are still starting."""
    rng = np.random.default_rng(0)
    episodes = write_atari(tmp_path / "episodes", [atari_episode(3, rng) for _ in range(8)])
    write_rlu(tmp_path / "Breakout/run_1-00000-of-00001", episodes)
    command = f"import rlu {tmp_path}/Breakout --workers 2 --out {tmp_path}/data"
    process = subprocess.Popen(
        [sys.executable, "-m", "protovalue.cli", *command.split()], stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    wait_until(lambda: (tmp_path / "data/lock").exists(), lambda: process.poll() is None)
    os.killpg(process.pid, number)
    _, said = process.communicate()
    assert process.returncode == 128 + number, said
    assert said.strip().splitlines()[-1] == LINES[number] + CONTINUES
    assert "Traceback" not in said


def path_and_mark(folder: Path) -> dict[str, str]:
    """Return an environment in which modules of a folder can be imported and know where to leave their mark."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path]), "MARK": str(folder / "mark")}


SLOW = """
import os, pathlib, time
pathlib.Path(os.environ["MARK"]).touch()
try:
    time.sleep(60)
except:  # as libraries have it
    pass
"""
START = """
import sys
from protovalue import cli

cli.COMMANDS["slow"] = cli.Command("slow:Config", "slow:run", "")
sys.exit(cli.main(["slow"]))
"""


@BOTH
def test_a_signal_while_modules_are_imported_is_one_line(tmp_path: Path, number: Any) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    mark = tmp_path / "mark"
    process = subprocess.Popen(
        [sys.executable, "-c", START], stderr=subprocess.PIPE, text=True, env=path_and_mark(tmp_path)
    )
    wait_until(mark.exists, lambda: process.poll() is None)
    process.send_signal(number)
    _, said = process.communicate()
    assert (process.returncode, said) == (128 + number, LINES[number] + NOTHING + "\n")


def test_a_signal_that_was_swallowed_ends_the_run_at_its_first_step(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a module does that catches everything while it is imported: `pvn` began to compute, so it may not just end."""
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):

        def swallow(*args: Any, number: int = number) -> Any:
            try:
                signal.raise_signal(number)
            except:  # noqa: E722
                return make_encoder(*args)

        monkeypatch.setattr(base, "make_encoder", swallow)
        out = tmp_path / str(number)
        words = f"pretrain --method bc --data {made}/data --batch-size 8 --steps 900 --out {out}"
        assert main(words.split()) == code
        assert read_checkpoint(out).step == 1
    monkeypatch.undo()
    assert main(words.replace("900", "3").split()) == 0, "it is forgotten with the command"


def test_a_second_ctrl_c_interrupts_at_once_but_a_second_sigterm_does_not() -> None:
    with stop_on_interrupt() as stop:
        assert not stop.requested
        signal.raise_signal(signal.SIGTERM)
        assert stop.requested
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        assert isinstance(stop.error(), Terminated)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    with stop_on_interrupt() as stop:
        signal.raise_signal(signal.SIGINT)
        assert type(stop.error()) is KeyboardInterrupt
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_handlers_are_put_back_and_an_ignored_signal_stays_ignored() -> None:
    before = [signal.getsignal(number) for number in LINES]
    for context in (stop_on_interrupt, raised):
        with context():
            assert [signal.getsignal(number) for number in LINES] != before
        assert [signal.getsignal(number) for number in LINES] == before
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with stop_on_interrupt() as stop:
            signal.raise_signal(signal.SIGINT)
            assert not stop.requested
    finally:
        signal.signal(signal.SIGINT, before[0])


def test_in_another_thread_signals_are_left_alone() -> None:
    seen = []

    def work() -> None:
        with stop_on_interrupt() as stop, raised():
            seen.append(stop.requested)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [False]


STUDY = """
environments = ["minatar/breakout"]
[dqn]
steps = 900000
replay_min = 10
log_every = 20
[methods.dqn]
"""


@pytest.mark.parametrize("before", ["", "trap '' INT; "], ids=["foreground", "background of a script"])
def test_a_study_tells_its_workers_and_waits_for_them(tmp_path: Path, before: str) -> None:
    """SIGTERM to every process, as a cluster sends it; also where Ctrl-C is ignored."""
    (tmp_path / "study.toml").write_text(STUDY)
    out = tmp_path / "out"
    command = f"{before}exec {sys.executable} -m protovalue.cli study run '{tmp_path}/study.toml' --out '{out}'"
    process = subprocess.Popen(["sh", "-c", command], stderr=subprocess.PIPE, text=True, start_new_session=True)
    wait_until(
        lambda: any(lines(path) >= 2 for path in out.glob("dqn/*/metrics.jsonl")), lambda: process.poll() is None
    )
    os.killpg(process.pid, signal.SIGTERM)
    _, said = process.communicate()
    assert process.returncode == 143, said
    assert said.strip().splitlines()[-1] == LINES[signal.SIGTERM] + CONTINUES
    assert "Traceback" not in said
    assert "Warning" not in said  # none either from workers that would run the command's module a second time
    events = [json.loads(line)["event"] for line in (out / "events.jsonl").read_text().splitlines()]
    assert events == ["start", "interrupted"]
    (run,) = out.glob("dqn/*")
    assert read_checkpoint(run).step >= 40  # its own checkpoints are 25,000 steps apart
    assert not locked(out)
    assert not locked(run)


@pytest.mark.parametrize("later", [0.0, 0.4])
def test_ctrl_c_right_after_a_study_says_what_it_will_run(tmp_path: Path, later: float) -> None:
    """To every process, as a terminal sends it, while the server that stages are forked from starts, or just before."""
    (tmp_path / "study.toml").write_text(STUDY)
    command = f"{sys.executable} -m protovalue.cli study run {tmp_path}/study.toml --out {tmp_path}/out"
    process = subprocess.Popen(command.split(), stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stderr is not None
    while "stages to run" not in process.stderr.readline():
        assert process.poll() is None
    time.sleep(later)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode == 130, said
    assert said.strip().splitlines()[-1] == LINES[signal.SIGINT] + CONTINUES
    assert "Traceback" not in said
    assert "Error" not in said


ENGINE = """
import os, sys
from pathlib import Path
from protovalue.interrupt import stop_on_interrupt
from protovalue.study.engines import local
from protovalue.study.engines.base import Job

local._IMPORTED_ONCE = ["slow_server"]
if __name__ == "__main__":
    root = Path(sys.argv[1])
    running = local.LocalProcesses(1, root, 1)
    with stop_on_interrupt() as stop:
        running.submit(Job("job", ("pvn", "--version"), root / "log"))
        assert stop.requested
        while not (ended := running.poll(0.1)):
            pass
    print(ended[0].code)
"""
SERVER = "import os, pathlib, time; pathlib.Path(os.environ['MARK']).touch(); time.sleep(0.3)"


def test_ctrl_c_while_the_workers_server_starts_is_for_the_study_alone(tmp_path: Path) -> None:
    (tmp_path / "slow_server.py").write_text(SERVER)
    (tmp_path / "run.py").write_text(ENGINE)
    mark = tmp_path / "mark"
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "run.py"), str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, start_new_session=True, env=path_and_mark(tmp_path),
    )  # fmt: skip
    wait_until(mark.exists, lambda: process.poll() is None)
    os.killpg(process.pid, signal.SIGINT)
    printed, said = process.communicate()
    assert (printed, said) == ("0\n", "")
    assert (tmp_path / "log").read_text().startswith("protovalue ")
