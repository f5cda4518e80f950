"""Faults: thousands of damaged files, hundreds of kills, full disks; what came of each, by command.

`pvn bench faults` runs them all, in about half an hour on one core, and fails if any of them ends in a traceback, a
hang, too much memory, an error that does not name the file, or another result of which nothing is said. A case is made
from the seed and its number: `python benchmarks/faults.py damage 123` tries that one again, and so do `kill` and `disk`
(the moment of a kill depends on the machine, too). What failed is kept in faults-failed/. The cases are those of
tests/faults, of which the tests run a sample.
"""

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for the tests folder

import torch

from protovalue.errors import UserError
from protovalue.progress import ProgressBar
from tests.faults import campaign
from tests.faults.campaign import BAD, CLEAN, GOOD, UNCHANGED, Found, World
from tests.faults.world import JOBS

FAILED = Path("faults-failed")
Try = Callable[[World, int], list[Found]]
TRIES: dict[str, Try] = {
    "damage": lambda world, number: [campaign.try_damage(world, number)],
    "kill": lambda world, number: campaign.try_kills(world, number),
    "disk": lambda world, number: campaign.try_full_disk(world, number),
}
LEAST = {"damage": (5_040, 150), "kill": (306, 15), "disk": (78, 13)}  # of the long campaign and of the quick one
SHOWN = {"damage": (*GOOD, *BAD), "kill": (UNCHANGED, *BAD), "disk": (CLEAN, UNCHANGED, *BAD)}


@contextmanager
def made_world() -> Iterator[World]:
    """Make the files in memory where there is a folder for that: what is made durable takes long on a disk."""
    torch.set_num_threads(1)
    memory = Path("/dev/shm")
    base = Path(tempfile.mkdtemp(prefix="pvn-faults-", dir=memory if os.access(memory, os.W_OK) else None))
    try:
        yield World(base)
    finally:
        shutil.rmtree(base)


def try_all(world: World, kind: str, least: int) -> list[Found]:
    """Try cases from number 0 on until there are enough; one of kills may have several."""
    found: list[Found] = []
    number = 0
    with ProgressBar(f"faults: {kind}", least, "cases") as bar:
        while len(found) < least:
            new = TRIES[kind](world, number)
            bad = [one for one in new if one.outcome in BAD]
            if bad:
                campaign.save_case(world, bad[0], FAILED / kind)
                print(
                    f"seed {world.seed}, {kind} {number}: {bad[0].command}: {bad[0].outcome}: {bad[0].what}", flush=True
                )
            found += new
            number += 1
            bar.advance(len(new))
    return found


def main(quick: bool) -> None:
    """Print a table for each kind of fault and a line of JSON; any bad outcome is an error."""
    start, result = time.perf_counter(), dict[str, int | float]()
    with made_world() as world:
        for kind, least in LEAST.items():
            found = try_all(world, kind, least[quick])
            print(f"\n{campaign.table(found, kind, SHOWN[kind])}\n", flush=True)
            result |= {f"{kind}: {name}": sum(one.outcome == name for one in found) for name in SHOWN[kind]}
    result["minutes"] = round((time.perf_counter() - start) / 60, 1)
    print(json.dumps({"benchmark": "faults", "seed": campaign.SEED, "quick": quick, **result}))
    bad = sum(int(count) for name, count in result.items() if name.partition(": ")[2] in BAD)
    if bad:
        raise UserError(f"{FAILED}: {bad} faults did not end as they should; the first of each are kept there")


def repeat(kind: str, numbers: list[int]) -> None:
    """Try single cases again and print what came of them."""
    with made_world() as world:
        for number in numbers:
            for one in TRIES[kind](world, number):
                print(f"{one.number}: {one.command}: {one.what}: {one.outcome}\n{one.said}")
            if kind != "damage":
                print(f"({JOBS[number % len(JOBS)].words})")


if __name__ == "__main__":
    repeat(sys.argv[1], [int(word) for word in sys.argv[2:]])
