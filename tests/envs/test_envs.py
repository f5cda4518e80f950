"""Environments: frame stacks against an independent reconstruction, ends of episodes, seeds, bad names and options."""

import contextlib
from collections import deque
from typing import Any

import numpy as np
import pytest

from protovalue.envs.atari import game_names
from protovalue.envs.registry import frame_shape, make
from protovalue.errors import UserError

CASES: list[tuple[str, dict[str, Any], int]] = [
    ("minatar/breakout", {"stack": 3}, 200),
    ("minatar/space_invaders", {"max_steps": 7}, 100),
    ("minatar/seaquest", {"actions": "full", "sticky": 0.0}, 100),
    ("atari/Breakout", {"max_steps": 40}, 150),
    ("atari/Breakout", {"episodic_life": True, "noop_max": 5, "sticky": 0.25}, 150),
    ("atari/Pong", {"stack": 2, "frameskip": 8, "actions": "full"}, 60),
    ("gym/Counting-v0", {"stack": 4}, 60),
]


@pytest.mark.parametrize(("env_id", "options", "_"), CASES)
def test_the_shape_of_a_frame_is_told_as_it_will_be(env_id: Any, options: Any, _: Any) -> None:
    with contextlib.closing(make(env_id, 1, **options)) as env:
        assert frame_shape(env_id, **options) == env.frame_shape == env.reset(seed=0)[0].shape[2:]


@pytest.mark.parametrize("env_id", ["minatar/chess", "atari/Chess", "gym/Chess-v0", "chess/Breakout"])
def test_there_is_no_shape_where_there_is_no_game(env_id: str) -> None:
    with pytest.raises(UserError, match="environment"):
        frame_shape(env_id)
    with pytest.raises(UserError, match="frameskip"):
        frame_shape("atari/Breakout", frameskip=0)


def test_atari_is_by_default_the_papers() -> None:
    """Four grey frames of 84 x 84, frame skip 4, 27,000 steps of an episode, no sticky actions, no no-operations."""
    with contextlib.closing(make("atari/Pong", 1)) as env:
        assert env.reset(seed=0)[0].shape == (1, 4, 84, 84)
        assert env.options == {
            "actions": "minimal", "sticky": 0.0, "stack": 4, "max_steps": 27_000, "frameskip": 4, "noop_max": 0,
            "episodic_life": False,
        }  # fmt: skip


@pytest.mark.parametrize(("env_id", "options", "steps"), CASES)
def test_observations_are_the_last_frames_of_this_episode_padded_with_zeros(
    env_id: Any, options: Any, steps: Any
) -> None:
    env = make(env_id, 3, **options)
    obs, info = env.reset(seed=11)
    assert info == {}
    stack = env.stack

    def fresh(frame: Any) -> deque[Any]:
        history = deque([np.zeros_like(frame)] * stack, maxlen=stack)
        history.append(frame)
        return history

    histories = [fresh(obs[i, -1]) for i in range(3)]
    rng = np.random.default_rng(0)
    ended = 0
    for step in range(steps + 1):
        for i in range(3):
            assert np.array_equal(obs[i], np.stack(histories[i])), (step, i)
        actions = rng.integers(env.num_actions, size=3)
        obs, rewards, terminated, truncated, info = env.step(actions)
        assert rewards.dtype == np.float32
        assert not (terminated & truncated).any()
        over = terminated | truncated
        assert bool(info) == over.any()
        for i in range(3):
            if over[i]:
                assert info["_final_obs"][i]
                histories[i].append(info["final_obs"][i, -1])
                assert np.array_equal(info["final_obs"][i], np.stack(histories[i]))
                histories[i] = fresh(obs[i, -1])
                ended += 1
            else:
                histories[i].append(obs[i, -1])
    assert ended > 0 or env_id == "atari/Pong"


def test_counting_episodes_by_hand() -> None:
    """Episode k has 1 + k mod 4 steps and rewards 1, 2, ...; even ones terminate, odd ones are truncated."""
    env = make("gym/Counting-v0", 1)
    obs, _ = env.reset(seed=0)
    seen = []
    for _ in range(10):
        obs, rewards, terminated, truncated, info = env.step(np.array([2]))
        final = info["final_obs"][0, -1].tolist() if info else None
        seen.append((obs[0, -1].tolist(), rewards[0], bool(terminated[0]), bool(truncated[0]), final))
    assert seen[:6] == [
        ([1, 0, 0], 1.0, True, False, [0, 1, 7]),  # episode 0, one step, terminated: the next one's first frame
        ([1, 1, 7], 1.0, False, False, None),
        ([2, 0, 0], 2.0, False, True, [1, 2, 7]),  # episode 1, two steps, truncated
        ([2, 1, 7], 1.0, False, False, None),
        ([2, 2, 7], 2.0, False, False, None),
        ([3, 0, 0], 3.0, True, False, [2, 3, 7]),
    ]


def test_time_limit_truncates_and_a_termination_on_that_step_wins() -> None:
    env = make("gym/Counting-v0", 1, max_steps=3)
    env.reset(seed=0)
    ends = []
    for _ in range(9):  # episodes of 1, 2, 3 and 4 steps, the last cut to 3
        _, _, terminated, truncated, _ = env.step(np.array([0]))
        ends.append("T" if terminated[0] else "t" if truncated[0] else ".")
    assert "".join(ends) == "T.t..T..t"


