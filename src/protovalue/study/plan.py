"""From a study to its stages: pure, and each stage an ordinary pvn command in a folder named by its content."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from protovalue.config import Settings, names_where, not_given, whole
from protovalue.data.config import CollectConfig
from protovalue.envs.registry import is_typed_only
from protovalue.errors import UserError
from protovalue.evaluate.config import EvaluateConfig
from protovalue.online.config import AgentConfig, DqnConfig, OnlineConfig
from protovalue.presets import resolved
from protovalue.pretrain.config import PretrainConfig
from protovalue.pretrain.methods import method_class
from protovalue.registry import checksum, env_file, env_name, is_file
from protovalue.released.config import ARCHITECTURE as RELEASED_ARCHITECTURE
from protovalue.released.config import ImportEncoderConfig
from protovalue.runs import config_fields
from protovalue.study.data_table import IMPORTS, fill
from protovalue.study.folder import Cell
from protovalue.study.model import DQN, RANDOM, RANDOM_KEEPS, RELEASED, MethodEntry, Study, Variant
from protovalue.study.settings import words

A = TypeVar("A", bound=AgentConfig)

DIGITS = 8  # hex digits of a content address: 46 games x 1,000 stages collide with a probability below one in a million
SEED_NAMES = ("indicator_seed", "cumulant_seed")  # of the tasks, where it is not that of the encoder


@dataclass(frozen=True)
class Stage:
    """One command of a study, what it waits for, and how to see that it is done."""

    id: str
    kind: str
    """collect, import, encoder (imported), pretrain, online, dqn, evaluate or random-policy."""
    folder: str
    """Relative to the study's folder."""
    command: tuple[str, ...]
    needs: tuple[str, ...] = ()
    expect: Mapping[str, Any] = field(default_factory=dict)
    """What its result must hold to be complete."""
    fresh: bool = False
    """Whether it starts over after an interruption, because going on would give another result."""
    rate: str = ""
    """Stages with the same rate take the same time per unit of work."""
    units: float = 0.0
    before: Mapping[str, float] = field(default_factory=dict)
    """What it computes before it learns: units of work by their rates."""
    env: str = ""
    used: Settings | None = None
    """Its settings, with the values of the preset; for what it will cost on a device that is not here."""

    def fields(self) -> dict[str, Any]:
        """Return what study.json says of it."""
        return {
            "id": self.id,
            "kind": self.kind,
            "folder": self.folder,
            "needs": list(self.needs),
            "command": list(self.command),
            "expect": dict(self.expect),
        }


@dataclass(frozen=True)
class Plan:
    """All stages, each once, in an order in which they could run; and what the report reads."""

    stages: tuple[Stage, ...]
    cells: tuple[Cell, ...]
    random_policy: Mapping[str, str]

    def fields(self, study: Study) -> dict[str, Any]:
        """Return what study.json says."""
        return {
            "name": study.name,
            "title": study.title,
            "file": study.text,
            "normalise": study.normalise,
            "methods": {entry.name: {"title": entry.title} for entry in study.methods},
            "random_policy": dict(self.random_policy),
            "cells": [config_fields(cell) for cell in self.cells],
            "stages": [stage.fields() for stage in self.stages],
        }


def plan(study: Study, root: Path) -> Plan:
    """Lay out a study whose folder is `root`. Nothing is read or written."""
    return _Planner(study, root).plan()


