"""What the imports share, by value: rewards, actions, games in paths, selections, positions, the order of episodes."""

import contextlib
import json
import os
from collections.abc import Generator, Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protovalue.data import importing
from protovalue.data.config import ImportRluConfig
from protovalue.data.dataset import open_dataset
from protovalue.data.format import End
from protovalue.data.importing import (
    Encoded,
    ImportPlan,
    Pending,
    Selection,
    Tally,
    Workers,
    atari_manifest,
    check_actions,
    clean_rewards,
    cpu_count,
    encode_chunks,
    game_of,
    note_damage,
    report,
    run_import,
    select,
)
from protovalue.data.sources import DamagedError, SourceFile
from protovalue.errors import UserError
from tests.data.helpers import made_up, manifest, reseal


def source(path: str, size: int = 0) -> SourceFile:
    return SourceFile(path, path, size)


def test_rewards_are_cleaned_and_clipped() -> None:
    rewards = np.array([0.5, np.nan, -3.0, 1.5, np.nan, np.inf])
    values, counts = clean_rewards(rewards, clip=True)
    assert values.dtype == np.float32
    assert values.tolist() == [0.5, 0.0, -1.0, 1.0, 0.0, 1.0]
    assert counts == {"nan_rewards": 2}
    values, counts = clean_rewards(np.array([2, -3], np.int64), clip=False)
    assert (values.tolist(), counts) == ([2.0, -3.0], {})


def test_actions_are_those_of_the_environment() -> None:
    found = check_actions(np.array([0, 3, 1], np.int64), 4, "FILE")
    assert (found.dtype, found.tolist()) == (np.dtype(np.int32), [0, 3, 1])
    assert check_actions(np.zeros(0, np.int64), 4, "FILE").tolist() == []
    full = "; --actions full reads them as the console's 18"
    for actions, number, text in (
        ([0, 4], 4, f"FILE: found actions 0 to 4, expected 0 to 3{full}"),
        ([5, 17], 4, f"FILE: found actions 5 to 17, expected 0 to 3{full}"),
        ([-1, 3], 4, f"FILE: found actions -1 to 3, expected 0 to 3{full}"),
        ([0, 18], 4, "FILE: found actions 0 to 18, expected 0 to 3"),
        ([0, 18], 18, "FILE: found actions 0 to 18, expected 0 to 17"),
        ([-1, 17], 18, "FILE: found actions -1 to 17, expected 0 to 17"),
    ):
        with pytest.raises(UserError) as raised:
            check_actions(np.array(actions), number, "FILE")
        assert str(raised.value) == text


@pytest.mark.parametrize(
    ("paths", "game"),
    [
        (["/data/Pong/run_1-00000-of-00050"], "Pong"),
        (["/data/pong/1/replay_logs/x", "/other/PONG/2/replay_logs/x"], "Pong"),
        (["/Pong/Asterix/x"], "Asterix"),  # the nearest to the file
        (["/rlu/SpaceInvaders_run_3/x"], "SpaceInvaders"),
        (["/rlu/rlu_asterix_run_1-00000-of-00001"], "Asterix"),
    ],
)
def test_the_game_is_read_off_the_path(paths: list[str], game: str) -> None:
    assert game_of([source(path) for path in paths], None) == game
    assert game_of([source(path) for path in paths], "Whatever") == "Whatever"


def test_paths_that_name_no_game_or_several() -> None:
    with pytest.raises(UserError, match="^--game: found none in the path of /data/x, expected a name such as Asterix$"):
        game_of([source("/data/x")], None)
    with pytest.raises(UserError, match="^--game: found several games: Asterix, Pong in the path of /Pong/x, expected"):
        game_of([source("/Pong/x"), source("/Asterix/x")], None)


def chosen(files: Any, **settings: Any) -> Selection:
    def number(file: Any, place: Any) -> int | None:
        word = file.name.split("-")[place]
        return int(word) if word.isdecimal() else None

    config = ImportRluConfig(source=("a", "b"), out=Path("out"), **settings)
    return select(config, "rlu", files, lambda file: number(file, 0), lambda file: number(file, 1))


