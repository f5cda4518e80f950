"""Study files: TOML to a checked `Study`. Whatever is wrong is said with its line before anything runs."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from protovalue.config import TRAINING, marked
from protovalue.data.config import CollectConfig, ImportDqnReplayConfig, ImportMinariConfig, ImportRluConfig
from protovalue.data.dataset import open_dataset
from protovalue.envs.options import EnvOptions
from protovalue.envs.registry import import_module_of, make, resolve
from protovalue.errors import UserError, unknown
from protovalue.evaluate.config import EvaluateConfig
from protovalue.online.config import DqnConfig, OnlineConfig
from protovalue.pretrain.config import PretrainConfig
from protovalue.pretrain.methods import method_class, method_names
from protovalue.pretrain.random import RandomConfig
from protovalue.registry import ENCODERS, INDICATORS, Registry, checksum, env_name, is_file
from protovalue.study.lines import Source
from protovalue.study.settings import build, check_keys, field_names, settings

DQN, RANDOM = "dqn", "random"
NORMALISE = ("human", "dqn", "none")
IMPORTS: dict[str, type[Any]] = {
    "rlu": ImportRluConfig,
    "dqn-replay": ImportDqnReplayConfig,
    "minari": ImportMinariConfig,
}
DATA_KINDS = ("collect", *IMPORTS, "folder")
METHOD_KEYS = ("method", "title", "env")  # of a method's table, beside its settings
RANDOM_KEEPS = field_names(RandomConfig) - marked(RandomConfig, TRAINING)  # all that it depends on
OWN = "env_options"  # the key of an env table with the options of a user's own environment
NAME, NAME_TEXT = r"[A-Za-z0-9][A-Za-z0-9._-]*", "letters, digits and -._, with a letter or digit first"
PLACE = Path("folder")  # stands for folders while settings are checked


@dataclass(frozen=True)
class Seeds:
    """Data x pretraining x online, or pairs of data and pretraining x online."""

    data: tuple[int, ...] = (0,)
    pretraining: tuple[int, ...] = (0,)
    online: tuple[int, ...] = (0,)
    """Of the first encoder's agents."""
    dqn: tuple[int, ...] = (0,)
    pair: bool = False
    """Whether encoder i learns from data set i alone, in place of one from every data set."""

    def encoders(self, learns: bool) -> list[tuple[int, int]]:
        """Return the data seed and the pretraining seed of every encoder of a method.

        An encoder that does not learn from data is there once, not once per data set.
        """
        if self.pair:
            return list(zip(self.data, self.pretraining, strict=True))
        return list(product(self.data if learns else self.data[:1], self.pretraining))

    def agents(self, encoder: int) -> tuple[int, ...]:
        """Return the seeds of the agents on an encoder, by its number: no two encoders of a method share one."""
        return tuple(encoder * (max(self.online) + 1) + seed for seed in self.online)


@dataclass(frozen=True)
class Variant:
    """An environment as it is played."""

    options: EnvOptions
    """Those that the file sets."""
    resolved: Mapping[str, Any]
    """All of them, with their values."""


@dataclass(frozen=True)
class Data:
    """Where experience comes from."""

    kind: str
    """collect, rlu, dqn-replay, minari or folder."""
    settings: Mapping[str, Any]
    """Of the command that makes the data set."""
    policy: str = "random"
    """Who acts (collect only)."""
    source: tuple[str, ...] = ()
    """Templates of what is imported, or of the folders; {game} and {seed} are filled in."""
    checksums: Mapping[str, str] = field(default_factory=dict)
    """Of the data sets that were there already, by folder."""


@dataclass(frozen=True)
class MethodEntry:
    """A method with what is special about it in this study."""

    name: str
    """Its name in the file."""
    title: str
    method: str
    """Its name on the command line."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    code: str = ""
    """Checksum of a user's own code, if there is some."""
    environments: Mapping[str, Variant] = field(default_factory=dict)
    """What its agents play in; empty where it is what all play in."""

    @property
    def has_tasks(self) -> bool:
        """Whether it has a number of tasks."""
        return self.method != DQN and "tasks" in {one.name for one in fields(method_class(self.method).Config)}

    def grid(self, tasks: Sequence[int | None]) -> Sequence[int | None]:
        """Return the part of the study's axis of tasks that it takes; None is its own number or none at all."""
        return tasks if self.has_tasks and "tasks" not in self.settings else (None,)

    def untrained(self, tasks: int | None) -> bool:
        """Whether it is the random initialisation, as everything without tasks is."""
        return self.method == RANDOM or tasks == 0 or self.settings.get("tasks") == 0

    def learns(self, tasks: int | None) -> bool:
        """Whether its encoder depends on the data."""
        return self.method != DQN and not self.untrained(tasks) and method_class(self.method).needs_data


