"""Seaquest: shoot fish and submarines, rescue divers, come up for air.

- Actions: left and right move the player's submarine one cell and turn it, up and down move it between rows 0 and 8,
  fire shoots ahead, once in five steps at most.
- Enemies come into rows 1 to 8 from the left or the right every `spawn_speed` steps: a submarine with probability 1/3,
  or else a fish; none if an enemy in that row goes the other way. They move one cell every `move_speed` + 1 steps. A
  submarine shoots ahead every eleven steps. Divers come every 30 steps into the same rows and move one cell every six.
- Bullets move one cell a step. An enemy in the same cell as a bullet of the player is gone with it: +1.
- An enemy or an enemy's bullet in the player's cell, before or after it moves, ends the episode.
- A diver in the player's cell is taken aboard if there are fewer than six.
- Below row 0 there is air for 200 steps, and none left ends the episode. So does coming up to row 0 with no diver
  aboard. Coming up with six gives as many points as the air gauge has cells, at most ten, and all six leave. Then one
  diver leaves, the air is full again, and the game becomes faster: `spawn_speed` 20, 19, ... 1, and every second time
  `move_speed` 5, 4, 3, 2. (One leaves also after all six have: the count is -1 then, which is not 0, so that the player
  may come up again without a diver.)

Channels: the player's front, its back, its bullet, the cell behind each fish, submarine and diver, enemy's bullet,
fish, enemy's submarine, air gauge, divers aboard, diver.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from protovalue.envs.minatar_games.shared import (
    DOWN,
    FIRE,
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

CHANNELS = 10
ACTIONS = (NONE, LEFT, UP, RIGHT, DOWN, FIRE)
SPAWN_SPEED, MOVE_SPEED, LEAST_MOVE_SPEED = 20, 5, 2
DIVER_SPAWN_SPEED, DIVER_MOVE_SPEED = 30, 5
SHOT_INTERVAL, ENEMY_SHOT_INTERVAL = 5, 10
AIR, GAUGE = 200, 10
ABOARD = 6

# A list of things is an array with a row for each, oldest first, and its length. The columns:
X, Y, HEADING, MOVE_TIMER, SHOT_TIMER = range(5)
_LOW, _HIGH = (0, 0, -1, 0, 0), (9, 9, 1, 20, 20)
# At the greatest speed an enemy comes every step and leaves after 29, so there are never more than 30. Two own bullets
# and two divers can be there at once, and of enemies' bullets fewer than of submarines.
FEW, MANY = 4, 32
FIELDS = {
    "x": Field(0, 9),
    "y": Field(0, 8),
    "heading": Field(-1, 1),
    "air": Field(-1, AIR),
    "aboard": Field(-(2**62), ABOARD),
    "is_up": Field(0, 1),
    "shot_timer": Field(0, SHOT_INTERVAL),
    "spawn_speed": Field(1, SPAWN_SPEED),
    "spawn_timer": Field(0, SPAWN_SPEED),
    "diver_timer": Field(0, DIVER_SPAWN_SPEED),
    "move_speed": Field(LEAST_MOVE_SPEED, MOVE_SPEED),
    "ramps": Field(0, SPAWN_SPEED),
    "num_bullets": Field(0, FEW),
    "num_divers": Field(0, FEW),
    "num_enemy_bullets": Field(0, MANY),
    "num_fish": Field(0, MANY),
    "num_submarines": Field(0, MANY),
    "bullets": Field(_LOW, _HIGH, (FEW, 5)),
    "divers": Field(_LOW, _HIGH, (FEW, 5)),
    "enemy_bullets": Field(_LOW, _HIGH, (MANY, 5)),
    "fish": Field(_LOW, _HIGH, (MANY, 5)),
    "submarines": Field(_LOW, _HIGH, (MANY, 5)),
}

Things = NDArray[np.int64]


@rule
def begin(game: Any) -> None:
    """Set every field to the start of an episode."""
    game.x, game.y, game.heading = 5, 0, -1
    game.air, game.aboard, game.is_up = AIR, 0, 1
    game.shot_timer = 0
    game.spawn_speed = game.spawn_timer = SPAWN_SPEED
    game.diver_timer = DIVER_SPAWN_SPEED
    game.move_speed, game.ramps = MOVE_SPEED, 0
    game.num_bullets = clear(game.bullets, game.num_bullets)
    game.num_divers = clear(game.divers, game.num_divers)
    game.num_enemy_bullets = clear(game.enemy_bullets, game.num_enemy_bullets)
    game.num_fish = clear(game.fish, game.num_fish)
    game.num_submarines = clear(game.submarines, game.num_submarines)


@rule
def act(game: Any, action: int) -> tuple[int, bool]:
    """Play one step; return the reward and whether the episode is over."""
    if game.spawn_timer == 0:
        spawn_enemy(game)
        game.spawn_timer = game.spawn_speed
    if game.diver_timer == 0:
        spawn_diver(game)
        game.diver_timer = DIVER_SPAWN_SPEED

    if action == FIRE and game.shot_timer == 0:
        game.num_bullets = add(game.bullets, game.num_bullets, game.x, game.y, game.heading, 0, 0)
        game.shot_timer = SHOT_INTERVAL
    elif action == LEFT:
        game.x, game.heading = max(0, game.x - 1), -1
    elif action == RIGHT:
        game.x, game.heading = min(9, game.x + 1), 1
    elif action == UP:
        game.y = max(0, game.y - 1)
    elif action == DOWN:
        game.y = min(8, game.y + 1)

    reward = move_bullets(game)
    move_divers(game)
    shot_submarines, met_submarine = move_submarines(game)
    met_bullet = move_enemy_bullets(game)
    shot_fish, met_fish = move_fish(game)
    reward += shot_submarines + shot_fish
    over = met_submarine or met_bullet or met_fish

    game.spawn_timer = max(0, game.spawn_timer - 1)
    game.diver_timer = max(0, game.diver_timer - 1)
    game.shot_timer = max(0, game.shot_timer - 1)
    over = over or game.air <= 0
    if game.y > 0:
        game.air -= 1
        game.is_up = 0
    elif not game.is_up:
        if game.aboard == 0:
            over = True
        else:
            reward += come_up(game)
    return reward, over


@rule
def spawn_enemy(game: Any) -> None:
    """Let a fish or a submarine come in, unless it would meet another."""
    heading = 1 if uniform(game) < 1 / 2 else -1
    is_submarine = uniform(game) < 1 / 3
    x, y = 0 if heading > 0 else 9, 1 + below(game, 8)
    if has_opposite(game.submarines, game.num_submarines, y, heading) or has_opposite(
        game.fish, game.num_fish, y, heading
    ):
        return
    if is_submarine:
        game.num_submarines = add(
            game.submarines, game.num_submarines, x, y, heading, game.move_speed, ENEMY_SHOT_INTERVAL
        )
    else:
        game.num_fish = add(game.fish, game.num_fish, x, y, heading, game.move_speed, 0)


@rule
def spawn_diver(game: Any) -> None:
    """Let a diver come in."""
    heading = 1 if uniform(game) < 1 / 2 else -1
    x, y = 0 if heading > 0 else 9, 1 + below(game, 8)
    game.num_divers = add(game.divers, game.num_divers, x, y, heading, DIVER_MOVE_SPEED, 0)


@rule
def move_bullets(game: Any) -> int:
    """Move the player's bullets; return how many enemies they hit. A fish is looked for before a submarine."""
    hits = 0
    for k in range(game.num_bullets - 1, -1, -1):
        x, y = advance(game.bullets, k)
        gone = is_outside(x)
        if not gone:
            fish = find(game.fish, game.num_fish, x, y)
            submarine = find(game.submarines, game.num_submarines, x, y)
            if fish >= 0:
                game.num_fish = remove(game.fish, game.num_fish, fish)
            elif submarine >= 0:
                game.num_submarines = remove(game.submarines, game.num_submarines, submarine)
            if fish >= 0 or submarine >= 0:
                hits += 1
                gone = True
        if gone:
            game.num_bullets = remove(game.bullets, game.num_bullets, k)
    return hits


