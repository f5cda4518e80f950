"""The replay against episodes remembered in plain lists: boundaries, n-step sums, the ring, stacks, files."""

import os
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protovalue.errors import UserError
from protovalue.online import replay as module
from protovalue.online.replay import Layout, Replay, check_room
from protovalue.online.slots import LAST

GAMMA = 0.5


@dataclass
class Episode:
    """What a list remembers: observation t is a number, `end` says how it ended ('' while under way)."""

    obs: list[int]
    actions: list[int] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    end: str = ""


class World:
    """Feeds made-up transitions of S seeds to a replay and remembers them; observations are running numbers."""

    def __init__(self, replay: Replay, item: Any = lambda number: [number, -number]) -> None:
        self.replay, self.item = replay, item
        self.rng = np.random.default_rng(0)
        self.count = 0
        self.episodes = [[Episode([self.new()])] for _ in range(replay.seeds)]
        replay.begin(self.newest())

    def new(self) -> int:
        self.count += 1
        return self.count

    def newest(self) -> np.ndarray:
        return np.array([self.item(episodes[-1].obs[-1]) for episodes in self.episodes])

    def step(self, ends: Any) -> None:
        """Take one step; `ends` has "", "terminated" or "truncated" for each seed."""
        actions = self.rng.integers(5, size=self.replay.seeds)
        rewards = self.rng.integers(-2, 3, size=self.replay.seeds).astype(np.float32)
        final = np.zeros_like(self.newest())
        for s, end in enumerate(ends):
            episode = self.episodes[s][-1]
            episode.actions.append(int(actions[s]))
            episode.rewards.append(float(rewards[s]))
            episode.obs.append(self.new())
            if end:
                final[s] = self.item(episode.obs[-1])
                episode.end = end
                self.episodes[s].append(Episode([self.new()]))
        terminated, truncated = (np.array([end == kind for end in ends]) for kind in ("terminated", "truncated"))
        self.replay.add(actions, rewards, terminated, truncated, self.newest(), final)

    def transition(self, s: Any, start: Any, n: Any) -> tuple[Any, Any, float | Any, Any]:
        """Return action, n-step reward, discount and next observation of the transition from an observation."""
        episode = next(e for e in self.episodes[s] if start in e.obs[: len(e.actions)])
        t = episode.obs.index(start)
        steps = min(n, len(episode.actions) - t)
        reward = sum(GAMMA**j * episode.rewards[t + j] for j in range(steps))
        terminal = episode.end == "terminated" and t + steps == len(episode.actions)
        return episode.actions[t], reward, 0.0 if terminal else GAMMA**steps, episode.obs[t + steps]

    def starts(self, s: Any) -> list[Any]:
        """Return all observations from which an action was taken, oldest first."""
        return [number for e in self.episodes[s] for number in e.obs[: len(e.actions)]]


def layout(**changes: Any) -> Layout:
    return Layout((2,), np.float32, 5, **changes)


def random_ends(rng: Any, seeds: Any) -> list[Any]:
    return [["", "", "", "terminated", "truncated"][i] for i in rng.integers(5, size=seeds)]


def all_slots(replay: Any, n: Any) -> np.ndarray:
    """Return every slot (S, B) that can be sampled; seeds with fewer repeat their first."""
    first, end = replay.window(n)
    rows = []
    for s in range(replay.seeds):
        slots = np.arange(first[s], end[s])
        one = np.zeros((replay.seeds, len(slots)), int) + first[:, None]
        one[s] = slots
        rows.append(slots[replay.kind(one)[s] != LAST])
    width = max(len(row) for row in rows)
    return np.array([np.pad(row, (0, width - len(row)), mode="wrap") for row in rows])


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("steps", [4, 30, 200])
def test_every_transition_is_the_one_that_happened(n: int, steps: int) -> None:
    replay = Replay(3, 40, layout())
    world, rng = World(replay), np.random.default_rng(1)
    for _ in range(steps):
        world.step(random_ends(rng, 3))
    slots = all_slots(replay, n)
    batch = replay.batch(slots, n, GAMMA)
    for s in range(3):
        for b in range(slots.shape[1]):
            start = int(batch.obs[s, b, 0])
            action, reward, discount, following = world.transition(s, start, n)
            assert batch.obs[s, b].tolist() == [start, -start]
            assert (batch.action[s, b], batch.reward[s, b], batch.discount[s, b]) == (action, reward, discount)
            if discount:
                assert batch.next_obs[s, b].tolist() == [following, -following]
        sampled = set(batch.obs[s, :, 0].astype(int).tolist())
        lost = len(world.starts(s)) - len(sampled)
        assert sampled == set(world.starts(s)[lost:]) or steps == 4 or n > 1
        if steps == 200 and n == 1:  # 40 slots: 40 transitions less the final observations of truncated episodes
            truncated = sum(e.end == "truncated" for e in world.episodes[s][-25:])
            assert 40 - truncated <= len(sampled) <= 40


