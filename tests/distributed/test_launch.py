"""`pvn pretrain --processes N` and torchrun themselves: processes that are started, killed, and started again."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from protovalue.cli import main
from protovalue.data.collect import collect
from protovalue.data.config import CollectConfig
from protovalue.distributed.group import Ranks
from protovalue.distributed.join import most_threads, words_of
from protovalue.flags import parse
from protovalue.pretrain.method_configs import BcConfig, SprConfig, config_class
from protovalue.runs import read_checkpoint, read_metrics, read_run
from tests.test_interrupt import wait_until


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("d") / "set"
    collect(CollectConfig("minatar/breakout", path, steps=600), quiet=True)
    return path


def command(data: Path, out: Path, steps: int) -> list[str]:
    words = (
        f"pretrain --data {data} --out {out} --tasks 4 --batch-size 8 --threads 1 --log-every 1 --checkpoint-every 5"
    )
    return [*words.split(), "--steps", str(steps)]


def started(words: list[str], log: Path, *launcher: str) -> subprocess.Popen[bytes]:
    with log.open("w") as file:
        return subprocess.Popen([sys.executable, "-m", *launcher, "protovalue", *words], stdout=file, stderr=file)


def children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def lines(path: Path) -> int:
    return path.read_text().count("\n") if path.exists() else 0


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds processes in /proc")
def test_killed_resumed_interrupted_and_the_same_under_torchrun(data: Path, tmp_path: Path) -> None:
    """The second process is killed with -9; the same command goes on, is interrupted, and ends under torchrun.

    What comes out is what two processes get that nobody disturbed, bit for bit.
    """
    run, log = tmp_path / "run", tmp_path / "log"
    steps = 400
    process = started([*command(data, run, steps), "--processes", "2"], log)
    wait_until(lambda: lines(run / "metrics.jsonl") >= 6, lambda: process.poll() is None)
    (second,) = children(process.pid)
    os.kill(second, signal.SIGKILL)
    killed = time.monotonic()
    assert process.wait() == 2, log.read_text()
    assert time.monotonic() - killed < 60  # not the half hour of a collective
    said = log.read_text().splitlines()
    assert said[-1].startswith(f"pvn: rank 1 of 2 (process {second} on ")
    assert said[-1].endswith(") is gone: it was killed, perhaps for lack of memory, or its machine is gone; the others "
                             "ended; the same command continues")  # fmt: skip
    assert not any("Traceback" in line for line in said)
    reached = read_checkpoint(run).step
    assert 5 <= reached < steps

    process = started([*command(data, run, steps), "--processes", "2"], log)
    wait_until(lambda: lines(run / "metrics.jsonl") > reached + 6, lambda: process.poll() is None)
    (second,) = children(process.pid)
    process.send_signal(signal.SIGINT)
    assert process.wait() == 130, log.read_text()
    assert log.read_text().splitlines()[-1] == "pvn: interrupted; the same command continues"
    wait_until(lambda: gone(second))
    assert read_checkpoint(run).step > reached
    assert read_checkpoint(run).step == read_metrics(run)[-1]["step"]

    end = read_checkpoint(run).step + 3
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    process = started(command(data, run, end), log, *torchrun)
    assert process.wait() == 0, log.read_text()
    assert log.read_text().count("features, effective rank") == 1
    assert read_run(run)["config"]["processes"] == 2

    assert main([*command(data, tmp_path / "whole", end), "--processes", "2"]) == 0  # this process is the first
    one, other = (read_checkpoint(folder).tensors for folder in (run, tmp_path / "whole"))
    assert {name: array.tobytes() for name, array in one.items()} == {
        name: array.tobytes() for name, array in other.items()
    }
    assert not torch.distributed.is_initialized()


@pytest.mark.parametrize(
    "given",
    [
        BcConfig(out=Path("o"), data=(Path("a"), Path("b")), learning_rate=0.5, precision="float32", processes=2),
        SprConfig(out=Path("o"), data=(Path("a"),), horizon=2, recompute_activations=True, threads=3, seed=4),
    ],
)
def test_the_others_are_given_the_same_settings(given: Any) -> None:
    words = words_of(given)
    found = parse(config_class(words), "pvn pretrain", words)
    assert found == type(given)(**{**given.__dict__, "processes": 1})


def test_threads_are_a_part_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    assert most_threads(Ranks(5, 6, 1, 3)) == 2
    assert most_threads(Ranks(0, 9, 0, 9)) == 1
    assert most_threads(Ranks()) is None
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    assert most_threads(Ranks(0, 2, 0, 2)) is None
