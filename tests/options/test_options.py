"""Every option of every command changes something or is refused by name.

The options are enumerated from the dataclasses that the flags are made of; each has its check in one of the tables
beside this file. An option without a check fails here, and so does a check without an option.
"""

import ast
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import gymnasium
import pytest

import protovalue
from protovalue.cli import COMMANDS, _load
from protovalue.envs.options import EnvOptions
from protovalue.errors import UserError
from protovalue.pretrain.methods import method_class, method_names
from protovalue.registry import ENVIRONMENTS
from tests.options import agents, data, environments, pretrain, rest, sharing
from tests.options.environments import ENVS, HAS, NAMES, VALUES, walk
from tests.options.world import Loud, World

CHECKS = {**data.CHECKS, **environments.CHECKS, **pretrain.CHECKS, **agents.CHECKS, **rest.CHECKS, **sharing.CHECKS}


def configs() -> Iterator[tuple[str, type[Any]]]:
    """Yield every command with its dataclass; `pvn pretrain` once for each method."""
    for name, command in COMMANDS.items():
        kind = _load(command.config)
        if isinstance(kind, type):
            yield name, kind
        else:
            yield from ((f"{name} --method {method}", method_class(method).Config) for method in method_names())


def options() -> list[tuple[str, str]]:
    """Return every option of every command; those of an environment one by one."""
    found = []
    for name, config in configs():
        hints = get_type_hints(config)
        for field in fields(config):
            inner = [f"{field.name}.{option.name}" for option in fields(EnvOptions)]
            found += [(name, one) for one in (inner if hints[field.name] is EnvOptions else [field.name])]
    return found


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    if "Loud-v0" not in gymnasium.registry:
        gymnasium.register("Loud-v0", Loud)  # type: ignore[arg-type]  # a class that takes no options
        gymnasium.register("Louder-v0", Loud)  # type: ignore[arg-type]  # a class that takes no options
    return World(tmp_path_factory.mktemp("options"))


@pytest.mark.parametrize(("command", "option"), options(), ids=lambda value: value.replace(" --method ", "-"))
def test_it_changes_something_or_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch, command: str, option: str
) -> None:
    assert (command, option) in CHECKS, f"pvn {command}: {option} has no check"
    world.patch = monkeypatch
    monkeypatch.setenv("PROTOVALUE_CACHE", str(world.root / "cache"))
    CHECKS[command, option](world)


def test_there_is_no_check_without_an_option() -> None:
    assert set(CHECKS) - set(options()) == set()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("family", ENVIRONMENTS.names())
def test_what_an_environment_s_option_does(world: World, family: str, name: str) -> None:
    """It changes what a fixed row of actions shows, or the family refuses it."""
    env_id, changed = ENVS[family], {name: VALUES[name]}
    if name not in HAS[family]:
        with pytest.raises(UserError, match=f"unknown option for {env_id} '{name}'"):
            make_one(env_id, changed)
        return
    if (family, name) == ("gym", "grey"):  # tests/envs/test_gym.py has frames with colours
        with pytest.raises(UserError, match="option grey: found uint8 frames of shape"):
            make_one(env_id, changed)
        return
    # It takes a while until a life is lost; everything else shows at once.
    steps = 400 if name == "episodic_life" else 60
    assert walk(env_id, steps, **changed) != walk(env_id, steps)


def make_one(env_id: str, changed: dict[str, Any]) -> None:
    protovalue.make(env_id, 1, **changed)


@pytest.mark.parametrize("path", sorted((Path(__file__).parents[2] / "benchmarks").glob("*.py")), ids=lambda p: p.stem)
def test_every_benchmark_has_a_quick_version(path: Path) -> None:
    """Each takes minutes, so what is checked is that its code asks."""
    (main,) = [
        node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef) and node.name == "main"
    ]
    assert [argument.arg for argument in main.args.args] == ["quick"]
    assert any(isinstance(node, ast.Name) and node.id == "quick" for node in ast.walk(main))
