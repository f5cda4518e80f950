"""The options of the commands that put things together: studies, reports, the tabular page, benchmarks, the demo."""

import csv
import json
from dataclasses import fields
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import protovalue
from protovalue.check import command as check
from protovalue.demo import command as demo
from protovalue.files import write_json
from protovalue.registry import ENCODERS
from protovalue.report import figures as report_figures
from protovalue.study import command, overview
from protovalue.study.schedule import run_stages
from protovalue.tabular import command as tabular_command
from protovalue.tabular import experiments
from tests.options.world import Check, InTurn, Ran, World, both, differ, made, places, printed, refused

STUDY = """name = "smallest"
environments = ["minatar/breakout"]
[data]
steps = 60
[online]
steps = 25
replay_min = 20
[evaluate]
episodes = 1
[methods.random]
"""


@made("study")
def _study(world: World) -> Path:
    file: Path = world["out"].with_suffix(".toml")
    file.write_text(STUDY)
    return file


@made("larger study")
def _larger(world: World) -> Path:
    file: Path = world["out"].with_suffix(".toml")
    file.write_text(STUDY + "[seeds]\npretraining = 2\n")
    return file


@made("done study")
def _done(world: World) -> Path:
    world.patch.setattr(command, "LocalProcesses", InTurn)
    return world.good("study run {study} --out {out}").out


def _run(world: World) -> None:
    world.patch.setattr(command, "LocalProcesses", InTurn)
    ran = world.good("study run {study} --out {out}")
    assert "all 4 stages are done" in ran.printed
    assert "study.json" in places(ran.out)
    again = world.good(f"study run '{{larger study}}' --out {ran.out}")
    assert "all 7 stages are done" in again.printed


def _run_out(world: World) -> None:
    world.patch.setattr(command, "LocalProcesses", InTurn)
    world.patch.chdir(world.root)
    world.good("study run {study}")
    assert (world.root / "runs" / "smallest" / "study.json").is_file()
    assert (world["done study"] / "study.json").is_file()


def _run_jobs(world: World) -> None:
    slots: list[int] = []

    class Spied(InTurn):
        def __init__(self, jobs: int, *others: Any) -> None:
            slots.append(jobs)
            super().__init__(jobs)

    world.patch.setattr(command, "LocalProcesses", Spied)
    world.good("study run {study} --out {out} --jobs 2")
    assert slots == [2]


def _measure(world: World) -> None:
    asked: list[set[str]] = []

    def record(study: object, wanted: set[str]) -> dict[str, Any]:
        asked.append(wanted)
        return {}

    world.patch.setattr(overview, "measure", record)
    for choice, times in (("no", 0), ("auto", 0), ("again", 1)):  # all of it is known from the finished study
        asked.clear()
        world.good(f"study plan {{study}} --out '{{done study}}' --measure {choice}")
        assert len(asked) == times, choice
    world.good("study plan {study} --out {out}")
    assert len(asked) == 2


PLAN = "study plan '{larger study}' --out '{done study}' --measure no"
PRICE = "study plan '{larger study}' --out '{done study}' --on"


def _engine(world: World) -> None:
    """Each engine is asked for by its name, with its own options; a study without a cluster says what is missing."""
    ran = world.run("study run {study} --out {out} --engine ray --ray-address 127.0.0.1:1")
    assert (ran.code, "--ray-address: found 127.0.0.1:1, which does not answer" in ran.errors) == (2, True)
    assert not ran.out.exists()


def _slurm(flag: str, value: str, expected: str) -> Check:
    """SLURM's commands as they are asked: a partition that is there, and what sbatch is given."""

    def check(world: World) -> None:
        folder = world["out"]
        folder.mkdir()
        for name in ("sbatch", "squeue", "sinfo", "scancel", "srun"):
            text = "echo 'main*|n1|4|16000|(null)|idle'" if name == "sinfo" else f'echo "$@" >> {folder}/asked; exit 1'
            (folder / name).write_text(f"#!/bin/sh\n{text}\n")
            (folder / name).chmod(0o755)
        world.patch.setenv("PATH", f"{folder}:/usr/bin:/bin")
        ran = world.run(f"study run {{study}} --out {{out}} --engine slurm {flag} {value}")
        asked = (folder / "asked").read_text() if (folder / "asked").exists() else ""
        assert ran.code == 2
        assert expected in ran.errors + asked

    return check


