"""Self-predictive representations: parts by hand, time that matters, what ends with an episode, what is kept."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from protovalue.data.format import End
from protovalue.encoder import load_encoder
from protovalue.files import read_json, write_json
from protovalue.losses import latent_loss
from protovalue.nets.layers import flatten, renormalize
from protovalue.pretrain.loop import pretrain
from protovalue.pretrain.spr import SelfPredictive, SprConfig, Transition, centered, shifted
from protovalue.runs import read_metrics, read_run
from protovalue.tabular.gridworlds import open_grid
from tests.data.helpers import MadeUp, write
from tests.pretrain.helpers import SIZE, atari_shaped, successors, trained, walks


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return walks(tmp_path_factory.mktemp("walk") / "set", successors(open_grid(4, 4)), 200, 12)


@pytest.fixture
def config(data, tmp_path):
    return SprConfig(
        out=tmp_path / "run", data=(data.folders[0].path,), encoder="minatar", steps=250, batch_size=32,
        learning_rate=3e-3, channels=16, horizon=3, shift=0, intensity=0.0, dropout=0.0, target_ema=0.9, threads=1,
        log_every=10,
    )  # fmt: skip


def test_loss_by_hand():
    """Two segments of two steps. Distances of unit vectors: equal 0, at right angles 2, opposite 4; at 60 degrees 1."""
    prediction = torch.tensor([[[2.0, 0.0], [3.0, 0.0]], [[1.0, 0.0], [5.0, 0.0]]], requires_grad=True)
    target = torch.tensor([[[7.0, 0.0], [0.0, 1.0]], [[0.5, math.sqrt(3) / 2], [-9.0, 0.0]]], requires_grad=True)
    everything = torch.ones(2, 2, dtype=torch.bool)
    assert latent_loss(prediction, target, everything).item() == pytest.approx((0 + 2 + 1 + 4) / 4)
    ended = torch.tensor([[True, True], [True, False]])
    loss = latent_loss(prediction, target, ended)
    assert loss.item() == pytest.approx((0 + 2 + 1) / 3)
    loss.backward()
    assert target.grad is None
    assert prediction.grad[1, 1].tolist() == [0, 0], "no gradient from a step that does not exist"
    assert prediction.grad[1, 0].abs().sum() > 0


def test_centered_by_hand():
    """The mean of 1, 2 and 6 is 3; the 90 is of a step that does not exist."""
    x = torch.tensor([[[1.0], [2.0]], [[6.0], [90.0]]])
    found = centered(x, torch.tensor([[True, True], [True, False]]))
    assert found.flatten().tolist() == [-2, -1, 3, 87]


def test_renormalize_by_hand():
    assert renormalize(torch.tensor([[2.0, 4.0, 6.0], [5.0, 5.0, 5.0]])).tolist() == [[0, 0.5, 1], [0, 0, 0]]


def test_shift_is_padding_by_replication_and_cropping():
    obs = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (3, 2, 5, 6), np.uint8))
    by = torch.tensor([[0, 0], [2, -3], [-1, 1]])
    padded = torch.nn.functional.pad(obs.float(), (3, 3, 3, 3), mode="replicate")
    expected = [padded[i, :, 3 + dy : 8 + dy, 3 + dx : 9 + dx] for i, (dy, dx) in enumerate(by.tolist())]
    assert torch.equal(shifted(obs, by).float(), torch.stack(expected))
    colours = obs[..., None].repeat(1, 1, 1, 1, 3)
    assert torch.equal(shifted(colours, by)[..., 1], shifted(obs, by))


def test_transition_sees_the_action_and_gives_latents():
    model = Transition(4, 3, 8, torch.Generator().manual_seed(0))
    z = torch.rand(2, 4, 5, 6, generator=torch.Generator().manual_seed(1))
    after = model(z, torch.tensor([0, 2]))
    assert after.shape == z.shape
    assert after.flatten(1).amin(1).tolist() == [0, 0]
    assert after.flatten(1).amax(1).tolist() == [1, 1]
    assert not torch.allclose(after, model(z, torch.tensor([1, 2])))


def shuffled(path, source):
    """Write the same episodes with each one's frames in random order."""
    rng, made = np.random.default_rng(1), []
    for index in range(source.num_episodes):
        episode = source.episode(index)
        frames = episode.frames[rng.permutation(len(episode.frames))]
        made.append(MadeUp(frames, episode.actions, episode.rewards, episode.end))
    return write(path, made, frame_shape=(SIZE, SIZE), frame_dtype="bool", stack=1, num_actions=4, env_options={})


