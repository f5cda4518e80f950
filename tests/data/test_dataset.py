"""The data set on disk: what goes in comes out, damage is found, a killed writer loses nothing that was complete."""

import hashlib
import json
import os
import random
import signal
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from protovalue.data import writer as writing
from protovalue.data.config import DataInfoConfig, DataVerifyConfig
from protovalue.data.dataset import Folder, open_dataset
from protovalue.data.format import End
from protovalue.data.info import contact_sheet, info, verify
from protovalue.data.writer import DatasetWriter
from protovalue.errors import UserError
from protovalue.files import truncate
from tests.data.helpers import MadeUp, made_up, manifest, record, write

FILES = ("manifest.json", "episodes.bin", "chunks.bin", "actions.bin", "rewards.bin", "frames.bin")


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 23), min_size=1, max_size=8),
    ends=st.lists(st.sampled_from(list(End)), min_size=8, max_size=8),
    chunk=st.integers(1, 9),
    kind=st.sampled_from([("uint8", (2, 3)), ("bool", (3, 3, 2)), ("uint8", (5,)), ("bool", (1,))]),
    seed=st.integers(0, 99),
)
def test_round_trip(
    tmp_path_factory: pytest.TempPathFactory, lengths: Any, ends: Any, chunk: Any, kind: Any, seed: Any
) -> None:
    rng = np.random.default_rng(seed)
    changes = {"chunk_frames": chunk, "frame_dtype": kind[0], "frame_shape": kind[1]}
    episodes = [made_up(n, rng, end, manifest(**changes)) for n, end in zip(lengths, ends, strict=False)]
    data = write(tmp_path_factory.mktemp("data") / "set", episodes, **changes)
    assert data.num_episodes == len(episodes)
    assert data.num_transitions == sum(lengths)
    assert data.num_frames == sum(lengths) + len(lengths)
    for index, expected in enumerate(episodes):
        found = data.episode(index)
        assert np.array_equal(found.frames, expected.frames)
        assert found.frames.dtype == expected.frames.dtype
        assert np.array_equal(found.actions, expected.actions)
        assert np.array_equal(found.rewards, expected.rewards)
        assert found.end == expected.end


def test_a_reader_written_from_the_documentation_alone(tmp_path: Path) -> None:
    """docs/formats.md in forty lines of struct, zlib and zstd, without this package's reading code."""
    rng = np.random.default_rng(0)
    episodes = [made_up(n, rng, end) for n, end in ((5, End.TERMINATED), (1, End.TRUNCATED), (9, End.CUT))]
    write(tmp_path / "set", episodes)
    read = {name: (tmp_path / "set" / name).read_bytes() for name in FILES}
    about = json.loads(read["manifest.json"])
    assert (about["format"], about["version"], about["complete"]) == ("protovalue data set", 1, True)
    assert (about["episodes"], about["transitions"], about["chunks"]) == (3, 15, 2 + 1 + 3)
    for number, expected in enumerate(episodes):
        raw = read["episodes.bin"][64 * number : 64 * number + 64]
        first, chunk0, frames_end, total, length, source, checkpoint, end, crc_a, crc_r, crc_c, crc = struct.unpack(
            "<QQQdIIiIIIII", raw
        )
        assert zlib.crc32(raw[:60]) == crc
        assert (length, source, checkpoint, end) == (len(expected.actions), 0, -1, int(expected.end))
        actions, rewards = (read[name][4 * first : 4 * (first + length)] for name in ("actions.bin", "rewards.bin"))
        assert zlib.crc32(actions) == crc_a
        assert zlib.crc32(rewards) == crc_r
        assert list(struct.unpack(f"<{length}i", actions)) == expected.actions.tolist()
        assert np.allclose(struct.unpack(f"<{length}f", rewards), expected.rewards)
        assert np.isclose(total, expected.rewards.astype(np.float64).sum())
        count = (length + 1 + 3) // 4
        index = read["chunks.bin"][16 * chunk0 : 16 * (chunk0 + count)]
        assert zlib.crc32(index) == crc_c
        pixels = b""
        for offset, size, chunk_crc in struct.iter_unpack("<QII", index):
            data = read["frames.bin"][offset : offset + size]
            assert zlib.crc32(data) == chunk_crc
            pixels += zstandard.ZstdDecompressor().decompress(data)
        assert pixels == expected.frames.tobytes()
        assert offset + size == frames_end


