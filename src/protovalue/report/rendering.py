"""A table in its formats: Markdown, CSV, LaTeX, and plain text for a terminal."""

import csv as csv_module
import io
import re
import textwrap
from collections.abc import Iterable
from pathlib import Path

from protovalue.files import write_atomic
from protovalue.report.numbers import NONE, TIMES
from protovalue.report.table import Number, Table


def markdown(table: Table) -> str:
    """Write a table as GitHub's Markdown."""

    def shown(cell: Number) -> str:
        text = escape_markdown(cell.text)
        return f"**{text}**" if cell.is_best else text

    lines = [_row_of(map(escape_markdown, table.columns)), _row_of([":---", *["---:"] * (len(table.columns) - 1)])]
    lines += [_row_of(map(shown, row)) for row in table.rows]
    parts = [f"**{escape_markdown(table.title)}**", "\n".join(lines)]
    if table.note:
        parts.append(escape_markdown(table.note))
    return "\n\n".join(parts) + "\n"


def csv(table: Table) -> str:
    """Write a table as CSV, numbers in full; intervals and numbers of runs have columns of their own."""
    details = [
        [
            name
            for name in ("low", "high", "encoders", "agents")
            if any(getattr(row[i], name) is not None for row in table.rows)
        ]
        for i in range(len(table.columns))
    ]
    header = [
        [column, *(f"{column}, {name}" for name in names)] for column, names in zip(table.columns, details, strict=True)
    ]
    out = io.StringIO()
    writer = csv_module.writer(out, lineterminator="\n")
    writer.writerow([name for names in header for name in names])
    for row in table.rows:
        fields: list[str | float | None] = [row[0].text]
        for cell, names in zip(row[1:], details[1:], strict=True):
            fields += [cell.value, *(getattr(cell, name) for name in names)]
        writer.writerow(fields)
    return out.getvalue()


def latex(table: Table) -> str:
    """Write a table as LaTeX, for a document that loads booktabs."""

    def shown(cell: Number) -> str:
        text = _escape_latex(cell.text)
        return rf"\textbf{{{text}}}" if cell.is_best else text

    def line(texts: Iterable[str]) -> str:
        text = " & ".join(texts)
        return ("{}" if text.startswith(("[", "*")) else "") + text + r" \\"  # else they belong to the \\ before

    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_escape_latex(table.title)}}}",
        rf"\begin{{tabular}}{{l{'r' * (len(table.columns) - 1)}}}",
        r"\toprule",
        line(map(_escape_latex, table.columns)),
        r"\midrule",
        *(line(map(shown, row)) for row in table.rows),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    if table.note:
        lines.append(rf"\par\smallskip{{\footnotesize {_escape_latex(table.note)}\par}}")
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def plain(table: Table) -> str:
    """Write a table for a terminal: aligned columns, the best with a star."""
    grid = [table.columns, *(tuple(cell.text + ("*" if cell.is_best else " ") for cell in row) for row in table.rows)]
    widths = [max(len(text.rstrip()) for text in column) for column in zip(*grid, strict=True)]
    lines = [table.title, ""]
    for row in grid:
        first, *others = (text.rstrip() for text in row)
        starred = (text + ("" if text.endswith("*") else " ") for text in others)
        cells = (text.rjust(width + 1) for text, width in zip(starred, widths[1:], strict=True))
        lines.append("  ".join([first.ljust(widths[0]), *cells]).rstrip())
    if table.note:
        lines += ["", *(textwrap.fill(part, 100) for part in table.note.split("\n"))]
    return "\n".join(lines) + "\n"


def write_table(table: Table, folder: Path, name: str) -> dict[str, Path]:
    """Write a table in its three formats; return the files by ending: md, csv and tex."""
    paths = {}
    for ending, render in (("md", markdown), ("csv", csv), ("tex", latex)):
        paths[ending] = folder / f"{name}.{ending}"
        write_atomic(paths[ending], render(table).encode())
    return paths


def _row_of(texts: Iterable[str]) -> str:
    return f"| {' | '.join(texts)} |"


def escape_markdown(text: str) -> str:
    """Write a text so that Markdown shows it as it is."""
    return re.sub(r"([\\`*_|<&~]|(?<=])\()", r"\\\1", text).replace("\n", " ")


def _escape_latex(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in text)


_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    TIMES: r"$\times$",
    NONE: "--",
    "\n": " ",
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
}
