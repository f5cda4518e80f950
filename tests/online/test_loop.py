"""The online loop by value: when it explores, stores, learns, logs and saves, on environments worked out by hand."""

import os
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from protovalue.cli import main
from protovalue.envs.options import EnvOptions
from protovalue.envs.registry import make
from protovalue.errors import UserError
from protovalue.files import FolderLock, write_json
from protovalue.online import loop, replay
from protovalue.online.agent import Rule
from protovalue.online.config import OnlineConfig
from protovalue.online.linear_dqn import LinearDqn
from protovalue.online.loop import Loop, Room, epsilon_at, print_summary, train
from protovalue.online.priorities import Priorities
from protovalue.online.replay import Layout, Replay
from protovalue.online.slots import LAST
from protovalue.randomness import Purpose, generator_at
from protovalue.runs import Run, read_checkpoint, read_metrics, read_run
from tests.online.rigged import Killed, config, killed_at, numbers, one_hot, run

COUNTING = "gym/Counting-v0"  # episodes of 1, 2, 3, 4, 1, ... steps that pay 1, 2, ...; every second one is truncated


def counting(out: Any, **changes: Any) -> OnlineConfig:
    """Settings for the counting environment, with nothing that is random but what a test asks for."""
    settings = {
        "env": COUNTING, "steps": 25, "seeds": "0-1", "replay_min": 6, "replay_size": 30, "log_every": 10,
        "checkpoint_every": 10, "epsilon": 0.0, "epsilon_start": 0.0, "epsilon_steps": 0, "batch_size": 4,
    }  # fmt: skip
    return config(out, **{**settings, **changes})


def agents(settings: Any) -> LinearDqn:
    """Agents whose features are which of the three numbers of a frame, and of its action, are not 0."""
    return LinearDqn(Rule.of(settings), settings.seed_list(), 3, one_hot((1, 1, 3)), 1.0)


def go(settings: Any, agent: Any = None, quiet: bool = True) -> Path:
    env = make(settings.env, len(settings.seed_list()))
    return train(settings, {"seeds": settings.seeds}, env, agent or agents(settings), quiet=quiet)


class Numbered(LinearDqn):
    """Agents that learn nothing: update n of seed s has losses n + 100 s, values 2 n and a gradient's norm of 3 n."""

    def learn(self, replay: Any, slot: Any, n_step: int, gamma: float, weight: Any = None) -> Any:
        seeds = torch.arange(self.num_seeds)[:, None]
        loss = torch.full(slot.shape, float(self.updates)) + 100 * seeds
        value, norm = torch.full(slot.shape, 2.0 * self.updates), torch.full((len(seeds),), 3.0 * self.updates)
        self.updates += 1
        return {"loss": loss, "value": value, "gradient_norm": norm}


def numbered(settings: Any) -> Numbered:
    return Numbered(Rule.of(settings), settings.seed_list(), 3, one_hot((1, 1, 3)), 1.0)


