"""Environments by name: `make("minatar/breakout", 16, sticky=0.0)`.

A name may come from a file that somebody else wrote, and `make` never imports what a name says: a Gymnasium
environment must have been registered before. `import_module_of` imports the module of "gym/module:ID". It is for what
the user typed: on the command line, or in a study file.
"""

import importlib
from typing import Any

from protovalue.envs import atari, gym, minatar
from protovalue.envs.base import Env
from protovalue.envs.options import EnvOptions
from protovalue.errors import UserError, unknown
from protovalue.schema import checked

_FAMILIES = {
    "atari": (atari.make_atari, atari.DEFAULTS),
    "gym": (gym.make_gym, gym.DEFAULTS),
    "minatar": (minatar.make_minatar, minatar.DEFAULTS),
}


def make(env_id: str, num_envs: int = 1, **options: Any) -> Env:
    """Make a vector of environments.

    Args:
        env_id: "minatar/GAME", "atari/Game" (CamelCase) or "gym/ID"; "gym/module:ID" is the ID that `module`, once
            imported, has registered.
        num_envs: how many are stepped together.
        **options: what to change from the family's defaults; see `protovalue.envs.options.EnvOptions`.

    Raises:
        UserError: an unknown environment, an option that this family does not have, or a value outside its range.
    """
    resolved = resolve(env_id, **options)
    family, _, name = env_id.partition("/")
    return _FAMILIES[family][0](env_id, name, num_envs, resolved)


def resolve(env_id: str, **options: Any) -> dict[str, Any]:
    """Return every option of an environment, as `make` would have them, without making it."""
    family, _, name = env_id.partition("/")
    if family not in _FAMILIES or not name:
        known = " or ".join(f"{family}/NAME" for family in sorted(_FAMILIES))
        raise UserError(f"unknown environment {env_id!r}: expected {known}")
    defaults = _FAMILIES[family][1]
    for option in options:
        if option not in defaults:
            raise unknown(f"option for {env_id}", option, defaults)
    resolved = {**defaults, **options}
    _check(env_id, resolved, defaults)
    return resolved


def import_module_of(env_id: str) -> None:
    """Import the module that "gym/module:ID" names, as the user said; only ever for a name that the user gave."""
    family, _, name = env_id.partition("/")
    module, colon, _ = name.rpartition(":")
    if family != "gym" or not colon:
        return
    try:
        importlib.import_module(module)
    except (ImportError, ValueError) as error:  # ValueError: a name such as "" or ".x"
        what = " ".join(str(error).split())
        raise UserError(f"environment {env_id!r}: cannot import the module {module!r}: {what}") from error


def same(env_id: str, other: str) -> bool:
    """Whether two names are of the same environment, by whatever modules it was registered."""
    return _registered(env_id) == _registered(other)


def _registered(env_id: str) -> str:
    family, _, name = env_id.partition("/")
    return f"gym/{name.rpartition(':')[2]}" if family == "gym" else env_id


_MOST = {"stack": 1_024, "frameskip": 1_000, "noop_max": 10_000, "max_steps": 10**9}  # a number may come from a file
_FRAMES = (1 << 31) - 1  # what the emulator can count


def _check(env_id: str, options: dict[str, Any], defaults: dict[str, Any]) -> None:
    """Refuse values of another type, or outside their range."""
    checked(EnvOptions, options, f"environment {env_id}")
    for name, value in options.items():
        if value is None:
            good, expected = defaults[name] is None, "a value"
        elif name == "sticky":
            good, expected = 0 <= value < 1, "a probability below 1"
        elif name in _MOST:
            least = 0 if name == "noop_max" else 1
            good, expected = least <= value <= _MOST[name], f"{least} or more, at most {_MOST[name]:,}"
        else:
            continue
        if not good:
            raise UserError(f"{env_id}: option {name}: found {value}, expected {expected}")
    frames = options.get("frameskip", 1) * (options["max_steps"] or 1)
    if frames > _FRAMES:
        raise UserError(
            f"{env_id}: option max_steps: found {frames:,} frames with frameskip, expected at most {_FRAMES:,}"
        )
