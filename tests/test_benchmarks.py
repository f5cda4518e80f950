"""Benchmarks that compare two ways of the same: the two must agree before their times mean anything."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from protovalue.cli import main
from protovalue.errors import UserError
from protovalue.indicators.registry import make_indicator
from protovalue.pretrain.method_configs import PvnConfig
from protovalue.pretrain.trainer import Trainer
from protovalue.report.galleries import look
from protovalue.report.reading import read_results
from tests.pretrain.helpers import atari_shaped, made


def load(name: str) -> Any:
    """Load benchmarks/NAME.py as `pvn bench` does."""
    path = Path(__file__).parents[1] / "benchmarks" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"{name}_benchmark", path)
    assert spec is not None
    assert spec.loader is not None
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    return benchmark


def test_shared_patches_are_compared_with_the_same_networks(tmp_path: Path) -> None:
    """With normalised inputs, as the pass has them by default; the benchmark itself refuses other outputs."""
    data = atari_shaped(tmp_path / "data")
    indicator = make_indicator(
        "rni", data.observation_shape, 3, 0.3, torch.Generator(), channel_mean=[0.4], channel_std=[0.1]
    )
    assert load("pretrain").shared_patches(data, indicator)["shared_speed"] > 0


def test_the_step_in_jax_is_ours(tmp_path: Path) -> None:
    """Same parameters: the same scores and loss; and after a step of Adam and of the moving average, the same again."""
    pytest.importorskip("jax")
    benchmark = load("reference")
    data = atari_shaped(tmp_path / "data", 24)
    config = PvnConfig(
        out=tmp_path / "run", data=(data.folders[0].path,), cache=tmp_path / "cache", tasks=6, tasks_per_module=3,
        proportion=0.3, batch_size=8, normalize="no", target_ema=0.5, learning_rate=1e-3,
    )  # fmt: skip
    method = made(config, data)
    rng = np.random.default_rng(0)
    with torch.no_grad():  # biases are drawn as 0, with which half of the arithmetic could be wrong
        for name, parameter in method.named_parameters():
            if name.endswith("bias"):
                parameter.copy_(torch.from_numpy(rng.normal(0, 0.1, parameter.shape).astype(np.float32)))
    method.target = type(method.target)({"encoder": method.encoder, "heads": method.heads}, 0.5)
    samples = [method.sample(number) for number in range(2)]
    for sample in samples:
        sample["terminal"][:3] = True

    indicator = method.sets[0].found.indicator
    indicators = benchmark.indicators_of(indicator)
    batches = [benchmark.batch_of(sample) for sample in samples]
    seen = [indicator.scores(sample["frames"][:, :-1]).numpy() for sample in samples]
    for batch, expected in zip(batches, seen, strict=True):
        np.testing.assert_allclose(benchmark.scores(indicators["networks"], batch["obs"]), expected, atol=1e-5)
    # A threshold is the score of some state: between it and the next lower one rounding decides nothing.
    scores, rewards = np.concatenate(seen), np.concatenate([sample["reward"].numpy() for sample in samples])
    above = np.where(rewards, scores, np.inf).min(axis=0)
    below = np.where(rewards, -np.inf, scores).max(axis=0)
    assert (above - below > 1e-4).all()
    indicators["thresholds"] = ((above + below) / 2).astype(np.float32)

    trainer = Trainer(method, None, None, "cpu", quiet=True)
    state, step = benchmark.state_of(method), benchmark.step_of(method)
    for sample, batch in zip(samples, batches, strict=True):
        ours = float(method.loss(sample)[0].detach())
        trainer.step(sample)
        state, theirs = step(state, indicators, batch)
        assert float(theirs) == pytest.approx(ours, rel=1e-5)
    for name in ("encoder", "heads"):
        assert not torch.equal(next(method.target[name].parameters()), next(getattr(method, name).parameters()))
    kernel, bias = state["target"]["heads"]
    np.testing.assert_allclose(kernel, method.target["heads"].weight.numpy().transpose(2, 1, 0), atol=1e-5)
    np.testing.assert_allclose(bias, method.target["heads"].bias.numpy().T, atol=1e-5)


def test_the_study_that_reports_are_timed_on_has_no_gap(tmp_path: Path) -> None:
    study = load("report").main_study(tmp_path, ("breakout",), ("pvn",))
    results = read_results([tmp_path])
    assert (results.methods, results.missing, results.end_to_end) == (("pvn", "dqn"), (), "dqn")
    assert {method: games["minatar/breakout"].shape for method, games in results.scores().items()} == {
        "pvn": (3, 3),  # encoders and their agents
        "dqn": (3, 1),
    }
    assert len(study.stages) == 3 * 3 + 3 * 2
    looked = look(results, quiet=True)
    assert [(one.method, one.encoders, one.num_features) for one in looked.features] == [("pvn", 3, 128)]


def test_without_jax_the_benchmark_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    assert main(["bench", "reference"]) == 2
    said = "pvn: pvn bench reference: found no JAX in this environment, expected it: pip install jax\n"
    assert capsys.readouterr().err == said


OFFLINE = """
import tensorflow
from clu import metric_writers, periodic_actions
from jax.experimental import maps
from pvn.datasets import atari

assert maps.thread_resources.env.physical_mesh.empty
create_dataset = atari.create_dataset


class State:
    def __init__(self, step):
        self.step = step

    def replace(self, step):
        return State(step)


