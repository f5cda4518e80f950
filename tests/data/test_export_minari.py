"""Minari: what is exported is read by the library as it is, and comes back to the byte through our own importer."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import minari
import numpy as np
import pytest

import protovalue.data.export_minari as exporting
from protovalue.cli import main
from protovalue.data.collect import collect
from protovalue.data.config import CollectConfig, ExportMinariConfig, ImportMinariConfig
from protovalue.data.dataset import Dataset, open_dataset
from protovalue.data.export_minari import default_name, export_minari
from protovalue.data.format import End, Manifest
from protovalue.data.import_minari import import_minari
from protovalue.data.writer import DatasetWriter
from protovalue.envs.options import EnvOptions
from protovalue.errors import UserError
from tests.data.helpers import made_up, manifest, write
from tests.data.published import same_contents


def back(folder: Path, out: Path, **settings: Any) -> Dataset:
    config = ImportMinariConfig(source=(str(folder),), out=out, **{"workers": 1, **settings})
    return import_minari(config, quiet=True)


def export(*data: Path, out: Path, name: str = "") -> Path:
    return export_minari(ExportMinariConfig(data=data, out=out, name=name), quiet=True)


@pytest.mark.parametrize(
    ("env", "options"),
    [
        ("minatar/space_invaders", EnvOptions(actions="full", sticky=0.3, stack=2, max_steps=20)),
        ("gym/Counting-v0", EnvOptions(stack=3)),
        ("atari/Pong", EnvOptions(max_steps=12)),
    ],
)
def test_what_is_exported_comes_back_to_the_byte(tmp_path: Path, env: str, options: EnvOptions) -> None:
    steps = 30 if env == "atari/Pong" else 114
    data = collect(CollectConfig(env, tmp_path / "set", steps=steps, num_envs=1, options=options), quiet=True)
    export(tmp_path / "set", out=tmp_path / "there")
    again = back(tmp_path / "there", tmp_path / "again")
    assert same_contents(tmp_path / "set", tmp_path / "again")
    for name in ("env_id", "env_options", "stack", "num_actions", "rewards_are"):
        assert getattr(again, name) == getattr(data, name), name
    assert "frames" not in again.folders[0].manifest.provenance[0]  # which would say that they are lossy
    assert {End(end) for end in again.ends} >= ({End.CUT, End.TRUNCATED} if env == "gym/Counting-v0" else {End.CUT})


def test_the_library_reads_it(tmp_path: Path) -> None:
    options = EnvOptions(max_steps=12)
    data = collect(CollectConfig("atari/Pong", tmp_path / "set", steps=30, num_envs=1, options=options), quiet=True)
    found = minari.MinariDataset(export(tmp_path / "set", out=tmp_path / "there", name="pong/few-v3"))
    assert (found.id, found.total_episodes, found.total_steps) == ("pong/few-v3", data.num_episodes, 30)
    assert found.observation_space.shape == (84, 84)
    for index, episode in enumerate(found.iterate_episodes()):
        ours = data.episode(index)
        assert np.array_equal(episode.observations, ours.frames)
        assert np.array_equal(episode.actions, ours.actions)
        assert np.array_equal(episode.rewards, ours.rewards)
        assert episode.truncations.tolist() == [False] * (len(ours.actions) - 1) + [ours.end == End.TRUNCATED]
        assert not episode.terminations.any()


def test_the_library_makes_the_environment_of_minatar(tmp_path: Path) -> None:
    collect(CollectConfig("minatar/space_invaders", tmp_path / "set", steps=20, num_envs=1), quiet=True)
    found = minari.MinariDataset(export(tmp_path / "set", out=tmp_path / "there"))
    env = found.recover_environment()
    assert env.observation_space.shape == (10, 10, 6)
    assert env.action_space.n == 4
    assert env.unwrapped.game.sticky_action_prob == 0.1
    assert found.id == "minatar/space_invaders/there-v0"


def test_the_files_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Noise of 84 x 84 bytes: 262,144 // 7,056 = 37 frames are a chunk, and 61 frames are 0.4 megabytes."""
    monkeypatch.setattr(exporting, "BLOCK", 20)
    changes: dict[str, Any] = {"frame_shape": (84, 84), "env_id": "gym/Floats-v0", "env_options": {}}
    rng, like = np.random.default_rng(0), manifest(**changes)
    first, second = made_up(50, rng, End.TERMINATED, like), made_up(9, rng, End.TRUNCATED, like)
    write(tmp_path / "set", [first, second], **changes)
    (tmp_path / "there").mkdir()  # an empty folder is as good as none
    assert main(["export", "minari", str(tmp_path / "set"), "--out", str(tmp_path / "there")]) == 0
    folder, printed = tmp_path / "there" / "data", capsys.readouterr()
    assert printed.out.splitlines() == [
        f"{folder}: 2 episodes, 59 transitions",
        f"in Python: minari.MinariDataset('{folder}'); back: pvn import minari {tmp_path}/there --out NEW",
    ]
    (line,) = printed.err.splitlines()
    assert line.startswith("export: 59/59 transitions, ")

    fields = json.loads((folder / "metadata.json").read_text())
    spec, box, actions = (json.loads(fields.pop(name)) for name in ("env_spec", "observation_space", "action_space"))
    assert (spec["id"], spec["entry_point"]) == ("Floats-v0", "gymnasium.envs.classic_control.cartpole:CartPoleEnv")
    low, high = [[0] * 84] * 84, [[255] * 84] * 84
    assert box == {"type": "Box", "dtype": "uint8", "shape": [84, 84], "low": low, "high": high}
    assert actions == {"type": "Discrete", "dtype": "int64", "start": 0, "n": 4}
    assert fields.pop("description").startswith("A data set of protovalue, from gym/Floats-v0. ")
    assert fields == {
        "dataset_id": "gym/Floats-v0/there-v0",
        "minari_version": "0.5.4",
        "data_format": "hdf5",
        "jpeg_encoding": False,
        "total_episodes": 2,
        "total_steps": 59,
        "dataset_size": 0.4,
        "protovalue": {"env_id": "gym/Floats-v0", "env_options": {}, "rewards": "raw"},
    }
    with h5py.File(folder / "main_data.hdf5") as file:
        assert list(file) == ["episode_0", "episode_1"]
        for index, (given, rows) in enumerate(((first, 37), (second, 10))):
            group = file[f"episode_{index}"]
            assert dict(group.attrs) == {"id": index, "total_steps": len(given.actions), "iteration": -1}
            assert group["observations"].chunks == (rows, 84, 84)
            assert np.array_equal(group["observations"], given.frames)
            assert np.array_equal(group["actions"], given.actions)
            assert np.array_equal(group["rewards"], given.rewards)
            ends = [group[name][:].tolist() for name in ("terminations", "truncations")]
            last = [False] * (len(given.actions) - 1) + [True]
            assert ends == ([last, [False] * 50] if index == 0 else [[False] * 9, last])


