"""The document's encoder works as it stands: trained with options, loaded again, played on, in a study."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import protovalue
from protovalue.cli import main
from protovalue.errors import UserError
from protovalue.files import read_json
from protovalue.registry import ENCODERS
from protovalue.study.command import open_study
from tests.documents import blocks


@pytest.fixture
def wide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.chdir(tmp_path)
    ENCODERS.loaded.clear()
    code = next(block.text for block in blocks("docs/adding-an-encoder.md") if block.language == "python")
    Path("deep").mkdir()
    Path("deep/wide.py").write_text(code)
    assert main(["collect", "minatar/breakout", "--steps", "60", "--num-envs", "2", "--out", "data"]) == 0
    yield "deep/wide.py"
    ENCODERS.loaded.clear()


def test_it_is_trained_recorded_without_a_path_and_loaded_again(wide: Any, capsys: pytest.CaptureFixture[str]) -> None:
    common = (
        f"pretrain --data data --architecture {wide} --architecture-options depth=3 --width 2 --steps 2 --batch-size 8"
    )
    assert main(f"{common} --tasks 3 --batch-size 8 --out run".split()) == 0
    config = read_json(Path("run/encoder/config.json"))
    assert (config["encoder"], config["options"], config["num_features"]) == ("wide", {"depth": 3}, 128)
    ENCODERS.loaded.clear()
    with pytest.raises(UserError, match=r"unknown encoder 'wide': .*\(--code path/to/wide.py\)"):
        protovalue.load_encoder("run")
    protovalue.load_code(wide)
    encoder = protovalue.load_encoder("run")
    network: Any = encoder.encoder  # of the class in the file
    assert [tuple(conv.weight.shape) for conv in network.convs] == [
        (48, 4, 3, 3),
        (48, 48, 3, 3),
        (48, 48, 3, 3),
    ]
    # By hand: 3 x 3 convolutions with a ReLU each, then the dense layer with a ReLU.
    obs = np.random.default_rng(0).random((4, 1, 10, 10, 4)) < 0.3
    x = torch.from_numpy(obs[:, 0]).permute(0, 3, 1, 2).float()
    for conv in network.convs:
        x = torch.nn.functional.conv2d(x, conv.weight, conv.bias, padding=1).clamp_min(0)
    dense = network.dense
    expected = (x.permute(0, 2, 3, 1).flatten(1) @ dense.weight.T + dense.bias).clamp_min(0)
    assert torch.allclose(encoder.features(obs), expected, atol=1e-5)
    card = Path("run/encoder/README.md").read_text()
    assert "protovalue.load_code('deep/wide.py')\nencoder = " in card
    assert "--architecture deep/wide.py --architecture-options depth=3" in card
    assert main(f"{common} --tasks 3 --batch-size 8 --out run".split()) == 0  # nothing is left to do
    assert main(f"{common.replace('depth=3', 'depth=2')} --tasks 3 --batch-size 8 --out run".split()) == 2
    assert "holds a run with another config: architecture_options {'depth': 2}" in capsys.readouterr().err


def test_random_initialisations_and_dqn(wide: Any, capsys: pytest.CaptureFixture[str]) -> None:
    small = "--steps 25 --replay-min 20"
    assert main(f"online --encoder random:{wide}:1 --env minatar/breakout {small} --out online".split()) == 0
    assert main(f"dqn --env minatar/breakout --architecture {wide}:WideEncoder {small} --out dqn".split()) == 0
    for run in ("online", "dqn"):
        ENCODERS.loaded.clear()
        assert main(f"evaluate {run} --episodes 1".split()) == 2
        assert "is run only if it is named on the command line" in capsys.readouterr().err
        Path("elsewhere.py").write_text("raise AssertionError")  # what is not named is not run
        code = wide if run == "online" else f"{wide}:WideEncoder"
        assert main(f"evaluate {run} --episodes 1 --code {code}".split()) == 0
    assert main(f"online --encoder random:wide:1 --env minatar/breakout {small} --out more".split()) == 2
    assert "expected random:der|impala|minatar|nature:WIDTH" in capsys.readouterr().err


STUDY = """
environments = ["minatar/breakout"]
[data]
steps = 40
num_envs = 2
[pretrain]
steps = 2
batch_size = 4
architecture = "deep/wide.py"
architecture_options = { depth = 1 }
[online]
steps = 25
replay_min = 20
[dqn]
architecture = "deep/wide.py"
steps = 25
replay_min = 20
[evaluate]
episodes = 1
[methods.bc]
[methods.random]
architecture_options = { depth = 3 }
[methods.dqn]
"""


def test_a_study_takes_it_and_a_change_of_the_file_moves_its_stages(wide: Any) -> None:
    Path("study.toml").write_text(STUDY)
    _, _, planned = open_study(Path("study.toml"), Path("out"))
    for stage in planned.stages:
        ENCODERS.loaded.clear()
        assert main(list(stage.command[1:])) == 0, stage.id
    depth = {
        cell.method: read_json(Path("out") / cell.encoder / "encoder/config.json")["options"]["depth"]
        for cell in planned.cells
        if cell.encoder
    }
    assert depth == {"bc": 1, "random": 3}
    Path(wide).write_text(Path(wide).read_text() + "# other\n")
    again = open_study(Path("study.toml"), Path("out"))[2]
    kept = {stage.id for stage in again.stages} & {stage.id for stage in planned.stages}
    assert {name.split("/")[0] for name in kept} == {"data"}


def test_a_study_names_the_line_of_a_wrong_name(wide: Any) -> None:
    for old, new, line, message in (
        (
            '"deep/wide.py"\narchitecture_',
            '"imapla"\narchitecture_',
            9,
            "unknown encoder 'imapla': did you mean 'impala'",
        ),
        (
            '"deep/wide.py"\narchitecture_',
            '"no.py"\narchitecture_',
            9,
            "--architecture: found no file no.py, expected a Python file",
        ),
        ('"deep/wide.py"\nsteps', '"natur"\nsteps', 15, "unknown encoder 'natur': did you mean 'nature'"),
        ("{ depth = 1 }", "[1]", 10, r"architecture_options: found \[1\], expected a table"),
    ):
        Path("study.toml").write_text(STUDY.replace(old, new))
        with pytest.raises(UserError, match=f"^study.toml:{line}: .*{message}"):
            open_study(Path("study.toml"), Path("out"))
