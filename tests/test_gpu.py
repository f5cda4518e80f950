"""The path of a GPU, rehearsed on a pretended device: whole commands, their numbers, and what waits (docs/gpu.md)."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from protovalue.data.dataset import Dataset
from protovalue.device import choose_device, pinning, put
from protovalue.evaluate import episodes
from protovalue.evaluate.config import EvaluateConfig
from protovalue.indicators import precompute
from protovalue.indicators.precompute import IndicatorSpec, indicator_rewards
from protovalue.indicators.registry import make_indicator
from protovalue.nets.encoders import make_encoder
from protovalue.nets.statistics import feature_statistics
from protovalue.online.agent import Agent
from protovalue.online.config import DqnConfig, OnlineConfig
from protovalue.online.dqn import train_dqn
from protovalue.online.linear_dqn import train_online
from protovalue.online.loop import Loop
from protovalue.pretrain.config import PretrainConfig
from protovalue.pretrain.loop import pretrain
from protovalue.pretrain.methods import method_names
from protovalue.pretrain.target import TargetNetwork
from protovalue.pretrain.trainer import Trainer
from protovalue.registry import ENCODERS
from protovalue.runs import read_checkpoint, read_run
from protovalue.tabular.gridworlds import open_grid
from tests.pretended import Device, pretended
from tests.pretrain.helpers import successors, walks
from tests.pretrain.test_precision import CONFIGS

EVERY = {**CONFIGS, "pvn copying": (CONFIGS["pvn"][0], {**CONFIGS["pvn"][1], "target_every": 2, "target_ema": None})}
ONLINE: dict[str, dict[str, Any]] = {
    "linear": {"kind": OnlineConfig},
    "double": {"kind": OnlineConfig, "double": True, "huber": True},
    "c51": {"kind": OnlineConfig, "head": "c51", "hidden": (5,)},
    "prioritised": {"kind": OnlineConfig, "prioritised": True},
    "finetune": {"kind": OnlineConfig, "finetune": True, "double": True},
    "dqn": {"kind": DqnConfig, "architecture": "minatar", "width": 0.25},
    "dqn c51": {"kind": DqnConfig, "architecture": "minatar", "width": 0.25, "head": "c51"},
}
SEEN = "linear_dqn.py: return features[:, 0].cpu().numpy().astype(self._dtype), features [to the CPU]"
CHOSEN = "agent.py: best: Index = self.values(features)[:, 0].argmax(dim=1).cpu().numpy() [to the CPU]"
ERRORS = 'loop.py: self._priorities.update(slot, result["loss"].cpu().numpy()) [to the CPU]'


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("walk") / "set"
    return walks(folder, successors(open_grid(4, 4)), 40, 9, reward=lambda state: state / 10, ends=(15,))


@pytest.fixture
def config(request: pytest.FixtureRequest, data: Dataset, tmp_path: Path) -> PretrainConfig:
    kind, settings = EVERY[request.param]
    cached: dict[str, Any] = {"cache": tmp_path / "cache"} if hasattr(kind, "cache") else {}
    return kind(
        out=tmp_path / "run", data=(data.folders[0].path,), architecture="minatar", batch_size=16, steps=3, threads=1,
        log_every=2, checkpoint_every=2, precision="float32", **cached, **settings,
    )  # fmt: skip


def on_device(config: PretrainConfig, folder: Path, kind: Any = "cuda") -> PretrainConfig:
    """Return the same on a device, where nothing that the CPU has computed is found."""
    own: dict[str, Any] = {"cache": folder / "own"} if hasattr(config, "cache") else {}
    return replace(config, device=kind, **own)


def watched(patch: pytest.MonkeyPatch, device: Device, cls: type, name: str) -> list[list[str]]:
    """Return a list that will hold what waited in each call of a method."""
    found: list[list[str]] = []
    real: Callable[..., Any] = getattr(cls, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        before = len(device.waits)
        result = real(*args, **kwargs)
        found.append(device.waits[before:])
        return result

    patch.setattr(cls, name, call)
    return found


def alike(first: Path, second: Path, tolerance: float = 1e-5) -> None:
    """Compare the last checkpoints of two runs."""
    one, other = (read_checkpoint(path).tensors for path in (first, second))
    assert one.keys() == other.keys()
    for name, expected in one.items():
        np.testing.assert_allclose(other[name], expected, rtol=tolerance, atol=tolerance, err_msg=name)


def test_every_method_is_rehearsed() -> None:
    assert {name.split()[0] for name in EVERY} | {"random"} == set(method_names())


@pytest.mark.parametrize("config", EVERY, indirect=True)
def test_pretraining_is_that_of_the_cpu_and_no_step_waits(
    config: PretrainConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Float32, from the indicators to the encoder: the same numbers to rounding, resumed on the way."""
    pretrain(replace(config, out=tmp_path / "cpu", device="cpu"), quiet=True)
    config = on_device(config, tmp_path)
    with pretended("cuda", monkeypatch) as device:
        waits = watched(monkeypatch, device, Trainer, "step")
        pretrain(replace(config, steps=2), quiet=True)
        pretrain(config, quiet=True)
    assert waits == [[], [], []]
    alike(tmp_path / "cpu", config.out)
    one, other = (read_run(path)["done"] for path in (tmp_path / "cpu", config.out))
    assert other["effective_rank"] == pytest.approx(one["effective_rank"], rel=1e-4)
    assert other["loss"] == pytest.approx(one["loss"], rel=1e-4)