@pytest.mark.parametrize("env_id", ["minatar/asterix", "minatar/freeway", "atari/Asterix"])
def test_same_seed_same_experience_and_each_environment_has_its_own(env_id: str) -> None:
    def rollout(seed: Any, num_envs: Any, column: Any) -> np.ndarray:
        env = make(env_id, num_envs, sticky=0.25)
        frames = [env.reset(seed=seed)[0][column]]
        rng = np.random.default_rng(0)
        for _ in range(60):
            obs, *_ = env.step(np.full(num_envs, rng.integers(env.num_actions)))
            frames.append(obs[column])
        return np.stack(frames)

    together = rollout([4, 9], 2, 1)
    assert np.array_equal(together, rollout([4, 9], 2, 1))
    assert np.array_equal(together, rollout(9, 1, 0)), "an environment does not depend on its neighbours"
    assert not np.array_equal(together, rollout([4, 10], 2, 1))


def test_minimal_and_full_action_sets() -> None:
    minimal = {"asterix": 5, "breakout": 3, "freeway": 3, "seaquest": 6, "space_invaders": 4}
    channels = {"asterix": 4, "breakout": 4, "freeway": 7, "seaquest": 10, "space_invaders": 6}
    for game, count in minimal.items():
        env = make(f"minatar/{game}", 1)
        assert env.num_actions == count
        assert env.single_observation_space.shape == (1, 10, 10, channels[game])
        assert make(f"minatar/{game}", 1, actions="full").num_actions == 6
    assert make("atari/Pong", 1).num_actions == 6
    assert make("atari/Pong", 1, actions="full").num_actions == 18


def test_minatar_minimal_actions_move_the_paddle() -> None:
    """Breakout's minimal set is none, left, right; the paddle starts at column 4."""
    for action, column in ((0, 4), (1, 3), (2, 5)):
        env = make("minatar/breakout", 1, sticky=0.0)
        env.reset(seed=0)
        obs = env.step(np.array([action]))[0]
        assert np.flatnonzero(obs[0, 0, 9, :, 0]).tolist() == [column]


def test_atari_names_are_the_papers() -> None:
    names = game_names()
    assert len(names) >= 108
    papers = {"SpaceInvaders": "space_invaders", "UpNDown": "up_n_down", "Jamesbond": "jamesbond", "Qbert": "qbert"}
    for name, rom in papers.items():
        assert names[name] == rom


def test_rewards_are_raw() -> None:
    """Space Invaders pays 5 to 30 points: clipping would leave only 1."""
    env = make("atari/SpaceInvaders", 4)
    env.reset(seed=0)
    rng = np.random.default_rng(0)
    rewards = np.concatenate([env.step(rng.integers(6, size=4))[1] for _ in range(150)])
    assert {5.0, 10.0} <= set(rewards.tolist())


@pytest.mark.parametrize("env_id", ["minatar/breakout", "atari/Pong"])
def test_a_reset_takes_no_options_and_a_seed_for_each(env_id: str) -> None:
    env = make(env_id, 2)
    with pytest.raises(ValueError, match=r"reset takes no options, found \['lives'\]"):
        env.reset(options={"lives": 3})
    with pytest.raises(ValueError, match="3 seeds for 2 environments"):
        env.reset(seed=[1, 2, 3])
    env.close()


@pytest.mark.parametrize(
    ("env_id", "options", "message"),
    [
        ("breakout", {}, "expected atari/NAME or gym/NAME or minatar/NAME, such as minatar/breakout"),
        ("space invaders", {}, "or minatar/NAME, such as minatar/space_invaders"),
        ("brakeout", {}, "unknown environment 'brakeout': expected atari/NAME or gym/NAME or minatar/NAME"),
        ("atari/Pong", {"resize": 84}, "unknown option for atari/Pong 'resize': expected one of actions, epi"),
        ("minatar/brakout", {}, "unknown environment 'minatar/brakout': did you mean 'minatar/breakout'?"),
        ("atari/pong", {}, "unknown environment 'atari/pong': did you mean 'atari/Pong'?"),
        ("minatar/breakout", {"frameskip": 4}, "unknown option for minatar/breakout 'frameskip'"),
        ("minatar/breakout", {"sticky": 1.5}, "option sticky: found 1.5, expected a probability"),
        ("atari/Pong", {"stack": 0}, "option stack: found 0, expected 1 or more"),
        ("minatar/breakout", {"stack": "4"}, "environment minatar/breakout: field stack: found '4', expected a whole"),
        ("minatar/breakout", {"sticky": None}, "field sticky: found null, expected a number"),
        ("minatar/breakout", {"actions": "some"}, "field actions: found 'some', expected 'minimal' or 'full'"),
        ("minatar/breakout", {"stack": 1025}, "option stack: found 1025, expected 1 or more, at most 1,024"),
        ("atari/Pong", {"noop_max": -1}, "option noop_max: found -1, expected 0 or more, at most 10,000"),
        (
            "atari/Pong",
            {"max_steps": 10**9},
            "found 4,000,000,000 frames with frameskip, expected at most 2,147,483,647",
        ),
        ("gym/Nothing-v0", {}, "environment 'gym/Nothing-v0'"),
        ("gym/Floats-v0", {}, "expected a uint8 or bool Box"),
    ],
)
def test_mistakes_are_named(env_id: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        make(env_id, 1, **options)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_reset_refuses_options_and_wrong_seeds() -> None:
    env = make("minatar/breakout", 2)
    with pytest.raises(ValueError, match="no options"):
        env.reset(options={"reset_mask": np.array([True, False])})
    with pytest.raises(ValueError, match="3 seeds for 2"):
        env.reset(seed=[1, 2, 3])
