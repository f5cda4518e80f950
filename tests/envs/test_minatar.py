"""MinAtar's games against the package `minatar`: the same random numbers, then every frame, reward and end compared."""

import json
import logging
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import minatar
import numba
import numpy as np
import pytest
from gymnasium.error import ResetNeeded

from protovalue.envs.minatar import GAMES
from protovalue.envs.minatar_games import VERSION, shared, stepping
from protovalue.envs.registry import make
from protovalue.errors import UserError


class Draws:
    """SplitMix64 behind those methods of NumPy's RandomState that the package calls."""

    def __init__(self, seed: int) -> None:
        self.state = seed

    def bits(self) -> int:
        self.state = (self.state + 0x9E3779B97F4A7C15) % 2**64
        z = self.state
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        return z ^ (z >> 31)

    def rand(self, size: int | None = None) -> Any:
        if size is None:
            return (2 * (self.bits() >> 12) + 1) / 2**53
        return np.array([self.rand() for _ in range(size)])

    def randint(self, low: int, high: int | None = None, size: int | None = None) -> Any:
        if high is None:
            low, high = 0, low
        if size is None:
            return low + int(self.rand() * (high - low))
        return np.array([self.randint(low, high) for _ in range(size)])


def package_game(name: str, sticky: float, seed: int) -> Any:
    """A game of the package at the start of its first episode."""
    game = minatar.Environment(name, sticky_action_prob=sticky)
    game.random = game.env.random = Draws(seed)
    game.reset()
    return game


def play_both(env: Any, theirs: Any, policy: Any, steps: Any) -> SimpleNamespace:
    """Play our games and the package's with the same actions, compare, and return what happened."""
    codes = range(6) if env.options["actions"] == "full" else theirs[0].minimal_action_set()
    obs, seen = env._obs.copy(), SimpleNamespace(ended=0, reward=0.0, best=0.0)
    for step in range(steps):
        for i, game in enumerate(theirs):
            assert np.array_equal(obs[i, -1], game.state()), (step, i)
        actions = policy(env)
        obs, rewards, terminated, truncated, info = env.step(actions)
        for i, game in enumerate(theirs):
            reward, over = game.act(codes[actions[i]])
            assert (rewards[i], terminated[i]) == (reward, over), (step, i)
            if over or truncated[i]:
                assert np.array_equal(info["final_obs"][i, -1], game.state()), (step, i)
                game.reset()
        assert env._games["random"].tolist() == [game.random.state for game in theirs]
        seen.ended += int((terminated | truncated).sum())
        seen.reward += float(rewards.sum())
        seen.best = max(seen.best, float(rewards.max()))
        if step % 10 == 0:  # whatever a game can be in can be saved and loaded
            env.load_state(json.loads(json.dumps(env.save_state())))
    return seen