def test_it_beats_shuffled_time(data, config, tmp_path):
    """In the grid the next state follows from state and action; with time shuffled there is nothing to predict."""
    pretrain(config, quiet=True)
    shuffled(tmp_path / "shuffled", data)
    pretrain(replace(config, out=tmp_path / "other", data=(tmp_path / "shuffled",)), quiet=True)
    ours, control = ([line["loss"] for line in read_metrics(out)] for out in (config.out, tmp_path / "other"))
    assert np.mean(ours[-5:]) < 0.5 * np.mean(control[-5:])
    assert np.mean(ours[-5:]) < 0.25 * ours[0]
    last = read_metrics(config.out)[-1]
    assert last["loss"] < 0.5 * last["loss_of_other_states"], "it tells one segment's future from another's"
    assert read_run(config.out)["done"]["effective_rank"] > 5, "not by collapse: there are 16 states"


def test_what_follows_an_episodes_end_counts_for_nothing(tmp_path, config):
    """One episode of two steps, K = 3: the third step's frames and action may be anything."""
    frames = np.zeros((3, SIZE, SIZE), bool)
    frames[np.arange(3), 0, np.arange(3)] = True
    episode = MadeUp(frames, np.array([1, 2], np.int32), np.zeros(2, np.float32), End.TERMINATED)
    data = write(
        tmp_path / "one",
        [episode],
        frame_shape=(SIZE, SIZE),
        frame_dtype="bool",
        stack=1,
        num_actions=4,
        env_options={},
    )
    method = trained(replace(config, data=(tmp_path / "one",), steps=1), data)
    sample = method.sample(0)
    first = sample["valid"][:, 1]  # the segments that begin at x_0
    assert sample["valid"].tolist() == [[True, bool(it), False] for it in first]
    before, _ = method.loss(sample)
    after_end = torch.where(first, 3, 2)
    for row, k in enumerate(after_end.tolist()):
        sample["frames"][row, k:] = True
    sample["action"][:, 2] = 3
    assert torch.equal(method.loss(sample)[0], before)
    sample["frames"][:, 1] = True
    assert not torch.equal(method.loss(sample)[0], before)


def test_the_encoder_is_kept_with_its_projection(config, data, tmp_path):
    method = trained(replace(config, steps=5), data)
    encoder = load_encoder(config.out)
    obs = method.sample(0)["frames"][:, :1]
    with torch.no_grad():
        latents = renormalize(method.encoder.convolve(obs.float()))
        expected = latents @ method.encoder.dense.weight.T + method.encoder.dense.bias
    features = encoder.features(obs)
    assert encoder.num_features == 128
    assert torch.allclose(features, expected, atol=1e-6)
    assert float(features.min()) < 0, "a projection is linear"
    # A folder written before there was a choice has no such entry: its features end with a ReLU.
    fields = read_json(config.out / "encoder" / "config.json")
    assert fields.pop("readout") == "projection"
    write_json(config.out / "encoder" / "config.json", fields)
    assert "readout" not in json.loads((config.out / "encoder" / "config.json").read_text())
    raw = method.encoder.convolve(obs.float())
    cut = (raw @ method.encoder.dense.weight.T + method.encoder.dense.bias).clamp_min(0)
    assert torch.allclose(load_encoder(config.out).features(obs), cut, atol=1e-6)


def test_latents_keep_their_places():
    """The planes that the latent model sees are those of the convolution, channel by channel."""
    from protovalue.pretrain.spr import _as_planes

    x = torch.rand(2, 3, 4, 5)
    assert torch.equal(_as_planes(flatten(x), (3, 4, 5)), x)


@pytest.mark.parametrize(
    "change",
    [
        {"horizon": 2},
        {"channels": 8},
        {"shift": 1},
        {"intensity": 0.05},
        {"dropout": 0.5},
        {"target_ema": 0.0},
        {"center": "no"},
        {"max_gradient_norm": 0.01},
        {"seed": 1},
    ],
    ids=str,
)
def test_every_option_changes_the_result(config, tmp_path, change):
    short = replace(config, steps=5)
    pretrain(short, quiet=True)
    pretrain(replace(short, out=tmp_path / "other", **change), quiet=True)
    first, second = ((path / "encoder" / "model.safetensors").read_bytes() for path in (short.out, tmp_path / "other"))
    assert first != second


def test_presets_augment_pixels_but_not_grids(tmp_path):
    for game, expected in (("atari/Pong", (4, 0.05)), ("minatar/breakout", (0, 0.0))):
        for preset in ("paper", "small"):
            found = SelfPredictive.resolve(SprConfig(out=tmp_path, preset=preset), game)
            assert (found.shift, found.intensity) == expected


def test_atari_shaped_augmentation_is_drawn_per_observation(tmp_path):
    data = atari_shaped(tmp_path / "set")
    config = SprConfig(out=tmp_path / "run", data=(tmp_path / "set",), encoder="nature", steps=1, batch_size=6)
    method = trained(config, data)
    sample, again = method.sample(3), method.sample(3)
    assert sample["shift"].shape == (6, 6, 2)
    assert sample["factor"].shape == (6, 6)
    assert int(sample["shift"].min()) == -4
    assert int(sample["shift"].max()) == 4
    assert 0.9 <= float(sample["factor"].min()) < 1 < float(sample["factor"].max()) <= 1.1
    assert all(torch.equal(sample[name], again[name]) for name in sample)
