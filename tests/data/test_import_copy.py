"""Data sets from elsewhere: ours, copied and checked; published ones from the Hub; with a connection that breaks."""

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from huggingface_hub import HfFileSystem

import protovalue.data.import_copy as copying
from protovalue.cli import main
from protovalue.data import sources
from protovalue.data.collect import collect
from protovalue.data.config import CollectConfig, ImportCopyConfig, ImportRluConfig
from protovalue.data.import_copy import import_copy
from protovalue.data.import_rlu import import_rlu
from protovalue.data.sources import find_sources
from protovalue.errors import UserError
from protovalue.files import read_json, write_json
from tests.data.published import CONTENTS, atari_episode, same_contents, write_atari, write_rlu
from tests.hub_server import Hub, connected
from tests.test_hub import files

NAMES = sorted({*CONTENTS, "manifest.json"})


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setattr(sources, "PAUSE", 0.001)
    with connected(monkeypatch, tmp_path, token=None) as found:
        HfFileSystem.clear_instance_cache()  # of the server of another test
        yield found
        HfFileSystem.clear_instance_cache()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    collect(CollectConfig("minatar/breakout", tmp_path / "set", steps=60, num_envs=2), quiet=True)
    return tmp_path / "set"


def copied(source: Path | str, out: Path) -> None:
    import_copy(ImportCopyConfig(source=str(source), out=out), quiet=True)


