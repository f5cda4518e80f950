"""What is true of a state: cells of MinAtar by hand, bytes of Atari's RAM by what they do, a player's own log."""

from pathlib import Path

import numpy as np
import pytest

from protovalue.data.dataset import open_dataset
from protovalue.envs.registry import make
from protovalue.errors import UserError
from protovalue.evaluate.probe_file import Variable
from protovalue.probe import labels, ram


def test_cells_by_hand() -> None:
    """A grid of 3 x 4 with 3 channels: the player at row 0, column 1; channel 2 right of it, both others below it."""
    frame = np.zeros((3, 4, 3), np.bool_)
    frame[0, 1, 0] = True
    frame[0, 2, 2] = True
    frame[1, 1, [1, 2]] = True
    found, variables = labels.cells_labels(frame[None, None])
    named = dict(zip(variables, found[0].tolist(), strict=True))
    beside = {v.name: value for v, value in named.items() if v.category == labels.BESIDE}
    assert beside == {
        "cell -1, -1": 0, "cell -1, +0": 0, "cell -1, +1": 0,  # outside of the grid
        "cell +0, -1": 0, "cell +0, +1": 2, "cell +1, -1": 0, "cell +1, +0": 1, "cell +1, +1": 0,
    }  # fmt: skip
    places = {v.name: value for v, value in named.items() if v.category == labels.PLACES}
    assert places == {
        "row of channel 0": 0, "row of channel 1": 1, "row of channel 2": 1,  # the mean of 0 and 1, rounded up
        "column of channel 0": 1, "column of channel 1": 1, "column of channel 2": 2,
        "count of channel 0": 1, "count of channel 1": 1, "count of channel 2": 2,
    }  # fmt: skip
    nothing, _ = labels.cells_labels(np.zeros((1, 1, 3, 4, 3), np.bool_))
    assert nothing[0, 8:14].tolist() == [3, 3, 3, 4, 4, 4]  # one more than the last row and column


def test_random_play_numbers_its_episodes() -> None:
    states = labels.cells_states(make("minatar/breakout", 4), 400, 0)
    assert states.observations.shape == (400, 1, 10, 10, 4)
    assert len(np.unique(states.episodes)) > 8
    for number in np.unique(states.episodes)[4:]:  # begun here: the ball of Breakout starts in row 3
        first = states.observations[states.episodes == number][0, -1]
        assert first[3, :, 1].any()
    again, _ = labels.cells_labels(states.observations)
    assert (again == states.labels).all()


def test_every_variable_of_the_table() -> None:
    table = ram.ram_table()
    assert len(table) == 24
    assert sum(len(rows) for rows in table.values()) == 362
    assert (Variable("player_x", "agent localization"), 73) in table["Asteroids"]
    assert all(0 <= place < 128 for rows in table.values() for _, place in rows)
    assert ram.published_f1()["Pong"]["st_dim"] == 0.81
    with pytest.raises(UserError, match="atari/Asterix"):
        ram.variables_of("atari/Asterix")


@pytest.mark.parametrize(("game", "sticky"), [("Boxing", 0.0), ("Breakout", 0.25)])
def test_a_shadow_follows_its_game(game: str, sticky: float) -> None:
    """Breakout loses five lives and starts again within some hundred random steps; rewards and ends are compared."""
    env = make(f"atari/{game}", 2, sticky=sticky, max_steps=400)
    states = ram.ram_states(env, 1_000, 3, quiet=True)
    assert states.observations.dtype == np.uint8
    assert states.observations.shape[1:] == (4, 84, 84)
    assert len(np.unique(states.episodes)) >= 2
    names = [variable.name for variable in states.variables]
    where = states.labels[:, names.index("player_x")]
    assert len(np.unique(where)) > 5
    assert 300 < np.bincount(states.episodes).max() < 400 or game == "Breakout"  # cut after 400, without that step


def test_the_player_is_seen_where_the_byte_says() -> None:
    """In Boxing the white player is the brightest thing in the ring."""
    env = make("atari/Boxing", 2)
    states = ram.ram_states(env, 600, 0, quiet=True)
    names = [variable.name for variable in states.variables]
    where = states.labels[:, names.index("player_x")].astype(float)
    bright = states.observations[:, -1, 15:75] > 200
    seen = bright.any(axis=(1, 2))
    columns = (bright.sum(axis=1) * np.arange(84)).sum(axis=1)[seen] / bright.sum(axis=(1, 2))[seen]
    assert np.corrcoef(columns, where[seen])[0, 1] > 0.9


def test_a_shadow_that_strays_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    step = ram.Shadow.step
    monkeypatch.setattr(ram.Shadow, "step", lambda self, action: (step(self, action)[0] + 1, False))
    with pytest.raises(RuntimeError, match="atari/Pong: an emulator does not follow the environment's game 0"):
        ram.ram_states(make("atari/Pong", 1), 10, 0, quiet=True)


def test_a_player_s_last_states(tmp_path: Path) -> None:
    from protovalue.cli import main

    assert main(["collect", "minatar/breakout", "--steps", "300", "--out", str(tmp_path / "data")]) == 0
    data = open_dataset(tmp_path / "data")
    states = labels.player_labels(data, 50, 1)
    lengths = [int(length) for length in data.lengths]
    last = next(n for n in range(1, len(lengths)) if sum(lengths[-n:]) >= 50)
    assert len(states.labels) == sum(lengths[-last:])
    assert len(np.unique(states.episodes)) == last
    final = data.episode(data.num_episodes - 1)
    own = states.labels[states.episodes == last - 1]
    assert own[:, 0].tolist() == final.actions.tolist()
    assert own[:, 1].tolist() == [int(np.sign(reward)) + 1 for reward in final.rewards]
    assert (states.observations[-1, 0] == final.frames[-2]).all()  # in which the last action was taken