def address(kind: str, content: Mapping[str, Any], parents: Iterable[str] = ()) -> str:
    """Return the digits of SHA-256 over a stage's resolved settings and the addresses of what it needs."""
    text = json.dumps([kind, content, sorted(parents)], sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def seed_text(seeds: Sequence[int]) -> str:
    """Write seeds as --seeds takes them: 0-2, or 0,3,5."""
    row = list(range(seeds[0], seeds[0] + len(seeds)))
    return ",".join(map(str, seeds)) if list(seeds) != row or len(seeds) == 1 else f"{row[0]}-{row[-1]}"


@dataclass(frozen=True)
class _Data:
    """A data set of the plan: its folders for --data, its address, and the stage that makes it, if one does."""

    folders: tuple[Path, ...]
    name: str
    address: str
    stage: str | None


class _Planner:
    def __init__(self, study: Study, root: Path) -> None:
        self.study, self.root = study, root
        self.stages: dict[str, Stage] = {}
        self.computed: set[tuple[Any, ...]] = set()  # indicator rewards that some stage computes

    def plan(self) -> Plan:
        cells, random_policy = [], {}
        for env in self.study.environments:
            for entry in self.study.methods:
                if entry.method == DQN:
                    own = [self.dqn_cell(env, entry, seed) for seed in self.study.seeds.dqn]
                    cells += own
                    if self.study.normalise == DQN:
                        random_policy[env_name(env)] = self.random_policy(own[0])
                elif entry.method == RELEASED:
                    seeds = self.study.seeds.pretraining[: entry.encoders]
                    cells += [self.released_cell(env, entry, number, seed) for number, seed in enumerate(seeds)]
                else:
                    cells += self.encoder_cells(env, entry)
        return Plan(tuple(self.stages.values()), tuple(cells), random_policy)

    def add(self, stage: Stage) -> str:
        """Keep a stage once, however many cells use it."""
        self.stages.setdefault(stage.id, stage)
        return stage.id

    def encoder_cells(self, env: str, entry: MethodEntry) -> Iterator[Cell]:
        """Plan the cells of a method: the same numbers, and so the same agents' seeds, for every width and method."""
        for width in (None,) if "width" in entry.settings else self.study.widths:
            for tasks in entry.grid(self.study.tasks):
                seeds = self.study.seeds.encoders(entry.learns(tasks))[: entry.encoders]
                for number, (data_seed, seed) in enumerate(seeds):
                    yield self.encoder_cell(env, entry, number, data_seed, seed, width, tasks)

    def encoder_cell(
        self,
        env: str,
        entry: MethodEntry,
        number: int,
        data_seed: int,
        seed: int,
        width: float | None,
        tasks: int | None,
    ) -> Cell:
        data = self.data(env, data_seed)  # also measures the scale of features that were not learned
        config = self.pretrain_config(entry, data, width, tasks, seed)
        used = resolved(config, env, self.study.environments[env].frame)
        count = 0 if entry.has_tasks and tasks == 0 else getattr(used, "tasks", None)
        pretrain, encoder = self.pretrain(env, config, used, data, entry.code)
        stages = [*([data.stage] if data.stage else []), pretrain.id]
        seeds = self.study.seeds.agents(number)
        run = self.online(env, entry, pretrain, encoder, used.architecture, used.width, seeds)
        stages += [run.id, self.evaluate(run, _own_files(used.architecture))]
        return Cell(
            env_name(env), entry.name, used.width, count, data_seed if entry.learns(tasks) else None, seed, seeds,
            data.name, pretrain.folder, run.folder, tuple(stages),
        )  # fmt: skip

    def released_cell(self, env: str, entry: MethodEntry, number: int, seed: int) -> Cell:
        """Plan an encoder that is imported and the agents on it."""
        given = dict(entry.settings)
        source, width = fill(entry.source, env, seed), whole(given["width"])
        mark = address("import encoder", {"source": source, "env": env_name(env), **given})
        folder = f"encoders/{_game(env)}-{entry.name}-x{width}-s{seed}-{mark}"
        config = ImportEncoderConfig(source=source, out=self.root / folder, env=env, **given)
        command = ("pvn", "import", "encoder", *words(config, ("source",)))
        self.add(Stage(folder, "encoder", folder, command, rate="import encoder", units=1))
        seeds = self.study.seeds.agents(number)
        run = self.online(env, entry, self.stages[folder], mark, RELEASED_ARCHITECTURE, width, seeds)
        stages = (folder, run.id, self.evaluate(run, ()))
        return Cell(env_name(env), entry.name, width, None, None, seed, seeds, None, folder, run.folder, stages)

    def data(self, env: str, seed: int) -> _Data:
        """Plan the data set of an environment and a data seed."""
        study = self.study
        assert study.data is not None
        kind, game = study.data.kind, _game(env)
        sources = tuple(fill(template, env, seed) for template in study.data.source)
        if kind == "folder":
            mark = address(kind, {"checksums": [study.data.checksums[folder] for folder in sources]})
            return _Data(tuple(map(Path, sources)), str(Path(sources[0]).absolute()), mark, None)
        if kind == "collect":
            return self.dqn_data(env, seed) if study.data.policy == DQN else self.random_data(env, seed)
        content = {"settings": dict(study.data.settings), "source": sources}
        mark = address(f"import {kind}", content)
        folder = f"data/{game}-{kind}-{seed}-{mark}"
        config = IMPORTS[kind](source=sources, out=self.root / folder, **study.data.settings)
        command = ("pvn", "import", kind, *words(config, ("source",)))
        self.add(Stage(folder, "import", folder, command, rate=f"import {kind}", units=1, env=env, used=config))
        return _Data((self.root / folder,), folder, mark, folder)

    def random_data(self, env: str, seed: int) -> _Data:
        study, variant = self.study, self.study.environments[env]
        assert study.data is not None
        config = CollectConfig(env=env, out=Path(), seed=seed, options=variant.options, **study.data.settings)
        mark = address("collect", self.content(config, env, variant))
        folder = f"data/{_game(env)}-random-{seed}-{mark}"
        config = replace(config, out=self.root / folder)
        command = ("pvn", "collect", *words(config, ("env",)))
        rate, expect = f"collect {_family(env)}", {"transitions": config.steps}
        # A continued collection begins new episodes: the same number of steps, but others.
        self.add(Stage(folder, "collect", folder, command, (), expect, True, rate, config.steps, env=env, used=config))
        return _Data((self.root / folder,), folder, mark, folder)

    def dqn_data(self, env: str, seed: int) -> _Data:
        """Plan a data set of everything that a DQN sees in its training."""
        assert self.study.data is not None
        variant = self.study.environments[env]
        stage = self.dqn_run(env, self.dqn_config(env, seed, self.study.data.settings, variant), variant)
        folder = stage.expect["data"]
        return _Data((self.root / folder,), folder, stage.expect["address"], stage.id)

    def dqn_config(self, env: str, seed: int, given: Mapping[str, Any], variant: Variant) -> DqnConfig:
        threads = self.study.threads
        given = {
            name: value for name, value in given.items() if name != "iterations"
        }  # of the data set, not of the agent
        return DqnConfig(env=env, out=Path(), seeds=str(seed), threads=threads, options=variant.options, **given)

    def dqn_content(self, env: str, config: DqnConfig, variant: Variant) -> dict[str, Any]:
        return self.content(resolved(config, env, self.study.environments[env].frame), env, variant)

    def dqn_run(self, env: str, config: DqnConfig, variant: Variant) -> Stage:
        """Plan the training of a DQN. If the study's data are such a training, it is recorded, and serves for both."""
        used = self.learning(resolved(config, env, self.study.environments[env].frame))
        content, data = self.dqn_content(env, config, variant), self.study.data
        recorded = False
        if data is not None and data.kind == "collect" and data.policy == DQN:
            shared = self.study.environments[env]
            same = (self.dqn_config(env, seed, data.settings, shared) for seed in self.study.seeds.data)
            recorded = any(self.dqn_content(env, one, shared) == content for one in same)
        parts = data.settings.get("iterations") if recorded and data else None
        own = {} if parts is None else {"iterations": parts}
        mark = address(DQN, {**content, "recorded": recorded, **own})
        folder = f"dqn/{_game(env)}-x{used.width}-s{config.seeds}-{mark}"
        config = replace(config, out=self.root / folder)
        expect: dict[str, Any] = {"steps": used.steps, "seeds": 1, "address": mark}
        expect["env_options"] = dict(variant.resolved)
        if recorded:
            expect |= {"data": f"data/{_game(env)}-dqn-{config.seeds}-{mark}", "transitions": used.steps}
            config = replace(config, record=self.root / expect["data"], **own)
        command = ("pvn", "dqn", *words(config, (), ("env", "seeds")))
        rate = self.agent_rate(DQN, env, used.architecture, used.width, 1)
        self.add(Stage(folder, DQN, folder, command, (), expect, False, rate, used.steps, env=env, used=used))
        return self.stages[folder]

    def pretrain_config(
        self, entry: MethodEntry, data: _Data, width: float | None, tasks: int | None, seed: int
    ) -> PretrainConfig:
        study = self.study
        given = {**study.pretrain, **entry.settings}
        if width is not None:
            given["width"] = width
        untrained = entry.untrained(tasks)
        method = RANDOM if untrained else entry.method
        if untrained:  # without tasks the encoder stays as it was drawn, whatever the training would have been
            given = {name: value for name, value in given.items() if name in RANDOM_KEEPS}
        elif tasks is not None:
            given["tasks"] = tasks
        config = method_class(method).Config
        if "cache" in {field.name for field in fields(config)}:
            given["cache"] = self.root / "cache"
        return config(out=Path(), method=method, data=data.folders, seed=seed, threads=study.threads, **given)

    def pretrain(
        self, env: str, config: PretrainConfig, used: PretrainConfig, data: _Data, code: str
    ) -> tuple[Stage, str]:
        looked_at = self.content(used, env)
        for name in method_class(config.method).unused(used):  # what a preset filled in all the same
            looked_at.pop(name, None)
        mark = address("pretrain", {**looked_at, "code": code}, [data.address])
        folder = f"pretrain/{_game(env)}-{self.describe(used)}-s{config.seed}-{mark}"
        command = ("pvn", "pretrain", *words(replace(config, out=self.root / folder), (), ("method", "data")))
        steps = 0 if config.method == RANDOM else (used.steps)
        name = Path(config.method).stem
        rate = f"pretrain {name} {_family(env)} {used.architecture} x{used.width} threads {self.study.threads}"
        needs = (data.stage,) if data.stage else ()
        units = steps * (used.batch_size)
        before = self.before(env, used, data)
        stage = Stage(folder, "pretrain", folder, command, needs, {}, False, rate, units, before, env, used)
        self.add(stage)
        return self.stages[stage.id], mark

    def before(self, env: str, used: PretrainConfig, data: _Data) -> dict[str, float]:
        """Count what is computed for the first encoder that needs it; the others find it there.

        Rewards, states x tasks, as far as the size of the data is known, and steps of quantile regression.
        """
        tasks = getattr(used, "tasks", None)
        if not tasks:
            return {}
        own = (getattr(used, name, None) for name in SEED_NAMES)
        seed = next((one for one in own if one is not None), used.seed)
        names = ("method", "tasks", "indicator", "proportion", "threshold", "burn_in", "normalize", "tasks_per_module",
                 "rni_network", "rni_output", "groups", "arrival", "changes")  # fmt: skip
        identity = (data.address, seed, *(getattr(used, name, None) for name in names))
        if identity in self.computed:
            return {}
        self.computed.add(identity)
        states = self.stages[data.stage].expect.get("transitions", 0) if data.stage else 0
        work = {
            indicator_rate(env, self.study.threads): float(states * tasks),
            regression_rate(self.study.threads): float(getattr(used, "burn_in", None) or 0),
        }
        return {rate: units for rate, units in work.items() if units}

    def describe(self, used: PretrainConfig) -> str:
        """Name an encoder so that a reader sees what it is: its method, its choices by name, width and tasks."""
        defaults = {one.name: one.default for one in fields(type(used))}
        own = set(defaults) - {one.name for one in fields(PretrainConfig)}
        chosen = [
            Path(getattr(used, name)).stem
            for name in sorted(own)
            if isinstance(defaults[name], str) and getattr(used, name) != defaults[name]
        ]
        tasks = getattr(used, "tasks", None)
        parts = [Path(used.method).stem, *chosen, f"x{used.width}", *([f"t{tasks}"] if tasks else [])]
        return "-".join(parts)

    def online(
        self,
        env: str,
        entry: MethodEntry,
        pretrain: Stage,
        mark: str,
        architecture: str,
        width: float,
        seeds: Sequence[int],
    ) -> Stage:
        study, variant = self.study, self.study.variant(env, entry)
        config = OnlineConfig(
            encoder=str(self.root / pretrain.folder),
            env=env,
            out=Path(),
            seeds=seed_text(seeds),
            threads=study.threads,
            options=variant.options,
            code=_own_files(architecture),
            **study.online,
        )
        used = self.learning(resolved(config, env, self.study.environments[env].frame))
        own = address("online", self.content(used, env, variant), [mark])
        stem = pretrain.folder.partition("/")[2].rpartition("-")[0]
        folder = f"online/{stem}-{own}"
        config = replace(config, out=self.root / folder)
        command = ("pvn", "online", *words(config, (), ("encoder", "env", "seeds")))
        rate = self.agent_rate("online", env, architecture, width, len(seeds))
        options = dict(variant.resolved)
        expect = {"steps": used.steps, "seeds": len(seeds), "address": own, "env_options": options}
        stage = Stage(
            folder, "online", folder, command, (pretrain.id,), expect, False, rate, used.steps, env=env, used=used
        )
        self.add(stage)
        return self.stages[stage.id]

    def learning(self, used: A) -> A:
        """Return agents' settings; refuse those with which they would never learn, before anything runs."""
        try:
            used.check_updates()
        except UserError as error:
            where = "online" if isinstance(used, OnlineConfig) else "dqn, or data"
            raise UserError(f"study {self.study.name}: [{where}] in {used.env}: {error}") from error
        return used

    def dqn_cell(self, env: str, entry: MethodEntry, seed: int) -> Cell:
        variant = self.study.variant(env, entry)
        config = self.dqn_config(env, seed, self.study.dqn, variant)
        stage = self.dqn_run(env, config, variant)
        used = resolved(config, env, self.study.environments[env].frame)
        stages = (stage.id, self.evaluate(stage, _own_files(used.architecture)))
        return Cell(
            env_name(env), entry.name, config.width, None, None, None, (seed,), None, None, stage.folder, stages
        )

    def evaluate(self, run: Stage, code: tuple[str, ...]) -> str:
        """Plan the evaluation of a run of agents."""
        # The file is named, so that one with more episodes of a study that was changed since is not kept in its place.
        out = self.root / run.folder / "evaluation.json"
        given = {**self.study.evaluate, "env": _of_a_module(run), "out": out, "code": code}
        config = EvaluateConfig(run=self.root / run.folder, **given)
        return self.played(run, config, "evaluate", "evaluation.json")

    def random_policy(self, cell: Cell) -> str:
        """Plan the random policy: the agents of the end-to-end run with nothing but random actions."""
        run = self.stages[cell.stages[0]]
        file = f"{run.folder}/random.json"
        code = _own_files(self.study.dqn.get("architecture"))
        given = {**self.study.evaluate, "env": _of_a_module(run), "epsilon": 1.0, "out": self.root / file, "code": code}
        self.played(run, EvaluateConfig(run=self.root / run.folder, **given), "random-policy", "random.json")
        return file

    def played(self, run: Stage, config: EvaluateConfig, kind: str, file: str) -> str:
        chosen = names_where(EvaluateConfig, lambda role: role.identifies and not role.filled_in)
        content = {name: getattr(config, name) for name in sorted(chosen)}
        mark = address(kind, content, [run.expect["address"]])
        stem = run.folder.partition("/")[2].rpartition("-")[0]
        shared = {name: run.expect[name] for name in ("steps", "env_options")}
        expect = {**content, **shared, "file": f"{run.folder}/{file}"}
        rate = run.rate.replace(run.kind, f"{kind} {run.kind}", 1)
        units = config.episodes * run.expect["seeds"]
        command = ("pvn", "evaluate", *words(config, ("run",)))
        return self.add(
            Stage(
                f"{kind}/{stem}-{mark}", kind, run.folder, command, (run.id,), expect, False, rate, units,
                env=run.env, used=config,
            )
        )  # fmt: skip

    def content(self, config: Settings, env: str, variant: Variant | None = None) -> dict[str, Any]:
        """Return the settings of a stage that its result depends on; an environment that is played with all options."""
        counts = names_where(type(config), lambda role: role.identifies) - not_given(config)
        found = {name: value for name, value in config_fields(config).items() if name in counts}
        if variant is not None:
            found["options"] = dict(variant.resolved)
        code = checksum([env_file(env), config.architecture if isinstance(config, DqnConfig) else None])
        return {**found, **({"own_code": code} if code else {}), "env": env_name(env)}

    def agent_rate(self, kind: str, env: str, encoder: str | None, width: float | None, seeds: int) -> str:
        return f"{kind} {_family(env)} {encoder} x{width} seeds {seeds} threads {self.study.threads}"


def indicator_rate(env: str, threads: int) -> str:
    """Name the rate of computing indicator rewards."""
    return f"indicators {_family(env)} threads {threads}"


def regression_rate(threads: int) -> str:
    """Name the rate of quantile regression, which hardly depends on the number of tasks, nor on the environment."""
    return f"quantile regression threads {threads}"


def _family(env: str) -> str:
    return env_name(env).partition("/")[0]


def _of_a_module(run: Stage) -> str | None:
    """Return the environment of a run of agents if it is code of the user's, which only a command line may name."""
    env = run.command[run.command.index("--env") + 1]
    return env if is_typed_only(env) else None


def _own_files(architecture: str | None) -> tuple[str, ...]:
    """Return the file of an architecture of the user's, which only a command line may name."""
    return (architecture,) if architecture is not None and is_file(architecture) else ()


def _game(env: str) -> str:
    return env_name(env).partition("/")[2].replace("/", "-")
