"""`pvn study status` and `pvn study plan`: how far a study is, and what it will cost."""

import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from protovalue.progress import duration
from protovalue.study.command import check_study_folder, open_study
from protovalue.study.config import StudyPlanConfig, StudyStatusConfig
from protovalue.study.engines.local import LOCAL
from protovalue.study.folder import EVENTS, STUDY, History, histories, read_events, warn_once
from protovalue.study.jobs import SILENT, last_line, log_name, read_record, read_sign, sign_path, silence
from protovalue.study.lease import deciding, file_time
from protovalue.study.measure import measurable, measure
from protovalue.study.model import Study
from protovalue.study.plan import Plan, Stage
from protovalue.study.price import print_price
from protovalue.study.profile import load_profile
from protovalue.study.rates import Rates, StageTime, estimates, known_rates, remember
from protovalue.study.schedule import makespan
from protovalue.study.state import is_done


def _check_folder(root: Path, laid_out: Plan) -> None:
    """Refuse a folder of something else; a study whose plan is lost is still shown."""
    if not (root / EVENTS).exists() and not any((root / stage.id).exists() for stage in laid_out.stages):
        check_study_folder(root)


def study_status(config: StudyStatusConfig) -> None:
    """Print a table: environments x methods, how many cells are where, and the time spent."""
    study, root, laid_out = open_study(config.file, config.out)
    _check_folder(root, laid_out)
    history = histories(read_events(root))
    holder = deciding(root) if (root / STUDY).exists() else None
    state = {stage.id: _state(stage, root, history, holder is not None) for stage in laid_out.stages}
    _name_untimed([stage for stage in laid_out.stages if state[stage.id] == "done"], history, root)
    rows: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    seconds: dict[tuple[str, str], float] = defaultdict(float)
    users = Counter(name for cell in laid_out.cells for name in cell.stages)
    for cell in laid_out.cells:
        states = [state[name] for name in cell.stages]
        worst = next((one for one in ("failed", "running", "missing") if one in states), "done")
        rows[cell.env, cell.method][worst] += 1
        spent = sum(history[name].seconds / users[name] for name in cell.stages if name in history)
        seconds[cell.env, cell.method] += spent
    wide = max(len(env) for env, _ in rows)
    name = max(6, *(len(method) for _, method in rows))
    where = f" (running, by process {holder.pid} on {holder.host})" if holder else ""
    print(f"{study.title}: {root}{where}")
    print(f"{'':<{wide}} {'':<{name}} {'done':>6} {'running':>8} {'failed':>7} {'missing':>8} {'time':>9}")
    for (env, method), counts in rows.items():
        numbers = f"{counts['done']:>6} {counts['running']:>8} {counts['failed']:>7} {counts['missing']:>8}"
        print(f"{env:<{wide}} {method:<{name}} {numbers} {duration(seconds[env, method]):>9}")
    finished = sum(one == "done" for one in state.values())
    total = sum(one.seconds for one in history.values())
    cpu = sum(one.cpu_seconds for one in history.values())
    for line in _costs([stage for stage in laid_out.stages if state[stage.id] == "done"], history):
        print(line)
    print(f"{finished} of {len(state)} stages are done; {duration(total)} so far, {duration(cpu)} of processor time")
    for stage in laid_out.stages:
        if state[stage.id] == "running":
            print(_whereabouts(stage, root))
    for stage in laid_out.stages:
        if state[stage.id] == "failed":
            print(f"failed: {stage.id}: {history[stage.id].error} (log: {root / log_name(stage.id)})")


def _costs(done: Sequence[Stage], history: Mapping[str, History]) -> list[str]:
    """Return a table of what done stages took by kind, in processor time: all of them, and the mean of one.

    Stages without a time, because lines of the diary were lost, are left out.
    """
    spent: dict[str, list[float]] = defaultdict(list)
    for stage in done:
        if stage.id in history and history[stage.id].last == "done":
            spent[stage.kind].append(history[stage.id].cpu_seconds)
    wide = max((len(kind) for kind in spent), default=0)
    rows = [f"{'':<{wide}} {'done':>6} {'processor time':>15} {'each':>9}"] if spent else []
    for kind, seconds in spent.items():
        total = sum(seconds)
        rows.append(f"{kind:<{wide}} {len(seconds):>6} {duration(total):>15} {duration(total / len(seconds)):>9}")
    return rows


def _state(stage: Stage, root: Path, history: Mapping[str, History], alive: bool) -> str:
    if is_done(stage, root):
        return "done"
    last = history[stage.id].last if stage.id in history else ""
    if last == "failed":
        return "failed"
    if last != "start":
        return "missing"
    record = read_record(root, stage.id)
    return "running" if alive or (record is not None and record.engine != LOCAL) else "missing"


def _whereabouts(stage: Stage, root: Path) -> str:
    """Say where a stage runs, since when, and what it printed last."""
    record = read_record(root, stage.id)
    if record is None:
        return f"running: {stage.id}"
    job = "" if record.engine == LOCAL else f", {record.engine} job {record.handle or record.title}"
    sign = read_sign(root, stage.id, record.attempt)
    if sign is None:
        return f"waiting: {stage.id}{job}, submitted {_ago(record.submitted)}"
    log = root / log_name(stage.id)
    if sign.code is not None:
        return f"ended: {stage.id} on {sign.host}{job}, code {sign.code}, not seen yet by `pvn study run`"
    quiet = silence(sign_path(root, stage.id), file_time(root))
    text = f"{stage.id} on {sign.host}{job}, since {_ago(sign.started)}"
    if quiet >= SILENT:
        return f"silent: {text}, no sign of life for {duration(quiet)} (log: {log})"
    said = last_line(log, sign.log_start)
    return f"running: {text}{f': {said}' if said else ''} (log: {log})"


