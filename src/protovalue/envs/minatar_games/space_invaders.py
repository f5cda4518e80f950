"""Space Invaders: shoot the aliens before they shoot you or come down to you.

- Actions: left and right move the cannon along the bottom row; fire shoots upwards, once in five steps at most.
- Shots rise and bombs fall one cell a step. An alien and a shot in the same cell are both gone: +1.
- All aliens move one cell every `move_interval` steps, or as many as there are aliens if that is less. At the edge they
  turn and come down one row instead. Every ten steps the lowest alien of the column nearest to the cannon, the left one
  of two, drops a bomb.
- A bomb or an alien in the cannon's cell ends the episode, and so do aliens that come down from the bottom row.
- When all 24 aliens are gone the next wave comes, with `move_interval` 12, 11, ... 6.

Nothing is random but sticky actions. Channels: cannon, alien, alien moving left, alien moving right, shot, bomb.
"""

from typing import Any

from protovalue.envs.minatar_games.shared import FIRE, LEFT, NONE, RIGHT, SIZE, Field, Frame, mark, rule

CHANNELS = 6
ACTIONS = (NONE, LEFT, RIGHT, FIRE)
BOTTOM = 9
MOVE_INTERVAL, LEAST_MOVE_INTERVAL = 12, 6
SHOT_INTERVAL, BOMB_INTERVAL = 5, 10
WAVE_ROWS, WAVE = 4, 0b0011111100  # columns 2 to 7
ALL = 2**SIZE - 1
FIELDS = {
    "x": Field(0, 9),
    "heading": Field(-1, 1),
    "aliens": Field(0, ALL, (SIZE,)),  # a row each; bit x is column x
    "shots": Field(0, ALL, (SIZE,)),
    "bombs": Field(0, ALL, (SIZE,)),
    "shot_timer": Field(0, SHOT_INTERVAL),
    "bomb_timer": Field(0, BOMB_INTERVAL),
    "move_timer": Field(0, MOVE_INTERVAL),
    "move_interval": Field(LEAST_MOVE_INTERVAL, MOVE_INTERVAL),
}


@rule
def begin(game: Any) -> None:
    """Set every field to the start of an episode."""
    game.x = 5
    for y in range(SIZE):
        game.aliens[y] = game.shots[y] = game.bombs[y] = 0
    send_wave(game)
    game.heading = -1
    game.move_interval = game.move_timer = MOVE_INTERVAL
    game.shot_timer, game.bomb_timer = 0, BOMB_INTERVAL


@rule
def send_wave(game: Any) -> None:
    """Put all aliens."""
    for y in range(WAVE_ROWS):
        game.aliens[y] = WAVE


@rule
def act(game: Any, action: int) -> tuple[int, bool]:
    """Play one step; return the reward and whether the episode is over."""
    if action == FIRE and game.shot_timer == 0:
        game.shots[BOTTOM] |= 1 << game.x
        game.shot_timer = SHOT_INTERVAL
    elif action == LEFT:
        game.x = max(0, game.x - 1)
    elif action == RIGHT:
        game.x = min(9, game.x + 1)

    cannon = 1 << game.x
    for y in range(BOTTOM):
        game.shots[y] = game.shots[y + 1]
    game.shots[BOTTOM] = 0
    for y in range(BOTTOM, 0, -1):
        game.bombs[y] = game.bombs[y - 1]
    game.bombs[0] = 0
    over = (game.bombs[BOTTOM] | game.aliens[BOTTOM]) & cannon != 0

    if game.move_timer == 0:
        game.move_timer = min(count_aliens(game), game.move_interval)
        over = move_aliens(game) or over
        over = over or game.aliens[BOTTOM] & cannon != 0
    if game.bomb_timer == 0:
        game.bomb_timer = BOMB_INTERVAL
        drop_bomb(game)

    reward = 0
    for y in range(SIZE):
        hit = game.aliens[y] & game.shots[y]
        game.aliens[y] ^= hit
        game.shots[y] ^= hit
        reward += count_bits(hit)

    game.shot_timer = max(0, game.shot_timer - 1)
    game.move_timer -= 1
    game.bomb_timer -= 1
    if count_aliens(game) == 0:
        game.move_interval = max(LEAST_MOVE_INTERVAL, game.move_interval - 1)
        send_wave(game)
    return reward, over


@rule
def move_aliens(game: Any) -> bool:
    """Move all aliens; return whether some left the bottom row, and so came in again at the top."""
    columns = 0
    for y in range(SIZE):
        columns |= game.aliens[y]
    edge = 1 if game.heading < 0 else 1 << 9
    if columns & edge:
        game.heading = -game.heading
        lowest = game.aliens[BOTTOM]
        for y in range(BOTTOM, 0, -1):
            game.aliens[y] = game.aliens[y - 1]
        game.aliens[0] = lowest
        return bool(lowest != 0)
    for y in range(SIZE):
        game.aliens[y] = game.aliens[y] >> 1 if game.heading < 0 else game.aliens[y] << 1
    return False


@rule
def drop_bomb(game: Any) -> None:
    """Put a bomb where the lowest alien of the column nearest to the cannon is."""
    for distance in range(SIZE):
        for x in (game.x - distance, game.x + distance):
            if 0 <= x < SIZE:
                for y in range(BOTTOM, -1, -1):
                    if game.aliens[y] >> x & 1:
                        game.bombs[y] |= 1 << x
                        return


@rule
def count_aliens(game: Any) -> int:
    """Return how many aliens there are."""
    count = 0
    for y in range(SIZE):
        count += count_bits(game.aliens[y])
    return count


@rule
def count_bits(bits: int) -> int:
    """Return how many bits are set."""
    count = 0
    while bits:
        bits &= bits - 1
        count += 1
    return count


@rule
def paint(game: Any, frame: Frame) -> None:
    """Mark what is visible in an empty frame."""
    mark(frame, game.x, BOTTOM, 0)
    for y in range(SIZE):
        for x in range(SIZE):
            if game.aliens[y] >> x & 1:
                mark(frame, x, y, 1)
                mark(frame, x, y, 2 if game.heading < 0 else 3)
            if game.shots[y] >> x & 1:
                mark(frame, x, y, 4)
            if game.bombs[y] >> x & 1:
                mark(frame, x, y, 5)
