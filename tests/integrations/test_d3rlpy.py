"""d3rlpy: every transition of a data set is in its MDPDataset, and its networks see the encoder's features."""

from pathlib import Path

import d3rlpy
import numpy as np
import pytest
import torch

import protovalue
from protovalue.data.collect import collect
from protovalue.data.config import CollectConfig
from protovalue.data.dataset import Dataset
from protovalue.data.format import End
from protovalue.encoder import FrozenEncoder, load_encoder, save_encoder
from protovalue.errors import UserError
from protovalue.integrations.d3rlpy import FrozenEncoderFactory, mdp_dataset
from protovalue.nets.encoders import make_encoder


@pytest.fixture
def data(tmp_path: Path) -> Dataset:
    return collect(CollectConfig("minatar/breakout", tmp_path / "set", steps=120, num_envs=3), quiet=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    encoder = make_encoder("minatar", (1, 10, 10, 4), 1, torch.Generator().manual_seed(3))
    about = {"env_id": "minatar/breakout", "summary": {"feature_rms": 0.5}}
    save_encoder(tmp_path / "encoder", encoder, "minatar", 1, about, ["# A card"])
    return tmp_path / "encoder"


def test_every_transition_by_hand(tmp_path: Path) -> None:
    """The counting environment: episode k has 1 + (k mod 4) steps; even ones terminate."""
    data = collect(CollectConfig("gym/Counting-v0", tmp_path / "set", steps=9, num_envs=1), quiet=True)
    assert [End(end).name for end in data.ends] == ["TERMINATED", "TRUNCATED", "TERMINATED", "CUT"]
    found = mdp_dataset(data)
    assert found.transition_count == 9
    assert [episode.transition_count for episode in found.episodes] == [1, 2, 3, 3]
    assert [len(episode) for episode in found.episodes] == [1, 3, 3, 4]
    second = [found.transition_picker(found.episodes[1], step) for step in range(2)]
    for step, one in enumerate(second):  # frame t of episode k is [k, t, last action], and its reward t
        assert one.observation.tolist()[0][:2] == [1, step]
        assert one.next_observation.tolist()[0][:2] == [1, step + 1]
        assert (one.reward.item(), one.terminal) == (step + 1, 0.0)
    third = [found.transition_picker(found.episodes[2], step) for step in range(3)]
    assert [one.terminal for one in third] == [0.0, 0.0, 1.0]


def test_features_are_the_encoder_s(data: Dataset, folder: Path) -> None:
    encoder = load_encoder(folder)
    found = mdp_dataset(data, encoder)
    for number in range(data.num_episodes):
        episode = data.episode(number)
        expected = encoder.features(episode.observations(1)).numpy()
        there = found.episodes[number]
        assert np.array_equal(there.observations, expected[: len(there)])
        assert there.actions[: len(episode.actions), 0].tolist() == episode.actions.tolist()
        assert there.rewards[: len(episode.actions), 0].tolist() == episode.rewards.tolist()
    assert (found.dataset_info.action_size, found.transition_count) == (data.num_actions, data.num_transitions)
    halved = mdp_dataset(data, str(folder), scale="rms")
    assert np.array_equal(halved.episodes[0].observations, found.episodes[0].observations * 2)


@pytest.mark.parametrize("frozen", [True, False])
def test_an_algorithm_on_observations_sees_features(data: Dataset, folder: Path, tmp_path: Path, frozen: bool) -> None:
    factory = FrozenEncoderFactory(str(folder), frozen=frozen)
    config = d3rlpy.algos.DiscreteCQLConfig(batch_size=8, encoder_factory=factory)
    algorithm = config.create(device="cpu:0")
    algorithm.fit(
        mdp_dataset(data), n_steps=3, n_steps_per_epoch=3, show_progress=False,
        logger_adapter=d3rlpy.logging.NoopAdapterFactory(),
    )  # fmt: skip
    network = algorithm.impl.q_function[0].encoder
    before = load_encoder(folder).encoder.state_dict()
    after = network.layer.encoder.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before) == frozen
    obs = data.episode(0).observations(1)[:5]
    if frozen:
        assert torch.equal(network(torch.from_numpy(obs).float()), load_encoder(folder).features(obs))
    algorithm.save(str(tmp_path / "agent.d3"))
    again = d3rlpy.load_learnable(str(tmp_path / "agent.d3"), device="cpu:0")
    assert np.array_equal(again.predict(obs), algorithm.predict(obs))


def test_an_action_stands_beside_the_features(folder: Path) -> None:
    factory = FrozenEncoderFactory(str(folder), scale="rms")
    encoder = factory.create_with_action((1, 10, 10, 4), 3, discrete_action=True)
    obs = np.random.default_rng(0).random((2, 1, 10, 10, 4)) < 0.2
    found = encoder(torch.from_numpy(obs).float(), torch.tensor([[2], [0]]))
    assert torch.equal(found[:, :128], load_encoder(folder).features(obs) * 2)  # divided by 0.5
    assert found[:, 128:].tolist() == [[0, 0, 1], [1, 0, 0]]
    plain = factory.create_with_action((1, 10, 10, 4), 2)(torch.from_numpy(obs), torch.tensor([[0.5, 1.0], [2.0, 3.0]]))
    assert plain[:, 128:].tolist() == [[0.5, 1.0], [2.0, 3.0]]


def test_an_encoder_that_does_not_fit(data: Dataset) -> None:
    other = FrozenEncoder(make_encoder("minatar", (1, 10, 10, 6), 1, torch.Generator()), {})
    with pytest.raises(UserError, match=r"found one for observations \(1, 10, 10, 6\), expected \(1, 10, 10, 4\)"):
        mdp_dataset(data, other)
    with pytest.raises(UserError, match="nowhere: no encoder here"):
        FrozenEncoderFactory("nowhere").create((1, 10, 10, 4))
    assert protovalue.FrozenEncoder is FrozenEncoder
