"""Self-predictive representations: parts by hand, time that matters, what ends with an episode, what is kept."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

from protovalue.data.dataset import Dataset
from protovalue.data.format import End
from protovalue.encoder import load_encoder
from protovalue.errors import UserError
from protovalue.files import read_json, write_json
from protovalue.nets.layers import flatten, renormalize
from protovalue.presets import resolved
from protovalue.pretrain.loop import pretrain
from protovalue.pretrain.method_configs import SprConfig
from protovalue.pretrain.spr import Transition, centered, shifted
from protovalue.runs import read_metrics, read_run
from protovalue.tabular.gridworlds import open_grid
from tests.data.helpers import MadeUp, write
from tests.pretrain.helpers import SIZE, atari_shaped, episodes, made, successors, trained, walks


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return walks(tmp_path_factory.mktemp("walk") / "set", successors(open_grid(4, 4)), 200, 12)


@pytest.fixture
def config(data: Dataset, tmp_path: Path) -> SprConfig:
    return SprConfig(
        out=tmp_path / "run", data=(data.folders[0].path,), architecture="minatar", steps=250, batch_size=32,
        learning_rate=3e-3, channels=16, horizon=3, shift=0, intensity=0.0, dropout=0.0, target_ema=0.9, threads=1,
        log_every=10,
    )  # fmt: skip


def conv(layer: Any, x: Any) -> torch.Tensor:
    return torch.nn.functional.conv2d(x, layer.weight.double(), layer.bias.double(), padding=1)


def scaled(rows: Any) -> torch.Tensor:
    """Move every row to the range from 0 to 1, one at a time; a constant one, as after an episode's end, to 0."""
    return torch.stack([(row - row.min()) / (row.max() - row.min() or 1.0) for row in rows])


def augmented(sample: Any, row: Any, k: Any) -> Any:
    """Return observation k of a segment: rows and columns beyond the border are those of the border; then brighter."""
    picture = sample["frames"][row, k].double()
    height, width = picture.shape
    down, right = sample["shift"][row, k].tolist()
    moved = torch.tensor(
        [[picture[min(max(i + down, 0), height - 1), min(max(j + right, 0), width - 1)] for j in range(width)]
         for i in range(height)]
    )  # fmt: skip
    return moved * sample["factor"][row, k]


def latents(encoder: Any, sample: Any, k: Any) -> Any:
    """Return the scaled latents (B, C, H, W) of the MinAtar encoder: one convolution without padding, ReLU."""
    x = torch.stack([augmented(sample, row, k) for row in range(len(sample["frames"]))])[:, None].double()
    layer = encoder.trunk.convs[0]
    found = torch.nn.functional.conv2d(x, layer.weight.double(), layer.bias.double()).clamp_min(0)
    return scaled(found.flatten(1)).view_as(found)


def projected(encoder: Any, z: Any) -> Any:
    """Apply the dense layer, whose inputs are ordered by place first and channel last."""
    return z.permute(0, 2, 3, 1).flatten(1) @ encoder.dense.weight.T.double() + encoder.dense.bias.double()


def unit_distance(y: Any, z: Any) -> Any:
    return sum((a / y.norm() - b / z.norm()) ** 2 for a, b in zip(y, z, strict=True)).item()