def test_returns_and_losses_by_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ten steps are four episodes of 1, 2, 3 and 4 steps that return 1, 3, 6 and 10."""
    clock = iter(range(0, 100, 2))  # every look at it is two seconds later
    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    assert loop.WATCH_EVERY == 10
    monkeypatch.setattr(loop, "WATCH_EVERY", 4)
    settings = counting(tmp_path / "r", update_every=2, updates=3)
    path = go(settings, numbered(settings), quiet=False)
    rows = [{name: value for name, value in row.items() if name != "time"} for row in read_metrics(path)]
    # Updates 0, 1, 2 after step 6, 3, 4, 5 after step 8, 6, 7, 8 after step 10 and so on; each fourth is watched.
    # Until step 10: 0, 4, 8. Until step 20: 9 to 23, of them 12, 16, 20. Until step 25: 24 to 29, of them 24, 28.
    returns = {"return": 5.0, "return/seed-0": 5.0, "return/seed-1": 5.0, "episodes": 8.0}
    assert rows == [
        {"step": 10, **returns, "loss": 54.0, "value": 8.0, "gradient_norm": 12.0, "agent_steps_per_second": 10.0},
        {"step": 20, **returns, "loss": 66.0, "value": 32.0, "gradient_norm": 48.0, "agent_steps_per_second": 10.0},
        {"step": 25, "return": 2.0, "return/seed-0": 2.0, "return/seed-1": 2.0, "episodes": 4.0, "loss": 76.0,
         "value": 52.0, "gradient_norm": 78.0, "agent_steps_per_second": 5.0},
    ]  # fmt: skip
    done = read_run(path)["done"]
    assert {name: done[name] for name in ("steps", "updates", "training_return", "training_return_by_seed")} == {
        "steps": 25, "updates": 30, "training_return": 4.4, "training_return_by_seed": {"0": 4.4, "1": 4.4},
    }  # fmt: skip
    error = capsys.readouterr().err
    # Seven numbers stored: three features of 2 bytes, action and kind in 1, the clipped reward in 2.
    assert "replay: 2 seeds x 26 steps x 9 bytes = 0.0 MiB in memory" in error
    assert f"train {COUNTING} (1 thread): 50/50 steps" in error


def test_the_summary_is_over_the_last_episodes_of_each_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "RECENT", 3)
    path = go(counting(tmp_path / "r", steps=13))  # 1, 3, 6, 10 and 1, 3
    assert read_run(path)["done"]["training_return_by_seed"] == {"0": 14 / 3, "1": 14 / 3}
    assert loop.RECENT == 3
    monkeypatch.undo()
    assert loop.RECENT == 100
    short = go(counting(tmp_path / "short", env="gym/Corridor-v0", steps=1, seeds="4"), corridor_agent())
    assert read_run(short)["done"]["training_return"] is None
    assert read_run(short)["done"]["training_return_by_seed"] == {"4": None}


def corridor_agent(seeds: Any = (4,)) -> LinearDqn:
    return LinearDqn(Rule(0.1, 1e-3, 10.0, 10), seeds, 2, one_hot(), 1.0)


def test_when_agents_learn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learned, real = [], Loop.learn

    def learn(self: Any) -> None:
        learned.append(self.step)
        real(self)

    monkeypatch.setattr(Loop, "learn", learn)
    go(counting(tmp_path / "r", update_every=4, updates=2, replay_min=8, steps=18))
    assert learned == [8, 8, 12, 12, 16, 16]


def test_the_batches_are_sampled_by_the_numbers_of_the_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Update n samples with row n % 256 of Philox(seed, stream 102), and numbers its redraws from stream 1103 on."""
    sampled, redraws = [], []
    real = Replay.sample

    def sample(self: Any, uniform: Any, n_step: Any, redraw: Any) -> np.ndarray:
        sampled.append((uniform.copy(), n_step))
        redraws.append([redraw(attempt, 3) for attempt in range(2)])
        return real(self, uniform, n_step, redraw)

    monkeypatch.setattr(Replay, "sample", sample)
    settings = counting(tmp_path / "r", steps=8, seeds="0,5", n_step=2)
    go(settings, numbered(settings))
    assert len(sampled) == 3
    for number, ((uniform, n_step), (first, second)) in enumerate(zip(sampled, redraws, strict=True)):
        assert n_step == 2
        for s, seed in enumerate((0, 5)):
            expected = generator_at(seed, Purpose.REPLAY, 0).random((256, 4))[number]
            np.testing.assert_array_equal(uniform[s], expected)
            np.testing.assert_array_equal(first[s], generator_at(seed, Purpose.REDRAW, number, 1).random(3))
            np.testing.assert_array_equal(second[s], generator_at(seed, Purpose.REDRAW, number, 2).random(3))


