"""Which results may stand side by side: mixtures are refused, told apart or named, and nothing counts twice."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from protovalue.errors import UserError
from protovalue.report.cells import DQN, Array, CellResult


def _varies_within_an_environment(name: str, cells: Sequence[CellResult]) -> bool:
    values: dict[str, set[str]] = defaultdict(set)
    for cell in cells:
        values[cell.env].add(repr(cell.settings.get(name)))
    return any(len(found) > 1 for found in values.values())


def refuse_mixtures(cells: Sequence[CellResult]) -> None:
    """Refuse cells of one method made with different settings or versions, and any that were evaluated differently.

    Methods may play in variants of a game: a study says so where it wants it, and the report in a note.
    """
    first: dict[tuple[str, str], CellResult] = {}
    for cell in cells:
        for key, what in (((cell.method, cell.env), f"both are {cell.method}"), (("", cell.env), "one game")):
            other = first.setdefault(key, cell)
            differ = [name for name in _differences(cell.settings, other.settings) if key[0] or _is_shared(name)]
            if differ:
                name = differ[0]
                raise UserError(
                    f"{cell.run}: {name} is {cell.settings.get(name)}, but {other.settings.get(name)} in {other.run}; "
                    f"{what}: a report does not mix them"
                )


def _is_shared(name: str) -> bool:
    """Whether a setting must be the same for all methods that are compared in an environment."""
    return name.startswith("evaluation.")


def about_variants(cells: Sequence[CellResult]) -> Iterator[str]:
    """Say in what the games differ that methods play."""
    envs = dict.fromkeys(cell.env for cell in cells)
    for name in sorted({name for cell in cells for name in cell.settings if name.startswith("env.")}):
        groups: dict[str, list[str]] = defaultdict(list)
        for env in envs:
            methods: dict[str, dict[str, None]] = defaultdict(dict)  # by the value of the option, in order
            for cell in cells:
                if cell.env == env:
                    methods[str(cell.settings.get(name))][cell.method] = None
            if len(methods) > 1:
                most = max(methods, key=lambda value: len(methods[value]))
                rare = [f"{value} for {', '.join(of)}" for value, of in methods.items() if value != most]
                groups[f"{', '.join(rare)} and {most} for the others"].append(env)
        for text, found in groups.items():
            where = "all games" if len(found) == len(envs) else ", ".join(found)
            yield f"methods play different variants of {where}: {_spoken(name)} is {text}"


def about_data(cells: Sequence[CellResult]) -> Iterator[str]:
    """Say what intervals over encoders hold, where there are several: data sets vary too, if each has its own."""
    learned: dict[tuple[str, str], list[int]] = defaultdict(list)
    for cell in cells:
        if cell.data_seed is not None:
            learned[cell.method, cell.env].append(cell.data_seed)
    counts = {(len(set(seeds)), len(seeds)) for seeds in learned.values() if len(seeds) > 1}
    if any(sets == 1 for sets, _ in counts):
        yield "encoders of a game learned from one data set: intervals hold for that one, and say nothing of others"
    if any(1 < sets < encoders for sets, encoders in counts):
        yield (
            "encoders that learned from one data set count as independent of each other: where data sets differ much, "
            "intervals are too narrow"
        )
    if any(sets == encoders for sets, encoders in counts):
        yield "every encoder of a game learned from a data set of its own: intervals hold their differences too"


def _differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


def each_encoder_once(cells: Sequence[CellResult]) -> tuple[list[CellResult], list[str]]:
    """Keep one of the cells of a method that have the same encoder and agents, as a random one of two data sets has."""
    first: dict[tuple[str, str, str, tuple[int, ...]], CellResult] = {}
    notes = []
    for cell in cells:
        key = (cell.method, cell.env, cell.checksum or str(cell.run), cell.seeds)
        if key in first:
            notes.append(
                f"{cell.method} in {cell.env}: {cell.run.name} has the same encoder and agents as "
                f"{first[key].run.name} and does not count again"
            )
        first.setdefault(key, cell)
    return list(first.values()), notes


def joined(cells: Sequence[CellResult]) -> list[CellResult]:
    """Join loose cells that stand on one encoder; the same agents twice are refused."""
    groups: dict[tuple[str, str, str], list[CellResult]] = defaultdict(list)
    trained: dict[tuple[str, str, str, int], CellResult] = {}
    for cell in cells:
        end_to_end = cell.settings["kind"] == DQN
        encoder = cell.checksum or (DQN if end_to_end else str(cell.run))
        for seed in cell.seeds:
            other = trained.setdefault((cell.method, cell.env, encoder, seed), cell)
            if other is not cell:
                what = "environment" if end_to_end else "encoder"
                raise UserError(
                    f"{cell.run}: has the same {what}, settings and agent seed {seed} as {other.run}, "
                    "expected every agent once; leave one of the two out"
                )
        groups[cell.method, cell.env, str(cell.run) if end_to_end else encoder].append(cell)
    return [group[0] if len(group) == 1 else _join(group) for group in groups.values()]


def _join(cells: Sequence[CellResult]) -> CellResult:
    """Make one cell of several with different agents on the same encoder."""
    steps = np.unique(np.concatenate([cell.curve_steps for cell in cells]))
    curves = []
    for cell in cells:
        curve: Array = np.full((len(cell.seeds), len(steps)), np.nan)
        curve[:, np.searchsorted(steps, cell.curve_steps)] = cell.curve
        curves.append(curve)
    return replace(
        cells[0],
        seeds=tuple(seed for cell in cells for seed in cell.seeds),
        returns=np.concatenate([cell.returns for cell in cells]),
        curve_steps=steps,
        curve=np.concatenate(curves),
        parts=tuple((cell.run, len(cell.seeds)) for cell in cells),
    )


def uneven(cells: Sequence[CellResult]) -> Iterator[str]:
    """Say where encoders of one method have different numbers of agents: `Results.scores` takes what all have."""
    counts: dict[tuple[str, str], list[int]] = defaultdict(list)
    for cell in cells:
        if cell.settings["kind"] != DQN:
            counts[cell.method, cell.env].append(len(cell.seeds))
    for (method, env), found in counts.items():
        if min(found) < max(found):
            yield (
                f"{method} in {env}: its encoders have {min(found)} to {max(found)} agents; "
                f"the first {min(found)} of each count"
            )


def told_apart(cells: Sequence[CellResult]) -> tuple[list[CellResult], tuple[str, ...]]:
    """Name loose cells by their method and by the settings in which cells that would share a name differ.

    How agents were evaluated, and in what variant of the game, is compared over all cells; settings of the agents and
    versions over those of one kind, linear or end to end; those of an encoder within its method. All of it within an
    environment: two games may well have different budgets.
    """
    groups: dict[tuple[str, str], list[CellResult]] = defaultdict(list)
    for cell in cells:
        for key in _groups(cell):
            groups[key].append(cell)
    varying: dict[tuple[str, str], list[str]] = {}
    for key, group in groups.items():
        names = sorted({name for cell in group for name in cell.settings if name.startswith(_COMPARED[key[0]])})
        varying[key] = [name for name in names if _varies_within_an_environment(name, group)]
    renamed = []
    for cell in cells:
        names = [name for key in _groups(cell) for name in varying[key]]
        parts = [f"{_spoken(name)} {cell.settings.get(name)}" for name in names]
        renamed.append(replace(cell, method=", ".join([cell.method, *parts])))
    differing = sorted({name for names in varying.values() for name in names})
    if not differing:
        return renamed, ()
    said = f"runs with different settings are shown as different methods; what differs: {', '.join(differing)}"
    return renamed, (said,)


_COMPARED = {"method": ("encoder.",), "kind": ("agent.", "version."), "all": ("env.", "evaluation.")}


def _groups(cell: CellResult) -> tuple[tuple[str, str], ...]:
    return ("method", cell.method), ("kind", str(cell.settings["kind"])), ("all", "")


def _spoken(name: str) -> str:
    prefix, _, rest = name.partition(".")
    return ("evaluation " if prefix == "evaluation" else "") + rest.replace("_", " ")
