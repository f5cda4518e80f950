"""Minari: data sets written by the minari library itself, imported; and files that are not what they should be."""

import json
import os
import shutil
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import gymnasium
import h5py
import minari
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from minari.data_collector import EpisodeBuffer

from protovalue.cli import main
from protovalue.data.collect import collect
from protovalue.data.config import CollectConfig, ImportMinariConfig
from protovalue.data.dataset import Dataset
from protovalue.data.format import End
from protovalue.data.import_minari import find_folder, import_minari
from protovalue.envs.options import EnvOptions
from protovalue.errors import UserError
from tests.data.published import same_contents


def run(source: Any, out: Any, **settings: Any) -> Dataset:
    config = ImportMinariConfig(source=(str(source),), out=out, **{"workers": 1, **settings})
    return import_minari(config, quiet=True)


def name_environment(folder: Any, name: Any) -> None:
    """Write what the library writes for an environment that it can make itself."""
    fields = json.loads((folder / "metadata.json").read_text())
    fields["env_spec"] = json.dumps({"id": name, "kwargs": {}, "additional_wrappers": [], "entry_point": None})
    (folder / "metadata.json").write_text(json.dumps(fields))


def write_minari(
    name: Any, episodes: Any, observations: Any, actions: Any, first_action: int = 0, **settings: Any
) -> Path:
    """Write a data set with the library; returns its folder."""
    buffers = [
        EpisodeBuffer(
            observations=list(episode.frames),
            actions=[np.int64(action + first_action) for action in episode.actions],
            rewards=[float(reward) for reward in episode.rewards],
            terminations=[False] * (len(episode.actions) - 1) + [episode.end == End.TERMINATED],
            truncations=[False] * (len(episode.actions) - 1) + [episode.end == End.TRUNCATED],
            infos={},
        )
        for episode in episodes
    ]
    with warnings.catch_warnings(action="ignore"):  # the library would like an author, a policy and more
        minari.create_dataset_from_buffers(
            name, buffers, observation_space=observations, action_space=actions, **settings
        )
    return find_folder(name)


@pytest.fixture(autouse=True)
def _minari_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))


def everything(data: Any) -> list[Any]:
    return [data.episode(index) for index in range(data.num_episodes)]


def test_round_trip_by_id_to_the_byte(tmp_path: Path) -> None:
    """The counting environment: actions start at 5, episodes end in both ways, and the last one is cut."""
    data = collect(CollectConfig("gym/Counting-v0", tmp_path / "set", steps=22, num_envs=1), quiet=True)
    env = gymnasium.make("Counting-v0")
    folder = write_minari("counting/random-v0", everything(data), env.observation_space, env.action_space, 5)
    name_environment(folder, "Counting-v0")
    imported = run("counting/random-v0", tmp_path / "imported")
    assert same_contents(tmp_path / "set", tmp_path / "imported")
    assert (imported.env_id, imported.env_options) == (data.env_id, data.env_options)
    assert imported.rewards_are == "raw"
    assert set(imported.ends.tolist()) == {End.TERMINATED, End.TRUNCATED, End.CUT}
    path = os.environ["MINARI_DATASETS_PATH"] + "/counting/random-v0"
    run(path, tmp_path / "again", env="gym/Counting-v0", workers=2)
    assert same_contents(tmp_path / "set", tmp_path / "again")
    source = imported.folders[0].manifest.provenance[0]
    assert (source["dataset_id"], source["source"]) == ("counting/random-v0", "counting/random-v0")


@pytest.mark.parametrize(("version", "actions"), [(0, "full"), (1, "minimal")])
def test_minatar_is_known_from_the_data(tmp_path: Path, version: int, actions: Literal["full", "minimal"]) -> None:
    options = EnvOptions(actions=actions)
    config = CollectConfig("minatar/space_invaders", tmp_path / "set", steps=300, num_envs=1, options=options)
    data = collect(config, quiet=True)
    count = data.num_actions
    folder = write_minari("mini-v0", everything(data), Box(0, 1, (10, 10, 6), np.bool_), Discrete(count))
    name_environment(folder, f"MinAtar/SpaceInvaders-v{version}")
    imported = run("mini-v0", tmp_path / "imported")
    assert same_contents(tmp_path / "set", tmp_path / "imported")
    assert (imported.env_id, imported.env_options) == (data.env_id, data.env_options)


