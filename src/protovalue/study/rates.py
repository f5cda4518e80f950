"""How long stages take on this machine, from what was measured here and from nothing else."""

import json
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from protovalue import __version__
from protovalue.caches import default_cache
from protovalue.envs.registry import make
from protovalue.errors import UserError
from protovalue.files import read_json, write_json
from protovalue.nets.cost import forward_flops
from protovalue.nets.encoders import make_encoder
from protovalue.randomness import throwaway
from protovalue.registry import env_name
from protovalue.schema import checked
from protovalue.study.folder import History, histories, read_events, warn_once
from protovalue.study.plan import Stage

FINISHED, MEASURED = "finished stages of this study", "short runs on this machine"
_WIDTH = re.compile(r" x([\d.]+) ")


@dataclass(frozen=True)
class Rate:
    """Seconds = start + units x per_unit."""

    per_unit: float
    start: float
    source: str


@dataclass(frozen=True)
class StageTime:
    """How long a stage takes; None where nothing that was measured says so."""

    seconds: float | None
    scaled: bool = False
    """Whether it was measured at another width and scaled by the encoder's multiply-adds."""


Rates = Mapping[str, Rate]


def from_history(stages: Sequence[Stage], histories: Mapping[str, History]) -> dict[str, Rate]:
    """Return the rates of stages that were done in one go."""
    seconds: dict[str, float] = defaultdict(float)
    units: dict[str, float] = defaultdict(float)
    count: dict[str, int] = defaultdict(int)
    for stage in stages:
        history = histories.get(stage.id)
        if history and history.whole and history.last == "done":
            seconds[stage.rate] += history.seconds
            units[stage.rate] += stage.units
            count[stage.rate] += 1
    return {
        name: Rate(total / units[name], 0.0, FINISHED) if units[name] else Rate(0.0, total / count[name], FINISHED)
        for name, total in seconds.items()
    }


def estimate(stage: Stage, rates: Rates, env: str | None) -> StageTime:
    """Estimate a stage; `env` is an environment of its family, whose observations say how large an encoder is."""
    rate, scale = rates.get(stage.rate), 1.0
    if rate is None and env is not None and (match := _WIDTH.search(stage.rate)):
        rate, scale = _other_width(stage.rate, match[1], rates, env)
    if rate is None:
        return StageTime(None)
    seconds = rate.start + scale * rate.per_unit * stage.units
    for name, units in stage.before.items() if rate.source != FINISHED else ():  # a finished stage's time has it in it
        before = rates.get(name)
        if before is None:
            return StageTime(None)
        seconds += before.per_unit * units
    return StageTime(seconds, scale != 1.0)


def _other_width(name: str, width: str, rates: Rates, env: str) -> tuple[Rate | None, float]:
    """Find a rate that differs in the width alone, and the factor between the two."""
    for other, rate in rates.items():
        match = _WIDTH.search(other)
        if match and _WIDTH.sub(" ", other) == _WIDTH.sub(" ", name):
            encoder = name[: name.index(f" x{width} ")].rpartition(" ")[2]
            return rate, multiply_adds(env, encoder, float(width)) / multiply_adds(env, encoder, float(match[1]))
    return None, 1.0


@cache
def multiply_adds(env: str, encoder: str, width: float) -> int:
    """Count the multiply-adds of an encoder's forward pass on one observation; nothing is computed."""
    made = make(env)
    shape = made.single_observation_space.shape
    made.close()
    return forward_flops(make_encoder(encoder, shape, width, throwaway()).to("meta"), exactly=True) // 2


def rates_file() -> Path:
    """Return the file in the user's cache folder that remembers measured rates."""
    return default_cache().parent / "rates.json"


def remembered() -> dict[str, Rate]:
    """Return the rates that this version measured on a machine with as many cores; damaged ones are named."""
    try:
        return checked(dict[str, Rate], read_json(rates_file()).get(_machine(), {}), rates_file())
    except FileNotFoundError:
        return {}
    except (UserError, OSError) as error:
        warn_once(f"{error}; no rates are taken from there")
        return {}


def remember(rates: Rates) -> None:
    """Add rates to those that are remembered."""
    path = rates_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        everything = read_json(path)
    except (UserError, OSError):
        everything = {}
    own = {**remembered(), **rates}
    write_json(path, {**everything, _machine(): json.loads(json.dumps({k: asdict(v) for k, v in own.items()}))})


def _machine() -> str:
    return f"protovalue {__version__}, {os.cpu_count()} cores"


def known_rates(stages: Sequence[Stage], root: Path) -> dict[str, Rate]:
    """Return what finished stages of the study show, and what was measured before for the rest."""
    return {**remembered(), **from_history(stages, histories(read_events(root)))}


def estimates(stages: Sequence[Stage], rates: Rates, environments: Iterable[str]) -> dict[str, StageTime]:
    """Estimate every stage."""
    families = {env_name(env).partition("/")[0]: env for env in environments}
    return {stage.id: estimate(stage, rates, _env(stage, families)) for stage in stages}


def filled(stages: Sequence[Stage], found: Mapping[str, StageTime]) -> dict[str, float]:
    """Return seconds for every stage, or for none if nothing is known.

    One that is not estimated counts as the mean of its kind, or of all where its kind is not known at all.
    """
    known = {stage.id: seconds for stage in stages if (seconds := found[stage.id].seconds) is not None}
    if not known:
        return {}
    kinds: dict[str, list[float]] = defaultdict(list)
    for stage in stages:
        if stage.id in known:
            kinds[stage.kind].append(known[stage.id])
    means = {kind: sum(times) / len(times) for kind, times in kinds.items()}
    overall = sum(known.values()) / len(known)
    return {stage.id: known.get(stage.id, means.get(stage.kind, overall)) for stage in stages}


def _env(stage: Stage, families: Mapping[str, str]) -> str | None:
    return next((families[word] for word in stage.rate.split() if word in families), None)
