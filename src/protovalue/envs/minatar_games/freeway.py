"""Freeway: cross eight lanes of cars.

- Actions: up and down move the player along column 4, one cell every third step at most.
- In the top row the player gets +1, is put back to the bottom row, and all cars get new speeds and directions.
- There is a car in each of the rows 1 to 8. It moves one cell every `speed` + 1 steps, and from the edge to the other
  side. In the player's cell, before or after it moves, it puts the player back to the bottom row.
- The episode is over after 2,501 steps.

Channels: player, car, and one for each of the speeds 1 to 5 with the cell behind the cars that have it.
"""

from typing import Any

from protovalue.envs.minatar_games.shared import DOWN, NONE, SIZE, UP, Field, Frame, below, mark, rule, uniform

CHANNELS = 7
ACTIONS = (NONE, UP, DOWN)
LANES = 8  # car k is in row k + 1
COLUMN, BOTTOM = 4, 9
SLOWEST = 5
PLAYER_INTERVAL, TIME_LIMIT = 3, 2500
FIELDS = {
    "y": Field(0, BOTTOM),
    "move_timer": Field(0, PLAYER_INTERVAL),
    "time_left": Field(-1, TIME_LIMIT),
    "car_x": Field(0, 9, (LANES,)),
    "car_timer": Field(0, SLOWEST, (LANES,)),
    "speed": Field(1, SLOWEST, (LANES,)),
    "heading": Field(-1, 1, (LANES,)),
}


@rule
def begin(game: Any) -> None:
    """Set every field to the start of an episode."""
    for k in range(LANES):
        game.car_x[k] = 0
    draw_cars(game)
    game.y = BOTTOM
    game.move_timer = PLAYER_INTERVAL
    game.time_left = TIME_LIMIT


@rule
def draw_cars(game: Any) -> None:
    """Draw the speeds of all cars, then their directions."""
    for k in range(LANES):
        game.speed[k] = game.car_timer[k] = 1 + below(game, SLOWEST)
    for k in range(LANES):
        game.heading[k] = 1 if uniform(game) > 1 / 2 else -1


@rule
def act(game: Any, action: int) -> tuple[int, bool]:
    """Play one step; return the reward and whether the episode is over."""
    reward = 0
    if game.move_timer == 0 and action in (UP, DOWN):
        game.move_timer = PLAYER_INTERVAL
        game.y = max(0, game.y - 1) if action == UP else min(BOTTOM, game.y + 1)
    if game.y == 0:
        reward = 1
        draw_cars(game)
        game.y = BOTTOM

    for k in range(LANES):
        if game.y == k + 1 and game.car_x[k] == COLUMN:
            game.y = BOTTOM
        if game.car_timer[k] > 0:
            game.car_timer[k] -= 1
        else:
            game.car_timer[k] = game.speed[k]
            game.car_x[k] = around(game.car_x[k] + game.heading[k])
            if game.y == k + 1 and game.car_x[k] == COLUMN:
                game.y = BOTTOM

    game.move_timer = max(0, game.move_timer - 1)
    game.time_left -= 1
    return reward, game.time_left < 0


@rule
def around(x: int) -> int:
    """Return the column that is meant one beyond an edge: that of the other side."""
    return (x + SIZE) % SIZE


@rule
def paint(game: Any, frame: Frame) -> None:
    """Mark what is visible in an empty frame."""
    mark(frame, COLUMN, game.y, 0)
    for k in range(LANES):
        mark(frame, game.car_x[k], k + 1, 1)
        mark(frame, around(game.car_x[k] - game.heading[k]), k + 1, 1 + game.speed[k])
