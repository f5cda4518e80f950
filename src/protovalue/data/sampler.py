"""Batches of experience. The batch at a step is a pure function of (seed, step), so there is no state to save."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from protovalue.data.dataset import Dataset
from protovalue.errors import UserError
from protovalue.randomness import Purpose, generator_at

Array = NDArray[Any]
T = TypeVar("T")


@dataclass(frozen=True)
class Batch:
    """Transitions (x, a, r, x', terminal)."""

    frames: Array
    """(B, stack + 1, *frame_shape): the frames of x and of x', which share all but one."""
    action: NDArray[np.int64]
    """(B,)"""
    reward: NDArray[np.float32]
    """(B,) as stored."""
    terminal: NDArray[np.bool_]
    """(B,) the episode ended by itself: do not bootstrap."""
    index: NDArray[np.int64]
    """(B,) the transition's number in the data set."""

    @property
    def obs(self) -> Array:
        """Return x, (B, stack, *frame_shape)."""
        return self.frames[:, :-1]

    @property
    def next_obs(self) -> Array:
        """Return x', (B, stack, *frame_shape)."""
        return self.frames[:, 1:]


@dataclass(frozen=True)
class Segments:
    """K consecutive transitions within an episode; where the episode ends before, the rest is masked by `valid`."""

    frames: Array
    """(B, stack + K, *frame_shape), zero after the episode's last frame."""
    action: NDArray[np.int64]
    """(B, K), 0 where not valid."""
    reward: NDArray[np.float32]
    """(B, K), 0 where not valid."""
    terminal: NDArray[np.bool_]
    """(B, K)"""
    valid: NDArray[np.bool_]
    """(B, K) the transition exists."""

    def obs(self, k: int) -> Array:
        """Return the observation before transition k (0..K), (B, stack, *frame_shape)."""
        stack = self.frames.shape[1] - self.action.shape[1]
        return self.frames[:, k : k + stack]


class Sampler:
    """Draws transitions uniformly, with replacement, from all of a data set.

    Of every batch it gives the rows `rows`: all of them, or the part of one of several processes. Which transitions
    the batch has does not depend on how it is shared out.
    """

    def __init__(self, dataset: Dataset, batch_size: int, seed: int, rows: slice | None = None) -> None:
        if not isinstance(dataset, Dataset):
            raise UserError(f"dataset: found {type(dataset).__name__}, expected one of open_dataset(...)")
        if batch_size < 1:
            raise UserError(f"batch_size: found {batch_size}, expected 1 or more")
        if dataset.num_transitions == 0:
            raise UserError(f"{dataset.folders[0].path}: the data set has no transitions")
        self.dataset, self.batch_size, self.seed = dataset, batch_size, seed
        self.rows = rows or slice(0, batch_size)
        self.num_rows: int = self.rows.stop - self.rows.start
        """How many rows of a batch it gives."""

    def indices(self, step: int) -> NDArray[np.int64]:
        """Return the transitions of the batch at `step`, those of `rows`."""
        draw = generator_at(self.seed, Purpose.BATCH, step)
        return draw.integers(self.dataset.num_transitions, size=self.batch_size)[self.rows]

    def batch(self, step: int) -> Batch:
        """Return the batch at `step`."""
        return self.transitions(self.indices(step))

    def transitions(self, index: NDArray[np.int64]) -> Batch:
        """Gather given transitions."""
        data = self.dataset
        episode, at = data.locate(index)
        frames = data.windows(episode, at - data.stack + 1, data.stack + 1)
        return Batch(frames, data.actions(episode, at), data.rewards(episode, at), data.terminal(episode, at), index)

    def segments(self, step: int, length: int) -> Segments:
        """Return segments of `length` transitions whose first ones are the batch at `step`."""
        data = self.dataset
        episode, first = data.locate(self.indices(step))
        frames = data.windows(episode, first - data.stack + 1, data.stack + length)
        at = first[:, None] + np.arange(length)  # (B, K)
        valid = at < data.lengths[episode][:, None]
        rows, inside = np.broadcast_to(episode[:, None], at.shape), np.where(valid, at, 0)
        return Segments(
            frames,
            np.where(valid, data.actions(rows, inside), 0),
            np.where(valid, data.rewards(rows, inside), np.float32(0)),
            data.terminal(rows, at) & valid,
            valid,
        )

    @property
    def batch_bytes(self) -> int:
        """Memory of one batch, of its `rows`."""
        return self.num_rows * (self.dataset.stack + 1) * self.dataset.frame_bytes


class Prefetcher(Generic[T]):
    """Makes the results of `make(step)` ahead of time in background threads and yields them in order.

    No more than fit into `budget` bytes are held, and always at least one.
    """

    def __init__(
        self, make: Callable[[int], T], steps: range, item_bytes: int, budget: int = 256 << 20, workers: int = 1
    ) -> None:
        self._make, self._steps = make, iter(steps)
        self._ahead = max(1, min(budget // max(item_bytes, 1), 64))
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="prefetch")
        self._pending: deque[Future[T]] = deque()

    def __iter__(self) -> Iterator[T]:
        self._fill()
        while self._pending:
            item = self._pending.popleft().result()
            self._fill()
            yield item

    def _fill(self) -> None:
        while len(self._pending) < self._ahead and (step := next(self._steps, None)) is not None:
            self._pending.append(self._pool.submit(self._make, step))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
