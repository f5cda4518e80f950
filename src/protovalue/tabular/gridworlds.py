"""Worlds small enough to be solved exactly: Four Rooms, open grid, ring, chain, a maze from a drawing, a random MDP."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components

from protovalue.errors import UserError

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]
Walls = Literal["stay", "renormalise"]
if TYPE_CHECKING:
    Sparse: TypeAlias = sp.csr_array[np.float64, tuple[int, int]]
else:
    Sparse: TypeAlias = sp.csr_array

WALL, FREE = "#", " ."

FOUR_ROOMS = """\
#############
#     #     #
#     #     #
#           #
#     #     #
#     #     #
## ####     #
#     ### ###
#     #     #
#     #     #
#           #
#     #     #
#############
"""


@dataclass(frozen=True)
class World:
    """A finite world without rewards, and what is needed to draw it. n states, A actions.

    Attributes:
        name: What to call it in a title.
        actions: Names of the A actions.
        transitions: For each action a the matrix P_a (n, n), P_a[x, y] = Pr{X' = y | X = x, A = a}.
        adjacency: Symmetric 0/1 matrix (n, n) without self-loops: which states are neighbours.
        observations: What indicators see of each state, integers (n, k): row and column on a grid.
        points: Where each state is drawn (n, 2): column and row, downwards.
        walls: The drawing (rows, columns), True at walls; None if the world is drawn as separate points.
    """

    name: str
    actions: tuple[str, ...]
    transitions: tuple[Sparse, ...]
    adjacency: Sparse
    observations: Ints
    points: Floats
    walls: Bools | None

    @property
    def num_states(self) -> int:
        """The number of states n."""
        return self.adjacency.shape[0]

    @cached_property
    def random_walk(self) -> Sparse:
        """P of the uniform random policy (n, n): the mean of the P_a over actions."""
        share = 1 / len(self.transitions)
        total: Sparse = self.transitions[0] * share
        for matrix in self.transitions[1:]:
            total = sp.csr_array(total + matrix * share)
        return total

    @cached_property
    def symmetric(self) -> bool:
        """Whether P equals its transpose, Assumption 2 of the paper's appendix."""
        return float(abs(self.random_walk - self.random_walk.T).max()) < 1e-12


def four_rooms(walls: Walls = "stay") -> World:
    """Four Rooms: 11 x 11 cells inside the outer wall, four doors of one cell, 104 states."""
    return grid_world(parse_map(FOUR_ROOMS, "four-rooms"), "Four Rooms", walls)


def open_grid(rows: int, columns: int, walls: Walls = "stay") -> World:
    """Make a rows x columns grid without inner walls."""
    if rows < 1 or columns < 1 or rows * columns < 2:
        raise UserError(f"open grid: found {rows} x {columns}, expected at least 2 cells")
    return grid_world(np.ones((rows, columns), dtype=np.bool_), f"open grid {rows} x {columns}", walls)


def chain(n: int, walls: Walls = "stay") -> World:
    """Make n states in a row; the actions are left and right."""
    if n < 2:
        raise UserError(f"chain: found {n} states, expected at least 2")
    moves = {"left": (0, -1), "right": (0, 1)}
    return _grid(np.ones((1, n), dtype=np.bool_), f"chain of {n}", walls, moves)


def ring(n: int) -> World:
    """Make n states in a circle; the actions are one step back and one step on."""
    if n < 3:
        raise UserError(f"ring: found {n} states, expected at least 3")
    state = np.arange(n)
    back = _permutation((state - 1) % n)
    on = _permutation((state + 1) % n)
    angle = 2 * np.pi * state / n
    points = np.stack([np.sin(angle), -np.cos(angle)], axis=1)
    # Radius n: neighbours are 2 pi units apart, so that rounding keeps all states distinct.
    observations = np.rint(n * points).astype(np.int64)
    return World(f"ring of {n}", ("back", "on"), (back, on), sp.csr_array(back + on), observations, points, None)


def random_mdp(n: int, rng: np.random.Generator, num_actions: int = 4, branching: int = 3) -> World:
    """Make an MDP without geometry: each action leads to `branching` random states with Dirichlet(1) probabilities.

    The first successor of action 0 runs through a random cycle of all states, so that every state is reached.
    P is not symmetric. Two states are neighbours where some action leads from one to the other. Indicators
    see the state's number in binary, which says nothing about where it lies.
    """
    if n < 3 or branching < 1 or num_actions < 1:
        raise UserError(
            f"random MDP: found {n} states, {num_actions} actions, branching {branching}; expected 3, 1, 1 or more"
        )
    order = rng.permutation(n)
    after = np.empty(n, dtype=np.int64)
    after[order] = np.roll(order, -1)
    transitions = []
    for action in range(num_actions):
        successors = rng.integers(n, size=(n, branching))
        if action == 0:
            successors[:, 0] = after
        rows = np.repeat(np.arange(n), branching)
        chances = rng.dirichlet(np.ones(branching), size=n)
        # Building from coordinates adds up the chances of a successor drawn twice.
        transitions.append(sp.csr_array((chances.ravel(), (rows, successors.ravel())), shape=(n, n)))
    bits = (np.arange(n)[:, None] >> np.arange(max(1, (n - 1).bit_length()))) & 1
    angle = 2 * np.pi * np.argsort(order) / n
    points = np.stack([np.sin(angle), -np.cos(angle)], axis=1)
    names = tuple(f"action {i}" for i in range(num_actions))
    adjacency = _neighbours(transitions)
    return World(f"random MDP of {n}", names, tuple(transitions), adjacency, bits.astype(np.int64), points, None)


def load_map(path: Path, walls: Walls = "stay") -> World:
    """Read a maze drawn in a text file: '#' is a wall, ' ' or '.' is free."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{path}: no such file, expected a text file with a maze") from None
    except (IsADirectoryError, UnicodeDecodeError):
        raise UserError(f"{path}: not a text file, expected a maze drawn with '#', ' ' and '.'") from None
    return grid_world(parse_map(text, str(path)), path.stem, walls)


def parse_map(text: str, source: str) -> Bools:
    """Turn a drawing into a boolean array (rows, columns), True where free; `source` is named in errors.

    All lines must be equally long: a short line would leave open whether its end is wall or floor.
    Blank lines at the end are ignored; outside the drawing all is wall.
    """
    lines = text.splitlines()
    while lines and not lines[-1].strip():
        lines.pop()
    if not lines:
        raise UserError(f"{source}: found an empty map, expected lines of '#' (wall) and ' ' or '.' (free)")
    for row, line in enumerate(lines, start=1):
        for column, character in enumerate(line, start=1):
            if character not in WALL + FREE:
                raise UserError(
                    f"{source}: line {row}, column {column}: found {character!r}, "
                    "expected '#' (wall) or ' ' or '.' (free)"
                )
        if len(line) != len(lines[0]):
            raise UserError(f"{source}: line {row}: found {len(line)} columns, expected {len(lines[0])} as in line 1")
    free = np.array([[character != WALL for character in line] for line in lines], dtype=np.bool_)
    if free.sum() < 2:
        raise UserError(f"{source}: found {free.sum()} free cells, expected at least 2")
    _require_connected(free, source)
    return free


def grid_world(free: Bools, name: str, walls: Walls = "stay") -> World:
    """Make the world of a drawing with the actions up, right, down and left; states are numbered in reading order.

    What an action does when a wall is in its way depends on `walls`:

    - "stay": nothing; the state repeats. The random walk is then P = I - L/4 with the Laplacian L = D - A,
      symmetric as Assumption 2 of the paper asks.
    - "renormalise": it moves to one of the free neighbours, each as likely. The random walk is then P = D^-1 A,
      the walk on the graph, which is symmetric only if all cells have equally many neighbours.
    """
    return _grid(free, name, walls, {"up": (-1, 0), "right": (0, 1), "down": (1, 0), "left": (0, -1)})


def _grid(free: Bools, name: str, walls: Walls, moves: dict[str, tuple[int, int]]) -> World:
    cells = np.argwhere(free)  # (n, 2): row, column
    n = len(cells)
    number = np.full((free.shape[0] + 2, free.shape[1] + 2), -1)  # one cell of wall all around
    number[1:-1, 1:-1][free] = np.arange(n)
    targets = [number[cells[:, 0] + 1 + down, cells[:, 1] + 1 + right] for down, right in moves.values()]
    adjacency = _neighbours([_selection(target) for target in targets])
    if walls == "stay":
        transitions = [_permutation(np.where(target >= 0, target, np.arange(n))) for target in targets]
    else:
        degree = np.asarray(adjacency.sum(axis=1), dtype=np.float64)
        anywhere = sp.csr_array(sp.diags_array(1 / degree) @ adjacency)
        transitions = [
            sp.csr_array(_selection(target) + sp.diags_array((target < 0).astype(np.float64)) @ anywhere)
            for target in targets
        ]
    points = cells[:, ::-1].astype(np.float64)
    return World(name, tuple(moves), tuple(transitions), adjacency, cells.astype(np.int64), points, ~free)


def _permutation(target: Ints) -> Sparse:
    """The matrix (n, n) with a one at (x, target[x])."""
    n = len(target)
    return sp.csr_array((np.ones(n), (np.arange(n), target)), shape=(n, n))


def _selection(target: Ints) -> Sparse:
    """As `_permutation`, but the rows with a negative target are zero."""
    n, rows = len(target), np.flatnonzero(target >= 0)
    return sp.csr_array((np.ones(len(rows)), (rows, target[rows])), shape=(n, n))


def _neighbours(transitions: list[Sparse]) -> Sparse:
    """Symmetric 0/1 matrix of the states between which some transition leads, without self-loops."""
    total = transitions[0] + transitions[0].T
    for matrix in transitions[1:]:
        total = total + matrix + matrix.T
    edges = sp.coo_array(total)
    keep = (edges.row != edges.col) & (edges.data > 0)
    return sp.csr_array((np.ones(int(keep.sum())), (edges.row[keep], edges.col[keep])), shape=edges.shape)


def _require_connected(free: Bools, source: str) -> None:
    """Refuse a drawing in which some free cell cannot be reached from the largest connected part."""
    world = grid_world(free, source)
    count, part = connected_components(world.adjacency, directed=False)
    if count == 1:
        return
    main = np.argmax(np.bincount(part))
    lost = world.observations[part != main] + 1
    named = ", ".join(f"line {row} column {column}" for row, column in lost[:5])
    more = f" and {len(lost) - 5} more" if len(lost) > 5 else ""
    raise UserError(
        f"{source}: found {len(lost)} free cells that cannot be reached from the others "
        f"({named}{more}), expected one connected maze"
    )
