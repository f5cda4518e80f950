"""The random initialisation, with a data set and without one: README's command, and what its result is good for."""

from pathlib import Path

import numpy as np
import pytest

import protovalue
from protovalue.cli import main
from protovalue.data.collect import collect
from protovalue.data.config import CollectConfig
from protovalue.feature_env import feature_scale
from protovalue.nets.statistics import feature_statistics
from protovalue.online import linear_dqn
from protovalue.pretrain.loop import pretrain, probe_of
from protovalue.pretrain.method_configs import RandomConfig
from protovalue.runs import read_run


def test_from_an_environment_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its features are looked at on 512 observations of a random policy: one number scales them for any agent."""
    run = tmp_path / "random"
    assert main(f"pretrain --method random --env minatar/space_invaders --out {run}".split()) == 0
    done = read_run(run)["done"]
    printed = capsys.readouterr().out
    assert printed == f"{run / 'encoder'}: 128 features, effective rank {done['effective_rank']:.1f}\n"
    assert (done["steps"], done["num_features"]) == (0, 128)

    encoder = protovalue.load_encoder(run)
    probe = probe_of(None, "minatar/space_invaders", "cpu").numpy()
    assert probe.shape == (512, 1, 10, 10, 6)
    assert len(np.unique(probe.reshape(512, -1), axis=0)) > 400
    features = encoder.features(probe)
    expected = feature_statistics(features)
    assert expected.keys() == {"effective_rank", "dead_units", "feature_norm", "feature_rms"}
    assert {name: done[name] for name in expected} == pytest.approx(expected)
    assert encoder.about["summary"] == {name: value for name, value in done.items() if name != "sha256"}
    # The same number as that of the encoder that `pvn online --encoder random:minatar:1` makes for itself.
    games = protovalue.make("minatar/space_invaders", 2)
    itself = linear_dqn.find_encoder("random:minatar:1", games)
    assert feature_scale(itself, games) == pytest.approx(done["feature_rms"])

    env = protovalue.FeatureEnv(games, encoder, scale=encoder.about["summary"]["feature_rms"])
    obs, _ = env.reset(seed=0)
    assert 0.3 < np.sqrt(np.mean(obs**2)) < 3


def test_with_data_the_features_are_looked_at_there(tmp_path: Path) -> None:
    collect(CollectConfig("minatar/breakout", tmp_path / "set", steps=300), quiet=True)
    data = protovalue.open_dataset(tmp_path / "set")
    pretrain(RandomConfig(out=tmp_path / "run", data=(tmp_path / "set",)), quiet=True)
    states = data.num_transitions
    assert states < 512
    index = [round(i * (states - 1) / 511 - 0.499999) for i in range(512)]  # evenly spread from the first to the last
    obs = protovalue.Sampler(data, 1, 0).transitions(np.array(index)).obs
    rms = float(protovalue.load_encoder(tmp_path / "run").features(obs.copy()).square().mean().sqrt())
    assert read_run(tmp_path / "run")["done"]["feature_rms"] == pytest.approx(rms)
