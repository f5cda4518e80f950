"""Prioritised replay: the tree against cumulative sums, sampling by hand, and what can be sampled at all."""

import numpy as np
import pytest

from protovalue.online.priorities import Priorities, SumTree
from protovalue.online.replay import Layout, Replay
from protovalue.online.slots import LAST
from tests.online.test_replay import World, random_ends


@pytest.mark.parametrize("size", [1, 2, 5, 8, 100])
def test_the_tree_finds_what_a_cumulative_sum_finds(size: int) -> None:
    rng = np.random.default_rng(size)
    tree, values = SumTree(3, size), np.zeros((3, size))
    for _ in range(20):
        leaf = np.stack([rng.permutation(size)[: (size + 1) // 2] for _ in range(3)])
        value = rng.integers(0, 4, leaf.shape).astype(float)
        value[:, 0] = 1
        tree.set(leaf, value)
        np.put_along_axis(values, leaf, value, axis=1)
        np.testing.assert_array_equal(tree.total, values.sum(axis=1))
        np.testing.assert_array_equal(tree.get(leaf), value)
        mass = rng.random((3, 7)) * tree.total[:, None]
        expected = np.stack([np.searchsorted(np.cumsum(v), m, side="right") for v, m in zip(values, mass, strict=True)])
        np.testing.assert_array_equal(tree.find(mass), expected)


def three_steps() -> tuple[Replay, Priorities, World]:
    replay = Replay(1, 3, Layout((1,), np.float32, 4))
    priorities = Priorities(replay, 1)
    world = World(replay, item=lambda number: [number])
    for _ in range(3):
        world.step([""])
        priorities.follow()
    return replay, priorities, world


def test_by_hand() -> None:
    _, priorities, _ = three_steps()
    assert priorities.tree.total.tolist() == [3.0]  # new ones have the largest priority so far, 1
    priorities.update(np.array([[0, 1]]), np.array([[4.0, 25.0]], np.float32))  # priorities 2, 5 and still 1
    np.testing.assert_allclose(priorities.tree.total, [8.0])
    # Shares of 8 / 4 = 2: masses 1, 3, 5, 7.9; slot 0 covers [0, 2), slot 1 [2, 7), slot 2 [7, 8).
    slot, weight = priorities.sample(np.array([[0.5, 0.5, 0.5, 0.95]]))
    assert slot.tolist() == [[0, 1, 1, 2]]
    raw = np.sqrt([8 / 2, 8 / 5, 8 / 5, 8 / 1])
    np.testing.assert_allclose(weight[0], raw / raw.max(), rtol=1e-6)


def test_a_new_transition_gets_the_largest_priority_and_the_oldest_is_forgotten() -> None:
    _, priorities, world = three_steps()
    priorities.update(np.array([[0, 1]]), np.array([[4.0, 25.0]], np.float32))
    world.step([""])
    priorities.follow()  # slot 0 (2) leaves the window of three, slot 3 comes with 5
    np.testing.assert_allclose(priorities.tree.total, [5 + 1 + 5])
    slot, _ = priorities.sample(np.array([[0.1, 0.5, 0.9]]))
    assert slot.tolist() == [[1, 2, 3]]


@pytest.mark.parametrize("n", [1, 3])
def test_only_starts_of_transitions_have_a_priority(n: int) -> None:
    replay = Replay(2, 20, Layout((2,), np.float32, 5, stack=None))
    priorities = Priorities(replay, n)
    world, rng = World(replay), np.random.default_rng(0)
    for _ in range(90):
        world.step(random_ends(rng, 2))
        priorities.follow()
        first, end = replay.window(n)
        for s in range(2):
            slots = np.arange(first[s], max(end[s], first[s]))
            expected = np.zeros(replay.slots)
            for slot in slots:
                rows = np.zeros((2, 1), int) + slot
                expected[slot % replay.slots] = float(replay.kind(rows)[s, 0] != LAST)
            np.testing.assert_array_equal(priorities.tree.get(np.tile(np.arange(replay.slots), (2, 1)))[s], expected)


def test_state_is_taken_back() -> None:
    replay, priorities, _ = three_steps()
    priorities.update(np.array([[0, 1]]), np.array([[4.0, 25.0]], np.float32))
    again = Priorities(replay, 1)
    again.load({name: array.copy() for name, array in priorities.state().items()})
    uniform = np.random.default_rng(0).random((1, 50))
    for found, expected in zip(again.sample(uniform), priorities.sample(uniform), strict=True):
        np.testing.assert_array_equal(found, expected)
    assert again.largest.tolist() == priorities.largest.tolist() == pytest.approx([5.0])


def test_the_size_of_the_tree() -> None:
    assert [SumTree(2, size).nodes.shape for size in (1, 2, 3, 4, 5)] == [(2, 4), (2, 4), (2, 8), (2, 8), (2, 16)]


def test_an_empty_leaf_is_never_found() -> None:
    """A mass that rounding made as large as the total: the last leaf that has some."""
    tree = SumTree(1, 4)
    tree.set(np.array([[0, 1, 2, 3]]), np.array([[0.5, 0.25, 0.0, 0.0]]))
    assert tree.find(np.array([[0.0, 0.49, 0.5, 0.74, 0.75, 1.0]])).tolist() == [[0, 0, 1, 1, 1, 1]]
    tree.set(np.array([[0, 1]]), np.array([[0.5, 0.0]]))
    assert tree.find(np.array([[0.5]])).tolist() == [[0]]


def test_weights_are_at_most_one_in_each_seed_by_itself() -> None:
    replay = Replay(2, 3, Layout((1,), np.float32, 4))
    priorities, world = Priorities(replay, 1), World(replay, item=lambda number: [number])
    for _ in range(2):
        world.step(["", ""])
        priorities.follow()
    priorities.update(np.array([[0, 1], [0, 1]]), np.array([[1.0, 4.0], [9.0, 81.0]], np.float32))
    slot, weight = priorities.sample(np.array([[0.1, 0.9], [0.1, 0.9]]))  # priorities 1, 2 and 3, 9
    assert slot.tolist() == [[0, 1], [0, 1]]
    np.testing.assert_allclose(weight, [[1, 0.5**0.5], [1, (1 / 3) ** 0.5]], rtol=1e-6)
    assert weight.dtype == np.float32
    np.testing.assert_allclose(priorities.largest, [2, 9])


def test_a_loss_of_zero_keeps_a_small_priority() -> None:
    _, priorities, _ = three_steps()
    priorities.update(np.array([[0, 1, 2]]), np.zeros((1, 3), np.float32))
    np.testing.assert_allclose(priorities.tree.get(np.array([[0, 1, 2]])), 1e-5, rtol=1e-6)  # the root of 1e-10
    assert priorities.largest.tolist() == [1.0]


def test_priorities_that_are_loaded_before_the_first_transition_is_complete() -> None:
    replay = Replay(1, 5, Layout((1,), np.float32, 4))
    priorities, world = Priorities(replay, 3), World(replay, item=lambda number: [number])
    priorities.load({name: array.copy() for name, array in priorities.state().items()})
    for step in range(4):
        world.step([""])
        priorities.follow()
        assert priorities.tree.total.tolist() == [max(step - 1, 0)]  # slots 0, 1, ... after three steps