@pytest.mark.parametrize("center", ["yes", "no"])
@torch.no_grad()
def test_loss_by_hand(data: Dataset, config: SprConfig, center: Literal["yes", "no"]) -> None:
    """The whole objective with augmentation and dropout in float64, in plain steps; target and network differ."""
    config = replace(config, batch_size=5, shift=1, intensity=0.1, dropout=0.25, center=center)
    method = made(config, data)
    for parameter in method.target.parameters():
        parameter.mul_(1.25).add_(0.01)
    for parameter in method.transition.norm.parameters():
        parameter.add_(torch.arange(16) / 10)
    sample = method.sample(2)
    assert not bool(sample["valid"].all()), "some segments end early"
    loss, logged = method.loss(sample)

    z = latents(method.encoder, sample, 0)
    kept = sample["kept"].view(5, *z.shape[2:], z.shape[1]).permute(0, 3, 1, 2)
    z = torch.where(kept, z / 0.75, 0.0)
    model, predictions, targets = method.transition, [], []
    for k in (1, 2, 3):
        acting = torch.zeros(5, 4, *z.shape[2:], dtype=torch.double)
        for row in range(5):
            acting[row, sample["action"][row, k - 1]] = 1
        hidden = conv(model.first, torch.cat([z, acting], dim=1)).clamp_min(0)
        mean, variance = hidden.mean(dim=(0, 2, 3)), hidden.var(dim=(0, 2, 3), unbiased=False)
        normal = (hidden - mean[:, None, None]) / (variance[:, None, None] + 1e-5).sqrt()
        normal = normal * model.norm.weight[:, None, None] + model.norm.bias[:, None, None]
        after = conv(model.second, normal).clamp_min(0)
        z = scaled(after.flatten(1)).view_as(after)
        linear = method.predictor
        predictions.append(projected(method.encoder, z) @ linear.weight.T.double() + linear.bias.double())
        targets.append(projected(method.target["encoder"], latents(method.target["encoder"], sample, k)))
    there = [(row, k) for row in range(5) for k in range(3) if sample["valid"][row, k]]
    if center == "yes":
        for part in (predictions, targets):
            middle = sum(part[k][row] for row, k in there) / len(there)
            for k in range(3):
                part[k] = part[k] - middle
    own = {(row, k): unit_distance(predictions[k][row], targets[k][row]) for row, k in there}
    assert loss.item() == pytest.approx(np.mean(list(own.values())), rel=1e-4)
    last = [value for (_, k), value in own.items() if k == 2]
    assert logged["loss_of_last_step"].item() == pytest.approx(np.mean(last), rel=1e-4)
    others = [
        unit_distance(predictions[k][row], targets[k][row - 1]) for row, k in there if sample["valid"][row - 1, k]
    ]
    assert logged["loss_of_other_states"].item() == pytest.approx(np.mean(others), rel=1e-4)


def test_what_is_sampled(data: Dataset, config: SprConfig) -> None:
    """Augmentation is drawn for each observation of each segment; a quarter of the latents is dropped."""
    method = made(replace(config, batch_size=200, shift=2, intensity=0.1, dropout=0.25), data)
    sample = method.sample(3)
    assert {name: tuple(tensor.shape) for name, tensor in sample.items()} == {
        "frames": (200, 4, 4, 4), "action": (200, 3), "valid": (200, 3), "shift": (200, 4, 2), "factor": (200, 4),
        "kept": (200, 64),
    }  # fmt: skip
    assert sample["shift"].unique().tolist() == [-2, -1, 0, 1, 2]
    assert sample["kept"].float().mean().item() == pytest.approx(0.75, abs=0.02)
    factor = (sample["factor"] - 1) / 0.1
    assert factor.abs().max().item() == pytest.approx(2)
    assert factor.mean().item() == pytest.approx(0, abs=0.15)
    assert 0.75 < factor.std().item() < 1
    other = method.sample(4)
    assert not any(torch.equal(sample[name], other[name]) for name in ("shift", "factor", "kept"))
    assert method.sample_bytes() == sample["frames"].numel()
    plain = made(config, data).sample(3)
    assert set(plain) == {"frames", "action", "valid"}


def test_its_networks_are_as_large_as_the_config_says(data: Dataset, config: SprConfig) -> None:
    method = made(replace(config, channels=8, width=2, max_gradient_norm=3.0, target_ema=0.0), data)
    assert tuple(method.transition.first.weight.shape) == (16, 32 + 4, 3, 3)
    assert tuple(method.predictor.weight.shape) == (256, 256)
    assert method.max_gradient_norm == 3.0
    with torch.no_grad():
        method.encoder.dense.bias.add_(1)
    method.after_step()
    assert torch.equal(method.target["encoder"].dense.bias, method.encoder.dense.bias), "nothing of the target is kept"


