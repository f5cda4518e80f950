"""Values for the fields of the online agents that a user leaves unset."""

from dataclasses import replace
from typing import Any, TypeVar

from protovalue.config import require
from protovalue.online.config import AgentConfig

T = TypeVar("T", bound=AgentConfig)
Presets = dict[tuple[str, str], dict[str, Any]]


def resolve(config: T, presets: Presets) -> T:
    """Fill the fields left at None by preset and environment: "*" is every one, then its family, then itself.

    Fields that do not apply, such as the atoms of an agent without a distribution, stay None.
    """
    family = config.env.partition("/")[0]
    values: dict[str, Any] = {"batch_size": 32, "double": False}  # unless a preset says otherwise
    values |= {name: default for name, (applies, _, default) in config.dependent().items() if applies}
    for whom in ("*", family, config.env):
        values |= presets.get((config.preset, whom), {})
    given = config
    config = replace(config, **{name: value for name, value in values.items() if getattr(config, name) is None})
    if config.epsilon_start is None:  # without a schedule, exploration is the same from the first step to the last
        require(not given.epsilon_steps, "--epsilon-steps", given.epsilon_steps, "--epsilon-start with it")
        config = replace(config, epsilon_start=config.epsilon)
    return config
