"""`pvn sets`: what is counted of sets, drawn of them, and refused."""

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from PIL import Image

from protovalue.cli import main
from protovalue.data.dataset import Dataset
from protovalue.sets.command import different, numbers, some_episodes


def data_of(*lengths: int) -> Dataset:
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    sizes = {"num_episodes": len(lengths), "num_transitions": sum(lengths)}
    return cast("Dataset", SimpleNamespace(starts=starts, lengths=np.array(lengths), **sizes))


@pytest.mark.parametrize(
    ("most", "index", "starts"),
    [
        (20, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9], [0, 2, 5, 6]),  # all
        (5, [0, 1], [0]),  # with the last one it would be 6
        (1, [0, 1], [0]),  # one episode, however long
    ],
)
def test_a_large_data_set_is_looked_at_in_whole_episodes(most: int, index: list[int], starts: list[int]) -> None:
    """Four episodes of 2, 3, 1 and 4 transitions, 2.5 in the mean."""
    found, begins = some_episodes(data_of(2, 3, 1, 4), most)
    assert (found.tolist(), begins.tolist()) == (index, starts)


def test_episodes_are_spread_over_the_data() -> None:
    found, begins = some_episodes(data_of(2, 2, 2, 2, 2), 6)
    assert (found.tolist(), begins.tolist()) == ([0, 1, 4, 5, 8, 9], [0, 2, 4])


def test_visits_end_with_their_episode() -> None:
    """Episodes of 4 and 3 steps. The first set is entered twice, the second thrice, one stay ends with an episode."""
    rewards = np.array(
        [[1, 0, 0], [1, 1, 0], [0, 0, 0], [0, 1, 0], [0, 1, 0], [1, 0, 0], [0, 0, 0]], bool
    )  # fmt: skip
    found = numbers(rewards, np.array([0, 4]), np.array([1.0, 2.0, 3.0]))
    assert found.share.tolist() == [3 / 7, 3 / 7, 0]
    assert found.stay[:2].tolist() == [1.5, 1.0]  # steps 0 and 1, then 5; steps 1, 3 and 4, of two episodes
    assert np.isnan(found.stay[2])
    assert found.episodes.tolist() == [1.0, 1.0, 0.0]
    assert found.spread.tolist() == [1.0, 2.0, 3.0]
    first = numbers(rewards[:4], np.array([0]), np.zeros(3))
    assert first.episodes.tolist() == [1.0, 1.0, 0.0]
    assert numbers(rewards[4:], np.array([0, 1]), np.zeros(3)).episodes.tolist() == [0.5, 0.5, 0.0]


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ([[1, 0, 0, 0], [1, 0, 0, 0]], 1.0),  # the same set twice
        ([[1, 1, 0, 0], [0, 0, 1, 1]], 1.0),  # a set and its complement say the same
        ([[1, 1, 0, 0], [1, 0, 1, 0]], 2.0),  # independent
        ([[1, 1, 0, 0], [0, 0, 0, 0]], 1.0),  # an empty set is none
        ([[0, 0, 0, 0]], 0.0),
        ([[1, 0, 0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 0, 0, 0, 0]], None),  # neither the same nor independent
    ],
)
def test_how_many_different_sets(columns: list[list[int]], expected: float | None) -> None:
    found = different(np.array(columns, bool).T)
    if expected is None:
        # Their correlation is (1/8 - 1/16) / (sqrt(7)/8 * 1/2) = 0.378; singular values go as sqrt(1 +- 0.378).
        high, low = np.sqrt(1 + 1 / np.sqrt(7)), np.sqrt(1 - 1 / np.sqrt(7))
        q = np.array([high, low]) / (high + low)
        expected = float(np.exp(-(q * np.log(q)).sum()))
    assert found == pytest.approx(expected)


@pytest.fixture
def run(tmp_path: Path) -> tuple[Path, Path]:
    data, out = tmp_path / "data", tmp_path / "run"
    assert main(["collect", "minatar/breakout", "--steps", "300", "--out", str(data)]) == 0
    small = ["--tasks", "12", "--steps", "2", "--batch-size", "8", "--width", "0.25", "--out", str(out)]
    assert main(["pretrain", "--data", str(data), *small]) == 0
    return out, data


def test_the_command_prints_and_draws(
    run: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, data = run
    capsys.readouterr()
    picture = tmp_path / "new" / "sets.png"
    assert main(["sets", str(out), "--picture", str(picture), "--rows", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{out}: 12 sets on 300 transitions of minatar/breakout"
    named = {line[:34].strip(): line[34:].split() for line in lines[2:7]}
    assert float(named["share of the states"][1]) == pytest.approx(0.05, abs=0.03)
    assert float(named["steps from entering to leaving"][0]) >= 1
    assert 1 < float(named["different sets (effective rank)"][0]) <= 12
    with Image.open(picture) as image:
        assert image.size == (9 * 118 + 6, 3 * 132 + 6)
        tile = np.asarray(image)[20:132, 6:118].reshape(-1, 3)
        assert len(np.unique(tile, axis=0)) > 2  # what differs has colours
    moved = data.with_name("moved")
    data.rename(moved)
    assert main(["sets", str(out), "--data", str(moved)]) == 0
    assert "12 sets on 300 transitions" in capsys.readouterr().out


def test_what_is_refused(run: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, data = run
    other, bc = str(tmp_path / "other"), str(tmp_path / "bc")
    assert main(["collect", "minatar/breakout", "--steps", "300", "--seed", "1", "--out", other]) == 0
    small = ["--steps", "2", "--batch-size", "8", "--width", "0.25"]
    assert main(["pretrain", "--method", "bc", "--data", str(data), "--out", bc, *small]) == 0
    capsys.readouterr()
    assert main(["sets", str(out), "--data", other]) == 2
    assert "--data: found a data set with checksum" in capsys.readouterr().err
    assert main(["sets", bc]) == 2
    assert "found a run without sets, expected one of pvn pretrain --method pvn" in capsys.readouterr().err
