"""Results as tables in the paper's layout, best in bold, next to the paper's numbers: Markdown, CSV and LaTeX."""

import csv as csv_module
import io
import re
import textwrap
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from protovalue.evaluate.aggregate import LESS_IS_BETTER, STATISTIC_TITLES, STATISTICS, Estimate, mean_interval
from protovalue.evaluate.scores import PAPER_REFERENCES, PAPER_TITLES, paper_results, paper_title
from protovalue.files import write_atomic

Scores = Mapping[str, Mapping[str, NDArray[np.float64]]]
"""Evaluation returns (P, S) of P encoders with S agents each, by method and environment."""

PAPER_NOTE = (
    "The paper's numbers stand on one encoder and three agents; its bold leaves out DQN, whose numbers are means "
    "over the whole of training, and Environment Reward."
)
NONE = "\N{EN DASH}"
TIMES = "\N{MULTIPLICATION SIGN}"


@dataclass(frozen=True)
class Cell:
    """A number with its 95% interval and what it stands on, or a text alone."""

    text: str
    """What a reader sees, without markup."""
    value: float | None = None
    low: float | None = None
    high: float | None = None
    encoders: int | None = None
    agents: int | None = None
    """Agents on each encoder."""
    is_best: bool = False
    """Whether it is the best of those in its row (per game) or column (aggregates) that compete; shown in bold."""


@dataclass(frozen=True)
class Table:
    """A table; the first column holds the names of the rows."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""


def per_game(
    scores: Scores,
    references: Collection[str] = (),
    title: str = "Mean evaluation return per game",
    digits: int | None = None,
) -> Table:
    """Make the per-game table: a row for each environment, a column for each method, then the paper's of the same name.

    Args:
        scores: Evaluation returns (P, S) by method and environment; a method may lack environments.
        references: Methods that are shown but set apart, as the paper does with DQN: the best of the others is bold.
        title: Title of the table.
        digits: Decimals; by default 1 for Atari, as in the paper, and 2 for others.
    """
    envs = list(dict.fromkeys(env for games in scores.values() for env in games))
    if digits is None:
        digits = 1 if all(env.startswith("atari/") for env in envs) else 2
    printed = {env: paper_results(env) for env in envs}
    titles = {paper_title(method) for method in scores}
    paper = [name for name in PAPER_TITLES.values() if name in titles and any(name in row for row in printed.values())]
    usual = {method: _usual_runs(games) for method, games in scores.items()}
    rows = []
    for env, label in zip(envs, _labels(envs), strict=True):
        ours = {
            method: _measured(games[env], digits, usual[method]) if env in games else Cell(NONE)
            for method, games in scores.items()
        }
        theirs = {name: Cell(number(value, digits), value) for name, value in printed[env].items()}
        ours = _mark_best(ours, references)
        theirs = _mark_best(theirs, [PAPER_TITLES[method] for method in PAPER_REFERENCES])
        rows.append((Cell(label), *ours.values(), *(theirs.get(name, Cell(NONE)) for name in paper)))
    columns = ("Game", *scores, *(f"{name}, paper" for name in paper))
    return Table(title, columns, tuple(rows), _per_game_note(scores, references, bool(paper)))


def aggregates(
    estimates: Mapping[str, Mapping[str, Estimate]],
    references: Collection[str] = (),
    title: str = "Normalised scores over games",
    note: str = "",
    digits: int = 3,
) -> Table:
    """Make the table of aggregates: a row for each method, a column for each statistic.

    Args:
        estimates: What `evaluate.aggregate.aggregates` returns, by method.
        references: Methods that are shown but set apart: the best of the others is bold.
        title: Title of the table.
        note: What the numbers stand on; `runs_text` helps.
        digits: Decimals.
    """
    columns = []
    for name in STATISTICS:
        cells = {method: _cell(found[name], digits) for method, found in estimates.items()}
        columns.append(_mark_best(cells, references, less_is_better=name in LESS_IS_BETTER))
    rows = tuple((Cell(method), *(column[method] for column in columns)) for method in estimates)
    return Table(title, ("Method", *(STATISTIC_TITLES[name] for name in STATISTICS)), rows, note)


def improvement(method: str, over: Mapping[str, Estimate], games: str) -> Table:
    """Make the table of the probability that a run of `method` scores higher than one of each other method."""
    rows = tuple((Cell(other), _cell(estimate, 3)) for other, estimate in over.items())
    note = (
        f"Probability that a run of {method} scores higher than one of the other method in the same game, ties "
        f"counting half; mean over {games}. 0.5 is no difference. 95% intervals by a bootstrap of encoders, and agents "
        "within them."
    )
    return Table("Probability of improvement", ("Method", f"{method} is better"), rows, note)


def runs_text(scores: Scores) -> str:
    """Say how many runs scores stand on: "encoders × agents on each: PVN (RNI) 3 × 3, DQN 5 × 1"."""
    found = {method: _runs_of(games) for method, games in scores.items() if games}
    kind = f"encoders {TIMES} agents on each (an agent trained end to end is its own encoder)"
    if len(set(found.values())) == 1:
        return f"{kind}: {next(iter(found.values()))}"
    return f"{kind}: " + ", ".join(f"{method} {runs}" for method, runs in found.items())


def number(value: float, digits: int) -> str:
    """Write a number as in the paper: 1,042.8; never -0.0."""
    text = f"{value:,.{digits}f}"
    return text.lstrip("-") if not text.strip("-0.,") else text


def markdown(table: Table) -> str:
    """Write a table as GitHub's Markdown."""

    def shown(cell: Cell) -> str:
        text = _escape_markdown(cell.text)
        return f"**{text}**" if cell.is_best else text

    lines = [_row_of(map(_escape_markdown, table.columns)), _row_of([":---", *["---:"] * (len(table.columns) - 1)])]
    lines += [_row_of(map(shown, row)) for row in table.rows]
    parts = [f"**{_escape_markdown(table.title)}**", "\n".join(lines)]
    if table.note:
        parts.append(_escape_markdown(table.note))
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

    def shown(cell: Cell) -> str:
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