@rule
def move_divers(game: Any) -> None:
    """Move the divers when it is time; take aboard those in the player's cell."""
    for k in range(game.num_divers - 1, -1, -1):
        taken, gone = is_at_player(game, game.divers, k) and game.aboard < ABOARD, False
        if not taken and is_time(game.divers, k, DIVER_MOVE_SPEED):
            x, _ = advance(game.divers, k)
            gone = is_outside(x)
            taken = not gone and is_at_player(game, game.divers, k) and game.aboard < ABOARD
        if taken:
            game.aboard += 1
        if taken or gone:
            game.num_divers = remove(game.divers, game.num_divers, k)


@rule
def move_submarines(game: Any) -> tuple[int, bool]:
    """Move the submarines and let them shoot; return how many ran into bullets and whether one met the player."""
    hits, met = 0, False
    for k in range(game.num_submarines - 1, -1, -1):
        hit, outside, at_player = move_enemy(game, game.submarines, k)
        hits, met = hits + hit, met or at_player
        submarine = game.submarines[k]
        if submarine[SHOT_TIMER] == 0:  # also in the step in which it goes
            submarine[SHOT_TIMER] = ENEMY_SHOT_INTERVAL
            game.num_enemy_bullets = add(
                game.enemy_bullets, game.num_enemy_bullets, submarine[X], submarine[Y], submarine[HEADING], 0, 0
            )
        else:
            submarine[SHOT_TIMER] -= 1
        if hit or outside:
            game.num_submarines = remove(game.submarines, game.num_submarines, k)
    return hits, met