def _retries(world: World) -> None:
    given: list[int] = []

    class Once(InTurn):
        places = 1

    def spied(*words: Any) -> Any:
        given.append(words[-1])
        return original(*words)

    original = run_stages
    world.patch.setattr(command, "cluster", lambda *_: Once())
    world.patch.setattr(command, "run_stages", spied)
    for text, expected in (("", 3), ("--retries 7", 7)):
        world.good(f"study run {{study}} --out {{out}} --engine ray {text}")
        assert given.pop() == expected


def _stopped(world: World) -> None:
    done = world["done study"]
    assert world.good(f"study stop {done}").printed == f"{done}: nothing runs\n"
    assert world.good(f"study stop {{study}} --out {done}").printed == f"{done}: nothing runs\n"
    refused = world.run("study stop {study} --out {out}")
    assert (refused.code, "found no study.json" in refused.errors) == (2, True)


STUDIES: dict[tuple[str, str], Check] = {
    ("study run", "engine"): _engine,
    ("study run", "ray_address"): _engine,
    ("study run", "partition"): _slurm("--partition", "mian", "unknown partition 'mian': did you mean 'main'?"),
    ("study run", "account"): _slurm("--account", "lab", "--account=lab"),
    ("study run", "slurm"): _slurm("--slurm", "qos=long", "--qos=long"),
    ("study run", "retries"): _retries,
    ("study stop", "study"): _stopped,
    ("study stop", "out"): _stopped,
    ("study run", "file"): _run,
    ("study run", "out"): _run_out,
    ("study run", "jobs"): _run_jobs,
    ("study status", "file"): differ(
        "study status {study} --out '{done study}'", "study status '{larger study}' --out '{done study}'", printed
    ),
    ("study status", "out"): differ(
        "study status {study} --out '{done study}'", "study status {study} --out {out}", printed
    ),
    ("study plan", "file"): differ(PLAN, PLAN.replace("larger study", "study"), printed),
    ("study plan", "out"): differ(PLAN, PLAN.replace("'{done study}'", "{out}"), printed),
    ("study plan", "jobs"): differ(PLAN, f"{PLAN} --jobs 2", printed),
    ("study plan", "measure"): _measure,
    ("study plan", "commands"): differ(PLAN, f"{PLAN} --commands", printed),
    ("study plan", "on"): both(
        differ(f"{PRICE} a100", f"{PRICE} h100", printed),
        refused(f"{PRICE} nothing", "--on: unknown profile 'nothing'"),
    ),
    ("study plan", "devices"): both(
        differ(f"{PRICE} a100", f"{PRICE} a100 --devices 2", printed),
        refused(f"{PLAN} --devices 2", "--devices: found 2, expected it with --on only"),
    ),
}


# Reports


@made("runs")
def _runs(world: World) -> Path:
    """A study of two encoders and a DQN, whose scores are normalised: only those have bootstrap intervals."""
    world.patch.setattr(command, "LocalProcesses", InTurn)
    file: Path = world["out"].with_suffix(".toml")
    dqn = "[dqn]\nsteps = 25\nreplay_min = 20\nseeds = 2\n[methods.dqn]\n"
    several = STUDY.replace("episodes = 1", "episodes = 7")  # so that hardly two agents score the same
    file.write_text(f'normalise = "dqn"\n{several}[seeds]\npretraining = 3\nonline = 2\n{dqn}')
    return world.good(f"study run {file} --out {{out}}").out


REPORT = "report {runs} --out {out} --features none"


