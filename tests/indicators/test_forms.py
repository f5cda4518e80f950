"""The networks of the indicators, as the command line says them: in the key of the cache, in the bits, or refused."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from protovalue.data.collect import collect
from protovalue.data.config import CollectConfig
from protovalue.data.dataset import Dataset
from protovalue.data.sampler import Sampler
from protovalue.errors import UserError
from protovalue.indicators import precompute
from protovalue.indicators.precompute import IndicatorSpec, indicator_rewards

RNI = IndicatorSpec("rni", tasks=13, proportion=0.1, seed=3, tasks_per_module=5)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    config = CollectConfig("minatar/breakout", tmp_path_factory.mktemp("d") / "set", steps=600)
    return collect(config, quiet=True)


def test_keys_of_caches_stay_as_they_are() -> None:
    """Of the cache's format 2; a choice that is not made, of network and output, is not in them."""
    data: Any = SimpleNamespace(checksum="c" * 64, stack=4, observation_shape=(4, 10, 10, 4))
    keys = {
        IndicatorSpec("rni", 100, 0.01, 3, normalize=True): "17d6694eb4d358c55ba69f3c9b3a8ed7",
        IndicatorSpec("rni", 10, 0.1, 0, "sgd", 500, False, 3): "f9868965aa2ac43a4e0c7cda5ec9b17d",
        IndicatorSpec("hash", 10, 0.1, 0): "d5f60cd94af57817fecacb30e9115d91",
    }
    assert {spec: precompute.cache_key(data, spec) for spec in keys} == keys
    networks: tuple[Literal["dqn", "convolutions"], ...] = ("dqn", "convolutions")
    outputs: tuple[Literal["linear", "relu"], ...] = ("linear", "relu")
    forms = [replace(RNI, network=network, output=output) for network in networks for output in outputs]
    made = {precompute.cache_key(data, form) for form in forms}
    assert len(made) == 4


@pytest.mark.parametrize("network", ["dqn", "convolutions"])
@pytest.mark.parametrize("output", ["linear", "relu"])
def test_the_networks_of_the_paper_s_text_and_of_its_code(
    data: Dataset, tmp_path: Path, network: Literal["dqn", "convolutions"], output: Literal["linear", "relu"]
) -> None:
    """The bits are those of networks that are put together here from the drawn weights."""
    spec = replace(RNI, network=network, output=output)
    found = indicator_rewards(data, spec, tmp_path, quiet=True)
    about = json.loads((tmp_path / precompute.cache_key(data, spec) / precompute.ABOUT).read_bytes())
    assert (about["spec"]["network"], about["spec"]["output"]) == (network, output)
    obs = torch.from_numpy(Sampler(data, 1, 0).transitions(np.arange(300)).obs.copy())
    assert np.array_equal(found.indicator.rewards(obs).numpy(), found.rewards(np.arange(300)))  # as it was loaded
    scores = []
    for module in range(3):  # 13 tasks, 5 to a network
        state = {k: v for k, v in found.indicator.state_dict().items() if k.startswith(f"networks.modules_.{module}.")}
        of = {name.split(".", 3)[3]: value for name, value in state.items()}
        x = F.relu(F.conv2d(obs[:, 0].permute(0, 3, 1, 2).float(), of["trunk.convs.0.weight"]))
        x = x.permute(0, 2, 3, 1).flatten(1)
        assert ("hidden.weight" in of) == (network == "dqn")
        if network == "dqn":
            x = F.relu(x @ of["hidden.weight"].T)
        x = x @ of["omega.weight"].T
        scores.append(x.clamp_min(0) if output == "relu" else x)
    rounded = (torch.cat(scores, dim=1) * 2**18).round() / 2**18
    expected = rounded >= found.indicator.thresholds
    assert (found.rewards(np.arange(300)) != expected.numpy()).mean() < 0.001  # the last bits of a sum may differ
    assert 0.05 < expected.float().mean() < 0.2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"normalize": True}, "--normalize: only random network indicators have it, found indicator"),
        ({"network": "convolutions"}, "--rni-network: only random network indicators have it, found indicator"),
        ({"output": "relu"}, "--rni-output: only random network indicators have it, found indicator"),
        ({"threshold": "sgd", "burn_in": 5}, "--threshold: found sgd with indicator .*, expected exact"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
@pytest.mark.parametrize("indicator", ["hash", "mine.py"])
def test_what_an_indicator_does_not_have_is_refused(
    data: Dataset, tmp_path: Path, indicator: str, changes: dict[str, Any], message: str
) -> None:
    if indicator == "mine.py":
        (tmp_path / indicator).write_text(
            "from protovalue.indicators.hash import HashIndicator\n"
            "class AnotherHash(HashIndicator):\n"
            "    pass\n"
            "INDICATOR = AnotherHash\n"
        )
        indicator = str(tmp_path / indicator)
    with pytest.raises(UserError, match=message):
        indicator_rewards(data, IndicatorSpec(indicator, 3, 0.1, 0, **changes), tmp_path / "cache", quiet=True)
    assert not (tmp_path / "cache").exists()