@dataclass(frozen=True)
class Study:
    """A study file, checked."""

    name: str
    title: str
    text: str
    environments: Mapping[str, Variant]
    """As data are collected in, and as methods play that say nothing else."""
    methods: tuple[MethodEntry, ...]
    data: Data | None
    widths: tuple[int | None, ...]
    """None is the preset's."""
    tasks: tuple[int | None, ...]
    seeds: Seeds
    threads: int
    normalise: str
    pretrain: Mapping[str, Any]
    online: Mapping[str, Any]
    dqn: Mapping[str, Any]
    evaluate: Mapping[str, Any]

    def variant(self, env: str, entry: MethodEntry) -> Variant:
        """Return the environment as the agents of a method play it."""
        return entry.environments.get(env, self.environments[env])


TABLES = ("env", "data", "methods", "seeds", "pretrain", "online", "dqn", "evaluate")
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
    name = _text(source, (), values, "name", stem)
    if not re.fullmatch(NAME, name):
        raise source.error(["name"], f"name: found {name!r}, expected {NAME_TEXT}, as it names a folder")
    given = _given(source, ["env"], values.get("env", {}), _names(source, values))
    environments = {env: _variant(source, env, own) for env, own in given.items()}
    pretrain = settings(source, ["pretrain"], values.get("pretrain", {}), PretrainConfig)
    _check_names(source, ["pretrain"], pretrain)
    _check_names(source, [DQN], values.get(DQN, {}))
    methods = _methods(source, values, given, pretrain)
    widths, tasks = _numbers(source, values, "widths", 1), _numbers(source, values, "tasks", 0)
    seeds = _seeds(source, values)
    _refuse_unused(source, values, methods, tasks, seeds)
    pretrains = any(entry.method != DQN for entry in methods)
    study = Study(
        name=name,
        title=_text(source, (), values, "title", name),
        text=source.text,
        environments=environments,
        methods=methods,
        data=_data(source, values, environments, seeds.data) if pretrains else None,
        widths=widths,
        tasks=tasks,
        seeds=seeds,
        threads=_numbers(source, {"threads": [values.get("threads", 1)]}, "threads", 1)[0] or 1,
        normalise=_normalise(source, values, environments, methods),
        pretrain=pretrain,
        online=settings(source, ["online"], values.get("online", {}), OnlineConfig),
        dqn=settings(source, ["dqn"], {k: v for k, v in values.get("dqn", {}).items() if k != "seeds"}, DqnConfig),
        evaluate=settings(source, ["evaluate"], values.get("evaluate", {}), EvaluateConfig),
    )
    _check_configs(source, study)
    _refuse_overridden(source, values, given, collected=study.data is not None and study.data.kind == "collect")
    return study


def _text(source: Source, path: Sequence[str], values: Mapping[str, Any], key: str, default: str) -> str:
    found = values.get(key, default)
    if not isinstance(found, str) or not found:
        raise source.error([*path, key], f"{key}: found {found!r}, expected text")
    return found


def _names(source: Source, values: Mapping[str, Any]) -> list[str]:
    """Read the names of the environments."""
    found = values.get("environments")
    if not isinstance(found, list) or not found:
        raise source.error(
            ["environments"],
            f"environments: found {found!r}, expected a list of at least one, such as minatar/breakout",
        )
    for env in found:
        if not isinstance(env, str):
            raise source.error(["environments"], f"environments: found {env!r}, expected text", env)
        if [env_name(other) for other in found if isinstance(other, str)].count(env_name(env)) > 1:
            raise source.error(["environments"], f"environments: found {env} twice, expected each once", env)
    return found


Given = Mapping[str, tuple[Any, tuple[str, ...]]]
"""Options of an environment that the file sets: the value, and where it stands."""


def _given(source: Source, path: Sequence[str], table: Any, names: Sequence[str]) -> dict[str, Given]:
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


def _variant(source: Source, env: str, given: Given) -> Variant:
    """Fill in an environment's options; what it refuses is an error at the option's line, or at the environment's."""
    options = EnvOptions(**{name: value for name, (value, _) in given.items()})
    try:
        _check_name(env)
        return Variant(options, resolve(env, **options.given()))
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
    make(env).close()


