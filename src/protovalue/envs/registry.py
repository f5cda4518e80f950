"""Environments by name: `make("minatar/breakout", 16, sticky=0.0)`.

A name may come from a file that somebody else wrote, and `make` never imports what a name says: a Gymnasium
environment must have been registered before, a family of the user's loaded. `import_module_of` imports the module of
"gym/module:ID" and runs the file of "gym/path.py:ID" or "path.py/GAME". It is for what the user typed: on the command
line, or in a study file.
"""

import importlib.util
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from protovalue.envs.base import Env, Family
from protovalue.errors import UserError, unknown
from protovalue.options import options_of, resolve_options
from protovalue.registry import ENVIRONMENTS, env_file, env_name, is_file, name_of, run_once, split_env
from protovalue.user_code import known_file, raised_in

# Numbers may come from a file.
_MOST = {"stack": 1_024, "resize": 1_024, "frameskip": 1_000, "noop_max": 10_000, "max_steps": 10**9}
_FRAMES = (1 << 31) - 1  # what the emulator can count


def make(env_id: str, num_envs: int = 1, **options: Any) -> Env:
    """Make a vector of environments.

    Args:
        env_id: "minatar/GAME", "atari/Game" (CamelCase) or "gym/ID"; "gym/module:ID" and "gym/path.py:ID" are the ID
            that the module or the file, once imported, has registered; "FAMILY/GAME" or "path/to/FAMILY.py/GAME" is
            of a family of the user's that was loaded.
        num_envs: how many are stepped together.
        **options: what to change from the family's defaults.

    Raises:
        UserError: an unknown environment, an option that this family does not have, or a value outside its range.
    """
    if num_envs < 1:
        raise UserError(f"num_envs: found {num_envs}, expected 1 or more")
    family, name, game = _with_options(env_id, options)
    return family.make(name, game, num_envs)


def frame_shape(env_id: str, **options: Any) -> tuple[int, ...]:
    """Return the shape of a frame of an environment; it is refused where `make` refuses it."""
    family, name, game = _with_options(env_id, options)
    return family.frame_shape(name, game)


def _with_options(env_id: str, options: dict[str, Any]) -> tuple[Family, str, str]:
    """Return the family of an environment with these options, the environment's name and the game's."""
    resolved, name = resolve(env_id, **options), env_name(env_id)
    family: Family = _family(env_id)(**resolved)
    family.options = resolved
    kind, game = split_env(name)
    if family.games and game not in family.games:
        raise unknown("environment", name, [f"{kind}/{one}" for one in family.games])
    return family, name, game


def resolve(env_id: str, **options: Any) -> dict[str, Any]:
    """Return every option of an environment, as `make` would have them, without making it."""
    name = env_name(env_id)
    family = _family(env_id)
    resolved = resolve_options(family, options, f"option for {name}", f"environment {name}")
    _check(name, resolved)
    usual = options_of(family)
    return {key: value for key, value in resolved.items() if key not in family.if_given or value != usual[key][1]}


def import_module_of(env_id: str) -> None:
    """Import the module that "gym/module:ID" names, or run the file of "gym/path.py:ID" or "path.py/GAME".

    Only ever for what was typed.
    """
    family, name = split_env(env_id)
    if is_file(family):
        ENVIRONMENTS.load(family)
        return
    file = env_file(env_id)
    if file is not None:
        run_once(Path(file), "--env")
        return
    module, colon, _ = name.rpartition(":")
    if family != "gym" or not colon:
        return
    try:
        importlib.import_module(module)
    except (ImportError, ValueError) as error:  # ValueError: a name such as "" or ".x"
        what = " ".join(str(error).split())
        here = Path(f"{module.replace('.', '/')}.py")
        hint = f"; the file {here} is named so: gym/{here}:{name.rpartition(':')[2]}" if here.is_file() else ""
        raise UserError(f"environment {env_id!r}: cannot import the module {module!r}: {what}{hint}") from error
    except Exception as error:  # whatever its own code raises
        found = importlib.util.find_spec(module)
        if found is not None and found.origin is not None:
            known_file(Path(found.origin))
        raise raised_in(f"environment {env_id!r}: cannot import the module {module!r}", error) from error


def is_typed_only(env_id: str) -> bool:
    """Whether an environment is the user's own code, which is run only where its name is typed."""
    family, name = split_env(env_id)
    return is_file(family) or (family == "gym" and ":" in name)


def same(env_id: str, other: str) -> bool:
    """Whether two names are of the same environment, by whatever modules it was registered."""
    return _registered(env_id) == _registered(other)


def _registered(env_id: str) -> str:
    family, name = split_env(env_id)
    return f"gym/{name.rpartition(':')[2]}" if family == "gym" else env_name(env_id)


def _games_called(name: str, families: Sequence[str]) -> list[str]:
    """Return the environments whose game has that name, however it is written."""
    games = {f"{family}/{game}" for family in families for game in getattr(ENVIRONMENTS.find(family), "games", ())}
    plain = re.sub(r"\W|_", "", name.lower())
    return sorted(one for one in games if one.partition("/")[2].replace("_", "").lower() == plain)


def _family(env_id: str) -> type[Family]:
    """Find the family of an environment; runs nothing."""
    family, game = split_env(env_id)
    known = [*ENVIRONMENTS.names(), *sorted(one.name for one in ENVIRONMENTS.loaded.values())]
    if not game or name_of(family) not in known:
        expected = " or ".join(f"{family}/NAME" for family in known)
        hint = f"; {ENVIRONMENTS.how_to_load(name_of(family))}" if game else ""
        meant = "".join(f", such as {one}" for one in _games_called(env_id, known)) if not game else ""
        raise UserError(f"unknown environment {env_id!r}: expected {expected}{meant}{hint}")
    found: type[Family] = ENVIRONMENTS.find(family)
    for name in {"stack", "max_steps"} - options_of(found).keys():
        raise UserError(f"environment {env_id!r}: its family has no option {name}, expected stack and max_steps")
    return found


def _check(env_id: str, options: dict[str, Any]) -> None:
    """Refuse values outside their range."""
    for name, value in options.items():
        if value is None:
            continue
        if name == "sticky":
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
