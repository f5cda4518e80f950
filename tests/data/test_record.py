"""The recorder by itself: stages, iterations, and what it refuses."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protovalue.data.dataset import open_dataset
from protovalue.data.format import End, Manifest
from protovalue.data.record import Recorder
from protovalue.envs.registry import make
from protovalue.errors import UserError


def recorder(folder: Any, stages: int = 4, steps: int = 10) -> Recorder:
    return Recorder(folder, make("minatar/breakout"), steps, stages, seed=3)


def test_a_recorder_by_hand(tmp_path: Path) -> None:
    """Ten steps in four stages: 0 to 2 are stage 0, 3 and 4 stage 1, 5 to 7 stage 2, 8 and 9 stage 3."""
    one, frame = recorder(tmp_path / "d"), np.zeros((10, 10, 4), bool)
    one.close(complete=True)  # nothing was begun: nothing is written
    assert not (tmp_path / "d").exists()
    one.open()
    assert Manifest.read(tmp_path / "d").provenance == [
        {"by": "pvn dqn", "policy": "dqn", "seed": 3, "steps": 10, "stages": 4, "first_episode": 0}
    ]
    for step in range(10):
        one.begin(step, frame)
        one.add(step % 3, float(step), frame)
        if step == 6:
            count, under_way = one.save()
            assert (count, under_way["actions"].tolist(), under_way["checkpoint"].tolist()) == (6, [0], [2])
            assert Manifest.read(tmp_path / "d").episodes == 6  # on the disk
        if step < 9:
            one.end(End.TRUNCATED if step % 2 else End.TERMINATED)
    one.close(complete=True)
    one.close(complete=False)  # twice is once
    data = open_dataset(tmp_path / "d")
    episodes = [data.episode(i) for i in range(10)]
    assert [episode.iteration for episode in episodes] == [0, 0, 0, 1, 1, 2, 2, 2, 3, 3]
    assert [episode.actions.tolist() for episode in episodes] == [[step % 3] for step in range(10)]
    assert [episode.rewards.tolist() for episode in episodes] == [[float(step)] for step in range(10)]
    assert [episode.end for episode in episodes] == [End.TERMINATED, End.TRUNCATED] * 4 + [End.TERMINATED, End.CUT]
    assert data.folders[0].manifest.complete


def test_a_recorder_goes_back_to_a_checkpoint(tmp_path: Path) -> None:
    frame = np.ones((10, 10, 4), bool)
    one = recorder(tmp_path)
    one.open()
    for step in range(3):
        one.begin(step, frame)
        one.add(step, 1.0, frame)
        if step == 1:
            saved = one.save()
        one.end(End.TERMINATED)
    one.close(complete=False)
    assert saved[0] == 1
    again = recorder(tmp_path)
    again.resume(*saved)
    again.add(2, 5.0, frame)
    again.end(End.TRUNCATED)
    again.begin(9, frame)  # without a transition: dropped
    again.close(complete=True)
    data = open_dataset(tmp_path)
    assert [data.episode(i).actions.tolist() for i in range(data.num_episodes)] == [[0], [1, 2]]
    assert data.episode(1).frames.all()
    assert data.episode(1).end == End.TRUNCATED
    for keep in (2, 3):  # what a run has recorded must be there; its last iteration may be older than the end
        if keep == 2:
            recorder(tmp_path).check(keep)
        else:
            with pytest.raises(UserError, match=f"{tmp_path}: found 2 episodes, expected the 3 that the run has"):
                recorder(tmp_path).check(keep)
    recorder(tmp_path).check(0)
    with pytest.raises(UserError, match="holds a data set that this run did not begin; choose another folder"):
        recorder(tmp_path).check()  # a finished one is not begun again
    with pytest.raises(UserError, match="did not begin"):
        recorder(tmp_path).open()
    with pytest.raises(UserError, match="found 2 episodes, expected the 3"):
        recorder(tmp_path).resume(3, saved[1])
    assert open_dataset(tmp_path).checksum == data.checksum
    with pytest.raises(UserError, match="did not begin"):
        recorder(tmp_path, stages=5).check(2)
    recorder(tmp_path / "new").check()
    recorder(tmp_path / "new").check(0)
    with pytest.raises(UserError, match="new: found 0 episodes, expected the 1 that the run has recorded"):
        recorder(tmp_path / "new").check(1)
    assert not (tmp_path / "new").exists()


def test_what_was_recorded_before_the_first_checkpoint_is_recorded_again(tmp_path: Path) -> None:
    frame = np.ones((10, 10, 4), bool)
    for action in (1, 2):
        one = recorder(tmp_path)
        one.open()
        one.begin(0, frame)
        one.add(action, 1.0, frame)
        one.end(End.TERMINATED)
        one.close(complete=False)
    data = open_dataset(tmp_path)
    assert (data.num_episodes, data.episode(0).actions.tolist()) == (1, [2])
    assert len(data.folders[0].manifest.provenance) == 1