def test_bool_frames_are_packed_bits(tmp_path: Path) -> None:
    """Nine booleans fill two bytes per frame only as a whole chunk: 4 frames of 9 are 36 bits, 5 bytes."""
    frames = np.array([[1, 0, 0, 0, 0, 0, 0, 0, 1], [0] * 9, [1] * 9, [0, 1] * 4 + [0]], np.bool_).reshape(4, 3, 3)
    episode = made_up(3, np.random.default_rng(0), like=manifest(frame_dtype="bool", frame_shape=(3, 3)))
    episode.frames = frames
    write(tmp_path / "set", [episode], frame_dtype="bool", frame_shape=(3, 3))
    packed = zstandard.ZstdDecompressor().decompress((tmp_path / "set" / "frames.bin").read_bytes())
    bits = "100000001" + "000000000" + "111111111" + "010101010" + "0000"
    assert packed == int(bits, 2).to_bytes(5, "big")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("where", [0.0, 0.3, 0.99])
def test_one_flipped_byte_anywhere_is_found(tmp_path: Path, name: str, where: float) -> None:
    rng = np.random.default_rng(3)
    write(tmp_path / "set", [made_up(n, rng) for n in (7, 3, 11)])
    verify(DataVerifyConfig(tmp_path / "set"))
    path = tmp_path / "set" / name
    raw = bytearray(path.read_bytes())
    raw[int(where * (len(raw) - 1))] ^= 0x10
    path.write_bytes(raw)
    with pytest.raises(UserError, match=name):
        verify(DataVerifyConfig(tmp_path / "set"))


