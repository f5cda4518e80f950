"""The environments of a study file, and their options: of all, of single ones, and of a method's agents."""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from protovalue.envs.options import EnvOptions
from protovalue.envs.registry import frame_shape, import_module_of, resolve
from protovalue.errors import UserError, unknown
from protovalue.registry import env_name
from protovalue.study.lines import Source
from protovalue.study.model import Variant
from protovalue.study.settings import settings

OWN = "env_options"  # the key of an env table with the options of a user's own environment
Given = Mapping[str, tuple[Any, tuple[str, ...]]]
"""Options of an environment that the file sets: the value, and where it stands."""


def read_names(source: Source, values: Mapping[str, Any]) -> list[str]:
    """Read the names of the environments."""
    found = values.get("environments")
    if not isinstance(found, list) or not found:
        shown = "none" if found is None else repr(found)
        text = f"environments: found {shown}, expected a list of at least one, such as minatar/breakout"
        raise source.error(["environments"], text)
    for env in found:
        if not isinstance(env, str):
            raise source.error(["environments"], f"environments: found {env!r}, expected text", env)
        if [env_name(other) for other in found if isinstance(other, str)].count(env_name(env)) > 1:
            raise source.error(["environments"], f"environments: found {env} twice, expected each once", env)
    return found


def read_options(source: Source, path: Sequence[str], table: Any, names: Sequence[str]) -> dict[str, Given]:
    """Read an env table: options of all environments, and in tables of their names those of single ones."""
    if not isinstance(table, dict):
        raise source.error(path, f"{path[-1]}: found {table!r}, expected a table: [{'.'.join(path)}]")
    single = {key: value for key, value in table.items() if isinstance(value, dict) and key != OWN}
    for key in single:
        if key not in names:
            raise source.error([*path, key], unknown("environment", key, names))

    def read(path: Sequence[str], table: Mapping[str, Any]) -> Given:
        checked = settings(source, path, table, EnvOptions)
        return {name: (value, (*path, name)) for name, value in checked.items()}

    shared = read(path, {key: value for key, value in table.items() if key not in single})
    return {env: {**shared, **read([*path, env], single.get(env, {}))} for env in names}


def read_variant(source: Source, env: str, given: Given) -> Variant:
    """Fill in an environment's options; what it refuses is an error at the option's line, or at the environment's."""
    options = EnvOptions(**{name: value for name, (value, _) in given.items()})
    try:
        _check_name(env)
        return Variant(options, resolve(env, **options.given()), _frame(env, json.dumps(options.given())))
    except UserError as error:
        said = str(error)  # the name in quotes is not known, the other has a value outside its range
        wrong = next((name for name in given if f"'{name}'" in said or f"option {name}:" in said), None)
        if wrong is None and any(f"'{name}'" in said or f"field {name}:" in said for name in options.env_options or ()):
            wrong = OWN
        where = given[wrong][1] if wrong else ["environments"]
        raise source.error(where, error, None if wrong else env) from None


@cache
def _check_name(env: str) -> None:
    """Refuse an environment that is not there, by making it, once."""
    import_module_of(env)
    _frame(env, "{}")


@cache
def _frame(env: str, options: str) -> tuple[int, ...]:
    """Return the shape of an environment's frames, by making it, once for its options."""
    return frame_shape(env, **json.loads(options))


def own_environments(
    source: Source, path: Sequence[str], table: Mapping[str, Any], given: Mapping[str, Given]
) -> dict[str, Variant]:
    """Read what a method's agents play in, where its table says so: its own options over those of all."""
    if "env" not in table:
        return {}
    own = read_options(source, [*path, "env"], table["env"], list(given))
    for options in own.values():
        if "stack" in options:  # an encoder sees what its data have, and a report shows all methods the same states
            what = f"stack: found in [{'.'.join(path)}.env], expected it in [env], as all methods see the same frames"
            raise source.error(options["stack"][1], what)
    return {env: read_variant(source, env, {**given[env], **options}) for env, options in own.items()}