def test_it_cannot_be_compiled(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--compile: found it with --method spr, expected another method"):
        SprConfig(out=tmp_path, compile=True)


def test_centered_by_hand() -> None:
    """The mean of 1, 2 and 6 is 3; the 90 is of a step that does not exist."""
    x = torch.tensor([[[1.0], [2.0]], [[6.0], [90.0]]])
    found = centered(x, torch.tensor([[True, True], [True, False]]))
    assert found.flatten().tolist() == [-2, -1, 3, 87]


def test_renormalize_by_hand() -> None:
    assert renormalize(torch.tensor([[2.0, 4.0, 6.0], [5.0, 5.0, 5.0]])).tolist() == [[0, 0.5, 1], [0, 0, 0]]


def test_shift_is_padding_by_replication_and_cropping() -> None:
    obs = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (3, 2, 5, 6), np.uint8))
    by = torch.tensor([[0, 0], [2, -3], [-1, 1]])
    padded = torch.nn.functional.pad(obs.float(), (3, 3, 3, 3), mode="replicate")
    expected = [padded[i, :, 3 + dy : 8 + dy, 3 + dx : 9 + dx] for i, (dy, dx) in enumerate(by.tolist())]
    assert torch.equal(shifted(obs, by).float(), torch.stack(expected))
    colours = obs[..., None].repeat(1, 1, 1, 1, 3)
    assert torch.equal(shifted(colours, by)[..., 1], shifted(obs, by))


def test_transition_sees_the_action_and_gives_latents() -> None:
    model = Transition(4, 3, 8, torch.Generator().manual_seed(0))
    z = torch.rand(2, 4, 5, 6, generator=torch.Generator().manual_seed(1))
    after = model(z, torch.tensor([0, 2]))
    assert after.shape == z.shape
    assert after.flatten(1).amin(1).tolist() == [0, 0]
    assert after.flatten(1).amax(1).tolist() == [1, 1]
    assert not torch.allclose(after, model(z, torch.tensor([1, 2])))


def shuffled(path: Any, source: Any) -> Dataset:
    """Write the same episodes with each one's frames in random order."""
    rng, made = np.random.default_rng(1), []
    for index in range(source.num_episodes):
        episode = source.episode(index)
        frames = episode.frames[rng.permutation(len(episode.frames))]
        made.append(MadeUp(frames, episode.actions, episode.rewards, episode.end))
    return write(path, made, frame_shape=(SIZE, SIZE), frame_dtype="bool", stack=1, num_actions=4, env_options={})


def test_it_beats_shuffled_time(data: Dataset, config: SprConfig, tmp_path: Path) -> None:
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


def test_what_follows_an_episodes_end_counts_for_nothing(tmp_path: Path, config: SprConfig) -> None:
    """One episode of two steps, K = 3: the third step's frames and action may be anything."""
    data = episodes(tmp_path / "one", ((0, 1, 2), (1, 2), (0, 0), End.TERMINATED), actions=4)
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


def test_the_encoder_is_kept_with_its_projection(config: SprConfig, data: Dataset, tmp_path: Path) -> None:
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


def test_latents_keep_their_places() -> None:
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
def test_every_option_changes_the_result(config: SprConfig, tmp_path: Path, change: dict[str, Any]) -> None:
    short = replace(config, steps=5)
    pretrain(short, quiet=True)
    pretrain(replace(short, out=tmp_path / "other", **change), quiet=True)
    first, second = ((path / "encoder" / "model.safetensors").read_bytes() for path in (short.out, tmp_path / "other"))
    assert first != second


def test_presets_augment_pixels_but_not_grids(tmp_path: Path) -> None:
    for game, expected in (("atari/Pong", (4, 0.05)), ("minatar/breakout", (0, 0.0))):
        for preset in ("paper", "small"):
            found = resolved(SprConfig(out=tmp_path, preset=preset), game)
            assert (found.shift, found.intensity) == expected


def test_atari_shaped_augmentation_is_drawn_per_observation(tmp_path: Path) -> None:
    data = atari_shaped(tmp_path / "set")
    config = SprConfig(out=tmp_path / "run", data=(tmp_path / "set",), architecture="nature", steps=1, batch_size=6)
    method = trained(config, data)
    sample, again = method.sample(3), method.sample(3)
    assert sample["shift"].shape == (6, 6, 2)
    assert sample["factor"].shape == (6, 6)
    assert int(sample["shift"].min()) == -4
    assert int(sample["shift"].max()) == 4
    assert 0.9 <= float(sample["factor"].min()) < 1 < float(sample["factor"].max()) <= 1.1
    assert all(torch.equal(sample[name], again[name]) for name in sample)
