"""Runs of several processes, started as torchrun starts them: resumed, killed, interrupted, started wrongly."""

import json
import os
import shutil
import signal
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protovalue.cli import main
from protovalue.data.collect import collect
from protovalue.data.config import CollectConfig
from protovalue.errors import UserError
from protovalue.pretrain.loop import pretrain
from protovalue.pretrain.method_configs import BcConfig, PvnConfig, RandomConfig
from protovalue.runs import read_checkpoint, read_metrics, read_run
from tests.distributed.ranks import Forked, as_rank, free_port, started

INVERSE = (
    (Path(__file__).parents[2] / "docs" / "adding-a-method.md").read_text().split("```python\n")[1].split("```")[0]
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("d") / "set"
    collect(CollectConfig("minatar/breakout", path, steps=600), quiet=True)
    return path


def config(data: Path, out: Path, **more: Any) -> PvnConfig:
    small: dict[str, Any] = {
        "tasks": 5,
        "batch_size": 12,
        "steps": 8,
        "checkpoint_every": 4,
        "log_every": 2,
        "threads": 1,
    }
    return PvnConfig(out=out, data=(data,), **{**small, **more})


def trained(given: Any) -> Callable[[], int]:
    def do() -> int:
        pretrain(given, quiet=True)
        return 0

    return do


def words(given: PvnConfig) -> str:
    return (
        f"pretrain --data {given.data[0]} --out {given.out} --tasks 5 --batch-size 12 --steps {given.steps} "
        f"--checkpoint-every {given.checkpoint_every} --log-every {given.log_every} --threads 1"
    )


def weights(run: Path) -> bytes:
    return (run / "encoder" / "model.safetensors").read_bytes()


def numbers(run: Path) -> list[Any]:
    return [{k: v for k, v in line.items() if k not in ("time", "samples_per_second")} for line in read_metrics(run)]


def all_well(processes: list[Forked]) -> None:
    for process in processes:
        code, said = process.ended()
        assert (code, said) == (0, "")


def lines(path: Path) -> int:
    return path.read_text().count("\n") if path.exists() else 0


def test_a_run_of_three_goes_on_to_the_same_bits_and_one_of_another_number_says_so(
    data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole, parts = config(data, tmp_path / "whole"), config(data, tmp_path / "parts")
    all_well(started(tmp_path, 3, trained(whole)))
    all_well(started(tmp_path, 3, trained(replace(parts, steps=4))))
    shutil.copytree(parts.out, tmp_path / "two")
    all_well(started(tmp_path, 3, trained(parts)))
    assert weights(parts.out) == weights(whole.out)
    one, other = read_checkpoint(whole.out), read_checkpoint(parts.out)
    assert one.step == other.step == 8
    assert {name: array.tobytes() for name, array in one.tensors.items()} == {
        name: array.tobytes() for name, array in other.tensors.items()
    }
    assert numbers(parts.out) == numbers(whole.out)
    recorded = read_run(whole.out)
    assert recorded["config"]["processes"] == 3
    assert [one["processes"] for one in recorded["versions"]] == ["3"]

    # Alone from step 4 on: not the same bits, nearly the same numbers, and it is written down.
    two = replace(parts, out=tmp_path / "two")
    pretrain(two, quiet=True)
    assert "resumed with other versions (processes 3 -> 1): the result may differ in the last bits" in caplog.text
    assert [one.get("processes") for one in read_run(two.out)["versions"]] == ["3", None]
    assert read_run(two.out)["config"]["processes"] == 1
    alone, together = (load for load in (read_checkpoint(two.out).tensors, one.tensors))
    for name, array in alone.items():
        np.testing.assert_allclose(array, together[name], rtol=1e-3, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("victim", [0, 2])
def test_a_process_that_is_killed_ends_the_others_and_is_named(data: Path, tmp_path: Path, victim: int) -> None:
    given = config(data, tmp_path / "run", steps=1_000_000, checkpoint_every=3, log_every=1)
    processes = started(tmp_path, 3, lambda: main(words(given).split()))
    processes[victim].when(lambda: lines(given.out / "metrics.jsonl") >= 4)
    os.kill(processes[victim].pid, signal.SIGKILL)
    ended = [process.ended() for process in processes]
    assert [code for code, _ in ended] == [-9 if rank == victim else 2 for rank in range(3)]
    said = [line for _, text in ended for line in text.splitlines() if line.startswith(("pvn: ", "Traceback"))]
    assert len(said) == 1, ended
    assert said[0].startswith(
        f"pvn: rank {victim} of 3 (process {processes[victim].pid} on {socket.gethostname()}) is gone"
    )
    assert said[0].endswith("the others ended; the same command continues")
    step = read_checkpoint(given.out).step
    all_well(started(tmp_path, 3, trained(replace(given, steps=step + 1))))
    assert read_checkpoint(given.out).step == step + 1


@pytest.mark.parametrize(("number", "heard_by"), [(signal.SIGINT, 0), (signal.SIGTERM, 1)])
def test_an_interrupt_that_one_hears_writes_a_checkpoint_and_ends_all(
    data: Path, tmp_path: Path, number: int, heard_by: int
) -> None:
    given = config(data, tmp_path / "run", steps=1_000_000, checkpoint_every=1_000_000, log_every=1)
    processes = started(tmp_path, 2, lambda: main(words(given).split()))
    processes[0].when(lambda: lines(given.out / "metrics.jsonl") >= 3)
    os.kill(processes[heard_by].pid, number)
    (code, said), (other, silent) = (process.ended() for process in processes)
    assert code == 128 + number
    ended = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}[signal.Signals(number)]
    assert said.splitlines()[-1] == f"pvn: {ended}; the same command continues"
    assert other in (0, 130)  # it has done its part, or it was told before that
    assert silent == ""
    assert 3 <= read_checkpoint(given.out).step == lines(given.out / "metrics.jsonl")


def test_what_goes_wrong_in_one_process_is_told_once_with_its_name(data: Path, tmp_path: Path) -> None:
    """The second has another data set, of which it learns when all compare what they were given."""
    other = tmp_path / "other"
    collect(CollectConfig("minatar/breakout", other, steps=300, seed=5), quiet=True)

    def do() -> int:
        own = data if os.environ["RANK"] == "0" else other
        return main(words(config(own, tmp_path / "run")).split())

    (code, said), (second, silent) = (process.ended() for process in started(tmp_path, 2, do))
    assert (code, second, silent) == (2, 2, "")
    (line,) = [line for line in said.splitlines() if line.startswith("pvn: ")]
    assert line.startswith("pvn: rank 1 of 2 (process ")
    assert "found other settings than those of rank 0: data_checksum" in line
    assert "Traceback" not in said
    assert not (tmp_path / "run").exists()


def test_what_all_would_refuse_is_told_once(data: Path, tmp_path: Path) -> None:
    given = f"pretrain --data {tmp_path}/nothing --out {tmp_path}/run"
    (code, said), (second, silent) = (process.ended() for process in started(tmp_path, 2, lambda: main(given.split())))
    assert (code, second, silent) == (2, 2, "")
    assert said.startswith(f"pvn: --data: {tmp_path}/nothing")
    assert len(said.splitlines()) == 1


def test_one_that_does_not_come_is_named(data: Path, tmp_path: Path) -> None:
    port = free_port()

    def first() -> int:
        as_rank(0, 3, port, PROTOVALUE_JOIN_SECONDS="1")
        return main(words(config(data, tmp_path / "run")).split())

    code, said = Forked(tmp_path / "log", first).ended()
    assert code == 2
    assert said.startswith(
        "pvn: ranks 1, 2 of 3 did not come within 1 s, expected all to be started with the same MASTER"
    )
    assert len(said.splitlines()) == 1

    def second() -> int:
        as_rank(1, 3, port, PROTOVALUE_JOIN_SECONDS="1")
        return main(words(config(data, tmp_path / "run")).split())

    code, said = Forked(tmp_path / "log", second).ended()
    assert code == 2
    assert f"pvn: rank 1 of 3: no answer from rank 0 at 127.0.0.1, port {port} (MASTER_ADDR, MASTER_PORT)" in said


def test_a_port_in_use_is_named(data: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]

        def do() -> int:
            as_rank(int(os.environ["RANK"]), 2, port, PROTOVALUE_JOIN_SECONDS="1")
            return main(words(config(data, tmp_path / "run")).split())

        (code, said), (second, heard) = (process.ended() for process in started(tmp_path, 2, do))
    assert code == second == 2
    assert f"pvn: MASTER_PORT: found {port}, expected a port that is free on 127.0.0.1: another program uses it" in said
    assert "pvn: rank 1 of 2: no answer from rank 0" in heard


def test_two_with_the_same_number_are_refused(data: Path, tmp_path: Path) -> None:
    def do() -> int:
        os.environ["RANK"] = str(min(int(os.environ["RANK"]), 1))
        return main(words(config(data, tmp_path / "run")).split())

    ended = [process.ended() for process in started(tmp_path, 3, do, PROTOVALUE_JOIN_SECONDS="2")]
    assert [code for code, _ in ended] == [2, 2, 2]
    assert "pvn: rank 2 of 3 did not come within 2 s" in ended[0][1]
    assert any(
        "pvn: RANK: found 1, which another process has already, expected one of each" in said for _, said in ended
    )


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"RANK": "x", "WORLD_SIZE": "2"}, "RANK: found 'x' in the environment, expected a number"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK: found 2 of WORLD_SIZE 2, expected 0 to 1"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_PORT: found nothing in the environment"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "1"}, "MASTER_ADDR: found nothing in the environment"),
    ],
)
def test_a_bad_environment(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], message: str
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=message):
        pretrain(config(data, tmp_path / "run"))


