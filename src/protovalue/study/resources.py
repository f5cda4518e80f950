"""What a stage asks of a cluster: processors, GPUs, memory and time, from the study file or from estimates."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from protovalue.online.config import AgentConfig, DqnConfig, OnlineConfig
from protovalue.presets import resolved
from protovalue.pretrain.config import PretrainConfig
from protovalue.progress import duration
from protovalue.study.data_table import IMPORTS
from protovalue.study.lines import Source
from protovalue.study.model import DQN, Study
from protovalue.study.plan import Stage
from protovalue.study.settings import check_keys

KINDS = ("collect", "import", "pretrain", "online", "dqn", "evaluate", "random-policy")
MB, GB = 1 << 20, 1 << 30
_MEMORY = {"MB": MB, "GB": GB, "TB": 1 << 40}
_TIME = {"s": 1, "min": 60, "h": 3600, "days": 86400}
BASE = 1 * GB  # a process with PyTorch, a game and an agent's network: 0.4 GB were measured, the rest is room
LEARNING = GB // 2  # activations and gradients of small networks, and rewards of the tasks
LEAST_STEP = 2048  # bytes of an agent's step in the replay: features, or a frame where that is larger
SLACK, LEAST_TIME = 2.0, 600.0  # an estimate is of idle cores of this machine: twice that, and ten minutes to start


@dataclass(frozen=True)
class Ask:
    """What a stage asks for."""

    cpus: int
    gpus: int
    memory: int
    """Bytes."""
    seconds: float | None = None
    """None leaves it to the cluster."""
    given: bool = False
    """Whether the time is the study file's, not an estimate: then it is a limit that is kept everywhere."""