def test_by_hand() -> None:
    # Seed 0: x1 -a-> x2 -b-> truncated at x3; then x4 -> terminated. One slot each for x1, x2, x3 (final), x4.
    replay = Replay(1, 10, Layout((1,), np.float32, 4))
    no, yes = np.array([False]), np.array([True])
    replay.begin(np.array([[1.0]]))
    replay.add(np.array([3]), np.array([10.0]), no, no, np.array([[2.0]]), np.array([[0.0]]))
    replay.add(np.array([2]), np.array([20.0]), no, yes, np.array([[4.0]]), np.array([[3.0]]))
    replay.add(np.array([1]), np.array([40.0]), yes, no, np.array([[5.0]]), np.array([[0.0]]))
    assert replay.written.tolist() == [4]
    assert replay.kind(np.array([[0, 1, 2, 3]])).tolist() == [[0, 2, 3, 1]]
    batch = replay.batch(np.array([[0, 1, 3]]), 2, 0.5)
    assert batch.action.tolist() == [[3, 2, 1]]
    assert batch.reward.tolist() == [[10 + 0.5 * 20, 20, 40]]  # the second sum stops at the truncation
    assert batch.discount.tolist() == [[0.25, 0.5, 0]]  # truncation bootstraps one step on, termination does not
    assert batch.next_obs[0, :2, 0].tolist() == [3, 3]  # from the true final observation


def test_a_final_observation_is_never_sampled_and_all_others_equally_often() -> None:
    replay = Replay(2, 50, layout())
    world = World(replay)
    for step in range(48):
        world.step(["truncated" if step % 3 == 2 else "", ""])
    rng = np.random.default_rng(0)
    slots = replay.sample(rng.random((2, 40_000)), 1, lambda attempt, count: rng.random((2, count)))
    assert (replay.kind(slots) != LAST).all()
    for s in range(2):
        counts = np.unique(slots[s], return_counts=True)[1]
        expected = 40_000 / len(counts)
        assert abs(counts - expected).max() < 6 * expected**0.5
    assert len(np.unique(slots[1])) == 48
    # Seed 0 wrote 64 slots, every fourth of them a final observation; of the newest 50, numbers 14 to 63, these are 13.
    assert len(np.unique(slots[0])) == 50 - 13


def test_seeds_are_independent() -> None:
    together, alone = Replay(2, 12, layout()), Replay(1, 12, layout())
    rng = np.random.default_rng(0)
    for replay, rows in ((together, slice(0, 2)), (alone, slice(1, 2))):
        rng = np.random.default_rng(0)
        replay.begin(np.zeros((2, 2))[rows])
        for _ in range(40):
            items, final = rng.random((2, 2, 2))
            cut = rng.random(2) < 0.3
            actions, rewards = rng.integers(5, size=2), rng.random(2)
            over = ~cut & (rng.random(2) < 0.3)
            replay.add(actions[rows], rewards[rows], over[rows], cut[rows], items[rows], final[rows])
    uniform = np.random.default_rng(1).random((2, 8))
    both = together.sample(uniform, 1, lambda attempt, count: np.random.default_rng(attempt).random((2, count)))
    one = alone.sample(uniform[1:], 1, lambda attempt, count: np.random.default_rng(attempt).random((2, count))[1:])
    np.testing.assert_array_equal(both[1:], one)
    for name in ("obs", "action", "reward", "discount"):
        found, expected = (getattr(r.batch(s, 2, 0.9), name) for r, s in ((together, both), (alone, one)))
        np.testing.assert_array_equal(found[1:], expected)


