"""Probes beside returns: what `pvn probe` found of a report's encoders, and whether it goes with what agents reach."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from protovalue.errors import UserError
from protovalue.evaluate.aggregate import mean_interval
from protovalue.evaluate.correlation import rank_correlation
from protovalue.evaluate.probe_file import KINDS, Kind, ProbeFile, read_probe
from protovalue.report.model import ProbeRow
from protovalue.report.results import Results

ALL = "all categories"


def read_probes(paths: Sequence[Path], results: Results) -> tuple[list[ProbeRow], list[str]]:
    """Read probes of a report's encoders, known by their parameters; return rows of a table, and notes."""
    rows: list[ProbeRow] = []
    notes: list[str] = []
    for path in paths:
        found = read_probe(path)
        if found.env not in results.envs:
            raise UserError(f"--probes: {path} is of {found.env}, expected one of {', '.join(results.envs)}")
        own = [row for kind in KINDS for row in _rows(found, results, kind)]
        strangers = _strangers(found, results)
        for row in own:
            if any(_subject(row) == _subject(other) for other in rows):
                raise UserError(f"--probes: {path}: found {row.category} of {row.env} a second time, expected it once")
        if not any(row.encoders for row in own):
            raise UserError(f"--probes: {path}: none of its encoders is in these runs")
        if strangers:
            notes.append(f"probes of {found.env}: {strangers} of the probed encoders are not in these runs")
        rows += own
    return rows, notes


def _rows(found: ProbeFile, results: Results, kind: Kind) -> Iterator[ProbeRow]:
    cells = {cell.checksum: cell for cell in results.cells if cell.env == found.env and cell.checksum is not None}
    scores: dict[str, list[NDArray[np.float64]]] = {method: [] for method in results.methods}
    pairs: list[tuple[NDArray[np.float64], float]] = []
    for one in found.probed:
        cell = cells.get(one.checksum) if one.checksum is not None else None
        own = found.by_category(one, kind)
        if cell is not None:
            scores[cell.method].append(own)
            pairs.append((own, cell.score))
        elif one.checksum is None:  # what stands beside the encoders
            scores.setdefault(one.method, []).append(own)
    names = list(found.categories)
    for place, name in enumerate([*names, ALL] if len(names) > 1 else names):
        columns = slice(None) if name == ALL else slice(place, place + 1)
        yield ProbeRow(
            env=found.env,
            category=name,
            kind=kind,
            feature_scale=found.feature_scale,
            scores={
                method: mean_interval([float(one[columns].mean()) for one in grid])
                for method, grid in scores.items()
                if grid
            },
            correlation=rank_correlation([float(one[columns].mean()) for one, _ in pairs], [r for _, r in pairs]),
            encoders=len(pairs),
        )


def _subject(row: ProbeRow) -> tuple[str, ...]:
    """Return what a report has once."""
    return row.env, row.category, row.kind, row.feature_scale


def _strangers(found: ProbeFile, results: Results) -> int:
    known = {cell.checksum for cell in results.cells}
    return sum(one.checksum is not None and one.checksum not in known for one in found.probed)
