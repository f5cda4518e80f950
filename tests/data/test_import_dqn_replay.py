"""The DQN replay data: a memory simulated step by step, saved as Dopamine does, and imported."""

import gzip
import io
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import protovalue.data.import_dqn_replay as import_dqn_replay_module
from protovalue.cli import main
from protovalue.data.config import ImportDqnReplayConfig
from protovalue.data.dataset import Dataset
from protovalue.data.format import End
from protovalue.data.import_dqn_replay import Piece, find_pieces, import_dqn_replay
from protovalue.errors import UserError
from tests.data.published import Ring, atari_episode, same_contents, write_atari


def run(source: Any, out: Any, **settings: Any) -> Dataset:
    config = ImportDqnReplayConfig(source=(str(source),), out=out, **settings)
    return import_dqn_replay(config, quiet=True)


def logs(tmp_path: Path, run_number: int = 1) -> Path:
    return tmp_path / "Breakout" / str(run_number) / "replay_logs"


@pytest.fixture(scope="module")
def episodes() -> list[Any]:
    rng = np.random.default_rng(0)
    ends = [End.TERMINATED] * 5 + [End.CUT]
    return [atari_episode(n, rng, end) for n, end in zip((1, 15, 16, 40, 7, 9), ends, strict=True)]


def test_round_trip_to_the_byte(episodes: list[Any], tmp_path: Path) -> None:
    """79 + 9 steps, 18 zero slots and an open step: 107 of 120 slots."""
    data = write_atari(tmp_path / "set", episodes)
    ring = Ring(120)
    for index in range(data.num_episodes):
        ring.add_episode(data.episode(index))
    assert ring.add_count == 107
    imported = run(ring.save(logs(tmp_path), 7), tmp_path / "imported")
    assert same_contents(tmp_path / "set", tmp_path / "imported")
    assert (imported.env_id, imported.env_options) == (data.env_id, data.env_options)
    assert imported.rewards_are == "clipped"
    source = imported.folders[0].manifest.provenance[0]
    assert (source["by"], source["runs"], source["files"]) == ("pvn import dqn-replay", [1], 1)
    assert "headless_steps" not in source


def test_a_full_ring_gives_only_whole_beginnings(episodes: list[Any], tmp_path: Path) -> None:
    """The ring wraps in the middle of an episode; what was overwritten in part is left out, at both sides."""
    ring = Ring(70)
    for episode in episodes[:5]:
        ring.add_episode(episode)
    # 79 steps and 15 zero slots, counted on: the episode of 16 steps ends at 40; zeros; that of 40 steps is at 44 to
    # 83, so at slots 44 to 69 and 0 to 13; zeros; that of 7 steps is at slots 17 to 23. The cursor is at slot 24.
    assert ring.add_count == 94
    imported = run(ring.save(logs(tmp_path), 3), tmp_path / "imported")
    assert imported.lengths.tolist() == [7, 25]
    assert imported.ends.tolist() == [End.TERMINATED, End.CUT]
    assert np.array_equal(imported.episode(0).frames, episodes[4].frames)
    found = imported.episode(1)
    assert np.array_equal(found.frames, episodes[3].frames[:26])
    assert np.array_equal(found.actions, episodes[3].actions[:25])
    assert imported.folders[0].manifest.provenance[0]["headless_steps"] == 14 + 17  # slots 0 to 13 and 24 to 40


def brute_force(terminal: Any, add_count: Any, limit: Any) -> list[tuple[Any, Any, End, bool]]:
    """Play the ring's slots in the order of time, one by one, on each side of the cursor."""
    capacity = len(terminal)
    if add_count <= capacity:
        sides = [(range(add_count), True)]
    else:
        cursor = add_count % capacity
        sides = [(range(cursor), False), (range(cursor, capacity), False)]
    found = []
    for slots, known in sides:
        padding, current, padded = (3 if known else None), list[Any](), True
        for slot in slots:
            if padding is None:  # somewhere inside an unknown episode
                padding = 3 if terminal[slot] else None
                continue
            if padding:
                padding -= 1
                continue
            if len(current) == limit:
                found.append((current[0], limit, End.TRUNCATED, padded))
                current, padded = [], False
            current.append(slot)
            if terminal[slot]:
                end = End.TRUNCATED if len(current) == limit else End.TERMINATED
                found.append((current[0], len(current), end, padded))
                current, padding, padded = [], 3, True
        if current:
            found.append((current[0], len(current), End.CUT, padded))
    return found


def test_pieces_agree_with_a_walk_through_the_slots() -> None:
    chance = random.Random(1)
    for _ in range(500):
        capacity = chance.randrange(5, 60)
        terminal, gap = np.zeros(capacity, np.uint8), 0
        for slot in range(capacity):  # flags stand at least four slots apart: the padding carries none
            gap += 1
            if gap > 3 and chance.random() < 0.12:
                terminal[slot], gap = 1, 0
        if chance.random() < 0.5:
            terminal[:3] = 0
        add_count = chance.randrange(1, 3 * capacity)
        if add_count <= capacity and terminal[:3].any():
            continue
        pieces, _ = find_pieces(terminal, add_count, limit=11)
        found = [(piece.first, piece.slots, piece.end, piece.padded) for piece in pieces]
        assert found == brute_force(terminal, add_count, 11)