@pytest.mark.parametrize("stack", [1, 4])
def test_stacks_are_zero_before_an_episode_and_whole_in_the_ring(stack: int) -> None:
    replay = Replay(2, 30, Layout((3,), np.uint8, 5, stack=stack))
    world, rng = World(replay, item=lambda number: [number, 1, 2]), np.random.default_rng(1)
    for step in range(70):
        world.step(random_ends(rng, 2))
        if step in (2, 20, 69):
            slots = all_slots(replay, 1)
            batch = replay.batch(slots, 1, GAMMA)
            for s in range(2):
                for b in range(slots.shape[1]):
                    start = int(batch.obs[s, b, -1, 0])
                    episode = next(e for e in world.episodes[s] if start in e.obs)
                    history = [0] * stack + episode.obs[: episode.obs.index(start) + 1]
                    assert batch.obs[s, b, :, 0].tolist() == history[-stack:]
                    discount, following = world.transition(s, start, 1)[2:]
                    if discount:
                        history = [0] * stack + episode.obs[: episode.obs.index(following) + 1]
                        assert batch.next_obs[s, b, :, 0].tolist() == history[-stack:]


@pytest.mark.parametrize("block", [1, 4, 256])
@pytest.mark.parametrize("mapped", [False, True])
def test_what_was_saved_survives_later_steps_and_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mapped: bool, block: int
) -> None:
    monkeypatch.setattr(module, "BLOCK", block)
    folder = tmp_path / "replay"

    def fresh() -> Replay:
        return Replay(2, 20, Layout((2,), np.float16, 5), slack=14, folder=folder if mapped else None)

    replay = fresh()
    world, rng = World(replay), np.random.default_rng(1)
    for step in range(60):
        for _ in range(4):
            world.step(random_ends(rng, 2))
        replay.save(folder)
        assert replay.unsaved == 0
        slots, written, sums = all_slots(replay, 1), replay.written.tolist(), replay.sums()
        before = replay.batch(slots, 1, 0.9)
        for _ in range(3):  # steps that a kill makes undone: in a mapped folder they reach the files
            world.step(random_ends(rng, 2))
        if step % 7 == 0:
            replay = fresh()
            replay.load(folder, written, sums)
            after = replay.batch(slots, 1, 0.9)
            for name in ("obs", "action", "reward", "discount", "next_obs"):
                np.testing.assert_array_equal(getattr(after, name), getattr(before, name))
            world.replay = replay
            world.episodes = [[Episode([world.new()])] for _ in range(2)]
            replay.cut()
            replay.begin(world.newest())


def test_cut_makes_the_episode_under_way_a_truncated_one_and_twice_is_once(tmp_path: Path) -> None:
    replay = Replay(1, 10, Layout((1,), np.float32, 4), slack=4, folder=tmp_path)
    no = np.array([False])
    replay.begin(np.array([[1.0]]))
    replay.add(np.array([3]), np.array([1.0]), no, no, np.array([[2.0]]), np.array([[0.0]]))
    replay.save(tmp_path)
    for _ in range(2):  # killed after the first resumption, before its first checkpoint
        replay = Replay(1, 10, Layout((1,), np.float32, 4), slack=4, folder=tmp_path)
        replay.load(tmp_path, [1])
        replay.cut()
        replay.begin(np.array([[7.0]]))
        assert replay.kind(np.array([[0, 1]])).tolist() == [[2, 3]]
        batch = replay.batch(np.array([[0]]), 1, 0.9)
        assert (batch.next_obs.item(), batch.action.item(), round(batch.discount.item(), 6)) == (2.0, 3, 0.9)
    fresh = Replay(1, 10, Layout((1,), np.float32, 4))
    fresh.begin(np.array([[1.0]]))
    fresh.cut()  # nothing happened yet: nothing to cut
    assert fresh.written.tolist() == [0]