def _methods(
    source: Source, values: Mapping[str, Any], given: Mapping[str, Given], shared: Mapping[str, Any]
) -> tuple[MethodEntry, ...]:
    tables = values.get("methods", {})
    if not tables:
        raise source.error(["methods"], "methods: found none, expected at least one table such as [methods.pvn]")
    entries = []
    for name, table in tables.items():
        path = ["methods", name]
        if not isinstance(table, dict):
            raise source.error(path, f"{name}: found {table!r}, expected a table: [methods.{name}]")
        if not re.fullmatch(NAME, name):
            raise source.error(path, f"methods: found {name!r}, expected {NAME_TEXT}")
        method = _text(source, path, table, "method", name)
        title = _text(source, path, table, "title", name)
        own = {key: value for key, value in table.items() if key not in METHOD_KEYS}
        environments = _own_environments(source, path, table, given)
        if method == DQN:
            for key in own:
                raise source.error([*path, key], f"{key}: found in [methods.{name}], expected it in [dqn]")
            entries.append(MethodEntry(name, title, method, environments=environments))
            continue
        try:
            config = method_class(method).Config
        except UserError as error:
            better = error if is_file(method) else unknown("method", method, [*method_names(), DQN])
            raise source.error([*path, "method"], better) from None
        known = RANDOM_KEEPS if method == RANDOM else field_names(config)
        check_keys(source, path, own, known.union(METHOD_KEYS))
        checked = settings(source, path, own, config)
        _check_names(source, path, checked)
        code = checksum([method, checked.get("indicator"), checked.get("architecture", shared.get("architecture"))])
        entries.append(MethodEntry(name, title, method, checked, code, environments))
    ends = [entry for entry in entries if entry.method == DQN]
    if len(ends) > 1:
        raise source.error(["methods", ends[1].name], "methods: found dqn twice, expected one: [dqn] has its settings")
    for key, what in (("title", lambda entry: entry.title), ("settings", _identity)):
        seen: dict[Any, str] = {}
        for entry in entries:
            other = seen.setdefault(what(entry), entry.name)
            if other != entry.name:
                raise source.error(
                    ["methods", entry.name], f"methods: {entry.name} has the same {key} as {other}, expected another"
                )
    return tuple(entries)


def _own_environments(
    source: Source, path: Sequence[str], table: Mapping[str, Any], given: Mapping[str, Given]
) -> dict[str, Variant]:
    """Read what a method's agents play in, where its table says so: its own options over those of all."""
    if "env" not in table:
        return {}
    own = _given(source, [*path, "env"], table["env"], list(given))
    for options in own.values():
        if "stack" in options:  # an encoder sees what its data have, and a report shows all methods the same states
            what = f"stack: found in [{'.'.join(path)}.env], expected it in [env], as all methods see the same frames"
            raise source.error(options["stack"][1], what)
    return {env: _variant(source, env, {**given[env], **options}) for env, options in own.items()}


def _refuse_overridden(source: Source, values: Mapping[str, Any], given: Mapping[str, Given], collected: bool) -> None:
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


NAMED: Mapping[str, Registry] = {"architecture": ENCODERS, "indicator": INDICATORS}
"""Settings whose values are names in a registry, or the user's files."""


def _check_names(source: Source, path: Sequence[str], table: Mapping[str, Any]) -> None:
    """Look up what a table's settings name, in this package or in the user's files."""
    for key, registry in NAMED.items():
        if key in table:
            try:
                registry.load(table[key])
            except UserError as error:
                raise source.error([*path, key], error) from None


def _identity(entry: MethodEntry) -> tuple[Any, ...]:
    played = sorted((env, sorted(variant.resolved.items())) for env, variant in entry.environments.items())
    return (entry.method, repr(sorted(entry.settings.items(), key=lambda item: item[0])), repr(played))


def _refuse_unused(
    source: Source,
    values: Mapping[str, Any],
    methods: Sequence[MethodEntry],
    tasks: Sequence[int | None],
    seeds: Seeds,
) -> None:
    """Refuse settings that nothing in the study would use."""
    learned = [entry for entry in methods if entry.method != DQN]
    encoders = [(entry, count) for entry in learned for count in entry.grid(tasks)]
    given, end_to_end = values.get("seeds", {}), values.get(DQN, {})
    if not learned:
        for key in ("data", "widths", "tasks", "pretrain", "online"):
            if key in values:
                raise source.error([key], f"{key}: found with no method that pretrains, expected one, such as pvn")
        for key in ("data", "pretraining", "pair"):
            if key in given:
                what = f"{key}: found with no method that pretrains, expected one, such as pvn"
                raise source.error(["seeds", key], what)
        if "online" in given and "seeds" in end_to_end:
            raise source.error(["seeds", "online"], "online: found with no method but dqn, whose seeds are in [dqn]")
    elif "data" not in values:
        raise source.error(["data"], "data: missing, expected a table [data] that says where experience comes from")
    if DQN in values and len(learned) == len(methods):
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


