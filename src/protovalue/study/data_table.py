"""The [data] table of a study file: data sets that are collected, imported or there already."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from protovalue.data.config import CollectConfig, ImportDqnReplayConfig, ImportMinariConfig, ImportRluConfig
from protovalue.data.dataset import open_dataset
from protovalue.errors import UserError, unknown
from protovalue.online.config import DqnConfig
from protovalue.registry import env_name
from protovalue.study.lines import Source
from protovalue.study.model import DQN, Data
from protovalue.study.settings import check_keys, check_names, settings

IMPORTS: dict[str, type[Any]] = {
    "rlu": ImportRluConfig,
    "dqn-replay": ImportDqnReplayConfig,
    "minari": ImportMinariConfig,
}
DATA_KINDS = ("collect", *IMPORTS, "folder")


def read_data(
    source: Source,
    values: Mapping[str, Any],
    environments: Mapping[str, Any],
    seeds: Sequence[int],
) -> Data:
    """Read where experience comes from; data sets that must be there already are opened."""
    table, path = dict(values["data"]), ["data"]
    kind = table.pop("kind", "collect")
    if kind not in DATA_KINDS:
        raise source.error(["data", "kind"], unknown("kind", str(kind), DATA_KINDS))
    if kind == "collect":
        policy = table.pop("policy", "random")
        if policy not in ("random", DQN):
            raise source.error(["data", "policy"], unknown("policy", str(policy), ("random", DQN)))
        if policy == DQN:
            checked = settings(source, path, table, DqnConfig, ["iterations"])
            check_names(source, path, checked)
            return Data(kind, checked, DQN)
        return Data(kind, settings(source, path, table, CollectConfig))
    key = "folder" if kind == "folder" else "source"
    found = table.pop(key, None)
    templates = tuple(found if isinstance(found, list) else [found])
    if not templates or not all(isinstance(one, str) for one in templates):
        raise source.error(["data", key], f"{key}: found {found!r}, expected text such as 'data/{{game}}'")
    for template in templates:
        check_template(source, ["data", key], template)
        if len(environments) > 1 and "{game}" not in "".join(templates):
            raise source.error(["data", key], f"{key}: found no {{game}}, expected it with several environments")
        if len(seeds) > 1 and "{seed}" not in "".join(templates):
            raise source.error(["data", key], f"{key}: found no {{seed}}, expected it with several data seeds")
    if kind == "folder":
        check_keys(source, path, table, ("kind", "folder"))
        return Data(kind, {}, "", templates, _checksums(source, templates, environments, seeds))
    return Data(kind, settings(source, path, table, IMPORTS[kind]), "", templates)


def check_template(source: Source, path: Sequence[str], template: str) -> None:
    """Refuse a placeholder that nothing is known for."""
    for name in re.findall(r"{(\w*)}", template):
        if name not in ("game", "seed"):
            raise source.error(path, unknown("placeholder", name, ("game", "seed")), template)


def fill(template: str, env: str, seed: int) -> str:
    """Fill in a template: {game} is the environment's name without its family."""
    return template.replace("{game}", env_name(env).partition("/")[2]).replace("{seed}", str(seed))


def _checksums(
    source: Source, templates: Sequence[str], environments: Mapping[str, Any], seeds: Sequence[int]
) -> dict[str, str]:
    """Open the data sets that must be there already."""
    found = {}
    for env in environments:
        for seed in seeds:
            for template in templates:
                folder = fill(template, env, seed)
                try:
                    data = open_dataset(Path(folder))
                except UserError as error:
                    raise source.error(["data", "folder"], error, template) from None
                if data.env_id != env_name(env):
                    message = f"{folder}: a data set of {data.env_id}, expected {env}"
                    raise source.error(["data", "folder"], message, template)
                found[folder] = data.checksum
    return found