def test_exploration_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first number of a seed says whether to explore, the second where: 3 actions, thirds of [0, 1)."""
    numbers = {
        0: [[0.5, 0.99], [0.49, 0.34]],  # epsilon .5: not below it is greedy; below it is action 1 of 3
        1: [[0.0, 0.33], [0.9, 0.5]],
        2: [[0.24, 0.7], [0.25, 0.1]],  # epsilon .25 now: halfway down
        3: [[0.0, 0.99], [0.0, 0.99]],  # epsilon 0: never below it
    }
    monkeypatch.setattr(loop, "Draws", lambda seeds, purpose, count: lambda step: np.array(numbers[step]))
    acted, real = [], Replay.add

    def add(self: Any, actions: Any, *rest: Any) -> None:
        acted.append(actions.tolist())
        real(self, actions, *rest)

    monkeypatch.setattr(Replay, "add", add)
    settings = counting(
        tmp_path / "r", steps=4, epsilon=0.0, epsilon_start=0.5, epsilon_steps=2, replay_min=2, update_every=100
    )
    agent = agents(settings)
    agent.theta.zero_()
    agent.heads.biases[0].data[:] = torch.tensor([[0.0, 0.0, 1.0], [3.0, 0.0, 1.0]])  # greedy: 2 and 0
    go(settings, agent)
    # Steps 0 and 1 wait with .5, step 2 begins the way down with .5 - 0 / 2, step 3 is at .25.
    assert acted == [[2, 1], [0, 0], [2, 0], [2, 2]]


def test_what_is_stored_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rewards clipped, features of the observation to act on next, and of the final one of a truncated episode."""
    stored, begun = [], []
    add, begin = Replay.add, Replay.begin

    def spy(self: Any, actions: Any, rewards: Any, terminated: Any, truncated: Any, items: Any, final: Any) -> None:
        stored.append((rewards.tolist(), terminated.tolist(), truncated.tolist(), items.tolist(), final.tolist()))
        add(self, actions, rewards, terminated, truncated, items, final)

    def first(self: Any, items: Any) -> None:
        begun.append(items.tolist())
        begin(self, items)

    monkeypatch.setattr(Replay, "add", spy)
    monkeypatch.setattr(Replay, "begin", first)
    for name, clip in (("clipped", True), ("raw", False)):
        go(counting(tmp_path / name, steps=3, seeds="0", clip_rewards=clip, replay_min=3))
    clipped, raw = stored[:3], stored[3:]
    # Frames are [episode, time, action]; a feature is 1 where its number is not 0. Actions are numbered from 5.
    assert begun == [[[0, 0, 0]]] * 2
    assert clipped[0] == ([1], [True], [False], [[1, 0, 0]], [[1, 0, 0]])  # episode 0 is one step, terminated
    assert clipped[1] == ([1], [False], [False], [[1, 1, 1]], [[1, 1, 1]])
    assert clipped[2] == ([1], [False], [True], [[1, 0, 0]], [[1, 1, 1]])  # episode 1 is two, truncated
    assert [row[0] for row in raw] == [[1], [1], [2]]
    assert [row[1:] for row in raw] == [row[1:] for row in clipped]


def test_when_checkpoints_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved, real = [], Run.save

    def save(self: Any, step: Any, tensors: Any, state: Any) -> None:
        saved.append(step)
        real(self, step, tensors, state)

    monkeypatch.setattr(Run, "save", save)
    settings = counting(tmp_path / "a", checkpoint_every=10)
    go(settings, numbered(settings))
    assert saved == [10, 20, 25]
    # One-step episodes that are truncated take two slots a step: of 2 * 10 + 8 spare slots half less two are 12, of
    # 2 * 11 + 8 they are 13.
    for every, expected in ((10, [6, 10, 16, 20, 25]), (11, [7, 11, 18, 22, 25])):
        saved.clear()
        options = {"options": EnvOptions(max_steps=1), "steps": 25, "checkpoint_every": every}
        run(config(tmp_path / str(every), env="minatar/breakout", **options))
        assert saved == expected