def test_a_frame_that_is_larger_than_a_chunk_is_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changes: dict[str, Any] = {"frame_shape": (520, 520)}
    write(tmp_path / "set", [made_up(2, np.random.default_rng(0), like=manifest(**changes))], **changes)
    folder = export(tmp_path / "set", out=tmp_path / "there")
    assert capsys.readouterr().err == ""
    with h5py.File(folder / "main_data.hdf5") as file:
        assert file["episode_0/observations"].chunks == (1, 520, 520)


@pytest.mark.parametrize(
    ("env_id", "options", "known"),
    [
        ("gym/Floats-v0", {}, True),
        ("gym/Floats-v0", {"resize": 10}, False),
        ("gym/Nobody-v0", {}, False),
        ("gym/Counting-v0", {}, False),  # made by a class of somebody's program
        ("atari/Floats-v0", {}, False),
    ],
)
def test_an_environment_is_named_where_gymnasium_makes_the_same(
    tmp_path: Path, env_id: str, options: dict[str, Any], known: bool
) -> None:
    write(tmp_path / "set", [made_up(3, np.random.default_rng(0))], env_id=env_id, env_options=options)
    fields = json.loads((export(tmp_path / "set", out=tmp_path / "there") / "metadata.json").read_text())
    assert ("env_spec" in fields) == known