@rule
def move_enemy_bullets(game: Any) -> bool:
    """Move the enemies' bullets; return whether one met the player."""
    met = False
    for k in range(game.num_enemy_bullets - 1, -1, -1):
        met = met or is_at_player(game, game.enemy_bullets, k)
        x, _ = advance(game.enemy_bullets, k)
        met = met or is_at_player(game, game.enemy_bullets, k)
        if is_outside(x):
            game.num_enemy_bullets = remove(game.enemy_bullets, game.num_enemy_bullets, k)
    return met


@rule
def move_fish(game: Any) -> tuple[int, bool]:
    """Move the fish; return how many ran into bullets and whether one met the player."""
    hits, met = 0, False
    for k in range(game.num_fish - 1, -1, -1):
        hit, outside, at_player = move_enemy(game, game.fish, k)
        hits, met = hits + hit, met or at_player
        if hit or outside:
            game.num_fish = remove(game.fish, game.num_fish, k)
    return hits, met


@rule
def move_enemy(game: Any, enemies: Things, k: int) -> tuple[bool, bool, bool]:
    """Move an enemy when it is time; return whether it ran into a bullet, went outside, and met the player."""
    hit, outside, met = False, False, is_at_player(game, enemies, k)
    if is_time(enemies, k, game.move_speed):
        x, y = advance(enemies, k)
        outside = is_outside(x)
        if is_at_player(game, enemies, k):
            met = True
        elif not outside:
            bullet = find(game.bullets, game.num_bullets, x, y)
            if bullet >= 0:
                hit = True
                game.num_bullets = remove(game.bullets, game.num_bullets, bullet)
    return hit, outside, met


@rule
def come_up(game: Any) -> int:
    """Let divers off, take in air and make the game faster; return the reward."""
    reward = 0
    if game.aboard == ABOARD:
        reward = gauge(game)
        game.aboard = 0
    game.is_up = 1
    game.air = AIR
    game.aboard -= 1
    if game.spawn_speed > 1 or game.move_speed > LEAST_MOVE_SPEED:
        if game.move_speed > LEAST_MOVE_SPEED and game.ramps % 2 == 1:
            game.move_speed -= 1
        if game.spawn_speed > 1:
            game.spawn_speed -= 1
        game.ramps += 1
    return reward


