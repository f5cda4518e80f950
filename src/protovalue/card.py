"""What an encoder's folder tells others: results.json, and the model card, README.md."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from protovalue.files import read_json, write_json
from protovalue.schema import checked, require

RESULTS, CARD, PICTURE = "results.json", "README.md", "features.png"
FORMAT, VERSION = "protovalue encoder results", 1
HERE = "path/to/this/folder"
"""What a card calls the place of its encoder until it has one."""
_MARK = "<!-- What follows was added when the encoder was published. -->"


@dataclass(frozen=True)
class Row:
    """One line of a table of results: a method in the game, or what it is compared with."""

    name: str
    mean: float
    low: float | None
    """Of the 95% interval over encoders; None where there are too few."""
    high: float | None
    runs: int
    """Encoders, or agents where there is no encoder; 0 for a policy that was not trained."""

    def __post_init__(self) -> None:
        numbers = [one for one in (self.mean, self.low, self.high) if one is not None]
        require(all(map(math.isfinite, numbers)), "mean", numbers, "finite numbers")


@dataclass(frozen=True)
class Result:
    """How linear agents on the frozen encoder did in one environment."""

    env: str
    steps: int
    """Agent steps of each agent."""
    episodes: int
    """Evaluation episodes of each agent."""
    seeds: tuple[int, ...]
    returns: tuple[float, ...]
    """Mean return of each agent's evaluation episodes."""
    commands: tuple[str, ...]
    """What repeats it, in order."""
    study: str = ""
    """Title of the study that it is part of."""
    table: tuple[Row, ...] = ()
    """The methods of that study in this environment."""

    def __post_init__(self) -> None:
        require(len(self.seeds) > 0, "seeds", list(self.seeds), "one at least")
        require(len(self.returns) == len(self.seeds), "returns", list(self.returns), "one for each seed")
        require(all(map(math.isfinite, self.returns)), "returns", list(self.returns), "finite numbers")

    @property
    def mean(self) -> float:
        """Mean over the agents."""
        return sum(self.returns) / len(self.returns)

    @property
    def spread(self) -> float:
        """Standard deviation over the agents, 0 for one."""
        centre = self.mean
        squares = sum((one - centre) ** 2 for one in self.returns)
        return math.sqrt(squares / (len(self.returns) - 1)) if len(self.returns) > 1 else 0.0


@dataclass(frozen=True)
class _Results:
    format: str
    version: int
    results: list[Result]

    def __post_init__(self) -> None:
        require(self.format == FORMAT, "format", self.format, repr(FORMAT))
        require(self.version == VERSION, "version", self.version, str(VERSION))


def write_results(folder: Path, results: Sequence[Result]) -> None:
    """Write results.json."""
    write_json(folder / RESULTS, {"format": FORMAT, "version": VERSION, "results": [asdict(one) for one in results]})


def read_results(folder: Path) -> list[Result]:
    """Read results.json; an encoder that nobody evaluated has none."""
    path = folder / RESULTS
    return checked(_Results, read_json(path), path).results if path.is_file() else []


def card(own: str, where: str, results: Sequence[Result], licence: str, picture: bool, head: str = "") -> str:
    """Return a model card: what the encoder's own card says, and after it what is known of its worth.

    Args:
        own: the card as pretraining wrote it, or one that this function returned.
        where: what `load_encoder` takes.
        results: of agents on the encoder.
        licence: as SPDX names it.
        picture: whether there is one beside the card.
        head: metadata, lines of YAML.
    """
    body = re.sub(r"\A---\n.*?\n---\n", "", own, flags=re.DOTALL).partition(_MARK)[0].strip()
    body = body.replace(HERE, where)
    parts = [f"---\n{head.strip()}\n---\n\n{body}" if head else body, _MARK]
    if picture:
        parts.append(f"![features of random play, and how many directions they fill]({PICTURE})")
    parts += ["\n".join(lines) for one in results for lines in _sections(one)]
    parts += [
        "## Licence\n\n"
        f"{licence}. The folder holds numbers and text: a JSON file and a safetensors file. Loading them runs no code.",
    ]
    return "\n\n".join(parts) + "\n"


def _sections(result: Result) -> Iterator[list[str]]:
    """Yield the parts of a card about one environment."""
    agents = ", ".join(f"{one:.2f}" for one in result.returns)
    yield [
        f"## Results in {result.env}",
        "",
        f"Linear agents on the frozen features: a mean return of **{result.mean:.2f}**",
        f"over {len(result.returns)} agents ({agents}), after {result.steps:,} agent steps each,",
        f"in {result.episodes:,} evaluation episodes each.",
    ]
    if result.table:
        yield [f"The whole comparison, {result.study!r}. Intervals are 95%, over encoders.", "", *table_lines(result)]
    yield ["It is repeated by:", "", "```", *result.commands, "```"]


def table_lines(result: Result) -> list[str]:
    """Return the table of a study in one environment, as Markdown."""
    rows = [f"| {row.name} | {row.mean:.2f} | {interval(row)} | {row.runs or ''} |" for row in result.table]
    return ["| method | mean return | interval | runs |", "|---|---|---|---|", *rows]


def interval(row: Row) -> str:
    """Return an interval as text."""
    return "" if row.low is None or row.high is None else f"{row.low:.2f} to {row.high:.2f}"
