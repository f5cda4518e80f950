"""The campaign: damaged files, kills and full disks, each from a seed and a number, and what came of them."""

import json
import os
import random
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults import children
from tests.faults.children import ROOM, Ended
from tests.faults.damage import damage
from tests.faults.world import JOBS, TARGETS, Job, Target, build

SEED = 14
CLEAN, UNCHANGED, TOLD, INPUT = "clean error", "unchanged", "told", "other input"
SILENT, UNCLEAR, TRACEBACK, HANG, MEMORY = "silent", "unclear error", "traceback", "hang", "over memory"
GOOD, BAD = (CLEAN, UNCHANGED, TOLD, INPUT), (SILENT, UNCLEAR, TRACEBACK, HANG, MEMORY)


@dataclass(frozen=True)
class Found:
    """What came of one case."""

    number: int
    command: str
    outcome: str
    what: str
    """The file and how it was damaged, or when it was killed."""
    said: str = ""


@dataclass
class World:
    """The made files, the folder in which cases are tried, and what comes out of every command if all is well."""

    base: Path
    seed: int = SEED
    results: dict[str, tuple[Any, set[str]]] = field(default_factory=dict)

    times: dict[str, tuple[Any, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Make the files, unless they are there."""
        os.environ["PROTOVALUE_CACHE"] = "cache"  # relative to the folder of a case
        self.kept, self.case = self.base / "kept", self.base / "case"
        if not self.kept.exists():
            children.import_everything()
            self.kept.mkdir(parents=True)
            build(self.kept)

    def fresh(self, needs: tuple[str, ...]) -> Path:
        """Empty the folder for a case and put copies of some files there."""
        shutil.rmtree(self.case, ignore_errors=True)
        self.case.mkdir()
        for name in needs:
            if (self.kept / name).is_dir():
                shutil.copytree(self.kept / name, self.case / name)
            else:
                shutil.copyfile(self.kept / name, self.case / name)
        return self.case

    def expected(self, target: Target) -> tuple[Any, set[str]]:
        """Return what comes out of undamaged files, and what is said then; it must be the same twice."""
        if target.name not in self.results:
            found = []
            for first in (True, False):
                folder = self.fresh(target.needs)
                if first and isinstance(target.words, str) and not target.threads:
                    ended = children.here(target.words, folder)
                else:
                    ended = children.run(target.words, folder)
                if ended.code:
                    raise RuntimeError(f"{target.name}: {ended.said}")
                found.append(target.result(folder, ended.printed))
            if found[0] != found[1]:
                raise RuntimeError(f"{target.name}: not the same twice: {found[0]} {found[1]}")
            self.results[target.name] = found[1], _lines(_all_said(target, folder, ended))
        return self.results[target.name]

    def ended(self, job: Job) -> tuple[Any, float]:
        """Return what comes out of a command that is not killed, and how many seconds it takes."""
        if job.name not in self.times:
            folder = self.fresh(job.needs)
            ended = children.run(job.words, folder)
            if ended.code:
                raise RuntimeError(f"{job.name}: {ended.said}")
            self.times[job.name] = job.result(folder), ended.seconds
        return self.times[job.name]


def _lines(said: str) -> set[str]:
    """Lines without their numbers, which differ from time to time."""
    return {"".join("0" if one.isdigit() else one for one in line) for line in said.splitlines()}


def _all_said(target: Target, folder: Path, ended: Ended) -> str:
    """All in which a command can say what it left out."""
    pages = [path.read_text() for glob in target.says for path in sorted(folder.glob(glob))]
    return "\n".join([ended.said, ended.printed, *pages])


# Damaged files


def schedule(targets: list[Target]) -> list[Target]:
    """Return the order in which commands take turns."""
    most = max(target.weight for target in targets)
    return [target for turn in range(most) for target in targets if target.weight > turn]


def try_damage(world: World, number: int, targets: list[Target] = TARGETS) -> Found:
    """Damage one file as the seed and the number say, run a command on it and judge what came of it."""
    turns = schedule(targets)
    target = turns[number % len(turns)]
    chance = random.Random(world.seed * 1_000_003 + number)
    expected, usual = world.expected(target)
    folder = world.fresh(target.needs)
    files = sorted({path for glob in target.reads for path in folder.glob(glob) if path.is_file()})
    groups = sorted({path.name for path in files})  # a kind of file as often as another, however many there are
    name = chance.choice(groups)
    path = chance.choice([path for path in files if path.name == name])
    everything = sorted(path for path in world.kept.rglob("*") if path.is_file() and "events" not in path.parts)
    others = [other for other in everything if other.suffix != path.suffix and other.stat().st_size]
    how, unseen = damage(path, others, chance)
    what = f"{path.relative_to(folder)}: {how}"
    ended = children.run(target.words, folder)
    free = unseen or not target.sealed or path.suffix == ".toml"
    return Found(number, target.name, _judge(target, folder, path, ended, expected, usual, free), what, ended.said)


def _judge(target: Target, folder: Path, path: Path, ended: Ended, expected: Any, usual: set[str], free: bool) -> str:
    if ended.hung:
        return HANG
    if ended.grown > ROOM or "out of memory" in ended.said:
        return MEMORY
    if "Traceback (most recent call last)" in ended.said or ended.code not in (0, 2):
        return TRACEBACK
    names = [str(one.relative_to(folder)) for one in (path, *path.parents) if one != folder and folder in one.parents]
    new = [line for line in _all_said(target, folder, ended).splitlines() if not _lines(line) <= usual]
    if ended.code == 2:
        last = ended.said.strip().splitlines()[-1]
        one = sum(line.startswith("pvn: ") for line in ended.said.splitlines()) == 1
        return CLEAN if one and last.startswith("pvn: ") and any(name in last for name in names) else UNCLEAR
    try:
        result = target.result(folder, ended.printed)
    except (OSError, ValueError, LookupError) as error:
        result = error
    if result == expected:
        return UNCHANGED
    # The page of a report says of a diary that has lost lines which times it lacks, but not in which file.
    names += ["It lacks the time of"] if path.name == "events.jsonl" else []
    if any(name in line for line in new for name in names):
        return TOLD
    return INPUT if free else SILENT


# Kills and full disks


def try_kills(world: World, number: int, jobs: list[Job] = JOBS, most: int = 3) -> list[Found]:
    """Kill a command with -9 up to `most` times, then let the same command end; judge what came out.

    Every second time Python is started anew and killed before it can have imported much.
    """
    job = jobs[number % len(jobs)]
    chance = random.Random(world.seed * 1_000_033 + number)
    expected, usual = world.ended(job)
    folder = world.fresh(job.needs)
    moments, kills = [], 0
    for _ in range(chance.randint(1, most)):
        if chance.random() < 0.35:
            moment = chance.uniform(0.0, 0.6)
            code = children.run_anew(job.words, folder, moment)
            moments.append(f"{moment:.3f} s after Python's start")
        else:
            moment = chance.uniform(0.0, usual)
            ended = children.run(job.words, folder, kill_after=moment)
            code = ended.code
            moments.append(f"{moment:.3f} s")
        if code == 0:  # it was faster
            moments.pop()
            break
        if code != -signal.SIGKILL:
            return [Found(number, job.name, TRACEBACK, f"ended with {code} before it was killed")]
        kills += 1
    ended = children.run(job.words, folder)
    outcome = _continued(job, folder, ended, expected)
    what = f"killed after {', '.join(moments)}"
    return [Found(number, job.name, outcome, what, ended.said)] * kills


def try_full_disk(world: World, number: int, jobs: list[Job] = JOBS) -> list[Found]:
    """Run a command on disks that take files of a few bytes and more, then on one with room; judge each."""
    job = jobs[number % len(jobs)]
    chance = random.Random(world.seed * 1_000_037 + number)
    expected, _ = world.ended(job)
    folder, found = world.fresh(job.needs), []
    for size in sorted(int(2 ** chance.uniform(0, 17)) - 1 for _ in range(2)):
        ended = children.run(job.words, folder, largest_file=size)
        found.append(Found(number, job.name, _full(ended), f"files of at most {size} bytes", ended.said))
    ended = children.run(job.words, folder)
    outcome = _continued(job, folder, ended, expected)
    if outcome in BAD:
        found[-1] = Found(number, job.name, outcome, f"{found[-1].what}, then all the room", ended.said)
    return found


def _full(ended: Ended) -> str:
    if ended.code == 0:
        return UNCHANGED
    lines = [line for line in ended.said.splitlines() if line.startswith("pvn: ")]
    if ended.hung or ended.code != 2 or "Traceback" in ended.said:
        return HANG if ended.hung else TRACEBACK
    return CLEAN if len(lines) == 1 and "too large" in ended.said.lower() else UNCLEAR


def _continued(job: Job, folder: Path, ended: Ended, expected: Any) -> str:
    """Judge a command that was let to its end after faults."""
    if ended.hung:
        return HANG
    if "Traceback (most recent call last)" in ended.said or ended.code not in (0, 2):
        return TRACEBACK
    if ended.code:
        return UNCLEAR
    left = list(folder.rglob(".*"))
    return UNCHANGED if job.result(folder) == expected and not left else SILENT


# Tables


def table(found: list[Found], title: str, outcomes: tuple[str, ...] = (*GOOD, *BAD)) -> str:
    """Return outcomes by command as a Markdown table."""
    counts = Counter((one.command, one.outcome) for one in found)
    commands = list(dict.fromkeys(one.command for one in found))
    rows = [[name, *(str(counts[name, outcome]) for outcome in outcomes)] for name in sorted(commands)]
    rows.append(["all", *(str(sum(counts[name, outcome] for name in commands)) for outcome in outcomes)])
    rows = [[title, *outcomes], *rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 1) + (":" if i else "-") for i, width in enumerate(widths)) + "|")
    return "\n".join(lines)


def bad(found: list[Found]) -> Iterator[Found]:
    """Yield the cases that must not be."""
    return (one for one in found if one.outcome in BAD)


def save_case(world: World, found: Found, folder: Path) -> None:
    """Keep what is needed to look at a case: the files as the command left them, and what it said."""
    place = folder / f"seed-{world.seed}-case-{found.number}"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(world.case, place)
    about = {"seed": world.seed, "case": found.number, "command": found.command, "outcome": found.outcome}
    (place / "fault.json").write_text(json.dumps({**about, "what": found.what, "said": found.said}, indent=1))
