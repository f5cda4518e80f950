"""Benchmarks that compare two ways of the same: the two must agree before their times mean anything."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from protovalue.cli import main
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
