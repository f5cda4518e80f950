"""Study files: TOML to a checked `Study`, where whatever is wrong is said with its line before anything runs."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from protovalue.errors import UserError, unknown
from protovalue.evaluate.config import EvaluateConfig
from protovalue.online.config import DqnConfig, OnlineConfig
from protovalue.pretrain.config import PretrainConfig
from protovalue.study.checking import check_configs, refuse_overridden, refuse_unused
from protovalue.study.data_table import read_data
from protovalue.study.env_table import read_names, read_options, read_variant
from protovalue.study.lines import Source
from protovalue.study.method_tables import read_methods
from protovalue.study.model import DQN, MethodEntry, Seeds, Study
from protovalue.study.resources import read_resources, refuse_unused_resources
from protovalue.study.settings import check_keys, check_names, settings
from protovalue.study.values import NAME, NAME_TEXT, read_numbers, read_seeds, read_text, read_widths

NORMALISE = ("human", "dqn", "none")
TABLES = ("env", "data", "methods", "seeds", "pretrain", "online", "dqn", "evaluate", "resources")
KEYS = ("name", "title", "environments", "widths", "tasks", "threads", "normalise", *TABLES)


def load_study(path: Path) -> Study:
    """Read a study file and check all of it."""
    if path.is_dir():
        raise UserError(f"{path}: found a folder, expected a study file")
    if not path.is_file():
        raise UserError(f"{path}: found no such file, expected a study file")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise UserError(f"{path}: not text in UTF-8, expected a study file") from None
    return parse_study(Source(str(path), text), path.stem)


def parse_study(source: Source, stem: str) -> Study:
    """Check the values of a study file; `stem` is its name where it gives none."""
    values = source.values
    check_keys(source, (), values, KEYS)
    for name in TABLES:
        if not isinstance(values.get(name, {}), dict):
            raise source.error([name], f"{name}: found {values[name]!r}, expected a table: [{name}]")
    name = read_text(source, (), values, "name", stem)
    if not re.fullmatch(NAME, name):
        raise source.error(["name"], f"name: found {name!r}, expected {NAME_TEXT}, as it names a folder")
    given = read_options(source, ["env"], values.get("env", {}), read_names(source, values))
    environments = {env: read_variant(source, env, own) for env, own in given.items()}
    pretrain = settings(source, ["pretrain"], values.get("pretrain", {}), PretrainConfig)
    check_names(source, ["pretrain"], pretrain)
    check_names(source, [DQN], values.get(DQN, {}))
    methods = read_methods(source, values, given, pretrain)
    widths, tasks = read_widths(source, values, "widths"), read_numbers(source, values, "tasks", 0)
    seeds = _seeds(source, values)
    refuse_unused(source, values, methods, tasks, seeds)
    pretrains = any(entry.pretrains for entry in methods)
    study = Study(
        name=name,
        title=read_text(source, (), values, "title", name),
        text=source.text,
        environments=environments,
        methods=methods,
        data=read_data(source, values, environments, seeds.data) if pretrains else None,
        widths=widths,
        tasks=tasks,
        seeds=seeds,
        threads=read_numbers(source, {"threads": [values.get("threads", 1)]}, "threads", 1)[0] or 1,
        normalise=_normalise(source, values, environments, methods),
        pretrain=pretrain,
        online=settings(source, ["online"], values.get("online", {}), OnlineConfig),
        dqn=settings(source, ["dqn"], {k: v for k, v in values.get("dqn", {}).items() if k != "seeds"}, DqnConfig),
        evaluate=settings(source, ["evaluate"], values.get("evaluate", {}), EvaluateConfig),
        resources=read_resources(source, values),
    )
    check_configs(source, study)
    refuse_unused_resources(source, study)
    refuse_overridden(source, values, given, collected=study.data is not None and study.data.kind == "collect")
    return study


def _seeds(source: Source, values: Mapping[str, Any]) -> Seeds:
    table = values.get("seeds", {})
    check_keys(source, ["seeds"], table, ("data", "pretraining", "online", "pair"))
    found = {name: read_seeds(source, ["seeds", name], table[name]) for name in table if name != "pair"}
    dqn, pair = values.get(DQN, {}), table.get("pair", False)
    own = read_seeds(source, [DQN, "seeds"], dqn["seeds"]) if "seeds" in dqn else found.get("online", (0,))
    if not isinstance(pair, bool):
        raise source.error(["seeds", "pair"], f"pair: found {pair!r}, expected true or false")
    seeds = Seeds(**found, dqn=own, pair=pair)
    if pair and len(seeds.data) != len(seeds.pretraining):
        count = f"{len(seeds.data)} for data and {len(seeds.pretraining)} for pretraining"
        raise source.error(["seeds", "pair"], f"pair: found seeds, {count}, expected as many of both")
    return seeds


def _normalise(
    source: Source, values: Mapping[str, Any], environments: Mapping[str, Any], methods: Sequence[MethodEntry]
) -> str:
    found = values.get("normalise", "none")
    if found not in NORMALISE:
        raise source.error(["normalise"], unknown("normalise", str(found), NORMALISE))
    if found == DQN and all(entry.method != DQN for entry in methods):
        raise source.error(["normalise"], "normalise: found dqn with no method dqn, expected [methods.dqn]")
    other = [env for env in environments if not env.startswith("atari/")]
    if found == "human" and other:
        raise source.error(["normalise"], f"normalise: found human with {other[0]}, expected Atari games only")
    return str(found)