@dataclass(frozen=True)
class Node:
    """What a node of a cluster has."""

    name: str
    cpus: int
    gpus: int
    memory: int

    def room(self, ask: Ask) -> int:
        """Return how many such stages have room on it at a time."""
        pairs = ((self.cpus, ask.cpus), (self.gpus, ask.gpus), (self.memory, ask.memory))
        return min(have // want for have, want in pairs if want)


def read_resources(source: Source, values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Read [resources]: what all stages ask for, and in tables of their own those of a kind."""
    table = values.get("resources", {})
    check_keys(source, ["resources"], table, (*_READERS, *KINDS))
    shared = {key: value for key, value in table.items() if key not in KINDS}
    found = _read(source, ["resources"], shared)
    own = {}
    for kind in KINDS:
        if not isinstance(table.get(kind, {}), dict):
            raise source.error(["resources", kind], f"{kind}: found {table[kind]!r}, expected a table of this name")
        check_keys(source, ["resources", kind], table.get(kind, {}), _READERS)
        own[kind] = {**found, **_read(source, ["resources", kind], table.get(kind, {}))}
    return {kind: asked for kind, asked in own.items() if asked}


def refuse_unused_resources(source: Source, study: Study) -> None:
    """Refuse what a kind of stage asks for that the study does not have."""
    data, agents = study.data, [entry.method for entry in study.methods]
    acting = data.policy if data and data.kind == "collect" else ""
    there = {
        "collect": bool(acting) and acting != DQN,
        "import": data is not None and data.kind in IMPORTS,
        "pretrain": data is not None,
        "online": data is not None,
        "dqn": DQN in (*agents, acting),
        "random-policy": study.normalise == DQN,
    }
    for kind in source.values.get("resources", {}):
        if not there.get(kind, True):
            what = f"{kind}: found with no stage of that kind, expected what a stage of this study asks for"
            raise source.error(["resources", kind], what)


def _read(source: Source, path: Sequence[str], table: Mapping[str, Any]) -> dict[str, Any]:
    found = {}
    for key, value in table.items():
        try:
            found[key] = _READERS[key](value)
        except ValueError as error:
            raise source.error([*path, key], f"{key}: found {value!r}, expected {error}") from None
    return found


def _whole(least: int, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"a whole number from {least} on")
    return value


def _amount(units: Mapping[str, int], example: str, value: Any) -> float:
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([A-Za-z]+)", value) if isinstance(value, str) else None
    unit = match and next((size for name, size in units.items() if name in (match[2], f"{match[2]}s")), None)
    if match is None or not unit or float(match[1]) <= 0:
        raise ValueError(f'a number with its unit, such as "{example}" ({", ".join(units)})')
    return float(match[1]) * unit


_READERS: Mapping[str, Callable[[Any], int | float]] = {
    "cpus": lambda value: _whole(1, value),
    "gpus": lambda value: _whole(0, value),
    "memory": lambda value: math.ceil(_amount(_MEMORY, "16 GB", value)),
    "time": lambda value: _amount(_TIME, "12 h", value),
}


def asks(study: Study, stages: Sequence[Stage], seconds: Mapping[str, float]) -> dict[str, Ask]:
    """Return what every stage asks for; `seconds` are the estimates that there are."""
    shared = {kind: _ask(study, kind) for kind in dict.fromkeys(stage.kind for stage in stages)}
    found = {}
    for stage in stages:
        ask = shared[stage.kind]
        if ask.seconds is None and stage.id in seconds:
            ask = replace(ask, seconds=SLACK * seconds[stage.id] + LEAST_TIME)
        found[stage.id] = ask
    return found


def _ask(study: Study, kind: str) -> Ask:
    given = study.resources.get(kind, {})
    return Ask(
        cpus=given.get("cpus", _cpus(study, kind)),
        gpus=given.get("gpus", int(_on_cuda(study, kind))),
        memory=given.get("memory", memory(study, kind)),
        seconds=given.get("time"),
        given="time" in given,
    )


def _cpus(study: Study, kind: str) -> int:
    workers = study.data.settings.get("workers") if kind == "import" and study.data else None
    return int(workers or study.threads)


def _on_cuda(study: Study, kind: str) -> bool:
    tables: dict[str, list[Mapping[str, Any]]] = {
        "pretrain": [study.pretrain, *(entry.settings for entry in study.methods)],
        "online": [study.online],
        "dqn": [study.dqn, study.data.settings if study.data else {}],
    }
    return any(table.get("device") == "cuda" for table in tables.get(kind, ()))


def memory(study: Study, kind: str) -> int:
    """Estimate the bytes that a stage of a kind needs, in whole GB."""
    need = BASE
    if kind == "pretrain":
        tables = [study.pretrain, *(entry.settings for entry in study.methods)]
        most = max(table.get("memory", PretrainConfig.memory) for table in tables) * MB
        steps = study.data.settings.get("steps") if study.data and study.data.kind == "collect" else None
        frames = most if steps is None else 2 * steps * _frame(study)
        need += LEARNING + min(most, frames)
    elif kind in ("online", "dqn"):
        need += max(_replay(study, kind, env) for env in study.environments)
    return GB * math.ceil(need / GB)


def _replay(study: Study, kind: str, env: str) -> int:
    frame = study.environments[env].frame
    place: dict[str, Any] = {"env": env, "out": Path()}
    config: AgentConfig = (
        OnlineConfig(**place, encoder="", **study.online) if kind == "online" else DqnConfig(**place, **study.dqn)
    )
    used = resolved(config, env, frame)
    if used.replay_dir is not None:
        return 0
    seeds = len(study.seeds.online) if kind == "online" else 1
    return seeds * min(used.replay_size, used.steps) * max(math.prod(frame), LEAST_STEP)


def _frame(study: Study) -> int:
    return max(math.prod(variant.frame) for variant in study.environments.values())


def ask_text(ask: Ask) -> str:
    """Write what is asked for."""
    gpus = f", {ask.gpus} gpu" if ask.gpus else ""
    time = f", {duration(ask.seconds)}" if ask.seconds is not None else ""
    return f"{ask.cpus} cpu{gpus}, {size_text(ask.memory)}{time}"


def size_text(size: int) -> str:
    """Write an amount of memory."""
    return f"{size / GB:.3g} GB" if size >= GB else f"{size / MB:.3g} MB"


def misfit(ask: Ask, nodes: Sequence[Node]) -> str:
    """Say why no node has room for a stage; nothing where one has."""
    if any(node.room(ask) for node in nodes):
        return ""
    if not nodes:
        return "there is no node"
    most = {name: max(getattr(node, name) for node in nodes) for name in ("cpus", "gpus", "memory")}
    return (
        f"no node has that much: the most that one has is {most['cpus']} cpu, {most['gpus']} gpu, "
        f"{size_text(most['memory'])}"
    )


def asks_text(stages: Sequence[Stage], asked: Mapping[str, Ask]) -> str:
    """Write what the stages of each kind ask for, with the longest time of one."""
    rows = []
    for kind in dict.fromkeys(stage.kind for stage in stages):
        own = [asked[stage.id] for stage in stages if stage.kind == kind]
        longest = max(own, key=lambda ask: ask.seconds or 0.0)
        rows.append(f"{len(own)} x {kind}: {ask_text(longest)}")
    return "; ".join(rows)
