"""Data sets whose checksums hold and whose contents do not: one line that names what is wrong, in bounded memory."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

from protovalue import files
from protovalue.cli import main
from protovalue.data import format as fmt
from protovalue.data.collect import collect, manifest_of
from protovalue.data.config import CollectConfig, DataVerifyConfig
from protovalue.data.dataset import Folder, open_dataset
from protovalue.data.format import FrameCodec
from protovalue.data.info import verify
from protovalue.data.sampler import Sampler
from protovalue.data.writer import DatasetWriter
from protovalue.envs.registry import make
from protovalue.errors import UserError
from tests.data.helpers import bounded, forge, made_up, manifest, record, reseal, write


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three episodes of 7, 3 and 11 steps in chunks of 4 frames: 2, 1 and 3 chunks."""
    rng = np.random.default_rng(3)
    write(tmp_path / "set", [made_up(n, rng) for n in (7, 3, 11)])
    return tmp_path / "set"


def flip(path: Any, place: Any) -> None:
    raw = bytearray(path.read_bytes())
    raw[place] ^= 0x10
    path.write_bytes(raw)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"env_id": 3}, "field env_id: found 3, expected text"),
        ({"env_options": []}, "field env_options: found [], expected an object"),
        ({"env_options": {"stack": "2"}}, "field env_options: field stack: found '2', expected a whole number"),
        ({"env_options": {"stuck": 2}}, "field env_options: field stuck: unknown, expected no such field"),
        ({"frame_shape": 84}, "field frame_shape: found 84, expected a list"),
        ({"frame_shape": [84, "84"]}, "field frame_shape[1]: found '84', expected a whole number"),
        ({"frame_shape": [84, 0]}, "field frame_shape: found [84, 0], expected sizes of 1 or more"),
        ({"frame_shape": [1 << 40, 1 << 40]}, "field stack: found 2, expected with frames of"),
        (
            {"frame_shape": [8192, 16384]},
            "field chunk_frames: found 4, expected with frames of 134217728 bytes at most",
        ),
        ({"frame_dtype": "object"}, "field frame_dtype: found 'object', expected 'uint8' or 'bool'"),
        ({"stack": 0}, "field stack: found 0, expected 1 to 1024"),
        ({"stack": 1025}, "field stack: found 1025, expected 1 to 1024"),
        ({"stack": 2.0}, "field stack: found 2.0, expected a whole number"),
        ({"num_actions": 0}, "field num_actions: found 0, expected 1 or more"),
        ({"num_actions": 1 << 31}, "field num_actions: found 2147483648, expected 1 or more"),
        ({"chunk_frames": 0}, "field chunk_frames: found 0, expected 1 or more"),
        ({"chunk_frames": 1 << 60}, "field chunk_frames: found 1152921504606846976, expected with frames of 6 bytes"),
        ({"rewards": None}, "field rewards: found null, expected 'raw' or 'clipped'"),
        ({"complete": 1}, "field complete: found 1, expected true or false"),
        ({"episodes": -1}, "field episodes: found -1, expected 0 or more"),
        ({"transitions": 1 << 62}, "field transitions: found 4611686018427387904, expected 0 or more"),
        ({"chunks": "6"}, "field chunks: found '6', expected a whole number"),
        ({"checksum": 5}, "field checksum: found 5, expected text"),
        ({"provenance": [{}]}, "field provenance[0].first_episode: found null, expected the number of an episode"),
        ({"provenance": [{"first_episode": -1}]}, "field provenance[0].first_episode: found -1, expected the number"),
        ({"provenance": ["me"]}, "field provenance[0]: found 'me', expected an object"),
        ({"more": 1}, "field more: unknown, expected no such field"),
        ({"stack": ...}, "field stack: missing, expected a whole number"),
    ],
)
def test_a_manifest_of_wrong_types_is_one_line(
    folder: Path, changes: dict[str, Any], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    reseal(folder, **changes)
    assert main(["data", "info", str(folder)]) == 2
    assert capsys.readouterr().err.startswith(f"pvn: {folder / 'manifest.json'}: {message}")


def test_other_formats_and_versions_are_named(folder: Path) -> None:
    reseal(folder, version=2)
    with pytest.raises(UserError, match=r"manifest.json: format version 2, this program reads version 1"):
        open_dataset(folder)
    reseal(folder, format="protovalue run")
    with pytest.raises(UserError, match=r"manifest.json: not a data set's manifest"):
        open_dataset(folder)


def test_the_largest_manifest_that_is_allowed() -> None:
    """8,192 x 8,192 bytes are 64 MiB: four of them fit into a chunk and into an observation, five do not."""
    for fits in ({"chunk_frames": 4, "stack": 4}, {"num_actions": (1 << 31) - 1}, {"episodes": (1 << 62) - 1}):
        manifest(**{"frame_shape": (8192, 8192), "chunk_frames": 1, "stack": 1, **fits})
    manifest(stack=1024)
    manifest(frame_shape=(1 << 28,), chunk_frames=1, stack=1)
    with pytest.raises(
        ValueError, match="field stack: found 1, expected with frames of 268435457 bytes at most 268435456"
    ):
        manifest(frame_shape=((1 << 28) + 1,), chunk_frames=1, stack=1)
    for name in ("chunk_frames", "stack"):
        with pytest.raises(ValueError, match=f"field {name}: found 5, expected with frames of 67108864 bytes at most"):
            manifest(**{"frame_shape": (8192, 8192), "chunk_frames": 1, "stack": 1, name: 5})


@pytest.mark.parametrize(
    ("episode", "field", "value", "message"),
    [
        (1, "length", 0, "episode 1: found length 0, expected at least 1"),
        (0, "length", 9, "episode 1: found first_transition 7, expected the sum of the lengths"),
        (2, "length", (1 << 32) - 1, "its last record disagrees with the manifest (transitions)"),
        (2, "end", 0, "episode 2: found end 0, expected 1, 2 or 3"),
        (1, "end", 4, "episode 1: found end 4, expected 1, 2 or 3"),
        (1, "source", 1, "episode 1: found source 1, expected an entry of the manifest's provenance"),
        (0, "first_transition", 1, "episode 0: found first_transition 1, expected the sum of the lengths"),
        (2, "first_transition", 1 << 63, "episode 2: found first_transition 9223372036854775808, expected the sum"),
        (2, "first_chunk", 2, "episode 2: found first_chunk 2, expected the sum of the chunks"),
        (1, "frames_end", 1, "episode 1: found frames_end 1, expected a place further on"),
    ],
)
def test_episode_records_that_cannot_be(folder: Path, episode: int, field: str, value: int, message: str) -> None:
    table = np.fromfile(folder / "episodes.bin", fmt.EPISODE)
    table[field][episode] = value
    forge(folder, episodes=table)
    with pytest.raises(UserError) as raised:
        open_dataset(folder)
    assert str(raised.value).startswith(f"{folder / 'episodes.bin'}: ")
    assert message in str(raised.value)


def test_records_that_the_manifest_does_not_describe(folder: Path) -> None:
    table = np.fromfile(folder / "episodes.bin", fmt.EPISODE)
    table["checkpoint"][1] = 5
    forge(folder, episodes=table)
    reseal(folder, checksum="0" * 64)
    with pytest.raises(UserError, match="episodes.bin: damaged: it is not the one that the manifest describes"):
        open_dataset(folder)


def test_a_flipped_byte_of_a_record_is_named_at_opening(folder: Path) -> None:
    flip(folder / "episodes.bin", 64 + 40)
    with pytest.raises(UserError, match=r"episodes.bin: damaged at byte 64 or after \(episode 1\)"):
        open_dataset(folder)


@pytest.mark.parametrize("value", [-1, 4, 1 << 30])
def test_actions_out_of_range_are_found_when_they_are_read(folder: Path, value: int) -> None:
    actions = np.fromfile(folder / "actions.bin", fmt.ACTION)
    actions[8] = value
    forge(folder, actions=actions)
    data = open_dataset(folder)
    assert len(data.episode(0).actions) == 7
    expected = rf"actions.bin: episode 1: found action {value}, expected 0 to 3"
    with pytest.raises(UserError, match=expected):
        data.actions(np.array([0, 1]), np.array([0, 0]))
    with pytest.raises(UserError, match=expected):
        verify(DataVerifyConfig(folder))


# actions and rewards have 4 bytes a transition, chunks.bin 16 a chunk; byte 30 of each lies in episodes 1 or 0
@pytest.mark.parametrize(
    ("name", "place", "episode"), [("actions.bin", 30, 1), ("rewards.bin", 70, 2), ("chunks.bin", 20, 0)]
)
def test_what_training_reads_is_checked_when_it_is_read(folder: Path, name: str, place: int, episode: int) -> None:
    flip(folder / name, place)
    start = {"actions.bin": 28, "rewards.bin": 40, "chunks.bin": 0}[name]
    expected = rf"{name}: damaged at byte {start} or after \(episode {episode}\)"
    others = np.array([e for e in range(3) if e != episode])
    one = np.array([episode])
    for read in ("actions", "rewards", "frames", "episode", "load", "batch"):
        data = open_dataset(folder)
        zeros = np.zeros(2, np.int64)
        for other in others:
            data.episode(int(other))
        data.actions(others, zeros)
        data.windows(others, zeros, 2)
        with pytest.raises(UserError, match=expected):
            if read == "actions":
                data.actions(one, one * 0)
            elif read == "rewards":
                data.rewards(one, one * 0)
            elif read == "frames":
                data.windows(one, one * 0, 2)
            elif read == "episode":
                data.episode(episode)
            elif read == "load":
                data.load(1 << 20)
            else:
                Sampler(data, 64, seed=0).batch(0)


def test_an_episode_is_checked_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checked = []
    real = Folder.check

    def noted(self: Any, index: Any) -> np.ndarray:
        checked.append(index)
        return real(self, index)

    monkeypatch.setattr(Folder, "check", noted)
    data = open_dataset(folder)
    episodes = np.array([2, 0, 2, 2])
    for _ in range(3):
        data.actions(episodes, episodes * 0)
        data.rewards(episodes, episodes * 0)
        data.windows(episodes, episodes * 0, 3)
    assert checked == [0, 2]
    data.load(1 << 20)
    assert checked == [0, 2, 1]


def test_chunks_that_overlap_or_leave_gaps(folder: Path) -> None:
    chunks = np.fromfile(folder / "chunks.bin", fmt.CHUNK)
    for field, number, change in (("offset", 1, 1), ("size", 1, -1), ("offset", 2, -1)):
        forged = chunks.copy()
        forged[field][number] = int(forged[field][number]) + change
        forge(folder, chunks=forged)
        with pytest.raises(UserError, match=r"chunks.bin: episode \d: its chunks do not follow each other"):
            verify(DataVerifyConfig(folder))


def zstd_of_zeros(blocks: int, announced: int | None) -> bytes:
    """A zstd frame of run-length blocks, 128 KiB of zeros in four bytes each, by hand from RFC 8878."""
    head = b"\x28\xb5\x2f\xfd" + (b"\x00\x50" if announced is None else b"\xc0\x50" + announced.to_bytes(8, "little"))
    kinds = [(131072 << 3 | 1 << 1 | (number == blocks - 1)).to_bytes(3, "little") + b"\0" for number in range(blocks)]
    return head + b"".join(kinds)


def one_chunk(tmp_path: Path, content: bytes) -> Path:
    """A data set of one episode of 15 steps, 16 Atari frames, whose only chunk is `content`; all checksums hold."""
    folder = tmp_path / "set"
    like = manifest(frame_shape=(84, 84), chunk_frames=16)
    write(folder, [made_up(15, np.random.default_rng(0), like=like)], frame_shape=(84, 84), chunk_frames=16)
    chunks, episodes = np.fromfile(folder / "chunks.bin", fmt.CHUNK), np.fromfile(folder / "episodes.bin", fmt.EPISODE)
    chunks["size"] = episodes["frames_end"] = len(content)
    forge(folder, frames=np.frombuffer(content, np.uint8), chunks=chunks, episodes=episodes)
    return folder


BOMBS = {
    "announced": (zstd_of_zeros(24_576, 3 << 30), "found 3221225472 bytes announced, expected 112896"),
    "not announced": (zstd_of_zeros(24_576, None), ""),
    "wrongly announced": (zstd_of_zeros(24_576, 112_896), ""),
    "two frames": (zstandard.compress(bytes(112_896)) + zstandard.compress(b"more"), "compressed input contains"),
    "too short": (zstandard.compress(bytes(112_895)), "found 112895 bytes announced, expected 112896"),
    "no zstd": (b"nothing of the kind", ""),
    "incompressible by far": (zstandard.compress(bytes(112_896)) + bytes(200_000), ""),
}


def test_the_bombs_are_what_they_say() -> None:
    assert len(BOMBS["announced"][0]) == 98_318
    small = zstandard.ZstdDecompressor().decompress(zstd_of_zeros(2, 262_144))
    assert small == bytes(262_144)


@pytest.mark.parametrize("name", BOMBS)
def test_a_chunk_that_does_not_hold_just_its_frames(tmp_path: Path, name: str) -> None:
    content, message = BOMBS[name]
    folder = one_chunk(tmp_path, content)
    expected = rf"frames.bin: damaged at byte 0 .*\(episode 0\).*{message}"
    with pytest.raises(UserError, match=expected):
        verify(DataVerifyConfig(folder))
    with pytest.raises(UserError, match=expected):
        open_dataset(folder).episode(0)


def test_bombs_are_refused_in_bounded_memory(tmp_path: Path) -> None:
    """3 GB in 96 kB: each is refused by a process with room for 100 MiB."""
    folders = [one_chunk(tmp_path / str(number), content) for number, (content, _) in enumerate(BOMBS.values())]
    done = bounded(
        "from pathlib import Path\n"
        "from protovalue.data.config import DataVerifyConfig\n"
        f"for folder in {[str(folder) for folder in folders]}:\n"
        "    try:\n"
        "        protovalue.data.info.verify(DataVerifyConfig(Path(folder)))\n"
        "    except UserError:\n"
        "        print('refused')\n",
        100 << 20,
    )
    assert done.stdout.split() == ["refused"] * len(folders), done.stderr


def test_noise_fits_into_what_a_chunk_may_take(tmp_path: Path) -> None:
    """Random bytes do not compress: zstd makes them a little larger."""
    for shape in ((1,), (84, 84), (300, 300)):
        codec = FrameCodec(shape, "uint8")
        frames = np.random.default_rng(0).integers(0, 256, (16, *shape), np.uint8)
        data = codec.encode(frames)
        assert len(data) <= codec.most(16)
        assert np.array_equal(codec.decode(data, 16), frames)
    assert FrameCodec((3, 3), "bool").size(5) == 6  # 45 bits
    assert FrameCodec((3, 3), "uint8").size(5) == 45
    assert FrameCodec((3, 3), "uint8").most(5) == 45 + 1024
    assert FrameCodec((128,), "uint8").most(2) == 256 + 2 + 1024


def test_a_record_that_announces_more_than_its_files_hold(folder: Path) -> None:
    """The tail of an interrupted data set: a record of 4 billion steps, whose checksum holds, is not believed."""
    with pytest.raises(RuntimeError), DatasetWriter(folder, manifest(), {"by": "test"}):
        raise RuntimeError
    table = np.fromfile(folder / "episodes.bin", fmt.EPISODE)
    last = table[-1:].copy()
    last["first_transition"], last["first_chunk"], last["length"] = 21, 6, (1 << 32) - 1
    last["crc"] = fmt.crc32(last.tobytes()[:-4])
    with (folder / "episodes.bin").open("ab") as file:
        file.write(last.tobytes())
    done = bounded(
        "import logging\nlogging.disable()\n"
        "from protovalue.data.dataset import open_dataset\n"
        f"print(open_dataset({str(folder)!r}).num_episodes)",
        100 << 20,
    )
    assert done.stdout.split() == ["3"], done.stderr


def test_deep_json_in_a_manifest_is_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fields = json.loads((folder / "manifest.json").read_bytes())
    deep = json.dumps({**fields, "provenance": "DEEP"}).replace('"DEEP"', "[" * 100_000 + "]" * 100_000)
    (folder / "manifest.json").write_text(deep)
    assert main(["data", "info", str(folder)]) == 2
    assert "manifest.json: damaged: found lists or objects nested more than 64 deep" in capsys.readouterr().err


def test_an_environment_whose_observations_are_too_large() -> None:
    env = make("gym/Counting-v0", 1)
    env.stack = 1025  # more than `make` would give
    with pytest.raises(UserError, match=r"gym/Counting-v0: field stack: found 1025, expected 1 to 1024"):
        manifest_of(env)


@pytest.mark.parametrize(("size", "frames"), [(1, 64), (2047, 64), (2048, 16), (7056, 16), (32 << 20, 8), (1 << 30, 1)])
def test_frames_of_a_chunk(size: int, frames: int) -> None:
    assert fmt.default_chunk_frames(size) == frames


def kill_before_the_last_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the writer as a kill would: the last record is written, the manifest is not."""
    monkeypatch.setattr(DatasetWriter, "commit", lambda self, complete=False, real=DatasetWriter.commit: (
        os._exit(9) if complete else real(self)))  # fmt: skip


def test_the_same_command_completes_a_data_set_whose_writer_was_killed_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config = CollectConfig("minatar/breakout", tmp_path / "set", steps=300)
    child = os.fork()
    if child == 0:
        kill_before_the_last_commit(monkeypatch)
        collect(config, quiet=True)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 9
    before = open_dataset(tmp_path / "set")
    assert before.num_transitions == 300
    assert not before.folders[0].manifest.complete
    caplog.clear()
    assert main(["collect", "minatar/breakout", "--out", str(tmp_path / "set"), "--steps", "300"]) == 0
    assert not caplog.text
    after = open_dataset(tmp_path / "set")
    assert after.folders[0].manifest.complete
    assert len(after.folders[0].manifest.provenance) == 1
    once = collect(CollectConfig("minatar/breakout", tmp_path / "once", steps=300), quiet=True)
    assert after.checksum == before.checksum == once.checksum
    assert after.folders[0].manifest == once.folders[0].manifest


def test_nothing_to_do_is_not_said_of_another_environment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["collect", "minatar/breakout", "--out", str(tmp_path / "set"), "--steps", "50"]
    assert main(words) == 0
    assert main([words[0], "minatar/asterix", *words[2:]]) == 2
    assert "holds a data set with env_id minatar/breakout, expected minatar/asterix" in capsys.readouterr().err


def test_a_writer_that_goes_on_with_the_same_source_writes_what_one_would_have_written(tmp_path: Path) -> None:
    episodes = [made_up(n, np.random.default_rng(n)) for n in (4, 9, 2, 5)]
    once = write(tmp_path / "once", episodes)
    for episode in episodes:
        with DatasetWriter(tmp_path / "parts", manifest(), {"by": "test"}) as writer:
            record(writer, episode)
    parts = open_dataset(tmp_path / "parts")
    assert parts.checksum == once.checksum
    assert parts.folders[0].manifest == once.folders[0].manifest
    with DatasetWriter(tmp_path / "parts", manifest(), {"by": "another"}) as writer:
        record(writer, episodes[0])
    provenance = open_dataset(tmp_path / "parts").folders[0].manifest.provenance
    assert provenance == [{"by": "test", "first_episode": 0}, {"by": "another", "first_episode": 4}]


@pytest.mark.parametrize("name", ["fsync", "manifest"])
def test_a_full_disk_names_the_file_when_committing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    episode = made_up(4, np.random.default_rng(0))

    def full(*_args: Any) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(UserError) as raised, DatasetWriter(tmp_path / "set", manifest(), {}) as writer:
        record(writer, episode)
        monkeypatch.setattr(*((os, "fsync", full) if name == "fsync" else (fmt, "write_json", full)))
    monkeypatch.undo()
    file = "frames.bin" if name == "fsync" else "manifest.json"
    assert str(raised.value) == (
        f"{tmp_path / 'set' / file}: No space left on device; 1 complete episodes are kept, the same command continues"
    )
    assert open_dataset(tmp_path / "set").num_episodes == 1
    with pytest.raises(UserError, match="manifest.json: No space left on device; 1 complete episodes are kept"):
        monkeypatch.setattr(fmt, "write_json", full)
        DatasetWriter(tmp_path / "set", manifest(), {}, keep=0)


def test_a_picture_that_cannot_be_written_is_named(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    picture = tmp_path / "sheet.png"
    assert main(["data", "info", str(folder), "--picture", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")

    def full(*_args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "write_all", full)
    assert main(["data", "info", str(folder), "--picture", str(picture)]) == 2
    assert capsys.readouterr().err == f"pvn: {picture}: No space left on device\n"


def test_no_memory_is_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(_config: Any) -> None:
        raise MemoryError("Unable to allocate 64.0 GiB")

    monkeypatch.setattr("protovalue.data.info.info", none)
    assert main(["data", "info", str(folder)]) == 2
    assert capsys.readouterr().err == "pvn: out of memory: Unable to allocate 64.0 GiB\n"