def test_environments_are_seeded_by_seed_and_purpose_and_anew_where_they_start_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training is purpose 1; one that could not go on is seeded by the step of its checkpoint too."""
    env_class = type(make(COUNTING, 1))
    seeds, real = [], env_class.reset

    def reset(self: Any, *, seed: Any = None, options: Any = None) -> Any:
        seeds.append(seed)
        return real(self, seed=seed, options=options)

    monkeypatch.setattr(env_class, "reset", reset)
    killed_at(monkeypatch, [17])
    settings = counting(tmp_path / "r", seeds="0,7")
    with pytest.raises(Killed):
        go(settings)
    go(settings)

    def expected(*purpose: Any) -> list[Any]:
        return [int(np.random.SeedSequence([seed, *purpose]).generate_state(1)[0] >> 1) for seed in (0, 7)]

    assert seeds == [expected(1), expected(1, 10)]


@pytest.mark.parametrize("options", [{}, {"prioritised": True, "n_step": 2}])
def test_a_continued_run_logs_and_counts_what_the_whole_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: dict[str, Any]
) -> None:
    """MinAtar goes on within its episodes; the bar begins where the run was."""
    monkeypatch.setattr(loop, "WATCH_EVERY", 1)
    common = {
        "env": "minatar/breakout",
        "steps": 30,
        "log_every": 20,
        "checkpoint_every": 7,
        "replay_min": 5,
        **options,
    }
    settings = config(tmp_path / "whole", **common)
    run(settings)
    killed_at(monkeypatch, [18])
    with pytest.raises(Killed):
        run(replace(settings, out=tmp_path / "cut"))
    env = make("minatar/breakout", 3)
    agent = LinearDqn(Rule.of(settings), (0, 1, 2), 3, one_hot((1, 10, 10, 4)), 1.0)
    train(replace(settings, out=tmp_path / "cut"), {"seeds": "0-2", "n": settings.n_step}, env, agent)
    assert "train minatar/breakout (1 thread): 90/90 steps" in capsys.readouterr().err
    whole, cut = (read_run(tmp_path / name)["done"] for name in ("whole", "cut"))
    assert whole == cut
    assert numbers(tmp_path / "whole") == numbers(tmp_path / "cut")
    whole, cut = (read_checkpoint(tmp_path / name) for name in ("whole", "cut"))
    assert whole.state == cut.state
    for name, array in whole.tensors.items():
        np.testing.assert_array_equal(cut.tensors[name], array, err_msg=name)


def room(
    settings: Any, agent: Any, monkeypatch: pytest.MonkeyPatch, quiet: bool = True
) -> tuple[Room, list[tuple[Any, Any, Any]]]:
    checked = []
    monkeypatch.setattr(loop, "check_room", lambda needed, folder, what: checked.append((needed, folder, what)))
    planned = Room.plan(settings, agent, make(settings.env, len(settings.seed_list())), quiet)
    return planned, checked


def test_the_room_of_a_replay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = counting(tmp_path / "r", steps=1_000, replay_size=500, checkpoint_every=100)
    planned, checked = room(settings, agents(settings), monkeypatch)
    assert planned == Room(Layout((3,), np.dtype(np.float16), 3, None, np.float16), 500, 208)
    # 500 + 208 + 1 slots of 3 * 2 + 1 + 2 bytes for each of two seeds, in memory and, for a new run, on its disk.
    what = "2 seeds x 709 steps x 9 bytes"
    assert checked == [(2 * 709 * 9, None, what), (2 * 709 * 9, tmp_path / "r", what)]
    few = replace(settings, steps=40, seeds="3", replay_dir=tmp_path / "d")
    _, checked = room(few, agents(few), monkeypatch, quiet=False)
    assert checked == [(41 * 9, tmp_path / "d", "1 seed x 41 steps x 9 bytes")]  # no more than there are steps
    assert capsys.readouterr().err == (f"replay: 1 seed x 41 steps x 9 bytes = 0.0 MiB mapped to {tmp_path}/d\n")
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "config.json").write_text("{}")  # a run that goes on has its files already
    assert [folder for _, folder, _ in room(settings, agents(settings), monkeypatch)[1]] == [None]
    assert room(few, agents(few), monkeypatch)[1] == []


def test_what_a_slot_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = counting(tmp_path / "r")

    def layout(agent: Any, **changes: Any) -> Any:
        return room(replace(settings, **changes), agent, monkeypatch)[0].layout

    raw = layout(agents(settings), clip_rewards=False)
    assert raw == Layout((3,), np.dtype(np.float16), 3, None, np.float32)  # raw rewards may be large
    single = LinearDqn(Rule.of(settings), (0, 1), 3, one_hot((1, 1, 3)), 1.0, dtype=np.float32)
    assert layout(single) == Layout((3,), np.dtype(np.float32), 3, None, np.float32)

    class Frames(LinearDqn):
        def items(self, obs: Any) -> tuple[Any, None]:
            return obs[:, -1], None

    frames = Frames(Rule.of(settings), (0, 1), 3, one_hot((1, 1, 3)), 1.0)
    assert layout(frames) == Layout((3,), np.dtype(np.uint8), 3, 1, np.float32)

    class Bytes(LinearDqn):  # features that only look like a frame
        def items(self, obs: Any) -> tuple[Any, None]:
            return obs[:, -1].astype(np.int8), None

    looking = Bytes(Rule.of(settings), (0, 1), 3, one_hot((1, 1, 3)), 1.0)
    assert layout(looking).stack is None


def test_settings_that_do_not_go_together(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--replay-size: found 5, expected at least --replay-min, 6"):
        go(counting(tmp_path / "r", replay_size=5))
    with pytest.raises(UserError, match="--replay-min: found 6, expected more than --n-step, 6"):
        go(counting(tmp_path / "r", n_step=6))
    assert not (tmp_path / "r").exists()
    go(counting(tmp_path / "r", replay_size=6, replay_min=6, n_step=5))


def test_what_is_printed_at_the_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = go(counting(tmp_path / "r"))
    print_summary(path)
    curves = f"play with it: pvn evaluate {path} --video episode.gif; curves: tensorboard --logdir {path}\n"
    assert capsys.readouterr().out == f"{path}: mean return of the last training episodes 4.40\n{curves}"
    write_json(path / "done.json", {**read_run(path)["done"], "training_return": None})
    print_summary(path, "minatar/breakout")
    assert capsys.readouterr().out == curves
    for env in ("gym/mine.py:Grid-v0", "gym/mine:Grid-v0", "maze.py/small"):  # nothing that is loaded runs code
        print_summary(path, env)
        assert f"pvn evaluate {path} --env {env} --video episode.gif" in capsys.readouterr().out


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is seen at the next log line or checkpoint, before anything bad is saved."""
    monkeypatch.setattr(loop, "WATCH_EVERY", 1)
    real = LinearDqn.learn

    def learn(self: Any, *given: Any) -> Any:
        result = real(self, *given)
        if self.updates >= 12:  # after step 17
            result["loss"][1, 2] = float("inf")
        return result

    monkeypatch.setattr(LinearDqn, "learn", learn)
    with pytest.raises(UserError) as error:
        go(counting(tmp_path / "r", log_every=100))
    end = "is not finite; its last checkpoint is good; try a smaller --learning-rate"
    assert str(error.value) == f"{tmp_path}/r: a loss before step 20 {end}"
    assert sorted(path.name for path in (tmp_path / "r" / "checkpoints").iterdir()) == ["step-000000000010"]
    with pytest.raises(UserError) as error:
        go(counting(tmp_path / "s", log_every=9, checkpoint_every=100))
    assert f"{tmp_path}/s: a loss before step 18 is not finite; no checkpoint; try" in str(error.value)


