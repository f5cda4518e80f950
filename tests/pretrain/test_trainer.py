"""The trainer's public face: what `run` does is what its parts do, one after another."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from protovalue.data.dataset import Dataset
from protovalue.errors import UserError
from protovalue.nets.layers import Dense
from protovalue.pretrain.loop import probe_of
from protovalue.pretrain.method_configs import BcConfig
from protovalue.pretrain.trainer import Trainer, damping
from protovalue.runs import Run, read_checkpoint, read_metrics
from protovalue.tabular.gridworlds import open_grid
from tests.pretrain.helpers import made, successors, walks


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return walks(tmp_path_factory.mktemp("walk") / "set", successors(open_grid(4, 4)), 20, 9)


@pytest.fixture
def config(data: Dataset, tmp_path: Path) -> BcConfig:
    return BcConfig(
        out=tmp_path / "run", data=(data.folders[0].path,), architecture="minatar", steps=5, batch_size=16, threads=1,
        log_every=2, checkpoint_every=3,
    )  # fmt: skip


def trainer(config: Any, data: Any, run: Any, device: str = "cpu") -> Trainer:
    return Trainer(made(config, data), run, probe_of(data, data.env_id, "cpu"), device, quiet=True)


def learned(folder: Any) -> dict[Any, Any]:
    return {name: array.tobytes() for name, array in read_checkpoint(folder).tensors.items()}


def logged(folder: Any) -> list[Any]:
    return [{k: v for k, v in row.items() if k not in ("time", "samples_per_second")} for row in read_metrics(folder)]


def test_step_by_step_is_a_run(config: BcConfig, data: Dataset, tmp_path: Path) -> None:
    """Log lines at 2, 4 and the end, checkpoints at 3 and the end; by hand, and gone on from a checkpoint, the same."""
    with Run.open(config.out, {}) as run:
        whole = trainer(config, data, run)
        assert (whole.taken, whole.steps) == (0, 5)
        whole.run()
        assert whole.taken == 5
    assert [row["step"] for row in read_metrics(config.out)] == [2, 4, 5]
    assert sorted(entry.name[-1] for entry in (config.out / "checkpoints").glob("step-*")) == ["3", "5"]
    with Run.open(tmp_path / "hand", {}) as run:
        one = trainer(config, data, run)
        for step in range(3):
            one.step(one.method.sample(step))
            if step == 1:
                one.log()
        one.save()
    with Run.open(tmp_path / "hand", {}) as run:
        other = trainer(config, data, run)
        assert run.resumed_from is not None
        other.restore(run.resumed_from)
        assert other.taken == 3
        for step in (3, 4):
            other.step(other.method.sample(step))
            other.log()
        other.save()
    assert learned(tmp_path / "hand") == learned(config.out)
    assert logged(tmp_path / "hand") == logged(config.out)
    assert other.summary() == whole.summary()
    assert "samples_per_second" not in whole.summary()


def test_metrics_are_of_the_last_step_and_write_nothing(config: BcConfig, data: Dataset) -> None:
    with Run.open(config.out, {}) as run:
        one = trainer(config, data, run)
        sample = one.method.sample(0)
        expected = one.method.loss(sample)[0]
        gradients = torch.autograd.grad(expected, list(one.method.parameters()))
        one.step(sample)
        found = one.metrics()
    assert found["loss"] == pytest.approx(float(expected.detach()), rel=1e-6)
    assert found["gradient_norm"] == pytest.approx(float(torch.cat([g.flatten() for g in gradients]).norm()), rel=1e-5)
    sizes = torch.cat([g.flatten() for g in gradients]).abs()
    shares = 1.5e-4 / (sizes[sizes > 0] + 1.5e-4)  # after one step Adam's second moments are those of one gradient
    assert found["adam_damping"] == pytest.approx(float(shares.mean()), rel=1e-4)
    assert read_metrics(config.out) == []


def test_the_bar_counts_steps(config: BcConfig, data: Dataset, capsys: pytest.CaptureFixture[str]) -> None:
    with Run.open(config.out, {}) as run:
        Trainer(made(config, data), run, probe_of(data, data.env_id, "cpu"), "cpu").run()
    assert "pretrain bc (1 thread): 5/5 steps" in capsys.readouterr().err


@pytest.mark.parametrize("look", ["log", "save", "metrics"])
def test_away_from_the_cpu_a_loss_is_looked_at_when_something_is_written(
    config: BcConfig, data: Dataset, look: str
) -> None:
    """To look at it in every step would be to wait for the device; the first bad step is named all the same."""
    with Run.open(config.out, {}) as run:
        one = trainer(config, data, run, device="cpu:0")  # the same place by another name
        sample = one.method.sample(0)
        one.step(sample)
        one.save()
        with torch.no_grad():
            head = one.method.head
            assert isinstance(head, Dense)
            head.weight.fill_(torch.nan)
        one.step(sample)
        one.step(sample)
        with pytest.raises(UserError, match="the loss of step 2 is not finite; the checkpoint of step 1 is good"):
            getattr(one, look)()


def test_precision_that_was_left_open_is_that_of_the_device(
    config: BcConfig, data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = []
    with Run.open(config.out, {}) as run:
        one = trainer(replace(config, precision="auto"), data, run)
        real = one.method.in_precision

        def noted(precision: Any) -> Any:
            used.append(precision)
            return real(precision)

        monkeypatch.setattr(one.method, "in_precision", noted)
        one.step(one.method.sample(0))
    assert used == ["float32"]


def test_how_much_of_adams_denominator_is_epsilon() -> None:
    """By hand: a gradient g again and again has v = g^2 without its bias: a share of epsilon / (g + epsilon)."""
    weight, bias, unused = (torch.nn.Parameter(torch.zeros(size)) for size in (3, 1, 5))
    optimizer = torch.optim.Adam([weight, bias, unused], 0.1, (0.9, 0.999), 0.5)
    assert damping(optimizer) == 0.0, "before the first step"
    for _ in range(4):
        weight.grad, bias.grad = torch.tensor([1.5, 0.0, -0.5]), torch.tensor([2.0])
        optimizer.step()
    # 0.5 / 2, nothing for the number without a gradient, 0.5 / 1; 0.5 / 2.5
    assert damping(optimizer) == pytest.approx((0.25 + 0.5 + 0.2) / 3, rel=1e-5)


def test_a_large_tensor_counts_by_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """One hundred numbers, of which every tenth is looked at, weigh as much as they would if all were."""
    monkeypatch.setattr("protovalue.pretrain.trainer._LOOKED_AT", 10)
    large, small = torch.nn.Parameter(torch.zeros(100)), torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.Adam([large, small], 0.1, (0.9, 0.999), 1.0)
    large.grad, small.grad = torch.full((100,), 1.0), torch.full((2,), 3.0)
    optimizer.step()
    assert damping(optimizer) == pytest.approx((100 * 0.5 + 2 * 0.25) / 102, rel=1e-5)
