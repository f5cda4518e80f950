"""What the checks of options run on: small data, encoders, agents and files, each made when it is first asked for."""

import contextlib
import io
import itertools
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from protovalue.cli import main
from protovalue.files import read_json
from protovalue.runs import read_checkpoint, read_metrics
from protovalue.study.engines.base import Ended, Job
from tests.data.published import CONTENTS


class Loud(gymnasium.Env[np.ndarray, np.int64]):
    """A pixel that jumps over a 6 x 6 picture; rewards from -3 to 3, so that clipping and the Huber loss show."""

    def __init__(self) -> None:
        self.observation_space = Box(0, 255, (6, 6), np.uint8)
        self.action_space = Discrete(3)
        self.at = self.t = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.at, self.t = int(self.np_random.integers(36)), 0
        return self._frame(), {}

    def step(self, action: np.int64) -> Any:
        self.at, self.t = (self.at + (1, 5, 34)[int(action)]) % 36, self.t + 1
        return self._frame(), float(self.at % 7 - 3), self.at % 11 == 0 or self.t == 12, False, {}

    def _frame(self) -> np.ndarray:
        frame = np.zeros(36, np.uint8)
        frame[self.at] = 255
        return frame.reshape(6, 6)


class InTurn:
    """An engine that runs every job in this process, at once."""

    def __init__(self, slots: int = 1, *_: Any) -> None:
        self.slots = slots
        self._ended: list[Ended] = []

    def submit(self, job: Job) -> None:
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            code = main(job.command[1:])
        job.log.parent.mkdir(parents=True, exist_ok=True)
        job.log.write_text(said.getvalue())
        self._ended.append(Ended(job.id, code, 0.25, 0.25, (said.getvalue().splitlines() or [""])[-1]))

    def adopt(self, job: Job) -> bool:
        return False

    def describe(self) -> str:
        return "in this process"

    def poll(self, timeout: float) -> list[Ended]:
        ended, self._ended = self._ended, []
        return ended

    def cancel(self, now: bool = False) -> None:
        raise AssertionError("nothing runs between two calls")

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class Ran:
    """What a command left: its folder and what it printed."""

    out: Path
    code: int
    printed: str
    errors: str


class World:
    """Names in braces stand for things that are made when a command first needs them; {out} is a new place."""

    makers: dict[str, Callable[["World"], Any]] = {}  # noqa: RUF012

    def __init__(self, root: Path) -> None:
        self.root = root
        self.patch: pytest.MonkeyPatch
        self._made: dict[str, Any] = {}
        self._ran: dict[str, Ran] = {}
        self._numbers = itertools.count()

    def __getitem__(self, name: str) -> Any:
        if name == "out":
            return self.root / f"out-{next(self._numbers)}"
        if name not in self._made:
            self._made[name] = self.makers[name](self)
        return self._made[name]

    def run(self, command: str) -> Ran:
        """Run a command of `pvn` in this process."""
        out = self["out"]
        names = _Names(self, out)
        words = shlex.split(command.format_map(names))
        printed, errors = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(errors):
            code = main(words)
        return Ran(out, code, printed.getvalue(), errors.getvalue())

    def good(self, command: str) -> Ran:
        """Run a command that must succeed."""
        ran = self.run(command)
        assert ran.code == 0, f"pvn {command}: {ran.errors}"
        return ran

    def once(self, command: str) -> Ran:
        """Run a command that must succeed, or remember what it left."""
        if command not in self._ran:
            self._ran[command] = self.good(command)
        return self._ran[command]


class _Names:
    def __init__(self, world: World, out: Path) -> None:
        self._world, self._out = world, out

    def __getitem__(self, name: str) -> Any:
        return self._out if name == "out" else self._world[name]


Check = Callable[[World], None]
Outcome = Callable[[Ran], Any]


def made(name: str) -> Callable[[Callable[[World], Any]], Callable[[World], Any]]:
    """Give a thing of the world its name."""

    def add(maker: Callable[[World], Any]) -> Callable[[World], Any]:
        World.makers[name] = maker
        return maker

    return add


def differ(one: str, other: str, outcome: Outcome) -> Check:
    """Two commands, which the option alone tells apart, leave something different."""

    def check(world: World) -> None:
        assert outcome(world.once(one)) != outcome(world.once(other)), f"no difference: {one} | {other}"

    return check


def refused(command: str, message: str) -> Check:
    """The command ends with one line that says so, and code 2."""

    def check(world: World) -> None:
        ran = world.run(command)
        assert ran.code == 2, f"accepted: pvn {command}"
        *progress, said = ran.errors.splitlines()
        assert said.startswith("pvn: "), ran.errors
        assert message in said, said
        assert not any("Traceback" in line for line in progress)

    return check


def both(*checks: Check) -> Check:
    """All of them."""

    def check(world: World) -> None:
        for one in checks:
            one(world)

    return check


# Outcomes


def weights(ran: Ran) -> bytes:
    """The encoder."""
    return (ran.out / "encoder" / "model.safetensors").read_bytes()


def contents(ran: Ran) -> list[bytes]:
    """A data set, byte by byte."""
    return [(ran.out / name).read_bytes() for name in CONTENTS]


def manifest(ran: Ran) -> dict[str, Any]:
    """What a data set says it is, but for where it comes from."""
    found = read_json(ran.out / "manifest.json")
    return {name: value for name, value in found.items() if name not in ("provenance", "sha256")}


def learned(ran: Ran) -> bytes:
    """All that the agents learned."""
    return read_checkpoint(ran.out).tensors["agent.theta"].tobytes()


def printed(ran: Ran) -> str:
    """What the command said."""
    return ran.printed


def logged(ran: Ran) -> list[int]:
    """The steps that were logged."""
    return [line["step"] for line in read_metrics(ran.out)]


def checkpoints(ran: Ran) -> list[str]:
    """The checkpoints that are kept."""
    return sorted(path.name for path in (ran.out / "checkpoints").iterdir())


def recorded(ran: Ran) -> dict[str, Any]:
    """The resolved settings of a run."""
    config: dict[str, Any] = read_json(ran.out / "config.json")["config"]
    return config


def places(folder: Path) -> Iterator[str]:
    """The names of all files below a folder."""
    return (str(path.relative_to(folder)) for path in sorted(folder.rglob("*")) if path.is_file())


# Things


@made("breakout")
def _breakout(world: World) -> Path:
    return world.good("collect minatar/breakout --steps 400 --out {out}").out


@made("seaquest")
def _seaquest(world: World) -> Path:
    return world.good("collect minatar/seaquest --steps 200 --out {out}").out


@made("loud")
def _loud(world: World) -> Path:
    return world.good("collect gym/Loud-v0 --steps 300 --out {out}").out