def _numbers(source: Source, values: Mapping[str, Any], key: str, least: int) -> tuple[int | None, ...]:
    """Read one axis of the grid; an axis that is not there has the preset's value."""
    if key not in values:
        return (None,)
    found = values[key]
    if not isinstance(found, list) or not found:
        raise source.error([key], f"{key}: found {found!r}, expected a list of at least one number")
    for number in found:
        if not isinstance(number, int) or isinstance(number, bool) or number < least:
            raise source.error([key], f"{key}: found {number!r}, expected whole numbers from {least} on", number)
        if found.count(number) > 1:
            raise source.error([key], f"{key}: found {number} twice, expected each once", number)
    return tuple(found)


def _seeds(source: Source, values: Mapping[str, Any]) -> Seeds:
    table = values.get("seeds", {})
    check_keys(source, ["seeds"], table, ("data", "pretraining", "online", "pair"))
    found = {name: _seed_list(source, ["seeds", name], table[name]) for name in table if name != "pair"}
    dqn, pair = values.get(DQN, {}), table.get("pair", False)
    own = _seed_list(source, [DQN, "seeds"], dqn["seeds"]) if "seeds" in dqn else found.get("online", (0,))
    if not isinstance(pair, bool):
        raise source.error(["seeds", "pair"], f"pair: found {pair!r}, expected true or false")
    seeds = Seeds(**found, dqn=own, pair=pair)
    if pair and len(seeds.data) != len(seeds.pretraining):
        count = f"{len(seeds.data)} for data and {len(seeds.pretraining)} for pretraining"
        raise source.error(["seeds", "pair"], f"pair: found seeds, {count}, expected as many of both")
    return seeds


def _seed_list(source: Source, path: Sequence[str], found: Any) -> tuple[int, ...]:
    """Read seeds: a list of them, or how many, counted from 0."""
    number = isinstance(found, int) and not isinstance(found, bool)
    seeds = list(range(found)) if number else found
    good = isinstance(seeds, list) and all(isinstance(s, int) and not isinstance(s, bool) and s >= 0 for s in seeds)
    if not good or not seeds:
        raise source.error(path, f"{path[-1]}: found {found!r}, expected how many seeds, or a list such as [0, 1, 2]")
    if len(set(seeds)) < len(seeds):
        raise source.error(path, f"{path[-1]}: found {found!r}, expected each seed once")
    return tuple(seeds)


def _data(
    source: Source,
    values: Mapping[str, Any],
    environments: Mapping[str, Any],
    seeds: Sequence[int],
) -> Data:
    table, path = dict(values["data"]), ["data"]
    kind = table.pop("kind", "collect")
    if kind not in DATA_KINDS:
        raise source.error(["data", "kind"], unknown("kind", str(kind), DATA_KINDS))
    if kind == "collect":
        policy = table.pop("policy", "random")
        if policy not in ("random", DQN):
            raise source.error(["data", "policy"], unknown("policy", str(policy), ("random", DQN)))
        if policy == DQN:
            checked = settings(source, path, table, DqnConfig, ["stages"])
            _check_names(source, path, checked)
            return Data(kind, checked, DQN)
        return Data(kind, settings(source, path, table, CollectConfig))
    key = "folder" if kind == "folder" else "source"
    found = table.pop(key, None)
    templates = tuple(found if isinstance(found, list) else [found])
    if not templates or not all(isinstance(one, str) for one in templates):
        raise source.error(["data", key], f"{key}: found {found!r}, expected text such as 'data/{{game}}'")
    for template in templates:
        for name in re.findall(r"{(\w*)}", template):
            if name not in ("game", "seed"):
                raise source.error(["data", key], unknown("placeholder", name, ("game", "seed")), template)
        if len(environments) > 1 and "{game}" not in "".join(templates):
            raise source.error(["data", key], f"{key}: found no {{game}}, expected it with several environments")
        if len(seeds) > 1 and "{seed}" not in "".join(templates):
            raise source.error(["data", key], f"{key}: found no {{seed}}, expected it with several data seeds")
    if kind == "folder":
        check_keys(source, path, table, ("kind", "folder"))
        return Data(kind, {}, "", templates, _checksums(source, templates, environments, seeds))
    return Data(kind, settings(source, path, table, IMPORTS[kind]), "", templates)


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


def _check_configs(source: Source, study: Study) -> None:
    """Make every kind of config once, so that a value outside its range is found before anything runs."""
    given = {name: ["pretrain", name] for name in study.pretrain}
    for entry in study.methods:
        if entry.method == DQN:
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