def _no_pictures(world: World) -> None:
    """Drawing takes most of a report's time, and no option is about how."""

    def save(figure: object, folder: Path, name: str) -> tuple[Path, Path]:
        folder.mkdir(parents=True, exist_ok=True)
        png, svg = folder / f"{name}.png", folder / f"{name}.svg"
        png.write_bytes(b"")
        svg.write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
        return png, svg

    world.patch.setattr(report_figures, "save", save)


def said(ran: Ran) -> str:
    """What a report says, but for its own place."""
    return ran.printed.replace(str(ran.out), "")


def written(ran: Ran) -> list[str]:
    """The files of a report."""
    return list(places(ran.out))


def intervals(ran: Ran) -> bytes:
    """Aggregates over games with their bootstrap intervals."""
    return (ran.out / "tables" / "aggregates.csv").read_bytes()


def _report_out(world: World) -> None:
    assert "index.html" in written(world.once(REPORT))


def _features(world: World) -> None:
    found = {}
    for which in ("all", "first"):
        out = world.once(f"report {{runs}} --out {{out}} --features {which}").out
        table = (out / "tables" / "features.csv").read_text().splitlines()
        found[which] = [line.split(",")[2] for line in table if "random" in line.lower()]
    assert found == {"all": ["3"], "first": ["1"]}
    assert "mds.json" not in written(world.once(REPORT))


def _mds(world: World) -> None:
    first = world.once("report {runs} --out {out} --features first")
    other = world.good("report {runs} --out {out} --features first --mds metric")
    points = [json.loads((ran.out / "mds.json").read_bytes())["games"] for ran in (first, other)]
    assert points[0] != points[1]
    refused(f"{REPORT} --mds metric", "--mds: found metric with --features none")(world)


def _report_code(world: World) -> None:
    """The file is run, so that the runs' encoders can be loaded."""
    ENCODERS.loaded.clear()
    world.good(f"{REPORT} --code {{wide}}")
    assert [one.name for one in ENCODERS.loaded.values()] == ["wide"]


def _probes(world: World) -> None:
    """The table is there, of the study's own encoders."""
    encoders = " ".join(str(path) for path in sorted((world["runs"] / "pretrain").iterdir()))
    probe = world.good(f"probe {encoders} --states 300 --epochs 1 --random 0 --out {{out}}").out
    assert "tables/probes.csv" not in written(world.once(REPORT))
    table = (world.good(f"{REPORT} --probes {probe}").out / "tables" / "probes.csv").read_text().splitlines()
    assert {row[1] for row in csv.reader(table[1:])} == {"3"}


REPORTS: dict[tuple[str, str], Check] = {
    ("report", "runs"): differ(REPORT, REPORT.replace("{runs}", "'{done study}'"), said),
    ("report", "out"): both(_report_out, refused("report --paper --out {out}", "--out: found")),
    ("report", "paper"): differ("report --paper", REPORT, said),
    ("report", "features"): both(_features, refused("report --paper --features none", "--features: found none")),
    ("report", "mds"): both(_mds, refused("report --paper --mds metric", "--mds: found metric")),
    ("report", "probes"): both(
        _probes,
        refused(f"{REPORT} --probes nowhere", "nowhere: found no probe.json, expected a folder that pvn probe wrote"),
        refused("report --paper --probes nowhere", "--probes: found"),
    ),
    ("report", "yardstick"): both(
        refused(f"{REPORT} --yardstick nowhere", "found runs with a yardstick of their own"),
        refused("report '{done study}' --out {out} --yardstick nowhere", "nowhere: found neither a study nor results"),
        refused("report --paper --yardstick nowhere", "--yardstick: found"),
    ),
    ("report", "env"): both(
        refused(f"{REPORT} --env gym/CartPole-v1", "--env: found gym/CartPole-v1, expected an environment of the runs"),
        refused("report --paper --env gym/CartPole-v1", "--env: found"),
    ),
    ("report", "code"): both(
        _report_code,
        refused(f"{REPORT} --code nothing.py", "--code: found no file nothing.py, expected a Python file"),
        refused("report --paper --code nothing.py", "--code: found"),
    ),
    ("report", "draws"): both(
        differ(REPORT, f"{REPORT} --draws 100", intervals),
        refused("report --paper --draws 100", "--draws: found 100, expected it only with RUNS"),
    ),
}


