"""Everything that the package reads, small and made once: data sets, published files, runs, encoders, a study."""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from protovalue.study.command import open_study
from protovalue.study.folder import Events, write_study
from protovalue.study.rates import Rate, remember
from protovalue.tabular.gridworlds import load_map
from tests.data.published import (
    CONTENTS,
    Ring,
    atari_episode,
    tfds_record,
    tfrecord,
    write_atari,
    write_metadata,
    write_rlu,
)
from tests.faults.children import here, run

STUDY = """
environments = ["minatar/breakout"]
normalise = "dqn"
[data]
steps = 64
num_envs = 2
[pretrain]
steps = 2
batch_size = 4
[online]
steps = 12
replay_min = 5
[dqn]
steps = 12
replay_min = 5
[evaluate]
episodes = 1
[methods.pvn]
tasks = 8
[methods.dqn]
"""
GAME = "minatar/breakout"
PRETRAIN = "pretrain --data data --tasks 8 --batch-size 4 --checkpoint-every 2 --log-every 1 --threads 1"
REWARD = "pretrain --method reward --data data --batch-size 4 --steps 2 --threads 1"
AGENT = "--replay-min 5 --checkpoint-every 10 --log-every 5 --keep-replay --threads 1"
ONLINE = f"online --encoder pre {AGENT}"
TUNE = f"online --encoder pre --finetune {AGENT}"
DQN = f"dqn --env {GAME} --prioritised {AGENT}"
RECORD = f"dqn --env {GAME} --record recorded --iterations 3 {AGENT}"
STUDIED = "study.toml --out study"


def build(top: Path) -> None:
    """Make it in an empty folder, in which the commands run: all paths are relative to it."""
    words: list[str | Callable[[], object]] = [
        lambda: _published(top),  # ArrayRecord's threads would not outlive a fork
        f"collect {GAME} --steps 200 --num-envs 2 --out data",
        f"{PRETRAIN} --steps 4 --out pre",
        f"{PRETRAIN} --steps 2 --out pre-part",
        f"{ONLINE} --steps 40 --out on",
        f"{ONLINE} --steps 20 --out on-part",
        f"{TUNE} --steps 20 --out tune-part",
        f"{DQN} --steps 20 --out dqn-part",
        lambda: _until_checkpoint(f"{RECORD} --steps 24 --out record-part", 2),
        "evaluate on --episodes 4",
        "import rlu rlu/Breakout --workers 1 --out imported",
        lambda: _studied(top),
    ]
    for command in words:
        ended = here(command, top) if isinstance(command, str) else run(command, top)
        if ended.code:
            raise RuntimeError(f"{command}: {ended.said}")
    (top / "maze.txt").write_text("######\n#....#\n#.##.#\n#....#\n######\n")


def _until_checkpoint(words: str, number: int) -> None:
    """Run a command until it has written so many checkpoints: as if it was killed then."""
    from protovalue.cli import main
    from protovalue.runs import Run

    real, written = Run.save, 0

    def save(self: Run, *arguments: Any) -> None:
        nonlocal written
        real(self, *arguments)
        written += 1
        if written == number:
            os._exit(0)

    Run.save = save  # type: ignore[method-assign, assignment]
    main(words.split())
    raise RuntimeError(f"{words}: ended with {written} checkpoints")


def _published(top: Path) -> None:
    """Files of the three published formats."""
    rng = np.random.default_rng(0)
    data = write_atari(top / "atari", [atari_episode(length, rng) for length in (5, 3, 8)])
    write_rlu(top / "rlu/Breakout/run_1-00000-of-00001", data)
    records = [tfds_record(data.episode(i), i) for i in range(data.num_episodes)]
    (top / "tfds/Breakout_run_1").mkdir(parents=True)
    name = "rlu_atari-checkpoint_07"
    (top / f"tfds/Breakout_run_1/{name}.tfrecord-00000-of-00001").write_bytes(tfrecord(records))
    from array_record.python.array_record_module import ArrayRecordWriter

    (top / "array/Breakout_run_1").mkdir(parents=True)
    writer = ArrayRecordWriter(str(top / f"array/Breakout_run_1/{name}.array_record-00000-of-00001"), "group_size:1")
    for record in records:
        writer.write(record)
    writer.close()
    ring = Ring(40)
    for index in range(data.num_episodes):
        ring.add_episode(data.episode(index))
    ring.save(top / "dqn-replay/Breakout/1/replay_logs", 7)
    shutil.rmtree(top / "atari")
    _minari(top / "minari", rng)


