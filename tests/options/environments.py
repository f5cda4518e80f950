"""The options of the environments: what each does in each family, and that every command hands it on."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from protovalue.envs.options import EnvOptions
from protovalue.envs.registry import make
from protovalue.files import read_json
from tests.documents import blocks
from tests.options.world import Check, Ran, World, made, recorded, refused

NAMES = [field.name for field in fields(EnvOptions) if field.name != "env_options"]
ENVS = {"minatar": "minatar/breakout", "gym": "gym/Loud-v0", "atari": "atari/SpaceInvaders"}
VALUES: dict[str, Any] = {
    "actions": "full",
    "sticky": 0.75,
    "stack": 2,
    "max_steps": 3,
    "frameskip": 2,
    "noop_max": 9,
    "episodic_life": True,
    "resize": 12,
    "grey": True,
}
HAS = {
    "minatar": {"actions", "sticky", "stack", "max_steps"},
    "gym": {"stack", "max_steps", "resize", "grey"},
    "atari": set(NAMES) - {"resize", "grey"},
}


def walk(env_id: str, steps: int, **options: Any) -> list[Any]:
    """All that a fixed row of actions shows."""
    env = make(env_id, 2, **options)
    seen: list[Any] = [env.num_actions, env.reset(seed=[3, 4])[0].tobytes()]
    rng = np.random.default_rng(0)
    for _ in range(steps):
        obs, rewards, terminated, truncated, _ = env.step(rng.integers(3, size=2))
        seen += [obs.tobytes(), rewards.tolist(), terminated.tolist(), truncated.tolist()]
    env.close()
    return seen


COMMANDS = {
    "collect": "collect ENV --steps 20 --num-envs 2 --out {out}",
    "import minari": "import minari {minari} --workers 1 --out {out}",
    "online": "online --encoder random:minatar:1 --env ENV --steps 25 --replay-min 20 --out {out}",
    "dqn": "dqn --architecture minatar --env ENV --steps 25 --replay-min 20 --out {out}",
}


def kept(command: str, ran: Ran) -> Any:
    """The options that the result says it was made with."""
    if command in ("online", "dqn"):
        return recorded(ran)["options"]
    return read_json(ran.out / "manifest.json")["env_options"]


def handed_on(command: str, name: str) -> Check:
    """The command's result has the option, where its environment does, or the command refuses it by name."""
    family = "gym" if command == "import minari" else "minatar"
    value, flag = VALUES[name], f"--{name.replace('_', '-')}"
    words = COMMANDS[command].replace("ENV", ENVS[family]) + (f" {flag}" if value is True else f" {flag} {value}")

    def check(world: World) -> None:
        if command == "import minari" and name in ("resize", "grey"):  # the data are as they are, and must fit
            refused(words, {"resize": "expected (12, 12) uint8", "grey": "option grey: found uint8 frames"}[name])(
                world
            )
        elif name in HAS[family]:
            assert kept(command, world.good(words))[name] == value
        else:
            refused(words, f"unknown option for {ENVS[family]} '{name}'")(world)

    return check


ROOMS = "docs/adding-an-environment.md"


@made("rooms")
def _rooms(world: World) -> Path:
    """The family of the document about adding one."""
    file: Path = world["out"].with_name("rooms.py")
    (code,) = [block.text for block in blocks(ROOMS) if block.language == "python"]
    file.write_text(code)
    return file


def own(command: str) -> Check:
    """The command's result has the option of a user's own family, and one that it does not have is refused by name."""
    if command == "import minari":
        words = COMMANDS[command]
        return refused(f"{words} --env-options wind=1", "unknown option for gym/Loud-v0 'wind'")
    words = COMMANDS[command].replace("ENV", "{rooms}/small")

    def check(world: World) -> None:
        found = kept(command, world.good(f"{words} --env-options wind=0.75"))
        assert found.get("env_options", found)["wind"] == 0.75
        refused(f"{words} --env-options win=1", "unknown option for rooms/small 'win': did you mean 'wind'?")(world)
        refused(f"{words} --env-options wind=x", "field wind: found 'x', expected a number")(world)
        refused(f"{words} --env-options stack=2", "--env-options: found stack, expected it as --stack")(world)

    return check


CHECKS: dict[tuple[str, str], Check] = {
    (command, f"options.{name}"): handed_on(command, name) for command in COMMANDS for name in NAMES
} | {(command, "options.env_options"): own(command) for command in COMMANDS}