def test_time_limits() -> None:
    """With a limit of 4: an episode of 4 flagged steps, and 9 steps of which no flag marks the first two ends."""
    terminal = np.zeros(3 + 4 + 3 + 9 + 3 + 2, np.uint8)
    terminal[[6, 18, 23]] = 1
    pieces, left_out = find_pieces(terminal, len(terminal), limit=4)
    assert left_out == 0
    assert pieces == [
        Piece(3, 4, End.TRUNCATED, True),
        Piece(10, 4, End.TRUNCATED, True),
        Piece(14, 4, End.TRUNCATED, False),
        Piece(18, 1, End.TERMINATED, False),
        Piece(22, 2, End.TERMINATED, True),
    ]
    assert [piece.transitions for piece in pieces] == [3, 3, 3, 1, 2]


def test_the_published_files_end_one_slot_before_their_end() -> None:
    """Each was saved when one slot of the round was missing: that slot still has the round before."""
    terminal = np.zeros(100, np.uint8)
    terminal[[40, 99]] = 1
    assert find_pieces(terminal, 99)[0] == [Piece(3, 38, End.TERMINATED, True), Piece(44, 55, End.CUT, True)]
    pieces, left_out = find_pieces(terminal, 199)
    assert pieces == [Piece(44, 55, End.CUT, True)]
    assert left_out == 41 + 1


@pytest.fixture
def saved(episodes: list[Any], tmp_path: Path) -> tuple[Ring, Path]:
    ring = Ring(120)
    for episode in episodes:
        ring.add_episode(episode)
    return ring, ring.save(logs(tmp_path), 2)


def rewrite(path: Any, array: Any) -> None:
    with gzip.open(path, "wb") as file:
        np.save(file, array, allow_pickle=True)


