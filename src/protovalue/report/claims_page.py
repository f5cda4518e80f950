"""`claims.json`, in which a report keeps its verdicts, and `pvn claims`: one page and one picture of several."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from protovalue.errors import UserError
from protovalue.evaluate.aggregate import Estimate
from protovalue.files import make_folder, read_json, write_atomic, write_json
from protovalue.processes import one_thread
from protovalue.report import figures
from protovalue.report.claims import in_order
from protovalue.report.config import ClaimsConfig
from protovalue.report.model import Contrast, GridWidth, Report, Verdict
from protovalue.report.numbers import fixed
from protovalue.report.rendering import escape_markdown
from protovalue.report.summary import LEFT_OUT
from protovalue.schema import checked

CLAIMS, FORMAT, VERSION = "claims.json", "protovalue claims", 1
COMMENT = "#   "  # before a command at the head of a study's file

HEAD = """# The paper's claims, judged

Written by `pvn claims` from the reports of studies; no number here was typed. A difference is how
much higher the side is that a claim says is higher: mean over games, in brackets Student's 95%
interval over data sets, or over encoders where all share one data set. The interval alone decides:
a claim **holds here** if all of it is above 0 (above -0.1 where the claim says near, above -1
halving where it says half), **does not hold here** if all of it is below, and otherwise **cannot be
told**; then the page says how many data sets or encoders a game would need to tell four times out
of five, by the variance seen. [report.md](report.md) says how it is computed.
"""


@dataclass(frozen=True)
class Judged:
    """The verdicts of one study."""

    name: str
    title: str
    scale: str
    """What a normalised score is."""
    commands: tuple[str, ...]
    """What makes them, by the head of the study's file."""
    verdicts: tuple[Verdict, ...]
    contrasts: tuple[Contrast, ...]
    widths: tuple[GridWidth, ...]
    left_out: tuple[str, ...] = ()
    """Which games the verdicts do not stand on, and why."""


def judged(report: Report) -> Judged:
    """Return what a report says of the paper's claims."""
    lines = (report.results.file or "").splitlines()
    return Judged(
        name=report.results.name,
        title=report.results.title,
        scale=report.scale,
        commands=tuple(line[len(COMMENT) :].rstrip() for line in lines if line.startswith(f"{COMMENT}pvn ")),
        verdicts=report.verdicts,
        contrasts=report.contrasts,
        widths=report.grid_widths,
        left_out=tuple(note for note in report.notes if LEFT_OUT in note),
    )


def write_claims(report: Report, path: Path) -> list[Path]:
    """Write what a report says of the paper's claims; return the file, if it says anything."""
    if not (report.verdicts or report.contrasts):
        return []
    write_json(path, {"format": FORMAT, "version": VERSION, **_without_nan(asdict(judged(report)))})
    return [path]


def read_claims(path: Path) -> Judged:
    """Read such a file, or that of a report's folder; what does not fit is a UserError."""
    file = path / CLAIMS if path.is_dir() else path
    if not file.is_file():
        raise UserError(f"{path}: found no {CLAIMS}, expected the folder of a report that has claims, or its {CLAIMS}")
    fields = read_json(file)
    if (fields.pop("format", None), fields.pop("version", None)) != (FORMAT, VERSION):
        raise UserError(f"{file}: expected format {FORMAT!r}, version {VERSION}")
    return checked(Judged, _with_nan(fields), file)