@pytest.mark.parametrize("mapped", [False, True])
def test_every_byte_that_a_checkpoint_needs_is_checked_when_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mapped: bool
) -> None:
    """Capacity 10, 23 steps: slots 13 to 22 and the open one, 23, of which only the observation counts."""
    monkeypatch.setattr(module, "BLOCK", 4)
    folder = tmp_path / "replay"

    def fresh() -> Replay:
        return Replay(2, 10, Layout((2,), np.float16, 5, stack=2), slack=6, folder=folder if mapped else None)

    replay, no = fresh(), np.zeros(2, np.bool_)
    replay.begin(np.zeros((2, 2)))
    for step in range(1, 24):
        items = np.full((2, 2), step)
        replay.add(np.array([1, 2]), np.array([step, -step]), no, no, items, items)
        replay.save(folder)
        sums = replay.sums()  # most steps find their whole blocks summed already
    assert sums["replay.sums"].shape == (4, 2, 6)
    window = np.full(3, 4 * 2, np.uint8).tobytes()  # codes of the second seed, slots 13 to 15 and 20 to 22
    assert sums["replay.sums"][1, 1, :5].tolist() == [
        0, zlib.crc32(window), zlib.crc32(window + window[:1]), zlib.crc32(window), 0
    ]  # fmt: skip
    fresh().load(folder, [23, 23], sums)
    row = {"items": 4, "codes": 1, "rewards": 4, "ages": 1}
    noticed, messages = {name: set[int]() for name in row}, []
    for name, size in row.items():
        path = folder / f"{name}.bin"
        whole = path.read_bytes()
        for place in range(17):
            spot = (17 + place) * size + size - 1  # in the second seed's ring
            path.write_bytes(whole[:spot] + bytes([whole[spot] ^ 0x10]) + whole[spot + 1 :])
            try:
                fresh().load(folder, [23, 23], sums)
            except UserError as error:
                noticed[name].add(place)
                messages.append((name, str(error)))
        path.write_bytes(whole)
    closed = {slot % 17 for slot in range(13, 23)}
    assert noticed == {"codes": closed, "rewards": closed, "items": closed | {23 % 17}, "ages": closed | {23 % 17}}
    for name, message in messages:
        assert f"{name}.bin: damaged: the slots" in message
        assert "of the seed number 1 do not match their checksum" in message
    fresh().load(folder, [23, 23])  # a checkpoint of an earlier version has no checksums
    with pytest.raises(UserError, match="found checksums of"):
        fresh().load(folder, [23, 23], {**sums, "replay.block": np.array([8])})


def test_an_action_that_there_is_not_is_named_whatever_the_checksums_say(tmp_path: Path) -> None:
    """Five actions: 19 is action 4 of the last kind, 20 would be action 5. The open slot has none."""
    replay, no = Replay(1, 10, Layout((2,), np.float16, 5)), np.zeros(1, np.bool_)
    replay.begin(np.zeros((1, 2)))
    for _ in range(3):
        replay.add(np.array([4]), np.zeros(1), no, no, np.zeros((1, 2)), np.zeros((1, 2)))
    replay.save(tmp_path)
    for codes, good in (([19, 16, 16, 255], True), ([16, 16, 20, 0], False), ([20, 16, 16, 0], False)):
        (tmp_path / "codes.bin").write_bytes(bytes(codes))
        fresh = Replay(1, 10, Layout((2,), np.float16, 5))
        if good:
            fresh.load(tmp_path, [3])
        else:
            with pytest.raises(UserError, match=r"codes.bin: damaged: found action 5 among the slots of .* 0 to 4$"):
                fresh.load(tmp_path, [3])


