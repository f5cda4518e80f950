"""Studies on encoders that others released, in place of pretraining."""

import shutil
import tarfile
from pathlib import Path

import pytest

from protovalue.cli import main
from protovalue.errors import UserError
from protovalue.study import command as study_command
from protovalue.study.file import load_study
from protovalue.study.measure import LARGE, small_study
from protovalue.study.plan import plan
from tests.options.world import InTurn
from tests.study.helpers import evaluations, parse

FILES = Path(__file__).parents[1] / "released" / "files"
STUDIES = Path(__file__).parents[2] / "studies"
FILE = """name = "released"
environments = ["atari/Pong"]

[env]
max_steps = 20

[seeds]
pretraining = [2]

[online]
steps = 30
replay_min = 20

[evaluate]
episodes = 1

[methods.pvn]
title = "PVN (released)"
kind = "released"
source = "SOURCE/{game}/{seed}"
width = 0.125
"""


def test_such_a_study_runs_from_the_released_files_to_agents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study_command, "LocalProcesses", InTurn)
    with tarfile.open(FILES / "jax-constants.tar.xz") as archive:
        archive.extractall(tmp_path / "Pong" / "2", filter="data")
    (tmp_path / "study.toml").write_text(FILE.replace("SOURCE", str(tmp_path)))
    root = tmp_path / "out"
    assert main(["study", "run", str(tmp_path / "study.toml"), "--out", str(root)]) == 0
    assert [len(agents) for agents in evaluations(root).values()] == [1]
    (encoder,) = (root / "encoders").iterdir()
    assert encoder.name.startswith("Pong-pvn-x0.125-s2-")
    assert (encoder / "model.safetensors").is_file()
    shutil.rmtree(tmp_path / "Pong")  # what is done is not imported again
    assert main(["study", "run", str(tmp_path / "study.toml"), "--out", str(root)]) == 0


def test_the_study_of_the_papers_encoders_pretrains_nothing() -> None:
    study = load_study(STUDIES / "paper-released.toml")
    assert study.data is None
    laid_out = plan(study, Path("root"))
    kinds = [stage.kind for stage in laid_out.stages]
    assert {kind: kinds.count(kind) for kind in kinds} == {"encoder": 138, "online": 138, "evaluate": 138}
    first = laid_out.stages[0]
    assert first.command[:4] == ("pvn", "import", "encoder", "gs://download-dopamine-rl/pvn/Alien/1")
    assert {"--env", "atari/Alien", "--width"} <= set(first.command)
    assert laid_out.stages[1].command[laid_out.stages[1].command.index("--encoder") + 1] == f"root/{first.folder}"
    assert {(cell.width, cell.pretraining_seed, cell.data) for cell in laid_out.cells} == {
        (8, 1, None),
        (8, 2, None),
        (8, 3, None),
    }
    assert len({seed for cell in laid_out.cells[:3] for seed in cell.seeds}) == 9


def test_agents_on_them_are_measured_on_encoders_as_they_were_drawn() -> None:
    study = parse(FILE)
    small = plan(small_study(study, "atari/Pong", LARGE), Path("root"))
    assert [stage.kind for stage in small.stages] == ["collect", "pretrain", "online", "evaluate"]
    (rate,) = [stage.rate for stage in small.stages if stage.kind == "online"]
    (wanted,) = [stage.rate for stage in plan(study, Path("root")).stages if stage.kind == "online"]
    assert rate == wanted.replace("x0.125", "x1")  # which is scaled by the networks' multiply-adds
    assert "--architecture impala" in " ".join(small.stages[1].command)


def test_released_encoders_stand_beside_methods_that_pretrain() -> None:
    text = FILE.replace(
        "[methods.pvn]", '[data]\nsteps = 100\n\n[methods.random]\narchitecture = "impala"\n\n[methods.pvn]'
    )
    kinds = [stage.kind for stage in plan(parse(text), Path("root")).stages]
    assert kinds == ["collect", "pretrain", "online", "evaluate", "encoder", "online", "evaluate"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('kind = "released"', 'kind = "relased"', "study.toml:19: unknown kind 'relased': did you mean 'released'"),
        ("SOURCE/{game}/{seed}", "", "study.toml:20: source: found ''"),
        ("{seed}", "{sed}", "study.toml:20: unknown placeholder 'sed'"),
        ("width = 0.125", "widht = 0.125", "study.toml:21: unknown key 'widht'"),
        ("width = 0.125", "width = 0.0", "study.toml:21: --width: found 0.0"),
        ("width = 0.125", 'input_range = "bytes"', "study.toml:21: input_range: found 'bytes'"),
        ("pretraining = [2]", "pretraining = [1, 2]\n", None),
        ("[methods.pvn]", "[pretrain]\nsteps = 3\n\n[methods.pvn]", "pretrain: found with no method that pretrains"),
        ("[methods.pvn]", "[data]\nsteps = 3\n\n[methods.pvn]", "data: found with no method that pretrains"),
    ],
)
def test_what_such_a_table_cannot_have_is_refused_with_its_line(old: str, new: str, message: str | None) -> None:
    text = FILE.replace(old, new)
    if message is None:
        text, message = text.replace("{game}/{seed}", "{game}"), "source: found no {seed}, expected it with several"
    with pytest.raises(UserError) as error:
        parse(text)
    assert message in str(error.value)
