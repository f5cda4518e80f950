"""Prioritised replay: which transitions a seed learns from, in proportion to the size of their last error."""

import numpy as np
from numpy.typing import NDArray

from protovalue.online.replay import Index, Replay
from protovalue.online.slots import LAST

Floats = NDArray[np.float64]


class SumTree:
    """S binary trees over `size` leaves whose inner nodes are the sums of their children."""

    def __init__(self, seeds: int, size: int) -> None:
        self._depth = max(1, int(size - 1).bit_length())
        self._leaves = 1 << self._depth
        self.nodes = np.zeros((seeds, 2 * self._leaves))  # node 1 is the root, node i has children 2 i and 2 i + 1
        self._rows = np.arange(seeds)[:, None]

    @property
    def total(self) -> Floats:
        """Return the sums of all leaves (S,)."""
        return self.nodes[:, 1]

    def get(self, leaf: Index) -> Floats:
        """Return the values of leaves (S, B)."""
        return self.nodes[self._rows, leaf + self._leaves]

    def set(self, leaf: Index, value: Floats) -> None:
        """Change the values of leaves (S, B); where one is named twice, the last counts."""
        node = leaf + self._leaves
        self.nodes[self._rows, node] = value
        for _ in range(self._depth):
            node = node >> 1
            self.nodes[self._rows, node] = self.nodes[self._rows, 2 * node] + self.nodes[self._rows, 2 * node + 1]

    def find(self, mass: Floats) -> Index:
        """Return the leaves (S, B) where the running sum of the leaves first exceeds `mass` (S, B)."""
        node = np.ones(mass.shape, np.int64)
        mass = mass.copy()
        for _ in range(self._depth):
            left = self.nodes[self._rows, 2 * node]
            # An empty right half is never entered, whatever rounding did to the sums.
            right = (mass >= left) & (self.nodes[self._rows, 2 * node + 1] > 0)
            mass -= np.where(right, left, 0)
            node = 2 * node + right
        return node - self._leaves


class Priorities:
    """Sampling in proportion to sqrt(loss), with the weights that make up for it (as in Dopamine's Rainbow).

    Schaul et al. (2016) with exponent 1/2: P(i) = p_i / sum p and weights (1 / P(i))^(1/2), divided by their maximum.
    A new transition has the largest priority seen so far.
    """

    def __init__(self, replay: Replay, n_step: int) -> None:
        self._replay, self._n_step = replay, n_step
        self.tree = SumTree(replay.seeds, replay.slots)
        self.largest = np.ones(replay.seeds)
        self._first, self._end = (bound.copy() for bound in replay.window(n_step))
        self._end = np.maximum(self._end, 0)

    def follow(self) -> None:
        """Give the transitions that became complete the largest priority, and those that left the window none."""
        first, end = self._replay.window(self._n_step)
        end = np.maximum(end, 0)
        for slot, bound, new in ((self._end, end, True), (self._first, first, False)):
            while (inside := slot < bound).any():  # one round, two where a truncated episode took two slots
                at = np.where(inside, slot, 0)[:, None]
                value = np.where(self._replay.kind(at) == LAST, 0.0, self.largest[:, None]) if new else np.zeros(1)
                leaf = at % self._replay.slots
                self.tree.set(leaf, np.where(inside[:, None], value, self.tree.get(leaf)))
                slot = slot + inside
        self._first, self._end = first, end

    def sample(self, uniform: Floats) -> tuple[Index, NDArray[np.float32]]:
        """Choose slots (S, B), one from each of B equal shares of the total, with the weights of their losses."""
        size = uniform.shape[1]
        total = self.tree.total[:, None]
        leaf = self.tree.find((np.arange(size) + uniform) / size * total)
        weight = np.sqrt(total / self.tree.get(leaf))
        weight /= weight.max(axis=1, keepdims=True)
        newest = self._replay.written[:, None]
        return newest - (newest - leaf) % self._replay.slots, weight.astype(np.float32)

    def update(self, slot: Index, loss: NDArray[np.float32]) -> None:
        """Set the priorities of sampled slots (S, B) from their losses."""
        priority = np.sqrt(loss.astype(np.float64) + 1e-10)
        self.largest = np.maximum(self.largest, priority.max(axis=1))
        self.tree.set(slot % self._replay.slots, priority)

    def state(self) -> dict[str, Floats]:
        """Return what a checkpoint needs."""
        return {"priorities": self.tree.nodes, "largest": self.largest}

    def load(self, state: dict[str, Floats]) -> None:
        """Take back what `state` returned, after the replay was loaded."""
        self.tree.nodes[:] = state["priorities"]
        self.largest = state["largest"].copy()
        self._first, self._end = self._replay.window(self._n_step)
        self._end = np.maximum(self._end, 0)