@pytest.mark.parametrize("block", [1, 2, 3])
@pytest.mark.parametrize("mapped", [False, True])
def test_checksums_hold_after_a_cut_that_a_kill_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mapped: bool, block: int
) -> None:
    monkeypatch.setattr(module, "BLOCK", block)

    def fresh() -> Replay:
        return Replay(1, 10, Layout((1,), np.float32, 4), slack=8, folder=tmp_path if mapped else None)

    replay, no = fresh(), np.array([False])
    replay.begin(np.array([[0.0]]))
    for step in range(1, 4):
        replay.add(np.array([3]), np.array([1.0]), no, no, np.array([[float(step)]]), np.array([[0.0]]))
    replay.save(tmp_path)
    sums = replay.sums()
    for _ in range(2):
        replay = fresh()
        replay.load(tmp_path, [3], sums)
        assert replay.kind(np.array([[2]])).item() == 0
        replay.cut()
        replay.begin(np.array([[7.0]]))
        replay.save(tmp_path)  # and killed before the checkpoint that goes with it
    later = replay.sums()
    again = fresh()
    again.load(tmp_path, replay.written.tolist(), later)
    assert again.kind(np.array([[1, 2, 3]])).tolist() == [[0, 2, 3]]


def test_a_damaged_or_missing_file_is_named(tmp_path: Path) -> None:
    replay = Replay(1, 10, layout())
    world = World(replay)
    world.step([""])
    replay.save(tmp_path)
    (tmp_path / "items.bin").write_bytes(b"12")
    with pytest.raises(UserError, match="items.bin: damaged: found 2 bytes, expected 16 or more"):
        Replay(1, 10, layout()).load(tmp_path, [1])
    (tmp_path / "items.bin").unlink()
    with pytest.raises(UserError, match="items.bin: missing"):
        Replay(1, 10, layout()).load(tmp_path, [1])


def test_a_mapped_replay_has_its_room_on_the_disk_before_it_is_used(tmp_path: Path) -> None:
    """Else a disk that is full would kill the process when it writes to a mapped page."""
    plain = Layout((1024,), np.float32, 4)
    for name, reserve in (("none", 0), ("some", 100), ("all", 10_000)):
        Replay(3, 1_000, plain, folder=tmp_path / name, reserve=reserve)
    used = {name: (tmp_path / name / "items.bin").stat().st_blocks * 512 for name in ("none", "some", "all")}
    assert used["none"] < 100_000
    assert 3 * 100 * 4096 <= used["some"] < 6 * 100 * 4096
    assert used["all"] >= 3 * 1_001 * 4096
    replay = Replay(3, 1_000, plain, folder=tmp_path / "some", reserve=100)
    replay.arrays["items"][2, 5] = 7.0
    again = Replay(3, 1_000, plain, folder=tmp_path / "some", reserve=200)
    assert again.arrays["items"][2, 5].tolist() == [7.0] * 1024


def test_bytes_of_a_step() -> None:
    # Impala 1x: 512 features of 2 bytes, 1 for action and kind, 2 for the clipped reward.
    assert Layout((512,), np.float16, 18, reward_dtype=np.float16).step_bytes == 1027
    assert Layout((84, 84), np.uint8, 18, stack=4).step_bytes == 7056 + 1 + 4 + 1
    assert Layout((1,), np.uint8, 64).step_bytes == 1 + 1 + 4  # 64 actions of 4 kinds are what a byte holds
    assert Layout((1,), np.uint8, 65).step_bytes == 1 + 2 + 4


def test_no_room_is_one_clear_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "available_memory", lambda: 2**30)
    check_room(2**30, None, "it")
    with pytest.raises(UserError, match=r"--replay-size: it needs 2.00 GiB, found 1.00 GiB of memory.*--replay-dir"):
        check_room(2**31, None, "it")
    with pytest.raises(UserError, match="of free space of"):
        check_room(2**62, tmp_path / "not" / "yet", "it")
    assert not (tmp_path / "not").exists()


def test_memory_is_read_from_the_system() -> None:
    assert 2**20 < module.available_memory() < 2**50