def _minari(folder: Path, rng: np.random.Generator) -> None:
    """Two episodes of Breakout, one compressed."""
    box = {"type": "Box", "dtype": "bool", "shape": [10, 10, 4], "low": False, "high": True}
    write_metadata(
        folder, observation_space=json.dumps(box), action_space=json.dumps({"type": "Discrete", "n": 3, "start": 0}),
        env_spec=json.dumps({"id": "MinAtar/Breakout-v1"}), total_steps=15,
    )  # fmt: skip
    with h5py.File(folder / "main_data.hdf5", "w") as file:
        for number, steps in enumerate((6, 9)):
            ends = np.arange(steps) == steps - 1
            arrays = {
                "observations": rng.random((steps + 1, 10, 10, 4)) < 0.2, "actions": rng.integers(3, size=steps),
                "rewards": rng.random(steps), "terminations": ends, "truncations": np.zeros(steps, np.bool_),
            }  # fmt: skip
            for name, values in arrays.items():
                file.create_dataset(f"episode_{number}/{name}", data=values, compression="gzip" if number else None)


def _studied(top: Path) -> None:
    """Run every stage of a study, here, where its own command would start processes, and write what it writes."""
    from protovalue.cli import main

    (top / "study.toml").write_text(STUDY)
    study, root, laid_out = open_study(Path("study.toml"), Path("study"))
    root.mkdir()
    write_study(root, laid_out.fields(study))
    events = Events(root)
    for stage in laid_out.stages:
        events.write(stage.id, "start")
        if main(list(stage.command[1:])):
            raise RuntimeError(f"{stage.id} failed")
        events.write(stage.id, "done", seconds=1.0, cpu_seconds=1.0)
    events.close()
    remember({"a rate": Rate(1.0, 2.0, "here"), laid_out.stages[0].rate: Rate(0.5, 2.0, "here")})


# What came out of a command


def digest(data: bytes) -> str:
    """A short name for contents."""
    return hashlib.sha256(data).hexdigest()[:16]


def files(folder: Path, *names: str) -> dict[str, str]:
    """Contents by name."""
    found = sorted(path for name in names for path in folder.glob(name))
    return {str(path.relative_to(folder)): digest(path.read_bytes()) for path in found}


def fields(path: Path, *without: str) -> dict[str, Any]:
    """What a JSON file of ours says, without what is never the same twice."""
    found: dict[str, Any] = json.loads(path.read_bytes())
    return {name: value for name, value in found.items() if name not in ("sha256", *without)}


def curves(run_folder: Path) -> list[dict[str, Any]]:
    """Metrics without times."""
    rows = map(json.loads, (run_folder / "metrics.jsonl").read_text().splitlines())
    timed = ("time", "crc32")
    return [
        {k: v for k, v in row.items() if k not in timed and "per_second" not in k and "/s" not in k} for row in rows
    ]


def data_set(folder: Path) -> dict[str, Any]:
    """All that a data set holds."""
    return {**files(folder, *CONTENTS), **fields(folder / "manifest.json")}


def pretrained(folder: Path) -> dict[str, Any]:
    """The encoder, its indicators and the curves."""
    return {**files(folder, "encoder/model.safetensors", "indicator/*.safetensors"), "curves": curves(folder)}


def agents(folder: Path) -> dict[str, Any]:
    """The last checkpoint with all its tensors, and the curves."""
    last = max((folder / "checkpoints").iterdir())
    return {
        "last": last.name, **files(last, "tensors.safetensors"), "state": fields(last / "state.json"),
        "curves": curves(folder),
    }  # fmt: skip


def study_results(root: Path) -> dict[str, Any]:
    """Every return of every agent, and every encoder."""
    found = sorted([*root.glob("*/*/evaluation.json"), *root.glob("*/*/random.json")])
    scores = {str(path.relative_to(root)): fields(path) for path in found}
    return {**scores, **files(root, "data/*/*.bin", "pretrain/*/encoder/model.safetensors")}


def report(folder: Path) -> dict[str, Any]:
    """The page, tables and figures."""
    return files(folder, "index.html", "tables/*", "figures/*.png")


def collected(folder: Path) -> dict[str, Any]:
    """How much there is: a continued collection begins new episodes. All of it must be whole."""
    ended = run(f"data verify {folder.name}", folder.parent)
    if ended.code:
        raise ValueError(ended.said)
    said = fields(folder / "manifest.json")
    return {"transitions": said["transitions"], "complete": said["complete"]}


Result = Callable[[Path, str], Any]


