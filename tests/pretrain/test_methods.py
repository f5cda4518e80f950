"""What holds for every method: MinAtar and Atari data, the same start, diagnostics and kind of folder."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from protovalue.data.collect import collect
from protovalue.data.config import CollectConfig
from protovalue.data.dataset import open_dataset
from protovalue.data.sampler import Sampler
from protovalue.encoder import load_encoder
from protovalue.errors import UserError
from protovalue.nets.encoders import make_encoder
from protovalue.presets import resolved
from protovalue.pretrain.loop import pretrain
from protovalue.pretrain.method_configs import CONFIGS, config_class
from protovalue.pretrain.methods import method_class, method_names
from protovalue.randomness import Purpose, seeded
from protovalue.runs import read_metrics, read_run
from tests.pretrain.helpers import atari_shaped

DIAGNOSTICS = {"loss", "gradient_norm", "effective_rank", "dead_units", "feature_norm", "feature_rms"}
SMALL: dict[str, dict[str, Any]] = {
    "pvn": {"tasks": 3},
    "cumulants": {"tasks": 3},
    "laplacian": {"dimensions": 3},
    "spr": {"channels": 4},
    **{name: {"dimensions": 3} for name in ("contrastive", "rldp", "tdjepa")},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("d")
    collect(CollectConfig("minatar/seaquest", folder / "minatar", steps=300), quiet=True)
    atari_shaped(folder / "atari")
    return folder


@pytest.mark.parametrize("kind", ["minatar", "atari"])
@pytest.mark.parametrize("name", method_names())
def test_on_minatar_and_on_atari(folders: Path, tmp_path: Path, name: str, kind: str) -> None:
    """Two steps with the small preset, but for the encoder and batch of the images."""
    cls, path = method_class(name), folders / kind
    training: dict[str, Any] = {} if name == "random" else {"steps": 2, "batch_size": 4, "log_every": 1}
    config = cls.Config(out=tmp_path / "run", data=(path,), **training, **SMALL.get(name, {}))
    if kind == "atari":
        config = replace(config, architecture="nature", threads=1)
    pretrain(config, quiet=True)
    encoder, data = load_encoder(config.out), open_dataset(path)
    size = 128 if kind == "minatar" else 512
    features = encoder.features(Sampler(data, 5, 0).batch(0).obs)
    assert (encoder.num_features, tuple(features.shape)) == (size, (5, size))
    assert bool(torch.isfinite(features).all())
    done = read_run(config.out)["done"]
    assert done["num_features"] == size
    card = (config.out / "encoder" / "README.md").read_text()
    assert f"# Encoder for {data.env_id}: {name}" in card
    assert (f"--method {name}" in card) == (name != "pvn")
    if name == "random":
        return
    lines = read_metrics(config.out)
    assert len(lines) == 2
    assert all(set(line) >= DIAGNOSTICS for line in lines)
    assert all(math.isfinite(value) for line in lines for value in line.values())
    assert done.keys() >= DIAGNOSTICS


@pytest.mark.parametrize("name", method_names())
def test_all_start_from_the_same_encoder(folders: Path, tmp_path: Path, name: str) -> None:
    """The encoder as the first step finds it, by its parameters."""
    cls, data = method_class(name), open_dataset(folders / "minatar")
    config = cls.Config(out=tmp_path, seed=5, **SMALL.get(name, {}))
    method = cls(resolved(config, data.env_id), data, data.observation_shape, "cpu")
    expected = make_encoder("minatar", data.observation_shape, 1, seeded(5, Purpose.ENCODER)).state_dict()
    found = method.encoder.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], expected[key]) for key in expected)


@pytest.mark.parametrize("name", [name for name in method_names() if name != "random"])
def test_the_memory_of_a_sample_is_known(folders: Path, tmp_path: Path, name: str) -> None:
    """By the frames that it holds, in stacks of four; all else is small beside them."""
    cls, data = method_class(name), open_dataset(folders / "atari")
    config = cls.Config(out=tmp_path, architecture="nature", batch_size=3, **SMALL.get(name, {}))
    method = cls(resolved(config, data.env_id), data, data.observation_shape, "cpu")
    frames = [tensor for tensor in method.sample(0).values() if tensor.dtype == torch.uint8]
    held = sum(tensor.untyped_storage().nbytes() for tensor in frames)  # the last frame of all may be beyond the view
    assert method.sample_bytes() == pytest.approx(held, abs=84 * 84)


@pytest.mark.parametrize(
    ("args", "name"),
    [
        ([], "pvn"),
        (["--out", "bc"], "pvn"),
        (["--method", "bc", "--out", "run"], "bc"),
        (["--out", "run", "--method", "spr"], "spr"),
        (["--method=reward"], "reward"),
        (["--method", "bc", "--method=laplacian"], "laplacian"),
        (["--method"], "pvn"),  # what is missing is for the parser to say
    ],
)
def test_the_command_line_chooses_the_settings(args: list[Any], name: str) -> None:
    assert config_class(args) is method_class(name).Config


def test_the_settings_of_every_method_are_known_without_it() -> None:
    assert dict(CONFIGS) == {name: method_class(name).Config for name in method_names()}


@pytest.mark.parametrize("line", ["", "METHOD = 'bc'", "METHOD = dict", "METHOD = None"])
def test_a_file_without_a_method_is_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / "mine.py").write_text(line)
    with pytest.raises(UserError, match="mine.py defines no METHOD, expected a class that extends Method"):
        method_class(str(tmp_path / "mine.py"))


def test_a_file_with_a_method(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("from protovalue.pretrain.bc import BehaviourCloning as METHOD")
    assert method_class(str(tmp_path / "mine.py")) is method_class("bc")
    for name in ("nowhere.py", "."):
        with pytest.raises(UserError, match="unknown method|expected a Python file"):
            method_class(str(tmp_path / name))
    with pytest.raises(UserError, match="unknown method 'task_values'"):
        method_class("task_values")