def test_the_window_by_hand() -> None:
    """Ten slots: in which ones a transition can start, of single frames and of stacks of three."""
    for stack, first_of_full in ((None, 5), (3, 7)):  # a stack of three needs two frames before
        replay = Replay(2, 10, Layout((1,), np.uint8, 5, stack=stack))
        assert (replay.slots, replay.seeds) == (11, 2)  # and one that is open
        replay.begin(np.zeros((2, 1)))
        no = np.zeros(2, np.bool_)
        for step in range(15):
            if step in (3, 10):
                assert [bound.tolist() for bound in replay.window(1)] == [[0, 0], [step, step]]
                assert [bound.tolist() for bound in replay.window(4)] == [[0, 0], [step - 3, step - 3]]
            replay.add(np.zeros(2, int), np.zeros(2), no, no, np.zeros((2, 1)), np.zeros((2, 1)))
        assert [bound.tolist() for bound in replay.window(1)] == [[first_of_full] * 2, [15, 15]]
        assert [bound.tolist() for bound in replay.window(4)] == [[first_of_full] * 2, [12, 12]]
    assert Replay(1, 10, layout(), slack=6).slots == 17


@pytest.mark.parametrize("num_actions", [5, 64, 65])
def test_every_action_and_kind_is_read_back(num_actions: int) -> None:
    replay = Replay(1, 4 * num_actions, Layout((1,), np.float32, num_actions))
    replay.begin(np.zeros((1, 1)))
    expected = []
    for action in range(num_actions):
        for terminated, truncated in ((False, False), (True, False), (False, True)):
            expected.append((action, 0 if terminated else 0.5))
            flags = (np.array([terminated]), np.array([truncated]))
            replay.add(np.array([action]), np.array([1.0]), *flags, np.ones((1, 1)), np.ones((1, 1)))
    slots = np.arange(4 * num_actions)[None]
    assert replay.kind(slots)[0].tolist() == [0, 1, 2, LAST] * num_actions
    batch = replay.batch(slots[replay.kind(slots) != LAST][None], 1, 0.5)
    assert list(zip(batch.action[0].tolist(), batch.discount[0].tolist(), strict=True)) == expected


def test_a_cut_keeps_the_action_of_the_transition_before_it() -> None:
    """Only what was going on, or was cut just now, is made a truncation; an episode that ended is left as it is."""
    for action in range(5):
        for end in ("", "terminated", "truncated"):
            replay = Replay(2, 10, layout())
            replay.begin(np.zeros((2, 2)))
            terminated, truncated = (np.array([end == kind] * 2) for kind in ("terminated", "truncated"))
            replay.add(np.array([action, 4]), np.ones(2), terminated, truncated, np.ones((2, 2)), np.ones((2, 2)))
            before = replay.written.tolist()
            replay.cut()
            kinds = replay.kind(np.array([[0, 1], [0, 1]])).tolist()
            assert replay.batch(np.array([[0], [0]]), 1, 0.5).action.tolist() == [[action], [4]]
            if end == "":
                assert (before, replay.written.tolist(), kinds) == ([1, 1], [2, 2], [[2, LAST]] * 2)
            else:
                assert replay.written.tolist() == before == ([1, 1] if end == "terminated" else [2, 2])
                assert kinds[0][0] == {"terminated": 1, "truncated": 2}[end]


def test_a_final_observation_is_drawn_again_by_hand() -> None:
    """Slots 0 and 1 go on, 2 was truncated, 3 is its final observation, 4 goes on."""
    replay = Replay(1, 10, layout())
    replay.begin(np.zeros((1, 2)))
    for end in ("", "", "truncated", ""):
        flags = (np.array([False]), np.array([end == "truncated"]))
        replay.add(np.array([0]), np.zeros(1), *flags, np.zeros((1, 2)), np.zeros((1, 2)))
    asked = []

    def redraw(attempt: Any, count: Any) -> np.ndarray:
        asked.append((attempt, count))
        return np.array([[0.99, [0.7, 0.75, 0.1][attempt], 0.0]])

    # Of five slots .7 is 3: drawn again as .7, .75 (3 as well) and at last .1, slot 0. The others stay.
    assert replay.sample(np.array([[0.2, 0.7, 0.99]]), 1, redraw).tolist() == [[1, 0, 4]]
    assert asked == [(0, 3), (1, 3), (2, 3)]


