"""The page of a report: one HTML file with its pictures and frames inside, readable without a network."""

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from protovalue.files import write_atomic
from protovalue.progress import duration
from protovalue.report import tables
from protovalue.report.cells import CellResult
from protovalue.report.explorer import Explorer, explorer, time_colours
from protovalue.report.model import Picture, Report
from protovalue.report.numbers import plural, short
from protovalue.report.wording import headline

LIMIT = 10_000_000  # bytes of a page
SHARP = 400_000  # bytes up to which a figure is worth having as SVG
# The figures that have a place in a section of the page; the rest follow at the end.
SECTIONS = ("aggregates", "profile", "claims", "scaling", "grid", "ablations", "games", "curves", "mds")
SCRIPT, STYLE, PAGE = "page.js", "page.css", "page.html.j2"


@dataclass(frozen=True)
class Shown:
    """A figure on the page: a data URI."""

    picture: Picture
    uri: str


def write_page(report: Report, path: Path) -> Path:
    """Write the page, whole or not at all; what would take it over LIMIT is left out and named."""
    environment = Environment(
        loader=PackageLoader("protovalue.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": short, "duration": duration}
    script, style = (environment.get_template(name).render() for name in (SCRIPT, STYLE))
    template = environment.get_template(PAGE)
    facts = _facts(report, path.parent) | {"script": script, "style": style, "script_hash": _hash(script)}

    def render(figures: Sequence[Shown], explorers: Sequence[Explorer]) -> bytes:
        left_out = _left_out(report, figures, explorers)
        return template.render(facts, figures=_by_section(figures), explorers=explorers, left_out=left_out).encode()

    bare = len(render((), ()))
    figures, explorers = _that_fit(report, LIMIT - bare)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, render(figures, explorers))
    return path


