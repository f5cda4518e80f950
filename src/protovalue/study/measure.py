"""Measuring rates: the same study in small, run for real in a folder that is thrown away."""

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from protovalue.data.collect import collect
from protovalue.data.config import CollectConfig
from protovalue.envs.registry import make
from protovalue.indicators.registry import make_indicator
from protovalue.indicators.threshold import sgd_thresholds
from protovalue.interrupt import Stop
from protovalue.progress import ProgressBar
from protovalue.randomness import Purpose, generator_at, throwaway
from protovalue.registry import env_name
from protovalue.released.config import ARCHITECTURE
from protovalue.runs import read_metrics
from protovalue.study.engines.local import LocalProcesses
from protovalue.study.folder import Events, histories, read_events
from protovalue.study.model import DQN, RANDOM, RELEASED, Data, MethodEntry, Seeds, Study
from protovalue.study.plan import Plan, Stage, indicator_rate, plan, regression_rate
from protovalue.study.rates import MEASURED, Rate
from protovalue.study.schedule import run_stages


@dataclass(frozen=True)
class Size:
    """How small the small study is."""

    collect: int
    pretrain: int
    log_every: int
    batch_size: int | None
    agent: int
    replay_min: int
    agent_log_every: int
    episodes: int | None
    """None: episodes may be very long and are not measured."""
    widths: tuple[float, ...] | None
    """None: all of the study's."""


# Enough steps for a rate, few enough that a MinAtar study is measured within a minute on two cores. An Impala step
# takes seconds there: batches of 32 and width 1 give the time per sample, which is scaled.
SIZES = {"minatar": Size(4_000, 100, 20, None, 2_000, 400, 200, 5, None)}
LARGE = Size(600, 4, 1, 32, 120, 40, 20, None, (1,))


PLAYED = ("evaluate", "random-policy")


def measurable(stage: Stage) -> bool:
    """Whether a short run can show how long a stage takes."""
    known_length = any(family in stage.rate.split() for family in SIZES)
    return stage.kind not in ("import", "encoder") and (stage.kind not in PLAYED or known_length)


def measure(study: Study, wanted: set[str], quiet: bool = False) -> dict[str, Rate]:
    """Run a small study for each family and return those of the `wanted` rates that it shows."""
    found: dict[str, Rate] = {}
    families = {env_name(env).partition("/")[0]: env for env in reversed(list(study.environments))}
    for family, env in families.items():
        size = SIZES.get(family, LARGE)
        with tempfile.TemporaryDirectory(prefix="pvn-rates-") as folder:
            root = Path(folder)
            small = plan(small_study(study, env, size), root)
            stages = select(small, wanted if size.widths is None else None, size.episodes is not None)
            _run(stages, root, study.threads, quiet)
            found |= _read(stages, root, size, alone=study.threads == 1 and not torch.cuda.is_available())
        before = {rate for stage in small.stages for rate in stage.before}
        if (rate := indicator_rate(env, study.threads)) in before:
            found[rate] = _indicators(env, study.threads)
        if (rate := regression_rate(study.threads)) in before:
            found[rate] = _regression(study.threads)
    return found


def small_study(study: Study, env: str, size: Size) -> Study:
    """Return the study in small: one environment, one encoder per method, few steps."""
    agent = {"steps": size.agent, "replay_min": size.replay_min, "log_every": size.agent_log_every}
    batch = {"batch_size": size.batch_size} if size.batch_size else {}
    dropped = {"steps", "batch_size"} | (set() if size.widths is None else {"width"})
    entries = tuple(
        replace(entry, settings={name: value for name, value in _shortened(entry).items() if name not in dropped})
        for entry in map(_as_drawn, study.methods)
    )
    data = None
    if study.data is None and any(entry.pretrains for entry in entries):
        data = Data("collect", {"steps": size.collect})
    if study.data:
        recorded = study.data.kind == "collect" and study.data.policy == DQN
        data = Data("collect", agent if recorded else {"steps": size.collect}, DQN if recorded else "random")
    largest = max((tasks for tasks in study.tasks if tasks is not None), default=None)
    return replace(
        study,
        environments={env: study.environments[env]},
        methods=entries,
        data=data,
        widths=study.widths if size.widths is None else size.widths,
        tasks=(largest,),
        seeds=Seeds(online=study.seeds.online, dqn=study.seeds.dqn),
        pretrain={**study.pretrain, "steps": size.pretrain, "log_every": size.log_every, **batch},
        online={**study.online, **agent},
        dqn={**{name: value for name, value in study.dqn.items() if name != "steps"}, **agent},
        evaluate={"episodes": size.episodes or 1},
    )


def _as_drawn(entry: MethodEntry) -> MethodEntry:
    """Return a method, or in place of an encoder that is imported one as it was drawn: agents take as long on it."""
    if entry.method != RELEASED:
        return entry
    return replace(entry, method=RANDOM, settings={"architecture": ARCHITECTURE, "width": entry.settings["width"]})