def test_files_are_selected_by_run_and_checkpoint() -> None:
    files = [source(f"/{run}-{iteration}") for run in (1, 2, 3) for iteration in (0, 24, 49)]
    found = chosen(files, split="mixed-small", runs="3,1", proportion=0.5)
    assert [file.name for file in found.files] == ["1-0", "1-24", "1-49", "3-0", "3-24", "3-49"]
    assert found.source == {
        "by": "pvn import rlu",
        "source": "a b",
        "files": 6,
        "runs": [1, 3],
        "split": "mixed-small",
        "iterations": [0, 24, 49],
        "proportion": 0.5,
    }
    found = chosen(files, iterations="24")
    assert [file.name for file in found.files] == ["1-24", "2-24", "3-24"]
    assert (found.source["split"], found.source["iterations"]) == ("iterations", [24])
    assert chosen(files).source["iterations"] == "all"
    with pytest.raises(UserError, match="^--runs: found no run 4 in the paths of a b$"):
        chosen(files, runs="1,4,5")
    with pytest.raises(UserError, match="^--iterations 24,25: iteration 25 is not in the source, which has 0 to 49$"):
        chosen(files, iterations="24,25")
    with pytest.raises(UserError, match="^--split mixed: iteration 9, 19, 29, 39 is not in the source"):
        chosen(files, split="mixed")


def test_a_file_that_does_not_tell_its_checkpoint_stays() -> None:
    files = [source("/1-0"), source("/1-24"), source("/x-x")]
    found = chosen(files, iterations="24")
    assert [file.name for file in found.files] == ["1-24", "x-x"]
    assert found.source["runs"] == [1]


def test_the_manifest_of_public_atari_data() -> None:
    found = atari_manifest("Breakout", "full")
    assert (found.env_id, found.num_actions, found.rewards, found.stack) == ("atari/Breakout", 18, "clipped", 4)
    assert (found.env_options["sticky"], found.env_options["actions"]) == (0.25, "full")
    assert (found.frame_shape, found.chunk_frames) == ((84, 84), 16)


def test_damage_is_raised_or_counted(caplog: pytest.LogCaptureFixture) -> None:
    tally = Tally()
    with pytest.raises(UserError, match="^here; --skip-damaged leaves it out$"):
        note_damage(DamagedError("here"), tally, skip=False)
    note_damage(DamagedError("there"), tally, skip=True)
    assert tally.state() == {"damaged": 1}
    assert caplog.messages == ["there; left out"]


def test_counts_that_are_zero_are_not_told() -> None:
    tally = Tally()
    tally.counts.update({"empty": 0, "damaged": 3})
    assert tally.state() == {"damaged": 3}


def encoded(length: Any, iteration: int = -1, **counts: Any) -> Encoded:
    """An episode whose rewards are its length."""
    made = made_up(length, np.random.default_rng(length))
    groups = (made.frames[first : first + 4] for first in range(0, length + 1, 4)) if length else iter(())
    chunks = encode_chunks(manifest(), groups)
    return Encoded(chunks, made.actions, np.full(length, length, np.float32), End.CUT, iteration, counts)


def plan(out: Any, files: Any, read: Any = None, **settings: Any) -> ImportPlan:
    """A plan over files that are lists of episodes' lengths; an exception in their place is raised there."""
    contents = {f"file-{number}": lengths for number, lengths in enumerate(files)}

    def read_file(file: SourceFile, tally: Tally, workers: Workers) -> Generator[Pending, None, None]:
        for number, length in enumerate(contents[file.name]):
            tally.read = 500_000 * (number + 1)
            if isinstance(length, BaseException):
                raise length
            yield encoded(length, iteration=int(file.name[-1]), nan_rewards=length)

    sources = [source(name, 1_000_000 * len(contents[name])) for name in contents]
    settings = {"source": {"by": "test", "source": "SRC"}, "workers": 1, **settings}
    return ImportPlan(out=out, manifest=manifest(), files=sources, read=read or read_file, **settings)


def test_the_episodes_come_in_order_and_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = run_import(plan(tmp_path / "set", [[3, 0, 2], [], [7]]), quiet=True)
    assert data.lengths.tolist() == [3, 2, 7]
    assert data.iterations.tolist() == [0, 0, 2]
    assert [data.episode(i).rewards[0] for i in range(3)] == [3, 2, 7]
    (entry,) = data.folders[0].manifest.provenance
    assert entry == {"by": "test", "source": "SRC", "first_episode": 0, "nan_rewards": 12, "empty": 1}
    assert data.folders[0].manifest.complete
    report(data, tmp_path / "set")
    assert capsys.readouterr().out.splitlines() == [
        f"{tmp_path / 'set'}: 12 transitions of gym/Nothing-v0 in 3 episodes",
        "1 episodes without a complete transition left out",
        "12 NaN rewards set to 0",
        f"look at it: pvn data info {tmp_path / 'set'} --picture frames.png",
    ]


def test_counts_of_another_type_are_not_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_import(plan(tmp_path / "set", [[3]]), quiet=True)
    reseal(tmp_path / "set", provenance=[{"first_episode": 0, "damaged": "many", "empty": None}])
    report(open_dataset(tmp_path / "set"), tmp_path / "set")
    assert len(capsys.readouterr().out.splitlines()) == 2


