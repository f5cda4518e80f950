"""`pvn check`: a device that computes what the CPU does passes, one that does not is named."""

from typing import Any

import pytest
import torch

from protovalue.check import command
from protovalue.cli import main
from protovalue.indicators.rni import RandomNetworks
from protovalue.nets.heads import TaskHeads
from protovalue.pretrain.methods import method_names
from tests.pretended import pretended


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "SHAPE", (2, 36, 36))
    monkeypatch.setitem(command.METHODS, "bfloat16", (0.1, 1.0, 0.5))  # a batch of 4 rounds more
    for name, value in (("WIDTH", 0.25), ("BATCH", 4), ("TRANSITIONS", 50), ("STATES", 20), ("TASKS", 4)):
        monkeypatch.setattr(command, name, value)


def test_a_cpu_is_good(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--device", "cpu", "--steps", "1"]) == 0
    printed = capsys.readouterr().out
    rows = [line.split()[:2] for line in printed.splitlines()[3:-1]]
    trained = [name for name in method_names() if name != "random"]
    assert rows[: 2 * len(trained)] == [[name, precision] for name in trained for precision in ("float32", "bfloat16")]
    assert [" ".join(row) for row in rows[2 * len(trained) :]] == [
        "indicator rni", "indicator hash", "agent linear", "agent finetune", "agent dqn",
    ]  # fmt: skip
    assert f"all {2 * len(trained) + 5} comparisons are within their tolerance" in printed


def test_a_gpu_that_is_not_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--device", "cuda"]) == 2
    assert capsys.readouterr().err == "pvn: --device: found cuda, expected cpu: PyTorch sees no CUDA device here\n"


def test_a_device_that_is_wrong_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """One whose heads are off by a hundredth, and one whose random networks are."""
    heads, networks = TaskHeads._taken_of_all, RandomNetworks.forward

    def taken(self: Any, features: Any, action: Any) -> Any:
        return heads(self, features, action) * 1.01

    def forward(self: Any, obs: Any) -> Any:
        return networks(self, obs) * (1.5 if obs.device.type != "cpu" else 1)

    monkeypatch.setattr(TaskHeads, "_taken_of_all", taken)
    monkeypatch.setattr(RandomNetworks, "forward", forward)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a pretended one")
    with pretended("cuda", monkeypatch):
        assert main(["check", "--device", "cuda", "--steps", "1"]) == 2
    said = capsys.readouterr()
    assert "a pretended one" in said.out
    wrong = [line.split()[0] for line in said.out.splitlines() if line.endswith("WRONG")]
    assert {"pvn", "cumulants", "reward"} <= set(wrong)
    assert not {"bc", "laplacian", "spr", "agent"} & set(wrong)
    assert "indicator rni in float32" in said.err
    assert "hash" not in said.err
    assert said.err.startswith("pvn: --device: cuda is not good: ")


def test_a_number_that_is_none_is_not_good() -> None:
    assert command.Compared("x", "float32", (0.1, 0.2), (0.1, 0.2), 1, 1, "a second").good
    assert not command.Compared("x", "float32", (0.1, float("nan")), (0.1, 0.2), 1, 1, "a second").good
