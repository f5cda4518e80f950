"""CPU threads: how long calls of networks take with one and with all, on the cores as they are and on busy ones.

Every call is timed in a process of its own, in turns: with one thread, with all, and with the number that
`choose_threads` takes; with threads that sleep while they wait, as `pvn` has them, and with threads that spin, as
PyTorch has them. Then again beside as many processes that only count as there are cores. The ratio is the time over
that of the best: 1 is the best choice, and the largest of a column is how far from it that choice can be.
"""

import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass

import torch

from protovalue.device import choose_threads
from protovalue.nets.cost import TRAINING, forward_flops
from protovalue.nets.encoders import make_encoder


@dataclass(frozen=True)
class Call:
    """A call of a network: its features of a batch, or a training step on it."""

    architecture: str
    batch: int
    training: bool = False

    @property
    def name(self) -> str:
        """What the table calls it."""
        return f"{self.architecture} {'training' if self.training else 'features'} {self.batch}"


CALLS = [
    Call("minatar", 9),
    Call("minatar", 256, training=True),
    Call("nature", 3),
    Call("nature", 32, training=True),
    Call("nature", 256, training=True),
    Call("impala", 3),
    Call("impala", 27),
    Call("impala", 32, training=True),
    Call("impala", 256, training=True),
]
QUICK = [CALLS[0], CALLS[2], CALLS[5], CALLS[7]]
SHAPES = {"minatar": (1, 10, 10, 6), "nature": (4, 84, 84), "impala": (4, 84, 84)}


def timed(name: str, batch: int, training: bool, seconds: float) -> dict[str, float]:
    """Return seconds a call by the number of threads, the median of calls in turns."""
    all_threads = torch.get_num_threads()
    encoder = make_encoder(name, SHAPES[name], 1, torch.Generator().manual_seed(0))
    obs = torch.randint(0, 2, (batch, *SHAPES[name]), dtype=torch.uint8)
    work = batch * forward_flops(encoder, exactly=True) * (TRAINING if training else 1)
    chosen = choose_threads(None, lambda: work, all_threads)
    times: dict[int, list[float]] = {1: [], all_threads: [], chosen: []}
    end = time.monotonic() + seconds
    while time.monotonic() < end or len(times[1]) < 3:
        for threads, found in times.items():
            torch.set_num_threads(threads)
            start = time.perf_counter()
            with torch.set_grad_enabled(training):
                features = encoder(obs)
                if training:
                    features.sum().backward()
            found.append(time.perf_counter() - start)
    by_threads = {threads: statistics.median(found[len(found) // 4 :]) for threads, found in times.items()}
    return {"one": by_threads[1], "all": by_threads[all_threads], "chosen": by_threads[chosen], "threads": chosen}


def apart(call: Call, policy: str, seconds: float) -> dict[str, float]:
    """Time a call in a process whose threads wait by `policy`, which OpenMP reads when it is loaded."""
    words = [sys.executable, __file__, call.architecture, str(call.batch), str(int(call.training)), str(seconds)]
    ran = subprocess.run(words, env={**os.environ, "OMP_WAIT_POLICY": policy}, capture_output=True, check=True)
    found: dict[str, float] = json.loads(ran.stdout)
    return found


def count() -> None:
    """Keep a core busy."""
    while True:
        pass


def main(quick: bool = False) -> None:
    """Print a line per call and a line of JSON."""
    seconds, rows = (1.0 if quick else 2.5), []
    print(
        f"{'call':<24}{'cores':<7}{'one [ms]':>10}{'all':>8}{'all, spin':>11}{'chosen':>8}{'threads':>9}   time / best"
    )
    for busy in (False, True):
        others = [multiprocessing.Process(target=count, daemon=True) for _ in range(busy * (os.cpu_count() or 1))]
        for other in others:
            other.start()
        for call in QUICK if quick else CALLS:
            asleep, spinning = (apart(call, policy, seconds) for policy in ("PASSIVE", "ACTIVE"))
            best = min(asleep["one"], asleep["all"], spinning["one"], spinning["all"])
            row = {
                "call": call.name, "cores": "busy" if busy else "free", "one_ms": 1e3 * asleep["one"],
                "one": asleep["one"] / best, "all": asleep["all"] / best, "spin": spinning["all"] / best,
                "chosen": asleep["chosen"] / best, "threads": int(asleep["threads"]),
            }  # fmt: skip
            rows.append(row)
            print(
                f"{call.name:<24}{row['cores']:<7}{row['one_ms']:>10.2f}{row['all']:>8.2f}{row['spin']:>11.2f}"
                f"{row['chosen']:>8.2f}{row['threads']:>9}",
                flush=True,
            )
        for other in others:
            other.kill()
    worst = {key: max(float(str(row[key])) for row in rows) for key in ("one", "all", "spin", "chosen")}
    print(f"farthest from the best: {', '.join(f'{key} {value:.2f}' for key, value in worst.items())}")
    print(json.dumps({"rows": rows, "farthest": worst}))


if __name__ == "__main__":
    print(json.dumps(timed(sys.argv[1], int(sys.argv[2]), sys.argv[3] == "1", float(sys.argv[4]))))
