"""The encoder's folder: what is written comes back, what does not fit is refused before it costs memory."""

import json
import re
import shutil
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from protovalue.encoder import FrozenEncoder, load_encoder, save_encoder
from protovalue.errors import UserError
from protovalue.files import read_json, size_and_crc, write_json
from protovalue.nets.encoders import Encoder, make_encoder

ABOUT = {"env_id": "minatar/breakout", "env_options": {"stack": 1}, "summary": {"feature_rms": 0.5}, "more": [1]}


def some_encoder(seed: int = 3) -> Encoder:
    return make_encoder("minatar", (1, 10, 10, 4), 1, torch.Generator().manual_seed(seed))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_encoder(tmp_path / "run/encoder", some_encoder(), "minatar", 1, ABOUT, ["# A card", "text"])
    return tmp_path / "run/encoder"


def test_what_is_saved_comes_back(folder: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    assert (folder / "README.md").read_text() == "# A card\ntext\n"
    original = FrozenEncoder(some_encoder(), {})
    obs = np.random.default_rng(0).random((5, 1, 10, 10, 4)) < 0.2
    for place in (folder, folder.parent, str(folder)):
        loaded = load_encoder(place)
        assert loaded.about == ABOUT
        assert (loaded.num_features, loaded.observation_shape) == (128, (1, 10, 10, 4))
        assert torch.equal(loaded.features(obs), original.features(obs))
        assert torch.equal(loaded.features(torch.from_numpy(obs)), original.features(obs))
    assert not any(parameter.requires_grad for parameter in loaded.parameters())
    assert not loaded.train().training
    fields = read_json(folder / "config.json")
    assert fields["crc32"] == zlib.crc32((folder / "model.safetensors").read_bytes())
    assert (fields["width"], fields["num_features"], fields["readout"]) == (1, 128, "relu")


def test_the_readout_is_kept(tmp_path: Path) -> None:
    made = some_encoder()
    made.readout = "projection"
    save_encoder(tmp_path, made, "minatar", 1, {}, [])
    obs = np.ones((1, 1, 10, 10, 4), np.bool_)
    assert torch.equal(load_encoder(tmp_path).features(obs), FrozenEncoder(made, {}).features(obs))
    fields = read_json(tmp_path / "config.json")
    del fields["readout"]  # as an earlier version wrote it
    write_json(tmp_path / "config.json", fields)
    assert load_encoder(tmp_path).encoder.readout == "relu"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "x"}, "config.json: field format: found 'x', expected 'protovalue encoder'"),
        ({"version": 2}, "config.json: field version: found 2, expected 1"),
        (
            {"encoder": "vit"},
            "config.json: unknown encoder 'vit': expected one of der, impala, minatar, nature; a file",
        ),
        ({"width": 0}, "config.json: field width: found 0, expected more than 0 and less than 65536"),
        ({"width": 1 << 16}, "config.json: field width: found 65536, expected more than 0 and less than 65536"),
        ({"width": "1"}, "config.json: field width: found '1', expected a whole number"),
        ({"width": 2}, "config.json: field num_features: found 128, expected 256"),
        ({"num_features": 129}, "config.json: field num_features: found 129, expected 128"),
        ({"observation_shape": [1, 10, 0, 4]}, "field observation_shape: found [1, 10, 0, 4], expected sizes of 1 or"),
        ({"observation_shape": [1, 1024, 1024, 5]}, "at most 4,194,304 values in all"),
        ({"observation_shape": [1, 10, 10, 5]}, "tensor trunk.convs.0.weight: found [16, 4, 3, 3], expected [16, 5"),
        ({"observation_shape": [10]}, "observation shape: found (10,), expected (stack, H, W)"),
        ({"crc32": 5}, "model.safetensors: damaged: its checksum does not match"),
        ({"crc32": None}, "config.json: field crc32: found null, expected a whole number"),
        ({"readout": "soft"}, "config.json: field readout: found 'soft'"),
        ({"about": []}, "config.json: field about: found [], expected an object"),
        ({"about": {"env_id": 3}}, "config.json: field about.env_id: found 3, expected text"),
        ({"about": {"summary": {"feature_rms": "1"}}}, "field about.summary.feature_rms: found '1', expected a number"),
        ({"about": {"summary": {"feature_rms": float("inf")}}}, "feature_rms: found inf, expected a finite number"),
        ({"about": {"env_options": {"stuck": 1}}}, "field about.env_options: field stuck: unknown"),
        ({"about": {"env_options": {"stack": "1"}}}, "field about.env_options: field stack: found '1'"),
    ],
)
def test_what_a_config_says_is_checked(folder: Path, change: dict[str, Any], message: str) -> None:
    write_json(folder / "config.json", {**read_json(folder / "config.json"), **change})
    with pytest.raises(UserError) as error:
        load_encoder(folder)
    assert str(folder) in str(error.value)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_the_largest_sizes_are_checked_without_memory_for_them(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network of a terabyte is refused by its shapes; its parameters are never made."""
    real = torch.empty

    def small(*size: Any, **kwargs: Any) -> torch.Tensor:
        found = real(*size, **kwargs)
        assert found.device.type == "meta" or found.numel() < 1e6
        return found

    monkeypatch.setattr(torch, "empty", small)
    change = {"encoder": "impala", "width": 1000, "num_features": 512_000, "observation_shape": [4, 1024, 1024]}
    write_json(folder / "config.json", {**read_json(folder / "config.json"), **change})
    with pytest.raises(
        UserError, match="model.safetensors: damaged: tensor dense.bias: found \\[128\\], expected \\[512000"
    ):
        load_encoder(folder)


def put(folder: Path, tensors: Any) -> None:
    """Replace the model and put its checksum right."""
    save_file(tensors, folder / "model.safetensors")
    fields = read_json(folder / "config.json")
    write_json(folder / "config.json", {**fields, "crc32": size_and_crc(folder / "model.safetensors")[1]})


def test_a_model_of_other_tensors_is_named(folder: Path) -> None:
    whole = load_file(folder / "model.safetensors")
    put(folder, {**whole, "more": torch.zeros(2)})
    with pytest.raises(UserError, match=r"damaged: tensor more: found \[2\], expected no such tensor"):
        load_encoder(folder)
    put(folder, {name: tensor for name, tensor in whole.items() if name != "dense.bias"})
    with pytest.raises(UserError, match=r"damaged: tensor dense.bias: found no such tensor, expected \[128\]"):
        load_encoder(folder)
    put(folder, {name: tensor.half() for name, tensor in whole.items()})
    with pytest.raises(UserError, match="damaged: found tensors of F16, expected F32"):
        load_encoder(folder)
    put(folder, whole)
    load_encoder(folder)


@pytest.mark.parametrize("wild", [float("nan"), float("inf"), -float("inf")])
def test_a_parameter_that_is_not_finite_is_named(folder: Path, wild: Any) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["dense.weight"][3, 5] = wild
    save_file(tensors, folder / "model.safetensors")
    fields = read_json(folder / "config.json")
    write_json(folder / "config.json", {**fields, "crc32": size_and_crc(folder / "model.safetensors")[1]})
    with pytest.raises(UserError, match="model.safetensors: damaged: tensor dense.weight: found numbers that are not"):
        load_encoder(folder)


def test_a_file_that_is_no_model_is_named(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 1 << 40) + b"{}")
    fields = read_json(folder / "config.json")
    write_json(folder / "config.json", {**fields, "crc32": size_and_crc(folder / "model.safetensors")[1]})
    with pytest.raises(UserError, match=r"model.safetensors: damaged: [^\n]*$"):
        load_encoder(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(UserError, match="model.safetensors: missing"):
        load_encoder(folder)


def test_folders_without_an_encoder(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=re.escape(f"{tmp_path}: no encoder here: config.json is missing")):
        load_encoder(tmp_path)
    run = folder.parent
    shutil.rmtree(folder)
    (run / "checkpoints").mkdir()
    (run / "config.json").write_text(json.dumps({}))
    with pytest.raises(UserError, match="no encoder here: the run is not finished"):
        load_encoder(run)


def test_saving_follows_no_link_and_leaves_nothing_behind(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "precious").write_text("precious")
    for name in ("config.json", "model.safetensors", "README.md"):
        (folder / name).unlink()
        (folder / name).symlink_to(tmp_path / "precious")
    save_encoder(folder, some_encoder(4), "minatar", 1, {}, ["card"])
    assert (tmp_path / "precious").read_text() == "precious"
    assert load_encoder(folder).about == {}

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    before = (folder / "model.safetensors").read_bytes()
    monkeypatch.setattr("protovalue.encoder.save_file", full)
    with pytest.raises(UserError, match="model.safetensors: cannot write the encoder: .*No space left on device"):
        save_encoder(folder, some_encoder(5), "minatar", 1, {}, ["card"])
    assert (folder / "model.safetensors").read_bytes() == before
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(UserError, match="link: found a symbolic link, expected a folder"):
        save_encoder(tmp_path / "link", some_encoder(), "minatar", 1, {}, [])