def _judged(world: World, verdict: str) -> Path:
    """A claims.json of a study without verdicts, but with a variant."""
    file: Path = world["out"].with_suffix(".json")
    lower = {"method": verdict, "base": "b", "difference": {"point": 0.0}, "stands_on": "", "needed": None}
    study = {"name": verdict, "title": "", "scale": "", "commands": [], "verdicts": [], "widths": []}
    write_json(file, {"format": "protovalue claims", "version": 1, **study, "contrasts": [lower]})
    return file


made("claims")(lambda world: _judged(world, "one"))
made("other claims")(lambda world: _judged(world, "two"))


def page_of(ran: Ran) -> str:
    """The page of claims."""
    return ran.out.read_text().replace(ran.out.name, "")


def _claims_out(world: World) -> None:
    assert "What a variant changes" in page_of(world.good("claims {claims} --out {out}"))


REPORTS |= {
    ("claims", "reports"): differ("claims {claims} --out {out}", "claims '{other claims}' --out {out}", page_of),
    ("claims", "out"): _claims_out,
}
REPORTS = {key: both(_no_pictures, check) for key, check in REPORTS.items()}


# Probes

PROBE = "probe random:minatar:0.25:5 --env minatar/breakout --states 300 --epochs 1 --random 0 --seed 1 --out {out}"


def scores_of(ran: Ran) -> list[dict[str, Any]]:
    """What was probed, with its scores."""
    found: list[dict[str, Any]] = json.loads((ran.out / "probe.json").read_bytes())["probed"]
    return found


def probe_differs(old: str, new: str) -> Check:
    """Another value gives other scores, or scores of others."""
    return differ(PROBE, PROBE.replace(old, new), scores_of)


def _probe_out(world: World) -> None:
    assert scores_of(world.once(PROBE))


PROBES: dict[tuple[str, str], Check] = {
    ("probe", "encoders"): probe_differs("random:minatar:0.25:5", "random:minatar:0.25:6"),
    ("probe", "out"): _probe_out,
    ("probe", "env"): both(
        probe_differs("minatar/breakout", "minatar/asterix"),
        refused("probe random:minatar:1 --out {out}", "--env: missing"),
    ),
    ("probe", "player"): differ(PROBE, f"{PROBE} --player {{breakout}}", scores_of),
    ("probe", "states"): probe_differs("--states 300", "--states 600"),
    ("probe", "random"): probe_differs("--random 0", "--random 1"),
    ("probe", "supervised"): differ(PROBE, f"{PROBE} --supervised 1", scores_of),
    ("probe", "epochs"): probe_differs("--epochs 1", "--epochs 9"),
    ("probe", "feature_scale"): differ(PROBE, f"{PROBE} --feature-scale rms", scores_of),
    ("probe", "seed"): probe_differs("--seed 1", "--seed 2"),
}


# Sets

SETS_OF = "pretrain --data {breakout} --steps 1 --batch-size 4 --width 0.25 --out {out} --tasks"


@made("sets")
def _sets(world: World) -> Path:
    return world.good(f"{SETS_OF} 3").out


@made("more sets")
def _more_sets(world: World) -> Path:
    return world.good(f"{SETS_OF} 4").out


@made("sets of data that moved")
def _sets_of_moved(world: World) -> tuple[Path, Path]:
    data = world.good("collect minatar/breakout --steps 60 --out {out}").out
    run = world.good(f"pretrain --data {data} --steps 1 --batch-size 4 --width 0.25 --tasks 3 --out {{out}}").out
    return run, data.rename(data.with_name(f"{data.name}-moved"))