def test_from_the_hub_to_the_byte(hub: Hub, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hub.repo("me/breakout", "datasets").commit({**files(data), "README.md": b"# Breakout", ".gitattributes": b""})
    assert main(["import", "copy", "hf://datasets/me/breakout", "--out", str(tmp_path / "copy")]) == 0
    assert "60 transitions in " in capsys.readouterr().out
    assert same_contents(data, tmp_path / "copy")
    assert read_json(tmp_path / "copy/manifest.json") == read_json(data / "manifest.json")
    assert not (tmp_path / "copy.partial").exists()
    assert not (tmp_path / "copy/README.md").exists()


def test_from_a_folder_of_a_repository_and_from_a_folder(hub: Hub, data: Path, tmp_path: Path) -> None:
    inside = {f"games/breakout/{name}": content for name, content in files(data).items()}
    hub.repo("me/games", "datasets").commit({**inside, "games/other/manifest.json": b"{}"})
    copied("hf://datasets/me/games/games/breakout", tmp_path / "one")
    copied(data, tmp_path / "two")
    assert same_contents(data, tmp_path / "one")
    assert same_contents(data, tmp_path / "two")
    with pytest.raises(UserError, match="not a data set: found no manifest.json, or several"):
        copied("hf://datasets/me/games", tmp_path / "three")


def test_published_data_from_the_hub(hub: Hub, tmp_path: Path) -> None:
    """RL Unplugged's shards lie there as anywhere else."""
    import numpy as np

    rng = np.random.default_rng(0)
    made = write_atari(tmp_path / "made", [atari_episode(length, rng) for length in (3, 4)])
    shard = write_rlu(tmp_path / "Pong/run_1-00000-of-00050", made)
    hub.repo("me/atari", "datasets").commit({"Pong/run_1-00000-of-00050": shard.read_bytes()})
    for name, source in (("one", "hf://datasets/me/atari/Pong"), ("two", str(shard.parent))):
        import_rlu(ImportRluConfig(source=(source,), out=tmp_path / name, workers=1), quiet=True)
    assert same_contents(tmp_path / "one", tmp_path / "two")


def test_a_connection_that_is_cut_is_gone_on_with(hub: Hub, data: Path, tmp_path: Path) -> None:
    hub.repo("me/x", "datasets").commit(files(data))
    hub.cuts = 2
    copied("hf://datasets/me/x", tmp_path / "copy")
    assert hub.cuts == 0
    assert same_contents(data, tmp_path / "copy")


@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_byte_is_seen_and_nothing_is_left(hub: Hub, data: Path, tmp_path: Path, name: str) -> None:
    hub.repo("me/x", "datasets").commit(files(data))
    hub.wrong.add(name)
    with pytest.raises(UserError, match="damaged|checksum|found"):
        copied("hf://datasets/me/x", tmp_path / "copy")
    assert list(tmp_path.glob("copy*")) == []


def test_what_was_copied_before_is_kept(hub: Hub, data: Path, tmp_path: Path) -> None:
    hub.repo("me/x", "datasets").commit(files(data))
    (tmp_path / "copy.partial").mkdir()
    (tmp_path / "copy.partial/frames.bin").write_bytes((data / "frames.bin").read_bytes())
    (tmp_path / "copy.partial/actions.bin").write_bytes(b"half")
    copied("hf://datasets/me/x", tmp_path / "copy")
    assert same_contents(data, tmp_path / "copy")
    assert not any("resolve" in line and "frames.bin" in line for line in hub.asked)


def test_what_is_refused_leaves_nothing(hub: Hub, data: Path, tmp_path: Path) -> None:
    there = files(data)
    cases = {
        "none": ({}, "found no file there"),
        "half": ({name: there[name] for name in there if name != "frames.bin"}, "found no frames.bin"),
        "long": ({**there, "actions.bin": there["actions.bin"] + b"more"}, "actions.bin: found 244 bytes"),
        "odd": ({**there, "manifest.json": b"{}"}, "checksum"),
    }
    for name, (content, message) in cases.items():
        hub.repo(f"me/{name}", "datasets").commit(content)
        with pytest.raises(UserError, match=message):
            copied(f"hf://datasets/me/{name}", tmp_path / "copy")
        assert list(tmp_path.glob("copy*")) == [], name
    with pytest.raises(UserError, match="hf://datasets/me/nobody: "):
        copied("hf://datasets/me/nobody", tmp_path / "copy")
    fields = read_json(data / "manifest.json")
    write_json(data / "manifest.json", {**fields, "complete": False})
    with pytest.raises(UserError, match="found a data set that is not finished"):
        copied(data, tmp_path / "copy")
    (tmp_path / "there").mkdir()
    with pytest.raises(UserError, match="found something there, expected a new folder"):
        copied(data, tmp_path / "there")


def test_the_bar_counts_every_byte_once(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Into a folder that is not there yet; the manifest is read first, without a bar of its own."""
    monkeypatch.setattr(copying, "_BLOCK", 100)
    total = sum((data / name).stat().st_size for name in NAMES)
    assert main(["import", "copy", str(data), "--out", str(tmp_path / "deep" / "copy")]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith(f"{tmp_path}/deep/copy: 60 transitions in ")
    (line,) = printed.err.splitlines()
    assert line.startswith(f"copy: {total:,}/{total:,} bytes, ")
    copied(data, tmp_path / "quiet")
    assert capsys.readouterr().err == ""


def test_a_manifest_may_be_so_large_and_not_larger(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = (data / "manifest.json").stat().st_size
    monkeypatch.setattr(copying, "_MANIFEST_BYTES", size)
    copied(data, tmp_path / "copy")
    monkeypatch.setattr(copying, "_MANIFEST_BYTES", size - 1)
    with pytest.raises(UserError, match=f"manifest.json: found {size:,} bytes, expected at most {size - 1:,}$"):
        copied(data, tmp_path / "again")
    assert list(tmp_path.glob("again*")) == []


def test_sizes_that_a_server_does_not_say(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then nothing that was copied before is trusted; here it is too long."""
    found = [replace(one, size=0) for one in find_sources([str(data)], "json$|bin$")]
    assert sorted(one.name for one in found) == NAMES
    monkeypatch.setattr(copying, "find_sources", lambda *_: found)
    (tmp_path / "copy.partial").mkdir()
    (tmp_path / "copy.partial/rewards.bin").write_bytes(bytes(1000))
    copied(data, tmp_path / "copy")
    assert same_contents(data, tmp_path / "copy")


def test_every_file_is_on_the_disk_and_closed(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.path.realpath(f"/proc/self/fd/{descriptor}")))
    copied(data, tmp_path / "copy")
    assert sorted(synced) == [f"{tmp_path}/copy.partial/{name}" for name in NAMES]
    still_open = [os.path.realpath(entry) for entry in Path("/proc/self/fd").iterdir()]
    assert not [name for name in still_open if name.startswith(f"{tmp_path}/")]


def test_a_place_where_no_folder_can_be_is_refused_first(data: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=f"^{tmp_path}/file: found a file, expected a folder or a free name: "):
        copied(data, tmp_path / "file" / "copy")


def test_without_the_package_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fsspec.registry import _registry

    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.delitem(_registry, "hf", raising=False)
    with pytest.raises(UserError, match=r"hf:// needs another package: .*pip install -e '.\[hub\]'"):
        copied("hf://datasets/me/x", tmp_path / "copy")
