"""`pvn pretrain --processes N` and torchrun themselves: processes that are started, killed, and started again."""

import os
import signal
import subprocess
import sys
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
from tests.distributed.ranks import Forked, started


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
def test_interrupted_killed_resumed_by_torchrun_to_the_same_bits(data: Path, tmp_path: Path) -> None:
    """Ctrl-C reaches a run of two, then the second process is killed with -9, then torchrun takes the run to its end.

    What comes out is what two processes get that nobody disturbed, bit for bit.
    """
    run = tmp_path / "run"
    words = [*command(data, run, 1_000_000), "--processes", "2"]
    first = Forked(tmp_path / "log", lambda: main(words))
    first.when(lambda: lines(run / "metrics.jsonl") >= 3)
    (second,) = children(first.pid)
    os.kill(first.pid, signal.SIGINT)
    code, said = first.ended()
    assert code == 130, said
    assert said.splitlines()[-1] == "pvn: interrupted; the same command continues"
    assert gone(second)
    reached = read_checkpoint(run).step
    assert 3 <= reached == read_metrics(run)[-1]["step"]

    first = Forked(tmp_path / "log", lambda: main(words))
    first.when(lambda: lines(run / "metrics.jsonl") > reached + 6)
    (second,) = children(first.pid)
    os.kill(second, signal.SIGKILL)
    code, said = first.ended()
    assert code == 2, said
    *before, last = said.splitlines()
    assert last.startswith(f"pvn: rank 1 of 2 (process {second} on ")
    assert last.endswith("the others ended; the same command continues")
    assert not any(line.startswith(("pvn: ", "Traceback")) for line in before)
    assert read_checkpoint(run).step > reached

    end = read_checkpoint(run).step + 2
    torchrun = f"{sys.executable} -m torch.distributed.run --standalone --nproc-per-node 2 -m protovalue".split()
    ended = subprocess.run([*torchrun, *command(data, run, end)], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("features, effective rank") == 1
    assert read_run(run)["config"]["processes"] == 2

    for process in started(tmp_path, 2, lambda: main(command(data, tmp_path / "whole", end))):
        assert process.ended()[0] == 0
    one, other = (read_checkpoint(folder).tensors for folder in (run, tmp_path / "whole"))
    assert {name: array.tobytes() for name, array in one.items()} == {
        name: array.tobytes() for name, array in other.items()
    }


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
