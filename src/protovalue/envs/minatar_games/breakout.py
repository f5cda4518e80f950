"""Breakout: bounce a ball off a paddle to break bricks.

- Actions: left and right move the paddle along the bottom row, one cell a step.
- The ball moves diagonally, one cell a step. Walls and the ceiling reflect it, and so does a brick, which breaks: +1.
  Through a brick that it meets in the step after another one the ball passes, and the brick stays.
- At the bottom the ball is reflected if the paddle is in the column where it was, and goes back to where it came from
  if the paddle is in the column where it would be. Otherwise the episode is over.
- There are three rows of ten bricks. When all are broken new ones come in the step in which the ball is at the bottom.
- The ball starts at the left or the right wall, which is drawn, and moves down and inwards. Nothing else is random.

Channels: paddle, ball, the ball's last cell, bricks.
"""

from typing import Any

from protovalue.envs.minatar_games.shared import LEFT, NONE, RIGHT, SIZE, Field, Frame, below, mark, rule

CHANNELS = 4
ACTIONS = (NONE, LEFT, RIGHT)
BOTTOM = 9
FIRST_ROW, LAST_ROW = 1, 3  # of bricks
FIELDS = {
    "paddle": Field(0, 9),
    "x": Field(0, 9),
    "y": Field(0, 9),
    "last_x": Field(0, 9),
    "last_y": Field(0, 9),
    "right": Field(-1, 1),
    "down": Field(-1, 1),
    "was_brick": Field(0, 1),
    "bricks": Field(0, 1, (SIZE, SIZE)),
}


@rule
def begin(game: Any) -> None:
    """Set every field to the start of an episode."""
    from_left = below(game, 2) == 0
    game.x = game.last_x = 0 if from_left else 9
    game.y = game.last_y = 3
    game.right = 1 if from_left else -1
    game.down = 1
    game.paddle = 4
    game.was_brick = 0
    lay_bricks(game)


@rule
def lay_bricks(game: Any) -> None:
    """Put all bricks."""
    for y in range(FIRST_ROW, LAST_ROW + 1):
        for x in range(SIZE):
            game.bricks[y, x] = 1


@rule
def act(game: Any, action: int) -> tuple[int, bool]:
    """Play one step; return the reward and whether the episode is over."""
    if action == LEFT:
        game.paddle = max(0, game.paddle - 1)
    elif action == RIGHT:
        game.paddle = min(9, game.paddle + 1)

    reward, over, is_brick = 0, False, 0
    game.last_x, game.last_y = game.x, game.y
    x, y = game.x + game.right, game.y + game.down
    if x < 0 or x > 9:
        x = game.x
        game.right = -game.right
    if y < 0:
        y = 0
        game.down = 1
    elif game.bricks[y, x]:
        is_brick = 1
        if not game.was_brick:
            reward = 1
            game.bricks[y, x] = 0
            y = game.y
            game.down = -game.down
    elif y == BOTTOM:
        if not game.bricks.any():
            lay_bricks(game)
        if game.x == game.paddle:
            y = game.y
            game.down = -1
        elif x == game.paddle:
            y = game.y
            game.right, game.down = -game.right, -1
        else:
            over = True
    game.was_brick = is_brick
    game.x, game.y = x, y
    return reward, over


@rule
def paint(game: Any, frame: Frame) -> None:
    """Mark what is visible in an empty frame."""
    mark(frame, game.paddle, BOTTOM, 0)
    mark(frame, game.x, game.y, 1)
    mark(frame, game.last_x, game.last_y, 2)
    for y in range(FIRST_ROW, LAST_ROW + 1):
        for x in range(SIZE):
            if game.bricks[y, x]:
                mark(frame, x, y, 3)