@dataclass(frozen=True)
class Target:
    """A command, what it reads, and what comes out of it."""

    name: str
    words: str | Callable[[], object]
    reads: tuple[str, ...]
    """Globs of the files that may be damaged."""
    needs: tuple[str, ...]
    """Files and folders that it runs with."""
    result: Result
    """From the folder that it ran in and what it printed."""
    says: tuple[str, ...] = ()
    """Globs of what it writes that says what was passed over, beside what it prints."""
    sealed: bool = True
    """Whether its files have checksums; where they have none, another content is another input."""
    threads: bool = False
    """Whether what it needs starts threads, which no fork outlives."""
    weight: int = 4
    """How often its files are damaged, compared with others."""


def _printed(_: Path, printed: str) -> Any:
    return printed


def _info(top: Path, printed: str) -> Any:
    return re.sub(r"on disk .*", "", printed), files(top, "p.png")


def _maze() -> None:
    """Read a drawing, as `pvn tabular --map` does before it computes for half a minute."""
    world = load_map(Path("maze.txt"))
    print(world.name, [matrix.toarray().tolist() for matrix in world.transitions])


DATA = ("data/manifest.json", "data/*.bin")
RUN = ("config.json", "metrics.jsonl", "checkpoints/*/*")
REPLAYED = (*RUN, "replay/*.bin")
STUDY_FILES = (
    "study/study.json", "study/events.jsonl", "study/data/*/*.json", "study/*/*/done.json", "study/*/*/*.json",
)  # fmt: skip
REPORT_FILES = (*STUDY_FILES, "study/*/*/metrics.jsonl", "study/pretrain/*/encoder/*", "study/*/*/checkpoints/*/*")