def _hash(script: str) -> str:
    """Return what a Content-Security-Policy calls the page's only script."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")


def _facts(report: Report, folder: Path) -> dict[str, object]:
    """All that the template shows beside pictures, under the names that it uses."""
    results = report.results
    return {
        "report": report,
        "results": results,
        "headline": headline(report),
        "counts": _counts(report),
        "colours": {name: _colour(report.colours.get(name)) for name in results.methods},
        **{entry.name: entry.for_page(report) for entry in tables.ON_PAGE},
        "methods": list(tables.methods_of(report)),
        "cells": _cells_by_env(results.cells),
        "shared": _shared_settings(results.cells),
        "differing": _differing_settings(results.cells, results.methods),
        "time_by_method": _time_by_method(results.cells, results.methods),
        "untimed": _untimed(report),
        "total_seconds": sum(cost.seconds for cost in report.costs),
        "files": _links(report, folder),
        "notes": tuple(dict.fromkeys((*report.notes, *results.notes))),
        "versions": _flat(report.details),
        "ramp": ", ".join(time_colours(9)),
    }


def _colour(colour: str | None) -> str:
    """Return a colour that is nothing else."""
    return colour if colour is not None and re.fullmatch(r"#[0-9a-fA-F]{6}", colour) else "#777777"


def _counts(report: Report) -> list[tuple[str, str]]:
    """The size of what the report stands on."""
    cells = report.results.cells
    encoders = {str(cell.encoder or cell.run) for cell in cells if cell.settings.get("kind") != "dqn"}
    agents = sum(len(cell.seeds) for cell in cells)
    episodes = sum(len(cell.seeds) * cell.episodes for cell in cells)
    seconds = sum(cost.seconds for cost in report.costs)
    counts = [
        ("games", f"{len(report.results.envs):,}"),
        ("methods", f"{len(report.results.methods):,}"),
        ("encoders", f"{len(encoders):,}" if encoders else ""),
        ("agents", f"{agents:,}" if agents else ""),
        ("evaluation episodes", f"{episodes:,}" if episodes else ""),
        ("recorded machine time", duration(seconds) if seconds else ""),
        ("runs without result", f"{len(report.results.missing):,}" if report.results.missing else ""),
    ]
    return [(name.removesuffix("s") if value == "1" else name, value) for name, value in counts if value]


def _cells_by_env(cells: Iterable[CellResult]) -> dict[str, list[CellResult]]:
    grouped: dict[str, list[CellResult]] = {}
    for cell in cells:
        grouped.setdefault(cell.env, []).append(cell)
    return grouped


def _setting(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _values(cells: Iterable[CellResult], name: str) -> str:
    """All values that a setting takes in these cells."""
    found = dict.fromkeys(_setting(cell.settings[name]) for cell in cells if name in cell.settings)
    return " / ".join(found)


def _setting_names(cells: Iterable[CellResult]) -> list[str]:
    return sorted({name for cell in cells for name in cell.settings} - {"kind"})


def _is_shared(cells: Sequence[CellResult], name: str) -> bool:
    return all(name in cell.settings for cell in cells) and " / " not in _values(cells, name)


def _shared_settings(cells: Sequence[CellResult]) -> list[tuple[str, str]]:
    """What holds for all cells."""
    return [(name, _values(cells, name)) for name in _setting_names(cells) if _is_shared(cells, name)]


def _differing_settings(cells: Sequence[CellResult], methods: Sequence[str]) -> dict[str, Any]:
    """What does not hold for all cells, by method: what differs among those that have it, and what only some have.

    So a setting of one method alone, which says nothing about a difference, does not hide one that does.
    """
    names = [name for name in _setting_names(cells) if not _is_shared(cells, name)]
    own = {method: [cell for cell in cells if cell.method == method] for method in methods}
    present = [method for method in methods if own[method]]
    rows = [(name, [_values(own[method], name) for method in present]) for name in names]
    differ = {name for name in names if " / " in _values(cells, name)}
    return {
        "methods": present,
        "rows": [row for row in rows if row[0] in differ],
        "partial": [row for row in rows if row[0] not in differ],
    }


def _untimed(report: Report) -> str:
    """Say what the recorded times do not hold; empty where nothing is known to be missing."""
    stages, attempts = report.results.stages_without_time, report.results.attempts_without_time
    parts = [plural(stages, "finished stage")] if stages else []
    if attempts:
        parts.append(f"{plural(attempts, 'attempt')} whose end was not recorded (killed, or still running)")
    return " and ".join(parts)


def _time_by_method(cells: Sequence[CellResult], methods: Sequence[str]) -> list[tuple[str, int, float]]:
    """Method, number of its cells whose time is known, and their time together."""
    known = {
        name: [cell.seconds for cell in cells if cell.method == name and cell.seconds is not None] for name in methods
    }
    return [(name, len(seconds), sum(seconds)) for name, seconds in known.items() if seconds]


def _links(report: Report, folder: Path) -> list[dict[str, Any]]:
    """Tables that lie beside the page, by the addresses that they have from there."""
    return [
        {
            "title": table.title,
            "files": [
                (kind, file.relative_to(folder).as_posix())
                for kind, file in (("CSV", table.csv), ("Markdown", table.markdown), ("LaTeX", table.tex))
                if file.is_relative_to(folder)
            ],
        }
        for table in report.tables
    ]


def _flat(fields: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for name, value in fields.items():
        title = f"{prefix}{str(name).replace('_', ' ')}"
        rows += _flat(value, f"{title} ") if isinstance(value, Mapping) else [(title, _setting(value))]
    return rows


def _section(picture: Picture) -> str:
    return picture.section if picture.section in SECTIONS else "other"


def _by_section(figures: Sequence[Shown]) -> dict[str, list[Shown]]:
    grouped: dict[str, list[Shown]] = {name: [] for name in (*SECTIONS, "other")}
    for shown in figures:
        grouped[_section(shown.picture)].append(shown)
    return grouped


def _that_fit(report: Report, budget: int) -> tuple[list[Shown], list[Explorer]]:
    """Choose what `budget` bytes have room for.

    First come figures in their smaller form, then galleries, then still pictures of galleries that found no room, and
    last, while there is room, figures as SVG instead of PNG.
    """
    chosen: dict[str, Shown] = {}
    explorers: list[Explorer] = []

    def show(pictures: Iterable[Picture], left: int) -> int:
        for picture in pictures:
            shown = Shown(picture, min(_uri(picture.png, "png"), _uri(picture.svg, "svg+xml"), key=len))
            if _size(shown) <= left:
                chosen[picture.name] = shown
                left -= _size(shown)
        return left

    budget = show((picture for picture in report.pictures if _section(picture) != "mds"), budget)
    for gallery in report.galleries:
        made = explorer(gallery)
        if made.size <= budget:
            explorers.append(made)
            budget -= made.size
    explored = {one.env for one in explorers}
    stills = (picture for picture in report.pictures if _section(picture) == "mds" and picture.env not in explored)
    budget = show(stills, budget)
    for name, shown in chosen.items():
        sharp = Shown(shown.picture, _uri(shown.picture.svg, "svg+xml"))
        more = len(sharp.uri) - len(shown.uri)
        if 0 < more <= budget and len(sharp.uri) <= SHARP:
            chosen[name] = sharp
            budget -= more
    return list(chosen.values()), explorers


def _size(shown: Shown) -> int:
    """Bytes of a figure on the page, with its markup."""
    text = 3 * len(shown.picture.title) + 2 * len(shown.picture.caption)
    return len(shown.uri) + 4 * text + 500


def _uri(path: Path, kind: str) -> str:
    return f"data:image/{kind};base64," + base64.b64encode(path.read_bytes()).decode("ascii")


def _left_out(report: Report, figures: Sequence[Shown], explorers: Sequence[Explorer]) -> list[str]:
    """Name what the page has no room for."""
    shown, explored = {one.picture.name for one in figures}, {one.env for one in explorers}
    without = [one for one in report.pictures if one.name not in shown]
    pictures = [one for one in without if _section(one) != "mds" or one.env not in explored]
    named = [f"figure {one.title} ({one.svg.name})" for one in pictures]
    return named + [f"explorer of {one.env}" for one in report.galleries if one.env not in explored]
