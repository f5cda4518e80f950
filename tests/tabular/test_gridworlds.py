"""Worlds: transitions worked out by hand, the two wall conventions, and what is wrong with a bad map."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protovalue.errors import UserError
from protovalue.tabular import gridworlds
from protovalue.tabular.gridworlds import World
from protovalue.tabular.protovalues import laplacian

# Three cells in an L:  0 1
#                       2 #
CORNER = "..\n.#\n"


def corner(walls: Any) -> World:
    return gridworlds.grid_world(gridworlds.parse_map(CORNER, "corner"), "corner", walls)


def test_moves_of_a_corner_that_stays_at_walls() -> None:
    world = corner("stay")
    after = {
        name: P.toarray().argmax(axis=1).tolist() for name, P in zip(world.actions, world.transitions, strict=True)
    }
    assert after == {"up": [0, 1, 0], "right": [1, 1, 2], "down": [2, 1, 2], "left": [0, 0, 2]}
    np.testing.assert_allclose(world.random_walk.toarray() * 4, [[2, 1, 1], [1, 3, 0], [1, 0, 3]])
    assert world.symmetric


def test_moves_of_a_corner_that_renormalises() -> None:
    world = corner("renormalise")
    # Cell 0 has two free neighbours: an action into a wall takes either. Cells 1 and 2 can only go to 0.
    np.testing.assert_allclose(
        world.transitions[0].toarray(), [[0.0, 0.5, 0.5], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]
    )  # up
    np.testing.assert_allclose(world.transitions[1].toarray(), [[0, 1, 0], [1, 0, 0], [1, 0, 0]])  # right
    np.testing.assert_allclose(world.random_walk.toarray(), [[0.0, 0.5, 0.5], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    assert not world.symmetric


def test_four_rooms() -> None:
    world = gridworlds.four_rooms()
    assert world.num_states == 104
    assert world.walls is not None
    assert world.walls.shape == (13, 13)
    # Rooms of 5x5, 5x6, 5x5 and 5x4 cells have 40 + 49 + 40 + 31 inner edges; each of four doors adds two.
    assert world.adjacency.sum() / 2 == 160 + 8
    degrees: np.ndarray = world.adjacency.sum(axis=1)
    doors = [
        state for state, cell in enumerate(world.observations.tolist()) if cell in ([3, 6], [6, 2], [7, 9], [10, 6])
    ]
    assert degrees[doors].tolist() == [2, 2, 2, 2]


@pytest.mark.parametrize("world", [gridworlds.four_rooms(), gridworlds.open_grid(3, 5)])
def test_stay_walk_is_identity_minus_a_quarter_of_the_laplacian(world: Any) -> None:
    expected = np.eye(world.num_states) - laplacian(world.adjacency).toarray() / 4
    np.testing.assert_allclose(world.random_walk.toarray(), expected, atol=1e-15)


def test_renormalised_walk_is_the_walk_on_the_graph() -> None:
    world = gridworlds.four_rooms("renormalise")
    A = world.adjacency.toarray()
    np.testing.assert_allclose(world.random_walk.toarray(), A / A.sum(axis=1, keepdims=True), atol=1e-15)


def test_ring_and_chain() -> None:
    back, on = gridworlds.ring(4).transitions
    assert back.toarray().argmax(axis=1).tolist() == [3, 0, 1, 2]
    assert on.toarray().argmax(axis=1).tolist() == [1, 2, 3, 0]
    assert len(np.unique(gridworlds.ring(200).observations, axis=0)) == 200
    np.testing.assert_allclose(gridworlds.chain(3).random_walk.toarray() * 2, [[1, 1, 0], [1, 0, 1], [0, 1, 1]])
    bouncing = gridworlds.chain(3, "renormalise")
    np.testing.assert_allclose(bouncing.random_walk.toarray() * 2, [[0, 2, 0], [1, 0, 1], [0, 2, 0]])


@given(st.integers(3, 40), st.integers(1, 5), st.integers(1, 4), st.integers(0, 1000))
@settings(max_examples=25, deadline=None)
def test_random_mdp_is_a_sparse_connected_mdp(n: Any, num_actions: Any, branching: Any, seed: Any) -> None:
    world = gridworlds.random_mdp(n, np.random.default_rng(seed), num_actions, branching)
    for P in world.transitions:
        assert P.nnz <= branching * n
        assert P.data.min() >= 0
        np.testing.assert_allclose(P.sum(axis=1), 1)
    reachable = np.linalg.matrix_power(world.random_walk.toarray() + np.eye(n), n) > 0
    assert reachable.all()
    assert len(np.unique(world.observations, axis=0)) == n
    A = world.adjacency.toarray()
    assert (A == A.T).all()
    assert A.diagonal().sum() == 0


def test_random_mdp_depends_on_its_generator_only() -> None:
    same = [gridworlds.random_mdp(20, np.random.default_rng(3)).random_walk.toarray() for _ in range(2)]
    other = gridworlds.random_mdp(20, np.random.default_rng(4)).random_walk.toarray()
    np.testing.assert_array_equal(same[0], same[1])
    assert (same[0] != other).any()
    assert not gridworlds.random_mdp(20, np.random.default_rng(3)).symmetric


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "maze.txt: found an empty map"),
        ("\n  \n", "maze.txt: found an empty map"),
        ("###\n###\n", "maze.txt: found 0 free cells, expected at least 2"),
        ("#.#\n", "maze.txt: found 1 free cells"),
        ("...\n.x.\n", "maze.txt: line 2, column 2: found 'x', expected '#'"),
        (".\t.\n", r"line 1, column 2: found '\\t'"),
        ("...\n..\n", "maze.txt: line 2: found 2 columns, expected 3 as in line 1"),
        ("...\n\n...\n", "line 2: found 0 columns"),
        ("..#.\n..##\n", r"found 1 free cells that cannot be reached from the others \(line 1 column 4\)"),
        (".#.#.#.#.#.#.#.#..\n", "8 free cells .* and 3 more"),
    ],
)
def test_bad_maps(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "maze.txt"
    path.write_text(text)
    with pytest.raises(UserError, match=message) as caught:
        gridworlds.load_map(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_missing_and_binary_maps(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        gridworlds.load_map(tmp_path / "none.txt")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="not a text file"):
        gridworlds.load_map(tmp_path / "binary")
    with pytest.raises(UserError, match="not a text file"):
        gridworlds.load_map(tmp_path)


def test_map_file_with_spaces_dots_and_blank_lines_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "tiny.txt").write_text("####\r\n# .#\r\n####\r\n\r\n")
    world = gridworlds.load_map(tmp_path / "tiny.txt")
    assert world.name == "tiny"
    assert world.observations.tolist() == [[1, 1], [1, 2]]


@pytest.mark.parametrize(
    "make",
    [lambda: gridworlds.open_grid(1, 1), lambda: gridworlds.chain(1), lambda: gridworlds.ring(2),
     lambda: gridworlds.random_mdp(2, np.random.default_rng(0))],
)  # fmt: skip
def test_worlds_that_are_too_small(make: Any) -> None:
    with pytest.raises(UserError, match="expected"):
        make()