def test_iterations_and_clipped_rewards_come_back(tmp_path: Path) -> None:
    """By hand: two episodes of the iterations 3 and 49."""
    manifest = Manifest("gym/Counting-v0", {"stack": 1}, (3,), "uint8", 1, 3, 64, "clipped")
    rng = np.random.default_rng(0)
    with DatasetWriter(tmp_path / "set", manifest, {"by": "hand"}, 0) as writer:
        for iteration in (3, 49):
            buffer = writer.begin(rng.integers(256, size=3).astype(np.uint8), iteration)
            for _ in range(4):
                buffer.add(1, 0.25, rng.integers(256, size=3).astype(np.uint8))
            buffer.end(End.TERMINATED)
    export(tmp_path / "set", out=tmp_path / "there")
    again = back(tmp_path / "there", tmp_path / "again")
    assert again.iterations.tolist() == [3, 49]
    assert again.rewards_are == "clipped"
    assert same_contents(tmp_path / "set", tmp_path / "again")


def test_several_folders_are_one(tmp_path: Path) -> None:
    for seed in (0, 1):
        collect(CollectConfig("minatar/breakout", tmp_path / f"{seed}", steps=40, num_envs=2, seed=seed), quiet=True)
    whole = open_dataset(tmp_path / "0", tmp_path / "1")
    export(tmp_path / "0", tmp_path / "1", out=tmp_path / "there")
    again = back(tmp_path / "there", tmp_path / "again")
    assert again.num_episodes == whole.num_episodes
    for index in range(whole.num_episodes):
        assert np.array_equal(again.episode(index).frames, whole.episode(index).frames)


@pytest.fixture
def there(tmp_path: Path) -> Path:
    collect(CollectConfig("gym/Counting-v0", tmp_path / "set", steps=6, num_envs=1), quiet=True)
    return export(tmp_path / "set", out=tmp_path / "there")


def test_what_is_refused_leaves_nothing(
    there: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusal(*words: str) -> str:
        before = sorted(tmp_path.rglob("*"))
        assert main(["export", "minari", *words]) == 2
        assert sorted(tmp_path.rglob("*")) == before
        return capsys.readouterr().err

    data = str(tmp_path / "set")
    assert "found something there, expected a new folder" in refusal(data, "--out", str(there.parent))
    (tmp_path / "file").write_text("")
    assert f"{tmp_path}/file: found a file, expected a folder" in refusal(data, "--out", str(tmp_path / "file"))
    assert f"{tmp_path}/file: found a file, expected a" in refusal(data, "--out", str(tmp_path / "file" / "new"))
    assert "not a data set" in refusal(str(there), "--out", str(tmp_path / "new"))
    assert "--name: found 'a b'" in refusal(data, "--out", str(tmp_path / "new"), "--name", "a b")
    assert "DATA: found none" in refusal("--out", str(tmp_path / "new"))
    (tmp_path / "damaged").mkdir()
    for path in (tmp_path / "set").iterdir():
        raw = bytearray(path.read_bytes())
        if path.name == "frames.bin":
            raw[20] ^= 1
        (tmp_path / "damaged" / path.name).write_bytes(raw)
    assert "damaged" in refusal(str(tmp_path / "damaged"), "--out", str(tmp_path / "new"))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"env_id": "gym/evil:Counting-v0"}, "expected a name; if you trust it: --env"),
        ({"env_id": "/home/evil.py/x"}, "expected a name; if you trust it: --env"),
        ({"env_id": "gym/Nobody-v0"}, "--env names it"),
        ({"env_options": {"stack": "two"}}, "field stack: found 'two'"),
        ({"rewards": "doubled"}, "field protovalue.rewards: found 'doubled'"),
    ],
)
def test_what_a_file_says_of_itself_is_not_trusted(
    there: Path, tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    path = there / "metadata.json"
    found = json.loads(path.read_text())
    path.write_text(json.dumps({**found, "protovalue": {**found["protovalue"], **fields}}))
    with pytest.raises(UserError, match=message):
        back(there, tmp_path / "again")
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize("value", [-2, 1 << 40, 1.5, [1, 2], "three"])
def test_an_iteration_that_is_none(there: Path, tmp_path: Path, value: Any) -> None:
    with h5py.File(there / "main_data.hdf5", "a") as file:
        file["episode_0"].attrs["iteration"] = value
    with pytest.raises(UserError, match="attribute iteration: found .*, expected a whole number from -1 on"):
        back(there, tmp_path / "again")


def test_names_by_hand() -> None:
    assert default_name("gym/My.Env-v0", Path("some/where now")) == "gym/My-Env-v0/where-now-v0"
    assert default_name("minatar/breakout", Path("x")) == "minatar/breakout/x-v0"
    good = ExportMinariConfig(data=(Path("x"),), out=Path("y"), name="a/b_c/d-e-v12")
    assert replace(good, name="").name == ""