def test_nan_rewards_become_zero_and_are_counted(
    saved: tuple[Ring, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ring, folder = saved
    ring.store["reward"][[8, 10]] = np.nan  # slot 7 is the first of the second episode: 3 zeros, 1 step, 3 zeros
    ring.store["reward"][9] = -7
    ring.save(folder, 2)
    assert main(["import", "dqn-replay", str(folder), "--out", str(tmp_path / "set")]) == 0
    assert "2 NaN rewards set to 0" in capsys.readouterr().out
    imported = run(folder, tmp_path / "set")
    assert imported.episode(1).rewards[1:4].tolist() == [0, -1, 0]


@pytest.mark.parametrize("name", ["$store$_action", "$store$_reward", "$store$_terminal", "add_count", "invalid_range"])
def test_a_missing_file_is_named(saved: tuple[Ring, Path], tmp_path: Path, name: str) -> None:
    (saved[1] / f"{name}_ckpt.2.gz").unlink()
    with pytest.raises(UserError) as raised:
        run(saved[1], tmp_path / "set")
    assert f"{name}_ckpt.2.gz: missing; it belongs to $store$_observation_ckpt.2.gz" in str(raised.value)


@pytest.mark.parametrize(
    ("name", "array", "expected"),
    [
        ("$store$_action", np.zeros(119, np.int32), r"found \(119,\) int32, expected \(120,\) integers"),
        ("$store$_reward", np.zeros(120, np.int64), r"found \(120,\) int64, expected \(120,\) floats"),
        ("$store$_terminal", np.zeros((120, 1), np.uint8), r"found \(120, 1\) uint8, expected \(120,\) flags"),
        ("$store$_observation", np.zeros((120, 84), np.uint8), r"expected \(120, 84, 84\) uint8"),
        ("$store$_observation", np.zeros((120, 84, 84), np.int8), r"found .* int8, expected \(120, 84, 84\) uint8"),
        ("$store$_observation", np.zeros((120, 84, 84), np.uint8, "F"), "found an array in Fortran order"),
        ("$store$_action", np.full(120, 5, np.int32), "found no 3 all-zero slots before it"),
        ("$store$_action", np.array([{"run": "code"}]), "found an array of objects, expected numbers"),
        ("add_count", np.array(0), "found 0, expected the number of slots written"),
        ("$store$_action", np.zeros(0, np.int32), r"found \(0,\) int32, expected \(120,\) integers"),
        ("invalid_range", np.arange(8), "found 0, 1, 2, 3, 4, 5, 6, 7, expected the cursor 107"),
        ("invalid_range", np.arange(9), r"found 0, 1, 2, 3, 4, 5, 6, 7, \.\.\., expected the cursor 107"),
        ("invalid_range", np.zeros((5, 2), np.int64, "F"), "found an array in Fortran order"),
        ("invalid_range", np.array([1, 2, 3, 4, 5]), "found 1, 2, 3, 4, 5, expected the cursor 107 of add_count 107"),
    ],
)
def test_a_file_of_another_kind_is_one_line(
    saved: tuple[Ring, Path], tmp_path: Path, name: str, array: Any, expected: str
) -> None:
    path = saved[1] / f"{name}_ckpt.2.gz"
    rewrite(path, array)
    with pytest.raises(UserError, match=expected) as raised:
        run(saved[1], tmp_path / "set")
    assert str(path).split("/")[-1] in str(raised.value) or "observation" in str(raised.value)


def test_actions_outside_the_games_set_are_refused(saved: tuple[Ring, Path], tmp_path: Path) -> None:
    ring, folder = saved
    ring.store["action"][8] = 11
    ring.save(folder, 2)
    with pytest.raises(UserError, match=r"episode at slot 7: found actions 0 to 11, expected 0 to 3; --actions full"):
        run(folder, tmp_path / "set")
    assert run(folder, tmp_path / "full", actions="full").num_actions == 18


def test_damaged_and_truncated_files(
    saved: tuple[Ring, Path],
    episodes: list[Any],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(import_dqn_replay_module, "_BLOCK_FRAMES", 8)  # what lies in one block with damage is lost
    path = saved[1] / "$store$_observation_ckpt.2.gz"
    good = path.read_bytes()
    path.write_bytes(good[: len(good) // 8])
    with pytest.raises(UserError, match=r"observation_ckpt.2.gz: truncated: the gzip stream ends at byte \d+ without"):
        run(saved[1], tmp_path / "one")
    saved[0].save(saved[1], 3)
    imported = run(saved[1], tmp_path / "two", skip_damaged=True)
    whole = [1, 15, 16, 40, 7, 9]
    assert imported.lengths.tolist()[-6:] == whole
    assert 0 < len(imported.lengths) - 6 < 6
    assert imported.folders[0].manifest.provenance[0]["damaged"] == 1
    path.write_bytes(good[:-5] + bytes([good[-5] ^ 1]) + good[-4:])
    with pytest.raises(UserError, match="damaged gzip"):
        run(saved[1], tmp_path / "three", iterations="2")
    buffer = io.BytesIO()
    np.save(buffer, np.zeros((120, 84, 84), np.uint8))
    path.write_bytes(gzip.compress(buffer.getvalue()[:-7000]))
    with pytest.raises(UserError, match="truncated: found 119 frames, expected 120"):
        run(saved[1], tmp_path / "four", iterations="2")
    path.write_bytes(gzip.compress(buffer.getvalue() + bytes(7056)))
    with pytest.raises(UserError, match="found more than the 120 frames that it announces"):
        run(saved[1], tmp_path / "more", iterations="2")
    path.write_bytes(gzip.compress(b"no array"))
    with pytest.raises(UserError, match="not a NumPy array"):
        run(saved[1], tmp_path / "five", iterations="2")


def test_splits_runs_and_order(episodes: list[Any], tmp_path: Path) -> None:
    """Five runs, iterations 0, 2 and 10: their order is by number, not by name; weak takes 0 of every run."""
    for number in range(1, 6):
        for iteration in (0, 2, 10):
            ring = Ring(20)
            ring.add_episode(episodes[4])
            ring.save(logs(tmp_path, number), iteration)
    everything = tmp_path / "Breakout"
    assert run(everything, tmp_path / "weak", split="weak").iterations.tolist() == [0] * 5
    one = run(everything / "2", tmp_path / "one")
    assert one.iterations.tolist() == [0, 2, 10]
    assert one.folders[0].manifest.provenance[0]["runs"] == [2]
    some = run(everything / "[35]", tmp_path / "some", iterations="10,2")
    assert some.iterations.tolist() == [2, 10, 2, 10]
    with pytest.raises(UserError, match="--split mixed: iteration 9, 19, 29, 39, 49 is not in the source"):
        run(everything, tmp_path / "mixed", split="mixed")


def test_a_proportion_of_the_episodes(saved: tuple[Ring, Path], tmp_path: Path) -> None:
    """Of six episodes, numbers 0, 2 and 4."""
    assert run(saved[1], tmp_path / "set", proportion=0.5).lengths.tolist() == [1, 16, 7]


def test_an_interrupted_import_goes_on(
    saved: tuple[Ring, Path], episodes: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved[0].save(saved[1], 3)
    import protovalue.data.writer as writer

    append = writer.DatasetWriter.append

    def stop_at_eight(self: Any, *args: Any) -> None:
        if self.manifest.episodes == 8:
            raise KeyboardInterrupt
        append(self, *args)

    monkeypatch.setattr(writer.DatasetWriter, "append", stop_at_eight)
    words = ["import", "dqn-replay", str(saved[1]), "--out", str(tmp_path / "set")]
    assert main(words) == 130
    monkeypatch.undo()
    assert main(words) == 0
    run(saved[1], tmp_path / "once")
    for name in ("frames.bin", "chunks.bin", "actions.bin", "rewards.bin"):
        assert (tmp_path / "set" / name).read_bytes() == (tmp_path / "once" / name).read_bytes()
