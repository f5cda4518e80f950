"""The document's family works as it stands: collected, learned from, played, and resumed exactly."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protovalue.cli import main
from protovalue.data.dataset import open_dataset
from protovalue.envs.registry import import_module_of, make
from protovalue.errors import UserError
from protovalue.files import read_json
from protovalue.registry import ENVIRONMENTS
from protovalue.study.command import open_study
from tests.documents import blocks

DOCUMENT = "docs/adding-an-environment.md"


@pytest.fixture
def rooms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.chdir(tmp_path)
    ENVIRONMENTS.loaded.clear()
    (code,) = [block.text for block in blocks(DOCUMENT) if block.language == "python"]
    Path("rooms.py").write_text(code)
    yield "rooms.py"
    ENVIRONMENTS.loaded.clear()


def test_walks_by_hand(rooms: Any) -> None:
    """Up, down, left, right are 0 to 3; eight steps to the exit of the small room, where a new episode begins."""
    import_module_of("rooms.py/small")
    env = make("rooms/small", 2, stack=2)
    assert (env.env_id, env.num_actions) == ("rooms/small", 4)
    assert env.options == {"stack": 2, "max_steps": 200, "wind": 0.0}
    obs, _ = env.reset(seed=0)
    assert obs.shape == (2, 2, 5, 5, 2)
    assert obs[0, -1, :, :, 1].sum() == obs[0, -1, 4, 4, 1] == 1
    rewards = []
    for action in (0, 2, 1, 1, 1, 1, 3, 3, 3, 3):  # the first two lead into walls
        obs, reward, terminated, truncated, info = env.step(np.array([action, 0]))
        rewards.append(reward.tolist())
    assert rewards == [[0.0, 0.0]] * 9 + [[1.0, 0.0]]
    assert terminated.tolist() == [True, False]
    assert not truncated.any()
    assert np.argwhere(info["final_obs"][0, -1, :, :, 0]).tolist() == [[4, 4]]
    assert np.argwhere(obs[0, -1, :, :, 0]).tolist() == [[0, 0]]
    blown = make("rooms.py/large", 1, wind=1.0)
    blown.reset(seed=0)
    obs = blown.step(np.array([3]))[0]
    assert np.argwhere(obs[0, -1, :, :, 0]).tolist() == [[1, 1]]


def test_mistakes_are_named(rooms: Any) -> None:
    import_module_of("rooms.py/small")
    for options, message in (
        ({"win": 0.5}, "unknown option for rooms/small 'win': did you mean 'wind'"),
        ({"wind": "x"}, "environment rooms/small: field wind: found 'x', expected a number"),
        ({"sticky": 0.5}, "unknown option for rooms/small 'sticky'"),
        ({"max_steps": 0}, "rooms/small: option max_steps: found 0, expected 1 or more"),
    ):
        with pytest.raises(UserError, match=message):
            make("rooms.py/small", 1, **options)
    with pytest.raises(UserError, match="unknown environment 'rooms/smal': did you mean 'rooms/small'"):
        make("rooms.py/smal")


def test_it_is_recorded_without_a_path_and_resumes_exactly(rooms: Any) -> None:
    folder = Path("deep/er")
    folder.mkdir(parents=True)
    Path(rooms).rename(folder / "rooms.py")
    game = "--env deep/er/rooms.py/small --env-options wind=0.2"
    collect = game.removeprefix("--env ")
    assert main(f"collect {collect} --steps 100 --num-envs 2 --out data".split()) == 0
    data = open_dataset("data")
    assert (data.env_id, data.env_options) == ("rooms/small", {"stack": 1, "max_steps": 200, "wind": 0.2})
    assert (
        main(["pretrain", "--method", "random", "--data", "data", "--architecture", "minatar", "--out", "encoder"]) == 0
    )
    agents = f"online --encoder encoder {game} --replay-min 20 --checkpoint-every 15 --keep-replay"
    assert main(f"{agents} --steps 60 --out whole".split()) == 0
    for steps in (30, 60):
        assert main(f"{agents} --steps {steps} --out parts".split()) == 0
    config = read_json(Path("whole/config.json"))["config"]
    assert config["env"] == "rooms/small"
    assert config["options"]["env_options"] == {"wind": 0.2}
    for run in ("whole", "parts"):
        assert main(f"evaluate {run} --episodes 2 --env deep/er/rooms.py/small".split()) == 0
    whole, parts = (read_json(Path(run) / "evaluation.json") for run in ("whole", "parts"))
    assert whole == parts
    assert whole["env_options"] == {"stack": 1, "max_steps": 200, "wind": 0.2}
    assert "deep" not in Path("whole/evaluation.json").read_text() + Path("data/manifest.json").read_text()


STUDY = """
environments = ["deep/rooms.py/small"]
normalise = "dqn"
[env]
env_options = { wind = 0.2 }
[data]
steps = 40
num_envs = 2
[pretrain]
architecture = "minatar"
[online]
steps = 25
replay_min = 20
[dqn]
architecture = "minatar"
steps = 25
replay_min = 20
[evaluate]
episodes = 1
[methods.random]
[methods.dqn]
"""


def test_a_study_takes_it_and_a_change_of_the_file_moves_its_stages(rooms: Any) -> None:
    """Every stage is run here as its own command line, with the family forgotten in between."""
    Path("deep").mkdir()
    Path(rooms).rename("deep/rooms.py")
    Path("study.toml").write_text(STUDY)
    _, _, planned = open_study(Path("study.toml"), Path("out"))
    for stage in planned.stages:
        ENVIRONMENTS.loaded.clear()
        assert main(list(stage.command[1:])) == 0, stage.id
    assert {cell.env for cell in planned.cells} == {"rooms/small"}
    assert any(stage.folder.startswith("dqn/small-") for stage in planned.stages)
    evaluated = [stage for stage in planned.stages if stage.kind == "evaluate"]
    assert read_json(Path("out") / evaluated[0].expect["file"])["env_options"]["wind"] == 0.2
    Path("deep/rooms.py").write_text(Path("deep/rooms.py").read_text() + "# other\n")
    again = open_study(Path("study.toml"), Path("out"))[2]
    assert {stage.id for stage in again.stages}.isdisjoint(stage.id for stage in planned.stages)


def test_a_study_names_the_line_of_a_wrong_option(rooms: Any) -> None:
    for text, line, message in (
        ("env_options = { win = 0.2 }", 5, "unknown option for rooms/small 'win': did you mean 'wind'"),
        ("env_options = { wind = 'x' }", 5, "field wind: found 'x', expected a number"),
        ("env_options = 3", 5, "env_options: found 3, expected a table"),
        ("env_options = { wind = nan }", 5, "option wind: found nan, expected"),
    ):
        changed = STUDY.replace("env_options = { wind = 0.2 }", text).replace("deep/", "")
        Path("study.toml").write_text(changed)
        with pytest.raises(UserError, match=f"^study.toml:{line}: .*{message}"):
            open_study(Path("study.toml"), Path("out"))
