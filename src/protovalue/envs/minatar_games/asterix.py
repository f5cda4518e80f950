"""Asterix: pick up treasure, keep away from enemies.

- Actions: left, up, right and down move the player one cell; rows 0 and 9 are out of reach.
- Each of the eight rows in between holds at most one thing. Every `spawn_speed` steps one comes into a free row, if
  there is one, from the left or the right: treasure with probability 1/3, or else an enemy. All move one cell every
  `move_speed` steps.
- Treasure in the player's cell is picked up: +1. An enemy there ends the episode. Both are looked for after the player
  has moved and once more after the things have.
- Every 102 steps it becomes faster: `spawn_speed` 10, 9, ... 1, and `move_speed` 5, 4, ... 1 every second time.

Channels: player, enemy, the cell behind each thing, treasure.
"""

from typing import Any

from protovalue.envs.minatar_games.shared import (
    DOWN,
    LEFT,
    NONE,
    RIGHT,
    UP,
    Field,
    Frame,
    below,
    mark,
    mark_if_inside,
    rule,
    uniform,
)

CHANNELS = 4
ACTIONS = (NONE, LEFT, UP, RIGHT, DOWN)
ROWS = 8  # thing k is in row k + 1
NOTHING, ENEMY, TREASURE = 0, 1, 2
SPAWN_SPEED, MOVE_SPEED, RAMP_INTERVAL = 10, 5, 100
FIELDS = {
    "x": Field(0, 9),
    "y": Field(1, 8),
    "kind": Field(NOTHING, TREASURE, (ROWS,)),
    "thing_x": Field(0, 9, (ROWS,)),
    "heading": Field(-1, 1, (ROWS,)),
    "spawn_speed": Field(1, SPAWN_SPEED),
    "spawn_timer": Field(0, SPAWN_SPEED),
    "move_speed": Field(1, MOVE_SPEED),
    "move_timer": Field(0, MOVE_SPEED),
    "ramp_timer": Field(-1, RAMP_INTERVAL),
    "ramps": Field(0, SPAWN_SPEED),
}


@rule
def begin(game: Any) -> None:
    """Set every field to the start of an episode."""
    game.x, game.y = 5, 5
    for k in range(ROWS):
        remove(game, k)
    game.spawn_speed = game.spawn_timer = SPAWN_SPEED
    game.move_speed = game.move_timer = MOVE_SPEED
    game.ramp_timer, game.ramps = RAMP_INTERVAL, 0


@rule
def act(game: Any, action: int) -> tuple[int, bool]:
    """Play one step; return the reward and whether the episode is over."""
    if game.spawn_timer == 0:
        spawn(game)
        game.spawn_timer = game.spawn_speed

    if action == LEFT:
        game.x = max(0, game.x - 1)
    elif action == RIGHT:
        game.x = min(9, game.x + 1)
    elif action == UP:
        game.y = max(1, game.y - 1)
    elif action == DOWN:
        game.y = min(8, game.y + 1)

    met = meet(game)
    reward, over = 1 if met == TREASURE else 0, met == ENEMY
    if game.move_timer == 0:
        game.move_timer = game.move_speed
        for k in range(ROWS):
            if game.kind[k] != NOTHING:
                game.thing_x[k] += game.heading[k]
                if game.thing_x[k] < 0 or game.thing_x[k] > 9:
                    remove(game, k)
        met = meet(game)
        reward, over = reward + (1 if met == TREASURE else 0), over or met == ENEMY

    game.spawn_timer -= 1
    game.move_timer -= 1
    if game.spawn_speed > 1 or game.move_speed > 1:
        ramp(game)
    return reward, over


@rule
def spawn(game: Any) -> None:
    """Let a thing come into a free row."""
    from_left, is_treasure = uniform(game) < 1 / 2, uniform(game) < 1 / 3
    free = 0
    for k in range(ROWS):
        free += game.kind[k] == NOTHING
    if free == 0:
        return
    skip = below(game, free)
    for k in range(ROWS):
        if game.kind[k] == NOTHING:
            if skip == 0:
                game.kind[k] = TREASURE if is_treasure else ENEMY
                game.thing_x[k] = 0 if from_left else 9
                game.heading[k] = 1 if from_left else -1
                return
            skip -= 1


@rule
def remove(game: Any, k: int) -> None:
    """Clear a row."""
    game.kind[k] = game.thing_x[k] = game.heading[k] = 0


@rule
def meet(game: Any) -> int:
    """Return what is in the player's cell; treasure is gone then."""
    k = game.y - 1
    if game.kind[k] == NOTHING or game.thing_x[k] != game.x:
        return NOTHING
    if game.kind[k] == TREASURE:
        remove(game, k)
        return TREASURE
    return ENEMY


@rule
def ramp(game: Any) -> None:
    """Make the game faster when it is time."""
    if game.ramp_timer >= 0:
        game.ramp_timer -= 1
        return
    if game.move_speed > 1 and game.ramps % 2 == 1:
        game.move_speed -= 1
    if game.spawn_speed > 1:
        game.spawn_speed -= 1
    game.ramps += 1
    game.ramp_timer = RAMP_INTERVAL


@rule
def paint(game: Any, frame: Frame) -> None:
    """Mark what is visible in an empty frame."""
    mark(frame, game.x, game.y, 0)
    for k in range(ROWS):
        if game.kind[k] != NOTHING:
            mark(frame, game.thing_x[k], k + 1, 3 if game.kind[k] == TREASURE else 1)
            mark_if_inside(frame, game.thing_x[k] - game.heading[k], k + 1, 2)