def test_a_stack_is_whole_after_more_frames_than_a_byte_counts() -> None:
    replay = Replay(1, 400, Layout((1,), np.uint8, 5, stack=2))
    replay.begin(np.array([[1]]))
    no = np.array([False])
    for step in range(300):
        replay.add(np.array([0]), np.zeros(1), no, no, np.array([[step % 200 + 1]]), np.zeros((1, 1)))
    assert replay.arrays["ages"][0, [0, 1, 254, 255, 256, 299]].tolist() == [0, 1, 254, 255, 255, 255]
    batch = replay.batch(np.array([[0, 1, 255, 256, 257]]), 1, 0.9)
    assert batch.obs[0, :, :, 0].tolist() == [[0, 1], [1, 1], [54, 55], [55, 56], [56, 57]]


@pytest.mark.parametrize("steps", [3, 10, 17, 18, 19, 40])
def test_more_steps_than_there_are_slots_between_two_saves(tmp_path: Path, steps: int) -> None:
    """18 slots: all of the ring is written, from any place of it, and only the newest of each place."""
    replay = Replay(2, 12, layout(), slack=5)
    world, rng = World(replay), np.random.default_rng(0)
    for _ in range(7):
        world.step(["", ""])
    nested = tmp_path / "a" / "b"
    replay.save(nested)
    for _ in range(steps):
        world.step(random_ends(rng, 2))
    assert replay.unsaved == int((replay.written - 7).max())
    replay.save(nested)
    again = Replay(2, 12, layout(), slack=5)
    again.load(nested, replay.written.tolist())
    assert again.unsaved == 0
    slots = all_slots(replay, 1)
    for name in ("obs", "action", "reward", "discount", "next_obs"):
        found, expected = (getattr(one.batch(slots, 1, 0.9), name) for one in (again, replay))
        np.testing.assert_array_equal(found, expected)
    for name in replay.arrays:
        size = 2 * 18 * replay.arrays[name][0, 0].nbytes
        assert (nested / f"{name}.bin").stat().st_size <= size


@pytest.mark.parametrize("mapped", [False, True])
def test_a_save_is_durable_and_leaves_no_file_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mapped: bool
) -> None:
    calls, fsync, flush = [], os.fsync, np.memmap.flush

    def noted_fsync(file: Any) -> None:
        calls.append("fsync")
        fsync(file)

    def noted_flush(array: Any) -> None:
        calls.append("flush")
        flush(array)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(np.memmap, "flush", noted_flush)
    folder = tmp_path / "a" / "b"
    replay = Replay(1, 4, layout(), folder=folder if mapped else None)
    World(replay)
    replay.save(folder)
    before = len(list(Path("/proc/self/fd").iterdir()))
    replay.save(folder)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert calls == (["flush"] if mapped else ["fsync"]) * 6  # items, codes and rewards, twice
    if mapped:  # five slots each, from the beginning
        assert {path.name: path.stat().st_size for path in folder.iterdir()} == {
            "items.bin": 40, "codes.bin": 5, "rewards.bin": 20,
        }  # fmt: skip
        (folder / "codes.bin").write_bytes(b"\x04")  # too short: it grows again, what is there stays
        assert Replay(1, 4, layout(), folder=folder).arrays["codes"][0].tolist() == [4, 0, 0, 0, 0]


def test_sizes_as_text() -> None:
    assert module.gibibytes(2**28) == "0.25 GiB"
    assert module.gibibytes(2**28 - 2**20) == "255.0 MiB"
    assert module.gibibytes(5 * 2**29) == "2.50 GiB"
    assert module.gibibytes(0) == "0.0 MiB"


def test_memory_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "MemTotal:  900 kB\nMemAvailable:    123 kB\nSwap: 4 kB\n"
    monkeypatch.setattr(Path, "read_text", lambda path: text if str(path) == "/proc/meminfo" else "")
    assert module.available_memory() == 123 * 1024

    def missing(path: Any) -> None:
        raise FileNotFoundError(path)

    monkeypatch.setattr(Path, "read_text", missing)  # another system
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": 7, "SC_PAGE_SIZE": 4096}.__getitem__)
    assert module.available_memory() == 7 * 4096


def test_no_memory_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(np, "zeros", full)
    with pytest.raises(UserError, match="--replay-size: no memory for 10 steps of 3 seeds; choose a smaller one, or"):
        Replay(3, 10, layout())
