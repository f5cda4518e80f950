"""Several processes that train one encoder: how fast, how much of it is communication, how far from one process.

Rates: proto-value networks in one process with one thread and with two, in two processes with one thread each, and in
two runs side by side with half of the batch each, which exchange nothing: what two processes lose against those is
communication. Distances: MinAtar's Breakout with the small preset, 200 steps, one process against two and four, several
seeds. On paper: 8 GPUs, by bytes and FLOPs. docs/distributed.md says what was seen, and assumed.
"""

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from protovalue.data.dataset import open_dataset
from protovalue.encoder import load_encoder
from protovalue.nets.cost import TRAINING, forward_flops
from protovalue.nets.encoders import make_encoder
from protovalue.pretrain.loop import probe_of
from protovalue.runs import read_metrics, read_run

GAMES = {"minatar": "minatar/breakout", "impala": "atari/Pong"}
BATCHES = {"minatar": 256, "impala": 32}  # the small preset's, and one that two cores can do
TASKS = 100
# On paper: an A100's peak in bfloat16, the share of it that is reached, bytes a second that a GPU sends over NVLink,
# and seconds until an exchange begins.
PEAK, REACHED, LINK, LATENCY, DEVICES = 312e12, 0.3, 200e9, 30e-6, 8


def begin(words: list[str]) -> subprocess.Popen[str]:
    """Start a command."""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    command = [sys.executable, "-m", "protovalue", *words]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment)


def finish(*processes: subprocess.Popen[str]) -> None:
    """Wait for commands that must succeed."""
    for process in processes:
        said = process.communicate()[1]
        if process.returncode:
            raise RuntimeError(said)


def pretrain(folder: Path, game: str, out: str, steps: int, *more: str) -> list[str]:
    """Return the command of a run; its first part is not timed."""
    own = ["pretrain", "--data", str(folder / game), "--out", str(folder / out), "--cache", str(folder / "cache")]
    return [*own, "--device", "cpu", "--steps", str(steps), *more]


