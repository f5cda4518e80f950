"""The methods beside each other: time and memory of one step, same encoder, batch and data, as multiples of cloning's.

Every method lives in a process of its own on one thread and takes its steps in turn with the others; times are medians
over all steps. CPU seconds count what the process and its prefetching thread worked, so that other load on the machine
disturbs them less than the time on the clock.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from protovalue.data.collect import collect
from protovalue.data.config import CollectConfig
from protovalue.data.dataset import open_dataset
from protovalue.data.sampler import Prefetcher
from protovalue.nets.memory import keep_freed_memory
from protovalue.presets import resolved
from protovalue.pretrain.base import Method
from protovalue.pretrain.loop import probe_of
from protovalue.pretrain.methods import method_class, method_names
from protovalue.pretrain.trainer import Trainer
from protovalue.runs import Run

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in method_names() if name != "random"},  # which has no steps
    "pvn --backup max": ("pvn", {"backup": "max"}),
    "pvn --groups": ("pvn", {"groups": ("proportion=0.05", "proportion=0.9"), "scale_errors": "spread"}),
    "pvn --inverse 1": ("pvn", {"inverse": 1.0}),
    "contrastive --second-map own": ("contrastive", {"second_map": "own"}),
    "rldp --ahead 0.9": ("rldp", {"ahead": 0.9}),
    "tdjepa --second-map own": ("tdjepa", {"second_map": "own"}),
}
BASE = "bc"  # the cheapest
SETTINGS: dict[str, dict[str, Any]] = {
    "atari/Pong": {"architecture": "impala", "width": 1, "batch_size": 32, "threads": 1},
    "minatar/breakout": {"architecture": "minatar", "width": 1, "batch_size": 256, "threads": 1},
}


def make(variant: str, folder: Path, game: str) -> Method:
    """Make a method as it is before its first step."""
    name, changes = VARIANTS[variant]
    cls = method_class(name)
    data = open_dataset(folder)
    data.load(1 << 30)
    given: dict[str, Any] = {**SETTINGS[game], **changes}
    if name in ("pvn", "cumulants"):
        given["cache"] = folder.parent / "cache"
    config = cls.Config(out=folder, data=(folder,), **given)
    return cls(resolved(config, game), data, data.observation_shape, "cpu")


def worker(variant: str, folder: Path, game: str) -> None:
    """Take as many steps as each line of input says; answer with their seconds, and with the peak memory [MiB]."""
    torch.set_num_threads(1)
    keep_freed_memory()  # as the loop does
    method = make(variant, folder, game)
    probe = probe_of(method.data, game, "cpu")
    before = peak()
    with (
        Run.open(folder.parent / f"run-{os.getpid()}", {}) as run,
        Prefetcher(method.sample, range(10**9), method.sample_bytes()) as samples,
    ):
        trainer = Trainer(method, run, probe, "cpu", quiet=True)
        endless = iter(samples)
        for line in sys.stdin:
            clock, work = [], []
            for _ in range(int(line)):
                start, start_work = time.perf_counter(), time.process_time()
                trainer.step(next(endless))
                clock.append(time.perf_counter() - start)
                work.append(time.process_time() - start_work)
            answer = {"clock": clock, "work": work, "peak": peak(), "own": peak() - before}
            print(json.dumps(answer), flush=True)


def peak() -> float:
    """Return the most memory that this process has had so far [MiB].

    Not getrusage's, which on Linux begins with what the parent had when it forked.
    """
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


class Worker:
    """A process that takes steps when it is told to."""

    def __init__(self, variant: str, folder: Path, game: str) -> None:
        self.clock: list[float] = []
        self.work: list[float] = []
        self._process = subprocess.Popen(
            [sys.executable, __file__, variant, str(folder), game],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            text=True,
        )

    def steps(self, count: int) -> dict[str, Any]:
        """Take steps and return the answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{count}\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def turn(self, count: int) -> None:
        """Take steps that count."""
        self.last = self.steps(count)
        self.clock += self.last["clock"]
        self.work += self.last["work"]

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def measure(game: str, folder: Path, turns: int, steps: int) -> dict[str, dict[str, float]]:
    """Measure all methods on one data set."""
    workers = {}
    for variant in VARIANTS:
        make(variant, folder, game)  # what is made once per data set is made here, in memory that does not count
        workers[variant] = Worker(variant, folder, game)
    for each in workers.values():
        each.steps(2)  # start up
    for _ in range(turns):
        for each in workers.values():
            each.turn(steps)
    rows = {
        variant: {
            "s/step": statistics.median(each.clock),
            "CPU s/step": statistics.median(each.work),
            "peak MiB": each.last["peak"],
            "MiB of its steps": each.last["own"],
        }
        for variant, each in workers.items()
    }
    for each in workers.values():
        each.close()
    return {
        variant: {**row, **{f"{name} / {BASE}": row[name] / rows[BASE][name] for name in row}}
        for variant, row in rows.items()
    }


def print_table(rows: dict[str, dict[str, float]]) -> None:
    """Print the cheapest method first, and what self-prediction costs more."""
    columns = {
        "s/step": ("s/step", "9.4f"),
        "s/step / bc": ("x bc", "7.2f"),
        "CPU s/step": ("CPU s", "9.4f"),
        "CPU s/step / bc": ("x bc", "7.2f"),
        "peak MiB": ("peak MiB", "10.0f"),
        "peak MiB / bc": ("x bc", "7.2f"),
        "MiB of its steps": ("of its steps", "14.0f"),
    }
    head = "".join(f"{title:>{form.partition('.')[0]}}" for title, form in columns.values())
    print(f"{'':<18}{head}")
    for variant, row in sorted(rows.items(), key=lambda item: item[1]["CPU s/step"]):
        print(f"{variant:<18}{''.join(f'{row[name]:{form}}' for name, (_, form) in columns.items())}")
    extra, times = rows["spr"]["CPU s/step"] - rows[BASE]["CPU s/step"], rows["spr"]["CPU s/step / bc"]
    print(f"spr: {extra:.4f} CPU seconds a step more than {BASE}, {times:.1f} times as many")


def main(quick: bool) -> None:
    """Print the tables and a line of JSON."""
    load = os.getloadavg()[0]
    result: dict[str, Any] = {"load": load}
    with tempfile.TemporaryDirectory() as name:
        for game, settings in SETTINGS.items():
            atari = game.startswith("atari")
            folder = Path(name) / game.replace("/", "-") / "data"
            collect(CollectConfig(game, folder, steps=512 if atari else 20_000), quiet=True)
            result[game] = measure(game, folder, 2 if quick else 7, 1 if atari else 5)
            print(f"\n{game}: " + ", ".join(f"{key} {value}" for key, value in settings.items()))
            print_table(result[game])
    print(f"\nload average at the start: {load:.1f} on {os.cpu_count()} cores")
    print(json.dumps({"benchmark": "methods", **result}))


if __name__ == "__main__":
    worker(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