def test_verify_names_the_first_damaged_part(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    write(tmp_path / "set", [made_up(4, rng) for _ in range(6)])
    path = tmp_path / "set" / "actions.bin"
    raw = bytearray(path.read_bytes())
    raw[2 * 16 + 1] ^= 1  # 4 actions of 4 bytes an episode: the third episode
    raw[4 * 16 + 1] ^= 1
    path.write_bytes(raw)
    with pytest.raises(UserError, match=r"actions.bin: damaged at byte 32 or after \(episode 2\)"):
        verify(DataVerifyConfig(tmp_path / "set"))


def test_damaged_frames_are_never_returned(tmp_path: Path) -> None:
    data = write(tmp_path / "set", [made_up(30, np.random.default_rng(0))])
    path = tmp_path / "set" / "frames.bin"
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
    with pytest.raises(UserError, match=r"frames.bin: damaged at byte 99 or after \(episode 0\)"):
        data.episode(0)


@pytest.mark.parametrize("name", FILES[1:])
def test_a_truncated_or_missing_file_is_refused_at_opening(tmp_path: Path, name: str) -> None:
    write(tmp_path / "set", [made_up(5, np.random.default_rng(0))])
    path = tmp_path / "set" / name
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(UserError, match=f"{name}: damaged: found .* bytes, expected"):
        open_dataset(tmp_path / "set")
    path.unlink()
    with pytest.raises(UserError, match=f"{name}: missing"):
        open_dataset(tmp_path / "set")


def test_not_a_data_set(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a data set: manifest.json is missing"):
        open_dataset(tmp_path)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(UserError, match="manifest.json: damaged: not JSON"):
        open_dataset(tmp_path)
    (tmp_path / "other").write_text("precious")
    (tmp_path / "manifest.json").unlink()
    with pytest.raises(UserError, match="not empty and not a data set"):
        DatasetWriter(tmp_path, manifest(), {})


def test_an_empty_data_set_opens(tmp_path: Path) -> None:
    data = write(tmp_path / "set", [])
    assert (data.num_episodes, data.num_transitions) == (0, 0)
    info(DataInfoConfig((tmp_path / "set",)))
    with pytest.raises(UserError, match="no episodes to draw"):
        contact_sheet(data)


def test_a_writer_killed_at_any_instant_loses_no_complete_episode(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Twenty writers are killed with -9, each continuing the last one's folder; every announced episode is there."""
    chance = random.Random(5)
    path, announced = tmp_path / "set", 0

    def episode_number(number: Any) -> MadeUp:
        return made_up(1 + number % 13, np.random.default_rng(number), list(End)[number % 3])

    for _ in range(20):
        reader, writer_end = os.pipe()
        child = os.fork()
        if child == 0:  # write episodes for ever, and say after each that it is complete
            try:
                with DatasetWriter(path, manifest(), {"by": "test"}) as writer:
                    while True:
                        record(writer, episode_number(writer.manifest.episodes))
                        os.write(writer_end, b".")
            finally:
                os._exit(1)
        os.close(writer_end)
        os.read(reader, 1)  # it is under way
        signal.sigtimedwait([], chance.uniform(0, 0.02))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        announced += 1
        while more := os.read(reader, 65536):
            announced += len(more)
        os.close(reader)
        caplog.clear()
        data = open_dataset(path)
        assert "was interrupted while it was written" in caplog.text
        assert announced <= data.num_episodes <= announced + 1
        announced = data.num_episodes
        verify(DataVerifyConfig(path))
    for number in chance.sample(range(announced), 50):
        found, expected = data.episode(number), episode_number(number)
        assert np.array_equal(found.frames, expected.frames)
        assert np.array_equal(found.actions, expected.actions)
        assert found.end == expected.end
    with DatasetWriter(path, manifest(), {"by": "test"}) as writer:
        record(writer, episode_number(announced))
    caplog.clear()
    assert open_dataset(path).num_episodes == announced + 1
    assert not caplog.text
    verify(DataVerifyConfig(path))


def test_half_an_episode_at_the_end_is_ignored_and_cut_off(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rng = np.random.default_rng(0)
    episodes = [made_up(4, rng) for _ in range(3)]
    with pytest.raises(RuntimeError), DatasetWriter(tmp_path / "set", manifest(), {}) as writer:
        for episode in episodes:
            record(writer, episode)
        raise RuntimeError
    for name, left in (("frames.bin", b"rest"), ("actions.bin", b"\1\0"), ("episodes.bin", b"x" * 30)):
        with (tmp_path / "set" / name).open("ab") as file:
            file.write(left)
    assert open_dataset(tmp_path / "set").num_episodes == 3
    with DatasetWriter(tmp_path / "set", manifest(), {}) as writer:
        record(writer, episodes[0])
    data = open_dataset(tmp_path / "set")
    assert [np.array_equal(data.episode(i).frames, episodes[i % 3].frames) for i in range(4)] == [True] * 4
    verify(DataVerifyConfig(tmp_path / "set"))


def test_keeping_only_the_first_episodes_survives_a_kill_while_files_shrink(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    episodes = [made_up(4, np.random.default_rng(i)) for i in range(5)]
    write(tmp_path / "set", episodes)
    calls: list[Path] = []

    class Killed(BaseException):
        pass

    def dies(path: Any, size: Any) -> None:
        if len(calls) == 2:
            raise Killed
        calls.append(path)
        truncate(path, size)

    monkeypatch.setattr(writing, "truncate", dies)
    with pytest.raises(Killed):
        DatasetWriter(tmp_path / "set", manifest(), {}, keep=2)
    monkeypatch.undo()
    assert open_dataset(tmp_path / "set").num_episodes == 2
    with DatasetWriter(tmp_path / "set", manifest(), {}, keep=2) as writer:
        record(writer, episodes[4])
    data = open_dataset(tmp_path / "set")
    assert [np.array_equal(data.episode(i).frames, episodes[k].frames) for i, k in enumerate((0, 1, 4))] == [True] * 3
    verify(DataVerifyConfig(tmp_path / "set"))


@pytest.mark.parametrize(
    ("name", "value"),
    [("env_id", "gym/Other-v0"), ("env_options", {}), ("frame_shape", (3, 2)), ("frame_dtype", "bool"), ("stack", 3),
     ("num_actions", 5), ("rewards", "clipped")],
)  # fmt: skip
def test_a_writer_goes_on_only_with_its_own_kind(tmp_path: Path, name: str, value: Any) -> None:
    write(tmp_path / "set", [made_up(3, np.random.default_rng(0))])
    before = (tmp_path / "set" / "manifest.json").read_bytes()
    with pytest.raises(UserError, match=f"set: holds a data set with {name} .*, expected "):
        DatasetWriter(tmp_path / "set", manifest(**{name: value}), {"by": "test"})
    assert (tmp_path / "set" / "manifest.json").read_bytes() == before
    with DatasetWriter(tmp_path / "set", manifest(chunk_frames=99), {"by": "test"}) as writer:  # goes on with its own
        assert writer.manifest.chunk_frames == 4


def sources(path: Path) -> list[tuple[str, int]]:
    return [(source["by"], source["first_episode"]) for source in Folder(path).manifest.provenance]


def test_the_sources_of_what_is_not_kept_are_forgotten(tmp_path: Path) -> None:
    """Two episodes by one, one by another; a third keeps two, so that nothing of the other is left."""
    rng, path = np.random.default_rng(0), tmp_path / "set"
    for who, count in (("one", 2), ("other", 1)):
        with DatasetWriter(path, manifest(), {"by": who}) as writer:
            for _ in range(count):
                record(writer, made_up(3, rng))
    assert sources(path) == [("one", 0), ("other", 2)]
    with DatasetWriter(path, manifest(), {"by": "idle"}):
        pass
    with DatasetWriter(path, manifest(), {"by": "third"}, keep=3):  # all that there are: nothing is cut off
        pass
    assert sources(path) == [("one", 0), ("other", 2), ("idle", 3), ("third", 3)]
    with DatasetWriter(path, manifest(), {"by": "third"}, keep=2):
        pass
    assert sources(path) == [("one", 0), ("third", 2)]


def test_what_a_writer_notes_can_be_taken_back(tmp_path: Path) -> None:
    path = tmp_path / "set"
    with DatasetWriter(path, manifest(), {"by": "test"}) as writer:
        writer.note(position=3, files=2)
        writer.note(position=None)
    (source,) = Folder(path).manifest.provenance
    assert source == {"by": "test", "first_episode": 0, "files": 2}


def test_episodes_are_made_safe_every_ten_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that we turn: nothing after 10 s, a commit after more, and then 10 s of rest again."""
    now, commits = [50.0], []
    monkeypatch.setattr("protovalue.data.writer.time.monotonic", lambda: now[0])
    real = DatasetWriter.commit

    def noted(self: DatasetWriter, complete: bool = False) -> None:
        commits.append((now[0], complete))
        real(self, complete)

    monkeypatch.setattr(DatasetWriter, "commit", noted)
    with DatasetWriter(tmp_path / "set", manifest(), {"by": "test"}) as writer:
        for seconds in (0, 10, 0.05, 10, 0.05):
            now[0] += seconds
            record(writer, made_up(2, np.random.default_rng(0)))
    assert commits == [(50, False), (60.05, False), (70.1, False), (70.1, True)]


def test_a_writer_closes_what_it_opened(tmp_path: Path) -> None:
    with DatasetWriter(tmp_path / "set", manifest(), {"by": "test"}) as writer:
        descriptors = list(writer._files.values())
        assert [os.fstat(descriptor).st_size for descriptor in descriptors] == [0] * 5
    for descriptor in descriptors:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)


def test_two_writers_are_refused(tmp_path: Path) -> None:
    with DatasetWriter(tmp_path / "set", manifest(), {}):
        with pytest.raises(UserError, match=f"in use by another process \\(pid {os.getpid()}\\)"):
            DatasetWriter(tmp_path / "set", manifest(), {})


def test_a_full_disk_keeps_the_complete_episodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    episodes = [made_up(4, np.random.default_rng(i)) for i in range(3)]
    real_write = os.write
    with pytest.raises(UserError, match="No space left on device; 2 complete episodes are kept"):
        with DatasetWriter(tmp_path / "set", manifest(), {}) as writer:
            record(writer, episodes[0])
            record(writer, episodes[1])

            def full(descriptor: Any, data: Any) -> int:
                if len(data) > 20:
                    return real_write(descriptor, bytes(data)[:20])
                raise OSError(28, "No space left on device")

            monkeypatch.setattr(os, "write", full)
            record(writer, episodes[2])
    monkeypatch.undo()
    data = open_dataset(tmp_path / "set")
    assert data.num_episodes == 2
    assert np.array_equal(data.episode(1).frames, episodes[1].frames)


def test_several_folders_open_as_one(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    first, second = [made_up(3, rng), made_up(6, rng)], [made_up(2, rng)]
    write(tmp_path / "a", first)
    write(tmp_path / "b", second, chunk_frames=7)
    data = open_dataset(tmp_path / "a", tmp_path / "b")
    assert data.num_transitions == 11
    for index, expected in enumerate(first + second):
        assert np.array_equal(data.episode(index).frames, expected.frames)
    everything = np.arange(11)
    episode, step = data.locate(everything)
    assert episode.tolist() == [0] * 3 + [1] * 6 + [2] * 2
    assert step.tolist() == [0, 1, 2, 0, 1, 2, 3, 4, 5, 0, 1]
    expected_actions = np.concatenate([made.actions for made in first + second])
    assert np.array_equal(data.actions(episode, step), expected_actions)
    expected_rewards = np.concatenate([made.rewards for made in first + second])
    assert np.array_equal(data.rewards(episode, step), expected_rewards)
    sums = [hashlib.sha256((tmp_path / name / "episodes.bin").read_bytes()).hexdigest() for name in "ab"]
    assert open_dataset(tmp_path / "a").checksum == sums[0]
    assert data.checksum == hashlib.sha256("".join(sums).encode()).hexdigest()
    assert data.checksum != open_dataset(tmp_path / "b", tmp_path / "a").checksum
    write(tmp_path / "c", [made_up(2, rng)], num_actions=9)
    with pytest.raises(UserError, match="c: found num_actions 9, expected 4 as in the others"):
        open_dataset(tmp_path / "a", tmp_path / "c")


def test_checksum_is_of_the_contents(tmp_path: Path) -> None:
    episodes = [made_up(n, np.random.default_rng(n)) for n in (3, 4)]
    one, same = write(tmp_path / "one", episodes), write(tmp_path / "same", episodes)
    assert one.checksum == same.checksum
    episodes[1].rewards[2] += 1
    assert write(tmp_path / "other", episodes).checksum != one.checksum


def test_all_frames_in_memory_if_they_just_fit(tmp_path: Path) -> None:
    """Two episodes of 4 and 6 frames of 6 bytes: 60."""
    for budget, fits in ((59, False), (60, True)):
        data = write(tmp_path / str(budget), [made_up(n, np.random.default_rng(n)) for n in (3, 5)])
        assert data.frame_bytes == 6
        assert data.load(budget) == fits
        assert data.load(0) == fits, "what is there stays there"


def test_a_folder_that_nobody_needs_any_more_is_closed(tmp_path: Path) -> None:
    write(tmp_path / "set", [made_up(3, np.random.default_rng(0))])
    folder = Folder(tmp_path / "set")
    descriptor = folder._frames
    assert os.fstat(descriptor).st_size == folder.manifest.frames_bytes
    del folder
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_opening_maps_and_does_not_read(tmp_path: Path) -> None:
    """A sparse frames file of 200 GB: opening and reading one chunk must not touch the rest."""
    write(tmp_path / "set", [made_up(5, np.random.default_rng(0))])
    with pytest.raises(RuntimeError), DatasetWriter(tmp_path / "set", manifest(), {}):
        raise RuntimeError  # leaves the data set open, so that what follows the last episode is ignored
    os.truncate(tmp_path / "set" / "frames.bin", 200 * 10**9)
    assert open_dataset(tmp_path / "set").episode(0).frames.shape == (6, 2, 3)