def _ago(moment: float) -> str:
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(moment))}, {duration(max(0.0, time.time() - moment))}"


def _name_untimed(done: Sequence[Stage], history: Mapping[str, History], root: Path) -> None:
    """Say that the diary has no start or no end of done stages: lines were lost, and times without them are wrong."""
    known = [history[stage.id] for stage in done if stage.id in history]
    lost = len(done) - sum(one.last == "done" and not one.unbegun for one in known)
    if lost:
        warn_once(f"{root / EVENTS}: has no time of {lost} of {len(done)} done stages")


def study_plan(config: StudyPlanConfig) -> None:
    """Print every stage with its estimated time, and the totals."""
    study, root, laid_out = open_study(config.file, config.out)
    _check_folder(root, laid_out)
    stages = laid_out.stages
    if config.on is not None:
        print_price(study, laid_out, root, load_profile(config.on), config.devices or 1, config.commands)
        return
    _name_untimed([stage for stage in stages if is_done(stage, root)], histories(read_events(root)), root)
    rates = {} if config.measure == "again" else known_rates(stages, root)
    found = estimates(stages, rates, study.environments)
    unknown = {stage.rate for stage in stages if found[stage.id].seconds is None and measurable(stage)}
    if unknown and config.measure != "no":
        measured = measure(study, unknown)
        remember(measured)
        rates = {**measured, **rates}
        found = estimates(stages, rates, study.environments)
    print(f"{study.title}: {root}")
    wide = max(len(stage.id) for stage in stages)
    for stage in stages:
        one = found[stage.id]
        mark = "done" if is_done(stage, root) else ""
        shown = "?" if one.seconds is None else ("~" if one.scaled else "") + duration(one.seconds)
        print(f"{stage.id:<{wide}} {shown:>10} {mark}".rstrip())
        if config.commands:
            print(f"    {' '.join(stage.command)}")
    _totals(study, laid_out, found, rates, root, config.jobs)


def _totals(study: Study, laid_out: Plan, found: Mapping[str, StageTime], rates: Rates, root: Path, jobs: int) -> None:
    left = [stage for stage in laid_out.stages if not is_done(stage, root)]
    known = {name: one.seconds for name, one in found.items() if one.seconds is not None}
    print(f"\n{'':<14} {'stages':>7} {'one after another':>18}")
    for kind in dict.fromkeys(stage.kind for stage in laid_out.stages):
        own = [stage for stage in laid_out.stages if stage.kind == kind]
        print(f"{kind:<14} {len(own):>7} {_total(own, known)}")
    print(f"{'all':<14} {len(laid_out.stages):>7} {_total(laid_out.stages, known)}")
    encoders = len({cell.encoder for cell in laid_out.cells if cell.encoder})
    print(f"{encoders} encoders, {sum(len(cell.seeds) for cell in laid_out.cells)} agents")
    print(f"left: {_left(left, known, study.threads, jobs)}")
    sources = Counter(rate.source for rate in rates.values() if rate.source)
    print("rates from " + " and ".join(sources) if sources else "no rate is known: --measure auto measures them")
    if any(one.scaled for one in found.values()):
        print("~ was measured at another width and scaled by the encoder's multiply-adds")
    unknown = {stage.kind for stage in laid_out.stages if stage.id not in known}
    if unknown & {"import", "encoder"}:
        print("imports are not estimated: the network decides; nor are the indicators of what they will bring")
    if unknown & {"evaluate", "random-policy"}:
        print("evaluations are not estimated before one is done: how long an episode is depends on the agent")
    else:
        print("evaluations were estimated as measured; episodes of better agents may be longer")


def _total(stages: Sequence[Stage], known: Mapping[str, float]) -> str:
    """Write the sum of the stages' times; where some are not known, it is a lower bound and says so."""
    missing = sum(stage.id not in known for stage in stages)
    if missing == len(stages):
        return f"{'not known':>18}"
    time = duration(sum(known.get(stage.id, 0.0) for stage in stages))
    return f"{'at least ' + time:>18}, {_not_estimated(missing, stages)}" if missing else f"{time:>18}"


def _left(left: Sequence[Stage], known: Mapping[str, float], threads: int, jobs: int) -> str:
    """Write what is still to be done, in processor time and by the clock."""
    missing = sum(stage.id not in known for stage in left)
    if not left:
        return "nothing"
    if missing == len(left):
        return f"{len(left)} stages, their time is not known"
    hours = sum(known.get(stage.id, 0.0) for stage in left) * threads / 3600
    least = "at least " if missing else ""
    cost = f"{least}{hours:,.1f} processor-hours at {threads} thread(s) a stage"
    wall = f"{least}{duration(makespan(left, known, jobs))} with --jobs {jobs}"
    return f"{len(left)} stages, {cost}, {wall}" + (f", {_not_estimated(missing, left)}" if missing else "")


def _not_estimated(missing: int, stages: Sequence[Stage]) -> str:
    return f"{missing} of {len(stages)} stages not estimated"