def _without_nan(value: Any) -> Any:
    """Return what JSON can hold: NaN becomes null."""
    if isinstance(value, Mapping):
        return {name: _without_nan(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(one) for one in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def _with_nan(value: Any) -> Any:
    """Undo `_without_nan` where an interval is missing."""
    if isinstance(value, Mapping):
        missing = {"low", "high"} & value.keys()
        return {n: math.nan if n in missing and one is None else _with_nan(one) for n, one in value.items()}
    return [_with_nan(one) for one in value] if isinstance(value, list) else value


def claims_command(config: ClaimsConfig) -> None:
    """Write the page and its picture, and say what they hold."""
    studies = [read_claims(path) for path in config.reports]
    names = [study.name for study in studies]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"REPORTS: found study {twice} twice, expected each study once")
    picture = None
    if any(study.verdicts for study in studies):
        with one_thread():
            drawn = figures.verdicts_figure({study.name: study.verdicts for study in studies if study.verdicts})
            picture, vectors = figures.save(drawn, config.out.parent / "images", config.out.stem)
            vectors.unlink()  # the page shows one
    make_folder(config.out.parent)
    write_atomic(config.out, page(studies, f"images/{picture.name}" if picture else None).encode())
    told = [one.holds for study in studies for one in study.verdicts]
    print(
        f"{len(studies)} studies, {len(told)} verdicts: {told.count(True)} hold, {told.count(False)} do not, "
        f"{told.count(None)} cannot be told; wrote {config.out}{f' and {picture}' if picture else ''}"
    )


def page(studies: Sequence[Judged], picture: str | None) -> str:
    """Write the page: a row for each claim, with what every study says of it."""
    parts = [HEAD.rstrip()]
    if picture:
        parts += [f"![All verdicts at a glance]({picture})", "\n".join(_claims_table(studies))]
    choices = [row for study in studies for row in _contrast_rows(study)]
    if choices:
        head = ["| Variant | Difference | Verdict | Study |", "| :--- | ---: | :--- | :--- |"]
        parts += ["## What a variant changes", "How much higher it scores than PVN as it is in the same study."]
        parts.append("\n".join(head + choices))
    stops = [row for study in studies for row in _width_rows(study)]
    if stops:
        head = [
            "| Method and width | Best number of tasks | Gain per doubling up to it | Beyond it | Study |",
            "| :--- | ---: | ---: | ---: | :--- |",
        ]
        parts += [
            "## Where a width stops gaining from tasks",
            "The number of tasks with the highest mean score, and slopes of least squares over the numbers up to\n"
            "it and from it on; in brackets 95% intervals, encoders drawn again.",
            "\n".join(head + stops),
        ]
    parts += ["## The studies", *(_about(study) for study in studies)]
    return "\n\n".join(parts) + "\n"


def _claims_table(studies: Sequence[Judged]) -> list[str]:
    rows = ["| Claim | In the paper | Here |", "| :--- | :--- | :--- |"]
    claims = {one.claim: one for study in studies for one in study.verdicts}
    for claim in in_order(claims.values()):
        first = claims[claim]
        said = [
            f"{study.name}: **{one.verdict}**, {_number(one.difference, 3)} {one.unit}; {one.stands_on}"
            for study in studies
            for one in study.verdicts
            if one.claim == claim
        ]
        here = "<br>".join(escape_markdown(text).replace("\\*\\*", "**") for text in said)
        rows.append(f"| {escape_markdown(claim)} | {escape_markdown(f'{first.evidence} ({first.place})')} | {here} |")
    return rows


def _contrast_rows(study: Judged) -> list[str]:
    return [
        f"| {escape_markdown(one.method)} | {_number(one.difference, 3)} | {escape_markdown(one.verdict)} "
        f"({escape_markdown(one.stands_on)}) | {study.name} |"
        for one in study.contrasts
    ]


def _width_rows(study: Judged) -> list[str]:
    return [
        f"| {escape_markdown(one.method)}, {one.width:g}x | {_number(one.tasks, 0)} | {_number(one.gain, 3)} "
        f"| {_number(one.beyond, 3)} | {study.name} |"
        for one in study.widths
    ]


def _about(study: Judged) -> str:
    text = f"**{study.name}**: {escape_markdown(study.title)}. {escape_markdown(study.scale)}."
    text += "".join(f" {escape_markdown(note)}." for note in study.left_out)
    text = "\n".join(textwrap.wrap(text, 100, break_long_words=False, break_on_hyphens=False))
    return "\n".join([text, "", "```", *study.commands, "```"]) if study.commands else text


def _number(estimate: Estimate | None, digits: int) -> str:
    if estimate is None:
        return ""
    text = fixed(estimate.point, digits)
    if estimate.has_interval:
        text += f" [{fixed(estimate.low, digits)}, {fixed(estimate.high, digits)}]"
    return text
