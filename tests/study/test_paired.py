"""A study with a variant for one method, a data set for each encoder and agents of their own, run for real."""

import json
from pathlib import Path
from typing import Any

import pytest

from protovalue.cli import main
from protovalue.data.format import Manifest
from protovalue.envs.base import Env
from protovalue.envs.registry import make
from protovalue.evaluate.features import Trajectory, trajectory
from protovalue.files import read_json
from protovalue.report import galleries
from protovalue.study.command import study_run
from protovalue.study.config import StudyRunConfig
from protovalue.study.engines.base import Ended, Job

# Evaluated with random actions alone: then an episode depends on nothing but the seeds and the game's options.
STUDY = """
name = "paired"
environments = ["minatar/asterix"]

[env]
max_steps = 400

[data]
steps = 120

[seeds]
data = [7, 8]
pretraining = [3, 4]
pair = true
online = 2

[pretrain]
steps = 2
batch_size = 8

[online]
steps = 30
replay_min = 20

[dqn]
steps = 32
replay_min = 20
seeds = 1

[evaluate]
episodes = 3
epsilon = 1.0

[methods.dqn]

[methods.dqn.env]
sticky = 0.4

[methods.pvn]
tasks = 4
threshold = "sgd"
burn_in = 3

[methods.random]
"""


class Here:
    """An engine that runs a command in this process, when it is started."""

    slots = 1

    def __init__(self) -> None:
        self._ended: list[Ended] = []
        self.started: list[str] = []

    def submit(self, job: Job) -> None:
        self.started.append(job.id)
        self._ended.append(Ended(job.id, main(list(job.command[1:])), 1.0, 1.0, "failed here"))

    def adopt(self, job: Job) -> bool:
        return False

    def describe(self) -> str:
        return "here"

    def poll(self, timeout: float) -> list[Ended]:
        ended, self._ended = self._ended, []
        return ended

    def cancel(self, now: bool = False) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("paired")
    (folder / "study.toml").write_text(STUDY)
    study_run(StudyRunConfig(folder / "study.toml", folder / "out"), Here())
    return folder / "out"


@pytest.fixture(scope="module")
def cells(out: Path) -> dict[tuple[str, int | None], dict[str, Any]]:
    """Return the cells of study.json by method and seed of the encoder."""
    return {(cell["method"], cell["pretraining_seed"]): cell for cell in read_json(out / "study.json")["cells"]}


def config(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "config.json").read_bytes())["config"]
    return found


def test_encoders_learned_each_from_a_data_set_of_its_own(
    out: Path, cells: dict[tuple[str, int | None], dict[str, Any]]
) -> None:
    assert set(cells) == {("pvn", 3), ("pvn", 4), ("random", 3), ("random", 4), ("dqn", None)}
    checksums = set()
    for (method, seed), data_seed in {("pvn", 3): 7, ("pvn", 4): 8, ("random", 3): 7, ("random", 4): 8}.items():
        cell = cells[method, seed]
        made = config(out / cell["encoder"])
        manifest = Manifest.read(out / cell["data"])
        assert manifest.provenance[0]["seed"] == data_seed
        assert (manifest.env_options["max_steps"], manifest.env_options["sticky"]) == (400, 0.1)
        assert (made["seed"], made["data"], made["data_checksum"]) == (
            seed,
            [str(out / cell["data"])],
            manifest.checksum,
        )
        assert cell["data_seed"] == (data_seed if method == "pvn" else None)
        checksums.add(manifest.checksum)
        if method == "pvn":
            assert (made["threshold"], made["burn_in"]) == ("sgd", 3)
    assert len(checksums) == 2


def test_agents_have_seeds_of_their_own_and_play_the_variant_of_their_method(
    out: Path, cells: dict[tuple[str, int | None], dict[str, Any]]
) -> None:
    expected = {
        ("pvn", 3): ("0-1", 0.1), ("pvn", 4): ("2-3", 0.1),
        ("random", 3): ("0-1", 0.1), ("random", 4): ("2-3", 0.1), ("dqn", None): ("0", 0.4),
    }  # fmt: skip
    for key, (seeds, sticky) in expected.items():
        made = config(out / cells[key]["run"])
        assert made["seeds"] == seeds
        assert (made["options"]["sticky"], made["options"]["max_steps"]) == (sticky, 400)
        played = json.loads((out / cells[key]["run"] / "evaluation.json").read_bytes())
        assert (played["env_options"]["sticky"], played["env_options"]["max_steps"]) == (sticky, 400)
        assert [row["seed"] for row in played["seeds"]] == cells[key]["seeds"]


def test_evaluations_are_paired_over_methods_and_differ_between_encoders(
    out: Path, cells: dict[tuple[str, int | None], dict[str, Any]]
) -> None:
    lengths = {
        key: [
            tuple(row["lengths"]) for row in json.loads((out / cell["run"] / "evaluation.json").read_bytes())["seeds"]
        ]
        for key, cell in cells.items()
    }
    assert lengths["pvn", 3] == lengths["random", 3]
    assert lengths["pvn", 4] == lengths["random", 4]
    assert len({*lengths["pvn", 3], *lengths["pvn", 4]}) == 4  # no agent plays another's episodes
    assert lengths["dqn", None][0] != lengths["pvn", 3][0]  # the same seed, but more sticky actions


def test_the_report_takes_them_and_says_what_differs(
    out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    report, sticky = tmp_path / "report", {}

    def remembered_trajectory(env: Any, options: Any, *rest: Any, **more: Any) -> Trajectory:
        sticky["played"] = options["sticky"]
        return trajectory(env, options, *rest, **more)

    def remembered_make(env: Any, num_envs: Any, **options: Any) -> Env:
        sticky["measured"] = options["sticky"]
        return make(env, num_envs, **options)

    monkeypatch.setattr(galleries, "trajectory", remembered_trajectory)
    monkeypatch.setattr(galleries, "make", remembered_make)
    assert main(["report", str(out), "--out", str(report), "--features", "first", "--draws", "100"]) == 0
    printed = capsys.readouterr().out
    assert "note: methods play different variants of all games: sticky is 0.4 for dqn and 0.1 for the others" in printed
    assert "note: every encoder of a game learned from a data set of its own" in printed
    assert "2 encoders x 2 agents" in printed
    page = (report / "index.html").read_text()
    assert "pretraining seed 4, data seed 8: mean return" in page
    # DQN plays the episode of the pictures as it was trained; features are measured where encoders are used
    assert sticky == {"played": 0.4, "measured": 0.1}
    assert page.count("<dt>learned from</dt>") == 2  # the random initialisation learned from nothing


def test_nothing_is_run_again(out: Path) -> None:
    engine = Here()
    study_run(StudyRunConfig(out.parent / "study.toml", out), engine)
    assert engine.started == []