def _sets_data(world: World) -> None:
    run, moved = world["sets of data that moved"]
    assert world.run(f"sets {run}").code == 2
    assert "3 sets on 60 transitions" in world.good(f"sets {run} --data {moved}").printed


def _sets_picture(world: World) -> None:
    ran = world.good("sets {sets} --picture {out}.png")
    assert ran.out.with_name(f"{ran.out.name}.png").read_bytes().startswith(b"\x89PNG")


def _sets_rows(world: World) -> None:
    drawn = [world.good(f"sets {{sets}} --picture {{out}}.png --rows {rows}").out for rows in (1, 2)]
    one, two = (out.with_name(f"{out.name}.png").read_bytes() for out in drawn)
    assert one[16:20] == two[16:20]  # as wide, and higher
    assert int.from_bytes(one[20:24]) < int.from_bytes(two[20:24])


SETS: dict[tuple[str, str], Check] = {
    ("sets", "run"): differ("sets {sets}", "sets {more sets}", printed),
    ("sets", "data"): both(_sets_data, refused("sets {sets} --data {breakout again}", "--data: found a data set with")),
    ("sets", "picture"): _sets_picture,
    ("sets", "rows"): both(
        _sets_rows, refused("sets {sets} --rows 2", "--rows: found 2, expected it with --picture only")
    ),
}


# The tabular page


def tabular(one: str, other: str) -> Check:
    """What is computed differs; pictures and page, which say the settings anyway, are not made."""

    def check(world: World) -> None:
        for name, value in (("RUNS", 1), ("STEPS", 10), ("WALK", 200), ("DESCENT_STEPS", 20)):
            world.patch.setattr(experiments, name, value)
        world.patch.setattr(tabular_command, "figures", MagicMock())
        computed = []
        world.patch.setattr(tabular_command, "write_page", lambda results, *_: computed.append(results))
        for words in (one, other):
            world.good(words)
        numbers = [
            [getattr(results, field.name) for field in fields(results) if field.name not in ("config", "world")]
            for results in computed
        ]
        assert repr(numbers[0]) != repr(numbers[1])

    return check


def _tabular_out(world: World) -> None:
    pages = world.root / "pages"
    world.patch.setattr(tabular_command, "write_page", lambda results, pictures, path: path.write_text("page"))
    for name, value in (("RUNS", 1), ("STEPS", 10), ("WALK", 200), ("DESCENT_STEPS", 20)):
        world.patch.setattr(experiments, name, value)
    world.patch.setattr(tabular_command, "figures", MagicMock())
    world.good(CHAIN.format(out=pages))
    assert (pages / "index.html").is_file()


@made("maze")
def _maze(world: World) -> Path:
    file: Path = world["out"].with_suffix(".txt")
    file.write_text("#######\n#.#...#\n#...#.#\n#######\n")
    return file


CHAIN = "tabular chain --size 7 --dimensions 2 --out {out}"
TABULAR: dict[tuple[str, str], Check] = {
    ("tabular", "out"): _tabular_out,
    ("tabular", "world"): tabular(CHAIN, CHAIN.replace("chain", "ring")),
    ("tabular", "map"): both(
        tabular(CHAIN, "tabular --map {maze} --dimensions 2 --out {out}"),
        refused(f"{CHAIN} --map {{maze}}", "expected one of four-rooms"),
    ),
    ("tabular", "size"): both(
        tabular(CHAIN, CHAIN.replace("7", "8")),
        refused("tabular four-rooms --size 7 --out {out}", "--size: found 7 for a world of fixed size"),
    ),
    ("tabular", "walls"): both(
        tabular(CHAIN, f"{CHAIN} --walls renormalise"),
        refused("tabular ring --walls stay --out {out}", "--walls: found stay for ring"),
    ),
    ("tabular", "gamma"): tabular(CHAIN, f"{CHAIN} --gamma 0.5"),
    ("tabular", "dimensions"): tabular(CHAIN, CHAIN.replace("dimensions 2", "dimensions 3")),
    ("tabular", "proportion"): tabular(CHAIN, f"{CHAIN} --proportion 0.4"),
    ("tabular", "seed"): tabular(CHAIN, f"{CHAIN} --seed 1"),
}