class RandomPlayer:
    """Uniformly random actions."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def __call__(self, env: Any) -> Any:
        return self.rng.integers(env.num_actions, size=env.num_envs)


class Planner:
    """Plays one game well: tries each action in copies of it, plays on at random, and takes what ends best."""

    def __init__(self, env: Any, copies: int, depth: int) -> None:
        self.copies, self.depth, self.rng = copies, depth, np.random.default_rng(0)
        self.scouts: Any = make(env.env_id, env.num_actions * copies, **env.options)
        self.scouts.reset()

    def __call__(self, env: Any) -> Any:
        self.scouts._games[:] = env._games[0]
        first = np.repeat(np.arange(env.num_actions), self.copies)
        value, alive = np.zeros(len(first)), np.ones(len(first), np.bool_)
        for step in range(self.depth):
            actions = first if step == 0 else self.rng.integers(env.num_actions, size=len(first))
            _, rewards, terminated, _, _ = self.scouts.step(actions)
            value += alive * rewards * 0.95**step
            alive &= ~terminated
        value = value + 10 * alive + 1e-3 * self.rng.random(len(value))
        return np.array([first[value.argmax()]])


def test_the_random_numbers_are_splitmix64() -> None:
    """The first five for the seed 1234567 are in its authors' words, as others publish them too."""
    draws = Draws(1234567)
    published = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert [draws.bits() for _ in range(5)] == published

    draw = numba.njit(lambda game: shared.uniform(game))
    games = np.zeros(1, shared.record(shared.rules_of("breakout")))
    games["random"] = 1234567
    assert [draw(games[0]) for _ in range(5)] == [(bits // 2**12 + 0.5) / 2**52 for bits in published]


@pytest.mark.parametrize("sticky", [0.0, 0.1])
@pytest.mark.parametrize("actions", ["minimal", "full"])
@pytest.mark.parametrize("name", GAMES)
def test_random_play_is_the_packages(name: str, actions: str, sticky: float) -> None:
    env: Any = make(f"minatar/{name}", 4, actions=actions, sticky=sticky)
    seeds = [0, 1, 2**63, 12345]
    env.reset(seed=seeds)
    seen = play_both(env, [package_game(name, sticky, seed) for seed in seeds], RandomPlayer(0), 700)
    assert seen.ended > 0 or name == "freeway"
    assert seen.reward > 0 or name == "freeway"


def follow_the_ball(env: Any) -> np.ndarray:
    """Breakout: stay below where the ball will be, and on the way from time to time below where it is."""
    game = env._games[0]
    target = game["x"] + (game["right"] if game["random"] % 3 else 0)
    return np.array([0 if target == game["paddle"] else 1 if target < game["paddle"] else 2])


def go_up(env: Any) -> Any:
    """Freeway: always up."""
    return np.ones(env.num_envs, np.int64)


@pytest.mark.parametrize(
    ("name", "sticky", "steps", "player", "least"),
    [
        ("asterix", 0.1, 2000, Planner, 100),
        ("breakout", 0.0, 3000, follow_the_ball, 180),  # six times all bricks
        ("freeway", 0.1, 2600, go_up, 4),  # to the end of an episode
        ("seaquest", 0.1, 2000, Planner, 80),
        ("space_invaders", 0.1, 2000, Planner, 24 * 7),  # waves until the last one gets no faster
    ],
)
def test_good_play_is_the_packages(name: str, sticky: float, steps: int, player: Any, least: int) -> None:
    env = make(f"minatar/{name}", 1, sticky=sticky)
    env.reset(seed=5)
    policy = Planner(env, 6, 12) if player is Planner else player
    seen = play_both(env, [package_game(name, sticky, 5)], policy, steps)
    assert seen.reward >= least
    assert seen.ended > 0 or name in ("breakout", "space_invaders")
    assert seen.best > 1 or name != "seaquest", "points for six divers"


def test_aliens_that_come_down_are_the_packages() -> None:
    """The last rows, where aliens meet the cannon or leave the bottom row, are hard to reach by playing."""
    rng, ends = np.random.default_rng(0), 0
    for seed in range(60):
        env: Any = make("minatar/space_invaders", 1, sticky=0.0)
        env.reset(seed=seed)
        game = package_game("space_invaders", 0.0, seed)
        aliens = np.zeros((10, 10), np.int64)
        aliens[6:] = rng.random((4, 10)) < 0.2
        aliens[3, 4] = 1
        env._games["aliens"] = aliens @ 2 ** np.arange(10)
        env._games["move_timer"] = timer = int(rng.integers(4))
        env._games["heading"] = heading = int(rng.choice([-1, 1]))
        game.env.alien_map, game.env.alien_move_timer, game.env.alien_dir = aliens.astype(float), timer, heading
        env._obs[0, -1] = game.state()
        ends += play_both(env, [game], RandomPlayer(seed), 30).ended
    assert ends > 40


@pytest.mark.parametrize("aboard", [-1, 0, 1, 6])
@pytest.mark.parametrize("speeds", [(20, 5, 0), (19, 5, 1), (2, 2, 18), (1, 3, 19), (1, 2, 19)])
def test_coming_up_for_air_is_the_packages(aboard: int, speeds: tuple[Any, ...]) -> None:
    """With every number of divers that matters, and at both ends of the difficulty."""
    for air in (0, 1, 19, 20, 187):
        env: Any = make("minatar/seaquest", 1, sticky=0.0)
        env.reset(seed=3)
        game = package_game("seaquest", 0.0, 3)
        env._games["y"], env._games["is_up"], env._games["aboard"], env._games["air"] = 1, 0, aboard, air
        game.env.sub_y, game.env.surface, game.env.diver_count, game.env.oxygen = 1, False, aboard, air
        for name, theirs, value in zip(
            ("spawn_speed", "move_speed", "ramps"), ("e_spawn_speed", "move_speed", "ramp_index"), speeds, strict=True
        ):
            env._games[name] = value
            setattr(game.env, theirs, value)
        env._obs[0, -1] = game.state()
        play_both(env, [game], lambda env: np.array([2 if env._games["y"][0] else 4]), 60)


def test_seaquest_at_its_greatest_speed_is_the_packages() -> None:
    """An enemy comes in every step. With -1 divers the player can come up, and so go on, as often as it likes."""
    most, reward = np.zeros(2, np.int64), 0.0
    env: Any = make("minatar/seaquest", 1, sticky=0.1)
    planner = Planner(env, 5, 6)

    def policy(env: Any) -> Any:
        most[:] = np.maximum(most, [env._games[name][0] for name in ("num_fish", "num_submarines")])
        return planner(env)

    for seed in range(8):
        env.reset(seed=seed)
        game = package_game("seaquest", 0.1, seed)
        env._games["spawn_speed"], env._games["spawn_timer"], env._games["move_speed"] = 1, 0, 2
        game.env.e_spawn_speed, game.env.e_spawn_timer, game.env.move_speed = 1, 0, 2
        env._games["aboard"] = game.env.diver_count = -1
        reward += play_both(env, [game], policy, 150).reward
    print(most, reward)
    assert reward > 20
    assert most[0] >= 10
    assert most[1] >= 5


def rollout(env: Any, policy: Any, steps: Any) -> list[list[Any]]:
    """What a caller sees."""
    seen = []
    for _ in range(steps):
        obs, rewards, terminated, truncated, info = env.step(policy(env))
        final = info["final_obs"].tobytes() if info else None
        seen.append([obs.tobytes(), rewards.tolist(), terminated.tolist(), truncated.tolist(), final])
    return seen


@pytest.mark.parametrize("name", GAMES)
def test_a_saved_state_goes_on_bit_for_bit(name: str) -> None:
    options = {"stack": 3, "sticky": 0.25, "max_steps": 45}
    env: Any = make(f"minatar/{name}", 3, **options)
    env.reset(seed=1)
    rollout(env, RandomPlayer(1), 70)
    text = json.dumps(env.save_state())
    assert len(text) < 3 * 2000
    obs = env._obs.copy()
    expected = rollout(env, RandomPlayer(2), 100)

    other = make(f"minatar/{name}", 3, **options)
    assert np.array_equal(other.load_state(json.loads(text)), obs)
    assert json.dumps(other.save_state()) == text
    assert rollout(other, RandomPlayer(2), 100) == expected
    env.load_state(json.loads(text))
    assert rollout(env, RandomPlayer(2), 100) == expected


def test_an_episode_is_cut_after_as_many_steps_and_a_termination_wins() -> None:
    """Freeway ends by itself after 2,501 steps. The state has a step counter of its own, as the time limit needs it."""
    for limit, ends in ((2500, [(2500, False)]), (2501, [(2501, True)])):
        env: Any = make("minatar/freeway", 1, max_steps=limit)
        env.reset(seed=0)
        found = []
        for step in range(1, 2504):
            _, _, terminated, truncated, info = env.step(np.zeros(1, np.int64))
            assert bool(info) == bool(terminated[0] or truncated[0])
            if info:
                found.append((step, bool(terminated[0])))
        assert found == ends
        assert env.save_state()["games"][0]["steps"] == 2503 - ends[0][0]


def test_the_last_action_outlives_an_episode_but_not_a_seed() -> None:
    """As in the package: a sticky action can repeat the one before the end of the last episode."""
    env: Any = make("minatar/breakout", 1, sticky=0.0)
    env.reset(seed=0)
    env.step(np.array([2]))
    assert env._games["last_action"] == 3  # right
    env.reset()
    assert env._games["last_action"] == 3
    env.reset(seed=0)
    assert env._games["last_action"] == 0


def test_without_a_seed_games_differ() -> None:
    first, second = (make("minatar/freeway", 1).reset()[0] for _ in range(2))
    assert not np.array_equal(first, second), "eight cars: equal by chance once in 10^8"


@pytest.mark.parametrize("actions", [[3, 0], [0, -1]])
def test_actions_outside_of_the_set_are_refused_before_any_game_is_played(actions: list[int]) -> None:
    env = make("minatar/breakout", 2)
    env.reset(seed=0)
    before = env.save_state()
    with pytest.raises(ValueError, match=r"expected 0 to 2$"):
        env.step(np.array(actions))
    with pytest.raises(ValueError, match=r"shape \(1,\) for 2 environments"):
        env.step(np.array([0]))
    assert env.save_state() == before


def test_a_step_needs_a_reset_and_a_seed_is_not_negative() -> None:
    env = make("minatar/breakout", 2)
    with pytest.raises(ResetNeeded, match="minatar/breakout: reset comes before"):
        env.step(np.zeros(2, np.int64))
    with pytest.raises(OverflowError):
        env.reset(seed=-1)


def test_states_of_the_package_are_refused() -> None:
    """What was saved before the games were our own: {"games": ..., "steps": ..., "stacks": ...}."""
    env = make("minatar/breakout", 1)
    old = {"games": [{"game": {"pos": 4}, "last_action": 0, "random": ["MT19937", [1]]}], "steps": [0], "stacks": [[]]}
    with pytest.raises(UserError) as error:
        env.load_state(old)
    assert str(error.value) == (
        "minatar/breakout: cannot go on from a state that other games saved: found version None, "
        f"expected {VERSION}; start again in another folder"
    )


@pytest.mark.parametrize(
    ("name", "field", "value", "message"),
    [
        ("breakout", "x", 10, "x: found 10, expected 0 to 9"),
        ("breakout", "x", -1, "x: found -1, expected 0 to 9"),
        ("breakout", "x", 1.5, "x: found 1.5, expected integers"),
        ("breakout", "x", [1], "x: found [1], expected integers of shape ()"),
        ("breakout", "x", [], "x: found [], expected"),
        ("breakout", "bricks", [1], "expected integers of shape (10, 10)"),
        ("breakout", "bricks", [[1] * 11], "expected integers of shape (10, 10)"),
        ("breakout", "bricks", [[1] * 10] * 11, "expected integers of shape (10, 10)"),
        ("breakout", "random", 2**64, "OverflowError"),
        ("breakout", "random", 1.0, "TypeError"),
        ("breakout", "steps", -1, "steps: found -1"),
        ("freeway", "speed", [1, 2, 3], "speed: found [1, 2, 3], expected 1 to 5"),
        ("seaquest", "fish", [[0, 10, 1, 0, 0]], "fish: found [[0, 10, 1, 0, 0]], expected"),
        ("seaquest", "num_fish", 33, "num_fish: found 33, expected 0 to 32"),
    ],
)
def test_states_that_no_game_can_be_in_are_refused(name: str, field: str, value: Any, message: str) -> None:
    env: Any = make(f"minatar/{name}", 2)
    env.reset(seed=0)
    state = env.save_state()
    before = json.dumps(state)
    state["games"][1][field] = value
    with pytest.raises(UserError) as error:
        env.load_state(state)
    assert message in str(error.value)
    assert str(error.value).startswith(f"minatar/{name}: the saved state is damaged: ")
    assert json.dumps(env.save_state()) == before, "nothing was changed"


# What decides where compiled code reads and writes.
PLACES = {
    "asterix": {"x": (0, 9), "y": (1, 8), "thing_x": (0, 9), "heading": (-1, 1), "kind": (0, 2)},
    "breakout": dict.fromkeys(("paddle", "x", "y", "last_x", "last_y"), (0, 9)) | {"right": (-1, 1), "down": (-1, 1)},
    "freeway": {"y": (0, 9), "car_x": (0, 9), "speed": (1, 5), "heading": (-1, 1)},
    "seaquest": {"x": (0, 9), "y": (0, 8), "heading": (-1, 1), "air": (-1, 200), "num_fish": (0, 32)},
    "space_invaders": {"x": (0, 9), "aliens": (0, 1023), "shots": (0, 1023), "bombs": (0, 1023)},
}


@pytest.mark.parametrize("name", GAMES)
def test_states_with_something_outside_of_the_grid_are_refused(name: str) -> None:
    env: Any = make(f"minatar/{name}", 1)
    env.reset(seed=0)
    state = env.save_state()
    for field, (low, high) in PLACES[name].items():
        shape = env._games[field].shape[1:]
        for value in (low, high, low - 1, high + 1):
            game = {**state["games"][0], field: np.full(shape, value).tolist()}
            changed = {**state, "games": [game]}
            if low <= value <= high:
                env.load_state(changed)
            else:
                with pytest.raises(UserError, match=f"{field}: found"):
                    env.load_state(changed)


def test_lists_of_seaquest_with_something_outside_of_the_grid_are_refused() -> None:
    env: Any = make("minatar/seaquest", 1)
    env.reset(seed=0)
    state = env.save_state()
    for field in ("bullets", "divers", "enemy_bullets", "fish", "submarines"):
        for column, (low, high) in enumerate([(0, 9), (0, 9), (-1, 1)]):
            for value in (low, high, low - 1, high + 1):
                row = [4, 4, 1, 0, 0]
                row[column] = value
                changed = {**state, "games": [{**state["games"][0], field: [row]}]}
                if low <= value <= high:
                    env.load_state(changed)
                else:
                    with pytest.raises(UserError, match=f"{field}: found"):
                        env.load_state(changed)


def test_states_of_other_sizes_are_refused() -> None:
    env: Any = make("minatar/breakout", 2)
    env.reset(seed=0)
    state = env.save_state()
    for damaged in (
        {**state, "games": state["games"][:1]},
        {**state, "frames": state["frames"][:-2]},
        {**state, "frames": state["frames"] + "00"},
        {**state, "frames": "zz"},
        {"version": VERSION, "frames": state["frames"]},
    ):
        with pytest.raises(UserError, match=r"^minatar/breakout: the saved state is damaged: "):
            env.load_state(damaged)


def test_a_made_up_state_with_too_many_things_stops() -> None:
    env: Any = make("minatar/seaquest", 1)
    env.reset(seed=0)
    env._games["num_divers"], env._games["diver_timer"] = 4, 0
    with pytest.raises(RuntimeError, match="more things than"):
        env.step(np.zeros(1, np.int64))


def test_compiled_games_are_named_after_all_files_that_they_are_made_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """numba itself would go on with the old rules after a change in the file of a game."""

    def name() -> str:
        step: Any = stepping.compile_step.__wrapped__("breakout")
        return str(step.py_func.__qualname__)

    names = {name()}
    shutil.copytree(Path(stepping.__file__).parent, tmp_path / "games")
    monkeypatch.setattr(stepping, "__file__", str(tmp_path / "games" / "stepping.py"))
    names.add(name())
    assert len(names) == 1
    for path in sorted((tmp_path / "games").glob("*.py")):
        path.write_text(path.read_text() + "\n")
        names.add(name())
    assert len(names) == 1 + len(GAMES) + 3


def test_games_are_compiled_without_a_place_to_keep_them(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(numba.config, "CACHE_LOCATOR_CLASSES", "UserProvidedCacheLocator")
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    with caplog.at_level(logging.WARNING):
        step: Any = stepping.compile_step.__wrapped__("breakout")
    assert "NUMBA_CACHE_DIR" in caplog.text
    assert step.py_func.__qualname__.startswith("breakout_")


def test_numba_is_imported_by_making_a_game_and_the_package_never() -> None:
    """numba costs a third of a second; the package would bring seaborn, and its licence."""
    script = """
import sys
from protovalue.envs.registry import make
assert "numba" not in sys.modules
make("minatar/breakout", 2).reset(seed=0)
assert "numba" in sys.modules
print(*{"minatar", "seaborn", "pandas"} & sys.modules.keys())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    needed = {name.partition(">")[0] for name in project["dependencies"]}
    assert "numba" in needed
    assert needed.isdisjoint({"minatar", "seaborn", "pandas"})
