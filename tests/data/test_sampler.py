"""Sampling: stacks against a plain reconstruction, purity in (seed, step), uniformity, prefetching within a budget."""

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protovalue.data.dataset import Dataset
from protovalue.data.format import End
from protovalue.data.sampler import Prefetcher, Sampler
from protovalue.errors import UserError
from tests.data.helpers import made_up, write


def plain_stack(frames: Any, step: Any, stack: Any) -> np.ndarray:
    """The observation at `step`, from the definition: the last `stack` frames, zeros where there are none."""
    rows = [frames[step - k] if step - k >= 0 else np.zeros_like(frames[0]) for k in reversed(range(stack))]
    return np.stack(rows)


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=6),
    stack=st.integers(1, 5),
    chunk=st.integers(1, 5),
    horizon=st.integers(1, 6),
    cached=st.booleans(),
    seed=st.integers(0, 999),
)
def test_batches_and_segments(
    tmp_path_factory: pytest.TempPathFactory, lengths: Any, stack: Any, chunk: Any, horizon: Any, cached: Any, seed: Any
) -> None:
    rng = np.random.default_rng(seed)
    episodes = [made_up(n, rng, list(End)[i % 3]) for i, n in enumerate(lengths)]
    data = write(tmp_path_factory.mktemp("data") / "set", episodes, stack=stack, chunk_frames=chunk)
    assert data.load(10**6 if cached else 0) == cached
    sampler = Sampler(data, batch_size=16, seed=seed)
    batch, segments = sampler.batch(step=3), sampler.segments(step=3, length=horizon)
    where = [(e, s) for e, n in enumerate(lengths) for s in range(n)]
    for row, index in enumerate(sampler.indices(3)):
        number, step = where[index]
        episode = episodes[number]
        last = len(episode.actions) - 1
        assert np.array_equal(batch.obs[row], plain_stack(episode.frames, step, stack))
        assert np.array_equal(batch.next_obs[row], plain_stack(episode.frames, step + 1, stack))
        assert batch.action[row] == episode.actions[step]
        assert batch.reward[row] == episode.rewards[step]
        assert batch.terminal[row] == (step == last and episode.end == End.TERMINATED)
        assert batch.index[row] == index
        for k in range(horizon):
            valid = step + k <= last
            assert segments.valid[row, k] == valid
            assert segments.action[row, k] == (episode.actions[step + k] if valid else 0)
            assert segments.reward[row, k] == (episode.rewards[step + k] if valid else 0)
            assert segments.terminal[row, k] == (step + k == last and episode.end == End.TERMINATED)
            if valid:
                assert np.array_equal(segments.obs(k)[row], plain_stack(episode.frames, step + k, stack))
                assert np.array_equal(segments.obs(k + 1)[row], plain_stack(episode.frames, step + k + 1, stack))


def test_trajectories_are_stacked_alike(tmp_path: Path) -> None:
    episode = made_up(6, np.random.default_rng(0))
    found = write(tmp_path / "set", [episode]).episode(0).observations(stack=3)
    assert np.array_equal(found, np.stack([plain_stack(episode.frames, t, 3) for t in range(7)]))


@pytest.fixture
def data(tmp_path: Path) -> Dataset:
    return write(tmp_path / "set", [made_up(n, np.random.default_rng(n)) for n in (1, 2, 50, 7)])


def test_a_batch_depends_on_seed_and_step_only(data: Dataset) -> None:
    one, two = Sampler(data, 32, seed=5), Sampler(data, 32, seed=5)
    for step in (0, 1, 10**9):
        two.batch(step + 1)  # what was drawn before does not matter
        assert np.array_equal(one.batch(step).frames, two.batch(step).frames)
    assert not np.array_equal(one.indices(0), one.indices(1))
    assert not np.array_equal(one.indices(0), Sampler(data, 32, seed=6).indices(0))


def test_known_indices(data: Dataset) -> None:
    """Philox with key 5 and counter (0, 2, 0, 0), drawn here by NumPy directly."""
    expected = np.random.Generator(np.random.Philox(key=5, counter=[0, 2, 0, 0])).integers(60, size=4)
    assert Sampler(data, 4, seed=5).indices(2).tolist() == expected.tolist()


def test_uniform_over_transitions(data: Dataset) -> None:
    """60,000 draws over 60 transitions: each count is binomial with mean 1,000 and deviation 31."""
    sampler = Sampler(data, 600, seed=0)
    counts = np.bincount(np.concatenate([sampler.indices(step) for step in range(100)]), minlength=60)
    assert len(counts) == 60
    assert np.abs(counts - 1000).max() < 5 * 31.4


def test_an_empty_data_set_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no transitions"):
        Sampler(write(tmp_path / "set", []), 4, seed=0)


def test_prefetcher_gives_every_step_in_order(data: Dataset) -> None:
    sampler = Sampler(data, 8, seed=1)
    with Prefetcher(sampler.batch, range(5, 45), sampler.batch_bytes, workers=3) as batches:
        for step, batch in zip(range(5, 45), batches, strict=True):
            assert np.array_equal(batch.index, sampler.indices(step))


@pytest.mark.parametrize(("budget", "ahead"), [(1000, 10), (250, 2), (0, 1)])
def test_prefetcher_never_holds_more_than_its_budget(budget: int, ahead: int) -> None:
    """Items of 100 bytes: with nobody taking them, as many are made as fit, and at least one."""
    made = []
    with Prefetcher(lambda step: made.append(step), range(100), item_bytes=100, budget=budget) as items:
        iterator = iter(items)
        next(iterator)
        time.sleep(0.05)
        assert len(made) <= 1 + ahead


def test_prefetcher_passes_errors_on_and_ends_its_threads() -> None:
    def broken(step: Any) -> None:
        raise UserError(f"step {step}")

    with Prefetcher(broken, range(3), 1) as items, pytest.raises(UserError, match="step 0"):
        next(iter(items))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("prefetch")]


def test_bytes_of_a_batch(data: Dataset) -> None:
    """8 transitions of 3 frames (a stack of 2 and the next one) of 2 x 3 bytes."""
    sampler = Sampler(data, 8, seed=1)
    assert sampler.batch_bytes == 8 * 3 * 6 == sampler.batch(0).frames.nbytes


@pytest.mark.parametrize(("item_bytes", "ahead"), [(64 << 20, 4), ((64 << 20) + 1, 3), (1, 64), (0, 64), (1 << 40, 1)])
def test_how_many_are_made_ahead_by_default(item_bytes: int, ahead: int) -> None:
    """256 MiB in all, at most 64 items, at least one; as many again once one is taken, by threads that work at once."""
    made = []

    def make(step: int) -> int:
        made.append(step)
        return step

    with Prefetcher(make, range(200), item_bytes) as items:
        iterator = iter(items)
        for taken in range(1, 5):
            assert next(iterator) == taken - 1
            assert len(items._pending) == ahead
            for pending in items._pending:
                pending.result()
            assert len(made) == ahead + taken
    with Prefetcher(lambda step: step, range(3), 1) as items:
        assert list(items) == [0, 1, 2]
