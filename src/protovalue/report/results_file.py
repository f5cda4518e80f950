"""`results.jsonl`: all results of a report in one file that travels, without runs, encoders and data."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from protovalue.errors import UserError
from protovalue.files import json_line, read_lines, write_atomic
from protovalue.report.cells import CellResult
from protovalue.report.checking import about_data, about_variants, refuse_mixtures
from protovalue.report.grid import final_loss
from protovalue.report.model import FeatureNumbers
from protovalue.report.results import EncoderFeatures, Missing, Results
from protovalue.schema import checked, require

RESULTS, FORMAT, VERSION = "results.jsonl", "protovalue results", 1


@dataclass(frozen=True)
class _Head:
    """The first line: what is not of a single cell."""

    name: str
    title: str
    normalise: Literal["human", "dqn", "none"]
    methods: tuple[str, ...]
    envs: tuple[str, ...]
    cells: int
    """Lines of cells that follow."""
    features: int
    """Lines of features after those."""
    settings: dict[str, Any]
    """What all cells share."""
    random_policy: dict[str, float]
    missing: tuple[Missing, ...]
    stage_seconds: dict[str, float]
    stages_without_time: int
    attempts_without_time: int
    notes: tuple[str, ...]
    file: str | None
    yardstick: str = ""


@dataclass(frozen=True)
class _Cell:
    """A line of a cell; as `CellResult`, with the settings that not all cells share."""

    env: str
    method: str
    width: int | float
    tasks: int | None
    data_seed: int | None
    pretraining_seed: int | None
    seeds: tuple[int, ...]
    returns: tuple[float, ...]
    episodes: int
    steps: int
    curve_steps: tuple[float, ...]
    curve: tuple[tuple[float | None, ...], ...]
    run: str
    """The last two parts of its path."""
    settings: dict[str, Any]
    seconds: float | None
    checksum: str | None
    loss: float | None
    transitions: int | None = None

    def __post_init__(self) -> None:
        require(len(self.returns) == len(self.seeds) > 0, "returns", self.returns, "one for each of `seeds`")
        require(all(map(math.isfinite, self.returns)), "returns", self.returns, "finite numbers")
        shape = (len(self.seeds), len(self.curve_steps))
        fits = len(self.curve) == shape[0] and all(len(row) == shape[1] for row in self.curve)
        require(fits, "curve", self.curve, f"{shape[0]} rows of {shape[1]}")


@dataclass(frozen=True)
class _Features:
    """A line of features: those of all encoders of a method in an environment."""

    env: str
    method: str
    each: tuple["_Numbers", ...]


@dataclass(frozen=True)
class _Numbers:
    """As `EncoderFeatures`; None where a number could not be computed."""

    data_seed: int | None
    pretraining_seed: int | None
    num_features: int
    rank: float | None
    smoothness: float | None
    probe: float | None


_COUNTED = ("cells", "features", "settings")  # what the first line says of the others


def write_results(results: Results, features: Sequence[FeatureNumbers], path: Path) -> Path:
    """Write the results of a report, with what it measured of features; `read_file` gives them back."""
    every = [cell.settings for cell in results.cells]
    shared = {name: value for name, value in every[0].items() if all(name in s and s[name] == value for s in every)}
    head = {
        "format": FORMAT, "version": VERSION, "name": results.name, "title": results.title,
        "normalise": results.normalise, "methods": results.methods, "envs": results.envs, "cells": len(results.cells),
        "features": len(features), "settings": shared, "random_policy": dict(results.random_policy),
        "missing": [asdict(one) for one in results.missing], "stage_seconds": dict(results.stage_seconds),
        "stages_without_time": results.stages_without_time, "attempts_without_time": results.attempts_without_time,
        "notes": results.notes, "file": results.file, "yardstick": results.yardstick,
    }  # fmt: skip
    rows: list[dict[str, Any]] = [head]
    for cell in results.cells:
        own = {
            name: getattr(cell, name)
            for name in _Cell.__dataclass_fields__
            if name not in ("returns", "curve_steps", "curve", "run", "settings", "loss")
        }
        rows.append(
            {
                **own,
                "returns": cell.returns.tolist(),
                "curve_steps": cell.curve_steps.tolist(),
                "curve": [list(map(_or_none, row)) for row in cell.curve.tolist()],
                "run": "/".join(cell.run.parts[-2:]),
                "settings": {name: value for name, value in cell.settings.items() if name not in shared},
                "loss": final_loss(cell),
            }
        )
    rows += [{"env": one.env, "method": one.method, "each": [_numbers(each) for each in one.each]} for one in features]
    write_atomic(path, b"".join(map(json_line, rows)))
    return path


def _or_none(number: float) -> float | None:
    return None if math.isnan(number) else number


def _numbers(one: EncoderFeatures) -> dict[str, Any]:
    return {**asdict(one), "rank": _or_none(one.rank), "smoothness": _or_none(one.smoothness)}


def _measured(one: _Numbers) -> EncoderFeatures:
    rank, smoothness = (math.nan if number is None else number for number in (one.rank, one.smoothness))
    return EncoderFeatures(one.data_seed, one.pretraining_seed, one.num_features, rank, smoothness, one.probe)


def results_file(path: Path) -> Path | None:
    """Return the file of results that a path names, itself or as the folder of a report; None where it names none."""
    if path.is_dir():
        return path / RESULTS if (path / RESULTS).is_file() else None
    return path if path.suffix == Path(RESULTS).suffix and path.is_file() else None


def read_file(path: Path) -> Results:
    """Read what `write_results` wrote; what is damaged, cut short or of another format is a UserError."""
    lines = read_lines(path, lambda row: "")
    if lines.wrong:
        number, reason = lines.wrong[0]
        raise UserError(f"{path}: damaged: line {number} ({reason})")
    first, *rows = lines.rows or [{}]
    if (first.pop("format", None), first.pop("version", None)) != (FORMAT, VERSION):
        raise UserError(f"{path}: expected format {FORMAT!r}, version {VERSION}")
    head = checked(_Head, first, f"{path}: line 1")
    if len(rows) != head.cells + head.features:
        expected = f"{head.cells + head.features:,}"
        raise UserError(f"{path}: damaged: found {len(rows):,} lines after the first, expected {expected}")
    cells = []
    for number, row in enumerate(rows[: head.cells], 2):
        line = checked(_Cell, row, f"{path}: line {number}")
        cells.append(_cell(replace(line, settings={**head.settings, **line.settings}), path))
    features: dict[tuple[str, str], tuple[EncoderFeatures, ...]] = {}
    for number, row in enumerate(rows[head.cells :], head.cells + 2):
        own = checked(_Features, row, f"{path}: line {number}")
        features[own.env, own.method] = tuple(map(_measured, own.each))
    for number, cell in enumerate(cells, 2):
        known = cell.method in head.methods and cell.env in head.envs and "kind" in cell.settings
        if not known:
            what = f"{cell.method} in {cell.env}, {cell.settings.get('kind', 'without a kind of agents')}"
            raise UserError(f"{path}: damaged: line {number}: found {what}, expected what line 1 names, and its kind")
    kept = {name: getattr(head, name) for name in _Head.__dataclass_fields__ if name not in _COUNTED}
    return Results(**kept, cells=tuple(cells), features=features)


def _cell(line: _Cell, path: Path) -> CellResult:
    same = {
        name: getattr(line, name)
        for name in _Cell.__dataclass_fields__
        if name not in ("returns", "curve_steps", "curve", "run")
    }
    return CellResult(
        **same,
        returns=np.array(line.returns, np.float64),
        curve_steps=np.array(line.curve_steps, np.float64),
        curve=np.array(line.curve, np.float64).reshape(len(line.seeds), -1),  # None becomes NaN
        run=Path(line.run),
        encoder=None,
        data=None,
        kept=path,
    )


def join(parts: Sequence[tuple[Path, Results]]) -> Results:
    """Put results side by side as if they were one study's; the first says what it is called and how it is normalised.

    An encoder with its agents may be in one of them alone, and what one of them misses another may have.
    """
    if len(parts) == 1:
        return parts[0][1]
    places, every = [place for place, _ in parts], [results for _, results in parts]
    cells = _each_once(parts)
    refuse_mixtures(cells)
    for place, one in parts:
        if one.normalise not in ("none", every[0].normalise):
            raise UserError(
                f"{place}: found scores normalised by {one.normalise}, expected {every[0].normalise} as in {places[0]}"
            )
    random_policy: dict[str, float] = {}
    for place, one in parts:
        for env, value in one.random_policy.items():
            if random_policy.setdefault(env, value) != value:
                raise UserError(
                    f"{place}: found {value} as the return of random actions in {env}, expected {random_policy[env]} "
                    f"as before"
                )
    found = {(cell.env, cell.method, cell.pretraining_seed, cell.seeds) for cell in cells}
    missing = {_address(one): one for results in every for one in results.missing if _address(one) not in found}
    features: dict[tuple[str, str], tuple[EncoderFeatures, ...]] = {}
    for one in every:
        for key, own in one.features.items():
            features[key] = features.get(key, ()) + own
    said = [note for one in every for note in one.notes if note not in _derived(one.cells)]
    said = [f"results of {len(parts)} places side by side: {', '.join(map(str, places))}", *_about_files(every), *said]
    return replace(
        every[0],
        methods=tuple(dict.fromkeys(name for one in every for name in one.methods)),
        envs=tuple(dict.fromkeys(env for one in every for env in one.envs)),
        cells=tuple(cells),
        missing=tuple(missing.values()),
        random_policy=random_policy,
        stage_seconds=_sums(one.stage_seconds for one in every),
        stages_without_time=sum(one.stages_without_time for one in every),
        attempts_without_time=sum(one.attempts_without_time for one in every),
        notes=tuple(dict.fromkeys((*said, *_derived(cells)))),
        features=features,
    )


def _about_files(every: Sequence[Results]) -> Iterator[str]:
    """Name methods of studies whose files differ: in one game they are compared, over several games nobody can."""
    files: dict[str, set[str | None]] = defaultdict(set)
    for one in every:
        for method in {cell.method for cell in one.cells}:
            files[method].add(one.file)
    shared = [method for method, found in files.items() if len(found) > 1]
    if shared:
        yield f"of studies whose files differ, so perhaps not the same in all games: {', '.join(sorted(shared))}"


def _derived(cells: Sequence[CellResult]) -> tuple[str, ...]:
    """Return the notes that follow from all cells of a study together."""
    return (*about_variants(cells), *about_data(cells))


def _each_once(parts: Sequence[tuple[Path, Results]]) -> list[CellResult]:
    """Return the cells of all parts; an encoder with the same agents in two of them is refused."""
    first: dict[tuple[object, ...], int] = {}
    for number, (place, results) in enumerate(parts):
        for cell in results.cells:
            drawn = (cell.data_seed, cell.pretraining_seed, cell.seeds)
            other = first.setdefault((cell.method, cell.env, cell.width, cell.tasks, *drawn), number)
            if other != number:
                raise UserError(
                    f"{place}: found {cell.method} in {cell.env}, agents {', '.join(map(str, cell.seeds))}, which "
                    f"{parts[other][0]} has too, expected each once: leave one of the two out"
                )
    return [cell for _, results in parts for cell in results.cells]


def _address(one: Missing) -> tuple[object, ...]:
    return one.env, one.method, one.pretraining_seed, one.seeds


def _sums(tables: Iterable[Mapping[str, float]]) -> dict[str, float]:
    total: dict[str, float] = defaultdict(float)
    for table in tables:
        for name, value in table.items():
            total[name] += value
    return dict(total)