@pytest.mark.parametrize("config", EVERY, indirect=True)
def test_pretraining_in_bfloat16_is_that_of_the_cpu_and_no_step_waits(
    config: PretrainConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Auto is bfloat16 on CUDA; the pretended device rounds as the CPU does."""
    config = replace(config, steps=1)
    pretrain(replace(config, out=tmp_path / "cpu", device="cpu", precision="bfloat16"), quiet=True)
    with pretended("cuda", monkeypatch) as device:
        waits = watched(monkeypatch, device, Trainer, "step")
        pretrain(replace(on_device(config, tmp_path), precision="auto"), quiet=True)
    assert waits == [[]]
    assert read_run(config.out)["config"]["precision"] == "bfloat16"
    one, other = (read_run(path)["done"] for path in (tmp_path / "cpu", config.out))
    assert other["loss"] == pytest.approx(one["loss"], rel=1e-5)
    alike(tmp_path / "cpu", config.out, 1e-4)


@pytest.mark.parametrize("config", ["pvn", "cumulants", "laplacian", "spr"], indirect=True)
def test_apple_s_device_never_sees_float64(
    config: PretrainConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pretrain(replace(config, out=tmp_path / "cpu", device="cpu", steps=1), quiet=True)
    with pretended("mps", monkeypatch):
        pretrain(replace(on_device(config, tmp_path, "mps"), steps=1), quiet=True)
    alike(tmp_path / "cpu", config.out)


@pytest.mark.parametrize("architecture", ["impala", "nature", "der", "minatar"])
def test_every_encoder_takes_a_step_on_the_device(architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward in bfloat16, backward, statistics; only the statistics wait, once."""
    assert {"impala", "nature", "der", "minatar"} == set(ENCODERS.names())
    encoder = make_encoder(architecture, (2, 26, 26), 0.1, torch.Generator().manual_seed(0))
    obs = torch.randint(0, 256, (3, 2, 26, 26), dtype=torch.uint8)
    expected = encoder(obs)
    with pretended("cuda", monkeypatch) as device:
        encoder.to("cuda")
        encoder.precision = "bfloat16"
        there = pinning(lambda step: {"obs": obs}, "cuda")(0)["obs"].to("cuda", non_blocking=True)
        device.waits.clear()
        features = encoder(there)
        assert features.dtype == torch.float32
        features.sum().backward()
        assert all(parameter.grad.is_cuda for parameter in encoder.parameters() if parameter.grad is not None)
        assert device.waits == []
        feature_statistics(features.detach())
        assert device.waits == ['statistics.py: x = features.to("cpu", torch.float32)  # one wait for the device; '
                                "and Apple's has no float64 [to the CPU]"]  # fmt: skip
        assert torch.allclose(features.detach().cpu(), expected, atol=0.05)


def online(name: str, out: Path, device: Any, steps: int = 12) -> Any:
    """Return the settings of agents with few steps."""
    own = {**ONLINE[name]}
    kind = own.pop("kind")
    encoder = {"encoder": "random:minatar:0.25"} if kind is OnlineConfig else {}
    return kind(
        env="minatar/breakout", out=out, device=device, seeds="0,1", steps=steps, replay_min=6, batch_size=4,
        n_step=2, threads=1, log_every=5, checkpoint_every=6, update_every=1, replay_size=50, **encoder, **own,
    )  # fmt: skip


def trained(config: Any) -> None:
    (train_online if isinstance(config, OnlineConfig) else train_dqn)(config, quiet=True)


@pytest.mark.parametrize("name", ONLINE)
def test_agents_are_those_of_the_cpu_and_wait_for_their_actions_only(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A step waits for the action, and for the features where they go into the replay; an update waits for nothing.

    But one with priorities: they are made of its errors.
    """
    trained(online(name, tmp_path / "cpu", "cpu"))
    with pretended("cuda", monkeypatch) as device:
        acts, learns = (watched(monkeypatch, device, Loop, method) for method in ("act", "learn"))
        trained(online(name, tmp_path / "cuda", "cuda"))
        seen = [] if name in ("finetune", "dqn", "dqn c51") else [SEEN]
        assert acts == [[CHOSEN, *seen]] * 12
        assert learns == [[ERRORS] if name == "prioritised" else []] * 7
        played = evaluated(tmp_path / "cuda", monkeypatch, device)
    alike(tmp_path / "cpu", tmp_path / "cuda", 1e-4)
    assert played == evaluated(tmp_path / "cpu", monkeypatch)


def evaluated(run: Path, patch: pytest.MonkeyPatch, device: Device | None = None) -> Any:
    """Play two episodes with the agents of a run; on a device one step waits once."""
    found = []
    if device is not None:
        found = watched(patch, device, Agent, "values")
        device.waits.clear()
    result = episodes.evaluate_run(EvaluateConfig(run=run, episodes=1, epsilon=0.0), quiet=True)
    if device is not None:
        waits = [one for one in device.waits if one.startswith("episodes.py")]
        assert len(waits) == len(found) > 3
        assert not any(found)
    return [(row["returns"], row["lengths"]) for row in result["seeds"]]


@pytest.mark.parametrize("name", ["linear", "finetune", "dqn"])
def test_agents_on_apple_s_device(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    trained(online(name, tmp_path / "cpu", "cpu", steps=8))
    with pretended("mps", monkeypatch):
        trained(online(name, tmp_path / "mps", "mps", steps=8))
    alike(tmp_path / "cpu", tmp_path / "mps", 1e-4)


@pytest.mark.parametrize(("indicator", "kind"), [("rni", "cuda"), ("hash", "cuda"), ("rni", "mps"), ("hash", "mps")])
def test_the_indicator_pass_gives_the_same_bits_and_waits_once_a_batch(
    indicator: str, kind: str, data: Dataset, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    spec = IndicatorSpec(indicator, 12, 0.1, 0)
    monkeypatch.setattr(precompute, "PASS_BATCH", 100)
    here = indicator_rewards(data, spec, tmp_path / "cpu", quiet=True)
    with pretended(kind, monkeypatch) as device:
        there = indicator_rewards(data, spec, tmp_path / kind, kind, quiet=True)
        waits = [one for one in device.waits if "function(states.observations(own, last).to(device)).cpu()" in one]
    batches = -(-data.num_transitions // 100)
    assert batches > 2
    assert len([one for one in waits if "to the CPU" in one]) == batches
    np.testing.assert_array_equal(here.bits, there.bits)


def test_large_frames_are_hashed_exactly_on_every_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their sums need float64, which Apple's device has not."""
    indicator = make_indicator("hash", (4, 84, 84), 3, 0.1, torch.Generator().manual_seed(0))
    obs = torch.randint(0, 256, (5, 4, 84, 84), dtype=torch.uint8)
    expected = indicator.scores(obs)
    for kind in ("cuda", "mps"):
        with monkeypatch.context() as patch, pretended(kind, patch):
            there = indicator.to(kind).scores(obs.to(kind))
            assert there.device.type == kind
            assert torch.equal(there.cpu(), expected)
            indicator.to("cpu")


def test_a_target_that_copies_counts_by_itself_and_after_a_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    net = torch.nn.Linear(1, 1)
    first = TargetNetwork({"net": net}, None, 3)
    first.follow()
    second = TargetNetwork({"net": net}, None, 3)
    second.load_state_dict(first.state_dict())
    with torch.no_grad():
        net.weight.fill_(5)
    second.follow()
    assert second["net"].weight.item() != 5
    second.follow()
    assert second["net"].weight.item() == 5


def test_arrays_go_to_cuda_by_pinned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    array = np.arange(3.0)
    with pretended("cuda", monkeypatch) as device:
        there = put(array, torch.device("cuda"))
        assert device.waits == []
        assert there.cpu().tolist() == [0, 1, 2]
        sample = pinning(lambda step: {"x": torch.full((2,), step)}, "cuda")(7)
        assert sample["x"].is_pinned()
        assert sample["x"].tolist() == [7, 7]
    assert put(array, torch.device("cpu")).data_ptr() == array.ctypes.data, "no copy"
    assert pinning(len, "cpu") is len  # type: ignore[arg-type, comparison-overlap]


@pytest.mark.parametrize("config", ["bc"], indirect=True)
def test_tf32_is_for_the_convolutions_of_a_step_and_asked_for(
    config: PretrainConfig, data: Dataset, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """PyTorch would round to TF32 unasked. The mode holds in the forward and in the backward pass, and nowhere else."""
    noted: list[bool] = []
    flags = torch.backends.cudnn
    monkeypatch.setattr(flags, "allow_tf32", True)

    class Noting(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            noted.append(flags.allow_tf32)
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            noted.append(flags.allow_tf32)
            return gradient

    real, noting = ENCODERS.find("minatar").convolve, cast("Any", Noting.apply)
    monkeypatch.setattr(ENCODERS.find("minatar"), "convolve", lambda self, x: noting(real(self, x)))
    for precision, expected in cast("Any", (("tf32", True), ("float32", False))):
        with monkeypatch.context() as patch, pretended("cuda", patch):
            noted.clear()
            config = replace(on_device(config, tmp_path), precision=precision, steps=1, out=tmp_path / precision)
            pretrain(config, quiet=True)
        assert noted[:2] == [expected, expected]
        assert not any(noted[2:]), "looking at features"
        assert flags.allow_tf32 is False


def test_a_mixture_of_devices_a_forgotten_copy_and_waits_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the pretended device is for: each of these is wrong on a real one, or slow."""
    with pretended("cuda", monkeypatch) as device:
        here, there = torch.ones(3), torch.ones(3, device="cuda")
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            here + there
        with pytest.raises(TypeError, match="can't convert cuda:0 device type tensor to numpy"):
            there.numpy()
        with pytest.raises(RuntimeError, match="expected m1 and m2 to have the same dtype|must have the same dtype"):
            there.to(torch.bfloat16)[None] @ there[:, None]
        assert device.waits == []
        questions: list[Callable[[], Any]] = [
            lambda: there[0].item(), lambda: float(there[0]), lambda: int(there[0]), lambda: bool(there.all()),
            lambda: there.tolist(), lambda: there.cpu(), lambda: there.to("cpu"), lambda: there[there > 0],
            lambda: there.nonzero(), lambda: here.to("cuda"), lambda: here.to("cuda", non_blocking=True),
            lambda: here.pin_memory().to("cuda"), lambda: there.copy_(here), lambda: here.copy_(there),
            lambda: torch.tensor([1.0], device="cuda"), lambda: torch.equal(there, there),
        ]  # fmt: skip
        for number, ask in enumerate(questions, 1):
            ask()
            assert len(device.waits) == number, number
        here.pin_memory().to("cuda", non_blocking=True)
        assert len(device.waits) == len(questions)


def test_devices_that_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    for kind in ("cuda", "mps"):
        with monkeypatch.context() as patch, pretended(kind, patch):
            assert choose_device(cast("Any", kind)) == kind
            assert choose_device("auto") == ("cuda" if kind == "cuda" else "cpu")
    assert torch.backends.cudnn.allow_tf32 is False
