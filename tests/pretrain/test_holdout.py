"""Monte Carlo comparison: discounted sums and correlations by hand, on episodes that terminated."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from protovalue.data.dataset import Dataset
from protovalue.data.format import End
from protovalue.errors import UserError
from protovalue.pretrain.holdout import compare_with_rollouts, discounted_sums, open_holdout
from tests.data.helpers import made_up, write


def test_discounted_sums_by_hand() -> None:
    rewards = np.array([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0]])
    assert discounted_sums(rewards, 0.5).tolist() == [[1.25, 0.25], [0.5, 0.5], [1.0, 1.0]]


def countdowns(folder: Any, lengths: Any, ends: Any = ()) -> Dataset:
    """Episodes in which every pixel of step t of T is T - t, and the action t mod 4."""
    episodes = []
    for number, length in enumerate(lengths):
        end = ends[number] if ends else End.TERMINATED
        episode = made_up(length, np.random.default_rng(length), end)
        episode.frames[:] = (length - np.arange(length + 1))[:, None, None]
        episode.actions[:] = np.arange(length) % 4
        episodes.append(episode)
    return write(folder, episodes)


def left(obs: Any) -> Any:
    """Return the pixel of the latest frame: how many steps are left."""
    return obs[:, -1, 0, :1].float()


def test_by_hand(tmp_path: Path) -> None:
    """Lengths 2 and 1; the reward is 1 while two steps are left, and gamma 1/2: the sums are 1, 0 and 0.

    The predictions 10 (T - t) + 100 a are 20, 110 and 10, those of the last task a thousandth of them. The longest
    episode was cut and does not count.
    """
    data = countdowns(tmp_path / "set", (2, 5, 1), (End.TERMINATED, End.CUT, End.TERMINATED))
    correlation, predicted, seen = compare_with_rollouts(
        data,
        lambda obs: torch.cat([left(obs) == 2, left(obs) > 99, left(obs) == 2], dim=1)[:-1],
        lambda obs, action: (10 * left(obs) + 100 * action[:, None]) * torch.tensor([1, 1, 0.001]),
        0.5,
        "cpu",
    )
    expected = np.corrcoef([20, 110, 10], [1, 0, 0])[0, 1]
    np.testing.assert_allclose(correlation, [expected, np.nan, expected], rtol=1e-5)  # what never fires has none
    np.testing.assert_allclose(predicted, [140 / 3, 140 / 3, 0.14 / 3], rtol=1e-5)
    np.testing.assert_allclose(seen, [1 / 3, 0, 1 / 3])


def test_rollouts_agree_with_a_perfect_prophet_and_not_with_its_opposite(tmp_path: Path) -> None:
    """Reward is 1 in every state, so the sum at step t of T is (1 - g^(T-t)) / (1 - g)."""
    data = countdowns(tmp_path / "set", (3, 9, 5, 6), (*3 * [End.TERMINATED], End.TRUNCATED))

    def always(obs: Any) -> torch.Tensor:
        return torch.ones(len(obs) - 1, 1, dtype=torch.bool)

    def prophet(obs: Any, action: Any) -> Any:
        return (1 - 0.9 ** left(obs)) / 0.1

    correlation, predicted, seen = compare_with_rollouts(data, always, prophet, 0.9, "cpu")
    assert correlation[0] == pytest.approx(1.0)
    assert predicted[0] == pytest.approx(seen[0], rel=1e-5)
    correlation, *_ = compare_with_rollouts(data, always, lambda obs, action: -prophet(obs, action), 0.9, "cpu")
    assert correlation[0] == pytest.approx(-1.0)


@pytest.mark.parametrize(("most", "counted"), [(1, 2), (2, 2), (3, 6), (6, 6), (7, 9), (99, 9)])
def test_whole_episodes_are_taken_until_there_are_enough(tmp_path: Path, most: int, counted: int) -> None:
    data = countdowns(tmp_path / "set", (2, 4, 3))
    asked = []

    def predict(obs: Any, action: Any) -> Any:
        asked.append(len(obs))
        return left(obs)

    compare_with_rollouts(data, lambda obs: left(obs)[:-1] > 1, predict, 0.5, "cpu", most)
    assert sum(asked) == counted


def test_long_episodes_are_seen_in_parts(tmp_path: Path) -> None:
    """No part of more than 512 transitions; the sums go over all of them."""
    data = countdowns(tmp_path / "set", (1030,))
    parts = []

    def rewards(obs: Any) -> torch.Tensor:
        parts.append((len(obs), int(left(obs)[0, 0]), int(left(obs)[-1, 0])))
        return torch.ones(len(obs) - 1, 1, dtype=torch.bool)

    def predict(obs: Any, action: Any) -> Any:
        assert torch.equal((1030 - left(obs)[:, 0].long()) % 256 % 4, action % 4)  # each with its own, mod 256
        return action[:, None]

    _, predicted, seen = compare_with_rollouts(data, rewards, predict, 0.0, "cpu")
    # From 1030 down to 518, to 6 and to 0, mod 256: each part begins where the one before ends.
    assert parts == [(513, 6, 6), (513, 6, 6), (7, 6, 0)]
    assert seen[0] == 1
    assert predicted[0] == pytest.approx(np.mean(np.arange(1030) % 4))


def test_data_without_an_end_are_refused(tmp_path: Path) -> None:
    data = countdowns(tmp_path / "set", (3, 2), (End.CUT, End.TRUNCATED))
    learned = countdowns(tmp_path / "learned", (3, 2), (End.CUT, End.TERMINATED))
    with pytest.raises(UserError, match="--holdout: .*/set: found no episode that terminated, expected some"):
        open_holdout([tmp_path / "set"], learned)
    assert open_holdout([tmp_path / "learned"], data).num_episodes == 2
    with pytest.raises(UserError, match="--holdout: .*/learned holds the episodes of --data .*/learned, expected oth"):
        open_holdout([tmp_path / "learned"], learned)
    with pytest.raises(UserError, match="--holdout: .*/learned holds the same episodes as .*/learned, expected others"):
        open_holdout([tmp_path / "learned", tmp_path / "learned"], data)