class TrainMetrics:
    def __init__(self, losses):
        self.losses = losses

    empty = classmethod(lambda cls: cls([]))
    tde_loss = property(lambda self: self)

    def compute(self):
        return sum(self.losses) / len(self.losses)


RNDIndicatorMetrics = TrainMetrics


def create_train_state_with_optional_mesh(element_spec, *, mesh, config, rng):
    assert (atari.get_num_actions("Pong"), config.encoder.width_multiplier, config.encoder.num_features) == (3, 1, 512)
    assert config.offline.num_auxiliary_tasks == 20
    assert element_spec["observation"] == ((84, 84, 4, config.offline.batch_size), "uint8")
    return State(0)


def create_indicator_state_with_optional_mesh(element_spec, *, mesh, config, rng):
    return State(0)


def jit_train_step_with_optional_mesh(element_spec, train_state, indicator_state, *, mesh):
    def step(train_state, indicator_state, batch, train_metrics, indicator_metrics, config):
        assert hash(config) and indicator_state.step > config.offline.indicator.num_qr_warmup_steps
        seen.append(batch)
        losses = [*train_metrics.losses, 1.0 if len(seen) < 4 else float("nan")]
        return State(train_state.step + 1), State(indicator_state.step + 1), TrainMetrics(losses), indicator_metrics

    return step


seen = []
"""
DSM = """
from types import SimpleNamespace as Settings


def get_config():
    indicator = Settings(num_qr_warmup_steps=62_500)
    return Settings(encoder=Settings(width_multiplier=8.0, num_features=4096), offline=Settings(indicator=indicator))
"""


def test_the_code_of_a_checkout_is_driven_as_its_own_training_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkout here is a few lines of ours with the reference's names, and JAX and Flax are stood in for, too.

    So this shows what the code is given, and that a loss which is no number is refused; not that the published code
    runs. No test has that: `pvn bench reference --code` itself is the proof.
    """
    for name, text in {"offline.py": OFFLINE, "configs/dsm.py": DSM}.items():
        (tmp_path / "pvn" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "pvn" / name).write_text(text)
    benchmark = load("reference")
    asked: list[tuple[str, bool]] = []
    fakes: dict[str, dict[str, Any]] = {
        "flax": {"config": SimpleNamespace(update=lambda name, value: asked.append((name, value)))},
        "ml_collections": {"FrozenConfigDict": frozen},
        "jax": {"__path__": []},
        "jax.experimental": {"__path__": []},
        "clu": {"__path__": []},
    }
    for name, contents in fakes.items():
        module = ModuleType(name)
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, name, module)
    left = ("tensorflow", "clu.metric_writers", "clu.periodic_actions", "jax.experimental.maps", "pvn", "pvn.offline",
            "pvn.configs", "pvn.configs.dsm", "pvn.datasets", "pvn.datasets.atari")  # fmt: skip
    for name in left:  # so that they are gone afterwards
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
        del sys.modules[name]
    monkeypatch.setattr(sys, "path", list(sys.path))
    random = SimpleNamespace(PRNGKey=lambda seed: seed, split=lambda key: (key, key + 1))
    jax = SimpleNamespace(
        ShapeDtypeStruct=lambda *spec: (spec[0], str(spec[1])), block_until_ready=lambda tree: tree, random=random
    )
    monkeypatch.setattr(benchmark, "jax", jax)

    frames = torch.randint(0, 256, (2, 5, 84, 84), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    samples = [
        {"frames": frames, "action": torch.tensor([2, 0]), "terminal": torch.tensor([False, True])},
        {"frames": frames.flip(0), "action": torch.tensor([1, 1]), "terminal": torch.tensor([False, False])},
    ]
    step = benchmark.code_step(tmp_path, samples, tasks=20, actions=3)
    assert [step()["loss"] for _ in range(3)] == [1, 1, 1]
    assert asked == [("flax_return_frozendict", True)]
    first, second, again = sys.modules["pvn.offline"].seen
    assert first["observation"].shape == (84, 84, 4, 2)
    for b, y, x, frame in ((0, 3, 80, 0), (1, 50, 7, 3)):
        assert first["observation"][y, x, frame, b] == frames[b, frame, y, x]
        assert first["next_observation"][y, x, frame, b] == frames[b, frame + 1, y, x]
    assert first["action"].tolist() == [[0, 0, 1], [1, 0, 0]]
    assert first["terminal"].tolist() == [[False], [True]]
    assert second["action"].tolist() == [[0, 1, 0], [0, 1, 0]]
    assert again["action"].tolist() == first["action"].tolist()
    with pytest.raises(RuntimeError, match="the mean loss of 4 steps of the reference's code is nan"):
        step()


def frozen(config: Any) -> Any:
    """Stand in for the settings that cannot change any more: they have a hash."""
    return type("Frozen", (), vars(config))()


def test_code_is_refused_where_it_cannot_be_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "reference", "--code", str(tmp_path)]) == 2
    said = f"pvn: --code {tmp_path}: found no pvn/offline.py in it, expected a checkout of google-research\n"
    assert capsys.readouterr().err == said
    (tmp_path / "pvn").mkdir()
    (tmp_path / "pvn" / "offline.py").touch()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name in ("clu", "flax") else name)
    with pytest.raises(
        UserError, match="^--code: found no clu, flax in this environment, .*: pip install chex clu tqdm$"
    ):
        load("reference").check_code(tmp_path)
    assert main(["bench", "data", "--code", str(tmp_path)]) == 2
    assert "--code: found it for data, expected it for no benchmark but reference" in capsys.readouterr().err