def _shortened(entry: MethodEntry) -> Mapping[str, Any]:
    """Return a method's settings with one step of quantile regression, which is timed apart."""
    return {**entry.settings, **({"burn_in": 1} if entry.settings.get("threshold") == "sgd" else {})}


def select(small: Plan, wanted: set[str] | None, episodes: bool) -> list[Stage]:
    """Return one stage for each rate that is wanted, and what it needs."""
    by_id, kept, seen = {stage.id: stage for stage in small.stages}, set[str](), set[str]()

    def keep(stage: Stage) -> None:
        kept.add(stage.id)
        for need in stage.needs:
            keep(by_id[need])

    for stage in small.stages:
        played = stage.kind in PLAYED
        if stage.rate not in seen and (wanted is None or stage.rate in wanted) and (episodes or not played):
            seen.add(stage.rate)
            keep(stage)
    return [stage for stage in small.stages if stage.id in kept]


def _run(stages: Sequence[Stage], root: Path, threads: int, quiet: bool) -> None:
    engine, events, shown = LocalProcesses(1, root, threads), Events(root), [0]
    with ProgressBar("measuring", len(stages), "short runs", quiet=quiet) as bar:

        def tick(outcome: Any, running: Any) -> None:
            ended = len(outcome.done) + len(outcome.failed)
            bar.advance(ended - shown[0])
            shown[0] = ended

        try:
            run_stages(stages, (), engine, root, events, Stop(), tick)
        finally:
            engine.close()
            events.close()


def _read(stages: Sequence[Stage], root: Path, size: Size, alone: bool) -> dict[str, Rate]:
    """Return the rates of the short runs that ended well: from their own clocks, so that starting up is apart.

    With `alone`, only the share of the time counts in which they had a core: other programs may be busy just now.
    """
    found: dict[str, Rate] = {}
    history = histories(read_events(root))
    for stage in stages:
        if stage.rate in found or stage.id not in history or history[stage.id].last != "done":
            continue
        total, cpu = history[stage.id].seconds, history[stage.id].cpu_seconds
        share = min(1.0, cpu / total) if alone else 1.0
        total, per_unit = share * total, _per_unit(stage, root, size)
        per_unit = None if per_unit is None else share * per_unit
        if per_unit is None:
            per_unit = total / stage.units if stage.units else 0.0
        found[stage.rate] = Rate(per_unit, max(total - per_unit * stage.units, 0.0), MEASURED)
    return found


def _per_unit(stage: Stage, root: Path, size: Size) -> float | None:
    rows = read_metrics(root / stage.folder) if stage.kind not in PLAYED else []
    if stage.kind == "pretrain":
        speeds = sorted(row["samples_per_second"] for row in rows[1:])
        return 1 / speeds[len(speeds) // 2] if speeds else None
    late = [row for row in rows if row["step"] >= 2 * size.replay_min]
    if stage.kind in ("online", "dqn") and len(late) > 1:
        steps, seconds = late[-1]["step"] - late[0]["step"], late[-1]["time"] - late[0]["time"]
        return float(seconds / steps)
    return _collecting(stage.used, root, size.collect) if isinstance(stage.used, CollectConfig) else None


def _collecting(config: CollectConfig, root: Path, steps: int) -> float:
    """Time two collections of different lengths: emulators take seconds to start, and then far less than that a step.

    Returns:
        Seconds per step.
    """
    seconds = []
    for count in (steps, 3 * steps):
        begin = time.perf_counter()
        collect(replace(config, steps=count, out=root / f"collected-{count}"), quiet=True)
        seconds.append(time.perf_counter() - begin)
    return max(seconds[1] - seconds[0], 0.0) / (2 * steps)


def _indicators(env: str, threads: int) -> Rate:
    """Time random networks on one batch of observations: seconds per state and task."""
    made = make(env)
    shape = made.single_observation_space.shape
    made.close()
    count, tasks = (2_048 if env.startswith("minatar/") else 64), 50
    network = make_indicator("rni", shape, tasks, 0.1, throwaway(), tasks_per_module=10)
    obs = torch.zeros((count, *shape), dtype=torch.uint8)

    @torch.inference_mode()
    def score() -> None:
        network.scores(obs)

    return _timed(score, count * tasks, threads)


def _regression(threads: int) -> Rate:
    """Time quantile regression on random batches of 256 scores of 100 tasks: seconds per step, in any environment."""
    scores, steps = np.zeros((4_096, 100), np.float32), 200

    def regress() -> None:
        draws = (generator_at(0, Purpose.BATCH, step).integers(len(scores), size=256) for step in range(steps))
        sgd_thresholds((torch.from_numpy(scores[rows]) for rows in draws), 0.01, steps)

    return _timed(regress, steps, threads)


def _timed(run: Callable[[], None], units: int, threads: int) -> Rate:
    """Time something that runs on the CPU and has run once before; on one thread only processor time counts."""
    before, clock = torch.get_num_threads(), time.process_time if threads == 1 else time.perf_counter
    torch.set_num_threads(threads)
    try:
        run()
        begin = clock()
        run()
        return Rate((clock() - begin) / units, 0.0, MEASURED)
    finally:
        torch.set_num_threads(before)
