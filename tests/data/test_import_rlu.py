"""RL Unplugged: the real file, round trips of every layout, and every way in which a shard can be bad."""

import gzip
import os
import random
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordWriter

from protovalue.cli import main
from protovalue.data.config import ImportRluConfig
from protovalue.data.dataset import Dataset, Episode, open_dataset
from protovalue.data.format import End
from protovalue.data.import_rlu import import_rlu
from protovalue.data.splits import RUNS
from protovalue.envs.registry import make
from protovalue.errors import UserError
from tests.data.published import (
    atari_episode,
    rlu_record,
    same_contents,
    steps_of,
    tfds_record,
    tfrecord,
    write_atari,
    write_rlu,
)

REAL = Path(__file__).parent / "files" / "rlu_asterix_run_1-00000-of-00001"


def run(source: Any, out: Any, **settings: Any) -> Dataset:
    return import_rlu(ImportRluConfig(source=(str(source),), out=out, **{"workers": 1, **settings}), quiet=True)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Six episodes: five that terminated and one that a time limit ended; one just fills its chunks."""
    rng = np.random.default_rng(0)
    lengths = [(1, End.TERMINATED), (20, End.TERMINATED), (15, End.TERMINATED), (16, End.TRUNCATED)]
    episodes = [atari_episode(n, rng, end) for n, end in [*lengths, (31, End.TERMINATED), (5, End.TERMINATED)]]
    return write_atari(tmp_path_factory.mktemp("data") / "set", episodes)


def test_the_real_file(tmp_path: Path) -> None:
    """Lengths, returns, actions and ends were read off the file with a protobuf decoder of its own."""
    data = run(REAL, tmp_path / "set", workers=2)
    assert (data.env_id, data.num_actions, data.rewards_are, data.stack) == ("atari/Asterix", 9, "clipped", 4)
    assert data.lengths.tolist() == [310, 244]
    assert data.iterations.tolist() == [1, 0]
    assert data.ends.tolist() == [End.TERMINATED, End.TERMINATED]
    first, second = data.episode(0), data.episode(1)
    rewarded = [4, 6, 8, 10, 14, 16, 18, 20, 107, 114, 115, 116, 120, 137, 139, 256, 274]
    assert np.flatnonzero(first.rewards).tolist() == rewarded
    assert np.flatnonzero(second.rewards).tolist() == [7, 28, 120, 187]
    assert first.actions[:5].tolist() == [2, 7, 7, 7, 7]
    assert second.actions[-5:].tolist() == [3, 1, 8, 8, 5]
    assert np.array_equal(first.frames[-1], first.frames[-2])
    # the first frame is the emulator's own after a reset: same game, same preprocessing
    env = make(data.env_id, 1, **data.env_options)
    assert np.array_equal(first.frames[0], env.reset(seed=0)[0][0, -1])
    env.close()


def test_pretraining_on_the_real_file_needs_no_further_flag(tmp_path: Path) -> None:
    words = ["import", "rlu", str(REAL), "--out", str(tmp_path / "set"), "--workers", "1"]
    assert main(words) == 0
    settings = "--steps 2 --batch-size 4 --tasks 10 --architecture nature --width 1 --threads 1"
    assert main(["pretrain", "--data", f"{tmp_path}/set", "--out", f"{tmp_path}/run", *settings.split()]) == 0
    assert (tmp_path / "run" / "encoder").is_dir()


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("workers", [1, 2])
def test_raw_shards_round_trip_to_the_byte(data: Dataset, tmp_path: Path, workers: int, packed: bool) -> None:
    folder = tmp_path / "Breakout"
    write_rlu(folder / "run_1-00000-of-00002", data, 0, 4, packed)
    write_rlu(folder / "run_1-00001-of-00002", data, 4, None, packed)
    (folder / "notes.txt").write_text("not a shard")
    imported = run(folder, tmp_path / "set", workers=workers)
    assert same_contents(data.folders[0].path, tmp_path / "set")
    assert imported.env_options == data.env_options
    source = imported.folders[0].manifest.provenance[0]
    assert (source["files"], source["runs"], source["split"], source["iterations"]) == (2, [1], "full", "all")
    assert "position" not in source


def test_tfds_layouts_round_trip_to_the_byte(data: Dataset, tmp_path: Path) -> None:
    records = [tfds_record(data.episode(i), i) for i in range(data.num_episodes)]
    folder = tmp_path / "rlu_atari_checkpoints_ordered" / "Breakout_run_2" / "1.1.0"
    folder.mkdir(parents=True)
    (folder / "features.json").write_text("{}")
    name = "rlu_atari_checkpoints_ordered-checkpoint_07"
    writer = ArrayRecordWriter(str(folder / f"{name}.array_record-00000-of-00001"), "group_size:1")
    for record in records:
        writer.write(record)
    writer.close()
    imported = run(folder, tmp_path / "array_record")
    assert same_contents(data.folders[0].path, tmp_path / "array_record")
    assert imported.folders[0].manifest.provenance[0]["runs"] == [2]
    (folder / f"{name}.array_record-00000-of-00001").unlink()
    (folder / f"{name}.tfrecord-00000-of-00001").write_bytes(tfrecord(records))
    run(folder, tmp_path / "tfrecord")
    assert same_contents(data.folders[0].path, tmp_path / "tfrecord")


def damaged_shard(data: Any, path: Any, spot: Any, flip: bool = True) -> int:
    """Flip one byte of the uncompressed records, `spot` bytes into the second one, or cut the shard off there."""
    records = [rlu_record(data.episode(i), i) for i in range(4)]
    raw = bytearray(tfrecord(records))
    second = 16 + len(records[0])
    if flip:
        raw[second + spot] ^= 4
    else:
        del raw[second + spot :]
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_bytes(gzip.compress(bytes(raw)))
    return second


def test_a_damaged_record_is_named_or_skipped_and_counted(
    data: Dataset, tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "Breakout" / "run_1-00000-of-00001"
    second = damaged_shard(data, path, 500)
    with pytest.raises(UserError, match=f"of-00001: damaged record at byte {second}: its checksum .*; --skip-damaged"):
        run(path, tmp_path / "set")
    words = ["import", "rlu", str(path), "--out", str(tmp_path / "set"), "--skip-damaged", "--workers", "1"]
    assert main(words) == 0  # goes on from there
    assert "1 damaged parts left out" in capsys.readouterr().out
    assert f"damaged record at byte {second}" in caplog.text
    imported = open_dataset(tmp_path / "set")
    assert imported.lengths.tolist() == [1, 15, 16]
    assert imported.folders[0].manifest.provenance[-1]["damaged"] == 1


def test_after_a_damaged_length_the_rest_of_the_file_is_lost_but_not_the_next_file(
    data: Dataset, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    damaged_shard(data, tmp_path / "Breakout" / "run_1-00000-of-00002", 3)
    write_rlu(tmp_path / "Breakout" / "run_1-00001-of-00002", data, 4)
    with pytest.raises(UserError, match="the checksum of its length does not match"):
        run(tmp_path / "Breakout", tmp_path / "stopped")
    imported = run(tmp_path / "Breakout", tmp_path / "set", skip_damaged=True)
    assert imported.lengths.tolist() == [1, 31, 5]


def test_truncated_files(data: Dataset, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "Breakout" / "run_1-00000-of-00001"
    second = damaged_shard(data, path, 100, flip=False)
    with pytest.raises(UserError, match=f"truncated in the record at byte {second}"):
        run(path, tmp_path / "one")
    write_rlu(path, data)
    size = path.stat().st_size
    os.truncate(path, size * 2 // 3)
    with pytest.raises(
        UserError, match=f"truncated: the gzip stream ends at byte {size * 2 // 3} without its end mark"
    ):
        run(path, tmp_path / "two")
    raw = bytearray(write_rlu(path, data).read_bytes())
    raw[-6] ^= 1  # gzip's own checksum
    path.write_bytes(raw)
    with pytest.raises(UserError, match="damaged gzip .*incorrect data check"):
        run(path, tmp_path / "three")
    path.write_bytes(b"")
    with pytest.raises(UserError, match="found no episode"):
        run(path, tmp_path / "four")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"discounts": None}, "the key 'discounts' is missing; found actions, checkpoint_idx"),
        ({"actions": np.array([0, 1])}, "found 2 actions, expected 20, one per observation"),
        ({"actions": np.full(20, 9)}, "found actions 9 to 9, expected 0 to 3; --actions full"),
        ({"actions": [b"left"] * 20}, "the key 'actions' holds text, expected numbers"),
        ({"observations": [b"GIF89a"] * 20}, "observation 0 is not a PNG image"),
        ({"checkpoint_idx": np.array([1, 2])}, "the key 'checkpoint_idx' holds 2 numbers, expected 1"),
        ({"checkpoint_idx": np.array([2**31])}, "found checkpoint_idx 2147483648, expected the number of an iteration"),
    ],
)
def test_a_record_of_another_kind_is_one_line(
    data: Dataset, tmp_path: Path, changes: dict[str, Any], expected: str
) -> None:
    path = tmp_path / "Breakout" / "run_1-00000-of-00001"
    path.parent.mkdir()
    path.write_bytes(gzip.compress(tfrecord([rlu_record(data.episode(1), 1, **changes)])))
    with pytest.raises(UserError, match=expected) as raised:
        run(path, tmp_path / "set")
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_record_without_steps_and_one_of_a_single_step_give_no_transition(data: Dataset, tmp_path: Path) -> None:
    nothing = np.zeros(0, np.int64)
    empty = rlu_record(
        data.episode(1), 1, observations=[], actions=nothing, clipped_rewards=np.zeros(0, np.float32), discounts=nothing
    )
    observations, _, _, _ = steps_of(data.episode(1))
    single = rlu_record(
        data.episode(1),
        2,
        observations=observations[:1],
        actions=np.array([1]),
        clipped_rewards=np.array([1], np.float32),
        discounts=np.array([1], np.float32),
    )
    path = tmp_path / "Breakout" / "run_1-00000-of-00001"
    path.parent.mkdir()
    path.write_bytes(gzip.compress(tfrecord([empty, rlu_record(data.episode(0), 0), single])))
    imported = run(path, tmp_path / "set")
    assert imported.lengths.tolist() == [1]


@pytest.mark.parametrize("skip", [True, False])
def test_a_damaged_array_record_is_named_or_skipped_and_counted(data: Dataset, tmp_path: Path, skip: bool) -> None:
    path = tmp_path / "Breakout_run_1" / "checkpoint_01.array_record-00000-of-00001"
    path.parent.mkdir()
    writer = ArrayRecordWriter(str(path), "group_size:1")
    for i in range(3):
        writer.write(tfds_record(data.episode(i), i))
    writer.close()
    raw = bytearray(path.read_bytes())
    raw[raw.rindex(b"IDAT")] ^= 1  # in the last episode
    path.write_bytes(raw)
    if not skip:
        with pytest.raises(UserError, match="of-00001: damaged record 2"):
            run(path.parent, tmp_path / "set")
        return
    imported = run(path.parent, tmp_path / "set", skip_damaged=True)
    assert imported.lengths.tolist() == [1, 20]
    assert imported.folders[0].manifest.provenance[0]["damaged"] == 1


def test_an_image_of_another_shape_is_refused(data: Dataset, tmp_path: Path) -> None:
    path = tmp_path / "Breakout" / "run_1-00000-of-00001"
    path.parent.mkdir()
    episode = data.episode(1)
    wide = Episode(np.zeros((21, 84, 90), np.uint8), episode.actions, episode.rewards, episode.end, 0)
    path.write_bytes(gzip.compress(tfrecord([rlu_record(wide, 1)])))
    with pytest.raises(UserError, match=r"observation 0: found 84x90 L, expected 84x84 L \(8-bit grey\)"):
        run(path, tmp_path / "set")


def test_nan_rewards_become_zero_and_are_counted(data: Dataset, tmp_path: Path) -> None:
    path = tmp_path / "Breakout" / "run_1-00000-of-00001"
    path.parent.mkdir()
    _, _, rewards, _ = steps_of(data.episode(1))
    rewards[[3, 7]] = np.nan
    rewards[5] = 40
    path.write_bytes(gzip.compress(tfrecord([rlu_record(data.episode(1), 1, clipped_rewards=rewards)])))
    imported = run(path, tmp_path / "set")
    assert imported.episode(0).rewards[[3, 5, 7]].tolist() == [0, 1, 0]
    assert imported.folders[0].manifest.provenance[0]["nan_rewards"] == 2


def test_the_full_action_set_makes_an_environment_with_it(data: Dataset, tmp_path: Path) -> None:
    path = tmp_path / "Breakout" / "run_1-00000-of-00001"
    path.parent.mkdir()
    path.write_bytes(gzip.compress(tfrecord([rlu_record(data.episode(1), 1, actions=np.arange(20) % 18)])))
    imported = run(path, tmp_path / "set", actions="full")
    assert (imported.num_actions, imported.env_options["actions"]) == (18, "full")
    env = make(imported.env_id, 1, **imported.env_options)
    assert env.num_actions == 18
    env.close()


@pytest.fixture
def iterations(data: Dataset, tmp_path: Path) -> Path:
    """Five runs of 50 iterations; the episode of run r, iteration c has c + 1 steps, of one frame."""
    frames = np.zeros((60, 84, 84), np.uint8)
    for r in range(1, 6):
        for c in (0, 1, 9, 19, 24, 29, 39, 49):
            actions = np.zeros(c + 1, np.int32)
            episode = Episode(frames[: c + 2], actions, actions.astype(np.float32), End.TERMINATED, c)
            path = tmp_path / "Breakout" / f"run_{r}-{c:05d}-of-00050"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(gzip.compress(tfrecord([rlu_record(episode, 0)]), 1))
    return tmp_path / "Breakout"


@pytest.mark.parametrize(
    ("settings", "glob", "expected"),
    [
        ({"split": "weak"}, "run_*", [0] * 5),
        ({"split": "sgi-weak"}, "run_*", [0] * 5),
        ({"split": "mixed"}, "run_1-*", [0, 9, 19, 29, 39, 49]),
        ({"split": "mixed-small"}, "run_1-*", [0, 24, 49]),
        ({"split": "sgi-mixed"}, "run_1-*", [0, 24, 49]),
        ({"iterations": "19,9"}, "run_[24]-*", [9, 19, 9, 19]),
        ({"iterations": "24", "runs": "5,2"}, "run_*", [24, 24]),
        ({}, "run_3-*", [0, 1, 9, 19, 24, 29, 39, 49]),
    ],
)
def test_splits(iterations: Path, tmp_path: Path, settings: dict[str, Any], glob: str, expected: Any) -> None:
    imported = run(iterations / glob, tmp_path / "set", **settings)
    assert imported.iterations.tolist() == expected
    assert (imported.lengths - 1).tolist() == expected
    source = imported.folders[0].manifest.provenance[0]
    assert source["split"] == settings.get("split", "iterations" if settings else "full")
    assert source["runs"] == (
        [2, 5] if "runs" in settings else sorted({int(run) for run in glob if run.isdigit()} or RUNS)
    )
    assert source["iterations"] == (sorted(set(expected)) if settings else "all")


def test_a_split_that_is_not_there_is_refused(iterations: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--split weak: found runs 1, 2, expected 1 to 5; --iterations 0"):
        run(iterations / "run_[12]-*", tmp_path / "set", split="weak")
    (iterations / "run_1-00049-of-00050").unlink()
    with pytest.raises(UserError, match="--split mixed: iteration 49 is not in the source, which has 0 to 39"):
        run(iterations / "run_1-*", tmp_path / "set", split="mixed")
    with pytest.raises(UserError, match="--iterations: found 0 beside --split mixed"):
        run(iterations / "run_1-*", tmp_path / "set", split="mixed", iterations="0")
    with pytest.raises(UserError, match="--iterations: found '0;3', expected numbers such as 0,9,19"):
        run(iterations / "run_1-*", tmp_path / "set", iterations="0;3")
    with pytest.raises(UserError, match="--runs: found no run 6 in the paths of"):
        run(iterations / "run_1-*", tmp_path / "set", runs="1,6")
    assert not (tmp_path / "set").exists()


def test_a_proportion_is_spread_over_every_checkpoint(data: Dataset, tmp_path: Path) -> None:
    """Of 11 episodes of iteration 3 and 5 of iteration 4, in turns: numbers 0, 4, 8 and 0, 4 of each."""
    episodes = [(3, k) for k in range(11)] + [(4, k) for k in range(5)]
    random.Random(0).shuffle(episodes)
    order = {3: 0, 4: 0}
    records, taken = [], []
    for iteration, _ in episodes:
        k = order[iteration]
        order[iteration] += 1
        records.append(rlu_record(replace(data.episode(0), iteration=iteration), k, actions=np.array([k % 4])))
        if k % 4 == 0:
            taken.append(iteration)
    path = tmp_path / "Breakout" / "run_1-00000-of-00001"
    path.parent.mkdir()
    path.write_bytes(gzip.compress(tfrecord(records)))
    imported = run(path, tmp_path / "set", proportion=0.25)
    assert imported.iterations.tolist() == taken
    assert sorted(taken) == [3, 3, 3, 4, 4]
    assert imported.folders[0].manifest.provenance[0]["proportion"] == 0.25


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("nowhere", "nowhere: not found"),
        ("nowhere/*", "nowhere/*: found no file there"),
        (".", ".: found no file there, expected names such as run_1-00000-of-00050"),
        ("REAL --game Asterx", "did you mean 'atari/Asterix'?"),
        ("REAL --split mixxed", "--split"),
        ("REAL --proportion 0", "--proportion: found 0.0, expected more than 0"),
        ("REAL --workers 0", "--workers: found 0, expected at least 1"),
        ("nonsense://host/file", "nonsense"),
        ("shard-00000-of-00001", "--game: found none in the path of"),
    ],
)
def test_a_mistake_is_one_line(
    words: str, expected: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if words.startswith("shard"):
        (tmp_path / words).write_bytes(b"")
    assert main(["import", "rlu", *words.replace("REAL", str(REAL)).split(), "--out", "set"]) == 2
    printed = capsys.readouterr()
    assert printed.err.count("\n") == 1
    assert expected in printed.err
    assert not (tmp_path / "set").exists()


def test_the_same_command_twice_does_nothing_and_another_is_refused(data: Dataset, tmp_path: Path) -> None:
    path = write_rlu(tmp_path / "Breakout" / "run_1-00000-of-00001", data)
    run(path, tmp_path / "set")
    before = (tmp_path / "set" / "manifest.json").read_bytes()
    run(path, tmp_path / "set")
    assert (tmp_path / "set" / "manifest.json").read_bytes() == before
    with pytest.raises(UserError, match="set: was imported with proportion 1.0, found 0.5; another import needs"):
        run(path, tmp_path / "set", proportion=0.5)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 short episodes in four shards."""
    folder = tmp_path_factory.mktemp("many")
    rng = np.random.default_rng(1)
    data = write_atari(folder / "set", [atari_episode(1 + n % 7, rng) for n in range(40)])
    for shard in range(4):
        write_rlu(folder / "Breakout" / f"run_1-{shard:05d}-of-00004", data, 10 * shard, 10 * shard + 10)
    return folder