def test_numbers_of_processes_that_are_refused(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(given: Any, message: str) -> None:
        with pytest.raises(UserError) as caught:
            pretrain(given, quiet=True)
        assert message in str(caught.value)
        assert not (tmp_path / "run").exists()

    run = tmp_path / "run"
    refused(config(data, run, processes=5), "--batch-size: found 12 for 5 processes, expected a multiple of 5")
    refused(config(data, run, processes=13), "--processes: found 13, expected at most 12, the --batch-size")
    refused(RandomConfig(out=run, data=(data,), processes=2), "--processes: found 2, expected it only where something")
    (tmp_path / "inverse.py").write_text(INVERSE)
    method = str(tmp_path / "inverse.py")
    message = f"--processes: method {method} does not say that its loss can be shared out, expected one process"
    refused(config(data, run, method=method, processes=2), message)
    (tmp_path / "normed.py").write_text(NORMED)
    normed = BcConfig(out=run, data=(data,), batch_size=12, architecture=str(tmp_path / "normed.py"), processes=2)
    refused(normed, "--processes: encoder normed has BatchNorm2d 'norm', whose statistics are of one process's part")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    refused(
        config(data, run, processes=3), "--processes: found 3, expected 2 or none: WORLD_SIZE says how many there are"
    )


NORMED = """
from torch import nn
from protovalue.nets.minatar import ENCODER as Minatar

class Normed(Minatar):
    def __init__(self, observation_shape, width, generator):
        super().__init__(observation_shape, width, generator)
        self.norm = nn.BatchNorm2d(16)

ENCODER = Normed
"""

SHARED = INVERSE.replace("    Config = InverseConfig\n", "    Config = InverseConfig\n    several_processes = True\n")


def test_a_method_of_one_s_own_that_says_so(data: Path, tmp_path: Path) -> None:
    """Its loss is a mean over examples, so equal parts need nothing else: what is logged is that of the whole batch."""
    assert SHARED != INVERSE
    (tmp_path / "inverse.py").write_text(SHARED)
    own = f"--method {tmp_path}/inverse.py --data {data}"
    small = f"pretrain {own} --batch-size 12 --steps 4 --log-every 1 --threads 1 --out "
    assert main([*small.split(), f"{tmp_path}/one"]) == 0
    for process in started(tmp_path, 2, lambda: main([*small.split(), f"{tmp_path}/two"])):
        assert process.ended()[0] == 0
    one, two = numbers(tmp_path / "one"), numbers(tmp_path / "two")
    assert len(one) == len(two) == 4
    for alone, together in zip(one, two, strict=True):
        near = {
            name: 5e-3 if name == "adam_damping" else 1e-4 for name in alone
        }  # it is of gradients that are rounding
        assert together == {name: pytest.approx(value, rel=near[name]) for name, value in alone.items()}
    unused = SHARED.replace("        self.action = ", "        self.idle = Dense(2, 2, draw)\n        self.action = ")
    (tmp_path / "inverse.py").write_text(unused)
    (code, said), _ = (
        process.ended() for process in started(tmp_path, 2, lambda: main([*small.split(), f"{tmp_path}/x"]))
    )
    assert code == 2
    assert "inverse.py: found no gradient for idle.weight, idle.bias, expected one for every parameter" in said


def test_a_finished_run_is_left_as_it_is_by_all(data: Path, tmp_path: Path) -> None:
    given = config(data, tmp_path / "run", steps=2)
    for _ in range(2):
        all_well(started(tmp_path, 2, trained(given)))
    assert json.loads((given.out / "done.json").read_text())["steps"] == 2
