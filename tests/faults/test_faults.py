"""A sample of the campaign of `pvn bench faults`: every format damaged, every command killed, disks that are full.

docs/reliability.md has the table of the long one.
"""

import os
import shutil
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.faults import campaign, children
from tests.faults.campaign import BAD, CLEAN, SILENT, TRACEBACK, UNCHANGED, Found, World
from tests.faults.damage import BYTES, unseen
from tests.faults.world import JOBS, TARGETS

# What is slow takes few turns here. `pvn bench faults` gives all of them their share.
SLOW = {"report": 1, "report (features)": 0, "dqn (records)": 1, "import rlu (array_record)": 1}
SAMPLE = [replace(target, weight=SLOW.get(target.name, target.weight)) for target in TARGETS]
DAMAGED, KILLS = 304, 30
KILLED = [job for job in JOBS if job.name != "study run"]  # tests/study/test_run.py kills studies


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """In memory where there is such a folder: what a command makes durable takes long on a disk."""
    before = os.environ.get("PROTOVALUE_CACHE")
    memory = Path("/dev/shm")
    base = Path(tempfile.mkdtemp(prefix="pvn-faults-", dir=memory if os.access(memory, os.W_OK) else None))
    try:
        yield World(base)
    finally:
        shutil.rmtree(base)
        if before is None:
            os.environ.pop("PROTOVALUE_CACHE", None)
        else:
            os.environ["PROTOVALUE_CACHE"] = before


@pytest.fixture(autouse=True)
def _cache_of_the_case(_own_cache: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache is damaged, too: it lies in the folder of the case."""
    monkeypatch.setenv("PROTOVALUE_CACHE", "cache")


def told(found: list[Found]) -> str:
    return "\n".join(f"{one.number}: {one.command}: {one.outcome}: {one.what}: {one.said[-1500:]}" for one in found)


def test_damaged_files(world: World) -> None:
    found = [campaign.try_damage(world, number, SAMPLE) for number in range(DAMAGED)]
    bad = [one for one in found if one.outcome in BAD]
    assert not bad, told(bad)
    assert {CLEAN, UNCHANGED} <= {one.outcome for one in found}


def test_every_command_and_every_kind_of_damage_is_in_the_sample() -> None:
    turns = campaign.schedule(SAMPLE)
    names = Counter(turns[number % len(turns)].name for number in range(DAMAGED))
    assert set(names) == {target.name for target in TARGETS} - {"report (features)"}


def test_killed_commands_end_as_if_they_were_not(world: World) -> None:
    found, number = list[Found](), 0
    while number < len(KILLED) or len(found) < KILLS:
        found += campaign.try_kills(world, number, KILLED, most=4)
        number += 1
    bad = [one for one in found if one.outcome in BAD]
    assert not bad, told(bad)


def test_full_disks(world: World) -> None:
    found = [one for number in range(len(KILLED)) for one in campaign.try_full_disk(world, number, KILLED)]
    bad = [one for one in found if one.outcome in BAD]
    assert not bad, told(bad)
    assert CLEAN in {one.outcome for one in found}


# The campaign itself


@pytest.mark.parametrize("name", BYTES)
def test_bytes_are_damaged_and_by_the_seed_alone(name: str) -> None:
    data = bytes(range(1, 256)) * 20
    found = [BYTES[name](data, Random(seed)) for seed in range(20)]
    assert found == [BYTES[name](data, Random(seed)) for seed in range(20)]
    assert data not in found
    assert len(set(found)) > 1


def test_what_no_crc_sees() -> None:
    data = Random(0).randbytes(1000)
    for seed in range(50):
        changed = unseen(data, Random(seed))
        assert changed != data
        assert zlib.crc32(changed) == zlib.crc32(data)


@pytest.mark.parametrize(
    ("said", "code", "printed", "outcome"),
    [
        ("pvn: data/actions.bin: damaged\n", 2, "", CLEAN),
        ("pvn: something\n", 2, "", campaign.UNCLEAR),
        ("pvn: data: a\npvn: data: b\n", 2, "", campaign.UNCLEAR),
        ("Traceback (most recent call last):\n", 2, "", TRACEBACK),
        ("", -11, "", TRACEBACK),
        ("", 1, "", TRACEBACK),
        ("", 0, "as before", UNCHANGED),
        ("9 steps\n", 0, "other", SILENT),
        ("data/actions.bin: line 3 left out\n", 0, "other", campaign.TOLD),
        ("pvn: out of memory: 3 GB\n", 2, "", campaign.MEMORY),
    ],
)
def test_outcomes(tmp_path: Path, said: str, code: int, printed: str, outcome: Any) -> None:
    target = replace(TARGETS[0], result=lambda folder, printed: printed)
    ended = children.Ended(code, said, printed, 0, 0.1)
    path = tmp_path / "data" / "actions.bin"
    assert campaign._judge(target, tmp_path, path, ended, "as before", {"0 steps"}, False) == outcome


def test_a_hang_and_a_bomb_are_outcomes(tmp_path: Path) -> None:
    ended = children.run(lambda: time.sleep(60), tmp_path, longest=0.05)
    judged = [ended, replace(ended, hung=False, code=0, grown=2 << 30)]
    outcomes = [campaign._judge(TARGETS[0], tmp_path, tmp_path / "x", one, "", set(), False) for one in judged]
    assert outcomes == [campaign.HANG, campaign.MEMORY]