def test_a_finished_run_keeps_its_replay_only_if_told_to(tmp_path: Path) -> None:
    for name, keep in (("keep", True), ("drop", False)):
        path = go(counting(tmp_path / name, keep_replay=keep))
        assert (path / "replay").exists() == keep
        assert read_run(path)["done"]["steps"] == 25


def test_epsilon_waits_and_goes_down() -> None:
    assert [epsilon_at(step, 1.0, 0.1, 10, 20) for step in (0, 9, 10, 20, 30, 99)] == pytest.approx(
        [1, 1, 1, 0.55, 0.1, 0.1]
    )
    assert epsilon_at(0, 0.01, 0.01, 0, 0) == 0.01


def test_memory_is_printed_and_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = "online --encoder random:minatar:1 --env minatar/breakout --seeds 0-8 --steps 90 --replay-min 9"
    flags += f" --out {tmp_path}/r"
    monkeypatch.setattr(replay, "available_memory", lambda: 100)
    assert main(flags.split()) == 2
    error = capsys.readouterr().err
    # 128 features of 2 bytes, 1 for action and kind, 2 for the reward; 91 slots for 90 steps.
    assert "replay: 9 seeds x 91 steps x 259 bytes = 0.2 MiB in memory" in error
    assert "--replay-size: 9 seeds x 91 steps x 259 bytes needs 0.2 MiB, found 0.0 MiB of memory" in error
    assert not (tmp_path / "r").exists()


def test_a_replay_folder_belongs_to_one_run(tmp_path: Path) -> None:
    owner = tmp_path / "replay" / "owner.txt"
    owner.parent.mkdir()
    owner.write_text("/some/other/run")
    with pytest.raises(UserError, match="holds the replay of /some/other/run, expected an empty folder"):
        run(config(tmp_path / "r", replay_dir=tmp_path / "replay"))
    owner.unlink()
    run(config(tmp_path / "r", replay_dir=tmp_path / "replay", keep_replay=False))
    assert sorted(path.name for path in (tmp_path / "replay").iterdir()) == ["lock"]