class Pictures(gymnasium.Env):
    observation_space = Box(0, 255, (40, 48, 3), np.uint8)
    action_space = Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        raise NotImplementedError("it is only looked at")

    def step(self, action: Any) -> Any:
        raise NotImplementedError("it is only looked at")


@pytest.fixture
def pictures(tmp_path: Path) -> Iterator[list[Any]]:
    gymnasium.register("Pictures-v0", Pictures)  # type: ignore[arg-type]  # a class that takes no options
    yield [Pictured(n) for n in (3, 20)]
    del gymnasium.registry["Pictures-v0"]


class Pictured:
    """Smooth pictures, which JPEG keeps nearly."""

    def __init__(self, steps: Any) -> None:
        wave = np.linspace(0, 3, 40 * 48 * 3).reshape(40, 48, 3)
        self.frames = np.stack([(120 + 100 * np.sin(wave + t)).astype(np.uint8) for t in range(steps + 1)])
        self.actions, self.rewards, self.end = np.arange(steps) % 2, np.arange(steps) / 4, End.TRUNCATED


@pytest.mark.parametrize("jpeg", [True, False])
def test_images_come_out_as_minari_reads_them(
    tmp_path: Path, pictures: list[Any], jpeg: bool, caplog: pytest.LogCaptureFixture
) -> None:
    space = Pictures.observation_space
    write_minari("pictures-v0", pictures, space, Discrete(2), jpeg_encoding=jpeg)
    imported = run("pictures-v0", tmp_path / "set", env="gym/Pictures-v0")
    for index, expected in enumerate(minari.load_dataset("pictures-v0").iterate_episodes()):
        assert np.array_equal(imported.episode(index).frames, expected.observations)
        assert np.array_equal(imported.episode(index).rewards, expected.rewards)
    exact = all(np.array_equal(imported.episode(i).frames, pictures[i].frames) for i in range(2))
    assert exact == (not jpeg)
    assert imported.folders[0].manifest.provenance[0].get("frames") == ("lossy (JPEG)" if jpeg else None)
    assert ("its images are JPEG" in caplog.text) == jpeg


@pytest.mark.parametrize(
    ("observations", "actions", "expected"),
    [
        (Box(-1, 1, (3,), np.float32), Discrete(3), r"found 'float32' observations \(3,\), expected uint8 or bool"),
        (Box(0, 255, (3,), np.uint8), Box(-1, 1, (2,), np.float32), "found 'Box' actions, expected Discrete"),
        (Dict({"a": Box(0, 255, (3,), np.uint8)}), Discrete(3), "found 'Dict' observations, expected one array"),
        (Box(0, 255, (4,), np.uint8), Discrete(3), r"found observations \(4,\) uint8 and 3 actions, expected \(3,\)"),
        (Box(0, 255, (3,), np.uint8), Discrete(7), r"uint8 and 7 actions, expected \(3,\) uint8 and 3"),
    ],
)
def test_other_spaces_are_refused(tmp_path: Path, observations: Any, actions: Any, expected: str) -> None:
    folder = tmp_path / "minari" / "set-v0" / "data"
    folder.mkdir(parents=True)
    from minari.serialization import serialize_space

    fields = {"observation_space": serialize_space(observations), "action_space": serialize_space(actions)}
    (folder / "metadata.json").write_text(json.dumps({**fields, "data_format": "hdf5"}))
    with h5py.File(folder / "main_data.hdf5", "w"):
        pass
    with pytest.raises(UserError, match=expected):
        run("set-v0", tmp_path / "set", env="gym/Counting-v0")
    assert not (tmp_path / "set").exists()


