"""Real SavedModels of both kinds against what the framework that wrote them computes."""

import json
import shutil
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import protovalue
from protovalue.cli import main
from protovalue.encoder import FrozenEncoder, load_encoder
from protovalue.errors import UserError
from protovalue.released.command import import_encoder
from protovalue.released.config import ImportEncoderConfig
from protovalue.released.files import GRAPH, Folder
from protovalue.released.graph import read_model
from tests.released import saved

REAL = ("jax-constants", "jax-variables", "jax-plain", "tf-variables", "tf-captured")


def imported(source: Path, out: Path, **settings: Any) -> FrozenEncoder:
    config = ImportEncoderConfig(source=str(source), out=out, **{"env": "atari/Pong", **settings})
    import_encoder(config, quiet=True)
    return load_encoder(out)


def expected(source: Path) -> tuple[Any, Any]:
    """Return observations in our layout, and the features that the exporting framework gave for them."""
    with np.load(source / "expected.npz") as file:
        return np.ascontiguousarray(file["frames"].transpose(0, 3, 1, 2)), file["features"]


@pytest.mark.parametrize("name", REAL)
def test_features_are_those_of_the_framework_that_exported_it(released: Path, tmp_path: Path, name: str) -> None:
    encoder = imported(released / name, tmp_path / "out")
    frames, features = expected(released / name)
    assert (features > 0).mean() > 0.3
    found = encoder.features(frames).numpy()
    np.testing.assert_allclose(found, features, rtol=0, atol=1e-5 * features.max())
    turned = encoder.features(np.ascontiguousarray(frames[:, ::-1])).numpy()  # the newest frame first
    assert np.abs(turned - features).max() > 0.1 * features.max()
    quick = encoder.encoder.compiled()  # what agents on a CPU see
    if quick is not None:
        np.testing.assert_allclose(quick(frames), features, rtol=0, atol=1e-5 * features.max())


def test_it_says_where_it_comes_from(released: Path, tmp_path: Path) -> None:
    source = tmp_path / "Pong" / "3"
    shutil.copytree(released / "jax-variables", source)
    encoder = imported(source, tmp_path / "out", env=None)
    about = json.loads((tmp_path / "out" / "config.json").read_text())["about"]
    assert (about["env_id"], about["method"]) == ("atari/Pong", "released")
    assert about["config"] == {"architecture": "impala", "width": 0.125, "seed": 3}
    files = {file["name"]: file["bytes"] for file in about["released"]["files"]}
    names = ["saved_model.pb", "variables/variables.index", "variables/variables.data-00000-of-00001"]
    assert files == {name: (source / name).stat().st_size for name in names}
    assert about["released"]["weights"] == "32 variables of a bundle, with 33 checksums"
    assert about["released"]["input_range"] == "pixels"
    assert encoder.num_features == 64
    assert str(source) in (tmp_path / "out" / "README.md").read_text()


def test_what_the_graph_does_to_its_input_decides_its_range(released: Path, tmp_path: Path) -> None:
    frames, features = expected(released / "jax-constants")  # it was fed pixels / 255, and does not divide by itself
    unit = imported(released / "jax-constants", tmp_path / "unit", input_range="unit")
    assert np.allclose(unit.features(frames).numpy(), features, atol=1e-4)
    pixels = imported(released / "jax-constants", tmp_path / "pixels", input_range="pixels")
    first = "encoder.stacks.0.conv.weight"
    torch.testing.assert_close(pixels.state_dict()[first], 255 * unit.state_dict()[first])
    with pytest.raises(UserError, match="--input-range: found unit"):
        imported(released / "tf-variables", tmp_path / "none", input_range="unit")
    assert not (tmp_path / "none").exists()


def test_a_model_without_a_signature_is_entered_by_its_objects(released: Path, tmp_path: Path) -> None:
    model = read_model(Folder(str(released / "tf-variables"), tmp_path).file(GRAPH))
    assert list(model.signatures) == ["__saved_model_init_op"]  # and the same is in the list of those that work


def test_neither_the_order_of_nodes_nor_their_names_matter(tmp_path: Path) -> None:
    nodes, _ = saved.impala(0.125, size=20)
    one = imported(saved.write(tmp_path / "a", saved.model(nodes, (-1, 20, 20, 4))), tmp_path / "one")
    turned = saved.model(nodes[::-1], (-1, 20, 20, 4))
    other = imported(saved.write(tmp_path / "b", turned), tmp_path / "other")
    assert zlib.crc32((tmp_path / "one" / "model.safetensors").read_bytes()) == zlib.crc32(
        (tmp_path / "other" / "model.safetensors").read_bytes()
    )
    assert one.num_features == other.num_features == 64


def test_the_command_says_what_it_found_and_does_nothing_the_second_time(
    released: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["import", "encoder", str(released / "jax-plain"), "--env", "atari/Pong", "--out", str(tmp_path / "out")]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "an Impala-CNN of width 0.125 for atari/Pong" in said
    assert "weights: 32 constants of the graph" in said
    assert "it takes pixels from 0 to 255" in said
    assert "agree" in said
    before = (tmp_path / "out" / "config.json").stat().st_mtime_ns
    assert main(words) == 0
    assert (tmp_path / "out" / "config.json").stat().st_mtime_ns == before
    assert main([*words, "--input-range", "pixels"]) == 2
    assert "holds another encoder already" in capsys.readouterr().err
    assert main([*words[:-1], str(tmp_path / "else"), "--width", "8"]) == 2
    assert "--width: found an encoder of width 0.125" in capsys.readouterr().err


def test_what_a_kill_left_is_written_again_and_other_files_are_left_alone(released: Path, tmp_path: Path) -> None:
    (tmp_path / "killed").mkdir()
    (tmp_path / "killed" / "model.safetensors").write_bytes(b"half")
    assert imported(released / "tf-captured", tmp_path / "killed").num_features == 64
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="not empty and not an encoder"):
        imported(released / "tf-captured", tmp_path / "other")
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["notes.txt"]


def test_linear_agents_learn_on_an_imported_encoder(released: Path, tmp_path: Path) -> None:
    imported(released / "jax-constants", tmp_path / "pong-1")
    run = protovalue.train_online(
        encoder=str(tmp_path / "pong-1"), env="atari/Pong", out=tmp_path / "run", steps=30, replay_min=10, quiet=True
    )
    assert (run / "done.json").is_file()