# Benchmarks and the demo


def _bench(world: World) -> None:
    folder = world["out"]
    (folder / "benchmarks").mkdir(parents=True)
    for name in ("one", "two"):
        (folder / "benchmarks" / f"{name}.py").write_text(f"def main(quick):\n    print('{name}', quick)\n")
    (folder / "benchmarks" / "code.py").write_text("def main(quick, *, code=None):\n    print(quick, code)\n")
    world.patch.setattr(protovalue, "__file__", str(folder / "src" / "protovalue" / "__init__.py"))
    assert world.good("bench one").printed == "one False\n"
    assert world.good("bench two --quick").printed == "two True\n"
    assert world.good("bench code").printed == "False None\n"
    assert world.good("bench code --code /checkout").printed == "False /checkout\n"
    refused("bench one --code /checkout", "--code: found it for one")(world)
    refused("bench three", "unknown benchmark 'three'")(world)


def _demo(world: World) -> None:
    """Its stages are other commands: here they only say where they would write."""
    asked: dict[str, Path] = {}
    world.patch.setattr(demo, "tabular", lambda config: asked.update(tabular=config.out))
    world.patch.setattr(demo, "study_run", lambda config: asked.update(study=config.out))
    world.patch.setattr(demo, "report_command", lambda config: asked.update(report=config.out))
    cell = type("Cell", (), {"score": 1.0, "run": Path("run"), "method": "pvn"})
    world.patch.setattr(demo, "read_results", lambda runs: type("Results", (), {"cells": [cell]}))
    world.patch.setattr(demo, "evaluate_run", lambda config, quiet: asked.update(film=config.video))
    ran = world.good("demo --out {out}")
    names = {"tabular": "four-rooms", "study": "study", "report": "report", "film": "episode.gif"}
    assert asked == {name: ran.out / place for name, place in names.items()}


def _cache(world: World) -> None:
    """tests/test_caches.py has all that they do."""
    cache = world["out"]
    for name in ("a" * 32, "b" * 32):
        (cache / name).mkdir(parents=True)
    assert world.good(f"cache list --cache {cache}").printed.count(" damaged\n") == 2
    assert world.good("cache list").printed.count(" damaged\n") == 0
    world.good(f"cache clear --cache {cache} aaaa")
    assert [path.name for path in cache.iterdir()] == ["b" * 32]
    world.good("cache clear")
    assert [path.name for path in cache.iterdir()] == ["b" * 32]
    refused(f"cache clear --cache {cache} aaaa", "NAMES: found 'aaaa', which 0 entries")(world)


def _check_steps(world: World) -> None:
    """The number goes to every comparison; tests/test_check.py has what they do."""
    asked: list[int] = []

    def compared(device: str, threads: int, steps: int) -> list[Any]:
        asked.append(steps)
        return []

    world.patch.setattr(check, "compared", compared)
    world.good("check --device cpu")
    world.good("check --device cpu --steps 7")
    assert asked == [3, 7]


CHECKS: dict[tuple[str, str], Check] = {
    **STUDIES,
    **REPORTS,
    **PROBES,
    **SETS,
    **TABULAR,
    ("list", "kind"): differ("list encoders", "list methods", printed),
    ("list", "name"): differ("list encoders impala", "list encoders {wide}", printed),
    ("cache list", "cache"): _cache,
    ("cache clear", "cache"): _cache,
    ("cache clear", "names"): _cache,
    ("check", "device"): refused("check --device cuda", "--device: found cuda, expected cpu"),
    ("check", "steps"): _check_steps,
    ("bench", "name"): _bench,
    ("bench", "quick"): _bench,
    ("bench", "code"): _bench,
    ("demo", "out"): _demo,
}