def _under(folder: str, names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{folder}/{name}" for name in names)


def _added(folder: Path, before: int) -> Any:
    """What a command adds to a data set of so many transitions; what was there is not read and has its checksums."""
    return {
        "manifest": fields(folder / "manifest.json"), **files(folder, "episodes.bin"),
        "added": [digest((folder / name).read_bytes()[4 * before :]) for name in ("actions.bin", "rewards.bin")],
    }  # fmt: skip


def _verified(top: Path, printed: str) -> Any:
    """What is called good must be what was written."""
    return printed, data_set(top / "data")


TARGETS = [
    Target("data info", "data info data --picture p.png", DATA, ("data",), _info),
    Target("data verify", "data verify data", DATA, ("data",), _verified),
    Target(
        "collect", f"collect {GAME} --steps 230 --num-envs 2 --out data", DATA, ("data",),
        lambda top, _: _added(top / "data", 200), weight=3,
    ),
    Target(
        "import rlu", "import rlu rlu/Breakout --workers 1 --out new", ("rlu/*/*",), ("rlu",),
        lambda top, _: data_set(top / "new"),
    ),
    Target(
        "import rlu (tfrecord)", "import rlu tfds --workers 1 --out new", ("tfds/*/*",), ("tfds",),
        lambda top, _: data_set(top / "new"), weight=2,
    ),
    Target(
        "import rlu (array_record)", "import rlu array --workers 1 --out new", ("array/*/*",), ("array",),
        lambda top, _: data_set(top / "new"), weight=2, threads=True,
    ),
    Target(
        "import rlu (goes on)", "import rlu rlu/Breakout --workers 1 --out imported",
        ("imported/manifest.json", "imported/*.bin"), ("rlu", "imported"), lambda top, printed: printed, weight=2,
    ),
    Target(
        "import dqn-replay", "import dqn-replay dqn-replay/Breakout --out new", ("dqn-replay/*/*/*/*",),
        ("dqn-replay",), lambda top, _: data_set(top / "new"),
    ),
    Target(
        "import minari", "import minari minari --workers 1 --out new", ("minari/*",), ("minari",),
        lambda top, _: data_set(top / "new"), sealed=False, weight=6,
    ),
    Target(
        "pretrain", f"{PRETRAIN} --steps 2 --out new", (*DATA, "cache/indicators/*/*"), ("data", "cache"),
        lambda top, _: pretrained(top / "new"), weight=6,
    ),
    Target(
        "pretrain (reward)", f"{REWARD} --out new", DATA, ("data",), lambda top, _: pretrained(top / "new"), weight=2
    ),
    Target(
        "pretrain (goes on)", f"{PRETRAIN} --steps 4 --out pre-part",
        _under("pre-part", (*RUN, "indicator/*", "encoder/*", "done.json")), ("data", "cache", "pre-part"),
        lambda top, _: pretrained(top / "pre-part"),
    ),
    Target(
        "online", f"{ONLINE} --steps 10 --out new", ("pre/encoder/*",), ("pre",), lambda top, _: agents(top / "new")
    ),
    Target(
        "online (goes on)", f"{ONLINE} --steps 40 --out on-part", _under("on-part", (*REPLAYED, "done.json")),
        ("pre", "on-part"), lambda top, _: agents(top / "on-part"),
    ),
    Target(
        "online (finetune)", f"{TUNE} --steps 24 --out tune-part", _under("tune-part", (*REPLAYED, "done.json")),
        ("pre", "tune-part"), lambda top, _: agents(top / "tune-part"), weight=2,
    ),
    Target(
        "dqn (goes on)", f"{DQN} --steps 24 --out dqn-part", _under("dqn-part", (*REPLAYED, "done.json")),
        ("dqn-part",), lambda top, _: agents(top / "dqn-part"),
    ),
    Target(
        "dqn (records)", f"{RECORD} --steps 24 --out record-part",
        (*_under("record-part", REPLAYED), "recorded/manifest.json", "recorded/*.bin"), ("record-part", "recorded"),
        lambda top, _: (agents(top / "record-part"), _added(top / "recorded", 20)), weight=2,
    ),
    Target(
        "evaluate", "evaluate on --episodes 4 --out new.json",
        (*_under("on", ("config.json", "checkpoints/*/*", "done.json")), "pre/encoder/*"), ("on", "pre"),
        lambda top, _: fields(top / "new.json"),
    ),
    Target("study status", f"study status {STUDIED}", ("study.toml", *STUDY_FILES), ("study.toml", "study"), _printed),
    Target(
        "study plan", f"study plan {STUDIED} --measure no", ("study.toml", *STUDY_FILES, "cache/rates.json"),
        ("study.toml", "study", "cache"), _printed,
    ),
    Target(
        "study run", f"study run {STUDIED}", ("study/study.json", "study/events.jsonl"), ("study.toml", "study"),
        lambda top, printed: (printed, study_results(top / "study")), weight=2,
    ),
    Target(
        "report", "report study --features none --draws 100 --out new", REPORT_FILES, ("study",),
        lambda top, _: report(top / "new"), says=("new/index.html",), weight=2,
    ),
    Target(
        "report (features)", "report study --features first --draws 100 --out new", REPORT_FILES, ("study",),
        lambda top, _: report(top / "new"), says=("new/index.html",), weight=1,
    ),
    Target("tabular --map", _maze, ("maze.txt",), ("maze.txt",), _printed, sealed=False, weight=1),
]  # fmt: skip


@dataclass(frozen=True)
class Job:
    """A command that takes a while and can be killed."""

    name: str
    words: str
    needs: tuple[str, ...]
    result: Callable[[Path], Any]
    """From the folder that it ran in."""


TRAIN = "--checkpoint-every 20 --log-every 5 --replay-min 5 --keep-replay --threads 1"
JOBS = [
    Job("collect", f"collect {GAME} --steps 4000 --num-envs 4 --out new", (), lambda top: collected(top / "new")),
    Job(
        "collect --policy dqn", f"collect {GAME} --policy dqn --steps 90 --out new", (),
        lambda top: data_set(top / "new"),
    ),
    Job(
        "pretrain", "pretrain --data data --tasks 8 --batch-size 8 --checkpoint-every 5 --log-every 1 --threads 1 "
        "--steps 40 --out new", ("data",), lambda top: pretrained(top / "new"),
    ),
    Job(
        "online", f"online --encoder pre --seeds 0-1 --steps 150 --out new {TRAIN}", ("pre",),
        lambda top: agents(top / "new"),
    ),
    Job(
        "online --finetune", f"online --encoder pre --finetune --steps 60 --out new {TRAIN}", ("pre",),
        lambda top: agents(top / "new"),
    ),
    Job(
        "dqn", f"dqn --env {GAME} --prioritised --steps 80 --out new --replay-dir replayed {TRAIN}", (),
        lambda top: agents(top / "new"),
    ),
    Job(
        "dqn --record", f"dqn --env {GAME} --record seen --iterations 3 --steps 80 --out new {TRAIN}", (),
        lambda top: (agents(top / "new"), data_set(top / "seen")),
    ),
    Job("import rlu", "import rlu rlu/Breakout --workers 1 --out new", ("rlu",), lambda top: data_set(top / "new")),
    Job(
        "import dqn-replay", "import dqn-replay dqn-replay/Breakout --out new", ("dqn-replay",),
        lambda top: data_set(top / "new"),
    ),
    Job("import minari", "import minari minari --workers 1 --out new", ("minari",), lambda top: data_set(top / "new")),
    Job(
        "evaluate", "evaluate on --episodes 30", ("on", "pre"), lambda top: fields(top / "on/evaluation.json"),
    ),
    Job(
        "report", "report study --features none --draws 100 --out new", ("study",), lambda top: report(top / "new"),
    ),
    Job("study run", "study run study.toml --out new", ("study.toml",), lambda top: study_results(top / "new")),
]  # fmt: skip
