"""Reports: processor time of `pvn report` of studies as large as minatar-main and minatar-scaling.

The studies are made here: encoders that were drawn and not trained, with returns and curves that are made up. Each
report is a process of its own, begun anew, so that importing counts. `pvn report --features none` is the part without
looking through encoders.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for the tests folder

import numpy as np

from protovalue.encoder import save_encoder
from protovalue.envs.registry import make
from protovalue.files import write_json
from protovalue.nets.encoders import make_encoder
from protovalue.randomness import Purpose, seeded
from protovalue.study.folder import write_study
from tests.report import made

METHODS = ("pvn", "pvn-hash", "pvn-max", "cumulants", "spr", "bc", "laplacian", "random", "reward")
WIDTHS, TASKS = (0.25, 0.5, 1, 2), (0, 1, 5, 10, 25, 50, 100, 200)
GAMES = ("space_invaders", "breakout", "asterix")
LINES = 20  # of an agent's log


class Study:
    """A study's folder that is being made."""

    def __init__(self, root: Path, games: Sequence[str]) -> None:
        self.root, self.games = root, [f"minatar/{game}" for game in games]
        self.rng = np.random.default_rng(0)
        self.cells: list[dict[str, Any]] = []
        self.stages: list[dict[str, Any]] = []
        self.shapes = {game: make(game, 1).single_observation_space.shape for game in self.games}

    def encoders(self, method: str, width: float = 1, tasks: int | None = None) -> None:
        """Add three encoders with three agents each in every game."""
        learned = "random" if tasks == 0 else method.partition("-")[0]
        for game in self.games:
            for seed in range(3):
                name = f"{game.partition('/')[2]}-{method}-x{width}-t{tasks}-s{seed}"
                settings = {"seed": seed, "architecture": "minatar", "width": width, "variant": method, "tasks": tasks}
                folder = self.root / "pretrain" / name
                encoder = make_encoder("minatar", self.shapes[game], width, seeded(len(self.cells), Purpose.ENCODER))
                about = {"method": learned, "env_id": game, "config": settings}
                save_encoder(folder / "encoder", encoder, "minatar", width, about, ())
                self._run(f"online/{name}", game, 10.0, folder)
                self._cell(game, method, name, "online", width, tasks, seed, [0, 1, 2])

    def yardstick(self) -> None:
        """Add three end-to-end agents and random actions in every game."""
        for game in self.games:
            for seed in range(3):
                name = f"{game.partition('/')[2]}-s{seed}"
                self._run(f"dqn/{name}", game, 20.0, None, seeds=[seed])
                self._cell(game, "dqn", name, "dqn", 1, None, None, [seed])
            write_json(self.root / f"random-{game.partition('/')[2]}.json", made.played(game, [1.0]))

    def write(self) -> None:
        """Write study.json."""
        titles = {cell["method"]: {"title": cell["method"]} for cell in self.cells}
        random = {game: f"random-{game.partition('/')[2]}.json" for game in self.games}
        fields = {"name": "made", "title": "Made", "normalise": "dqn", "methods": titles, "random_policy": random}
        write_study(self.root, {**fields, "cells": self.cells, "stages": self.stages, "file": None})

    def _run(self, place: str, game: str, level: float, encoder: Path | None, seeds: Sequence[int] = (0, 1, 2)) -> None:
        returns = (level + self.rng.normal(size=len(seeds))).tolist()
        folder = made.run(self.root / place, game, returns, encoder, steps=20_000, seeds=seeds)
        logged = [
            {"step": 1_000 * line, **{f"return/seed-{s}": float(level * line / LINES) for s in seeds}}
            for line in range(1, LINES + 1)
        ]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in logged))

    def _cell(
        self, game: str, method: str, name: str, kind: str, width: float, tasks: int | None, seed: int | None,
        seeds: list[int],
    ) -> None:  # fmt: skip
        kinds = ("pretrain", "online", "evaluate") if kind == "online" else ("dqn", "evaluate")
        data_seed = None if seed is None else 0
        own = [{"id": f"{one}/{name}", "kind": one, "command": ["pvn", one, name]} for one in kinds]
        self.stages += own
        self.cells.append(
            {"env": game, "method": method, "width": width, "tasks": tasks, "data_seed": data_seed,
             "pretraining_seed": seed, "seeds": seeds, "data": None, "run": f"{kind}/{name}",
             "encoder": f"pretrain/{name}" if kind == "online" else None, "stages": [one["id"] for one in own]}
        )  # fmt: skip


def main_study(root: Path, games: Sequence[str] = GAMES, methods: Sequence[str] = METHODS) -> Study:
    """Make a study of the size of minatar-main: nine methods and DQN in three games."""
    study = Study(root, games)
    for method in methods:
        study.encoders(method)
    study.yardstick()
    study.write()
    return study


def scaling_study(root: Path) -> Study:
    """Make a study of the size of minatar-scaling: four widths, eight numbers of tasks, two games."""
    study = Study(root, GAMES[:2])
    for width in WIDTHS:
        for tasks in TASKS:
            study.encoders("pvn", width, tasks)
    study.yardstick()
    study.write()
    return study


def seconds(study: Study, out: Path, *options: str) -> float:
    """Processor time of a report, in a process of its own on one thread."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "protovalue", "report", str(study.root), "--out", str(out), *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main(quick: bool) -> None:
    """Print the table and a line of JSON."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        studies = {"minatar-main": main_study(folder / "main")}
        if not quick:
            studies["minatar-scaling"] = scaling_study(folder / "scaling")
        taken: dict[str, list[float]] = {}
        for _ in range(1 if quick else 3):
            for size, study in studies.items():
                for what, options in (("report", ()), ("without features", ("--features", "none"))):
                    key = f"as {size}, {len(study.stages)} stages: {what} [s of processor time]"
                    taken.setdefault(key, []).append(seconds(study, folder / "out", *options))
    result = {key: statistics.median(found) for key, found in taken.items()}
    for key, value in result.items():
        print(f"{key:<80}{value:>8.1f}")
    print(json.dumps({"benchmark": "report", **result}))
