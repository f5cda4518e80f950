"""The device and its threads, as pretraining, agents and evaluation choose them."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from protovalue.cli import main
from protovalue.device import choose_device, choose_threads, with_threads
from protovalue.encoder import FrozenEncoder
from protovalue.errors import UserError
from protovalue.nets.cost import forward_flops
from protovalue.nets.encoders import make_encoder
from protovalue.runs import read_run


@pytest.fixture
def eight() -> Iterator[None]:
    """PyTorch as it starts on a machine of eight cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(8)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("wanted", "gigaflops", "expected"),
    [(2, 0.1, 2), (1, 1e3, 1), (None, 0.1, 1), (None, 1.9, 1), (None, 2, 2), (None, 3.3, 3), (None, 1e3, 8)],
)
@pytest.mark.usefixtures("eight")
def test_a_thread_for_every_gigaflop_of_a_call(wanted: int | None, gigaflops: float, expected: int) -> None:
    assert choose_threads(wanted, lambda: gigaflops * 1e9) == expected
    assert torch.get_num_threads() == expected


@pytest.mark.usefixtures("eight")
def test_no_more_threads_than_there_were() -> None:
    assert [choose_threads(wanted, lambda: 1e12, most) for wanted, most in ((None, 3), (None, None), (5, None))] == [
        3,
        3,
        5,
    ]
    assert with_threads("evaluate") == "evaluate (5 threads)"
    choose_threads(1, lambda: 0)
    assert with_threads("evaluate") == "evaluate (1 thread)"


def test_the_work_of_a_network_by_hand() -> None:
    """MinAtar: 16 filters of 3x3 on 8x8 places of 10x10 cells, then 16 * 64 to 128; twice, for + and *."""
    encoder = make_encoder("minatar", (1, 10, 10, 6), 1, torch.Generator())
    assert forward_flops(encoder, exactly=True) == 2 * (16 * 9 * 6 * 64 + 1024 * 128)
    nature = make_encoder("nature", (4, 84, 84), 1, torch.Generator())
    convolutions = 32 * 64 * 4 * 21 * 21 + 64 * 16 * 32 * 11 * 11 + 64 * 9 * 64 * 11 * 11
    assert forward_flops(nature) == 2 * (convolutions + 64 * 121 * 512)
    der = make_encoder("der", (4, 84, 84), 1, torch.Generator())
    assert forward_flops(der) == 2 * (32 * 25 * 4 * 16 * 16 + 64 * 25 * 32 * 3 * 3 + 64 * 9 * 256)
    assert round(forward_flops(nature) / forward_flops(der)) == 11


def test_work_is_not_counted_where_it_decides_nothing() -> None:
    def count() -> float:
        raise AssertionError("counted")

    assert [choose_threads(2, count, 8), choose_threads(None, count, 1)] == [2, 1]
    encoder = make_encoder("minatar", (1, 10, 10, 6), 1, torch.Generator())
    bound = 2 * (100 * (9 * 6 * 16 + 16) + 1024 * 128 + 128)  # for which nothing has to be run
    assert forward_flops(encoder) == bound
    assert forward_flops(encoder, exactly=True) < bound < 1.3 * forward_flops(encoder, exactly=True)


@pytest.mark.usefixtures("eight")
def test_one_call_has_the_threads_that_it_deserves(monkeypatch: pytest.MonkeyPatch) -> None:
    """The encoder inside an agent of another library: small calls have one thread, whoever called has its own again."""
    encoder = FrozenEncoder(make_encoder("nature", (4, 84, 84), 1, torch.Generator()), {})
    used = []
    real = encoder.encoder.forward

    def noted(obs: Any) -> Any:
        used.append((len(obs), torch.get_num_threads()))
        return real(obs)

    monkeypatch.setattr(encoder.encoder, "forward", noted)
    for count in (3, 100):
        encoder.features(np.zeros((count, 4, 84, 84), np.uint8))
    assert used == [(1, 8), (3, 1), (100, 3)]  # the first counts; 100 * 32 MFLOP
    assert torch.get_num_threads() == 8


@pytest.mark.usefixtures("eight")
def test_commands_choose_by_the_network_and_say_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pong = "--env atari/Pong"
    words = f"dqn {pong} --out {tmp_path}/dqn --architecture nature --n-step 1 --steps 5 --replay-min 2 --seeds 0"
    assert main([*words.split(), "--batch-size", "50"]) == 0  # 3 * 50 * 32 MFLOP
    assert read_run(tmp_path / "dqn")["config"]["threads"] == 4
    assert "train atari/Pong (4 threads)" in capsys.readouterr().err
    torch.set_num_threads(8)
    words = f"online --encoder random:nature:1 {pong} --out {tmp_path}/online --steps 9 --replay-min 6 --seeds 0,1"
    assert main(words.split()) == 0
    assert read_run(tmp_path / "online")["config"]["threads"] == 1
    torch.set_num_threads(8)
    words = f"pretrain --method random {pong} --out {tmp_path}/random --preset paper --architecture nature --width 1"
    assert main(words.split()) == 0
    assert read_run(tmp_path / "random")["config"]["threads"] == 8  # 3 * 256 * 32 MFLOP, as if it were trained


def test_waiting_threads_sleep_unless_told_otherwise() -> None:
    code = "from protovalue.cli import main; main(['--version']); import os; print(os.environ['OMP_WAIT_POLICY'])"
    for given, expected in (({}, "PASSIVE"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE")):
        ran = subprocess.run([sys.executable, "-c", code], env=given, capture_output=True, text=True, check=True)
        assert ran.stdout.split()[-1] == expected


def test_the_device_that_is_there_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    def device(wanted: Any, there: Any) -> str:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
        return choose_device(wanted)

    assert [device("auto", True), device("auto", False), device("cpu", True)] == ["cuda", "cpu", "cpu"]
    assert device("cuda", True) == "cuda"
    with pytest.raises(UserError, match="--device: found cuda, expected cpu: PyTorch sees no CUDA device here"):
        device("cuda", False)
