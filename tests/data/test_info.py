"""What `pvn data info` and `pvn data verify` say, and the pictures they draw, by value."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from protovalue.data.config import DataInfoConfig, DataVerifyConfig
from protovalue.data.format import End
from protovalue.data.info import contact_sheet, info, picture, summary, verify
from protovalue.data.writer import DatasetWriter
from tests.data.helpers import MadeUp, made_up, manifest, record, write


def flat(length: int, shade: int, end: End = End.TERMINATED, shape: tuple[int, ...] = (2, 3)) -> MadeUp:
    """An episode whose frame t is all `shade` + t, with rewards 0, 1, 2, ..."""
    frames = np.stack([np.full(shape, shade + t, np.uint8) for t in range(length + 1)])
    return MadeUp(frames, np.arange(length, dtype=np.int32) % 4, np.arange(length, dtype=np.float32), end)


def test_every_line_of_the_summary(tmp_path: Path) -> None:
    """Episodes of 3, 60 and 70 steps with returns 3, 1,770 and 2,415, in two folders of different origin."""
    with DatasetWriter(tmp_path / "a", manifest(), {"by": "test", "position": {"file": 1}}) as writer:
        writer.begin(np.zeros((2, 3), np.uint8), iteration=7)
        for episode, iteration in ((flat(3, 1), 0), (flat(60, 1, End.CUT), 9)):
            buffer = writer.begin(episode.frames[0], iteration)
            for action, reward, frame in zip(episode.actions, episode.rewards, episode.frames[1:], strict=True):
                buffer.add(int(action), float(reward), frame)
            buffer.end(episode.end)
    with pytest.raises(RuntimeError), DatasetWriter(tmp_path / "b", manifest(), {"by": "another"}) as writer:
        record(writer, flat(70, 1, End.TRUNCATED))
        raise RuntimeError
    from protovalue.data.dataset import Dataset, Folder

    data = Dataset([Folder(tmp_path / "a"), Folder(tmp_path / "b")])
    size = sum(path.stat().st_size for name in "ab" for path in (tmp_path / name).iterdir())
    assert summary(data) == {
        "folder": f"{tmp_path / 'a'}, {tmp_path / 'b'}",
        "environment": "gym/Nothing-v0 (stack 2)",
        "transitions": "133",
        "episodes": "3 (terminated 1, truncated 1, cut 1)",
        "frames": "136 of 2x3 uint8, 2 in a stack",
        "actions": "4",
        "on disk": f"{size / 1048576:,.1f} MiB, {size / 136:,.0f} bytes per frame",
        "rewards": "raw",
        "length": "3 to 70 steps, median 60",
        "return": "3.0 to 2,415.0, mean 1,396.00",
        "iterations": "2: 0 to 9",
        "provenance": "by test, first_episode 0",
        "  and 1": "by another, first_episode 0",
        "checksum": data.checksum,
        "state": "interrupted while it was written; all complete episodes are here",
    }


def test_info_and_contact_sheet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "set", [made_up(n, np.random.default_rng(n)) for n in (3, 9, 30)])
    info(DataInfoConfig((tmp_path / "set",), picture=tmp_path / "deep" / "sheet.png"))
    printed = capsys.readouterr().out
    assert "transitions   42\n" in printed
    assert "episodes      3 (terminated 3, truncated 0, cut 0)\n" in printed
    assert "length        3 to 30 steps, median 9\n" in printed
    assert Path(tmp_path / "deep" / "sheet.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_is_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "set", [flat(3, 1)])
    for _ in range(2):
        info(DataInfoConfig((tmp_path / "set",), picture=tmp_path / "deep" / "folder" / "sheet.png"))
        assert f"\npicture       {tmp_path / 'deep' / 'folder' / 'sheet.png'}\n" in capsys.readouterr().out
    with Image.open(tmp_path / "deep" / "folder" / "sheet.png") as sheet:
        assert sheet.size == (950, 138)


def test_progress_of_the_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = []
    monkeypatch.setattr("protovalue.progress.ProgressBar.advance", lambda self, count: steps.append(count))
    write(tmp_path / "set", [flat(3, 1), flat(2, 1)])
    verify(DataVerifyConfig(tmp_path / "set"))
    assert steps == [1, 1]


def test_an_empty_data_set_has_neither_lengths_nor_returns(tmp_path: Path) -> None:
    found = summary(write(tmp_path / "set", []))
    assert found["episodes"] == "0 (terminated 0, truncated 0, cut 0)"
    assert {"length", "return", "iterations", "state"}.isdisjoint(found)


def test_what_verify_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "set", [made_up(n, np.random.default_rng(n)) for n in (3, 2000)])
    verify(DataVerifyConfig(tmp_path / "set"))
    assert capsys.readouterr().out == f"{tmp_path / 'set'}: good: 2 episodes, 2,003 transitions\n"
    with pytest.raises(RuntimeError), DatasetWriter(tmp_path / "set", manifest(), {}):
        raise RuntimeError
    verify(DataVerifyConfig(tmp_path / "set"))
    assert "set: interrupted while written, all complete episodes good: 2 episodes" in capsys.readouterr().out


def test_the_contact_sheet_shows_the_first_and_the_last_of_everything(tmp_path: Path) -> None:
    """Ten episodes of 20 steps, shade 20 e + t: rows are episodes 0, 2, 4, 6, 9, columns steps 0, 2, 5, 8, ..., 20."""
    data = write(tmp_path / "set", [flat(20, 20 * e, shape=(4, 4)) for e in range(10)], frame_shape=(4, 4))
    sheet = contact_sheet(data)
    assert sheet.size == (8 * 118 + 6, 5 * 132 + 6)
    assert sheet.getpixel((2, 2)) == (32, 32, 36)
    for row, episode in enumerate((0, 2, 4, 6, 9)):
        for column, step in enumerate((0, 2, 5, 8, 11, 14, 17, 20)):
            shade = 20 * episode + step
            left, top = 6 + 118 * column, 6 + 132 * row + 14
            for x, y in ((0, 0), (111, 111), (56, 30)):
                assert sheet.getpixel((left + x, top + y)) == (shade,) * 3, (row, column)
            for x, y in ((-1, 50), (112, 50), (50, 112)):
                assert sheet.getpixel((left + x, top + y)) == (32, 32, 36), (row, column)
    words = np.asarray(sheet)[6:20, 6:118]  # "episode 0" is written above the first tile
    assert words.max(axis=(0, 1)).tolist() == [220, 220, 220]


def test_the_contact_sheet_of_fewer_episodes_and_steps(tmp_path: Path) -> None:
    data = write(tmp_path / "set", [flat(1, 100), flat(2, 200)])
    assert contact_sheet(data).size == (8 * 118 + 6, 2 * 132 + 6)
    assert contact_sheet(data, rows=1, columns=2).size == (2 * 118 + 6, 132 + 6)


def test_large_frames_are_smoothed_and_small_ones_are_not(tmp_path: Path) -> None:
    edge = np.zeros((64, 64), np.uint8)
    edge[:, 32:] = 200
    episode = MadeUp(np.stack([edge, edge]), np.zeros(1, np.int32), np.zeros(1, np.float32), End.CUT)
    sheet = np.asarray(contact_sheet(write(tmp_path / "set", [episode], frame_shape=(64, 64))))
    assert len(np.unique(sheet[76, 6:118, 0])) > 2
    small = np.ascontiguousarray(edge[:63, :63])
    episode = MadeUp(np.stack([small, small]), np.zeros(1, np.int32), np.zeros(1, np.float32), End.CUT)
    sheet = np.asarray(contact_sheet(write(tmp_path / "other", [episode], frame_shape=(63, 63))))
    assert set(np.unique(sheet[76, 6:118, 0])) == {0, 200}


def pixels(frame: Any) -> Any:
    image = picture(frame)
    assert isinstance(image, Image.Image)
    assert image.mode == "RGB"
    return np.asarray(image).tolist()


def test_pictures_of_every_kind_of_frame() -> None:
    grey = [[0, 7, 255]]
    assert pixels(np.array(grey, np.uint8)) == [[[0] * 3, [7] * 3, [255] * 3]]
    assert pixels(np.array([[True, False]])) == [[[255] * 3, [0] * 3]]
    assert pixels(np.array([9, 8], np.uint8)) == [[[9] * 3, [8] * 3]]
    assert pixels(np.array([True, False, True])) == [[[255] * 3, [0] * 3, [255] * 3]]
    colour = np.array([[[1, 2, 3], [4, 5, 6]]], np.uint8)
    assert pixels(colour) == colour.tolist()


def test_the_colours_of_ten_channels() -> None:
    """Okabe and Ito's seven that are not black, white, wine red and grey."""
    assert pixels(np.eye(10, dtype=np.bool_)[None]) == [[
        [230, 159, 0], [86, 180, 233], [0, 158, 115], [240, 228, 66], [0, 114, 178], [213, 94, 0], [204, 121, 167],
        [255, 255, 255], [136, 34, 85], [153, 153, 153],
    ]]  # fmt: skip


def test_channels_have_colours_and_later_ones_cover_earlier() -> None:
    frame = np.zeros((1, 4, 12), np.bool_)
    frame[0, 0, 0] = frame[0, 1, 1] = frame[0, 1, 2] = frame[0, 2, 10] = True
    orange, green = [230, 159, 0], [0, 158, 115]
    assert pixels(frame) == [[orange, green, orange, [0, 0, 0]]]  # the eleventh channel has the first's colour
    assert pixels(np.array([[[0, 1], [3, 0]]], np.uint8)) == [[[86, 180, 233], orange]]
    three = np.array([[[True, False, True]]])
    assert pixels(three) == [[green]], "three channels of flags are not colours"