@pytest.fixture
def counting(tmp_path: Path) -> Path:
    data = collect(CollectConfig("gym/Counting-v0", tmp_path / "set", steps=9, num_envs=1), quiet=True)
    env = gymnasium.make("Counting-v0")
    return write_minari("counting-v0", everything(data), env.observation_space, env.action_space, 5)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda group: group.__delitem__("rewards"), "episode_1: the key 'rewards' is missing; found actions"),
        (lambda group: group["observations"].resize(1, 0), "found 1 observations, expected 3 for 2 actions"),
        (lambda group: group["rewards"].resize(1, 0), r"found rewards \(1,\), expected \(2,\), one per action"),
        (lambda group: group["actions"].write_direct(np.array([5, 9])), "found actions 0 to 4, expected 0 to 2"),
    ],
)
def test_a_damaged_episode_is_named(tmp_path: Path, counting: Path, change: Any, expected: str) -> None:
    with h5py.File(counting / "main_data.hdf5", "a") as file:
        change(file["episode_1"])
    with pytest.raises(UserError, match=expected):
        run("counting-v0", tmp_path / "imported", env="gym/Counting-v0")


def test_an_environment_that_is_not_there_is_named_with_the_file_that_names_it(tmp_path: Path, counting: Path) -> None:
    name_environment(counting, "Nowhere/Counting-v0")
    with pytest.raises(UserError) as raised:
        run("counting-v0", tmp_path / "imported")
    assert str(raised.value).startswith(f"{counting / 'metadata.json'}: environment 'gym/Nowhere/Counting-v0': ")
    with pytest.raises(UserError, match="^environment 'gym/Nowhere/Other-v0': "):
        run("counting-v0", tmp_path / "imported", env="gym/Nowhere/Other-v0")


def test_damaged_folders_are_named(tmp_path: Path, counting: Path) -> None:
    with pytest.raises(UserError, match="--env: .*metadata.json names no environment"):
        run("counting-v0", tmp_path / "one")
    metadata = json.loads((counting / "metadata.json").read_text())
    (counting / "metadata.json").write_text(json.dumps({**metadata, "data_format": "arrow"}))
    with pytest.raises(UserError, match="found data format arrow, expected hdf5"):
        run("counting-v0", tmp_path / "two", env="gym/Counting-v0")
    (counting / "metadata.json").write_text(json.dumps(metadata))
    os.truncate(counting / "main_data.hdf5", 1000)
    with pytest.raises(UserError, match="main_data.hdf5: truncated or not an HDF5 file"):
        run("counting-v0", tmp_path / "three", env="gym/Counting-v0")
    (counting / "main_data.hdf5").unlink()
    with pytest.raises(UserError, match="main_data.hdf5: missing"):
        run("counting-v0", tmp_path / "four", env="gym/Counting-v0")


