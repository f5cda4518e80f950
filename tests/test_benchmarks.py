"""Benchmarks that compare two ways of the same: the two must agree before their times mean anything."""

import importlib.util
from pathlib import Path

import torch

from protovalue.indicators.registry import make_indicator
from tests.pretrain.helpers import atari_shaped


def test_shared_patches_are_compared_with_the_same_networks(tmp_path: Path) -> None:
    """With normalised inputs, as the pass has them by default; the benchmark itself refuses other outputs."""
    path = Path(__file__).parents[1] / "benchmarks" / "pretrain.py"
    spec = importlib.util.spec_from_file_location("pretrain_benchmark", path)
    assert spec is not None
    assert spec.loader is not None
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    data = atari_shaped(tmp_path / "data")
    indicator = make_indicator(
        "rni", data.observation_shape, 3, 0.3, torch.Generator(), channel_mean=[0.4], channel_std=[0.1]
    )
    assert benchmark.shared_patches(data, indicator)["shared_speed"] > 0