def test_the_bar_counts_all_seeds_and_says_the_last_return(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bars = []

    class Bar:
        def __init__(self, *args: Any) -> None:
            self.args, self.advances = args, list[Any]()
            bars.append(self)

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *error: Any) -> None:
            pass

        def advance(self, count: Any, note: Any) -> None:
            self.advances.append((count, note))

    monkeypatch.setattr(loop, "ProgressBar", Bar)
    settings = counting(tmp_path / "r", log_every=3, checkpoint_every=2, steps=5)
    killed_at(monkeypatch, [5])
    with pytest.raises(Killed):
        go(settings)
    go(settings)
    first, second = bars
    assert first.args == (f"train {COUNTING} (1 thread)", 10, "steps", 0, True)
    assert first.advances == [(2, ""), (2, ""), (2, "return 2.00"), (2, "return 2.00")]  # 1 and 3
    assert second.args == (f"train {COUNTING} (1 thread)", 10, "steps", 8, True)
    assert second.advances == [(2, "return 1.00")]  # the game starts anew with an episode of one step


def test_what_was_opened_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment and the lock of a replay's folder, also where a run is killed."""
    closed = []
    monkeypatch.setattr(type(make(COUNTING)), "close", lambda self: closed.append(self.env_id))
    settings = counting(tmp_path / "r", replay_dir=tmp_path / "deep" / "replay")
    killed_at(monkeypatch, [4])
    with pytest.raises(Killed):
        go(settings)
    assert closed == [COUNTING]
    FolderLock(tmp_path / "deep" / "replay").release()
    assert (tmp_path / "deep" / "replay" / "owner.txt").read_text() == str(tmp_path / "r")
    go(settings)
    assert closed == [COUNTING] * 2
    FolderLock(tmp_path / "deep" / "replay").release()
    assert not (tmp_path / "r" / "replay").exists()
    (tmp_path / "deep" / "replay" / "owner.txt").write_text("/another")
    with pytest.raises(UserError, match="holds the replay of /another, expected an empty folder"):
        go(replace(settings, out=tmp_path / "s"))
    FolderLock(tmp_path / "deep" / "replay").release()


def test_an_interrupt_in_the_last_step_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for at, name in ((25, "last"), (17, "earlier")):
        real = Loop.act

        def act(self: Any, real: Any = real, at: Any = at) -> None:
            real(self)
            if self.step == at:
                os.kill(os.getpid(), signal.SIGINT)

        with monkeypatch.context() as patch:
            patch.setattr(Loop, "act", act)
            if at == 25:
                go(counting(tmp_path / name))
            else:
                with pytest.raises(KeyboardInterrupt):
                    go(counting(tmp_path / name))
        steps = sorted(int(path.name[5:]) for path in (tmp_path / name / "checkpoints").iterdir())
        assert steps == ([20, 25] if at == 25 else [10, 17])


@pytest.mark.parametrize("env", ["gym/Corridor-v0", "minatar/breakout"])
def test_priorities_of_a_resumed_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, env: str) -> None:
    """With 3-step transitions: all that can be sampled have one, also those that became complete by the cut."""
    settings = config(tmp_path / "r", env=env, prioritised=True, n_step=3, steps=60, seeds="0", checkpoint_every=7)
    trees, real = [], Loop._restore

    def restore(self: Any, checkpoint: Any) -> None:
        real(self, checkpoint)
        replay, (first, end) = self._replay, self._replay.window(3)
        slots = np.arange(first[0], end[0])[None]
        trees.append((replay.kind(slots) == LAST, self._priorities.tree.get(slots % replay.slots)))

    monkeypatch.setattr(Loop, "_restore", restore)
    killed_at(monkeypatch, kills := [17, 24, 31, 38, 45, 52])
    while kills:
        with pytest.raises(Killed):
            run(settings)
    run(settings)
    assert len(trees) == 6
    for last, priority in trees:
        assert ((priority > 0) == ~last).all()
    assert trees[-1][0].any() == (env == "gym/Corridor-v0")  # final observations, the cuts' among them


def test_prioritised_replay_samples_by_the_last_losses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The losses of an update become priorities, and the weights reach the update."""
    updates, weights = [], []
    monkeypatch.setattr(Priorities, "update", lambda self, slot, loss: updates.append(loss.tolist()))
    settings = counting(tmp_path / "r", prioritised=True, steps=8)
    agent = numbered(settings)
    real = agent.learn

    def noted(*given: Any) -> Any:
        weights.append(given[-1])
        return real(*given)

    object.__setattr__(agent, "learn", noted)
    go(settings, agent)
    assert updates == [[[float(n)] * 4, [n + 100.0] * 4] for n in range(3)]
    assert [weight.tolist() for weight in weights] == [[[1.0] * 4] * 2] * 3  # all priorities are still the same