class Killed(BaseException):
    pass


@pytest.mark.parametrize("kill", range(1, 9))
@pytest.mark.parametrize("commit", [0.0, 100.0])
def test_an_interrupted_import_goes_on_where_it_was(
    tmp_path: Path, kill: Any, commit: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after each of eight episodes in three files, one of them empty: the counts and the bytes are the same."""
    files = [[3, 0, 2, 5], [4], [1, 6, 2, 2]]
    once = run_import(plan(tmp_path / "once", files), quiet=True)
    import protovalue.data.writer as writer

    real, read = writer.DatasetWriter.append, []

    def append(self: Any, *args: Any) -> None:
        real(self, *args)
        if self.manifest.episodes == kill:
            raise Killed

    monkeypatch.setattr(writer, "COMMIT_EVERY", commit)
    monkeypatch.setattr(writer.DatasetWriter, "append", append)
    with pytest.raises(Killed):
        run_import(plan(tmp_path / "set", files), quiet=True)
    monkeypatch.undo()
    again = plan(tmp_path / "set", files)

    def counted(file: Any, tally: Any, workers: Any) -> Iterator[Any]:
        read.append(file.name)
        yield from again.read(file, tally, workers)

    data = run_import(plan(tmp_path / "set", files, counted), quiet=True)
    assert data.checksum == once.checksum
    assert data.folders[0].manifest == once.folders[0].manifest
    if commit == 0.0:  # what comes before the file that was being read is not read again
        assert read[0] == "file-0" if kill <= 3 else read[0] in ("file-0", "file-1", "file-2")
        if kill > 5:
            assert read == ["file-2"]


def test_files_that_have_changed_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Killed):
        run_import(plan(tmp_path / "set", [[3, 2, 1, Killed()]]), quiet=True)  # the third was read ahead
    with pytest.raises(UserError, match="set: holds 1 more episodes than its sources; they have changed"):
        run_import(plan(tmp_path / "set", [[3]]), quiet=True)


def test_nothing_that_was_asked_for_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="^SRC: found no episode that was asked for$"):
        run_import(plan(tmp_path / "set", [[], [0]]), quiet=True)


def test_damage_in_the_middle_keeps_what_came_before(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = [[3, 2, DamagedError("file-0: broken"), 9], [4]]
    with pytest.raises(UserError, match="^file-0: broken; --skip-damaged leaves it out$"):
        run_import(plan(tmp_path / "one", files), quiet=True)
    data = run_import(plan(tmp_path / "two", files, skip_damaged=True), quiet=True)
    assert data.lengths.tolist() == [3, 2, 4]
    assert data.folders[0].manifest.provenance[0]["damaged"] == 1
    assert caplog.messages[-1] == "file-0: broken; left out"


def test_damage_of_one_episode_costs_that_one(tmp_path: Path) -> None:
    def read(file: Any, tally: Any, workers: Any) -> Iterator[Any]:
        yield workers.submit(encoded, 3)
        failed: Future[Encoded] = Future()
        failed.set_exception(DamagedError("one"))
        yield failed
        yield workers.submit(encoded, 4)

    data = run_import(plan(tmp_path / "set", [[]], read, skip_damaged=True), quiet=True)
    assert data.lengths.tolist() == [3, 4]
    with pytest.raises(UserError, match="^one; --skip-damaged"):
        run_import(plan(tmp_path / "other", [[]], read), quiet=True)


def test_work_in_this_process_hands_its_mistakes_over() -> None:
    def fails() -> Encoded:
        raise UserError("mine")

    work = Workers(1).submit(fails)
    assert isinstance(work, Future)
    with pytest.raises(UserError, match="^mine$"):
        work.result()


def test_how_many_episodes_are_under_way(tmp_path: Path) -> None:
    """Two for each worker, and no more: the next is read only when one was taken."""
    assert (Workers(1).window, cpu_count() >= 1) == (2, True)
    seen = []

    def read(file: Any, tally: Any, workers: Any) -> Iterator[Any]:
        for length in range(1, 8):
            seen.append(length)
            yield encoded(length)

    ordered = importing._in_order(plan(tmp_path / "set", [[]], read), source("file-0"), Tally(), Workers(1))
    for taken in range(1, 8):
        assert len(next(ordered).actions) == taken
        assert len(seen) == min(taken + 1, 7)
    assert next(ordered, None) is None


def test_few_are_under_way_while_they_weigh_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def read(file: Any, tally: Any, workers: Any) -> Iterator[Any]:
        for length in range(1, 5):
            seen.append(length)
            yield encoded(length)

    monkeypatch.setattr(Workers, "full", True)
    ordered = importing._in_order(plan(tmp_path / "set", [[]], read), source("file-0"), Tally(), Workers(1))
    for taken in range(1, 5):
        next(ordered)
        assert len(seen) == taken


@pytest.mark.parametrize(
    ("position", "message"),
    [
        ([], "field provenance.position: found [], expected an object"),
        ({"file": -1}, "field provenance.position: field file: found -1, expected 0 or more"),
        ({"episodes": -1}, "field provenance.position: field episodes: found -1, expected 0 or more"),
        (
            {"counts": {"empty": "1"}},
            "field provenance.position: field counts.empty: found '1', expected a whole number",
        ),
        ({"file": 2}, "found file 2 after 0 episodes, expected one of 2 after at most 1"),
        ({"episodes": 2}, "found file 0 after 2 episodes, expected one of 2 after at most 1"),
    ],
)
def test_a_position_that_cannot_be_is_named(tmp_path: Path, position: dict[str, Any] | list[Any], message: str) -> None:
    with pytest.raises(Killed):
        run_import(plan(tmp_path / "set", [[3, 2, Killed()], [2]]), quiet=True)  # the second was read ahead
    (entry,) = json.loads((tmp_path / "set" / "manifest.json").read_bytes())["provenance"]
    reseal(tmp_path / "set", provenance=[{**entry, "position": position}])
    with pytest.raises(UserError) as raised:
        run_import(plan(tmp_path / "set", [[3], [2]]), quiet=True)
    assert str(raised.value).startswith(f"{tmp_path / 'set' / 'manifest.json'}: ")
    assert message in str(raised.value)


def test_another_import_needs_another_folder(tmp_path: Path) -> None:
    run_import(plan(tmp_path / "set", [[3]]), quiet=True)
    other = plan(tmp_path / "set", [[3]], source={"by": "test", "source": "OTHER"})
    with pytest.raises(UserError, match="set: was imported with source SRC, found OTHER; another import needs another"):
        run_import(other, quiet=True)


def test_the_same_source_as_another_environment_needs_another_folder(tmp_path: Path) -> None:
    run_import(plan(tmp_path / "set", [[3]]), quiet=True)
    other = replace(plan(tmp_path / "set", [[3]]), manifest=manifest(num_actions=5))
    with pytest.raises(UserError, match="set: holds a data set with num_actions 4, expected 5"):
        run_import(other, quiet=True)


def test_only_processors_that_the_process_may_use_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {2, 5, 7}, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert cpu_count() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    assert cpu_count() == 64


@pytest.mark.parametrize("contents", [[3], [ValueError("in the middle")]])
def test_workers_end_with_the_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, contents: list[Any]) -> None:
    closed = []
    real = Workers.close

    def noted(self: Workers) -> None:
        closed.append(self)
        real(self)

    monkeypatch.setattr(Workers, "close", noted)
    with contextlib.suppress(ValueError):
        run_import(plan(tmp_path / "set", [contents]), quiet=True)
    assert len(closed) == 1


def test_progress_is_told_in_megabytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of 2 and 1 MB; half a MB is read for every episode. What a file has left is counted at its end."""
    bars: list[tuple[Any, ...]] = []

    class Bar:
        def __init__(self, label: Any, total: Any, unit: Any, done: Any, quiet: Any) -> None:
            bars.append((label, total, unit, done, quiet))

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: Any) -> None:
            pass

        def advance(self, count: Any, note: Any) -> None:
            bars.append((count, note))

    monkeypatch.setattr(importing, "ProgressBar", Bar)
    run_import(plan(tmp_path / "set", [[3, 2], [4]]))
    assert bars == [
        (f"import {tmp_path / 'set'}", 3, "MB", 0, False),
        (1, "3 steps"),
        (0, "5 steps"),
        (1, "5 steps"),
        (1, "9 steps"),
        (0, "9 steps"),
    ]


def test_workers_are_full_while_too_many_bytes_are_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importing, "WAITING_BYTES", 1000)
    workers = Workers(2)
    try:
        assert not workers.full
        hexadecimal: Any = bytes.hex  # not what workers do, but its size is known
        under_way: list[Any] = [workers.submit(hexadecimal, bytes(999)), workers.submit(hexadecimal, b"1")]
        assert workers._held in (1000, 1, 0)  # as far as it is not done yet
        assert workers.full == (workers._held == 1000) or workers._held < 1000
        assert [len(work.result()) for work in under_way] == [1998, 2]
    finally:
        workers.close()
    assert workers._held == 0
    assert not workers.full
