"""First 16 proto-value functions of open grids: time and peak memory of the sparse solver, next to dense `eigh`.

Each case runs in a process of its own, so that its peak memory is its own. Errors are against the closed form.
"""

import json
import os
import resource
import subprocess
import sys
import time
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.linalg

from protovalue.tabular.gridworlds import open_grid
from protovalue.tabular.protovalues import laplacian, proto_value_functions

FUNCTIONS = 16
GRIDS = {1_000: (25, 40), 10_000: (100, 100), 100_000: (250, 400)}
DENSE_STATES = 10_000  # 0.8 GB for the matrix; 10^5 states would need 80 GB
MANY = 64  # the promise for 10^5 states: within minutes and 4 GiB


def spectrum(rows: int, columns: int, k: int) -> np.ndarray:
    """The k smallest eigenvalues of an open grid's Laplacian, from the formula."""
    down, along = (2 - 2 * np.cos(np.pi * np.arange(n) / n) for n in (rows, columns))
    return np.sort(np.add.outer(down, along).ravel())[:k]


def measure(solver: str, shape: tuple[int, int], k: int) -> dict[str, float]:
    """Solve once: seconds, peak and base memory of this process [MiB] and the largest error of an eigenvalue."""
    world = open_grid(*shape)
    base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    start = time.perf_counter()
    if solver == "sparse":
        values, _ = proto_value_functions(world, k)
    else:
        L = laplacian(world.adjacency).toarray()
        values, _ = scipy.linalg.eigh(L, subset_by_index=(0, k - 1), overwrite_a=True)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    error = float(np.abs(values - spectrum(*shape, k)).max())
    return {"seconds": seconds, "peak_mib": peak, "base_mib": base, "error": error}


def isolated(solver: str, shape: tuple[int, int], k: int) -> dict[str, float]:
    """Run `measure` in a fresh process with one thread: the sparse solver uses one, so the comparison is fair."""
    command = [sys.executable, __file__, solver, *map(str, shape), str(k)]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    output = subprocess.run(command, check=True, capture_output=True, env=environment).stdout
    answer: dict[str, float] = json.loads(output)
    return answer


def main(quick: bool) -> None:
    """Measure and print; `quick` leaves out the dense solver at 10^4 states, which takes minutes."""
    rows: list[dict[str, Any]] = []
    print(f"{'states':>8} {'solver':>7} {'k':>3} {'seconds':>9} {'peak MiB':>9} {'of which base':>13} {'error':>8}")
    for states, shape in GRIDS.items():
        cases = [("sparse", FUNCTIONS)]
        if states <= (1_000 if quick else DENSE_STATES):
            cases.append(("dense", FUNCTIONS))
        if states == 100_000:
            cases.append(("sparse", MANY))
        for solver, k in cases:
            row = {"states": states, "solver": solver, "functions": k, **isolated(solver, shape, k)}
            rows.append(row)
            print(
                f"{states:>8,} {solver:>7} {k:>3} {row['seconds']:>9.2f} {row['peak_mib']:>9,.0f} "
                f"{row['base_mib']:>13,.0f} {row['error']:>8.0e}",
                flush=True,
            )
    growth = {}
    for solver in ("sparse", "dense"):
        chosen = [row for row in rows if row["solver"] == solver and row["functions"] == FUNCTIONS]
        for a, b in pairwise(chosen):
            growth[f"{solver} {a['states']:,} -> {b['states']:,}"] = {
                "seconds": round(b["seconds"] / a["seconds"], 1),
                # Memory of the interpreter and its libraries does not grow; what the problem adds does.
                "memory": round((b["peak_mib"] - b["base_mib"]) / max(1.0, a["peak_mib"] - a["base_mib"]), 1),
            }
    print("\ngrowth per decade of states")
    for name, factors in growth.items():
        print(f"  {name}: time x {factors['seconds']}, memory above base x {factors['memory']}")
    print(json.dumps({"benchmark": "tabular", "rows": rows, "growth": growth}))


if __name__ == "__main__":  # one case, in the process that `isolated` starts
    print(json.dumps(measure(sys.argv[1], (int(sys.argv[2]), int(sys.argv[3])), int(sys.argv[4]))))