def _cell(estimate: Estimate, digits: int) -> Cell:
    text = number(estimate.point, digits)
    if not estimate.has_interval:
        return Cell(text, estimate.point)
    text += f" [{number(estimate.low, digits)}, {number(estimate.high, digits)}]"
    return Cell(text, estimate.point, estimate.low, estimate.high)


def _measured(array: NDArray[np.float64], digits: int, usual: tuple[int, int]) -> Cell:
    """The cell of one environment; it says its number of runs where that is not the method's usual one."""
    cell, (P, S) = _cell(mean_interval(array), digits), array.shape
    text = cell.text if usual == (P, S) else f"{cell.text} ({P} {TIMES} {S})"
    return replace(cell, text=text, encoders=P, agents=S)


def _mark_best(cells: dict[str, Cell], apart: Collection[str], less_is_better: bool = False) -> dict[str, Cell]:
    """Mark the best of the cells that compete, all of them if they are equal; one alone is not marked."""
    rivals = [cell.value for name, cell in cells.items() if name not in apart and cell.value is not None]
    if len(rivals) < 2:
        return cells
    best = min(rivals) if less_is_better else max(rivals)
    return {name: replace(cell, is_best=name not in apart and cell.value == best) for name, cell in cells.items()}


def _labels(envs: Sequence[str]) -> list[str]:
    """Names of games, without the family where all have the same one."""
    families = {env.partition("/")[0] for env in envs}
    return [env.partition("/")[2] or env if len(families) == 1 else env for env in envs]


def _shapes(games: Mapping[str, NDArray[np.float64]]) -> Counter[tuple[int, int]]:
    return Counter((array.shape[0], array.shape[1]) for array in games.values())


def _usual_runs(games: Mapping[str, NDArray[np.float64]]) -> tuple[int, int]:
    return _shapes(games).most_common(1)[0][0] if games else (0, 0)


def _runs_of(games: Mapping[str, NDArray[np.float64]]) -> str:
    """How many encoders and agents, as "3 × 3", or "2 to 3 × 3" where environments differ."""

    def span(values: Iterable[int]) -> str:
        found = sorted(set(values))
        return str(found[0]) if len(found) == 1 else f"{found[0]} to {found[-1]}"

    shapes = _shapes(games)
    return f"{span(P for P, _ in shapes)} {TIMES} {span(S for _, S in shapes)}"


def _per_game_note(scores: Scores, references: Collection[str], paper: bool) -> str:
    shapes = [shape for games in scores.values() for shape in _shapes(games)]
    parts = [f"Mean over runs, {runs_text(scores)}."]
    if any(P >= 2 for P, _ in shapes):
        parts.append("In brackets the 95% interval of Student's t over encoders.")
    if any(P == 1 for P, _ in shapes):
        parts.append("One encoder alone gives no interval.")
    apart = " and ".join(method for method in scores if method in references)
    parts.append(f"Bold: the best, apart from {apart}." if apart else "Bold: the best.")
    if paper:
        parts.append(PAPER_NOTE)
    return " ".join(parts)


def _row_of(texts: Iterable[str]) -> str:
    return f"| {' | '.join(texts)} |"


def _escape_markdown(text: str) -> str:
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
