"""What a study is refused for as a whole: settings that nothing uses, and values that no command takes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from protovalue.data.config import CollectConfig
from protovalue.evaluate.config import EvaluateConfig
from protovalue.online.config import DqnConfig, OnlineConfig
from protovalue.pretrain.methods import method_class
from protovalue.released.config import ImportEncoderConfig
from protovalue.study.data_table import IMPORTS
from protovalue.study.env_table import OWN, Given
from protovalue.study.lines import Source
from protovalue.study.model import DQN, RANDOM_KEEPS, RELEASED, MethodEntry, Seeds, Study
from protovalue.study.settings import build

PLACE = Path("folder")  # stands for folders while settings are checked


def refuse_unused(
    source: Source,
    values: Mapping[str, Any],
    methods: Sequence[MethodEntry],
    tasks: Sequence[int | None],
    seeds: Seeds,
) -> None:
    """Refuse settings that nothing in the study would use."""
    learned = [entry for entry in methods if entry.pretrains]
    released = [entry for entry in methods if entry.method == RELEASED]
    encoders = [(entry, count) for entry in learned for count in entry.grid(tasks)]
    given, end_to_end = values.get("seeds", {}), values.get(DQN, {})
    if not learned:
        for key in ("data", "widths", "tasks", "pretrain", *([] if released else ["online"])):
            if key in values:
                raise source.error([key], f"{key}: found with no method that pretrains, expected one, such as pvn")
        for key in ("data", "pair", *([] if released else ["pretraining"])):
            if key in given:
                what = f"{key}: found with no method that pretrains, expected one, such as pvn"
                raise source.error(["seeds", key], what)
        if "online" in given and "seeds" in end_to_end and not released:
            raise source.error(["seeds", "online"], "online: found with no method but dqn, whose seeds are in [dqn]")
    elif "data" not in values:
        raise source.error(["data"], "data: missing, expected a table [data] that says where experience comes from")
    for entry in released:
        if len(seeds.pretraining) > 1 and "{seed}" not in entry.source:
            what = "source: found no {seed}, expected it with several pretraining seeds"
            raise source.error(["methods", entry.name, "source"], what)
    _refuse_encoders(source, [*learned, *released], seeds)
    if DQN in values and all(entry.method != DQN for entry in methods):
        raise source.error([DQN], "dqn: found with no method dqn, expected [methods.dqn]")
    if "tasks" in values and not any(entry.has_tasks and "tasks" not in entry.settings for entry in learned):
        raise source.error(["tasks"], "tasks: found with no method that takes it, expected one, such as pvn")
    if "widths" in values and all("width" in entry.settings for entry in learned):
        raise source.error(["widths"], "widths: found with methods that all have their own width, expected one without")
    if "widths" in values and "width" in values.get("pretrain", {}):
        raise source.error(["pretrain", "width"], "width: found together with widths, expected one of them")
    if len(seeds.data) > 1 and learned and not any(entry.learns(count) for entry, count in encoders):
        what = f"data: found {given['data']} with no method that learns from data, expected one data set"
        raise source.error(["seeds", "data"], what)
    for key in values.get("pretrain", {}):
        takers = [entry for entry, count in encoders if key in RANDOM_KEEPS or not entry.untrained(count)]
        if all(key in entry.settings for entry in takers):
            raise source.error(["pretrain", key], f"{key}: found with no method that takes it from [pretrain]")


def _refuse_encoders(source: Source, methods: Sequence[MethodEntry], seeds: Seeds) -> None:
    """Refuse a method more encoders than there are, and encoders that no method has."""
    count = len(seeds.encoders(learns=True))
    for entry in methods:
        if entry.encoders is not None and entry.encoders > count:
            what = f"encoders: found {entry.encoders}, expected at most {count}, as many as [seeds] gives"
            raise source.error(["methods", entry.name, "encoders"], what)
    if methods and all((entry.encoders or count) < count for entry in methods):
        most = max(entry.encoders or 0 for entry in methods)
        what = f"seeds: found {count} encoders, expected {most}, the most that a method has"
        raise source.error(["seeds"], what)


def refuse_overridden(source: Source, values: Mapping[str, Any], given: Mapping[str, Given], collected: bool) -> None:
    """Refuse options in [env] that nothing plays with, because all that play have others."""
    tables = [table.get("env") for table in values["methods"].values()]
    used = set()
    for env, options in given.items():
        for table in [*tables, *([None] if collected else [])]:
            own = {**(table or {}), **(table or {}).get(env, {})}
            used |= {where for name, (_, where) in options.items() if name not in own}
    for key, value in values.get("env", {}).items():
        single = isinstance(value, dict) and key != OWN
        for path in [("env", key, name) for name in value] if single else [("env", key)]:
            if path not in used:
                what = f"{path[-1]}: found where all that play have their own, expected it in one place"
                raise source.error(path, what)


def check_configs(source: Source, study: Study) -> None:
    """Make every kind of config once, so that a value outside its range is found before anything runs."""
    given = {name: ["pretrain", name] for name in study.pretrain}
    for entry in study.methods:
        if entry.method == RELEASED:
            own = {**entry.settings, "out": PLACE, "source": "x"}
            build(source, {name: ["methods", entry.name, name] for name in own}, ImportEncoderConfig, own)
        if not entry.pretrains:
            continue
        paths: dict[str, Sequence[str]] = {**given, **{name: ["methods", entry.name, name] for name in entry.settings}}
        own = {**study.pretrain, **entry.settings, "out": PLACE, "method": entry.method}
        if entry.has_tasks and "tasks" not in entry.settings:
            for tasks in study.tasks:
                count = {"tasks": tasks} if tasks else {}
                build(source, {**paths, "tasks": ["tasks"]}, method_class(entry.method).Config, {**own, **count})
        else:
            build(source, paths, method_class(entry.method).Config, own)
    place: dict[str, Any] = {"env": next(iter(study.environments)), "out": PLACE}
    online = {name: ["online", name] for name in study.online}
    build(source, online, OnlineConfig, {**place, **study.online, "encoder": "folder"})
    build(source, {name: ["dqn", name] for name in study.dqn}, DqnConfig, {**place, **study.dqn})
    evaluate = {name: ["evaluate", name] for name in study.evaluate}
    build(source, evaluate, EvaluateConfig, {"run": PLACE, **study.evaluate})
    if study.data:
        paths = {name: ["data", name] for name in study.data.settings}
        if study.data.kind == "collect":
            config: type[Any] = DqnConfig if study.data.policy == DQN else CollectConfig
            recording = {"record": PLACE} if study.data.policy == DQN else {}
            build(source, paths, config, {**place, **recording, **study.data.settings})
        elif study.data.kind in IMPORTS:
            build(source, paths, IMPORTS[study.data.kind], {"out": PLACE, "source": ("x",), **study.data.settings})