def test_killed_at_any_instant_and_continued_it_ends_the_same(
    many: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Imports are killed with -9 at nine random episodes and after the last; the end is what one import gives.

    Also its checksum, by which what was computed from the data set is found again.
    """
    out = tmp_path / "set"
    kills = [*sorted(random.Random(3).sample(range(1, 40), 9)), 40]
    for kill in kills:
        child = os.fork()
        if child == 0:
            try:
                import protovalue.data.writer as writer

                append = writer.DatasetWriter.append

                def append_or_die(self: Any, *args: Any, kill: int = kill, append: Any = append) -> None:
                    append(self, *args)
                    if self.manifest.episodes == kill:
                        os.kill(os.getpid(), signal.SIGKILL)

                hooked: Any = writer.DatasetWriter  # of this child, which dies
                hooked.append = append_or_die
                writer.COMMIT_EVERY = 0.0 if kill % 2 else 100.0  # with and without the manifest's latest state
                run(many / "Breakout", out)
            finally:
                os._exit(1)
        _, status = os.waitpid(child, 0)
        assert os.WTERMSIG(status) == signal.SIGKILL
        assert open_dataset(out).num_episodes == kill
    assert not open_dataset(out).folders[0].manifest.complete
    data = run(many / "Breakout", out)
    once = run(many / "Breakout", tmp_path / "once")
    assert same_contents(out, many / "set")
    assert data.checksum == once.checksum == open_dataset(many / "set").checksum
    assert data.folders[0].manifest == once.folders[0].manifest
    assert data.folders[0].manifest.complete


def test_no_process_outlives_a_killed_import(many: Path, tmp_path: Path) -> None:
    script = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "import protovalue.data.writer as writer\n"
        "from protovalue.data.config import ImportRluConfig\n"
        "from protovalue.data.import_rlu import import_rlu\n"
        "def die(self, *args):\n"
        "    children = Path(f'/proc/self/task/{os.getpid()}/children').read_text()\n"
        "    print(children, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "if __name__ == '__main__':\n"
        "    writer.DatasetWriter.append = die\n"
        "    import_rlu(ImportRluConfig(source=(sys.argv[1],), out=Path(sys.argv[2]), workers=2), quiet=True)\n"
    )
    (tmp_path / "script.py").write_text(script)
    command = [sys.executable, str(tmp_path / "script.py"), str(many / "Breakout"), str(tmp_path / "set")]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)  # waits until the last one ends
    assert done.returncode == -signal.SIGKILL
    assert len(done.stdout.split()) >= 2  # there were workers; had one lived on, `run` would wait for its output still


def test_what_data_info_shows(data: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_rlu(tmp_path / "Breakout" / "run_1-00000-of-00001", data)
    run(path, tmp_path / "set")
    assert main(["data", "info", str(tmp_path / "set"), "--picture", str(tmp_path / "sheet.png")]) == 0
    printed = capsys.readouterr().out
    assert f"provenance    by pvn import rlu, source {path}, files 1, runs [1], split full" in printed
    assert "rewards       clipped\n" in printed
    assert (tmp_path / "sheet.png").read_bytes().startswith(b"\x89PNG")