def rates(folder: Path, game: str, steps: int) -> dict[str, Any]:
    """Return samples a second, the median of ten parts of a run."""
    every = ["--log-every", str(max(steps // 10, 1)), "--tasks", str(TASKS), "--width", "1"]

    def rate(out: str) -> float:
        return statistics.median(float(line["samples_per_second"]) for line in read_metrics(folder / out)[1:])

    found = {}
    for name, flags in (
        ("one process, one thread", ["--threads", "1"]),
        ("one process, two threads", ["--threads", "2"]),
        ("two processes", ["--threads", "1", "--processes", "2"]),
    ):
        out = f"{game} {name}"
        finish(begin(pretrain(folder, game, out, steps, "--batch-size", str(BATCHES[game]), *flags, *every)))
        found[name] = rate(out)
    halves = ["--threads", "1", "--batch-size", str(BATCHES[game] // 2), *every]
    finish(*[begin(pretrain(folder, game, f"{game} apart {half}", steps, *halves)) for half in (1, 2)])
    found["two apart"] = sum(rate(f"{game} apart {half}") for half in (1, 2))
    return {**found, "communication": 1 - found["two processes"] / found["two apart"]}


def distances(folder: Path, counts: tuple[int, ...], seeds: int, steps: int) -> list[dict[str, Any]]:
    """Return how far several processes are from one, seed by seed, and how far seeds are from each other."""
    data = open_dataset(folder / "minatar")
    probe = probe_of(data, data.env_id, "cpu").numpy()
    found: dict[tuple[int, int], Any] = {}
    for seed in range(seeds):
        for count in (1, *counts):
            out = f"seed {seed} of {count}"
            flags = ["--seed", str(seed), "--threads", "1", "--processes", str(count), "--log-every", str(steps)]
            finish(begin(pretrain(folder, "minatar", out, steps, *flags)))
            features = np.asarray(load_encoder(folder / out).features(probe), np.float64)
            found[seed, count] = read_run(folder / out)["done"], features
    rows = []
    for count in counts:
        row: dict[str, Any] = {"processes": count, "seeds": seeds}
        norms = [
            np.linalg.norm(found[s, count][1] - found[s, 1][1]) / np.linalg.norm(found[s, 1][1]) for s in range(seeds)
        ]
        row["features"] = float(max(norms))
        for name in ("loss", "effective_rank"):
            one, several = (np.array([found[s, n][0][name] for s in range(seeds)]) for n in (1, count))
            row[name] = {
                "largest": float(np.abs(several / one - 1).max()),
                "mean_difference": float((several - one).mean()),
                "standard_error": float((several - one).std(ddof=1) / math.sqrt(seeds)) if seeds > 1 else math.nan,
                "between_seeds": float(one.std(ddof=1)) if seeds > 1 else math.nan,
            }
        rows.append(row)
    return rows


def on_paper(width: int, batch: int) -> dict[str, float]:
    """Return what a step takes on one GPU and on eight, in seconds: the work, the ring of gradients, the exchange."""
    encoder = make_encoder("impala", (4, 84, 84), width, torch.Generator().manual_seed(0))
    parameters = sum(one.numel() for one in encoder.parameters()) + TASKS * 18 * (encoder.num_features + 1)
    heads = 2 * TASKS * 18 * encoder.num_features
    # The trained network forwards and backwards, and the target network forwards.
    work = batch * (TRAINING + 1) * (forward_flops(encoder, exactly=True) + heads)
    one = work / (PEAK * REACHED)
    gradients = 4 * parameters * 2 * (DEVICES - 1) / DEVICES / LINK + LATENCY
    exchange = LATENCY + batch * TASKS * 9 / LINK  # prediction, next value, reward
    apart = one / DEVICES + gradients + exchange
    hidden = max(one / DEVICES * 2 / (TRAINING + 1), gradients) + one / DEVICES * 2 / (TRAINING + 1) + exchange
    return {
        "width": width, "batch": batch, "megabytes": 4 * parameters / 1e6, "gigaflops": work / 1e9, "one_ms": 1e3 * one,
        "gradients_ms": 1e3 * gradients, "exchange_ms": 1e3 * exchange,
        "speedup_without_overlap": one / apart, "speedup": one / hidden,
    }  # fmt: skip


def main(quick: bool = False) -> None:
    """Print three tables and a line of JSON."""
    result: dict[str, Any] = {"load": os.getloadavg()[0], "cores": os.cpu_count()}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for name, game in GAMES.items():
            finish(
                begin(
                    ["collect", game, "--steps", "5000" if name == "minatar" else "1000", "--out", str(folder / name)]
                )
            )
        print(f"samples/s with {TASKS} tasks, width 1; {os.cpu_count()} cores, load {result['load']:.1f}")
        result["rates"] = {}
        for name, steps in (("minatar", 100 if quick else 1_000), ("impala", 10 if quick else 60)):
            row = result["rates"][name] = rates(folder, name, steps)
            shown = ", ".join(f"{key} {value:,.0f}" for key, value in row.items() if key != "communication")
            print(f"{name}, batch {BATCHES[name]}: {shown}; communication {row['communication']:.0%}", flush=True)
        steps = 20 if quick else 200
        result["distances"] = distances(folder, (2,) if quick else (2, 4), 2 if quick else 6, steps)
    print(f"\nfrom one process after {steps} steps of minatar/breakout, the small preset: largest relative differences")
    for row in result["distances"]:
        print(f"{row['processes']} processes, {row['seeds']} seeds: features {row['features']:.1e}", end="")
        for name in ("loss", "effective_rank"):
            one = row[name]
            print(
                f"; {name} {one['largest']:.1e}, mean difference {one['mean_difference']:+.1e} +- "
                f"{one['standard_error']:.1e} (seeds differ by {one['between_seeds']:.1e})",
                end="",
            )
        print()
    print(f"\non paper: {DEVICES} GPUs of {PEAK * REACHED / 1e12:.0f} TFLOP/s, {LINK / 1e9:.0f} GB/s between them")
    result["paper"] = [on_paper(width, batch) for width, batch in ((1, 256), (8, 256))]
    for paper in result["paper"]:
        print(
            f"impala x{paper['width']}, batch {paper['batch']}: {paper['gigaflops']:,.0f} GFLOP, gradients of "
            f"{paper['megabytes']:,.0f} MB; one GPU {paper['one_ms']:.2f} ms; {paper['gradients_ms']:.2f} ms for "
            f"gradients, {paper['exchange_ms']:.2f} ms for the exchange; {paper['speedup_without_overlap']:.1f} to "
            f"{paper['speedup']:.1f} times as fast"
        )
    print(json.dumps(result))
