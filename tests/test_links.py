"""A folder that came from elsewhere may have links in it: no command writes through one."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from protovalue.cli import main
from protovalue.errors import UserError
from protovalue.study.engines.base import Job
from protovalue.study.engines.local import LocalProcesses
from protovalue.study.folder import Events
from protovalue.study.worker import wait_for_workers


def contents(folder: Path) -> dict[str, bytes]:
    """Return all files of a folder, however deep."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def hostile(like: Path, tmp_path: Path) -> Iterator[tuple[str, Path, Path]]:
    """Yield copies of a folder in which one file, or one folder, is a link to what is precious elsewhere."""
    for number, name in enumerate(sorted(str(path.relative_to(like)) for path in like.rglob("*"))):
        folder, precious = tmp_path / f"hostile{number}", tmp_path / f"precious{number}"
        shutil.copytree(like, folder)
        place = folder / name
        precious.mkdir()
        if place.is_dir():
            shutil.copytree(place, precious / "it")
            (precious / "it/.mine").write_text("precious")
            shutil.rmtree(place)
        else:
            shutil.copy(place, precious / "it")
            place.unlink()
        place.symlink_to(precious / "it")
        yield name, folder, precious


def check(like: Path, tmp_path: Path, command: Callable[[Path], str]) -> set[str]:
    """Run a command in all such folders; return the names of links that it refused."""
    refused = set()
    for name, folder, precious in hostile(like, tmp_path):
        before = contents(precious)
        code = main(command(folder).split())
        assert code in (0, 2), name
        assert contents(precious) == before, name
        if code == 2:
            refused.add(name)
    return refused


def test_an_online_run_that_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def words(out: Path, steps: int = 12) -> str:
        small = "--env minatar/breakout --replay-min 5 --keep-replay --checkpoint-every 6"
        return f"online --encoder random:minatar:1 {small} --steps {steps} --out {out}"

    assert main(words(tmp_path / "run", 9).split()) == 0
    refused = check(tmp_path / "run", tmp_path, words)
    assert {"lock", "checkpoints", "events", "metrics.jsonl", "replay", "replay/items.bin"} <= refused
    assert {name for name in refused if not name.startswith("replay/")} == {
        "lock", "checkpoints", "events", "metrics.jsonl", "replay"
    }  # fmt: skip


def test_a_replay_that_is_mapped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, replay = tmp_path / "run", tmp_path / "replay"
    words = f"dqn --env minatar/breakout --replay-min 5 --keep-replay --out {out} --replay-dir {replay} --steps "
    assert main((words + "9").split()) == 0
    shutil.copytree(out, tmp_path / "kept")
    shutil.copytree(replay, tmp_path / "like")
    for name, folder, precious in hostile(tmp_path / "like", tmp_path):
        for place, with_this in ((out, tmp_path / "kept"), (replay, folder)):
            shutil.rmtree(place)
            shutil.copytree(with_this, place, symlinks=True)
        before = contents(precious)
        assert main((words + "12").split()) == (0 if name == "owner.txt" else 2), name
        assert contents(precious) == before, name
        assert name == "owner.txt" or f"{name}: found a symbolic link" in capsys.readouterr().err


def test_pretraining_and_its_encoder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(f"collect minatar/breakout --steps 64 --num-envs 2 --out {tmp_path}/data".split()) == 0

    def words(out: Path, steps: int = 3) -> str:
        small = "--tasks 8 --batch-size 4 --checkpoint-every 1"
        return f"pretrain --data {tmp_path}/data {small} --steps {steps} --out {out} --cache {tmp_path}/cache"

    assert main(words(tmp_path / "run", 2).split()) == 0
    assert {"lock", "checkpoints", "events", "encoder"} <= check(tmp_path / "run", tmp_path, words)


def test_collecting_that_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def words(out: Path, steps: int = 90) -> str:
        return f"collect minatar/breakout --steps {steps} --num-envs 2 --out {out}"

    assert main(words(tmp_path / "data", 60).split()) == 0
    bins = {"actions.bin", "chunks.bin", "episodes.bin", "frames.bin", "rewards.bin"}
    assert check(tmp_path / "data", tmp_path, words) == {"lock", *bins}


def test_evaluations_films_and_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = "--env minatar/breakout --steps 9 --replay-min 5"
    assert main(f"online --encoder random:minatar:1 {small} --out {tmp_path}/run".split()) == 0
    assert main(f"collect minatar/breakout --steps 20 --num-envs 2 --out {tmp_path}/data".split()) == 0
    (tmp_path / "precious").write_text("precious")
    for words, name in (
        (f"evaluate {tmp_path}/run --episodes 1", "run/evaluation.json"),
        (f"evaluate {tmp_path}/run --episodes 1 --out {tmp_path}/e.json --video {tmp_path}/v.gif", "v.gif"),
        (f"data info {tmp_path}/data --picture {tmp_path}/p.png", "p.png"),
    ):
        (tmp_path / name).unlink(missing_ok=True)
        (tmp_path / name).symlink_to(tmp_path / "precious")
        assert main(words.split()) == 0
        assert (tmp_path / "precious").read_text() == "precious"
        assert not (tmp_path / name).is_symlink()
        assert (tmp_path / name).stat().st_size > 100


def test_a_report_and_a_page_of_theory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = "--env minatar/breakout --steps 9 --replay-min 5"
    assert main(f"online --encoder random:minatar:1 {small} --out {tmp_path}/run".split()) == 0
    assert main(f"evaluate {tmp_path}/run --episodes 1".split()) == 0
    (tmp_path / "precious").mkdir()
    for name in ("games.md", "aggregates.png", "index.html", "mds.json"):
        (tmp_path / "precious" / name).write_text("precious")
    out = tmp_path / "page"
    out.mkdir()
    (out / "index.html").symlink_to(tmp_path / "precious/index.html")
    words = f"report {tmp_path}/run --out {out} --features none --draws 100"
    assert main(words.split()) == 0
    assert not (out / "index.html").is_symlink()
    for folder in ("tables", "figures"):
        shutil.rmtree(out / folder)
        (out / folder).symlink_to(tmp_path / "precious")
        assert main(words.split()) == 2
        assert f"{folder}: found a symbolic link, expected a folder" in capsys.readouterr().err
        (out / folder).unlink()
    assert set(contents(tmp_path / "precious").values()) == {b"precious"}


def test_what_a_study_writes(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    for name in ("workers", "events.jsonl"):
        (tmp_path / name).symlink_to(tmp_path / "precious")
    with pytest.raises(UserError, match="workers: found a symbolic link"):
        wait_for_workers(tmp_path)
    Events(tmp_path).close()  # what it cut off it wrote anew, in place of the link
    assert not (tmp_path / "events.jsonl").is_symlink()
    (tmp_path / "events.jsonl").unlink()
    (tmp_path / "events.jsonl").symlink_to(tmp_path / "empty")
    with pytest.raises(UserError, match="events.jsonl: found a symbolic link"):
        Events(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "logs").symlink_to(tmp_path / "folder")
    with pytest.raises(UserError, match="logs: found a symbolic link, expected a folder"):
        LocalProcesses(1, tmp_path, 1).submit(Job("x", ("pvn",), tmp_path / "logs/x.log"))
    assert (tmp_path / "precious").read_text() == "precious"
    assert not (tmp_path / "empty").exists()
    assert os.listdir(tmp_path / "folder") == []  # noqa: PTH208