@rule
def gauge(game: Any) -> int:
    """Return how many cells the air gauge shows."""
    cells: int = max(0, game.air) * GAUGE // AIR
    return cells


@rule
def paint(game: Any, frame: Frame) -> None:
    """Mark what is visible in an empty frame."""
    mark(frame, game.x, game.y, 0)
    mark_if_inside(frame, game.x - game.heading, game.y, 1)
    for k in range(game.num_bullets):
        mark(frame, game.bullets[k, X], game.bullets[k, Y], 2)
    for k in range(game.num_enemy_bullets):
        mark(frame, game.enemy_bullets[k, X], game.enemy_bullets[k, Y], 4)
    paint_with_trail(game.fish, game.num_fish, frame, 5)
    paint_with_trail(game.submarines, game.num_submarines, frame, 6)
    for x in range(gauge(game)):
        mark(frame, x, 9, 7)
    for x in range(9 - game.aboard, 9):
        mark(frame, x, 9, 8)
    paint_with_trail(game.divers, game.num_divers, frame, 9)


@rule
def paint_with_trail(things: Things, count: int, frame: Frame, channel: int) -> None:
    """Mark things in their channel and the cells behind them in that of trails."""
    for k in range(count):
        mark(frame, things[k, X], things[k, Y], channel)
        mark_if_inside(frame, things[k, X] - things[k, HEADING], things[k, Y], 3)


@rule
def add(things: Things, count: int, x: int, y: int, heading: int, move_timer: int, shot_timer: int) -> int:
    """Append to a list; return its new length."""
    if count == len(things):
        raise RuntimeError("more things than a game of Seaquest can have")  # only from a state that was made up
    things[count, X], things[count, Y], things[count, HEADING] = x, y, heading
    things[count, MOVE_TIMER], things[count, SHOT_TIMER] = move_timer, shot_timer
    return count + 1


@rule
def remove(things: Things, count: int, k: int) -> int:
    """Take one out of a list, keep the order of the others; return its new length."""
    for i in range(k, count - 1):
        for column in range(5):
            things[i, column] = things[i + 1, column]
    for column in range(5):
        things[count - 1, column] = 0
    return count - 1


@rule
def clear(things: Things, count: int) -> int:
    """Empty a list; return its new length."""
    while count:
        count = remove(things, count, count - 1)
    return count


@rule
def find(things: Things, count: int, x: int, y: int) -> int:
    """Return the first in a cell, -1 if there is none."""
    for k in range(count):
        if things[k, X] == x and things[k, Y] == y:
            return k
    return -1


@rule
def has_opposite(enemies: Things, count: int, y: int, heading: int) -> bool:
    """Return whether one in this row goes the other way."""
    found = False
    for k in range(count):
        found = found or (enemies[k, Y] == y and enemies[k, HEADING] != heading)
    return found


@rule
def is_time(things: Things, k: int, interval: int) -> bool:
    """Count down the timer of one; return whether it is up, and begins anew."""
    if things[k, MOVE_TIMER] > 0:
        things[k, MOVE_TIMER] -= 1
        return False
    things[k, MOVE_TIMER] = interval
    return True


@rule
def advance(things: Things, k: int) -> tuple[int, int]:
    """Move one ahead; return where it is."""
    things[k, X] += things[k, HEADING]
    return things[k, X], things[k, Y]


@rule
def is_at_player(game: Any, things: Things, k: int) -> bool:
    """Return whether one is in the player's cell."""
    return bool(things[k, X] == game.x and things[k, Y] == game.y)


@rule
def is_outside(x: int) -> bool:
    """Return whether a column is beyond the edges."""
    return x < 0 or x > 9