def test_several_sources_follow_each_other_and_must_be_alike(tmp_path: Path, counting: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(counting, copy)
    config = ImportMinariConfig(source=(str(counting), str(copy)), out=tmp_path / "both", env="gym/Counting-v0")
    both, one = import_minari(config, quiet=True), run(counting, tmp_path / "one", env="gym/Counting-v0")
    assert both.lengths.tolist() == one.lengths.tolist() * 2
    metadata = json.loads((copy / "metadata.json").read_text())
    other = {**json.loads(metadata["action_space"]), "start": 6}
    (copy / "metadata.json").write_text(json.dumps({**metadata, "action_space": json.dumps(other)}))
    config = replace(config, out=tmp_path / "unlike")
    with pytest.raises(
        UserError, match=f"^{copy}: found .*first_action=6.*, expected .*first_action=5.* in {counting}$"
    ):
        import_minari(config, quiet=True)
    with pytest.raises(UserError, match=r"found .*first_action=6.*expected .*first_action=5"):
        import_minari(replace(config, source=(str(counting), str(counting), str(copy))), quiet=True)


def test_actions_start_at_zero_where_the_metadata_do_not_say(tmp_path: Path, counting: Path) -> None:
    """As files have it that were written by a Gymnasium without `start`."""
    metadata = json.loads((counting / "metadata.json").read_text())
    space = json.loads(metadata["action_space"])
    del space["start"]
    (counting / "metadata.json").write_text(json.dumps({**metadata, "action_space": json.dumps(space)}))
    with h5py.File(counting / "main_data.hdf5", "a") as file:
        stored = [file[name]["actions"][()] - 5 for name in sorted(file)]
        for name, actions in zip(sorted(file), stored, strict=True):
            file[name]["actions"][...] = actions
    imported = run("counting-v0", tmp_path / "imported", env="gym/Counting-v0")
    assert [episode.actions.tolist() for episode in everything(imported)] == [row.tolist() for row in stored]


def test_without_a_variable_data_sets_are_in_the_users_own_folder(
    tmp_path: Path, counting: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MINARI_DATASETS_PATH")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    there = tmp_path / "home" / ".minari" / "datasets" / "mine-v0"
    shutil.copytree(counting, there / "data")
    assert find_folder("mine-v0") == there / "data"


def test_a_module_that_the_user_names_is_imported(
    tmp_path: Path, counting: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "import gymnasium\ngymnasium.register('FromAModule-v0', gymnasium.spec('Counting-v0').entry_point)\n"
    (tmp_path / "a_module.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    imported = run("counting-v0", tmp_path / "imported", env="gym/a_module:FromAModule-v0")
    assert imported.num_episodes > 0
    del gymnasium.registry["FromAModule-v0"]


def rows_of_bytes(path: Path, width: int, dtype: Any = np.uint8) -> None:
    """Put a table of bytes in the place of an episode's images, as Minari's older files have them."""
    with h5py.File(path / "main_data.hdf5", "a") as file:
        count = len(file["episode_0"]["observations"])
        del file["episode_0"]["observations"]
        file["episode_0"]["observations"] = np.zeros((count, width), dtype)


@pytest.mark.usefixtures("pictures")
def test_no_image_is_larger_than_noise_could_be(tmp_path: Path, pictures: list[Any]) -> None:
    """An image may have 64 KiB beside four times its pixels: 65,536 + 4 * 40 * 48 * 3 = 88,576."""
    folder = write_minari("wide-v0", pictures, Pictures.observation_space, Discrete(2), jpeg_encoding=True)
    rows_of_bytes(folder, 88_577)
    with pytest.raises(UserError, match="episode_0: found images of 88577 bytes, expected at most 88576"):
        run(folder, tmp_path / "one", env="gym/Pictures-v0")
    rows_of_bytes(folder, 88_576)
    with pytest.raises(UserError, match="episode_0: an observation is not a JPEG image"):
        run(folder, tmp_path / "two", env="gym/Pictures-v0")


@pytest.mark.parametrize("ragged", [True, False])
def test_rows_that_are_not_of_bytes_are_no_images(tmp_path: Path, pictures: list[Any], ragged: bool) -> None:
    folder = write_minari("odd-v0", pictures, Pictures.observation_space, Discrete(2), jpeg_encoding=True)
    with h5py.File(folder / "main_data.hdf5", "a") as file:
        group = file["episode_0"]
        count = len(group["observations"])
        del group["observations"]
        if ragged:
            rows = group.create_dataset("observations", (count,), h5py.vlen_dtype(np.float32))
            rows[...] = [np.zeros(3, np.float32)] * count
        else:
            group["observations"] = np.zeros((count, 5, 5), np.uint8)
    with pytest.raises(UserError, match="episode_0: found observations that are neither images nor arrays"):
        run(folder, tmp_path / "one", env="gym/Pictures-v0")


def test_a_mistake_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", "minari", "nothing-v0", "--out", str(tmp_path / "set")]) == 2
    assert "nothing-v0: not a Minari data set: no metadata.json there nor under" in capsys.readouterr().err
